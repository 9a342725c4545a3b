//! One answer through a tool parser, whole and in pieces, with everything that must hold of any text.
//!
//! Shared by the ordinary tests and by the fuzz target.

use serde_json::{Value, json};
use text::Piece;
use text::tools::{Tool, ToolFormat, ToolParser};

/// Tools with arguments of every type.
pub fn tools() -> Vec<Tool> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "where": {"type": "object"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
            "any": {},
        },
        "required": ["city"],
    });
    let tool = |name: &str, parameters: Value| Tool {
        name: name.to_owned(),
        description: None,
        parameters,
        is_strict: false,
    };
    vec![tool("weather", weather), tool("now", json!({}))]
}

/// Parses `text` cut at these bytes.
pub fn parse(format: ToolFormat, tools: &[Tool], text: &str, cuts: &[usize]) -> Vec<Piece> {
    let mut cuts: Vec<usize> = cuts
        .iter()
        .copied()
        .filter(|&cut| cut <= text.len() && text.is_char_boundary(cut))
        .collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    let mut parser = ToolParser::new(format, tools);
    let mut events: Vec<Piece> =
        cuts.windows(2).flat_map(|pair| parser.push(&text[pair[0]..pair[1]])).collect();
    events.extend(parser.finish());
    merge(events)
}

/// Joins neighbours of a kind.
pub fn merge(events: Vec<Piece>) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::new();
    for event in events {
        match (merged.last_mut(), &event) {
            (Some(Piece::Content(before)), Piece::Content(text)) => before.push_str(text),
            (Some(Piece::Reasoning(before)), Piece::Reasoning(text)) => {
                before.push_str(text);
            }
            (
                Some(Piece::ToolArguments { json: before, index: one }),
                Piece::ToolArguments { json, index: other },
            ) if one == other => before.push_str(json),
            _ => merged.push(event),
        }
    }
    merged
}

/// What must hold of the events of any text: whole calls in order, arguments that are objects, nothing lost.
pub fn check_events(format: ToolFormat, text: &str, events: &[Piece]) {
    let mut open: Option<(usize, String)> = None;
    let mut count = 0;
    let mut words = String::new();
    for event in events {
        match event {
            Piece::Content(text) => {
                assert!(open.is_none(), "words inside a call: {events:?}");
                words.push_str(text);
            }
            Piece::Reasoning(_) => {
                assert!(open.is_none(), "thinking inside a call: {events:?}");
            }
            Piece::ToolBegin { index, name, .. } => {
                assert!(open.is_none() && *index == count, "calls out of order: {events:?}");
                assert!(
                    tools().iter().any(|tool| tool.name == *name),
                    "an unknown tool: {events:?}"
                );
                open = Some((*index, String::new()));
            }
            Piece::ToolArguments { index, json } => {
                let (current, arguments) = open.as_mut().expect("arguments of an open call");
                assert_eq!(current, index);
                arguments.push_str(json);
            }
            Piece::ToolEnd { index } => {
                let (current, arguments) = open.take().expect("the end of an open call");
                assert_eq!(current, *index);
                let value: Value = serde_json::from_str(&arguments)
                    .unwrap_or_else(|error| panic!("{error}: {arguments}"));
                assert!(value.is_object(), "{arguments}");
                count += 1;
            }
        }
    }
    assert!(open.is_none(), "a call without an end: {events:?}");
    if count == 0 && format != ToolFormat::Harmony {
        assert_eq!(words, text, "words were lost");
    }
}

/// What must hold where an answer is cut off: all that was said of calls is how the whole answer says it, up to there.
pub fn check_cut_off(format: ToolFormat, tools: &[Tool], text: &str, at: usize, whole: &[Piece]) {
    let mut parser = ToolParser::new(format, tools);
    let mut events = parser.push(&text[..at]);
    events.extend(parser.cut());
    let is_of_call = |event: &&Piece| !matches!(event, Piece::Content(_) | Piece::Reasoning(_));
    let mut whole = whole.iter().filter(is_of_call);
    let events = merge(events);
    for event in events.iter().filter(is_of_call) {
        let of_whole = whole.next();
        let is_begun = match (event, of_whole) {
            (
                Piece::ToolArguments { json, index },
                Some(Piece::ToolArguments { json: all, index: same }),
            ) => index == same && all.starts_with(json.as_str()),
            _ => false,
        };
        assert!(
            is_begun || Some(event) == of_whole,
            "{event:?}, not {of_whole:?}, cut off at {at} of {text:?}"
        );
    }
}

/// Any bytes: the first chooses the format, the second how the rest is cut.
pub fn answer(input: &[u8]) {
    let [format, step, rest @ ..] = input else { return };
    let format = ToolFormat::ALL[usize::from(*format) % ToolFormat::ALL.len()];
    let text = String::from_utf8_lossy(rest);
    let tools = tools();
    let whole = parse(format, &tools, &text, &[]);
    check_events(format, &text, &whole);
    let at = text.floor_char_boundary(text.len() * usize::from(*step) / 256);
    check_cut_off(format, &tools, &text, at, &whole);
    let step = 1 + usize::from(*step) % 16;
    let cuts: Vec<usize> = (0..text.len()).step_by(step).collect();
    assert_eq!(parse(format, &tools, &text, &cuts), whole, "cut every {step} bytes: {text:?}");
}
