//! Every path, and what happens to a request before and after its handler.
//!
//! From the outside in: a request id, a log line, and errors in the path's dialect (`account`); which requests
//! are let in, by host, origin and key (`guard`); the handler.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use serde_json::Value;

use crate::account::account;
use crate::error::ApiError;
use crate::guard::guard;
use crate::shared::Shared;
use crate::{anthropic, inspect, live, ollama, openai, page};

/// All paths.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let router = Router::new()
        .route("/v1/chat/completions", post(openai::chat::complete))
        .route("/v1/completions", post(openai::completions::complete))
        .route("/v1/responses", post(openai::responses::respond))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::show))
        .route("/v1/embeddings", post(openai::models::embeddings))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
        .route("/api/version", get(ollama::version))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embed))
        .route("/api/pull", post(ollama::pull))
        .route("/api/push", post(ollama::refuse))
        .route("/api/create", post(ollama::refuse))
        .route("/api/copy", post(ollama::refuse))
        .route("/api/delete", delete(ollama::refuse))
        .route("/health", get(inspect::health))
        .route("/metrics", get(inspect::metrics))
        .route("/tokenize", post(inspect::tokenize))
        .route("/detokenize", post(inspect::detokenize))
        .route("/apply-template", post(inspect::apply_template))
        .route("/openapi.json", get(inspect::openapi))
        .route("/live", get(live::watch));
    let of_page = if shared.options.page { page::router() } else { page::sign_of_life() };
    router
        .merge(of_page)
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .layer(from_fn_with_state(Arc::clone(&shared), account))
        .with_state(shared)
}

async fn no_such_path(request: Request) -> ApiError {
    let message =
        format!("there is no {} here; /openapi.json lists what there is", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// Values that a body may have, or twice the context if that is more: a prompt may come as tokens. Read, a value takes up
/// to some hundred bytes, however short it is written.
const MOST_VALUES: usize = 250_000;

/// The JSON body of a request, within the limits of size and time.
#[derive(Debug)]
pub(crate) struct Posted(pub(crate) Value);

impl FromRequest<Arc<Shared>> for Posted {
    type Rejection = ApiError;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Posted, ApiError> {
        if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
            && encoding != "identity"
        {
            let message = "bodies are read as they are, without a Content-Encoding";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(ApiError::new(status, "unsupported_encoding", message));
        }
        let most = shared.options.body_bytes;
        let too_large = || {
            let message = format!("the body is larger than {most} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
        };
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > most as u64) {
            return Err(too_large());
        }
        let body: Body = request.into_body();
        let bytes = match tokio::time::timeout(shared.options.patience, to_bytes(body, most)).await
        {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) if is_over_limit(&error) => return Err(too_large()),
            Ok(Err(_)) => {
                return Err(ApiError::bad_request("incomplete_body", "the body ended too early"));
            }
            Err(_) => {
                let message = "the body did not arrive in time";
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
            }
        };
        if bytes.is_empty() {
            return Err(ApiError::bad_request("invalid_json", "the body is empty, expected JSON"));
        }
        let context = shared.model().map_or(0, |model| model.facts.context);
        let most = MOST_VALUES.max(2 * context);
        if has_more_values(&bytes, most) {
            let message = format!("the body has more than {most} values");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        let parse = |error: serde_json::Error| {
            ApiError::bad_request("invalid_json", format!("the body is not valid JSON: {error}"))
        };
        Ok(Posted(serde_json::from_slice(&bytes).map_err(parse)?))
    }
}

/// Whether JSON has more commas than `most` outside its texts, and so more values.
fn has_more_values(json: &[u8], most: usize) -> bool {
    let (mut is_text, mut is_escaped, mut commas) = (false, false, 0);
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' if !is_text => commas += 1,
            _ => {}
        }
        if commas > most {
            return true;
        }
    }
    false
}

fn is_over_limit(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit") {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_the_commas_between_them() {
        #[track_caller]
        fn check(json: &str, commas: usize) {
            assert!(!has_more_values(json.as_bytes(), commas), "{json}");
            assert!(commas == 0 || has_more_values(json.as_bytes(), commas - 1), "{json}");
        }
        check("", 0);
        check("[1]", 0);
        check(r#"{"a": [1, 2], "b": "x,y"}"#, 2);
        check(r#"["\",", "\\", 1]"#, 2);
    }
}
