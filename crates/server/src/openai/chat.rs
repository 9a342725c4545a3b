//! `POST /v1/chat/completions`.
//!
//! [`read`] turns a body into a request; [`Shape`] turns what comes back into choices, whole or in deltas.
//! Unknown fields are ignored, and so is the model's name: the model that is loaded answers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::session::{AnswerRequest, Finish, Input, TokenLogprob, Update, WholeAnswer};
use serde_json::{Value, json};
use text::Piece;

use super::{
    ResponseHead, Streaming, check_names, effort, finish_word, format, logprobs_json, messages,
    tools, total,
};
use crate::body::Posted;
use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};
use crate::prepare;
use crate::request::{call_id, read_sampling, read_stop};
use crate::shared::ServerState;

/// The most alternatives to a token, as OpenAI has it.
const MOST_TOP_LOGPROBS: usize = 20;
/// Variables of a template that come from the request and the model: set by hand, they would put a conversation
/// before the model that are not checked.
const RESERVED_VARIABLES: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];

/// A request as it was read.
#[derive(Debug)]
pub(crate) struct Chat {
    pub(crate) request: AnswerRequest,
    streaming: Option<Streaming>,
    shape: Shape,
}

/// What the client's choices look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shape {
    /// Tokens come with their log-probabilities.
    logprobs: bool,
    /// A call is a `function_call`: the client offered `functions`.
    is_older: bool,
}

/// Answers a conversation.
pub(crate) async fn complete(
    State(shared): State<Arc<ServerState>>,
    headers: HeaderMap,
    posted: Posted,
) -> Result<Response> {
    let (Chat { request, streaming, shape }, share) = posted.read(read)?;
    let choices = request.choices;
    let answers = prepare::begin(&shared, vec![request], share).await?;
    let model = &shared.model()?.name;
    let Some(streaming) = streaming else {
        let head = ResponseHead::new("chatcmpl-", "chat.completion", model);
        let (wholes, _held) = answers.collect().await?;
        return Ok(Json(response(&head, &wholes, shape)).into_response());
    };
    let head = ResponseHead::new("chatcmpl-", "chat.completion.chunk", model);
    let opening = (0..choices).map(opening).collect();
    let choice_of = move |index, update: &Update| shape.choice(index, update);
    Ok(super::stream(&shared, &headers, head, streaming, answers, choices, opening, choice_of))
}

/// Reads a body.
pub(crate) fn read(body: &Value) -> Result<Chat> {
    let fields = Fields::of_body(body)?;
    check_names(&fields)?;
    let mut request = AnswerRequest::new(Input::Chat(messages::read(&fields)?));
    request.max_tokens = max_tokens(&fields)?;
    request.choices = fields.count("n")?.unwrap_or(1);
    request.stop = read_stop(&fields, "stop")?;
    request.sampling = read_sampling(&fields)?;
    request.sampling.logprobs = top_logprobs(&fields)?;
    let shape = Shape {
        logprobs: request.sampling.logprobs.is_some(),
        is_older: tools::read(&fields, &mut request)?,
    };
    format::read(&fields, &mut request)?;
    read_thinking(&fields, &mut request)?;
    let streaming = Streaming::read(&fields)?;
    Ok(Chat { request, streaming, shape })
}

/// The newer name wins.
fn max_tokens(fields: &Fields<'_>) -> Result<Option<usize>> {
    let mut most = None;
    for key in ["max_tokens", "max_completion_tokens"] {
        let count = fields.count(key)?;
        if count == Some(0) {
            return Err(fields.error(key, "must be at least 1, got 0"));
        }
        most = count.or(most);
    }
    Ok(most)
}

/// How many alternatives to each token, if log-probabilities are wanted.
fn top_logprobs(fields: &Fields<'_>) -> Result<Option<usize>> {
    let is_wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs")?.unwrap_or(0);
    if top > MOST_TOP_LOGPROBS {
        let message = format!("must be 0 to {MOST_TOP_LOGPROBS}, got {top}");
        return Err(fields.error("top_logprobs", message));
    }
    if top > 0 && !is_wanted {
        return Err(fields.error("top_logprobs", "needs `logprobs` to be true"));
    }
    Ok(is_wanted.then_some(top))
}

/// Whether and how much to think, from the vaguest field to the most exact one.
fn read_thinking(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    effort::read(fields, "reasoning_effort", request)?;
    if let Some(thinking) = fields.bool("enable_thinking")? {
        request.thinking = Some(thinking);
    }
    if let Some(variables) = fields.map("chat_template_kwargs")? {
        request.template_variables.extend(variables.clone());
    }
    refuse_reserved_variables(request)?;
    match request.template_variables.shift_remove("enable_thinking") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(thinking)) => request.thinking = Some(thinking),
        Some(other) => {
            return Err(wrong("chat_template_kwargs.enable_thinking", "true or false", &other));
        }
    }
    Ok(())
}

