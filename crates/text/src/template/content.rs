//! Text or parts: what a template takes as the content of a message.
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
        Self { text, parts }
    }

    /// Words in the form that is shown.
    pub(super) fn content(self, text: &str) -> Value {
        match self.text || !self.parts {
            true => text.into(),
            false => json!([{"type": "text", "text": text}]),
        }
    }
}

/// Converts contents the template would not show. `abilities` is called only when it matters.
pub(super) fn adapt(
    mut messages: Vec<Value>,
    abilities: impl Fn() -> Abilities,
) -> Result<Vec<Value>> {
    for (index, message) in messages.iter_mut().enumerate() {
        match &message["content"] {
            Value::Array(parts) => {
                let abilities = abilities();
                if !abilities.parts && abilities.text {
                    message["content"] = Value::from(join_parts(parts, index)?);
                }
            }
            Value::String(text) => {
                let content = abilities().content(text);
                message["content"] = content;
            }
            _ => {}
        }
    }
    Ok(messages)
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
