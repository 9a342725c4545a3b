//! DeepSeek V3, R1 and V3.1: calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`.
//!
//! V3.1 writes `NAME<｜tool▁sep｜>{…}`; before it was `function<｜tool▁sep｜>NAME`, then the arguments in a
//! fence of three backticks. V3.2 and later: see `invoke`.

use super::Tool;
use super::json_body::{Body, JsonBody};
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, head, next};

pub(super) const MARKERS: &[&str] = &[SECTION, SECTION_END, CALL, CALL_END, SEPARATOR];

const SECTION: &str = "<｜tool▁calls▁begin｜>";
const SECTION_END: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between calls.
    #[default]
    Section,
    /// Before the separator.
    Head,
    /// A name on a line of its own.
    Name,
    Body,
}

/// Reads the format.
#[derive(Debug, Default)]
pub(super) struct DeepSeek {
    state: State,
    body: JsonBody,
}

impl Reader for DeepSeek {
    fn openers(&self) -> &'static [&'static str] {
        &[SECTION, CALL]
    }

    fn open(&mut self, opener: &str) {
        self.state = if opener == CALL { State::Head } else { State::Section };
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Section => match next(text, &[CALL, SECTION_END], last, &[]) {
                Next::Is { marker: 0, end } => self.go(State::Head, end),
                Next::Is { end, .. } => Step::Close(end),
                Next::Open => Step::Wait,
                Next::Other => Step::Close(0),
            },
            State::Head => match head(text, &[SEPARATOR]) {
                Head::Ends { at, .. } => {
                    let (name, end) = (text[..at].trim(), at + SEPARATOR.len());
                    if name == "function" && !calls.has(name) {
                        return self.go(State::Name, end);
                    }
                    self.begin(name, end, calls)
                }
                Head::Open => Step::Wait,
                Head::Endless => Step::Refuse(0),
            },
            State::Name => match head(text, &["\n", "```", CALL_END]) {
                Head::Ends { at, .. } => self.begin(text[..at].trim(), at, calls),
                Head::Open => Step::Wait,
                Head::Endless => Step::Refuse(0),
            },
            State::Body => match self.body.read(text, last, &[CALL_END], calls) {
                Body::Take(bytes) => Step::Take(bytes),
                Body::Wait => Step::Wait,
                Body::End(bytes) => self.go(State::Section, bytes),
            },
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        self.body.finish(calls);
    }
}

impl DeepSeek {
    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }

    fn begin(&mut self, name: &str, bytes: usize, calls: &mut Calls) -> Step {
        if !calls.begin(name, None) {
            return Step::Refuse(bytes);
        }
        self.body = JsonBody::default();
        self.go(State::Body, bytes)
    }
}

pub(super) fn layout() -> Layout {
    Layout { open: SECTION, separator: "", close: SECTION_END, is_single: false }
}

/// The grammar of one call, in both spellings: the model knows its own.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let arguments = lark.json(&tool.parameters);
    let new = lark.literal(&format!("{CALL}{}{SEPARATOR}", tool.name));
    let old = lark.literal(&format!("{CALL}function{SEPARATOR}{}\n```json\n", tool.name));
    let (new_end, old_end) = (lark.literal(CALL_END), lark.literal(&format!("\n```{CALL_END}")));
    format!("({new} {arguments} {new_end} | {old} {arguments} {old_end})")
}
