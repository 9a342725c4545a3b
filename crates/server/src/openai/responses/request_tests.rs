//! What clients of `/v1/responses` send: what becomes of it, and what is refused with which field named.

use grammar::Grammar;
use text::tools::Choice;

use super::*;

/// A request with a question and these fields in addition.
fn with(more: Value) -> Value {
    let mut body = json!({"model": "m", "input": "q"});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

fn asked(more: Value) -> ResponsesRequest {
    read(&with(more)).unwrap()
}

#[track_caller]
fn check(more: Value, expect: &Value) {
    match asked(more).request.input {
        Input::Chat(messages) => assert_eq!(Value::from(messages), *expect),
        other => panic!("not a chat: {other:?}"),
    }
}

#[test]
fn items_become_a_conversation() {
    let q = json!({"role": "user", "content": "q"});
    check(json!({}), &json!([q]));
    check(json!({"instructions": "s"}), &json!([{"role": "system", "content": "s"}, q]));
    check(json!({"input": [{"role": "user", "content": "q"}]}), &json!([q]));
    // As Codex begins a conversation.
    let text = |text: &str| json!([{"type": "input_text", "text": text}]);
    check(
        json!({"instructions": "You are.", "input": [
            {"type": "message", "role": "developer", "content": text("be safe")},
            {"type": "message", "role": "user", "content": text("<environment/>")},
            {"type": "message", "role": "user", "content": text("q")},
        ]}),
        &json!([
            {"role": "system", "content": "You are.\n\nbe safe"},
            {"role": "user", "content": "<environment/>\n\nq"},
        ]),
    );
}

#[test]
fn what_the_assistant_did_is_one_message() {
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let q = json!({"role": "user", "content": "q"});
    check(
        json!({"input": [
            {"role": "user", "content": "q"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}],
             "content": [{"type": "reasoning_text", "text": "long"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "see", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}"},
            {"type": "function_call", "call_id": "2", "name": "b", "namespace": "mcp__a__", "arguments": ""},
            {"type": "custom_tool_call", "call_id": "3", "name": "apply_patch", "input": "*** Begin"},
            {"type": "function_call_output", "call_id": "1", "output": "one"},
            {"type": "function_call_output", "call_id": "2",
             "output": [{"type": "input_text", "text": "t"}, {"type": "input_text", "text": "wo"}]},
            {"type": "custom_tool_call_output", "call_id": "3", "output": "three"},
        ]}),
        &json!([
            q,
            {"role": "assistant", "content": "see", "reasoning_content": "long", "tool_calls": [
                call("1", "f", json!({"x": 1})),
                call("2", "mcp__a__b", json!({})),
                call("3", "apply_patch", json!({"input": "*** Begin"})),
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "one", "name": "f"},
            {"role": "tool", "tool_call_id": "2", "content": "t\n\nwo", "name": "mcp__a__b"},
            {"role": "tool", "tool_call_id": "3", "content": "three", "name": "apply_patch"},
        ]),
    );
}

/// As Codex sets a goal, and as its agents exchange messages.
#[test]
fn a_result_without_a_call_is_a_result_too() {
    let text = |text: &str| json!({"type": "input_text", "text": text});
    check(
        json!({"input": [
            {"role": "user", "content": "q"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "one"},
            {"type": "function_call_output", "id": "fco_2", "name": "goal", "namespace": "agent", "output": "two"},
            {"type": "agent_message", "author": "helper", "recipient": "main", "content": [
                text("three"), {"type": "encrypted_content", "encrypted_content": "gAAAA"}, text("four")]},
            {"type": "agent_message", "author": "helper", "recipient": "main",
             "content": [{"type": "encrypted_content", "encrypted_content": "gAAAA"}]},
        ]}),
        &json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "tool_call_id": "1", "content": "one", "name": "f"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "fco_2", "type": "function", "function": {"name": "agent__goal", "arguments": {}}}]},
            {"role": "tool", "tool_call_id": "fco_2", "content": "two", "name": "agent__goal"},
            {"role": "user", "content": "Message from helper:\nthree\n\nfour"},
        ]),
    );
}

