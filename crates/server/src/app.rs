//! Every path, and what happens to a request before and after its handler.
//!
//! From the outside in: a request id and a log line; errors rendered in the path's dialect; who may ask
//! (host, origin, key); the handler. Prompts and answers are never logged.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::Value;

use crate::ask::identifier;
use crate::error::{ApiError, ErrorShape};
use crate::shared::Shared;
use crate::{anthropic, inspect, live, ollama, openai, page};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Requests that browsers of allowed origins may make.
const CORS_METHODS: &str = "GET, POST, OPTIONS";
/// What their pages may look at besides the body.
const CORS_EXPOSED: &str = "x-request-id, request-id, retry-after";

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

/// A request id, a log line, and errors in the dialect of the path.
async fn account(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let shape = ErrorShape::of(&path, request.headers());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = render(&error, shape, &id, response.headers());
    }
    let class = usize::from(response.status().as_u16() / 100).clamp(1, 5) - 1;
    shared.metrics.responses[class].add(1);
    let seconds = start.elapsed().as_secs_f64();
    tracing::info!("{id} {method} {path} {} {seconds:.3} s", response.status().as_u16());
    if let Ok(value) = HeaderValue::from_str(&id) {
        if shape == ErrorShape::Anthropic {
            response.headers_mut().insert(ANTHROPIC_REQUEST_ID, value.clone());
        }
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// The client's own id, if it is harmless, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let own = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    match own {
        Some(id) if (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) => {
            id.to_owned()
        }
        _ => identifier("req_"),
    }
}

fn render(error: &ApiError, shape: ErrorShape, id: &str, kept: &HeaderMap) -> Response {
    let mut body = shape.body(error);
    if shape == ErrorShape::Anthropic {
        body["request_id"] = id.into();
    }
    let mut response = (error.status, Json(body)).into_response();
    let of_origin = [header::ACCESS_CONTROL_ALLOW_ORIGIN, header::ACCESS_CONTROL_EXPOSE_HEADERS];
    for name in [header::ALLOW, header::VARY].into_iter().chain(of_origin) {
        if let Some(value) = kept.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Who may ask: pages of allowed origins only, and holders of a key if there are keys.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if let Err(error) = check_host(&shared, headers) {
        return error.into_response();
    }
    let origin = match check_origin(&shared, headers) {
        Ok(origin) => origin,
        Err(error) => return error.into_response(),
    };
    // Pages of an allowed origin may send what they like: clients' libraries have many headers of their own.
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = if request.method() == Method::OPTIONS && origin.is_some() {
        StatusCode::NO_CONTENT.into_response()
    } else if let Err(error) = check_key(&shared, request.uri().path(), headers) {
        error.into_response()
    } else {
        next.run(request).await
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            header::VARY,
            HeaderValue::from_static("Origin, Access-Control-Request-Headers"),
        );
        headers
            .insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(CORS_METHODS));
        if let Some(asked) = asked {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        }
        headers
            .insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(CORS_EXPOSED));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
    response
}

/// A server that only this computer can reach must not be reached by a page elsewhere whose name was made to
/// point here.
fn check_host(shared: &Shared, headers: &HeaderMap) -> Result<(), ApiError> {
    if !is_loopback_name(&shared.options.host) || !shared.options.api_keys.is_empty() {
        return Ok(());
    }
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if host.is_empty() || is_loopback_name(without_port(host)) {
        return Ok(());
    }
    let message = "this server answers requests to localhost only; --host or --api-key opens it";
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

fn is_loopback_name(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    }
}

/// The origin to allow, if the request comes from a page of another one.
fn check_origin(shared: &Shared, headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
    let text = origin.to_str().unwrap_or_default();
    let allowed = &shared.options.allowed_origins;
    if allowed.iter().any(|one| one == "*" || one.trim_end_matches('/') == text) {
        return Ok(Some(origin.clone()));
    }
    // Our own page.
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let own = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if own.is_some_and(|own| !host.is_empty() && own.eq_ignore_ascii_case(host)) {
        return Ok(None);
    }
    let message = format!("pages of {text:?} may not use this server; --allow-origin lets them");
    Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
}

/// The page is open to everybody, and so is the question whether the server lives; all else needs the key.
fn check_key(shared: &Shared, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let keys = &shared.options.api_keys;
    let is_open = matches!(path, "/" | "/health") || (shared.options.page && page::is_part(path));
    if keys.is_empty() || is_open {
        return Ok(());
    }
    // As bytes: a key may have characters that are not ASCII.
    let bearer = headers.get(header::AUTHORIZATION).map(|value| without_scheme(value.as_bytes()));
    let header = headers.get("x-api-key").map(HeaderValue::as_bytes);
    for shown in [bearer, header].into_iter().flatten() {
        if keys.iter().fold(false, |found, key| found | same(key.as_bytes(), shown)) {
            return Ok(());
        }
    }
    let message = "this server needs a key: send `Authorization: Bearer …` or `x-api-key: …`";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
}

