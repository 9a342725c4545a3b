//! What Anthropic's clients send: what becomes of it, and what is refused with which field named.

use super::*;
use serde_json::json;
use text::tools::Choice;

/// A request with one message and these fields in addition.
fn with(more: Value) -> Value {
    let mut body =
        json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "q"}]});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

fn asked(body: &Value) -> MessagesRequest {
    read(body, Purpose::Answer).unwrap()
}

fn messages(asked: &MessagesRequest) -> Value {
    match &asked.request.input {
        Input::Chat(messages) => messages.clone().into(),
        other => panic!("not a chat: {other:?}"),
    }
}

#[test]
fn messages_become_a_conversation() {
    #[track_caller]
    fn check(system: &Value, sent: &Value, expect: &Value) {
        assert_eq!(messages(&asked(&with(json!({"system": system, "messages": sent})))), *expect);
    }
    let q = json!({"role": "user", "content": "q"});
    check(&json!(null), &json!([q]), &json!([q]));
    check(&json!("s"), &json!([q]), &json!([{"role": "system", "content": "s"}, q]));
    let cached = json!({"type": "ephemeral"});
    check(
        &json!([
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b3;"},
            {"type": "text", "text": "one", "cache_control": cached},
            {"type": "text", "text": "two", "cache_control": cached},
        ]),
        &json!([{"role": "user", "content": [
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b", "cache_control": cached},
        ]}]),
        &json!([{"role": "system", "content": "one\n\ntwo"}, {"role": "user", "content": "a\n\nb"}]),
    );
    check(
        &json!(null),
        &json!([
            q,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "abc"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "wait"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true,
                 "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}]},
                {"type": "text", "text": "go on"},
            ]},
            {"role": "system", "content": "be brief"},
        ]),
        &json!([
            q,
            {"role": "assistant", "content": "wait", "reasoning_content": "hm", "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "one", "name": "f"},
            {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no\n\nway", "name": "g"},
            {"role": "user", "content": "go on\n\nbe brief"},
        ]),
    );
}

#[test]
fn a_last_message_by_the_assistant_is_continued() {
    #[track_caller]
    fn check(last: &Value, expect: Result<Option<&str>, &str>) {
        let sent = json!([{"role": "user", "content": "q"}, last]);
        let read = read(&with(json!({"messages": sent})), Purpose::Answer);
        match (read, expect) {
            (Ok(asked), Ok(expect)) => assert_eq!(asked.begun.as_deref(), expect),
            (Err(error), Err(expect)) => assert_eq!(error.message, expect),
            (read, _) => panic!("{read:?}"),
        }
    }
    check(&json!({"role": "user", "content": "more"}), Ok(None));
    check(&json!({"role": "assistant", "content": "The ("}), Ok(Some("The (")));
    check(&json!({"role": "assistant", "content": [{"type": "text", "text": "{"}]}), Ok(Some("{")));
    check(
        &json!({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "xyz"}]}),
        Err("messages: the last message has no text to continue"),
    );
    check(
        &json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": "1", "name": "f", "input": {}},
        ]}),
        Err("messages: the last message calls tools, and no tool_result follows"),
    );
}

#[test]
fn only_a_last_message_by_the_assistant_may_be_empty() {
    let turn = |role: &str, content: &Value| json!({"role": role, "content": content});
    let (q, a) = (turn("user", &json!("q")), turn("assistant", &json!("The")));
    for nothing in [json!(""), json!([]), json!([{"type": "text", "text": ""}])] {
        let (user, assistant) = (turn("user", &nothing), turn("assistant", &nothing));
        let with = |sent: Value| with(json!({"messages": sent}));
        // As if it were not there.
        let as_none = asked(&with(json!([q, assistant])));
        assert_eq!((messages(&as_none), as_none.begun), (json!([q]), None));
        let begun = asked(&with(json!([q, a, assistant]))).begun;
        assert_eq!(begun.as_deref(), Some("The"));
        let refused = |sent: Value, param: &str| {
            for purpose in [Purpose::Answer, Purpose::Count] {
                let error = read(&with(sent.clone()), purpose).unwrap_err();
                assert_eq!(error.param.as_deref(), Some(param), "{sent}");
            }
        };
        refused(json!([assistant]), "messages");
        refused(json!([user]), "messages[0].content");
        refused(json!([q, a, user]), "messages[2].content");
        refused(json!([q, a, user, assistant]), "messages[2].content");
        // In the middle it does no harm.
        assert_eq!(messages(&asked(&with(json!([user, q])))), json!([q]));
        assert!(read(&with(json!([q, assistant, q])), Purpose::Answer).is_ok());
    }
    // A summary that failed says nothing either, and is nothing to continue.
    let failed = turn("user", &json!([{"type": "compaction", "content": null}]));
    let error = read(&with(json!({"messages": [q, a, failed]})), Purpose::Answer).unwrap_err();
    assert_eq!(error.message, "messages[2].content: the last message must not be empty");
}

