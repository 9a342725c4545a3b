//! Bad requests to the other paths: each is refused in its own dialect.

use serde_json::{Value, json};

use super::super::http;
use super::super::served::Served;
use super::{check_error, refused};

fn messages_with(field: &str, value: Value) -> Value {
    let mut body =
        json!({"model": "pebble", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]});
    body[field] = value;
    body
}

#[test]
fn anthropic() {
    let served = Served::start(&[]);
    let path = "/v1/messages";
    let cases = [
        ("messages", json!([])),
        ("messages", json!("x")),
        ("messages", json!([{"role": "wizard", "content": "x"}])),
        ("messages", json!([{"role": "user", "content": 5}])),
        ("messages", json!([{"role": "user", "content": [{"type": "text"}]}])),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}]}]),
        ),
        ("messages", json!([{"role": "user", "content": [{"type": "tool_result"}]}])),
        (
            "messages",
            json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": 5}]}]),
        ),
        ("messages", json!([{"role": "user", "content": ""}])),
        ("max_tokens", json!(null)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!("x")),
        ("system", json!(5)),
        ("temperature", json!("hot")),
        ("temperature", json!(50)),
        ("top_p", json!(7)),
        ("top_k", json!("x")),
        ("stop_sequences", json!(5)),
        ("stop_sequences", json!([1])),
        ("stream", json!("yes")),
        ("thinking", json!("hard")),
        ("thinking", json!({"type": "frob"})),
        ("thinking", json!({"type": "adaptive", "display": "frob"})),
        ("tools", json!("x")),
        ("tools", json!([{"input_schema": {}}])),
        ("tools", json!([{"name": "f", "input_schema": 5}])),
        ("tool_choice", json!("any")),
        ("tool_choice", json!({"type": "tool", "name": "nobody"})),
    ];
    for (field, value) in cases {
        refused(&served, path, &messages_with(field, value), field);
    }
    refused(&served, "/v1/messages/count_tokens", &json!({}), "messages");
    refused(&served, "/v1/messages/count_tokens", &messages_with("messages", json!(5)), "messages");
    check_error(path, served.get(path), 405, "", "GET");
    served.check_answers();
}

#[test]
fn ollama() {
    let served = Served::start(&[]);
    let cases = [
        ("messages", json!("x")),
        ("messages", json!([{"role": "wizard", "content": "x"}])),
        ("messages", json!([{"role": "user", "content": 5}])),
        ("options", json!(5)),
        ("stream", json!("x")),
        ("think", json!([1])),
        ("keep_alive", json!([1])),
        ("keep_alive", json!("abc")),
        ("format", json!("xml")),
        ("format", json!(5)),
        ("format", json!({"type": "frob"})),
        ("tools", json!(5)),
        ("tools", json!([{"type": "function", "function": {}}])),
    ];
    for (field, value) in cases {
        refused(&served, "/api/chat", &messages_with(field, value), field);
    }
    // By the name that the client knows it by.
    let unusable = messages_with("format", json!({"type": "frob"}));
    let told = served.post("/api/chat", &unusable).text();
    assert!(!told.contains("response_format"), "{told}");
    for (option, value) in [
        ("temperature", json!("x")),
        ("top_p", json!(7)),
        ("num_predict", json!("x")),
        ("seed", json!({})),
        ("stop", json!(5)),
        ("logit_bias", json!({"x": 1})),
    ] {
        refused(&served, "/api/chat", &messages_with("options", json!({option: value})), option);
    }
    refused(&served, "/api/generate", &json!({"model": "pebble", "prompt": 5}), "prompt");
    refused(
        &served,
        "/api/generate",
        &json!({"model": "pebble", "prompt": "x", "images": ["AAAA"]}),
        "images",
    );
    check_error(
        "/api/show",
        served.post("/api/show", &json!({"model": "nobody"})),
        404,
        "nobody",
        "show",
    );
    check_error(
        "/api/pull",
        served.post("/api/pull", &json!({"model": "nobody"})),
        400,
        "",
        "pull",
    );
    check_error("/api/tags", served.post("/api/tags", &json!({})), 405, "", "POST");
    served.check_answers();
}

