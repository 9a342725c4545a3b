//! Mistral: `[TOOL_CALLS]NAME[ARGS]{…}`, with `[CALL_ID]…` between in some; older models write one JSON list,
//! `[TOOL_CALLS][{"name": …, "arguments": {…}}]`.

use super::Tool;
use super::envelope::{Envelope, Progress};
use super::json_body::{Body, JsonBody};
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, head, next};

pub(super) const MARKERS: &[&str] = &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"];

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Name,
    Id,
    Body,
    /// Between the objects of a list.
    List,
    Object,
}

/// Reads the format.
#[derive(Debug, Default)]
pub(super) struct Mistral {
    state: State,
    name: String,
    body: JsonBody,
    envelope: Envelope,
}

impl Reader for Mistral {
    fn openers(&self) -> &'static [&'static str] {
        &["[TOOL_CALLS]"]
    }

    fn open(&mut self, _opener: &str) {
        *self = Self::default();
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Start => match next(text, &["[", "{"], last, &[]) {
                Next::Is { marker: 0, end } => self.go(State::List, end),
                Next::Is { end, .. } => self.go(State::Object, end - 1),
                Next::Open => Step::Wait,
                Next::Other => self.go(State::Name, 0),
            },
            State::Name => match head(text, &["[CALL_ID]", "[ARGS]", "{"]) {
                Head::Ends { at, marker: 0 } if calls.has(text[..at].trim()) => {
                    text[..at].trim().clone_into(&mut self.name);
                    self.go(State::Id, at + "[CALL_ID]".len())
                }
                Head::Ends { at, marker } if marker > 0 && calls.begin(text[..at].trim(), None) => {
                    self.go(State::Body, at)
                }
                Head::Ends { at, .. } => Step::Refuse(at),
                Head::Open => Step::Wait,
                Head::Endless => Step::Refuse(0),
            },
            State::Id => match head(text, &["[ARGS]", "{"]) {
                Head::Ends { at, .. } if calls.begin(&self.name, Some(text[..at].trim())) => {
                    self.go(State::Body, at)
                }
                Head::Ends { .. } | Head::Endless => Step::Refuse(0),
                Head::Open => Step::Wait,
            },
            State::Body => match self.body.read(text, last, &[], calls) {
                Body::Take(bytes) => Step::Take(bytes),
                Body::Wait => Step::Wait,
                Body::End(bytes) => Step::Close(bytes),
            },
            State::List => match next(text, &["]", "{"], last, &[',']) {
                Next::Is { marker: 0, end } => Step::Close(end),
                Next::Is { end, .. } => {
                    self.envelope = Envelope::default();
                    self.go(State::Object, end - 1)
                }
                Next::Open => Step::Wait,
                Next::Other => Step::Close(0),
            },
            State::Object => {
                for (at, c) in text.char_indices() {
                    match self.envelope.push(c, calls) {
                        Progress::More => {}
                        Progress::Done => return self.go(State::List, at + c.len_utf8()),
                        Progress::Refused => return Step::Refuse(at),
                        Progress::Broken => return Step::Close(at),
                    }
                }
                if text.is_empty() { Step::Wait } else { Step::Take(text.len()) }
            }
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        match self.state {
            State::Body => self.body.finish(calls),
            _ => self.envelope.finish(calls),
        }
    }
}

impl Mistral {
    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }
}

pub(super) fn layout(lark: &Lark<'_>) -> Layout {
    if lark.is_special("[ARGS]") {
        Layout { open: "", separator: "", close: "", is_single: false }
    } else {
        Layout { open: "[TOOL_CALLS][", separator: ", ", close: "]", is_single: false }
    }
}

/// The grammar of one call: with `[ARGS]` where the vocabulary has it, an object of a list otherwise.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let arguments = lark.json(&tool.parameters);
    if lark.is_special("[ARGS]") {
        let head = lark.literal(&format!("[TOOL_CALLS]{}[ARGS]", tool.name));
        return format!("{head} {arguments}");
    }
    let name = serde_json::Value::from(tool.name.as_str());
    let head = lark.literal(&format!("{{\"name\": {name}, \"arguments\": "));
    format!("{head} {arguments} {}", lark.literal("}"))
}