#[test]
fn a_request_for_no_tokens_is_not_refused() {
    assert_eq!(asked(&with(json!({"max_tokens": 0}))).request.max_tokens, Some(0));
}

#[test]
fn an_image_that_a_tool_returned_is_left_out_and_any_other_refused_with_the_reason() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    let user = |block: &Value| with(json!({"messages": [{"role": "user", "content": [block]}]}));
    let returned = json!({"type": "tool_result", "tool_use_id": "1",
        "content": [{"type": "text", "text": "a.png"}, image]});
    assert_eq!(
        messages(&asked(&user(&returned)))[0]["content"],
        "a.png\n\n[image left out: this model reads text only]"
    );
    let document = |source: Value| json!({"type": "document", "source": source});
    let returned = json!({"type": "tool_result", "tool_use_id": "1", "content": [
        document(json!({"type": "text", "media_type": "text/plain", "data": "words"})),
        document(json!({"type": "base64", "media_type": "application/pdf", "data": ""}))]});
    assert_eq!(
        messages(&asked(&user(&returned)))[0]["content"],
        "words\n\n[document left out: this model reads text only]"
    );
    for words in [
        json!({"type": "text", "media_type": "text/plain", "data": "words"}),
        json!({"type": "content", "content": "words"}),
        json!({"type": "content", "content": [{"type": "text", "text": "words"}]}),
    ] {
        assert_eq!(messages(&asked(&user(&document(words))))[0]["content"], "words");
    }
    #[track_caller]
    fn check(body: &Value, expect: &str) {
        assert_eq!(read(body, Purpose::Answer).unwrap_err().message, expect);
    }
    check(
        &user(&document(json!({"type": "content", "content": [image]}))),
        "messages[0].content[0].type: this model reads text only, not document",
    );
    check(&user(&image), "messages[0].content[0].type: this model reads text only, not image");
    check(
        &with(json!({"system": [image]})),
        "system[0].type: this model reads text only, not image",
    );
    check(
        &user(&json!({"type": "document", "source": {}})),
        "messages[0].content[0].type: this model reads text only, not document",
    );
    check(
        &user(&json!({"type": "tool_use"})),
        "messages[0].content[0].type: \"tool_use\" is not supported in a message by the user",
    );
}

#[test]
fn a_conversation_that_was_begun_elsewhere_continues() {
    let found = json!({"type": "search_result", "title": "Title", "source": "example.com",
        "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]});
    let call = json!({"type": "tool_use", "id": "1", "name": "find", "input": {}});
    let sent = json!([
        {"role": "user", "content": "long"},
        {"role": "assistant", "content": [{"type": "compaction", "content": "So far."}]},
        {"role": "user", "content": [found, {"type": "text", "text": "q"}]},
        {"role": "assistant", "content": [
            {"type": "compaction", "content": null},
            {"type": "text", "text": "a"},
            {"type": "server_tool_use", "id": "2", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "2", "content": [{"type": "web_search_result"}]},
            call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
            {"type": "tool_reference", "tool_name": "mcp__a__b"}, found]}]},
        {"role": "system", "output_config": {"effort": "low"}},
    ]);
    let found = "Title\nexample.com\n\none\n\ntwo";
    let expect = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": format!("So far.\n\n{found}\n\nq")},
        {"role": "assistant", "content": "a", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "find", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "1", "name": "find",
         "content": format!("The tool mcp__a__b is there.\n\n{found}")},
    ]);
    assert_eq!(messages(&asked(&with(json!({"system": "s", "messages": sent})))), expect);
    // One by the user stands for what came before it too; one without text for nothing.
    let summary = |text: &str| json!({"role": "user", "content": [{"type": "compaction", "content": text}, {"type": "text", "text": "q"}]});
    let after = |text: &str| messages(&asked(&with(json!({"messages": [sent[0], summary(text)]}))));
    assert_eq!(after("So far."), json!([{"role": "user", "content": "So far.\n\nq"}]));
    assert_eq!(after(""), json!([{"role": "user", "content": "long\n\nq"}]));
    // A pause behind the summary is no answer that has begun.
    let paused = asked(&with(json!({"messages": [sent[0], sent[1]]})));
    assert_eq!(messages(&paused), json!([{"role": "user", "content": "So far."}]));
    assert_eq!(paused.begun, None);
}

