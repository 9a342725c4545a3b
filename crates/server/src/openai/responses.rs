//! `POST /v1/responses`, as Codex speaks it: nothing is kept between two requests.
//!
//! `request` and `items` read what is asked, `offers` what may be called, `reply` turns an answer into items
//! and events. What a client needs to go on with (thinking included) is in the response itself.

mod input_text;
mod items;
mod offers;
mod reply;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::session::Update;
use serde_json::{Value, json};

use super::{now_unix_s, wants_progress};
use crate::answers::Answers;
use crate::body::Posted;
use crate::error::ApiError;
use crate::fields::Result;
use crate::prepare;
use crate::request::identifier;
use crate::shared::Shared;
use crate::wire::{self, Framing, KeepAlive};
use reply::{Head, Reply};

/// Answers a conversation.
pub(crate) async fn respond(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    posted: Posted,
) -> Result<Response> {
    let (asked, share) = posted.read(request::read)?;
    let model = shared.model()?.name.clone();
    let answers = prepare::begin(&shared, asked.request, share).await.map_err(in_own_words)?;
    let head = Head { suffix: identifier(""), created: now_unix_s(), model, echo: asked.echo };
    let reply = Reply::new(head, asked.offers, asked.extras);
    if asked.streams {
        Ok(stream(&shared, wants_progress(&headers), reply, answers))
    } else {
        Ok(Json(collect(reply, answers).await?).into_response())
    }
}

fn stream(
    shared: &Shared,
    shows_progress: bool,
    mut reply: Reply,
    mut answers: Answers,
) -> Response {
    let keep_alive =
        KeepAlive { every: shared.options.keep_alive, frame: Some(": keep-alive\n\n") };
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
                    Err(error) => reply.fail(in_own_words(error)),
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
        answers.keep(&updates)?;
        for update in updates {
            reply.take(update.map_err(in_own_words)?);
        }
    }
    Ok(reply.whole())
}

/// Names fields as this path does: what chat calls `messages` is `input` here.
fn in_own_words(error: ApiError) -> ApiError {
    error.renamed("messages", "input").renamed("response_format", "text.format")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_as_this_path_does() {
        #[track_caller]
        fn check(error: ApiError, param: &str, message: &str) {
            let error = in_own_words(error);
            assert_eq!((error.param.as_deref(), error.message.as_str()), (Some(param), message));
        }
        check(ApiError::field("messages", "none"), "input", "input: none");
        check(
            ApiError::field("response_format", "too large"),
            "text.format",
            "text.format: too large",
        );
        check(ApiError::field("top_p", "no"), "top_p", "top_p: no");
        let error = crate::error::context_exceeded(9, 8);
        check(error.clone(), "input", &error.message);
    }
}
