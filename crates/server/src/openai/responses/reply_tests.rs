//! Updates of an answer in, events out: their order, their nesting, and the response they build.

use engine::Usage;
use engine::session::{AnswerRequest, Input};
use proptest::prelude::*;

use super::*;
use crate::fields::Fields;
use crate::openai::fixtures::logprob;

fn offers() -> Offers {
    let body = json!({"tools": [
        {"type": "function", "name": "f", "parameters": {}},
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "mcp__a", "tools": [{"type": "function", "name": "b"}]},
    ]});
    Offers::read(&Fields::of_body(&body).unwrap(), &mut AnswerRequest::new(Input::Chat(Vec::new())))
        .unwrap()
}

fn reply(extras: Extras) -> Reply {
    let echo = Map::from_iter([("metadata".to_owned(), json!({"k": "v"}))]);
    let head = ResponseHead { suffix: "1".to_owned(), created: 7, model: "m".to_owned(), echo };
    Reply::new(head, offers(), extras)
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

fn end(reason: Finish) -> Update {
    let usage = Usage {
        prompt_tokens: 10,
        cached_tokens: 4,
        completion_tokens: 7,
        reasoning_tokens: 2,
        accepted_drafts: 3,
        rejected_drafts: 1,
        ..Usage::default()
    };
    Update::Finished(Ending { reason, stop_text: None, usage })
}

fn events(extras: Extras, updates: Vec<Update>) -> (Vec<Event>, Value) {
    events_until(extras, updates, None)
}

/// The same of an answer that may end with an error.
fn events_until(
    extras: Extras,
    updates: Vec<Update>,
    error: Option<ApiError>,
) -> (Vec<Event>, Value) {
    let mut reply = reply(extras);
    let mut events = reply.begin();
    events.extend(updates.into_iter().flat_map(|update| reply.take(update)));
    events.extend(error.into_iter().flat_map(|error| reply.fail(error)));
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!(data["type"], *name, "the name of an event is its type");
        assert_eq!(data["sequence_number"], number);
    }
    (events, reply.whole())
}

/// One line an event: what is where.
fn outline(events: &[Event]) -> Vec<String> {
    let line = |(name, data): &Event| {
        let name = name.strip_prefix("response.").unwrap_or(name);
        let index =
            data["output_index"].as_u64().map(|index| format!(" {index}")).unwrap_or_default();
        let kind = data["item"]["type"].as_str().or(data["part"]["type"].as_str());
        let kind = kind.map(|kind| format!(" {kind}")).unwrap_or_default();
        let texts = ["delta", "text", "arguments", "input"];
        let text = texts.iter().find_map(|key| data[key].as_str());
        let text = text.map(|text| format!(" {text}")).unwrap_or_default();
        format!("{name}{index}{kind}{text}")
    };
    events.iter().map(line).collect()
}

#[track_caller]
fn check(updates: Vec<Update>, expect: &[&str], output: &Value) {
    let (events, whole) = events(Extras::default(), updates);
    let outline = outline(&events);
    assert_eq!(outline[..2], ["created", "in_progress"]);
    assert_eq!(outline[2..], *expect);
    assert_eq!(whole["output"], *output);
    // The last event has all of it.
    assert_eq!(events.last().unwrap().1["response"], whole);
}

#[test]
fn an_empty_answer_has_no_items() {
    check(vec![say(""), think(""), end(Finish::Stop)], &["completed"], &json!([]));
}

#[test]
fn thinking_is_done_before_the_message_is_added() {
    check(
        vec![think("a"), think("b"), say("c"), say("d"), end(Finish::Length)],
        &[
            "output_item.added 0 reasoning",
            "content_part.added 0 reasoning_text",
            "reasoning_text.delta 0 a",
            "reasoning_text.delta 0 b",
            "reasoning_text.done 0 ab",
            "content_part.done 0 reasoning_text",
            "output_item.done 0 reasoning",
            "output_item.added 1 message",
            "content_part.added 1 output_text",
            "output_text.delta 1 c",
            "output_text.delta 1 d",
            "output_text.done 1 cd",
            "content_part.done 1 output_text",
            "output_item.done 1 message",
            "incomplete",
        ],
        &json!([
            {"id": "rs_100", "type": "reasoning", "summary": [],
             "content": [{"type": "reasoning_text", "text": "ab"}]},
            {"id": "msg_101", "type": "message", "role": "assistant", "status": "incomplete",
             "content": [{"type": "output_text", "text": "cd", "annotations": []}]},
        ]),
    );
}

#[test]
fn thinking_is_its_own_summary_if_one_is_requested() {
    let extras = Extras { summary: true, thinking: true, ..Extras::default() };
    let (events, whole) = events(extras, vec![think("a"), think("b"), end(Finish::Stop)]);
    assert_eq!(
        outline(&events)[2..],
        [
            "output_item.added 0 reasoning",
            "reasoning_summary_part.added 0 summary_text",
            "reasoning_summary_text.delta 0 a",
            "reasoning_summary_text.delta 0 b",
            "reasoning_summary_text.done 0 ab",
            "reasoning_summary_part.done 0 summary_text",
            "output_item.done 0 reasoning",
            "completed",
        ]
    );
    for (name, data) in &events[3..8] {
        assert_eq!(
            (&data["summary_index"], data.get("content_index")),
            (&json!(0), None),
            "{name}"
        );
    }
    assert_eq!(
        whole["output"][0],
        json!({"id": "rs_100", "type": "reasoning", "content": [], "encrypted_content": "millstream:ab",
               "summary": [{"type": "summary_text", "text": "ab"}]})
    );
}