#[test]
fn the_rest_of_openai() {
    let served = Served::start(&[]);
    for (path, body, param) in [
        ("/v1/completions", json!({}), "prompt"),
        ("/v1/completions", json!({"prompt": 5}), "prompt"),
        ("/v1/completions", json!({"prompt": {}}), "prompt"),
        ("/v1/completions", json!({"prompt": []}), "prompt"),
        ("/v1/completions", json!({"prompt": [999_999]}), "prompt"),
        ("/v1/completions", json!({"prompt": "x", "logprobs": 1000}), "logprobs"),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": "x"}), "max_tokens"),
        ("/v1/completions", json!({"prompt": "x", "n": 0}), "n"),
        ("/v1/completions", json!({"prompt": "x", "model": 5}), "model"),
        ("/v1/completions", json!({"prompt": "x", "user": []}), "user"),
        ("/v1/responses", json!({}), "input"),
        ("/v1/responses", json!({"input": 5}), "input"),
        ("/v1/responses", json!({"input": []}), "input"),
        (
            "/v1/responses",
            json!({"input": "x", "previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": "x"}), "max_output_tokens"),
        ("/v1/responses", json!({"input": "x", "temperature": "hot"}), "temperature"),
        ("/v1/responses", json!({"input": "x", "instructions": 5}), "instructions"),
        ("/v1/responses", json!({"input": "x", "max_tool_calls": "x"}), "max_tool_calls"),
        ("/v1/responses", json!({"input": "x", "prompt_cache_key": 5}), "prompt_cache_key"),
        ("/v1/responses", json!({"input": "x", "safety_identifier": 5}), "safety_identifier"),
        ("/v1/responses", json!({"input": "x", "text": {"verbosity": 5}}), "text.verbosity"),
        ("/v1/responses", json!({"input": "x", "service_tier": 5}), "service_tier"),
        ("/v1/responses", json!({"input": "x", "stream_options": 5}), "stream_options"),
        ("/v1/responses", json!({"input": "x", "truncation": "banana"}), "truncation"),
        (
            "/v1/responses",
            json!({"input": "x", "reasoning": {"effort": "banana"}}),
            "reasoning.effort",
        ),
        ("/v1/responses", json!({"input": [{"type": "frob"}]}), "input[0].type"),
        ("/v1/embeddings", json!({}), "input"),
        ("/v1/embeddings", json!({"input": "x"}), ""),
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({"content": 5}), "content"),
        ("/detokenize", json!({"tokens": "x"}), "tokens"),
        ("/detokenize", json!({"tokens": [999_999]}), "tokens[0]"),
        ("/apply-template", json!({}), "messages"),
        ("/apply-template", json!({"messages": 5}), "messages"),
        ("/apply-template", messages_with("tool_choice", json!(5)), "tool_choice"),
        ("/apply-template", messages_with("reasoning_effort", json!("banana")), "reasoning_effort"),
    ] {
        refused(&served, path, &body, param);
    }
    for tokens in [json!([-1]), json!([1.5]), json!([true]), json!([1e300])] {
        assert_eq!(
            served.post("/v1/completions", &json!({"prompt": tokens})).status,
            400,
            "{tokens}"
        );
        assert_eq!(served.post("/detokenize", &json!({"tokens": tokens})).status, 400, "{tokens}");
    }
    check_error("/v1/models/x", served.get("/v1/models/nobody"), 404, "model", "a model");
    check_error(
        "/v1/models/%ff",
        served.get("/v1/models/%ff"),
        404,
        "model",
        "a name that is no text",
    );
    served.check_answers();
}

#[test]
fn requests_without_a_key_are_refused() {
    let served = Served::start(&["--api-key", "sesame"]);
    let body = messages_with("stream", json!(false)).to_string();
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat", "/tokenize", "/v1/embeddings"]
    {
        for headers in [
            &[][..],
            &[("authorization", "Bearer wrong")],
            &[("authorization", "Bearer")],
            &[("authorization", "Basic sesame")],
            &[("x-api-key", "sesam")],
            &[("x-api-key", "sesame2")],
            &[("x-api-key", "")],
            &[("cookie", "x-api-key=sesame")],
        ] {
            let reply = served.send(&http::post(path, headers, body.as_bytes()));
            check_error(path, reply, 401, "", &format!("{headers:?}"));
        }
    }
    for path in ["/v1/models", "/metrics", "/openapi.json", "/live", "/api/tags", "/nowhere"] {
        assert_eq!(served.get(path).status, 401, "{path}");
    }
    // A key is bytes.
    let keyed = Served::start(&["--api-key", "schlüssel"]);
    for (key, status) in [("schlüssel", 200), ("schlussel", 401)] {
        let reply = keyed.send(&http::post("/v1/messages", &[("x-api-key", key)], body.as_bytes()));
        assert_eq!(reply.status, status, "{key}");
    }
    // Whether it lives is no secret; what it does is.
    let health = served.get("/health").good();
    assert!(health.get("memory").is_none() && health.get("plan").is_none(), "{health}");
    for header in [("authorization", "Bearer sesame"), ("x-api-key", "sesame")] {
        let reply = served.send(&http::post("/v1/messages", &[header], body.as_bytes()));
        assert_eq!(reply.status, 200);
    }
}