#[test]
fn what_claude_code_sends_is_taken() {
    let cached = json!({"type": "ephemeral", "ttl": "1h"});
    let body = with(json!({
        "system": [{"type": "text", "text": "You are.", "cache_control": cached}],
        "tools": [
            {"name": "Bash", "description": "runs", "cache_control": cached, "eager_input_streaming": true,
             "input_schema": {"$schema": "x", "type": "object", "properties": {"command": {"type": "string"}}}},
            {"type": "custom", "name": "mcp__a__b", "input_schema": {"type": "object"}},
        ],
        "metadata": {"user_id": "user_1"},
        "temperature": 1,
        "stream": true,
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "stop_sequences": ["a", "", "b"],
        "top_k": 5,
        "top_p": 0.5,
        "betas": ["x"],
    }));
    let asked = asked(&body);
    assert!(asked.streams);
    let request = asked.request;
    assert_eq!(
        request.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(),
        ["Bash", "mcp__a__b"]
    );
    assert_eq!(
        request.tool_definitions[0]["function"]["parameters"]["properties"]["command"]["type"],
        "string"
    );
    assert_eq!((request.max_tokens, request.thinking), (Some(5), Some(true)));
    assert_eq!(request.stop, ["a", "b"]);
    assert_eq!((request.sampling.temperature, request.sampling.top_k), (Some(1.0), Some(5)));
    assert_eq!(request.sampling.top_p, Some(0.5));
    assert_eq!(request.grammar, None);
}

#[test]
fn thinking_is_off_unless_requested() {
    #[track_caller]
    fn check(thinking: &Value, expect: bool) {
        assert_eq!(asked(&with(json!({"thinking": thinking}))).request.thinking, Some(expect));
    }
    check(&json!(null), false);
    check(&json!({"type": "disabled"}), false);
    check(&json!({"type": "enabled", "budget_tokens": 1024}), true);
    check(&json!({"type": "adaptive"}), true);
}

#[test]
fn thinking_is_shown_unless_it_is_not_wanted() {
    #[track_caller]
    fn check(thinking: &Value, expect: bool) {
        let asked = asked(&with(json!({"thinking": thinking})));
        assert_eq!(asked.shows_thinking, expect);
    }
    check(&json!(null), true);
    for kind in ["adaptive", "enabled"] {
        check(&json!({"type": kind}), true);
        check(&json!({"type": kind, "display": null}), true);
        check(&json!({"type": kind, "display": "summarized"}), true);
        check(&json!({"type": kind, "display": "updates"}), true);
        check(&json!({"type": kind, "display": "omitted"}), false);
    }
}

