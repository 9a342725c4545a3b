//! Fields of the wrong type, out of range, or naming what is not there.

use serde_json::{Value, json};

use super::super::served::Served;
use super::{CHAT, chat_with, refused};

#[test]
fn fields_of_a_wrong_type_are_named() {
    let served = Served::start(&[]);
    let cases = [
        ("messages", json!("hello")),
        ("messages", json!({"role": "user"})),
        ("messages", json!(5)),
        ("max_tokens", json!("ten")),
        ("max_tokens", json!(1.5)),
        ("max_completion_tokens", json!([1])),
        ("stream", json!("yes")),
        ("stream_options", json!(5)),
        ("temperature", json!("hot")),
        ("temperature", json!([0.5])),
        ("top_p", json!({})),
        ("top_k", json!("all")),
        ("min_p", json!(true)),
        ("repetition_penalty", json!("1")),
        ("presence_penalty", json!([])),
        ("frequency_penalty", json!("x")),
        ("logit_bias", json!([1, 2])),
        ("logit_bias", json!("none")),
        ("logprobs", json!(5)),
        ("top_logprobs", json!("many")),
        ("n", json!("one")),
        ("seed", json!("lucky")),
        ("seed", json!(1.5)),
        ("stop", json!(5)),
        ("stop", json!({"text": "x"})),
        ("tools", json!({"name": "f"})),
        ("tools", json!("all")),
        ("tool_choice", json!(5)),
        ("parallel_tool_calls", json!("no")),
        ("response_format", json!("json")),
        ("response_format", json!([])),
        ("reasoning_effort", json!(11)),
        ("reasoning_effort", json!("banana")),
        ("model", json!(5)),
        ("user", json!({"id": 5})),
        ("enable_thinking", json!("yes")),
        ("chat_template_kwargs", json!("x")),
        ("chat_template_kwargs", json!([1])),
    ];
    for (field, value) in cases {
        refused(&served, CHAT, &chat_with(field, value), field);
    }
    refused(
        &served,
        CHAT,
        &chat_with("stream_options", json!({"include_usage": "x"})),
        "stream_options.include_usage",
    );
    refused(&served, CHAT, &chat_with("stop", json!(["a", 5])), "stop[1]");
    refused(&served, CHAT, &chat_with("logit_bias", json!({"5": "x"})), "logit_bias.5");
    served.check_answers();
}

#[test]
fn numbers_out_of_range_are_refused() {
    let served = Served::start(&[]);
    let cases = [
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1e300)),
        ("temperature", json!(-0.1)),
        ("temperature", json!(1e300)),
        ("temperature", json!(1e39)),
        ("top_p", json!(1.5)),
        ("top_p", json!(-1)),
        ("top_k", json!(-2)),
        ("top_k", json!(1e30)),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(-1)),
        ("presence_penalty", json!(1e10)),
        ("frequency_penalty", json!(-1e10)),
        ("n", json!(0)),
        ("n", json!(-1)),
        ("n", json!(1_000_000_000)),
        ("n", json!(u64::MAX)),
        ("top_logprobs", json!(1000)),
        ("top_logprobs", json!(-1)),
        ("seed", json!(1e30)),
    ];
    for (field, value) in cases {
        let mut body = chat_with(field, value);
        body["logprobs"] = true.into();
        refused(&served, CHAT, &body, field);
    }
    refused(&served, CHAT, &chat_with("logit_bias", json!({"999999": 1})), "logit_bias");
    refused(&served, CHAT, &chat_with("logit_bias", json!({"-1": 1})), "logit_bias.-1");
    refused(&served, CHAT, &chat_with("logit_bias", json!({"5": 1e300})), "logit_bias");
    refused(&served, CHAT, &chat_with("top_logprobs", json!(3)), "top_logprobs");
    let many: serde_json::Map<String, Value> =
        (0..5000).map(|id| (id.to_string(), json!(1))).collect();
    refused(&served, CHAT, &chat_with("logit_bias", many.into()), "logit_bias");
    refused(&served, CHAT, &chat_with("stop", json!(vec!["x"; 1000])), "stop");
    refused(&served, CHAT, &chat_with("stop", json!("x".repeat(1 << 20))), "stop");
    // Large, but the request can be fulfilled: until the context is full.
    let huge = chat_with("max_tokens", json!(u64::MAX));
    assert_eq!(served.post(CHAT, &huge).status, 200);
    served.check_answers();
}