#[test]
fn settings_change_on_the_way() {
    let schema = |kind: &str| json!({"format": {"type": "json_schema", "name": "x", "schema": {"type": kind}}});
    let update = |more: Value| {
        let mut item = json!({"type": "configuration_update"});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    };
    let q = json!({"role": "user", "content": "q"});
    let request = |updates: &[Value]| {
        let mut input = vec![q.clone()];
        input.extend(updates.iter().cloned());
        asked(json!({"input": input, "reasoning": {"effort": "low"}, "text": schema("string")}))
            .request
    };
    let [high, none] =
        ["high", "none"].map(|effort| update(json!({"reasoning": {"effort": effort}})));
    let plain = request(&[]);
    assert_eq!(plain.template_variables["reasoning_effort"], "low");
    assert_eq!(request(std::slice::from_ref(&high)).template_variables["reasoning_effort"], "high");
    let last = request(&[high.clone(), none.clone()]);
    assert_eq!((last.thinking, last.template_variables.len()), (Some(false), 0));
    assert_eq!(request(&[none, high]).thinking, Some(true));
    assert_eq!(request(&[update(json!({"text": {"format": {"type": "text"}}}))]).grammar, None);
    let array = request(&[update(json!({"text": schema("array")}))]);
    assert_eq!(array.grammar, Some(Grammar::JsonSchema(json!({"type": "array"}))));
    assert_eq!(array.grammar_field, "input[1].text.format");
}

#[test]
fn thinking_comes_back_by_one_of_three_ways() {
    #[track_caller]
    fn check(reasoning: &Value, expect: Option<&str>) {
        let mut item = json!({"type": "reasoning", "id": "rs_1", "summary": []});
        item.as_object_mut().unwrap().extend(reasoning.as_object().unwrap().clone());
        let input =
            json!([{"role": "user", "content": "q"}, item, {"role": "assistant", "content": "a"}]);
        let Input::Chat(messages) = asked(json!({"input": input})).request.input else {
            panic!("no chat")
        };
        assert_eq!(messages[1]["reasoning_content"].as_str(), expect);
    }
    let summary = json!([{"type": "summary_text", "text": "short"}]);
    check(&json!({}), None);
    check(&json!({"encrypted_content": "gAAAA"}), None);
    check(&json!({"encrypted_content": null, "summary": summary}), Some("short"));
    check(&json!({"encrypted_content": "millstream:long", "summary": summary}), Some("long"));
    let content = json!([{"type": "reasoning_text", "text": "open"}]);
    check(&json!({"encrypted_content": "millstream:long", "content": content}), Some("open"));
}

#[test]
fn tools_are_functions_to_the_model() {
    let asked = asked(json!({"tools": [
        {"type": "function", "name": "shell", "description": "runs", "strict": false,
         "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
        {"type": "custom", "name": "apply_patch", "description": "patches",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}},
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "image_generation", "output_format": "png"},
        {"type": "namespace", "name": "crm", "description": "d", "tools": [
            {"type": "function", "name": "find"},
        ]},
    ]}));
    let definitions = asked.request.tool_definitions;
    let names: Vec<&str> = asked.request.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["shell", "apply_patch", "crm__find"]);
    assert_eq!(definitions[0]["function"]["parameters"]["properties"]["command"]["type"], "string");
    let patch = &definitions[1]["function"];
    assert_eq!(
        patch["description"],
        "patches\n\nThe input follows this lark grammar:\nstart: \"a\""
    );
    assert_eq!(patch["parameters"]["properties"]["input"]["type"], "string");
    let offer = asked.offers.called("crm__find");
    assert_eq!((offer.name.as_str(), offer.namespace.as_deref()), ("find", Some("crm")));
    assert!(asked.offers.called("apply_patch").is_custom);
    // All of them are repeated.
    assert_eq!(asked.echo["tools"].as_array().unwrap().len(), 6);
}