#[test]
fn each_call_is_an_item_of_its_own() {
    let mut updates = vec![say("see")];
    updates.extend(call(0, "f", &["{\"x\"", ": 1}"]));
    updates.extend(call(1, "mcp__a__b", &[]));
    updates.extend(call(2, "unheard_of", &["{}"]));
    updates.push(end(Finish::ToolCalls));
    check(
        updates,
        &[
            "output_item.added 0 message",
            "content_part.added 0 output_text",
            "output_text.delta 0 see",
            "output_text.done 0 see",
            "content_part.done 0 output_text",
            "output_item.done 0 message",
            "output_item.added 1 function_call",
            "function_call_arguments.delta 1 {\"x\"",
            "function_call_arguments.delta 1 : 1}",
            "function_call_arguments.done 1 {\"x\": 1}",
            "output_item.done 1 function_call",
            "output_item.added 2 function_call",
            "function_call_arguments.delta 2 {}",
            "function_call_arguments.done 2 {}",
            "output_item.done 2 function_call",
            "output_item.added 3 function_call",
            "function_call_arguments.delta 3 {}",
            "function_call_arguments.done 3 {}",
            "output_item.done 3 function_call",
            "completed",
        ],
        &json!([
            {"id": "msg_100", "type": "message", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "see", "annotations": []}]},
            {"id": "fc_101", "type": "function_call", "status": "completed", "call_id": "call_0",
             "name": "f", "arguments": "{\"x\": 1}"},
            {"id": "fc_102", "type": "function_call", "status": "completed", "call_id": "call_1",
             "name": "b", "arguments": "{}", "namespace": "mcp__a"},
            {"id": "fc_103", "type": "function_call", "status": "completed", "call_id": "call_2",
             "name": "unheard_of", "arguments": "{}"},
        ]),
    );
}

#[test]
fn custom_tools_get_text() {
    let mut updates = call(0, "apply_patch", &["{\"input\": \"*** Be", "gin\\n\"", "}"]);
    updates.push(end(Finish::ToolCalls));
    check(
        updates,
        &[
            "output_item.added 0 custom_tool_call",
            "custom_tool_call_input.delta 0 *** Be",
            "custom_tool_call_input.delta 0 gin\n",
            "custom_tool_call_input.done 0 *** Begin\n",
            "output_item.done 0 custom_tool_call",
            "completed",
        ],
        &json!([{"id": "ctc_100", "type": "custom_tool_call", "status": "completed", "call_id": "call_0",
                 "name": "apply_patch", "input": "*** Begin\n"}]),
    );
}

#[test]
fn a_call_that_is_cut_off_is_incomplete() {
    let mut updates = call(0, "f", &["{\"x\": \"ab"]);
    updates.pop();
    updates.push(end(Finish::Length));
    check(
        updates,
        &[
            "output_item.added 0 function_call",
            "function_call_arguments.delta 0 {\"x\": \"ab",
            "function_call_arguments.done 0 {\"x\": \"ab",
            "output_item.done 0 function_call",
            "incomplete",
        ],
        &json!([{"id": "fc_100", "type": "function_call", "status": "incomplete", "call_id": "call_0",
                 "name": "f", "arguments": "{\"x\": \"ab"}]),
    );
}

#[test]
fn the_wire_is_as_clients_expect() {
    let (events, whole) = events(Extras::default(), vec![say("hi"), end(Finish::Stop)]);
    let response = |status: &str, output: Value, usage: Value| {
        json!({
            "id": "resp_1", "object": "response", "created_at": 7, "status": status, "model": "m",
            "output": output, "error": null, "incomplete_details": null, "usage": usage,
            "metadata": {"k": "v"},
        })
    };
    let begun = response("in_progress", json!([]), json!(null));
    let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
    let item = |status: &str, content: Value| {
        json!({"id": "msg_100", "type": "message", "role": "assistant", "status": status,
               "content": content})
    };
    let done = item("completed", json!([part("hi")]));
    let usage = json!({
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 2, "accepted_prediction_tokens": 3,
                                                      "rejected_prediction_tokens": 1}, "total_tokens": 17,
    });
    let completed = response("completed", json!([done]), usage);
    let place = json!({"item_id": "msg_100", "output_index": 0, "content_index": 0});
    let expect = [
        ("response.created", json!({"response": begun})),
        ("response.in_progress", json!({"response": begun})),
        (
            "response.output_item.added",
            json!({"output_index": 0, "item": item("in_progress", json!([]))}),
        ),
        ("response.content_part.added", with(&place, &json!({"part": part("")}))),
        ("response.output_text.delta", with(&place, &json!({"delta": "hi", "logprobs": []}))),
        ("response.output_text.done", with(&place, &json!({"text": "hi", "logprobs": []}))),
        ("response.content_part.done", with(&place, &json!({"part": part("hi")}))),
        ("response.output_item.done", json!({"output_index": 0, "item": done})),
        ("response.completed", json!({"response": completed})),
    ];
    let expect: Vec<Event> = expect
        .into_iter()
        .enumerate()
        .map(|(number, (name, data))| {
            (name, with(&json!({"type": name, "sequence_number": number}), &data))
        })
        .collect();
    assert_eq!(events, expect);
    assert_eq!(whole, completed);
}

