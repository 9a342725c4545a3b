//! Prompts that are far longer than the context: refused at once, without costing other requests memory or time.

use std::io::Write;

use serde_json::{Value, json};

use super::super::http;
use super::super::served::{COLD, HOT, Served};
use super::{CHAT, chat_with, check_error};

const MEMORY_MIB: u64 = 600;

/// Nine megabytes.
fn long_text() -> String {
    "word ".repeat(1_800_000)
}

fn chat_of(content: &str) -> Value {
    chat_with("messages", json!([{"role": "user", "content": content}]))
}

#[track_caller]
fn check_memory(served: &Served) {
    let peak = served.resident_bytes().1;
    assert!(peak <= MEMORY_MIB << 20, "{peak} bytes were resident, --memory is {MEMORY_MIB}M");
}

#[test]
fn prompts_far_beyond_the_context_are_refused_within_the_memory() {
    let served = Served::start(&["--memory", &format!("{MEMORY_MIB}M")]);
    let context = "maximum context length is";
    let long = long_text();
    let messages = vec![json!({"role": "user", "content": "a"}); 100_000];
    let call = |id: usize| json!({"id": id.to_string(), "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calls: Vec<Value> = (0..50_000).map(call).collect();
    let calling = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": calls}]);
    for (path, body) in [
        (CHAT, chat_of(&long)),
        (CHAT, chat_of(&"a".repeat(8_000_000))),
        (CHAT, chat_of(&"e\u{301}世".repeat(1_000_000))),
        (CHAT, chat_with("messages", messages.into())),
        (CHAT, chat_with("messages", calling)),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/completions", json!({"prompt": vec![5; 200_000]})),
        (
            "/v1/messages/count_tokens",
            json!({"model": "pebble", "messages": [{"role": "user", "content": long}]}),
        ),
        ("/apply-template", json!({"messages": [{"role": "user", "content": long}]})),
        ("/tokenize", json!({"content": long})),
        ("/tokenize", json!({"content": "a".repeat(8_000_000)})),
    ] {
        // By its tokens, or by what reading it would take: the words are those that agents look for.
        let reply = served.post(path, &body);
        assert!(matches!(reply.status, 400 | 413), "{path}: {}", reply.status);
        let reply = reply.text();
        assert!(reply.contains(context), "{path}: {reply}");
        check_memory(&served);
    }
    // So many values that reading them would take more than the memory.
    for messages in
        [json!(vec![json!({"role": "user", "content": "a"}); 900_000]), json!(vec![5; 15_000_000])]
    {
        let body = chat_with("messages", messages);
        check_error(CHAT, served.post(CHAT, &body), 413, "", "too many values");
        check_memory(&served);
    }
    served.check_answers();
}

#[test]
fn long_prompts_of_disconnected_clients_cost_other_requests_nothing() {
    let served = Served::start(&["--memory", &format!("{MEMORY_MIB}M")]);
    let request = http::post(CHAT, &[], chat_of(&long_text()).to_string().as_bytes());
    for _ in 0..3 {
        let mut left: Vec<_> = (0..2).map(|_| served.connect()).collect();
        left.iter_mut().for_each(|client| client.write_all(&request).unwrap());
        drop(left);
        served.check_answers();
    }
    check_memory(&served);
    served.wait_for("requests_active", 0.0);
}

#[test]
fn a_little_too_long_is_counted_and_not_answered() {
    let served = Served::start(&["--context", "512"]);
    let text = "word ".repeat(600);
    let counted = json!({"model": "pebble", "messages": [{"role": "user", "content": text}]});
    let counted = served.post("/v1/messages/count_tokens", &counted).good();
    assert!(counted["input_tokens"].as_u64().unwrap() > 600);
    let tokens = served.post("/tokenize", &json!({"content": text})).good();
    assert!(tokens["tokens"].as_array().unwrap().len() >= 600);
    check_error(CHAT, served.post(CHAT, &chat_of(&text)), 400, "messages", "600 words");
    // A text without much in it may be long.
    let spaced = format!("{COLD}{}", " ".repeat(3000));
    let answer = served.chat(&chat_of(&spaced));
    assert!(answer["choices"][0]["message"]["content"].is_string());
    assert_eq!(served.chat(&chat_of(COLD))["choices"][0]["message"]["content"], HOT);
}
