//! What Ollama's clients send: what becomes of it, and what is refused with which field named.

use super::*;
use serde_json::json;

fn read(read: impl Fn(&Fields<'_>) -> Result<Wanted>, body: &Value) -> Result<Wanted> {
    read(&Fields::of_body(body).unwrap())
}

fn messages(request: Option<AnswerRequest>) -> Value {
    match request.unwrap().input {
        Input::Chat(messages) => messages.into(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(result: Result<Wanted>, param: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
}

#[test]
fn options_are_read_where_ollama_has_them() {
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": false,
        "options": {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7,
            "num_predict": 20, "stop": ["x", ""], "repeat_penalty": 1.1, "presence_penalty": 0.2,
            "frequency_penalty": 0.3, "num_ctx": 2048, "mirostat": 0},
        "think": "high", "logprobs": true, "top_logprobs": 2, "keep_alive": "5m",
    });
    let wanted = read(chat, &body).unwrap();
    assert_eq!((wanted.model.as_deref(), wanted.stream), (Some("m"), false));
    let request = wanted.request.unwrap();
    let expect = SamplingOverrides {
        temperature: Some(0.5),
        top_k: Some(3),
        top_p: Some(0.9),
        min_p: Some(0.1),
        repetition_penalty: Some(1.1),
        presence_penalty: Some(0.2),
        frequency_penalty: Some(0.3),
        seed: Some(7),
        logprobs: Some(2),
        ..SamplingOverrides::default()
    };
    assert_eq!(request.sampling, expect);
    assert_eq!((request.max_tokens, request.stop), (Some(20), vec!["x".to_owned()]));
    assert_eq!(request.thinking, Some(true));
    assert_eq!(request.template_variables["reasoning_effort"], "high");
}

#[test]
fn what_means_any_or_none_is_absent() {
    for (number, expect) in [(-1, None), (-2, None), (0, None), (5, Some(5))] {
        let body = json!({"prompt": "x", "options": {"num_predict": number, "seed": -1}});
        let request = read(generate, &body).unwrap().request.unwrap();
        assert_eq!(
            (request.max_tokens, request.sampling.seed, request.sampling.logprobs),
            (expect, None, None)
        );
    }
    assert!(read(generate, &json!({"prompt": "x"})).unwrap().stream);
    // Only that the model be there.
    assert!(read(generate, &json!({"model": "m"})).unwrap().request.is_none());
    assert!(read(generate, &json!({"prompt": ""})).unwrap().request.is_none());
    assert!(read(chat, &json!({"messages": []})).unwrap().request.is_none());
    assert!(read(chat, &json!({})).unwrap().request.is_none());
}

#[test]
fn formats() {
    #[track_caller]
    fn check(format: &Value, expect: Option<&Grammar>) {
        let request = read(generate, &json!({"prompt": "x", "format": format})).unwrap().request;
        assert_eq!(request.unwrap().grammar.as_ref(), expect);
    }
    check(&json!(null), None);
    check(&json!(""), None);
    check(&json!("json"), Some(&Grammar::JsonObject));
    let schema = json!({"type": "object"});
    check(&schema, Some(&Grammar::JsonSchema(schema.clone())));
    let schema = json!({"properties": {"a": {}}});
    let closed = json!({"properties": {"a": {}}, "additionalProperties": false});
    check(&schema, Some(&Grammar::JsonSchema(closed)));
}

#[test]
fn a_prompt_is_a_turn_of_the_user_unless_it_is_raw() {
    let body = json!({"prompt": "hi", "system": "be brief"});
    let expect = json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]);
    assert_eq!(messages(read(generate, &body).unwrap().request), expect);
    let body = json!({"prompt": "hi", "system": "be brief", "raw": true});
    let request = read(generate, &body).unwrap().request.unwrap();
    assert!(request.is_raw && matches!(request.input, Input::Text(text) if text == "hi"));
}

#[test]
fn results_find_their_calls() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"x": 1}}});
    let body = json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call("f"), call("g")]},
        {"role": "tool", "tool_name": "g", "content": "2"},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "?"},
    ]});
    let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": {"x": 1}}});
    let expect = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "reasoning_content": "hm",
         "tool_calls": [call("call_0", "f"), call("call_1", "g")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2", "name": "g"},
        {"role": "tool", "tool_call_id": "call_0", "content": "1", "name": "f"},
        {"role": "tool", "tool_call_id": "call_unknown", "content": "?"},
    ]);
    assert_eq!(messages(read(chat, &body).unwrap().request), expect);
}

#[test]
fn a_last_message_by_the_assistant_is_continued() {
    #[track_caller]
    fn check(last: &Value, expect: Option<&str>) {
        let body = json!({"messages": [{"role": "user", "content": "q"}, last]});
        assert_eq!(read(chat, &body).unwrap().begun.as_deref(), expect);
    }
    check(&json!({"role": "assistant", "content": "The opposite of"}), Some("The opposite of"));
    check(&json!({"role": "assistant", "content": ""}), None);
    check(&json!({"role": "user", "content": "more"}), None);
    let calls = json!([{"function": {"name": "f"}}]);
    check(&json!({"role": "assistant", "content": "so", "tool_calls": calls}), None);
}

#[test]
fn keeping_the_model_for_no_time_unloads_it() {
    #[track_caller]
    fn check(keep_alive: &Value, expect: bool) {
        let wanted = read(generate, &json!({"keep_alive": keep_alive})).unwrap();
        assert_eq!((wanted.request.is_none(), wanted.unloads), (true, expect));
    }
    for zero in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("0h0m0s")] {
        check(&zero, true);
    }
    for other in [json!(null), json!(-1), json!(0.5), json!("10m"), json!("-1s"), json!("")] {
        check(&other, false);
    }
}