#[test]
fn tools_come_and_go() {
    fn tool(name: &str) -> Value {
        json!({"name": name, "input_schema": {"type": "object"}})
    }
    let named = |name: &str| json!({"type": "tool_reference", "name": name});
    let whole = |name: &str| json!({"type": "tool_definition", "definition": tool(name)});
    let change = |kind: &str, tool: Value| json!({"type": kind, "tool": tool});
    let system = |blocks: Value| json!({"role": "system", "content": blocks});
    let check = |messages: &[Value], expect: &[&str]| {
        let user = [json!({"role": "user", "content": "q"})];
        let sent = [&user, messages, &user].concat();
        let asked = asked(&with(json!({"tools": [tool("a"), tool("b")], "messages": sent})));
        let names: Vec<_> = asked.request.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, expect, "{sent:?}");
        asked
    };
    check(&[], &["a", "b"]);
    let taken = change("tool_removal", named("a"));
    let request = check(
        &[system(
            json!([{"type": "text", "text": "Mind."}, taken, change("tool_addition", whole("c"))]),
        )],
        &["b", "c"],
    );
    assert_eq!(messages(&request), json!([{"role": "user", "content": "q\n\nMind.\n\nq"}]));
    let again = system(json!([change("tool_addition", named("a"))]));
    check(&[system(json!([taken])), again], &["a", "b"]);
    // Another tool of the same name takes its place, and one that was never offered is not missed.
    check(&[system(json!([change("tool_addition", whole("a"))]))], &["b", "a"]);
    check(&[system(json!([change("tool_removal", named("z"))]))], &["a", "b"]);
    // A summary keeps what was changed before it.
    let summary = json!({"type": "compaction", "content": "So far.", "tool_changes": [taken]});
    check(&[json!({"role": "assistant", "content": [summary]})], &["b"]);
    let error = read(
        &with(
            json!({"messages": [{"role": "user", "content": "q"}, system(json!([{"type": "tool_addition"}]))]}),
        ),
        Purpose::Answer,
    );
    assert_eq!(error.err().unwrap().param.as_deref(), Some("messages[1].content[0].tool"));
}

#[test]
fn tool_choices_are_read() {
    #[track_caller]
    fn check(choice: &Value, expect: Choice, parallel: bool) {
        let tools = json!([{"name": "f", "input_schema": {}}]);
        let request = asked(&with(json!({"tools": tools, "tool_choice": choice}))).request;
        assert_eq!((request.tool_choice, request.parallel_tool_calls), (expect, parallel));
    }
    check(&json!(null), Choice::Auto, true);
    check(&json!({"type": "auto", "disable_parallel_tool_use": true}), Choice::Auto, false);
    check(&json!({"type": "any"}), Choice::Required, true);
    check(&json!({"type": "tool", "name": "f"}), Choice::Named("f".to_owned()), true);
    check(&json!({"type": "none"}), Choice::None, true);
}

#[test]
fn a_schema_for_the_answer_is_taken_under_both_names() {
    let schema = json!({"type": "object"});
    let format = json!({"type": "json_schema", "schema": schema});
    let expect = Some(Grammar::JsonSchema(schema));
    assert_eq!(asked(&with(json!({"output_config": {"format": format}}))).request.grammar, expect);
    assert_eq!(asked(&with(json!({"output_format": format}))).request.grammar, expect);
}

#[test]
fn counting_needs_no_limit() {
    let body = json!({"messages": [{"role": "user", "content": "q"}]});
    assert_eq!(read(&body, Purpose::Count).unwrap().request.max_tokens, None);
    let error = read(&body, Purpose::Answer).unwrap_err();
    assert_eq!(
        (error.code, error.param.as_deref()),
        ("missing_required_parameter", Some("max_tokens"))
    );
}

