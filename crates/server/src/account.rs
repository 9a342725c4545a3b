//! What every request has: an id, a line in the log, and errors in the dialect of its path.
//!
//! Prompts and answers are never logged.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, ErrorShape};
use crate::request::identifier;
use crate::shared::ServerState;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look for it.
pub(crate) const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// A request id, a log line, and errors in the dialect of the path.
pub(crate) async fn account(
    State(shared): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
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