fn with(value: &Value, more: &Value) -> Value {
    let mut joined = value.clone();
    joined.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    joined
}

#[test]
fn thinking_can_be_handed_back_by_clients_that_keep_secrets_only() {
    let extras = Extras { thinking: true, ..Extras::default() };
    let (_, whole) = events(extras, vec![think("hm"), end(Finish::Stop)]);
    assert_eq!(whole["output"][0]["encrypted_content"], "millstream:hm");
}

#[test]
fn tokens_go_with_their_text() {
    let token = |text: &str, bytes: &[u8]| {
        Update::Piece(Piece::Content(text.to_owned()), vec![logprob(bytes)])
    };
    let extras = Extras { logprobs: true, ..Extras::default() };
    // Half a character, its other half, and a token that ends the answer.
    let updates = vec![token("", b"\xc3"), token("ä", b"\xa4"), token("", b""), end(Finish::Stop)];
    let (events, whole) = events(extras, updates);
    let counts: Vec<usize> = events
        .iter()
        .filter(|(name, _)| *name == "response.output_text.delta")
        .map(|(_, data)| data["logprobs"].as_array().unwrap().len())
        .collect();
    assert_eq!(counts, [2, 1]);
    let part = &whole["output"][0]["content"][0];
    assert_eq!((&part["text"], part["logprobs"].as_array().unwrap().len()), (&json!("ä"), 3));
    assert_eq!(part["logprobs"][0]["bytes"], json!([0xc3]));
}

#[test]
fn a_failure_is_reported_twice() {
    let error = ApiError::unavailable("shutting_down", "the server is shutting down", 5);
    let (events, whole) = events_until(Extras::default(), vec![say("hi")], Some(error));
    let [.., (first, fault), (second, failed)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((*first, *second), ("error", "response.failed"));
    assert_eq!(
        (&fault["code"], &fault["message"], &fault["param"]),
        (&json!("shutting_down"), &json!("the server is shutting down"), &json!(null))
    );
    let expect = json!({"code": "server_error", "message": "the server is shutting down"});
    assert_eq!((&whole["status"], &whole["error"]), (&json!("failed"), &expect));
    assert_eq!(failed["response"], whole);
    assert_eq!(whole["output"][0]["content"][0]["text"], "hi");
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

/// Events with neighbouring deltas joined, and without their numbers.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::new();
    for (name, mut data) in events {
        data["sequence_number"].take();
        match (joined.last_mut(), data["delta"].as_str()) {
            (Some((last, before)), Some(more)) if *last == name => {
                before["delta"] = format!("{}{more}", before["delta"].as_str().unwrap()).into();
            }
            _ => joined.push((name, data)),
        }
    }
    joined
}

proptest! {
    #[test]
    fn items_do_not_depend_on_how_parts_are_cut(
        kinds in prop::collection::vec((0usize..4, "[a-zäß]{0,6}"), 0..8),
        at in prop::collection::vec(0usize..15, 1..9),
    ) {
        let mut updates = Vec::new();
        for (index, (kind, text)) in kinds.into_iter().enumerate() {
            match kind {
                0 => updates.push(think(&text)),
                1 => updates.push(say(&text)),
                2 => updates.extend(call(index, "f", &[&json!({"x": text}).to_string()])),
                _ => updates.extend(call(index, "apply_patch", &[&json!({"input": text}).to_string()])),
            }
        }
        updates.push(end(Finish::Stop));
        let (whole_events, whole) = events(Extras::default(), updates.clone());
        let (cut_events, cut_whole) = events(Extras::default(), cut(updates, &at));
        prop_assert_eq!(&whole, &cut_whole);
        prop_assert_eq!(joined(whole_events.clone()), joined(cut_events));
        // What is added is done, in order, and nothing happens outside.
        let mut open = None;
        let mut next = 0;
        for (name, data) in &whole_events {
            match *name {
                "response.output_item.added" => {
                    prop_assert_eq!(open, None);
                    prop_assert_eq!(data["output_index"].as_u64(), Some(next));
                    open = Some(next);
                    next += 1;
                }
                "response.output_item.done" => {
                    prop_assert_eq!(data["output_index"].as_u64(), open);
                    open = None;
                }
                _ => prop_assert_eq!(data["output_index"].as_u64(), open),
            }
        }
        prop_assert_eq!(whole["output"].as_array().map(Vec::len), Some(next as usize));
    }
}
