//! Thinking begins where the template or the model opens it, not where a message mentions it.

use serde_json::{Value, json};

use super::served::{COLD, Served};

/// A prompt that includes a file with `<think>` in it, or an answer that begins with the word, still gives an answer.
#[test]
fn what_a_message_says_of_thinking_opens_none() {
    let served = Served::start(&[]);
    let begun = json!([
        {"role": "user", "content": COLD},
        {"role": "assistant", "content": "The tag <think> is old. The opposite of"},
    ]);
    let ask = |path: &str, more: Value| {
        let mut body =
            json!({"model": "pebble", "messages": begun, "temperature": 0, "stream": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        served.post(path, &body).good()
    };
    let answer = ask("/v1/messages", json!({"max_tokens": 40}));
    assert_eq!(answer["content"][0]["type"], "text", "{answer}");
    let answer = ask("/api/chat", json!({"options": {"num_predict": 40}}));
    assert!(answer["message"]["content"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    assert!(answer["message"].get("thinking").is_none(), "{answer}");

    // What must be an answer in JSON, or a call, is one.
    let asked = json!([{"role": "user", "content": "What does <think> mean?"}]);
    let schema = json!({"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
        "additionalProperties": false});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema.clone()}});
    let answer = served.chat(
        &json!({"messages": asked, "response_format": format, "max_tokens": 400, "temperature": 0}),
    );
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(content).unwrap()["x"].is_boolean(), "{answer}");
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    let answer = served.chat(
        &json!({"messages": asked, "tools": tools, "tool_choice": "required", "max_tokens": 400,
            "temperature": 0}),
    );
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f");
}
