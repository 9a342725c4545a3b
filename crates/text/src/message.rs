//! Conversations as chat templates see them, and the request to render one.
//!
//! Templates read messages as JSON and check which keys are present (`'tool_calls' in message`), so an
//! absent field stays absent. Normalizing brings the spellings clients use to the one templates expect:
//! arguments of tool calls become objects, `reasoning` becomes `reasoning_content`. What else depends
//! on the template (parts or plain text) is decided in `template::content`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result, weight};

/// Everything a chat template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// The conversation, one JSON object a message. [`Message`] converts into this.
    pub messages: Vec<Value>,
    /// Tool definitions as the client sent them; empty means none.
    pub tools: Vec<Value>,
    /// Ends the prompt with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The `enable_thinking` variable; `None` leaves it undefined, the template's own default.
    pub enable_thinking: Option<bool>,
    /// Further template variables (`chat_template_kwargs`); they win over all others.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` shows, in seconds since 1970 of the zone to show; `None` is now, in UTC.
    pub now_unix_s: Option<i64>,
}

impl ChatRequest {
    /// A request to answer `messages`, with the template's defaults for all else.
    pub fn new<M: Into<Value>>(messages: impl IntoIterator<Item = M>) -> Self {
        Self {
            messages: messages.into_iter().map(Into::into).collect(),
            add_generation_prompt: true,
            ..Self::default()
        }
    }
}

impl ChatRequest {
    /// What it holds in memory, about.
    pub fn held_bytes(&self) -> usize {
        let values = self.messages.iter().chain(&self.tools).chain(self.kwargs.values());
        values.map(weight::of_value).fold(0, usize::saturating_add)
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What was said; an assistant that only called tools may have said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// What the assistant thought before it spoke.
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls the assistant made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the speaker or of the tool that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Content of a message: plain text, or typed parts such as `{"type": "text", "text": "…"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Typed parts, kept as the client sent them.
    Parts(Vec<Value>),
}

/// One call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's name for itself; tool messages answer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `function` today.
    #[serde(rename = "type", default = "function_kind")]
    pub kind: String,
    /// What is called.
    pub function: FunctionCall,
}

/// Name and arguments of a called function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Name of the tool.
    pub name: String,
    /// Arguments: an object, or the JSON text of one.
    pub arguments: Value,
}

fn function_kind() -> String {
    "function".to_owned()
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(content.into())), ..Self::default() }
    }
}

impl From<Message> for Value {
    fn from(message: Message) -> Self {
        // Strings, lists and JSON values always serialise; there is no map with other keys in it.
        serde_json::to_value(message).unwrap_or_default()
    }
}

/// Brings clients' spellings to the templates' own, without regard to any one template.
pub(crate) fn normalize(messages: &[Value]) -> Result<Vec<Value>> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            let mut message = message
                .as_object()
                .cloned()
                .ok_or_else(|| Error::Message { index, reason: "not a JSON object".to_owned() })?;
            if !message.get("role").is_some_and(Value::is_string) {
                return Err(Error::Message { index, reason: "has no role".to_owned() });
            }
            if !message.contains_key("reasoning_content")
                && let Some(reasoning) = message.get("reasoning").filter(|value| value.is_string())
            {
                message.insert("reasoning_content".to_owned(), reasoning.clone());
            }
            if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
                for call in calls {
                    normalize_arguments(call, index)?;
                }
            }
            Ok(Value::Object(message))
        })
        .collect()
}

/// The wire carries arguments as JSON text, templates iterate them.
fn normalize_arguments(call: &mut Value, index: usize) -> Result<()> {
    let function = match call.get("function") {
        Some(Value::Object(_)) => &mut call["function"],
        _ => call,
    };
    let Some(Value::String(text)) = function.get("arguments") else { return Ok(()) };
    let arguments = if text.trim().is_empty() {
        Value::Object(Map::new())
    } else {
        serde_json::from_str(text).map_err(|error| Error::Message {
            index,
            reason: format!("arguments of a tool call are not JSON: {error}"),
        })?
    };
    function["arguments"] = arguments;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(message: Value, expect: Value) {
        assert_eq!(normalize(&[message]).unwrap(), [expect]);
    }

    #[test]
    fn arguments_become_objects() {
        check(
            json!({"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
                {"function": {"name": "g", "arguments": ""}},
                {"name": "h", "arguments": "{\"x\": null}"},
                {"function": {"name": "i", "arguments": {"kept": true}}},
            ]}),
            json!({"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": {"b": 1, "a": [2]}}},
                {"function": {"name": "g", "arguments": {}}},
                {"name": "h", "arguments": {"x": null}},
                {"function": {"name": "i", "arguments": {"kept": true}}},
            ]}),
        );
    }

    #[test]
    fn reasoning_is_accepted_under_either_name() {
        check(
            json!({"role": "assistant", "content": "a", "reasoning": "r"}),
            json!({"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}),
        );
        let message: Message =
            serde_json::from_value(json!({"role": "assistant", "reasoning": "r"})).unwrap();
        assert_eq!(message.reasoning_content.as_deref(), Some("r"));
    }

    #[test]
    fn absent_fields_stay_absent() {
        let value = Value::from(Message::new("user", "hi"));
        assert_eq!(value, json!({"role": "user", "content": "hi"}));
    }

    #[test]
    fn broken_messages_are_named_by_position() {
        let error = normalize(&[json!({"role": "user"}), json!("text")]).unwrap_err();
        assert_eq!(error.to_string(), "message 1: not a JSON object");
        let bad =
            json!({"role": "assistant", "tool_calls": [{"function": {"arguments": "{oops"}}]});
        assert!(normalize(&[bad]).unwrap_err().to_string().starts_with("message 0: arguments"));
    }
}
