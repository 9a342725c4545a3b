//! Reading a conversation: what clients send as messages, as chat templates see them.
//!
//! Only text goes to the model. Images, sound and files are refused by the place where they stand, or left out
//! where a tool returned them, and nothing that a message names is fetched or opened.

use serde_json::{Map, Value};

use crate::conversation::{DOCUMENT_LEFT_OUT, IMAGE_LEFT_OUT};
use crate::error::ApiError;
use crate::fields::{Fields, Result};

/// Parts that carry text, and the key it is under.
const TEXT_PARTS: [(&str, &str); 4] =
    [("text", "text"), ("input_text", "text"), ("output_text", "text"), ("refusal", "refusal")];
/// Parts that some models read, and this server does not.
const OTHER_PARTS: [&str; 9] = [
    "image_url",
    "image",
    "input_image",
    "input_audio",
    "audio_url",
    "file",
    "input_file",
    "video_url",
    "video",
];

/// The messages of a request.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Vec<Value>> {
    fields.required("messages")?;
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(fields.error("messages", "there are no messages"));
    }
    let read = |(index, message)| {
        let message = Fields::of(message, format!("messages[{index}]"))?;
        read_message(&message).map(Value::Object)
    };
    messages.iter().enumerate().map(read).collect()
}

fn read_message(message: &Fields<'_>) -> Result<Map<String, Value>> {
    message.required("role")?;
    let role = match message.string("role")?.unwrap_or_default() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" | "function" => "tool",
        other => {
            let message = message.error(
                "role",
                format!(
                    "must be system, developer, user, assistant, tool or function, got {other:?}"
                ),
            );
            return Err(message);
        }
    };
    let calls = match role {
        "assistant" => tool_calls(message)?,
        _ => Vec::new(),
    };
    let mut read = Map::new();
    let mut insert = |key: &str, value: Value| {
        read.insert(key.to_owned(), value);
    };
    insert("role", Value::from(role));
    insert("content", content(message, role, !calls.is_empty())?);
    if let Some(name) = message.string("name")? {
        insert("name", Value::from(name));
    }
    match role {
        "assistant" => {
            // Both spellings are about; templates know the first.
            let other = message.string("reasoning")?;
            if let Some(reasoning) = message.string("reasoning_content")?.or(other) {
                insert("reasoning_content", Value::from(reasoning));
            }
            if !calls.is_empty() {
                insert("tool_calls", Value::Array(calls));
            }
        }
        "tool" => {
            if let Some(id) = message.string("tool_call_id")? {
                insert("tool_call_id", Value::from(id));
            }
        }
        _ => {}
    }
    Ok(read)
}

/// Text, or parts of text: which of the two a template takes is its own affair.
fn content(message: &Fields<'_>, role: &str, has_calls: bool) -> Result<Value> {
    let refusal = if role == "assistant" { message.string("refusal")? } else { None };
    match message.get("content") {
        Some(Value::String(text)) => Ok(Value::from(text.as_str())),
        Some(Value::Array(parts)) if parts.is_empty() => Ok(Value::from("")),
        Some(Value::Array(parts)) => {
            let read_part = if role == "tool" { returned_part } else { text_part };
            let read = |(index, part)| read_part(part, &message.path(&format!("content[{index}]")));
            parts.iter().enumerate().map(read).collect()
        }
        Some(other) => Err(crate::fields::wrong(
            &message.path("content"),
            "a string or a list of parts",
            other,
        )),
        None if has_calls => Ok(Value::Null),
        // An answer that was all thinking, or a refusal next to it.
        None if role == "assistant" => Ok(Value::from(refusal.unwrap_or_default())),
        None => message.required("content").cloned(),
    }
}

pub(super) fn text_part(part: &Value, path: &str) -> Result<Value> {
    let part = Fields::of(part, path)?;
    part.required("type")?;
    let kind = part.string("type")?.unwrap_or_default();
    let Some((_, key)) = TEXT_PARTS.iter().find(|(name, _)| *name == kind) else {
        if OTHER_PARTS.contains(&kind) {
            let error = ApiError::field(path, format!("this model reads text only, not {kind}"));
            return Err(ApiError { code: "unsupported_content", ..error });
        }
        return Err(part.error("type", format!("there is no such kind of content: {kind:?}")));
    };
    part.required(key)?;
    let text = part.string(key)?.unwrap_or_default();
    Ok(serde_json::json!({"type": "text", "text": text}))
}