#[test]
fn a_time_to_keep_the_model_is_a_number_or_a_duration() {
    #[track_caller]
    fn check(keep_alive: &Value, is_fine: bool) {
        for endpoint in [chat, generate] {
            let body = json!({"prompt": "x", "keep_alive": keep_alive});
            let error = read(endpoint, &body).err();
            assert_eq!(error.is_none(), is_fine, "{keep_alive}");
            assert!(error.is_none_or(|error| error.param.as_deref() == Some("keep_alive")));
        }
    }
    for fine in ["5m", "-1", "1h30m", "0", "300", "1.5h", ".5s", "5.s", "+2ms3us4µs5μs6ns", "-1m"]
    {
        check(&json!(fine), true);
    }
    for wrong in
        ["abc", "5x", "m", "-", "5m-", "1h30", "5 m", ".s", "1.2.3s", "1e3s", "5ms5", "inf"]
    {
        check(&json!(wrong), false);
    }
    for wrong in [json!([1]), json!({}), json!(true)] {
        check(&wrong, false);
    }
}

#[test]
fn levels_of_thinking_reach_the_template() {
    let request = read(generate, &json!({"prompt": "x", "think": "max"})).unwrap().request.unwrap();
    assert_eq!(request.thinking, Some(true));
    assert_eq!(request.template_variables["reasoning_effort"], "max");
}

#[test]
fn numbers_are_taken_as_ollama_takes_them() {
    #[track_caller]
    fn check(options: &Value, expect: &SamplingOverrides) {
        let wanted = read(generate, &json!({"prompt": "x", "options": options})).unwrap();
        assert_eq!(wanted.request.unwrap().sampling, *expect);
    }
    check(
        &json!({"seed": 4.0}),
        &SamplingOverrides { seed: Some(4), ..SamplingOverrides::default() },
    );
    check(&json!({"seed": -1.0}), &SamplingOverrides::default());
    check(
        &json!({"temperature": 2.5}),
        &SamplingOverrides { temperature: Some(2.0), ..SamplingOverrides::default() },
    );
}

#[test]
fn tools_are_offered() {
    let body = json!({
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {
            "$defs": {}, "required": ["x"], "properties": {"x": {}}, "type": "object"}}}],
    });
    let request = read(chat, &body).unwrap().request.unwrap();
    assert_eq!(request.tools[0].name, "f");
    let expect = r#"{"type":"object","properties":{"x":{}},"required":["x"],"$defs":{}}"#;
    assert_eq!(request.tool_definitions[0]["function"]["parameters"].to_string(), expect);
}

#[test]
fn what_is_wrong_is_named() {
    let message = |message: Value| json!({"messages": [message]});
    refused(read(chat, &json!({"messages": "hi"})), "messages");
    refused(read(chat, &message(json!("hi"))), "messages[0]");
    refused(read(chat, &message(json!({"content": "hi"}))), "messages[0].role");
    refused(read(chat, &message(json!({"role": "robot"}))), "messages[0].role");
    refused(read(chat, &message(json!({"role": "user", "content": 3}))), "messages[0].content");
    let picture = json!({"role": "user", "content": "", "images": ["AAAA"]});
    refused(read(chat, &message(picture)), "messages[0].images");
    let bad =
        json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]});
    refused(read(chat, &message(bad)), "messages[0].tool_calls[0].function.arguments");
    let bad = json!({"role": "assistant", "tool_calls": [{}]});
    refused(read(chat, &message(bad)), "messages[0].tool_calls[0].function");
    let body = |key: &str, value: Value| {
        let mut body = json!({"prompt": "x", "messages": [{"role": "user"}]});
        body[key] = value;
        body
    };
    refused(read(chat, &body("tools", json!([1]))), "tools[0]");
    refused(read(chat, &body("tools", json!([{"function": {}}]))), "tools[0]");
    refused(read(generate, &body("suffix", json!("b"))), "suffix");
    refused(read(generate, &body("template", json!("{{ .Prompt }}"))), "template");
    refused(read(generate, &body("context", json!([1, 2]))), "context");
    assert!(read(generate, &body("context", json!([]))).is_ok());
    refused(read(generate, &body("format", json!("xml"))), "format");
    refused(read(generate, &body("format", json!(1))), "format");
    refused(read(generate, &body("think", json!("much"))), "think");
    refused(read(generate, &body("think", json!(1))), "think");
    refused(read(generate, &body("stream", json!("yes"))), "stream");
    refused(read(generate, &body("options", json!([]))), "options");
    refused(read(generate, &body("options", json!({"num_predict": 1.5}))), "options.num_predict");
    refused(read(generate, &body("options", json!({"stop": 1}))), "options.stop");
    let bias = |token: &str, bias: Value| body("options", json!({"logit_bias": {token: bias}}));
    refused(read(generate, &bias("x", json!(1))), "options.logit_bias.x");
    refused(read(generate, &bias("5", json!("x"))), "options.logit_bias.5");
    refused(read(generate, &body("options", json!({"temperature": "x"}))), "options.temperature");
    for (option, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(7)),
        ("min_p", json!(2)),
        ("repeat_penalty", json!(0)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(3)),
        ("seed", json!(1.5)),
    ] {
        let (options, path) = (json!({option: value}), format!("options.{option}"));
        let error = read(generate, &body("options", options)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(path.as_str()));
        assert!(error.message.starts_with(&format!("{path}: ")), "{}", error.message);
    }
    refused(read(generate, &body("top_logprobs", json!(21))), "top_logprobs");
    refused(read(generate, &body("images", json!(["AAAA"]))), "images");
}