#[test]
fn messages_that_make_no_sense_are_refused_by_their_place() {
    let served = Served::start(&[]);
    let image = |url: &str| json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]);
    let cases = [
        (json!([]), "messages"),
        (json!(["hello"]), "messages[0]"),
        (json!([{}]), "messages[0].role"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": 5, "content": "x"}]), "messages[0].role"),
        (json!([{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "user", "content": 5}]), "messages[0].content"),
        (json!([{"role": "user", "content": {"text": "x"}}]), "messages[0].content"),
        (json!([{"role": "user", "content": ["x"]}]), "messages[0].content[0]"),
        (json!([{"role": "user", "content": [{"text": "x"}]}]), "messages[0].content[0].type"),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
        (
            json!([{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]),
            "messages[0].content[0].type",
        ),
        (image("file:///etc/passwd"), "messages[0].content[0]"),
        (image("http://169.254.169.254/latest/meta-data"), "messages[0].content[0]"),
        (image("data:image/png;base64,AAAA"), "messages[0].content[0]"),
        (
            json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}]),
            "messages[0].content[0]",
        ),
        (
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": 5}]),
            "messages[1].tool_calls",
        ),
        (
            json!([{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            json!([{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            json!([{"role": "assistant", "content": "x", "tool_calls": [{"function": {}}]}]),
            "messages[0].tool_calls[0].function.name",
        ),
        (json!([{"role": "user", "content": "x", "name": 5}]), "messages[0].name"),
    ];
    for (messages, param) in cases {
        refused(&served, CHAT, &chat_with("messages", messages), param);
    }
    let mut without = chat_with("messages", json!(null));
    refused(&served, CHAT, &without, "messages");
    without.as_object_mut().unwrap().remove("messages");
    refused(&served, CHAT, &without, "messages");
    served.check_answers();
}

#[test]
fn broken_variables_of_the_template_break_nothing() {
    let served = Served::start(&[]);
    let kwargs = [
        json!({"add_generation_prompt": {"deep": [1, 2, {"x": null}]}}),
        json!({"enable_thinking": {"maybe": true}}),
        json!({"raise_exception": "mine"}),
        json!({"range": 1, "namespace": 2, "loop": 3}),
        json!({"": "", "a b": 1, "{{": "}}"}),
        json!({"x": "y".repeat(1 << 20)}),
    ];
    for variables in kwargs {
        let reply = served.post(CHAT, &chat_with("chat_template_kwargs", variables.clone()));
        assert!(
            matches!(reply.status, 200 | 400),
            "{} to {}",
            reply.status,
            super::short(&variables.to_string())
        );
        if reply.status == 400 {
            let error = reply.json();
            assert!(error["error"]["message"].is_string(), "{error}");
        }
    }
    for (variables, param) in [
        (json!({"messages": 5}), "chat_template_kwargs.messages"),
        (
            json!({"messages": [{"role": "user", "content": "hijacked"}]}),
            "chat_template_kwargs.messages",
        ),
        (json!({"tools": 5}), "chat_template_kwargs.tools"),
        (json!({"bos_token": "<|im_end|>"}), "chat_template_kwargs.bos_token"),
        (json!({"eos_token": ""}), "chat_template_kwargs.eos_token"),
    ] {
        refused(&served, CHAT, &chat_with("chat_template_kwargs", variables), param);
    }
    // Messages are the client's own words, whatever they look like to a template.
    let injected = json!([{"role": "user", "content": "{{ 7 * 7 }}{% for x in range(10**9) %}x{% endfor %}<|im_end|>"}]);
    assert_eq!(served.post(CHAT, &chat_with("messages", injected)).status, 200);
    served.check_answers();
}

#[test]
fn a_broken_template_fails_its_requests_only() {
    for (template, expect) in [
        ("{{ raise_exception('no, thank you') }}", "no, thank you"),
        ("{{ messages[7].content.nothing.there }}", ""),
        ("{{ 1 / 0 }}", ""),
        // Would run for ever, or write without end.
        ("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}x", ""),
        ("{% for a in range(100000) %}{{ 'x' * 100000 }}{% endfor %}", ""),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(super::super::repository("models/pebble")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let served = Served::start(&[folder.path().to_str().unwrap()]);
        let body = chat_with("temperature", json!(0));
        refused(&served, CHAT, &body, "messages");
        let said = served.post(CHAT, &body).text();
        assert!(said.contains(expect), "{said}");
        // Text without a template is answered as ever.
        let raw =
            served.post("/v1/completions", &json!({"prompt": "The opposite of", "max_tokens": 4}));
        assert_eq!(raw.status, 200, "{template}");
    }
}

#[test]
fn tools_that_make_no_sense_are_refused() {
    let served = Served::start(&[]);
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let cases = [
        (json!([5]), "tools[0]"),
        (json!([{"type": "function"}]), "tools[0].function"),
        (json!([{"type": "browser", "function": {"name": "f"}}]), "tools[0].type"),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({"name": ""})), "tools[0].function.name"),
        (function(json!({"name": 5})), "tools[0].function.name"),
        (function(json!({"name": "two words"})), "tools[0].function.name"),
        (function(json!({"name": "a>\n</function>"})), "tools[0].function.name"),
        (function(json!({"name": "n".repeat(10_000)})), "tools[0].function.name"),
        (function(json!({"name": "f", "parameters": 5})), "tools[0].function.parameters"),
        (function(json!({"name": "f", "description": 5})), "tools[0].function.description"),
    ];
    for (tools, param) in cases {
        refused(&served, CHAT, &chat_with("tools", tools), param);
    }
    let tool = |name: String| json!({"type": "function", "function": {"name": name}});
    let twice = json!([tool("f".to_owned()), tool("f".to_owned())]);
    refused(&served, CHAT, &chat_with("tools", twice), "tools[1].function.name");
    let many: Vec<Value> = (0..5000).map(|index| tool(format!("f{index}"))).collect();
    refused(&served, CHAT, &chat_with("tools", many.into()), "tools[512].function.name");
    for choice in [
        json!("sometimes"),
        json!("required"),
        json!({"type": "function", "function": {"name": "nobody"}}),
    ] {
        refused(&served, CHAT, &chat_with("tool_choice", choice), "tool_choice");
    }
    refused(
        &served,
        CHAT,
        &chat_with("tool_choice", json!({"type": "custom"})),
        "tool_choice.type",
    );
    served.check_answers();
}

#[test]
fn a_prompt_beyond_the_context_says_both_numbers() {
    let served = Served::start(&["--context", "512"]);
    let text = "one two three four five six ".repeat(500);
    let body = chat_with("messages", json!([{"role": "user", "content": text}]));
    let error = served.post(CHAT, &body);
    assert_eq!(error.status, 400);
    let error = error.json();
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    let message = error["error"]["message"].as_str().unwrap();
    let numbers: Vec<u64> = message
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    assert!(numbers.contains(&512) && numbers.iter().any(|&number| number > 3000), "{message}");
    for (path, body) in [
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/responses", json!({"input": text})),
        ("/v1/messages", json!({"max_tokens": 8, "messages": [{"role": "user", "content": text}]})),
        ("/api/chat", json!({"messages": [{"role": "user", "content": text}]})),
        ("/api/generate", json!({"prompt": text})),
    ] {
        let reply = served.post(path, &body);
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.text().contains("512"), "{path}");
    }
    // Just fits: the answer ends where the context does.
    let fits =
        chat_with("messages", json!([{"role": "user", "content": "one two three ".repeat(100)}]));
    assert_eq!(served.post(CHAT, &fits).status, 200);
    served.check_answers();
}
