//! Ollama's dialect: what its clients list, show and request, answered in lines of JSON.
//!
//! One model answers, whatever name a request gives it: the name is handed back. What would fetch,
//! change or remove models is refused with a sentence that says so. Tool calls come whole, with their
//! arguments as an object. A last message by the assistant is continued.

mod manage;
mod reply;
mod request;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::session::Update;
use text::Piece;

pub(crate) use manage::{embed, ps, pull, refuse, show, tags, version};

use crate::answers::Answers;
use crate::body::Posted;
use crate::budget::Share;
use crate::continuation::continued;
use crate::error::{ApiError, ErrorShape};
use crate::fields::{Fields, Result};
use crate::prepare;
use crate::request::call_id;
use crate::shared::ServerState;
use crate::wire::{self, Framing, KeepAlive, Wire};
use reply::{Calls, Kind, Reply};
use request::Wanted;

/// `POST /api/chat`
pub(crate) async fn chat(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Response> {
    let (wanted, share) = posted.read(|body| request::chat(&Fields::of_body(body)?))?;
    answer(&shared, Kind::Chat, wanted, share).await
}

/// `POST /api/generate`
pub(crate) async fn generate(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Response> {
    let (wanted, share) = posted.read(|body| request::generate(&Fields::of_body(body)?))?;
    answer(&shared, Kind::Generate, wanted, share).await
}

async fn answer(
    shared: &Arc<ServerState>,
    kind: Kind,
    wanted: Wanted,
    share: Share,
) -> Result<Response> {
    let started = Instant::now();
    let model = wanted.model.unwrap_or(manage::tagged(&shared.model()?.name));
    let reply = Reply { kind, model, started };
    // A request for nothing wants the model to be there, which it is, or to be gone, which makes no difference
    // to its client: the one model stays.
    let Some(request) = wanted.request else {
        return Ok(Json(reply.nothing(wanted.unloads)).into_response());
    };
    let (request, share) = continued(shared, request, wanted.begun, share).await?;
    let answers = prepare::begin(shared, vec![request], share).await.map_err(in_own_words)?;
    if wanted.stream {
        // Lines of JSON have no comments: a silent stream stays silent.
        let keep_alive = KeepAlive { every: shared.options.keep_alive, frame: None };
        let run = |wire| tell(wire, answers, reply);
        return Ok(wire::stream(Framing::Lines, keep_alive, run));
    }
    let (mut wholes, _held) = answers.collect().await.map_err(in_own_words)?;
    let whole = wholes.pop().unwrap_or_default();
    Ok(Json(reply.whole(&whole)).into_response())
}

/// Line by line.
async fn tell(mut wire: Wire, mut answers: Answers, reply: Reply) {
    let mut calls = Calls::default();
    while let Some((_, updates)) = wire.next(&mut answers).await {
        for update in updates {
            let line = match update {
                Ok(Update::Prefill { .. }) => None,
                Ok(Update::Piece(Piece::Reasoning(text), _)) => Some(reply.thinking(&text)),
                Ok(Update::Piece(Piece::Content(text), logprobs)) => {
                    Some(reply.content(&text, &logprobs))
                }
                Ok(Update::Piece(Piece::ToolBegin { id, name, .. }, _)) => {
                    calls.begin(call_id(id), name);
                    None
                }
                Ok(Update::Piece(Piece::ToolArguments { json, .. }, _)) => {
                    calls.more(&json);
                    None
                }
                Ok(Update::Piece(Piece::ToolEnd { .. }, _)) => {
                    calls.end().map(|call| reply.tool_call(call))
                }
                Ok(Update::Finished(ending)) => Some(reply.last(&ending)),
                Err(error) => Some(ErrorShape::Ollama.body(&in_own_words(error))),
            };
            if let Some(line) = line {
                wire.json(&line);
            }
        }
    }
}

/// Names fields as Ollama does.
fn in_own_words(error: ApiError) -> ApiError {
    error.renamed("logit_bias", "options.logit_bias").renamed("response_format", "format")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_as_ollama_does() {
        #[track_caller]
        fn check(field: &str, expect: &str) {
            let error = in_own_words(ApiError::field(field, "no"));
            assert_eq!(error.message, format!("{expect}: no"));
        }
        check("logit_bias", "options.logit_bias");
        check("response_format", "format");
        check("messages", "messages");
    }
}
