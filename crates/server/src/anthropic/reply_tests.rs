//! Updates of an answer in, Anthropic's events out: their order, their nesting, and the message they build.

use engine::Usage;
use proptest::prelude::*;

use super::*;
use crate::error::ApiError;

fn reply() -> Reply {
    Reply::new("msg_1".to_owned(), "m".to_owned(), 10, true)
}

fn piece(piece: Piece) -> Update {
    Update::Piece(piece, Vec::new())
}

fn say(text: &str) -> Update {
    piece(Piece::Content(text.to_owned()))
}

fn think(text: &str) -> Update {
    piece(Piece::Reasoning(text.to_owned()))
}

fn call(index: usize, name: &str, arguments: &[&str]) -> Vec<Update> {
    let id = Some(format!("call_{index}"));
    let begin = Piece::ToolBegin { index, id, name: name.to_owned() };
    let more = arguments.iter().map(|&json| Piece::ToolArguments { index, json: json.to_owned() });
    let pieces = std::iter::once(begin).chain(more).chain([Piece::ToolEnd { index }]);
    pieces.map(piece).collect()
}

fn end(reason: Finish, stop_text: Option<&str>) -> Update {
    let usage = Usage {
        prompt_tokens: 10,
        cached_tokens: 4,
        completion_tokens: 7,
        reasoning_tokens: 2,
        ..Usage::default()
    };
    Update::Finished(Ending { reason, stop_text: stop_text.map(str::to_owned), usage })
}

fn events(updates: Vec<Update>) -> (Vec<Event>, Value) {
    events_of(reply(), updates)
}

fn events_of(mut reply: Reply, updates: Vec<Update>) -> (Vec<Event>, Value) {
    let mut events = reply.begin();
    events.extend(updates.into_iter().flat_map(|update| reply.take(update)));
    (events, reply.whole())
}

/// One line an event: what is where.
fn outline(events: &[Event]) -> Vec<String> {
    let line = |(name, data): &Event| {
        assert_eq!(data["type"], *name, "the name of an event is its type");
        let index = data["index"].as_u64().map(|index| format!(" {index}")).unwrap_or_default();
        let kind = data["delta"]["type"].as_str().or(data["content_block"]["type"].as_str());
        let texts = ["text", "thinking", "partial_json", "signature", "stop_reason"];
        let text = texts.iter().find_map(|key| data["delta"][key].as_str());
        let text = text.map(|text| format!(" {text:?}")).unwrap_or_default();
        let kind = kind.map(|kind| format!(" {kind}")).unwrap_or_default();
        format!("{name}{index}{kind}{text}")
    };
    events.iter().map(line).collect()
}

#[track_caller]
fn check(updates: Vec<Update>, expect: &[&str], content: &Value) {
    check_of(reply(), updates, expect, content);
}

#[track_caller]
fn check_of(reply: Reply, updates: Vec<Update>, expect: &[&str], content: &Value) {
    let (events, whole) = events_of(reply, updates);
    let outline = outline(&events);
    assert_eq!(outline[..2], ["message_start", "ping"]);
    assert_eq!(outline[2..], *expect);
    assert_eq!(whole["content"], *content);
}

#[test]
fn an_empty_answer_has_no_blocks() {
    check(
        vec![say(""), think(""), end(Finish::Stop, None)],
        &["message_delta \"end_turn\"", "message_stop"],
        &json!([]),
    );
}

#[test]
fn thinking_is_signed_and_closed_before_text() {
    check(
        vec![think("a"), think("b"), say("c"), say("d"), end(Finish::Length, None)],
        &[
            "content_block_start 0 thinking",
            "content_block_delta 0 thinking_delta \"a\"",
            "content_block_delta 0 thinking_delta \"b\"",
            "content_block_delta 0 signature_delta \"millstream\"",
            "content_block_stop 0",
            "content_block_start 1 text",
            "content_block_delta 1 text_delta \"c\"",
            "content_block_delta 1 text_delta \"d\"",
            "content_block_stop 1",
            "message_delta \"max_tokens\"",
            "message_stop",
        ],
        &json!([{"type": "thinking", "thinking": "ab", "signature": "millstream"}, {"type": "text", "text": "cd"}]),
    );
}

