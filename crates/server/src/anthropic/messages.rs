//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::session::Update;
use serde_json::{Value, json};

use super::reply::Reply;
use super::request::{Purpose, read};
use crate::answers::Answers;
use crate::body::Posted;
use crate::continuation::continued;
use crate::error::ApiError;
use crate::fields::Result;
use crate::openai::wants_progress;
use crate::prepare;
use crate::request::identifier;
use crate::shared::Shared;
use crate::wire::{self, Framing, KeepAlive};

/// What Anthropic's clients take as a sign of life.
const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// Answers a conversation.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    posted: Posted,
) -> Result<Response> {
    let (asked, share) = posted.read(|body| read(body, Purpose::Answer))?;
    let model = shared.model()?.name.clone();
    let (request, share) = continued(&shared, asked.request, asked.begun, share).await?;
    let answers = prepare::begin(&shared, request, share).await.map_err(in_own_words)?;
    let reply = Reply::new(identifier("msg_"), model, answers.prompt_tokens, asked.shows_thinking);
    if asked.streams {
        Ok(stream(&shared, wants_progress(&headers), reply, answers))
    } else {
        Ok(Json(collect(reply, answers).await?).into_response())
    }
}

/// How many tokens a conversation has.
pub(crate) async fn count_tokens(
    State(shared): State<Arc<Shared>>,
    posted: Posted,
) -> Result<Json<Value>> {
    let (asked, share) = posted.read(|body| read(body, Purpose::Count))?;
    let (request, share) = continued(&shared, asked.request, asked.begun, share).await?;
    let prompt = prepare::prompt(&shared, request, share).await?.0;
    Ok(Json(json!({"input_tokens": prompt.tokens.len()})))
}

fn stream(
    shared: &Shared,
    shows_progress: bool,
    mut reply: Reply,
    mut answers: Answers,
) -> Response {
    let keep_alive = KeepAlive { every: shared.options.keep_alive, frame: Some(PING) };
    wire::stream(Framing::Events, keep_alive, move |mut wire| async move {
        for (name, data) in reply.begin() {
            wire.event(name, &data);
        }
        while let Some((_, updates)) = wire.next(&mut answers).await {
            for update in updates {
                if let Ok(Update::Prefill { done, total, cached }) = update
                    && shows_progress
                {
                    let progress = json!({"done": done, "total": total, "cached": cached});
                    wire.event("prefill_progress", &progress);
                }
                let events = match update {
                    Ok(update) => reply.take(update),
                    Err(error) => vec![Reply::fail(&in_own_words(error))],
                };
                for (name, data) in events {
                    wire.event(name, &data);
                }
            }
        }
    })
}

async fn collect(mut reply: Reply, mut answers: Answers) -> Result<Value> {
    while let Some((_, updates)) = answers.next().await {
        for update in updates {
            reply.take(update.map_err(in_own_words)?);
        }
    }
    Ok(reply.whole())
}

/// An error as Anthropic would say it: clients look for its words to know that a conversation must be shortened.
fn in_own_words(error: ApiError) -> ApiError {
    match error.context {
        Some((needed, context)) => {
            let message = format!("prompt is too long: {needed} tokens > {context} maximum");
            ApiError { message, ..error }
        }
        None => error.renamed("response_format", "output_config.format"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorShape, context_exceeded};

    #[test]
    fn errors_are_in_the_words_that_clients_look_for() {
        #[track_caller]
        fn check(error: ApiError, message: &str) {
            let expect = json!({"type": "error",
                "error": {"type": "invalid_request_error", "message": message}});
            assert_eq!(ErrorShape::Anthropic.body(&in_own_words(error)), expect);
        }
        check(context_exceeded(30_013, 8192), "prompt is too long: 30013 tokens > 8192 maximum");
        check(ApiError::field("response_format", "too large"), "output_config.format: too large");
        check(ApiError::field("top_p", "no"), "top_p: no");
    }
}
