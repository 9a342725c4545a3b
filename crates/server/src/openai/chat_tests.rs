//! Reading chat requests, good and bad, and the chunks and answers that updates become.

use engine::session::{SamplingOverrides, WholeCall};
use grammar::Grammar;

use super::super::fixtures::{ending, head, logprob, piece};
use super::*;

fn body(more: &Value) -> Value {
    let mut body = json!({"model": "any", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[test]
fn every_field_is_read() {
    let chat = read(&body(&json!({
        "max_tokens": 5, "max_completion_tokens": 7, "n": 2, "stop": ["a", ""], "seed": -1,
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "logit_bias": {"5": -100},
        "logprobs": true, "top_logprobs": 3, "response_format": {"type": "json_object"},
        "parallel_tool_calls": false, "reasoning_effort": "high", "enable_thinking": true,
        "chat_template_kwargs": {"style": "brief"}, "user": "u", "stream": true,
        "stream_options": {"include_usage": true}, "store": true, "unknown": [1],
    })))
    .unwrap();
    let request = chat.request;
    assert_eq!((request.max_tokens, request.choices), (Some(7), 2));
    assert_eq!(request.stop, ["a"]);
    assert_eq!(
        request.sampling,
        SamplingOverrides {
            temperature: Some(0.5),
            top_k: Some(40),
            top_p: Some(0.9),
            min_p: Some(0.1),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(0.2),
            frequency_penalty: Some(0.3),
            logit_bias: vec![(5, -100.0)],
            seed: Some(u64::MAX),
            logprobs: Some(3),
        }
    );
    assert_eq!(request.grammar, Some(Grammar::JsonObject));
    assert!(!request.parallel_tool_calls);
    assert_eq!(request.thinking, Some(true));
    assert_eq!(
        Value::Object(request.template_variables),
        json!({"reasoning_effort": "high", "style": "brief"})
    );
    assert_eq!(chat.streaming, Some(Streaming { include_usage: true }));
    assert_eq!(chat.shape, Shape { logprobs: true, is_older: false });
}

#[test]
fn null_is_absent() {
    let keys = [
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "seed",
        "temperature",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "response_format",
        "reasoning_effort",
        "stream",
        "enable_thinking",
        "chat_template_kwargs",
        "stream_options",
        "logit_bias",
        "functions",
    ];
    let nulls = keys.iter().map(|&key| (key.to_owned(), Value::Null)).collect();
    let chat = read(&body(&Value::Object(nulls))).unwrap();
    assert_eq!(
        (chat.request.max_tokens, chat.request.choices, chat.request.thinking),
        (None, 1, None)
    );
    assert_eq!(chat.request.sampling, SamplingOverrides::default());
    assert_eq!((chat.streaming, chat.shape), (None, Shape::default()));
}

#[test]
fn the_most_specific_field_about_thinking_wins() {
    #[track_caller]
    fn check(more: &Value, thinking: Option<bool>, variables: &Value) {
        let request = read(&body(more)).unwrap().request;
        assert_eq!(request.thinking, thinking);
        assert_eq!(Value::Object(request.template_variables), *variables);
    }
    let none = json!({});
    check(&none, None, &none);
    check(&json!({"reasoning_effort": "none"}), Some(false), &none);
    check(&json!({"reasoning_effort": "minimal", "enable_thinking": true}), Some(true), &none);
    check(&json!({"reasoning_effort": "low"}), Some(true), &json!({"reasoning_effort": "low"}));
    let inner = json!({"enable_thinking": false, "x": [1]});
    let more = json!({"enable_thinking": true, "chat_template_kwargs": inner});
    check(&more, Some(false), &json!({"x": [1]}));
    // What no client may set, `null` does not set.
    let nulls = json!({"messages": null, "tools": null, "documents": [], "enable_thinking": null});
    check(&json!({"chat_template_kwargs": nulls}), None, &json!({"documents": []}));
}

#[test]
fn what_is_wrong_is_named() {
    #[track_caller]
    fn refused(more: &Value, param: &str) {
        let error = read(&body(more)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
        assert_eq!(error.status.as_u16(), 400);
    }
    refused(&json!({"messages": null}), "messages");
    refused(&json!({"max_tokens": 0}), "max_tokens");
    refused(&json!({"max_completion_tokens": 0, "max_tokens": 5}), "max_completion_tokens");
    refused(&json!({"max_tokens": -1}), "max_tokens");
    refused(&json!({"max_tokens": "5"}), "max_tokens");
    refused(&json!({"max_tokens": 1.5}), "max_tokens");
    refused(&json!({"n": "two"}), "n");
    refused(&json!({"stop": 3}), "stop");
    refused(&json!({"stop": ["a", 3]}), "stop[1]");
    refused(&json!({"seed": 1.5}), "seed");
    refused(&json!({"temperature": "hot"}), "temperature");
    refused(&json!({"temperature": 1e300}), "temperature");
    refused(&json!({"top_k": 0.5}), "top_k");
    refused(&json!({"logit_bias": [1]}), "logit_bias");
    refused(&json!({"logit_bias": {"x": 1}}), "logit_bias.x");
    refused(&json!({"logprobs": 5}), "logprobs");
    refused(&json!({"top_logprobs": 5}), "top_logprobs");
    refused(&json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs");
    refused(&json!({"tools": [{"type": "x"}]}), "tools[0].type");
    refused(&json!({"response_format": {"type": "x"}}), "response_format.type");
    refused(&json!({"reasoning_effort": 1}), "reasoning_effort");
    refused(&json!({"reasoning_effort": "banana"}), "reasoning_effort");
    refused(&json!({"model": 5}), "model");
    refused(&json!({"user": {"id": 5}}), "user");
    refused(&json!({"enable_thinking": "no"}), "enable_thinking");
    refused(&json!({"chat_template_kwargs": [1]}), "chat_template_kwargs");
    refused(
        &json!({"chat_template_kwargs": {"enable_thinking": "no"}}),
        "chat_template_kwargs.enable_thinking",
    );
    for key in ["messages", "tools", "bos_token", "eos_token"] {
        let path = format!("chat_template_kwargs.{key}");
        refused(&json!({"chat_template_kwargs": {key: [{"role": "user", "content": "x"}]}}), &path);
    }
    refused(&json!({"stream": "yes"}), "stream");
    refused(&json!({"stream_options": true}), "stream_options");
    refused(&json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage");
}

/// An answer that thinks, speaks and calls.
fn updates() -> Vec<Update> {
    vec![
        Update::Prefill { done: 5, total: 10, cached: 0 },
        piece(Piece::Reasoning("hm".to_owned())),
        Update::Piece(Piece::Content("I ask".to_owned()), vec![logprob(b"I ask")]),
        piece(Piece::ToolBegin { index: 0, id: Some("call_1".to_owned()), name: "f".to_owned() }),
        piece(Piece::ToolArguments { index: 0, json: "{\"a\":".to_owned() }),
        piece(Piece::ToolArguments { index: 0, json: "1}".to_owned() }),
        piece(Piece::ToolEnd { index: 0 }),
        piece(Piece::ToolBegin { index: 1, id: Some("call_2".to_owned()), name: "g".to_owned() }),
        piece(Piece::ToolArguments { index: 1, json: "{}".to_owned() }),
        piece(Piece::ToolEnd { index: 1 }),
        Update::Finished(ending(Finish::ToolCalls)),
    ]
}

/// Choices without the fields that are null in all of them.
fn deltas(shape: Shape) -> Vec<Value> {
    let choices = updates().into_iter().filter_map(|update| shape.choice(0, &update));
    let choices = std::iter::once(opening(0)).chain(choices);
    choices
        .map(|mut choice| {
            let choice = choice.as_object_mut().unwrap();
            assert_eq!(choice.shift_remove("index"), Some(json!(0)));
            assert!(choice.contains_key("logprobs") && choice.contains_key("finish_reason"));
            choice.retain(|_, value| !value.is_null());
            Value::Object(choice.clone())
        })
        .collect()
}

#[test]
fn parts_become_deltas() {
    let delta = |delta: Value| json!({"delta": delta});
    let call = |call: Value| delta(json!({"tool_calls": [call]}));
    let begin = |index: usize, id: &str, name: &str| {
        let function = json!({"name": name, "arguments": ""});
        call(json!({"index": index, "id": id, "type": "function", "function": function}))
    };
    let more = |index: usize, arguments: &str| {
        call(json!({"index": index, "function": {"arguments": arguments}}))
    };
    assert_eq!(
        deltas(Shape::default()),
        [
            delta(json!({"role": "assistant", "content": ""})),
            delta(json!({"reasoning_content": "hm"})),
            delta(json!({"content": "I ask"})),
            begin(0, "call_1", "f"),
            more(0, "{\"a\":"),
            more(0, "1}"),
            begin(1, "call_2", "g"),
            more(1, "{}"),
            json!({"delta": {}, "finish_reason": "tool_calls"}),
        ]
    );
}

#[test]
fn older_clients_see_the_first_call() {
    let deltas = deltas(Shape { is_older: true, logprobs: false });
    assert_eq!(
        deltas[3..],
        [
            json!({"delta": {"function_call": {"name": "f", "arguments": ""}}}),
            json!({"delta": {"function_call": {"arguments": "{\"a\":"}}}),
            json!({"delta": {"function_call": {"arguments": "1}"}}}),
            json!({"delta": {}, "finish_reason": "function_call"}),
        ]
    );
}

#[test]
fn log_probabilities_travel_with_their_text() {
    let deltas = deltas(Shape { logprobs: true, is_older: false });
    let bytes: Vec<u8> = b"I ask".to_vec();
    assert_eq!(
        deltas[2],
        json!({
            "delta": {"content": "I ask"},
            "logprobs": {"content": [{
                "token": "I ask", "logprob": -0.5, "bytes": bytes,
                "top_logprobs": [
                    {"token": "I ask", "logprob": -0.5, "bytes": bytes},
                    {"token": "x", "logprob": -9999.0, "bytes": [120]},
                ],
            }], "refusal": null},
        })
    );
    let held_back = Update::Piece(Piece::Content(String::new()), vec![logprob(b"x")]);
    assert!(Shape { logprobs: true, is_older: false }.choice(0, &held_back).is_some());
    assert!(Shape::default().choice(0, &held_back).is_none());
}

#[test]
fn whole_answers() {
    let call = WholeCall {
        id: Some("call_1".to_owned()),
        name: "f".to_owned(),
        arguments: "{\"a\":1}".to_owned(),
    };
    let spoken = WholeAnswer {
        content: "hello".to_owned(),
        reasoning: "hm".to_owned(),
        ending: Some(ending(Finish::Stop)),
        ..WholeAnswer::default()
    };
    let called = WholeAnswer {
        tool_calls: vec![call],
        ending: Some(ending(Finish::ToolCalls)),
        ..WholeAnswer::default()
    };
    let wholes = [spoken, called.clone()];
    let whole = response(&head("chat.completion"), &wholes, Shape::default());
    let call = json!({"id": "call_1", "type": "function",
                      "function": {"name": "f", "arguments": "{\"a\":1}"}});
    assert_eq!(
        whole,
        json!({
            "id": "id-1", "object": "chat.completion", "created": 7, "model": "m",
            "system_fingerprint": super::super::FINGERPRINT,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hello", "reasoning_content": "hm"},
                    "logprobs": null, "finish_reason": "stop",
                },
                {
                    "index": 1,
                    "message": {"role": "assistant", "content": null, "tool_calls": [call]},
                    "logprobs": null, "finish_reason": "tool_calls",
                },
            ],
            "usage": {
                "prompt_tokens": 10, "completion_tokens": 16, "total_tokens": 26,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2, "accepted_prediction_tokens": 4,
                                              "rejected_prediction_tokens": 6},
            },
            "timings": {
                "queue_seconds": 0.25, "prefill_seconds": 0.5, "prefill_tok_s": 12.0,
                "decode_seconds": 2.0, "decode_tok_s": 8.0,
            },
        })
    );
    let older = Shape { is_older: true, logprobs: true }.whole(0, &called);
    assert_eq!(older["message"]["function_call"], json!({"name": "f", "arguments": "{\"a\":1}"}));
    assert_eq!(older["finish_reason"], json!("function_call"));
    assert_eq!(older["logprobs"], json!({"content": [], "refusal": null}));
}