#[test]
fn what_is_wrong_is_named() {
    #[track_caller]
    fn check(more: Value, param: &str) {
        let error = read(&with(more), Purpose::Answer).unwrap_err();
        assert_eq!(error.status.as_u16(), 400);
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }
    check(json!({"model": 1}), "model");
    check(json!({"max_tokens": null}), "max_tokens");
    check(json!({"max_tokens": -1}), "max_tokens");
    check(json!({"max_tokens": "5"}), "max_tokens");
    check(json!({"messages": null}), "messages");
    check(json!({"messages": "q"}), "messages");
    check(json!({"messages": []}), "messages");
    check(json!({"messages": ["q"]}), "messages[0]");
    check(json!({"messages": [{"content": "q"}]}), "messages[0].role");
    check(json!({"messages": [{"role": 1, "content": "q"}]}), "messages[0].role");
    check(json!({"messages": [{"role": "tool", "content": "q"}]}), "messages[0].role");
    check(json!({"messages": [{"role": "user"}]}), "messages[0].content");
    check(json!({"messages": [{"role": "user", "content": 1}]}), "messages[0].content");
    let user = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    check(user(json!("q")), "messages[0].content[0]");
    check(user(json!({"text": "q"})), "messages[0].content[0].type");
    check(user(json!({"type": "text"})), "messages[0].content[0].text");
    check(user(json!({"type": "text", "text": 1})), "messages[0].content[0].text");
    check(user(json!({"type": "image", "source": {}})), "messages[0].content[0].type");
    check(user(json!({"type": "document", "source": {}})), "messages[0].content[0].type");
    check(user(json!({"type": "tool_use"})), "messages[0].content[0].type");
    check(user(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id");
    let result = |more: Value| {
        let mut block = json!({"type": "tool_result", "tool_use_id": "1"});
        block.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"messages": [{"role": "user", "content": [block]}]})
    };
    check(result(json!({"content": 1})), "messages[0].content[0].content");
    check(
        result(json!({"content": [{"type": "video"}]})),
        "messages[0].content[0].content[0].type",
    );
    check(result(json!({"is_error": "no"})), "messages[0].content[0].is_error");
    let assistant = |block: Value| json!({"messages": [{"role": "assistant", "content": [block]}]});
    check(assistant(json!({"type": "tool_result"})), "messages[0].content[0].type");
    check(assistant(json!({"type": "server_tool"})), "messages[0].content[0].type");
    check(assistant(json!({"type": "compaction", "content": 1})), "messages[0].content[0].content");
    check(user(json!({"type": "search_result", "source": "s"})), "messages[0].content[0].title");
    check(json!({"messages": [{"role": "system"}]}), "messages[0].content");
    check(
        assistant(json!({"type": "tool_use", "id": "1", "name": "f"})),
        "messages[0].content[0].input",
    );
    check(
        assistant(json!({"type": "tool_use", "id": "1", "name": "f", "input": "{}"})),
        "messages[0].content[0].input",
    );
    check(
        assistant(json!({"type": "tool_use", "name": "f", "input": {}})),
        "messages[0].content[0].id",
    );
    check(assistant(json!({"type": "thinking"})), "messages[0].content[0].thinking");
    check(json!({"system": 1}), "system");
    check(json!({"system": [{"type": "image"}]}), "system[0].type");
    check(json!({"temperature": 1.5}), "temperature");
    check(json!({"temperature": -0.1}), "temperature");
    check(json!({"temperature": "hot"}), "temperature");
    check(json!({"top_p": "x"}), "top_p");
    check(json!({"top_k": 1.5}), "top_k");
    check(json!({"stop_sequences": 1}), "stop_sequences");
    check(json!({"stop_sequences": [1]}), "stop_sequences[0]");
    check(json!({"stream": "yes"}), "stream");
    check(json!({"tools": {}}), "tools");
    check(json!({"tools": ["f"]}), "tools[0]");
    check(
        json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        "tools[0].type",
    );
    check(json!({"tools": [{"input_schema": {}}]}), "tools[0].name");
    check(json!({"tools": [{"name": "", "input_schema": {}}]}), "tools[0].name");
    check(json!({"tools": [{"name": "f"}]}), "tools[0].input_schema");
    check(json!({"tools": [{"name": "f", "input_schema": "x"}]}), "tools[0].input_schema");
    let twice = json!({"name": "f", "input_schema": {}});
    check(json!({"tools": [twice, twice]}), "tools[1].name");
    check(json!({"tool_choice": "auto"}), "tool_choice");
    check(json!({"tool_choice": {}}), "tool_choice.type");
    check(json!({"tool_choice": {"type": "some"}}), "tool_choice.type");
    check(json!({"tool_choice": {"type": "tool"}}), "tool_choice.name");
    check(json!({"thinking": true}), "thinking");
    check(json!({"thinking": {"type": "much"}}), "thinking.type");
    check(json!({"thinking": {"type": "enabled", "budget_tokens": "x"}}), "thinking.budget_tokens");
    check(json!({"thinking": {"type": "adaptive", "display": "full"}}), "thinking.display");
    check(json!({"thinking": {"type": "adaptive", "display": 1}}), "thinking.display");
    check(json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type");
    check(
        json!({"output_config": {"format": {"type": "json_schema"}}}),
        "output_config.format.schema",
    );
}