/// A key behind `Bearer`, or alone.
fn without_scheme(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
        _ => value,
    }
}

/// Whether the request showed a key, or needs none.
pub(crate) fn may_see_all(shared: &Shared, headers: &HeaderMap) -> bool {
    check_key(shared, "", headers).is_ok()
}

/// Compares in a time that does not depend on where two texts differ.
fn same(key: &[u8], shown: &[u8]) -> bool {
    let mut difference = key.len() ^ shown.len();
    for index in 0..key.len() {
        difference |= usize::from(key[index] ^ shown.get(index).copied().unwrap_or(0));
    }
    std::hint::black_box(difference) == 0
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
    use crate::Options;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let value = |value: &str| HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let pair = |&(name, text)| (HeaderName::from_static(name), value(text));
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn keys_are_taken_from_either_header() {
        let keys = vec!["one".to_owned(), "another".to_owned(), "schlüssel 🔑".to_owned()];
        let shared = Shared::new(Options { api_keys: keys, ..Options::default() });
        #[track_caller]
        fn check(
            shared: &Shared,
            pairs: &[(&'static str, &'static str)],
            path: &str,
            expect: bool,
        ) {
            assert_eq!(check_key(shared, path, &headers(pairs)).is_ok(), expect);
        }
        check(&shared, &[], "/v1/models", false);
        check(&shared, &[("authorization", "Bearer one")], "/v1/models", true);
        check(&shared, &[("authorization", "bearer another")], "/v1/models", true);
        check(&shared, &[("authorization", "another")], "/v1/models", true);
        check(&shared, &[("x-api-key", "another")], "/v1/messages", true);
        check(&shared, &[("x-api-key", "anothe")], "/v1/messages", false);
        check(&shared, &[("x-api-key", "anotherx")], "/v1/messages", false);
        check(&shared, &[("x-api-key", "")], "/v1/messages", false);
        check(&shared, &[("authorization", "Bearer two"), ("x-api-key", "one")], "/metrics", true);
        check(&shared, &[("authorization", "Bearer schlüssel 🔑")], "/v1/models", true);
        check(&shared, &[("x-api-key", "schlüssel 🔑")], "/v1/messages", true);
        check(&shared, &[("x-api-key", "schlüssel 🔐")], "/v1/messages", false);
        check(&shared, &[("authorization", "Bearer schl")], "/v1/models", false);
        check(&shared, &[("authorization", "🔑🔑")], "/v1/models", false);
        check(&shared, &[], "/health", true);
        check(&shared, &[], "/", true);
        check(&shared, &[], "/live", false);
    }

    #[test]
    fn pages_of_other_origins_are_kept_out_unless_allowed() {
        #[track_caller]
        fn check(allowed: &[&str], origin: &'static str, expect: Result<bool, ()>) {
            let allowed_origins = allowed.iter().map(|&origin| origin.to_owned()).collect();
            let shared = Shared::new(Options { allowed_origins, ..Options::default() });
            let headers = headers(&[("origin", origin), ("host", "localhost:8080")]);
            let got = check_origin(&shared, &headers).map(|o| o.is_some()).map_err(|_| ());
            assert_eq!(got, expect);
        }
        check(&[], "http://localhost:8080", Ok(false));
        check(&[], "http://localhost:3000", Err(()));
        check(&[], "https://evil.example", Err(()));
        check(&[], "null", Err(()));
        check(&["https://chat.example"], "https://chat.example", Ok(true));
        check(&["https://chat.example/"], "https://chat.example", Ok(true));
        check(&["https://chat.example"], "https://chat.example.evil", Err(()));
        check(&["*"], "https://any.example", Ok(true));
    }

    #[test]
    fn a_local_server_is_reached_by_local_names_only() {
        #[track_caller]
        fn check(listen: &str, host: &'static str, expect: bool) {
            let shared = Shared::new(Options { host: listen.to_owned(), ..Options::default() });
            assert_eq!(check_host(&shared, &headers(&[("host", host)])).is_ok(), expect, "{host}");
        }
        check("127.0.0.1", "127.0.0.1:8080", true);
        check("127.0.0.1", "localhost", true);
        check("localhost", "[::1]:8080", true);
        check("127.0.0.1", "rebound.example:8080", false);
        check("127.0.0.1", "localhost.evil.example", false);
        check("0.0.0.0", "box.lan:8080", true);
    }

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
