//! Text or parts: what a template takes as the content of a message, and as the arguments of a call.
//!
//! Clients send either; some templates take one of them only, and print or drop the other silently.
//! Nothing in a template says which, so each is tried once with a word to look for, and messages are
//! converted to a form the template shows. Parts other than text are never dropped silently.

use serde_json::{Value, json};

use crate::{ChatRequest, ChatTemplate, Error, Result};

/// A word no template contains.
const NEEDLE: &str = "millstream-needle";

/// What a template was seen to accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Content as plain text is shown.
    text: bool,
    /// Content as a list of text parts is shown, as the same text.
    parts: bool,
    /// `content: null` beside tool calls neither fails nor prints `None`.
    null_beside_calls: bool,
    /// Arguments of calls must be JSON text: with objects the calls are not shown (DeepSeek V3's first template).
    arguments_as_text: bool,
}

impl Abilities {
    pub(super) fn probe(template: &ChatTemplate) -> Self {
        let render = |messages: Vec<Value>| {
            template.render_exact(&ChatRequest::new(messages)).unwrap_or_default()
        };
        let with_text = render(vec![json!({"role": "user", "content": NEEDLE})]);
        let with_parts =
            render(vec![json!({"role": "user", "content": [{"type": "text", "text": NEEDLE}]})]);
        let text = with_text.contains(NEEDLE);
        let parts = with_parts.contains(NEEDLE) && (!text || with_parts == with_text);
        let with_call = |content: Value, arguments: Value| {
            let call = json!({"id": "abcdef123", "type": "function",
                              "function": {"name": NEEDLE, "arguments": arguments}});
            render(vec![
                json!({"role": "user", "content": if text { json!("q") } else { json!([]) }}),
                json!({"role": "assistant", "content": content, "tool_calls": [call]}),
            ])
        };
        let shows = |rendered: &str| rendered.contains(NEEDLE) && !rendered.contains("None");
        let (object, json_text) = (json!({"x": 1}), json!("{\"x\": 1}"));
        let takes_objects = [Value::Null, json!("")]
            .into_iter()
            .any(|content| with_call(content, object.clone()).contains(NEEDLE));
        let arguments_as_text =
            !takes_objects && with_call(Value::Null, json_text.clone()).contains(NEEDLE);
        let arguments = if arguments_as_text { json_text } else { object };
        Self {
            text,
            parts,
            null_beside_calls: shows(&with_call(Value::Null, arguments)),
            arguments_as_text,
        }
    }
}

/// Converts contents the template would not show. `abilities` is asked only when it matters.
pub(super) fn adapt(
    mut messages: Vec<Value>,
    abilities: impl Fn() -> Abilities,
) -> Result<Vec<Value>> {
    for (index, message) in messages.iter_mut().enumerate() {
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls")
            && !calls.is_empty()
            && abilities().arguments_as_text
        {
            calls.iter_mut().for_each(arguments_to_text);
        }
        match &message["content"] {
            Value::Array(parts) => {
                let abilities = abilities();
                if !abilities.parts && abilities.text {
                    message["content"] = Value::from(join_parts(parts, index)?);
                }
            }
            Value::String(text) => {
                let abilities = abilities();
                if !abilities.text && abilities.parts {
                    message["content"] = json!([{"type": "text", "text": text}]);
                }
            }
            Value::Null if message["tool_calls"].is_array() && !abilities().null_beside_calls => {
                message["content"] = Value::from("");
            }
            _ => {}
        }
    }
    Ok(messages)
}

fn arguments_to_text(call: &mut Value) {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && arguments.is_object()
    {
        *arguments = Value::from(arguments.to_string());
    }
}

/// Text parts one after another, as templates that take parts print them.
fn join_parts(parts: &[Value], index: usize) -> Result<String> {
    let mut text = String::new();
    for part in parts {
        let piece = part.as_str().or_else(|| part["text"].as_str());
        text.push_str(piece.ok_or_else(|| Error::Message {
            index,
            reason: format!(
                "this model's chat template takes text only, not a part of type {}",
                part["type"]
            ),
        })?);
    }
    Ok(text)
}