#[test]
fn thinking_that_is_not_shown_is_signed_all_the_same() {
    let reply = || Reply { shows_thinking: false, ..reply() };
    let updates = vec![think("a"), think("b"), say("c"), think("d"), end(Finish::Stop, None)];
    let nothing = json!({"type": "thinking", "thinking": "", "signature": "millstream"});
    check_of(
        reply(),
        updates.clone(),
        &[
            "content_block_start 0 thinking",
            "content_block_delta 0 signature_delta \"millstream\"",
            "content_block_stop 0",
            "content_block_start 1 text",
            "content_block_delta 1 text_delta \"c\"",
            "content_block_stop 1",
            "content_block_start 2 thinking",
            "content_block_delta 2 signature_delta \"millstream\"",
            "content_block_stop 2",
            "message_delta \"end_turn\"",
            "message_stop",
        ],
        &json!([nothing, {"type": "text", "text": "c"}, nothing]),
    );
    // It is counted, shown or not.
    let (events, whole) = events_of(reply(), updates);
    assert_eq!(whole["usage"]["output_tokens_details"]["thinking_tokens"], 2);
    let begun = json!({"type": "thinking", "thinking": "", "signature": ""});
    assert_eq!(events[2].1["content_block"], begun);
}

#[test]
fn each_tool_is_a_block_of_its_own() {
    let mut updates = vec![say("see")];
    updates.extend(call(0, "f", &["{\"x\"", ": 1}"]));
    updates.extend(call(1, "g", &[]));
    updates.push(say("done"));
    updates.push(end(Finish::ToolCalls, None));
    check(
        updates,
        &[
            "content_block_start 0 text",
            "content_block_delta 0 text_delta \"see\"",
            "content_block_stop 0",
            "content_block_start 1 tool_use",
            "content_block_delta 1 input_json_delta \"{\\\"x\\\"\"",
            "content_block_delta 1 input_json_delta \": 1}\"",
            "content_block_stop 1",
            "content_block_start 2 tool_use",
            "content_block_stop 2",
            "content_block_start 3 text",
            "content_block_delta 3 text_delta \"done\"",
            "content_block_stop 3",
            "message_delta \"tool_use\"",
            "message_stop",
        ],
        &json!([
            {"type": "text", "text": "see"},
            {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "toolu_1", "name": "g", "input": {}},
            {"type": "text", "text": "done"},
        ]),
    );
}

#[test]
fn a_call_that_is_cut_off_is_closed_and_keeps_what_was_whole() {
    let begin =
        Piece::ToolBegin { index: 0, id: Some("functions.f:0".to_owned()), name: "f".to_owned() };
    let some = Piece::ToolArguments { index: 0, json: "{\"x\": [1], \"y\": \"ab".to_owned() };
    check(
        vec![piece(begin), piece(some), end(Finish::Length, None)],
        &[
            "content_block_start 0 tool_use",
            "content_block_delta 0 input_json_delta \"{\\\"x\\\": [1], \\\"y\\\": \\\"ab\"",
            "content_block_stop 0",
            "message_delta \"max_tokens\"",
            "message_stop",
        ],
        // A model's own id is kept.
        &json!([{"type": "tool_use", "id": "functions.f:0", "name": "f", "input": {"x": [1]}}]),
    );
}

#[test]
fn the_wire_is_as_clients_expect() {
    let (events, whole) = events(vec![say("hi"), end(Finish::Stop, Some("END"))]);
    let usage = json!({
        "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
        "output_tokens": 7, "output_tokens_details": {"thinking_tokens": 2},
    });
    let before = json!({
        "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0},
    });
    let expect: Vec<Event> = vec![
        (
            "message_start",
            json!({"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
                "stop_reason": null, "stop_sequence": null, "usage": before,
            }}),
        ),
        ("ping", json!({"type": "ping"})),
        (
            "content_block_start",
            json!({"type": "content_block_start", "index": 0,
                   "content_block": {"type": "text", "text": ""}}),
        ),
        (
            "content_block_delta",
            json!({"type": "content_block_delta", "index": 0,
                   "delta": {"type": "text_delta", "text": "hi"}}),
        ),
        ("content_block_stop", json!({"type": "content_block_stop", "index": 0})),
        (
            "message_delta",
            json!({"type": "message_delta",
                   "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}, "usage": usage}),
        ),
        ("message_stop", json!({"type": "message_stop"})),
    ];
    assert_eq!(events, expect);
    assert_eq!(
        whole,
        json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
            "content": [{"type": "text", "text": "hi"}],
            "stop_reason": "stop_sequence", "stop_sequence": "END", "usage": usage,
        })
    );
}