#[test]
fn tools_may_stand_among_the_items() {
    let custom = json!({"type": "custom", "name": "exec", "description": "runs"});
    let asked = asked(
        json!({"tools": [{"type": "function", "name": "f", "strict": true}], "input": [
            {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [
                {"type": "namespace", "name": "functions", "tools": [custom]},
                {"type": "function", "name": "g"}]},
            {"role": "user", "content": "q"},
            {"type": "tool_search_call", "execution": "client", "call_id": "c", "arguments": {"query": "g"}},
            {"type": "tool_search_output", "execution": "client", "call_id": "c", "status": "completed", "tools": [
                {"type": "function", "name": "g"}, {"type": "function", "name": "h"}]},
        ]}),
    );
    let tools: Vec<(&str, bool)> =
        asked.request.tools.iter().map(|tool| (tool.name.as_str(), tool.is_strict)).collect();
    assert_eq!(tools, [("f", true), ("functions__exec", true), ("g", false), ("h", false)]);
    let Input::Chat(messages) = asked.request.input else { panic!("no chat") };
    assert_eq!(messages, [json!({"role": "user", "content": "q"})]);
}

#[test]
fn what_cannot_be_seen_is_left_out() {
    let image = json!({"type": "input_image", "image_url": "data:image/png;base64,AAAA"});
    let asked = asked(json!({"input": [
        {"role": "user", "content": "q"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [
            image, {"type": "input_file", "file_id": "x"}, {"type": "input_text", "text": "seen"}]},
    ]}));
    let Input::Chat(messages) = asked.request.input else { panic!("no chat") };
    assert_eq!(messages.len(), 3);
    assert_eq!(
        messages[2]["content"],
        "[image left out: this model reads text only]\n\n\
         [document left out: this model reads text only]\n\nseen"
    );
}

#[test]
fn summaries_are_requested() {
    #[track_caller]
    fn check(reasoning: &Value, expect: bool) {
        assert_eq!(asked(json!({"reasoning": reasoning})).extras.summary, expect);
    }
    check(&json!(null), false);
    check(&json!({"effort": "high"}), false);
    check(&json!({"summary": null}), false);
    check(&json!({"summary": "none"}), false);
    check(&json!({"summary": "auto"}), true);
    check(&json!({"summary": "detailed"}), true);
    check(&json!({"generate_summary": "concise"}), true);
}

#[test]
fn tool_choices_are_read() {
    #[track_caller]
    fn check(choice: &Value, expect: &Choice, tools: &[&str]) {
        let offered = json!([
            {"type": "function", "name": "f"}, {"type": "custom", "name": "g"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "h"}]},
        ]);
        let request = asked(json!({"tools": offered, "tool_choice": choice})).request;
        let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((&request.tool_choice, names.as_slice()), (expect, tools));
    }
    let all = ["f", "g", "n__h"];
    check(&json!(null), &Choice::Auto, &all);
    check(&json!("auto"), &Choice::Auto, &all);
    check(&json!("none"), &Choice::None, &all);
    check(&json!("required"), &Choice::Required, &all);
    check(&json!({"type": "function", "name": "f"}), &Choice::Named("f".to_owned()), &all);
    check(&json!({"type": "custom", "name": "g"}), &Choice::Named("g".to_owned()), &all);
    let allowed = json!({"type": "allowed_tools", "mode": "required",
                         "tools": [{"type": "function", "name": "f"}]});
    check(&allowed, &Choice::Required, &["f"]);
}