/// `null` is as good as absent here too.
fn refuse_reserved_variables(request: &mut AnswerRequest) -> Result<()> {
    for key in RESERVED_VARIABLES {
        if request.template_variables.shift_remove(key).is_some_and(|value| !value.is_null()) {
            let message = "comes from the request or from the model and cannot be replaced";
            return Err(ApiError::field(format!("chat_template_kwargs.{key}"), message));
        }
    }
    Ok(())
}

fn response(head: &ResponseHead, wholes: &[WholeAnswer], shape: Shape) -> Value {
    let choices = wholes.iter().enumerate().map(|(index, whole)| shape.whole(index, whole));
    let endings = wholes.iter().filter_map(|whole| whole.ending.as_ref());
    let usages: Vec<_> = endings.map(|ending| ending.usage).collect();
    head.whole(choices.collect(), &total(&usages, wholes.len()))
}

/// The first chunk of a choice, sent before anything is known of the answer.
fn opening(index: usize) -> Value {
    let delta = json!({"role": "assistant", "content": ""});
    json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null})
}

impl Shape {
    /// What an update of an answer adds, if anything.
    fn choice(self, index: usize, update: &Update) -> Option<Value> {
        let (mut logprobs, mut finish_reason) = (Value::Null, Value::Null);
        let delta = match update {
            Update::Prefill { .. } | Update::Piece(Piece::ToolEnd { .. }, _) => return None,
            Update::Piece(Piece::Reasoning(text), _) => json!({"reasoning_content": text}),
            Update::Piece(Piece::Content(text), tokens) => {
                if text.is_empty() && (tokens.is_empty() || !self.logprobs) {
                    return None;
                }
                logprobs = self.logprobs(tokens);
                json!({"content": text})
            }
            Update::Piece(Piece::ToolBegin { index: call, id, name }, _) => {
                let id = call_id(id.clone());
                let function = json!({"name": name, "arguments": ""});
                let full =
                    json!({"index": call, "id": id, "type": "function", "function": function});
                self.call(*call, &function, &full)?
            }
            Update::Piece(Piece::ToolArguments { index: call, json }, _) => {
                let function = json!({"arguments": json});
                let more = json!({"index": call, "function": function});
                self.call(*call, &function, &more)?
            }
            Update::Finished(ending) => {
                finish_reason = self.finish_reason(ending.reason);
                json!({})
            }
        };
        Some(json!({
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }))
    }

    /// A delta of a call; the older way has room for the first only.
    fn call(self, call: usize, function: &Value, full: &Value) -> Option<Value> {
        match (self.is_older, call) {
            (false, _) => Some(json!({"tool_calls": [full]})),
            (true, 0) => Some(json!({"function_call": function})),
            (true, _) => None,
        }
    }

    /// A whole choice.
    fn whole(self, index: usize, whole: &WholeAnswer) -> Value {
        let has_only_calls = whole.content.is_empty() && !whole.tool_calls.is_empty();
        let content = if has_only_calls { None } else { Some(whole.content.as_str()) };
        let mut message = json!({"role": "assistant", "content": content});
        if !whole.reasoning.is_empty() {
            message["reasoning_content"] = Value::from(whole.reasoning.as_str());
        }
        if let Some(first) = whole.tool_calls.first() {
            if self.is_older {
                message["function_call"] =
                    json!({"name": first.name, "arguments": first.arguments});
            } else {
                let calls = whole.tool_calls.iter();
                let calls = calls.map(|call| {
                    tools::call_json(&call_id(call.id.clone()), &call.name, &call.arguments)
                });
                message["tool_calls"] = calls.collect();
            }
        }
        let reason = whole.ending.as_ref().map(|ending| self.finish_reason(ending.reason));
        json!({
            "index": index,
            "message": message,
            "logprobs": self.logprobs(&whole.logprobs),
            "finish_reason": reason,
        })
    }

    fn logprobs(self, tokens: &[TokenLogprob]) -> Value {
        if self.logprobs { logprobs_json(tokens) } else { Value::Null }
    }

    fn finish_reason(self, finish: Finish) -> Value {
        match finish {
            Finish::ToolCalls if self.is_older => Value::from("function_call"),
            finish => Value::from(finish_word(finish)),
        }
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
