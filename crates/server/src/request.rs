//! What dialects share when they fill in an [`AnswerRequest`].
//!
//! A dialect judges nothing but types: what the model can do with a request is decided in `prepare`, once for all
//! dialects. The limits here hold for every dialect too.

use engine::session::{AnswerRequest, SamplingOverrides, random};
use serde_json::Value;
use text::tools::Tool;

use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};

/// The most answers to one request.
pub(crate) const MOST_CHOICES: usize = 16;
/// The most strings that end an answer, and their longest length in bytes.
pub(crate) const MOST_STOPS: usize = 64;
const LONGEST_STOP_BYTES: usize = 1024;
/// The most tools of one request.
pub(crate) const MOST_TOOLS: usize = 512;
/// The most tokens with a bias.
pub(crate) const MOST_BIASES: usize = 4096;
/// The longest name of a tool.
const LONGEST_NAME_BYTES: usize = 256;

/// Adds a tool to a request; `path` is where it stands there.
pub(crate) fn add_tool(request: &mut AnswerRequest, tool: Tool, path: &str) -> Result<()> {
    if request.tools.len() >= MOST_TOOLS {
        return Err(ApiError::field(path, format!("there are more than {MOST_TOOLS} tools")));
    }
    if tool.name.is_empty() || tool.name.len() > LONGEST_NAME_BYTES {
        let message = format!("a tool's name has 1 to {LONGEST_NAME_BYTES} bytes");
        return Err(ApiError::field(path, message));
    }
    if tool.name.chars().any(|c| c.is_control() || c.is_whitespace() || "<>\"{}".contains(c)) {
        let message = format!("{:?} cannot be the name of a tool", tool.name);
        return Err(ApiError::field(path, message));
    }
    if request.tools.iter().any(|other| other.name == tool.name) {
        let message = format!("there are two tools named {:?}", tool.name);
        return Err(ApiError::field(path, message));
    }
    request.tool_definitions.push(serde_json::json!({
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description.clone().unwrap_or_default(),
            "parameters": tool.parameters,
        },
    }));
    request.tools.push(tool);
    Ok(())
}

/// The texts that end an answer; `key` is their field.
pub(crate) fn read_stop(fields: &Fields<'_>, key: &str) -> Result<Vec<String>> {
    let mut stop = fields.strings(key)?;
    if stop.len() > MOST_STOPS {
        return Err(fields.error(key, format!("at most {MOST_STOPS} are allowed")));
    }
    if stop.iter().any(|text| text.len() > LONGEST_STOP_BYTES) {
        return Err(fields.error(key, format!("at most {LONGEST_STOP_BYTES} bytes each")));
    }
    // An empty text would end every answer before it begins.
    stop.retain(|text| !text.is_empty());
    Ok(stop)
}

/// The sampling fields that OpenAI's dialects share.
pub(crate) fn read_sampling(fields: &Fields<'_>) -> Result<SamplingOverrides> {
    Ok(SamplingOverrides {
        temperature: fields.number("temperature")?,
        top_k: top_k(fields)?,
        top_p: fields.number("top_p")?,
        min_p: fields.number("min_p")?,
        repetition_penalty: fields.number("repetition_penalty")?,
        presence_penalty: fields.number("presence_penalty")?,
        frequency_penalty: fields.number("frequency_penalty")?,
        logit_bias: logit_bias(fields)?,
        seed: fields.seed("seed")?,
        logprobs: None,
    })
}

/// -1 is how some servers say "all".
fn top_k(fields: &Fields<'_>) -> Result<Option<usize>> {
    match fields.get("top_k").and_then(Value::as_i64) {
        Some(-1) => Ok(Some(0)),
        _ => fields.count("top_k"),
    }
}

/// `{"token id": bias}`, as OpenAI has it.
fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>> {
    let Some(map) = fields.map("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MOST_BIASES {
        return Err(fields.error("logit_bias", format!("at most {MOST_BIASES} tokens")));
    }
    map.iter()
        .map(|(token, bias)| {
            let path = format!("{}.{token}", fields.path("logit_bias"));
            let id = token.parse().map_err(|_| ApiError::field(&path, "is not a token id"))?;
            let number = bias.as_f64().ok_or_else(|| wrong(&path, "a number", bias))?;
            Ok((id, number as f32))
        })
        .collect()
}

/// A name for something on the wire, such as `chatcmpl-0f3a…`.
pub(crate) fn identifier(prefix: &str) -> String {
    format!("{prefix}{:013x}{:013x}", random() & 0xf_ffff_ffff_ffff, random() & 0xf_ffff_ffff_ffff)
}

/// The id of a tool call on the wire: the model's own, where its format has one.
pub(crate) fn call_id(own: Option<String>) -> String {
    own.unwrap_or_else(|| identifier("call_"))
}