#[test]
fn settings_are_taken() {
    let schema = json!({"type": "object"});
    let asked = asked(json!({
        "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.25, "parallel_tool_calls": false,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": true},
                 "verbosity": "low"},
        "reasoning": {"effort": "high", "summary": "auto"}, "stream": true, "store": false,
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"], "top_logprobs": 3,
        "metadata": {"k": "v"}, "truncation": "auto", "user": "u", "prompt_cache_key": "key",
        "previous_response_id": null, "client_metadata": {"x": "y"}, "service_tier": "auto",
    }));
    let request = asked.request;
    assert_eq!(
        (request.max_tokens, request.thinking, request.parallel_tool_calls),
        (Some(9), Some(true), false)
    );
    assert_eq!((request.sampling.temperature, request.sampling.top_p), (Some(0.5), Some(0.25)));
    assert_eq!(request.sampling.logprobs, Some(3));
    assert_eq!(request.grammar, Some(Grammar::JsonSchema(schema)));
    assert_eq!(request.template_variables["reasoning_effort"], "high");
    assert!(asked.streams);
    assert_eq!(asked.extras, Extras { logprobs: true, thinking: true, summary: true });
    let echo = Value::from(asked.echo);
    assert_eq!(echo["metadata"], json!({"k": "v"}));
    assert_eq!((&echo["temperature"], &echo["truncation"]), (&json!(0.5), &json!("auto")));
    assert_eq!(echo["text"]["format"]["name"], "n");
}