/// A part of what a tool returned.
pub(super) fn returned_part(part: &Value, path: &str) -> Result<Value> {
    let left_out = match part["type"].as_str() {
        Some("image_url" | "image" | "input_image") => IMAGE_LEFT_OUT,
        Some(kind) if OTHER_PARTS.contains(&kind) => DOCUMENT_LEFT_OUT,
        _ => return text_part(part, path),
    };
    Ok(serde_json::json!({"type": "text", "text": left_out}))
}

/// Calls that an assistant made, their arguments as objects.
fn tool_calls(message: &Fields<'_>) -> Result<Vec<Value>> {
    let calls = message.array("tool_calls")?.unwrap_or_default();
    let read = |(index, call)| {
        let call = Fields::of(call, message.path(&format!("tool_calls[{index}]")))?;
        let mut read = Map::new();
        if let Some(id) = call.string("id")? {
            read.insert("id".to_owned(), Value::from(id));
        }
        match call.string("type")? {
            None | Some("function") => {}
            Some(other) => {
                let message = format!("only calls of type function are known, got {other:?}");
                return Err(call.error("type", message));
            }
        }
        read.insert("type".to_owned(), Value::from("function"));
        call.required("function")?;
        if let Some(function) = call.fields("function")? {
            read.insert("function".to_owned(), called_function(&function)?);
        }
        Ok(Value::Object(read))
    };
    let calls = calls.iter().enumerate().map(read).collect::<Result<_>>()?;
    Ok(match message.fields("function_call")? {
        Some(call) => {
            let function = called_function(&call)?;
            vec![serde_json::json!({"type": "function", "function": function})]
        }
        None => calls,
    })
}

