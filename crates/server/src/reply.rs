//! Answers as named events: what Anthropic's messages and OpenAI's responses share.

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::session::Update;
use serde_json::{Value, json};

use crate::answers::Answers;
use crate::error::ApiError;
use crate::fields::Result;
use crate::openai::wants_progress;
use crate::shared::ServerState;
use crate::wire::{self, Framing, KeepAlive};

/// An event's name and its data.
pub(crate) type Event = (&'static str, Value);

/// A response under way: it says which events an answer becomes, and at the end it has the whole response too, so a
/// streamed answer and one that is not cannot differ.
pub(crate) trait EventReply: Send + 'static {
    /// What clients take as a sign of life.
    const KEEP_ALIVE: &'static str;

    /// What comes before all else.
    fn begin(&mut self) -> Vec<Event>;

    /// What an update of the answer becomes.
    fn take(&mut self, update: Update) -> Vec<Event>;

    /// What the error becomes that the answer ends with.
    fn fail(&mut self, error: ApiError) -> Vec<Event>;

    /// The response so far.
    fn whole(&self) -> Value;

    /// An error in the words of the dialect.
    fn in_own_words(error: ApiError) -> ApiError;
}

/// Writes a response, event by event or whole.
pub(crate) async fn write<R: EventReply>(
    shared: &ServerState,
    headers: &HeaderMap,
    streams: bool,
    mut reply: R,
    mut answers: Answers,
) -> Result<Response> {
    if !streams {
        while let Some((_, updates)) = answers.next().await {
            answers.keep(&updates)?;
            for update in updates {
                reply.take(update.map_err(R::in_own_words)?);
            }
        }
        return Ok(Json(reply.whole()).into_response());
    }
    let shows_progress = wants_progress(headers);
    let keep_alive = KeepAlive { every: shared.options.keep_alive, frame: Some(R::KEEP_ALIVE) };
    Ok(wire::stream(Framing::Events, keep_alive, move |mut wire| async move {
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
                    Err(error) => reply.fail(R::in_own_words(error)),
                };
                for (name, data) in events {
                    wire.event(name, &data);
                }
            }
        }
    }))
}
