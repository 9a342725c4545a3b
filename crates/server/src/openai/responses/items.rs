//! Reading `input`: messages, calls, results and thinking, one item each.

use serde_json::{Map, Value};

use super::offers::{OFFERING, required, seen_as};
use super::reply::THINKING;
use crate::conversation::Conversation;
use crate::fields::{Fields, Result, wrong};
use crate::openai::messages::{called_function, returned_part, text_part};

/// What OpenAI's own tools left in a conversation that was begun there. This server cannot continue it.
const FOREIGN: [&str; 21] = [
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "multi_agent_call",
    "multi_agent_call_output",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "web_search_call",
];

/// An item that changes settings from there on.
pub(super) const CONFIGURATION_UPDATE: &str = "configuration_update";

/// The conversation of a request.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Conversation> {
    let mut conversation = Conversation::default();
    if let Some(instructions) = fields.string("instructions")? {
        conversation.instructed(instructions);
    }
    match fields.required("input")? {
        Value::String(text) => conversation.asked(text),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                read_item(&Fields::of(item, format!("input[{index}]"))?, &mut conversation)?;
            }
        }
        other => return Err(wrong("input", "a string or an array of items", other)),
    }
    if conversation.is_empty() {
        return Err(fields.error("input", "there is nothing to answer"));
    }
    Ok(conversation)
}

fn read_item(item: &Fields<'_>, conversation: &mut Conversation) -> Result<()> {
    let kind = match item.string("type")? {
        Some(kind) => kind,
        None if item.get("role").is_some() => "message",
        None if item.get("id").is_some() => "item_reference",
        None => required(item, "type")?,
    };
    match kind {
        "message" => read_message(item, conversation)?,
        "function_call" => {
            let function = called_function(item)?;
            let name = seen_as(item.string("namespace")?, required(item, "name")?);
            let arguments = function["arguments"].as_object().cloned().unwrap_or_default();
            conversation.called(required(item, "call_id")?, &name, arguments);
        }
        "custom_tool_call" => {
            let name = seen_as(item.string("namespace")?, required(item, "name")?);
            let input = Value::from(required(item, "input")?);
            let arguments = Map::from_iter([("input".to_owned(), input)]);
            conversation.called(required(item, "call_id")?, &name, arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.required("output")?;
            let text = texts(output, &item.path("output"), returned_part)?.join("\n\n");
            let id = match (item.string("call_id")?, item.string("name")?) {
                // There was no call: the client itself says what a tool would. Templates want a call before a result.
                (None, Some(name)) => {
                    let id = item.string("id")?.unwrap_or(name);
                    let name = seen_as(item.string("namespace")?, name);
                    conversation.called(id, &name, Map::new());
                    id
                }
                _ => required(item, "call_id")?,
            };
            conversation.returned(id, text);
        }
        "agent_message" => read_agent_message(item, conversation)?,
        "reasoning" => {
            if let Some(text) = thinking(item)? {
                conversation.thought(&text);
            }
        }
        // Read with the other tools, and with the other settings.
        kind if OFFERING.contains(&kind) => {}
        CONFIGURATION_UPDATE => {}
        kind if FOREIGN.contains(&kind) => {}
        "item_reference" => {
            let message = "this server keeps no items: send the item itself";
            return Err(item.error("type", message));
        }
        other => {
            return Err(item.error("type", format!("items of type {other:?} are not supported")));
        }
    }
    Ok(())
}

fn read_message(item: &Fields<'_>, conversation: &mut Conversation) -> Result<()> {
    let role = required(item, "role")?;
    let say = match role {
        "user" => Conversation::asked,
        "assistant" => Conversation::said,
        "system" | "developer" => Conversation::instructed,
        other => {
            let message = format!("must be user, assistant, system or developer, got {other:?}");
            return Err(item.error("role", message));
        }
    };
    for text in texts(item.required("content")?, &item.path("content"), text_part)? {
        say(conversation, &text);
    }
    Ok(())
}

/// What another agent of the client's has to say. What only OpenAI can read of it is left out.
fn read_agent_message(item: &Fields<'_>, conversation: &mut Conversation) -> Result<()> {
    let author = required(item, "author")?;
    let mut texts = Vec::new();
    for (index, part) in item.array("content")?.unwrap_or_default().iter().enumerate() {
        if part["type"] != "encrypted_content" {
            let part = returned_part(part, &item.path(&format!("content[{index}]")))?;
            texts.extend(part["text"].as_str().map(str::to_owned));
        }
    }
    if !texts.is_empty() {
        conversation.asked(&format!("Message from {author}:\n{}", texts.join("\n\n")));
    }
    Ok(())
}

/// Texts of a string or of an array of parts.
fn texts(
    content: &Value,
    path: &str,
    read_part: fn(&Value, &str) -> Result<Value>,
) -> Result<Vec<String>> {
    match content {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(parts) => {
            let read = |(index, part)| {
                let part = read_part(part, &format!("{path}[{index}]"))?;
                Ok(part["text"].as_str().unwrap_or_default().to_owned())
            };
            parts.iter().enumerate().map(read).collect()
        }
        other => Err(wrong(path, "a string or an array of parts", other)),
    }
}

/// What was thought, as it was: in the open, or as what clients hand back unread. A summary is less, but better
/// than nothing.
fn thinking(item: &Fields<'_>) -> Result<Option<String>> {
    let (content, summary) = (thoughts(item, "content")?, thoughts(item, "summary")?);
    // Other servers' secrets are of no use.
    let own = item.string("encrypted_content")?.and_then(|text| text.strip_prefix(THINKING));
    let said = |text: String| (!text.is_empty()).then_some(text);
    Ok(said(content).or(own.map(str::to_owned)).or(said(summary)))
}

fn thoughts(item: &Fields<'_>, key: &str) -> Result<String> {
    let parts = item.array(key)?.unwrap_or_default();
    let read = |(index, part)| {
        let part = Fields::of(part, item.path(&format!("{key}[{index}]")))?;
        required(&part, "text").map(str::to_owned)
    };
    let texts = parts.iter().enumerate().map(read).collect::<Result<Vec<String>>>()?;
    Ok(texts.join("\n\n"))
}