#[test]
fn a_failure_is_an_event() {
    let error = ApiError::unavailable("shutting_down", "the server is shutting down", 5);
    let last = json!({"type": "error",
                      "error": {"type": "overloaded_error", "message": "the server is shutting down"}});
    assert_eq!(reply().fail(error), [("error", last)]);
}

/// Updates of one kind may come cut anywhere.
fn cut(updates: Vec<Update>, at: &[usize]) -> Vec<Update> {
    let mut at = at.iter().copied().cycle();
    let mut pieces = move |text: &str| {
        let characters: Vec<char> = text.chars().collect();
        let middle = at.next().unwrap_or(0) % (characters.len() + 1);
        let (left, right) = characters.split_at(middle);
        [left.iter().collect::<String>(), right.iter().collect()]
    };
    updates
        .into_iter()
        .flat_map(|update| match update {
            Update::Piece(Piece::Reasoning(text), _) => {
                pieces(&text).map(|text| think(&text)).to_vec()
            }
            Update::Piece(Piece::Content(text), _) => pieces(&text).map(|text| say(&text)).to_vec(),
            Update::Piece(Piece::ToolArguments { index, json }, _) => {
                pieces(&json).map(|json| piece(Piece::ToolArguments { index, json })).to_vec()
            }
            update => vec![update],
        })
        .collect()
}

/// Events with neighbouring deltas of one block joined.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::new();
    for (name, data) in events {
        let key = ["text", "thinking", "partial_json"]
            .into_iter()
            .find(|key| name == "content_block_delta" && data["delta"][key].is_string());
        if let Some(key) = key {
            if data["delta"][key] == "" {
                continue;
            }
            if let Some((_, last)) = joined.last_mut()
                && let (Some(before), Some(more)) =
                    (last["delta"][key].as_str(), data["delta"][key].as_str())
            {
                last["delta"][key] = format!("{before}{more}").into();
                continue;
            }
        }
        joined.push((name, data));
    }
    joined
}

proptest! {
    #[test]
    fn blocks_do_not_depend_on_how_parts_are_cut(
        kinds in prop::collection::vec((0usize..3, "[a-zäß]{0,6}"), 0..8),
        at in prop::collection::vec(0usize..7, 1..9),
    ) {
        let mut updates = Vec::new();
        for (index, (kind, text)) in kinds.into_iter().enumerate() {
            match kind {
                0 => updates.push(think(&text)),
                1 => updates.push(say(&text)),
                _ => updates.extend(call(index, "f", &[&format!("{{\"x\": {text:?}}}")])),
            }
        }
        updates.push(end(Finish::Stop, None));
        let (whole_events, whole) = events(updates.clone());
        let (cut_events, cut_whole) = events(cut(updates, &at));
        prop_assert_eq!(&whole, &cut_whole);
        prop_assert_eq!(joined(whole_events.clone()), joined(cut_events));
        // What starts stops, in order, and nothing happens outside.
        let mut open = None;
        let mut next = 0;
        for (name, data) in &whole_events {
            match *name {
                "content_block_start" => {
                    prop_assert_eq!(open, None);
                    prop_assert_eq!(data["index"].as_u64(), Some(next));
                    open = Some(next);
                    next += 1;
                }
                "content_block_delta" => prop_assert_eq!(data["index"].as_u64(), open),
                "content_block_stop" => {
                    prop_assert_eq!(data["index"].as_u64(), open);
                    open = None;
                }
                _ => prop_assert_eq!(open, None),
            }
        }
        prop_assert_eq!(whole["content"].as_array().map(Vec::len), Some(next as usize));
    }
}
