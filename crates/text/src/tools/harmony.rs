//! gpt-oss: an answer is a row of messages, each with a header of role, recipient and channel, and a body.
//!
//! `<|channel|>analysis<|message|>` is thinking, `final` the answer, a message `to=functions.NAME` a call whose
//! body is its arguments. A body to any other recipient is shown as text, and headers never are. The prompt ends
//! inside the first header.

use super::Tool;
use super::json_body::{Body, JsonBody};
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, Scan, head, next, scan};

pub(super) const MARKERS: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// What a header can begin with.
const HEADS: [&str; 5] = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "to="];
/// What ends a body; from index 3 on it is the next header.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between messages.
    #[default]
    Between,
    Header,
    Reasoning,
    Text,
    Call,
}

/// Reads the format.
#[derive(Debug, Default)]
pub(super) struct Harmony {
    state: State,
    body: JsonBody,
}

impl Reader for Harmony {
    fn openers(&self) -> &'static [&'static str] {
        &[]
    }

    fn is_always_open(&self) -> bool {
        true
    }

    fn open(&mut self, _opener: &str) {}

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Between => {
                let markers = [&HEADS[..], &ENDS[..3]].concat();
                match next(text, &markers, last, &[]) {
                    Next::Is { marker, end } if marker >= HEADS.len() => Step::Take(end),
                    Next::Is { .. } => self.go(State::Header, 0),
                    Next::Open => Step::Wait,
                    Next::Other if text.is_empty() => Step::Wait,
                    Next::Other => self.go(State::Text, 0),
                }
            }
            State::Header => match head(text, &["<|message|>"]) {
                Head::Ends { at, .. } => {
                    self.state = self.message(&text[..at], calls);
                    Step::Take(at + "<|message|>".len())
                }
                // A header without a body says nothing.
                Head::Open if last && !text.is_empty() => Step::Take(text.len()),
                Head::Open => Step::Wait,
                // No header after all; what it began with is still no word.
                Head::Endless => match next(text, &HEADS, last, &[]) {
                    Next::Is { end, .. } => self.go(State::Text, end),
                    Next::Open | Next::Other => self.go(State::Text, 0),
                },
            },
            State::Reasoning | State::Text => {
                let (limit, end) = match scan(text, &ENDS, last) {
                    Scan::Found { at, marker } if marker < 3 => (at, Some(at + ENDS[marker].len())),
                    Scan::Found { at, .. } => (at, Some(at)),
                    Scan::Missing { safe: 0 } => return Step::Wait,
                    Scan::Missing { safe } => (safe, None),
                };
                match self.state {
                    State::Reasoning => calls.reasoning(&text[..limit]),
                    _ => calls.text(&text[..limit]),
                }
                match end {
                    Some(end) => self.go(State::Between, end),
                    None => Step::Take(limit),
                }
            }
            State::Call => match self.body.read(text, last, &ENDS[..3], calls) {
                Body::Take(bytes) => Step::Take(bytes),
                Body::Wait => Step::Wait,
                Body::End(bytes) => self.go(State::Between, bytes),
            },
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        if self.state == State::Call && calls.is_open() {
            self.body.finish(calls);
        }
    }
}

impl Harmony {
    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }

    /// What the body of a message with this header is.
    fn message(&mut self, header: &str, calls: &mut Calls) -> State {
        let spaced = header.replace("<|", " <|").replace("|>", "|> ");
        let mut words = spaced.split_whitespace();
        let recipient = spaced.split_whitespace().find_map(|word| word.strip_prefix("to="));
        let channel = words.find(|word| *word == "<|channel|>").and_then(|_| words.next());
        let function = recipient.map(|name| name.strip_prefix("functions.").unwrap_or(name));
        match (function, channel) {
            (Some(function), _) if calls.begin(function, None) => {
                self.body = JsonBody::default();
                State::Call
            }
            (None, Some("analysis")) => State::Reasoning,
            _ => State::Text,
        }
    }
}

/// What stands before the words for the user.
pub(super) const FINAL: &str = "<|channel|>final<|message|>";

pub(super) fn layout() -> Layout {
    Layout { open: "", separator: "", close: "", is_single: true }
}

/// The grammar of one call; thinking may come before it.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let arguments = lark.json(&tool.parameters);
    let head =
        format!("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", tool.name);
    let (head, end) = (lark.literal(&head), lark.literal("<|call|>"));
    format!("analysis? {head} {arguments} ({end})?")
}

/// The rule that [`call`] names.
pub(super) fn analysis(lark: &mut Lark<'_>) -> String {
    let head = lark.literal("<|channel|>analysis<|message|>");
    let text = lark.text_until("<|end|><|start|>assistant");
    format!("analysis: {head} {text}")
}