#[test]
fn what_official_clients_need_is_repeated_with_defaults() {
    assert_eq!(
        Value::from(asked(json!({"text": {"verbosity": "low"}})).echo),
        json!({
            "instructions": null, "max_output_tokens": null, "max_tool_calls": null,
            "prompt_cache_key": null, "reasoning": {"effort": null, "summary": null},
            "safety_identifier": null, "temperature": null,
            "text": {"verbosity": "low", "format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
            "top_p": null, "user": null, "metadata": {}, "parallel_tool_calls": true, "top_logprobs": 0,
            "truncation": "disabled", "background": false, "previous_response_id": null,
            "service_tier": "default", "store": false,
        })
    );
}

#[test]
fn effort_decides_about_thinking() {
    #[track_caller]
    fn check(reasoning: &Value, expect: Option<bool>) {
        assert_eq!(asked(json!({"reasoning": reasoning})).request.thinking, expect);
    }
    check(&json!(null), None);
    check(&json!({"summary": "auto"}), None);
    check(&json!({"effort": "minimal"}), Some(false));
    check(&json!({"effort": "medium"}), Some(true));
}

#[test]
fn what_is_wrong_is_named() {
    #[track_caller]
    fn check(more: Value, param: &str) {
        let error = read(&with(more)).unwrap_err();
        assert_eq!(error.status.as_u16(), 400);
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }
    check(json!({"model": 1}), "model");
    check(json!({"input": null}), "input");
    check(json!({"input": 1}), "input");
    check(json!({"input": []}), "input");
    check(json!({"instructions": ["s"]}), "instructions");
    let item = |item: Value| json!({"input": [item]});
    check(item(json!("q")), "input[0]");
    check(item(json!({})), "input[0].type");
    check(item(json!({"id": "msg_1"})), "input[0].type");
    check(item(json!({"type": "item_reference", "id": "msg_1"})), "input[0].type");
    check(item(json!({"type": "web_search_call", "id": "ws_1"})), "input");
    check(item(json!({"type": "compaction", "encrypted_content": "x"})), "input[0].type");
    check(item(json!({"type": "additional_tools", "tools": [{}]})), "input");
    check(item(json!({"type": "message", "content": "q"})), "input[0].role");
    check(item(json!({"role": "tool", "content": "q"})), "input[0].role");
    check(item(json!({"role": "user"})), "input[0].content");
    check(item(json!({"role": "user", "content": 1})), "input[0].content");
    let part = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    check(part(json!({"type": "input_image", "image_url": "x"})), "input[0].content[0]");
    check(part(json!({"type": "input_file"})), "input[0].content[0]");
    check(part(json!({"type": "input_text"})), "input[0].content[0].text");
    check(part(json!({"type": "smell"})), "input[0].content[0].type");
    check(item(json!({"type": "function_call", "call_id": "1"})), "input[0].name");
    check(
        item(json!({"type": "function_call", "name": "f", "arguments": "{}"})),
        "input[0].call_id",
    );
    let call = |arguments: Value| json!({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}]});
    check(call(json!(3)), "input[0].arguments");
    check(call(json!([1])), "input[0].arguments");
    check(item(json!({"type": "custom_tool_call", "call_id": "1", "name": "g"})), "input[0].input");
    check(item(json!({"type": "function_call_output", "call_id": "1"})), "input[0].output");
    check(item(json!({"type": "function_call_output", "output": "x"})), "input[0].call_id");
    let output =
        json!({"type": "function_call_output", "call_id": "1", "output": [{"type": "smell"}]});
    check(item(output), "input[0].output[0].type");
    check(
        item(json!({"type": "reasoning", "content": [{"type": "reasoning_text"}]})),
        "input[0].content[0].text",
    );
    check(
        item(json!({"type": "reasoning", "content": [{"text": "t"}], "summary": [{}]})),
        "input[0].summary[0].text",
    );
    check(item(json!({"type": "reasoning", "encrypted_content": 1})), "input[0].encrypted_content");
    check(json!({"previous_response_id": "resp_1"}), "previous_response_id");
    check(json!({"conversation": "conv_1"}), "conversation");
    check(json!({"prompt": {"id": "pmpt_1"}}), "prompt");
    check(json!({"background": true}), "background");
    check(json!({"store": "no"}), "store");
    check(json!({"max_output_tokens": 0}), "max_output_tokens");
    check(json!({"max_output_tokens": -1}), "max_output_tokens");
    check(json!({"temperature": "hot"}), "temperature");
    check(json!({"top_p": []}), "top_p");
    check(json!({"stream": 1}), "stream");
    check(json!({"include": [1]}), "include[0]");
    check(json!({"top_logprobs": 21}), "top_logprobs");
    check(json!({"metadata": "x"}), "metadata");
    check(json!({"truncation": 1}), "truncation");
    check(json!({"truncation": "banana"}), "truncation");
    check(json!({"max_tool_calls": "x"}), "max_tool_calls");
    check(json!({"prompt_cache_key": 5}), "prompt_cache_key");
    check(json!({"safety_identifier": 5}), "safety_identifier");
    check(json!({"service_tier": 5}), "service_tier");
    check(json!({"stream_options": 5}), "stream_options");
    check(
        json!({"stream_options": {"include_obfuscation": "x"}}),
        "stream_options.include_obfuscation",
    );
    check(json!({"text": {"verbosity": 5}}), "text.verbosity");
    check(json!({"parallel_tool_calls": "x"}), "parallel_tool_calls");
    check(json!({"reasoning": "high"}), "reasoning");
    check(json!({"reasoning": {"effort": "huge"}}), "reasoning.effort");
    check(json!({"text": "json"}), "text");
    check(json!({"text": {"format": "json"}}), "text.format");
    check(json!({"text": {"format": {"type": "xml"}}}), "text.format.type");
    check(json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema");
    check(json!({"tools": {}}), "tools");
    check(json!({"tools": ["f"]}), "tools[0]");
    check(json!({"tools": [{"name": "f"}]}), "tools[0].type");
    check(json!({"tools": [{"type": "function"}]}), "tools[0].name");
    check(
        json!({"tools": [{"type": "function", "name": "f", "parameters": 1}]}),
        "tools[0].parameters",
    );
    let twice = json!({"type": "function", "name": "f"});
    check(json!({"tools": [twice, twice]}), "tools[1].name");
    let inner = json!({"type": "namespace", "name": "n", "tools": [{"type": "custom"}]});
    check(json!({"tools": [inner]}), "tools[0].tools[0].name");
    check(json!({"tool_choice": "some"}), "tool_choice");
    check(json!({"tool_choice": 1}), "tool_choice");
    check(json!({"tool_choice": {"type": "web_search"}}), "tool_choice.type");
    check(json!({"tool_choice": {"type": "function"}}), "tool_choice.name");
    check(json!({"user": 1}), "user");
}
