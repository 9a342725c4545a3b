//! Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, one or more
//! in a section. `functions.NAME:0` is the call's id, and the model expects it back with the result.

use super::Tool;
use super::json_body::{Body, JsonBody};
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, head, next};

pub(super) const MARKERS: &[&str] = &[SECTION, SECTION_END, CALL, CALL_END, ARGUMENTS];

const SECTION: &str = "<|tool_calls_section_begin|>";
const SECTION_END: &str = "<|tool_calls_section_end|>";
const CALL: &str = "<|tool_call_begin|>";
const CALL_END: &str = "<|tool_call_end|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between calls.
    #[default]
    Section,
    Head,
    Body,
}

/// Reads the format.
#[derive(Debug, Default)]
pub(super) struct Kimi {
    state: State,
    body: JsonBody,
}

impl Reader for Kimi {
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
            State::Head => match head(text, &[ARGUMENTS, CALL_END]) {
                Head::Ends { at, marker: 0 } => {
                    let id = text[..at].trim();
                    let end = at + ARGUMENTS.len();
                    if !calls.begin(name(id), Some(id)) {
                        return Step::Refuse(end);
                    }
                    self.body = JsonBody::default();
                    self.go(State::Body, end)
                }
                Head::Ends { at, .. } => Step::Refuse(at),
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

impl Kimi {
    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }
}

/// `functions.NAME:0` → `NAME`.
fn name(id: &str) -> &str {
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, count)) if count.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

pub(super) fn layout() -> Layout {
    Layout { open: SECTION, separator: "", close: SECTION_END, is_single: false }
}

/// The grammar of one call.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let arguments = lark.json(&tool.parameters);
    let head = lark.literal(&format!("{CALL}functions.{}:", tool.name));
    let (middle, end) = (lark.literal(ARGUMENTS), lark.literal(CALL_END));
    format!("{head} /[0-9]{{1,3}}/ {middle} {arguments} {end}")
}