pub(super) fn called_function(function: &Fields<'_>) -> Result<Value> {
    function.required("name")?;
    let name = function.string("name")?.unwrap_or_default();
    let arguments = match function.get("arguments") {
        None => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        // A model may have written anything, or was cut off: that is history, and shows what it wrote.
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(object @ Value::Object(_)) => object,
            _ => serde_json::json!({"arguments": text}),
        },
        Some(object @ Value::Object(_)) => object.clone(),
        Some(_) => {
            return Err(function.error("arguments", "must be an object, or the JSON text of one"));
        }
    };
    Ok(serde_json::json!({"name": name, "arguments": arguments}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_body(messages: &Value) -> Result<Vec<Value>> {
        let body = json!({"messages": messages});
        read(&Fields::of_body(&body).unwrap())
    }

    #[track_caller]
    fn check(message: &Value, expect: Value) {
        assert_eq!(read_body(&json!([message])).unwrap(), [expect]);
    }

    #[track_caller]
    fn refused(messages: &Value, param: &str, code: &str) {
        let error = read_body(messages).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{}", error.message);
        assert_eq!(error.status.as_u16(), 400);
    }

    #[test]
    fn roles_are_those_of_templates() {
        check(&json!({"role": "user", "content": "a"}), json!({"role": "user", "content": "a"}));
        check(
            &json!({"role": "developer", "content": "a"}),
            json!({"role": "system", "content": "a"}),
        );
        check(
            &json!({"role": "function", "name": "f", "content": "a"}),
            json!({"role": "tool", "name": "f", "content": "a"}),
        );
        check(
            &json!({"role": "tool", "tool_call_id": "c", "content": "a", "extra": [1]}),
            json!({"role": "tool", "content": "a", "tool_call_id": "c"}),
        );
    }

    #[test]
    fn text_parts_are_text() {
        let text = |text: &str| json!({"type": "text", "text": text});
        check(
            &json!({"role": "user", "content": [text("a"), {"type": "input_text", "text": "b"}]}),
            json!({"role": "user", "content": [text("a"), text("b")]}),
        );
        check(
            &json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}),
            json!({"role": "assistant", "content": [text("no")]}),
        );
        check(&json!({"role": "user", "content": []}), json!({"role": "user", "content": ""}));
        // What a tool shows comes again with every request: refused, it would end the conversation.
        check(
            &json!({"role": "tool", "tool_call_id": "c", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, text("a.png")]}),
            json!({"role": "tool", "tool_call_id": "c", "content": [
                text("[image left out: this model reads text only]"), text("a.png")]}),
        );
    }

    #[test]
    fn answers_may_have_no_content() {
        check(&json!({"role": "assistant"}), json!({"role": "assistant", "content": ""}));
        check(
            &json!({"role": "assistant", "content": null, "refusal": "no", "tool_calls": []}),
            json!({"role": "assistant", "content": "no"}),
        );
        check(
            &json!({"role": "assistant", "content": "a", "reasoning": "r"}),
            json!({"role": "assistant", "content": "a", "reasoning_content": "r"}),
        );
    }

    #[test]
    fn arguments_of_calls_become_objects() {
        let call = |arguments: Value| {
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]})
        };
        let expect = call(json!({"a": 1}));
        check(&call(json!("{\"a\": 1}")), expect.clone());
        check(&call(json!({"a": 1})), expect);
        check(&call(json!("")), call(json!({})));
        for text in ["{\"stock\": \"RM", "[1]", "3", "null", "not json"] {
            check(&call(json!(text)), call(json!({"arguments": text})));
        }
        check(
            &json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {}}}]}),
        );
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let user = json!({"role": "user", "content": "a"});
        let parts = |part: Value| json!([{"role": "user", "content": [part]}]);
        let call = |function: Value| json!([user, {"role": "assistant", "tool_calls": [{"function": function}]}]);
        let (value, kind, missing) =
            ("invalid_value", "invalid_type", "missing_required_parameter");
        refused(&json!(null), "messages", missing);
        refused(&json!([]), "messages", value);
        refused(&json!("hi"), "messages", kind);
        refused(&json!(["hi"]), "messages[0]", kind);
        refused(&json!([{"content": "a"}]), "messages[0].role", missing);
        refused(&json!([user, {"role": "owner", "content": "a"}]), "messages[1].role", value);
        refused(&json!([{"role": 1, "content": "a"}]), "messages[0].role", kind);
        refused(&json!([{"role": "user"}]), "messages[0].content", missing);
        refused(&json!([{"role": "user", "content": null}]), "messages[0].content", missing);
        refused(&json!([{"role": "user", "content": 3}]), "messages[0].content", kind);
        refused(
            &json!([{"role": "user", "content": {"type": "text"}}]),
            "messages[0].content",
            kind,
        );
        refused(&parts(json!("a")), "messages[0].content[0]", kind);
        refused(&parts(json!({"text": "a"})), "messages[0].content[0].type", missing);
        refused(&parts(json!({"type": "text"})), "messages[0].content[0].text", missing);
        refused(&parts(json!({"type": "text", "text": 1})), "messages[0].content[0].text", kind);
        refused(&parts(json!({"type": "smell"})), "messages[0].content[0].type", value);
        for media in ["image_url", "input_audio", "file", "input_image"] {
            refused(
                &parts(json!({"type": media})),
                "messages[0].content[0]",
                "unsupported_content",
            );
        }
        refused(&json!([{"role": "user", "content": "a", "name": 1}]), "messages[0].name", kind);
        refused(
            &json!([{"role": "assistant", "content": "a", "tool_calls": {}}]),
            "messages[0].tool_calls",
            kind,
        );
        let assistant = |key: &str, value: Value| {
            let mut message =
                json!({"role": "assistant", "content": "a", "reasoning_content": "r"});
            message[key] = value;
            json!([message])
        };
        for key in ["refusal", "reasoning", "reasoning_content", "function_call", "tool_calls"] {
            refused(&assistant(key, json!(1)), &format!("messages[0].{key}"), kind);
        }
        let place = "messages[1].tool_calls[0].function";
        refused(&call(json!(null)), place, missing);
        refused(&call(json!({"arguments": "{}"})), &format!("{place}.name"), missing);
        for bad in [json!([1]), json!(3), json!(true)] {
            let function = json!({"name": "f", "arguments": bad});
            refused(&call(function), &format!("{place}.arguments"), value);
        }
        refused(
            &json!([{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]),
            "messages[0].tool_calls[0].type",
            value,
        );
    }
}
