//! Bad requests, each with the status it must get, and a server that still answers afterwards.
//!
//! Errors are checked as the dialect of the path shapes them: the field that is wrong is named. Nothing a
//! client sends may end in a status of 500 or more, in a hang, or in silence where HTTP allows an answer.

mod bodies;
mod dialects;
mod fields;
mod names;
mod prompts;
mod refusals;
mod schemas;
mod wire;

use serde_json::{Value, json};

use super::http::{self, Reply};
use super::served::{COLD, Served};

const CHAT: &str = "/v1/chat/completions";

/// A chat that is fine, but for this one field.
fn chat_with(field: &str, value: Value) -> Value {
    let mut body = json!({"model": "pebble", "messages": [{"role": "user", "content": COLD}], "temperature": 0, "max_tokens": 8});
    body[field] = value;
    body
}

/// Checks that a JSON body is refused with 400, by the field that is wrong (any, if the text is empty).
#[track_caller]
fn refused(served: &Served, path: &str, body: &Value, param: &str) {
    check_error(path, served.post(path, body), 400, param, &short(&body.to_string()));
}

/// Checks that bytes are refused as a body.
#[track_caller]
fn refused_bytes(served: &Served, path: &str, body: &[u8], status: u16) {
    let reply = served.send(&http::post(path, &[], body));
    check_error(path, reply, status, "", &short(&String::from_utf8_lossy(body)));
}

/// Checks status and shape of an error, and the field it names.
#[track_caller]
fn check_error(path: &str, reply: Reply, status: u16, param: &str, about: &str) {
    let got = reply.status;
    assert!(reply.header("x-request-id").is_some(), "no request id on {path}");
    let text = reply.text();
    assert_eq!(got, status, "{path}: {} to {about}", short(&text));
    let error: Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text} to {about}"));
    assert!(text.len() < 2000, "{path}: the error is {} bytes long", text.len());
    let (message, named) = if path.starts_with("/api/") {
        (error["error"].as_str(), None)
    } else if path.starts_with("/v1/messages") {
        assert_eq!(error["type"], "error", "{error}");
        assert!(error["error"]["type"].is_string(), "{error}");
        (error["error"]["message"].as_str(), None)
    } else {
        let error = &error["error"];
        assert!(error["type"].is_string() && error["code"].is_string(), "{error}");
        (error["message"].as_str(), Some(error["param"].as_str().unwrap_or_default()))
    };
    let message = message.unwrap_or_else(|| panic!("{path}: no message in {error} to {about}"));
    assert!(!message.is_empty());
    match named {
        Some(named) if !param.is_empty() => {
            assert_eq!(named, param, "{path}: {message} to {about}");
        }
        _ => assert!(message.contains(param), "{path}: no {param} in {message:?} to {about}"),
    }
}

/// The beginning of a text that may be megabytes long.
fn short(text: &str) -> String {
    text.chars().take(300).collect()
}
