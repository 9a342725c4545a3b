//! Llama 4 and LFM2: `[f(a=1, b="x"), g()]`, Python calls with named arguments, instead of an answer; LFM2 puts
//! `<|tool_call_start|>` and `<|tool_call_end|>` around them, and JSON objects are accepted in place of calls.

use super::Tool;
use super::envelope::{Envelope, Progress};
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{NAME_LIMIT_BYTES, Next, Scan, next, scan};
use super::transcode::{Notation, Token, Transcoder, push_string};

pub(super) const MARKERS: &[&str] = &[START, END];

const START: &str = "<|tool_call_start|>";
const END: &str = "<|tool_call_end|>";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// After the start marker.
    #[default]
    Start,
    /// Between calls.
    List,
    Name,
    /// Between arguments.
    Arguments,
    Key,
    Value,
    Object,
    /// After the list.
    After,
    /// A call was broken: all up to the end marker is dropped.
    Skip,
}

/// Reads the format.
#[derive(Debug)]
pub(super) struct Pythonic {
    state: State,
    has_marker: bool,
    has_arguments: bool,
    transcoder: Transcoder,
    envelope: Envelope,
}

impl Default for Pythonic {
    fn default() -> Self {
        Self {
            state: State::Start,
            has_marker: false,
            has_arguments: false,
            transcoder: Transcoder::new(Notation::Python),
            envelope: Envelope::default(),
        }
    }
}

impl Reader for Pythonic {
    fn openers(&self) -> &'static [&'static str] {
        &[START]
    }

    fn first_openers(&self) -> &'static [&'static str] {
        &["["]
    }

    fn open(&mut self, opener: &str) {
        *self = Self::default();
        self.has_marker = opener == START;
        self.state = if self.has_marker { State::Start } else { State::List };
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Start => match next(text, &["["], last, &[]) {
                Next::Is { end, .. } => self.go(State::List, end),
                Next::Open => Step::Wait,
                // One call without the brackets.
                Next::Other => self.go(State::List, 0),
            },
            State::List => match next(text, &["]", "{", END], last, &[',']) {
                Next::Is { marker: 0, end } => self.go(State::After, end),
                Next::Is { marker: 1, end } if self.has_marker => {
                    self.envelope = Envelope::default();
                    self.go(State::Object, end - 1)
                }
                Next::Is { marker: 2, end } => Step::Close(end),
                Next::Is { .. } => Step::Refuse(0),
                Next::Open => Step::Wait,
                Next::Other => self.go(State::Name, 0),
            },
            State::Name => {
                let start = text.len() - text.trim_start_matches([',', ' ', '\n', '\t']).len();
                match identifier(&text[start..], last) {
                    Some((name, '(')) if calls.begin(name, None) => {
                        self.has_arguments = false;
                        let end = start + name.len() + 1;
                        self.go(State::Arguments, end)
                    }
                    Some(_) => Step::Refuse(0),
                    None => Step::Wait,
                }
            }
            State::Arguments => match next(text, &[")"], last, &[',']) {
                Next::Is { end, .. } => {
                    if self.has_arguments {
                        calls.arguments("}");
                    }
                    calls.end();
                    self.go(State::List, end)
                }
                Next::Open => Step::Wait,
                Next::Other => {
                    let visible = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                    self.go(State::Key, text.len() - visible.len())
                }
            },
            State::Key => match identifier(text, last) {
                Some((key, '=')) => {
                    let mut out = String::from(if self.has_arguments { "," } else { "{" });
                    self.has_arguments = true;
                    push_string(key, &mut out);
                    out.push(':');
                    calls.arguments(&out);
                    self.transcoder = Transcoder::new(Notation::Python);
                    self.go(State::Value, key.len() + 1)
                }
                Some(_) => {
                    self.close(calls);
                    self.go(State::Skip, 0)
                }
                None => Step::Wait,
            },
            State::Value => self.read_value(text, calls),
            State::Object => {
                for (at, c) in text.char_indices() {
                    match self.envelope.push(c, calls) {
                        Progress::More => {}
                        Progress::Done => return self.go(State::List, at + c.len_utf8()),
                        Progress::Refused => return Step::Refuse(at),
                        Progress::Broken => return self.go(State::Skip, at),
                    }
                }
                if text.is_empty() { Step::Wait } else { Step::Take(text.len()) }
            }
            State::After if !self.has_marker => Step::Close(0),
            State::After => match next(text, &[END], last, &[]) {
                Next::Is { end, .. } => Step::Close(end),
                Next::Open => Step::Wait,
                Next::Other => Step::Close(0),
            },
            State::Skip if !self.has_marker => Step::Close(0),
            State::Skip => match scan(text, &[END], last) {
                Scan::Found { at, .. } => Step::Close(at + END.len()),
                Scan::Missing { safe: 0 } => Step::Wait,
                Scan::Missing { safe } => Step::Take(safe),
            },
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        match self.state {
            State::Object => self.envelope.finish(calls),
            _ => self.close(calls),
        }
    }
}

impl Pythonic {
    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }

    fn read_value(&mut self, text: &str, calls: &mut Calls) -> Step {
        let mut out = String::new();
        for (at, c) in text.char_indices() {
            let token = self.transcoder.push(c, &mut out);
            match token {
                Token::More => {}
                Token::Done | Token::DoneBefore => {
                    calls.arguments(&out);
                    let end = if token == Token::Done { at + c.len_utf8() } else { at };
                    return self.go(State::Arguments, end);
                }
                Token::Refused => {
                    calls.arguments(&out);
                    self.close(calls);
                    return self.go(State::Skip, at);
                }
            }
        }
        calls.arguments(&out);
        if text.is_empty() { Step::Wait } else { Step::Take(text.len()) }
    }

    /// Completes the call wherever it stands.
    fn close(&mut self, calls: &mut Calls) {
        let mut out = String::new();
        if self.state == State::Value {
            self.transcoder.close(&mut out);
        }
        if self.has_arguments {
            out.push('}');
        }
        calls.arguments(&out);
        calls.end();
    }
}

/// A name and the character after it, or `None` while it may continue.
fn identifier(text: &str, last: bool) -> Option<(&str, char)> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let end = text.find(|c: char| !is_part(c)).unwrap_or(text.len());
    let after = text[end..].chars().next();
    match after {
        Some(c) if end > 0 && end <= NAME_LIMIT_BYTES => Some((&text[..end], c)),
        Some(_) => Some(("", ' ')),
        None if last || end > NAME_LIMIT_BYTES => Some(("", ' ')),
        None => None,
    }
}

pub(super) fn layout(lark: &Lark<'_>) -> Layout {
    if lark.is_special(START) {
        Layout {
            open: "<|tool_call_start|>[",
            separator: ", ",
            close: "]<|tool_call_end|>",
            is_single: false,
        }
    } else {
        Layout { open: "[", separator: ", ", close: "]", is_single: false }
    }
}

/// The grammar of one call.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let head = lark.literal(&format!("{}(", tool.name));
    let arguments = lark.python_arguments(tool);
    format!("{head} {arguments} {}", lark.literal(")"))
}
