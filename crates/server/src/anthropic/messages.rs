//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::reply::Reply;
use super::request::{Purpose, read};
use crate::body::Posted;
use crate::continuation::continued;
use crate::fields::Result;
use crate::prepare;
use crate::reply::{self, EventReply};
use crate::request::identifier;
use crate::shared::ServerState;

/// Answers a conversation.
pub(crate) async fn create(
    State(shared): State<Arc<ServerState>>,
    headers: HeaderMap,
    posted: Posted,
) -> Result<Response> {
    let (asked, share) = posted.read(|body| read(body, Purpose::Answer))?;
    let model = shared.model()?.name.clone();
    let (request, share) = continued(&shared, asked.request, asked.begun, share).await?;
    let answers =
        prepare::begin(&shared, vec![request], share).await.map_err(Reply::in_own_words)?;
    let reply = Reply::new(identifier("msg_"), model, answers.prompt_tokens, asked.shows_thinking);
    reply::write(&shared, &headers, asked.streams, reply, answers).await
}

/// How many tokens a conversation has.
pub(crate) async fn count_tokens(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Json<Value>> {
    let (asked, share) = posted.read(|body| read(body, Purpose::Count))?;
    let (request, share) = continued(&shared, asked.request, asked.begun, share).await?;
    let prompt = prepare::prompt(&shared, request, share).await?.0;
    Ok(Json(json!({"input_tokens": prompt.tokens.len()})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ApiError, ErrorShape, context_exceeded};

    #[test]
    fn errors_are_in_the_words_that_clients_look_for() {
        #[track_caller]
        fn check(error: ApiError, message: &str) {
            let expect = json!({"type": "error",
                "error": {"type": "invalid_request_error", "message": message}});
            assert_eq!(ErrorShape::Anthropic.body(&Reply::in_own_words(error)), expect);
        }
        check(context_exceeded(30_013, 8192), "prompt is too long: 30013 tokens > 8192 maximum");
        check(ApiError::field("response_format", "too large"), "output_config.format: too large");
        check(ApiError::field("top_p", "no"), "top_p: no");
    }
}
