//! Every path, and what happens to a request before and after its handler.
//!
//! From the outside in: a request id, a log line, and errors in the path's dialect (`account`); which requests
//! are accepted, by host, origin and key (`guard`); the handler.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};

use crate::account::account;
use crate::error::ApiError;
use crate::guard::guard;
use crate::shared::ServerState;
use crate::{anthropic, inspect, live, ollama, openai, page};

/// All paths.
pub(crate) fn router(shared: Arc<ServerState>) -> Router {
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
