//! What a client requests, and the fields that a response repeats.

use engine::session::{AnswerRequest, Input};
use serde_json::{Map, Value, json};

use super::items;
use super::offers::Offers;
use super::reply::Extras;
use crate::error::ApiError;
use crate::fields::{Fields, Result};
use crate::openai::format::response_format;
use crate::openai::{check_names, effort};
use crate::request::read_sampling;

/// The most alternatives to a token that may be requested.
const MOST_TOP_LOGPROBS: usize = 20;
/// Fields that need a memory of earlier requests, and this server has none.
const KEPT: [&str; 3] = ["previous_response_id", "conversation", "prompt"];
/// Texts that make no difference to an answer here.
const IGNORED_TEXTS: [&str; 3] = ["prompt_cache_key", "safety_identifier", "service_tier"];
/// Fields that a response repeats as they came.
const ECHOED: [&str; 12] = [
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// A request that was understood.
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub(crate) request: AnswerRequest,
    pub(crate) offers: Offers,
    pub(crate) extras: Extras,
    /// Whether the answer is streamed.
    pub(crate) streams: bool,
    /// What the response says of the request.
    pub(crate) echo: Map<String, Value>,
}

/// Reads a request.
pub(crate) fn read(body: &Value) -> Result<ResponsesRequest> {
    let fields = Fields::of_body(body)?;
    check_names(&fields)?;
    check_ignored(&fields)?;
    refuse_what_needs_memory(&fields)?;
    let conversation = items::read(&fields)?;
    let mut request = AnswerRequest::new(Input::Chat(conversation.into_messages()));
    request.max_tokens = fields.count("max_output_tokens")?;
    if request.max_tokens == Some(0) {
        return Err(fields.error("max_output_tokens", "must be at least 1, got 0"));
    }
    request.sampling = read_sampling(&fields)?;
    let offers = Offers::read(&fields, &mut request)?;
    read_settings(&fields, &mut request)?;
    let items = fields.get("input").and_then(Value::as_array);
    for (index, item) in items.into_iter().flatten().enumerate() {
        if item["type"] == items::CONFIGURATION_UPDATE {
            read_settings(&Fields::of(item, format!("input[{index}]"))?, &mut request)?;
        }
    }
    let extras = read_extras(&fields, &mut request)?;
    let streams = fields.bool("stream")?.unwrap_or(false);
    let echo = echo(&fields)?;
    Ok(ResponsesRequest { request, offers, extras, streams, echo })
}

/// What is ignored is to be of the right type too: a client that sends something else meant something else.
fn check_ignored(fields: &Fields<'_>) -> Result<()> {
    for key in IGNORED_TEXTS {
        fields.string(key)?;
    }
    fields.count("max_tool_calls")?;
    if let Some(options) = fields.fields("stream_options")? {
        options.bool("include_obfuscation")?;
    }
    match fields.string("truncation")? {
        None | Some("auto" | "disabled") => Ok(()),
        Some(other) => {
            let message = format!("must be auto or disabled, got {other:?}");
            Err(fields.error("truncation", message))
        }
    }
}

fn refuse_what_needs_memory(fields: &Fields<'_>) -> Result<()> {
    for key in KEPT {
        if fields.get(key).is_some() {
            let message = "this server is stateless and keeps no responses: send the whole \
                           conversation as `input`";
            let error = fields.error(key, message);
            return Err(ApiError { code: "unsupported_parameter", ..error });
        }
    }
    if fields.bool("background")?.unwrap_or(false) {
        let error =
            fields.error("background", "this server is stateless: a response is answered at once");
        return Err(ApiError { code: "unsupported_parameter", ..error });
    }
    // There is nowhere to store anything.
    fields.bool("store")?;
    Ok(())
}

/// What the answer must look like, and how much to think. What is said later holds.
fn read_settings(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    if let Some(text) = fields.fields("text")? {
        text.string("verbosity")?;
        if let Some(format) = text.fields("format")? {
            request.grammar = response_format(&format, "schema")?;
            request.grammar_field = text.path("format");
        }
    }
    match fields.fields("reasoning")? {
        Some(reasoning) => effort::read(&reasoning, "effort", request),
        None => Ok(()),
    }
}

/// What is to be in the response in addition to the answer.
fn read_extras(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<Extras> {
    let include = fields.strings("include")?;
    let wants = |what: &str| include.iter().any(|one| one == what);
    let top = fields.count("top_logprobs")?;
    if let Some(top) = top.filter(|&top| top > MOST_TOP_LOGPROBS) {
        let message = format!("must be 0 to {MOST_TOP_LOGPROBS}, got {top}");
        return Err(fields.error("top_logprobs", message));
    }
    let logprobs = wants("message.output_text.logprobs") || top.is_some_and(|top| top > 0);
    if logprobs {
        request.sampling.logprobs = Some(top.unwrap_or(0));
    }
    let reasoning = fields.fields("reasoning")?;
    let asks = |key| reasoning.as_ref().map_or(Ok(None), |reasoning| reasoning.string(key));
    let summary = asks("summary")?.or(asks("generate_summary")?).is_some_and(|kind| kind != "none");
    Ok(Extras { logprobs, thinking: wants("reasoning.encrypted_content"), summary })
}

/// The fields of a response that repeat the request, with defaults where official clients need a value.
fn echo(fields: &Fields<'_>) -> Result<Map<String, Value>> {
    let mut echo = Map::new();
    for key in ECHOED {
        echo.insert(key.to_owned(), fields.get(key).cloned().unwrap_or(Value::Null));
    }
    let default = |echo: &mut Map<String, Value>, key: &str, value: Value| {
        let slot = echo.entry(key).or_insert(Value::Null);
        if slot.is_null() {
            *slot = value;
        }
    };
    default(&mut echo, "tool_choice", "auto".into());
    default(&mut echo, "tools", json!([]));
    default(&mut echo, "text", json!({}));
    if echo["text"].get("format").is_none_or(Value::is_null) {
        echo["text"]["format"] = json!({"type": "text"});
    }
    default(&mut echo, "reasoning", json!({"effort": null, "summary": null}));
    let metadata = fields.map("metadata")?.cloned().unwrap_or_default();
    echo.insert("metadata".to_owned(), metadata.into());
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    echo.insert("parallel_tool_calls".to_owned(), parallel.into());
    let top = fields.count("top_logprobs")?.unwrap_or(0);
    echo.insert("top_logprobs".to_owned(), top.into());
    let truncation = fields.string("truncation")?.unwrap_or("disabled");
    echo.insert("truncation".to_owned(), truncation.into());
    echo.insert("background".to_owned(), false.into());
    echo.insert("previous_response_id".to_owned(), Value::Null);
    echo.insert("service_tier".to_owned(), "default".into());
    echo.insert("store".to_owned(), false.into());
    Ok(echo)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
