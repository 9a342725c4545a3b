//! Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>`.
//!
//! The markers and the string delimiter are special tokens, so an end marker ends the call wherever it comes.

use super::Tool;
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, Scan, head, next, scan};
use super::transcode::{Notation, Token, Transcoder};

pub(super) const MARKERS: &[&str] = &["<|tool_call>", "<tool_call|>", QUOTE];

const QUOTE: &str = "<|\"|>";
const CALL: &str = "call:";
const END: &str = "<tool_call|>";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Name,
    Arguments,
    /// The arguments are complete.
    After,
    /// The arguments were broken: all up to the end marker is dropped.
    Skip,
}

/// Reads the format.
#[derive(Debug)]
pub(super) struct Gemma4 {
    state: State,
    transcoder: Transcoder,
}

impl Default for Gemma4 {
    fn default() -> Self {
        Self { state: State::Start, transcoder: Transcoder::new(Notation::Gemma) }
    }
}

impl Reader for Gemma4 {
    fn openers(&self) -> &'static [&'static str] {
        &["<|tool_call>"]
    }

    fn open(&mut self, _opener: &str) {
        *self = Self::default();
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Start => match next(text, &[CALL], last, &[]) {
                Next::Is { end, .. } => self.go(State::Name, end),
                Next::Open => Step::Wait,
                Next::Other => Step::Refuse(0),
            },
            State::Name => match head(text, &["{", END]) {
                Head::Ends { at, marker: 0 } if calls.begin(text[..at].trim(), None) => {
                    self.transcoder = Transcoder::new(Notation::Gemma);
                    self.go(State::Arguments, at)
                }
                Head::Ends { at, .. } => Step::Refuse(at),
                Head::Open => Step::Wait,
                Head::Endless => Step::Refuse(0),
            },
            State::Arguments => self.read_arguments(text, last, calls),
            State::After => match next(text, &[END, CALL], last, &[]) {
                Next::Is { marker: 0, end } => Step::Close(end),
                Next::Is { end, .. } => self.go(State::Name, end),
                Next::Open => Step::Wait,
                Next::Other => Step::Close(0),
            },
            State::Skip => match scan(text, &[END], last) {
                Scan::Found { at, .. } => Step::Close(at + END.len()),
                Scan::Missing { safe: 0 } => Step::Wait,
                Scan::Missing { safe } => Step::Take(safe),
            },
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        self.close(calls);
    }
}

impl Gemma4 {
    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }

    fn read_arguments(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        let (limit, marker) = match scan(text, &[QUOTE, END], last) {
            Scan::Found { at, marker } => (at, Some(marker)),
            Scan::Missing { safe: 0 } => return Step::Wait,
            Scan::Missing { safe } => (safe, None),
        };
        let mut out = String::new();
        for (at, c) in text[..limit].char_indices() {
            match self.transcoder.push(c, &mut out) {
                Token::More => {}
                Token::Done => {
                    calls.arguments(&out);
                    calls.end();
                    return self.go(State::After, at + c.len_utf8());
                }
                Token::DoneBefore | Token::Refused => {
                    calls.arguments(&out);
                    self.close(calls);
                    return self.go(State::Skip, at);
                }
            }
        }
        let refused = marker == Some(0) && self.transcoder.quote(&mut out) == Token::Refused;
        calls.arguments(&out);
        match marker {
            None => Step::Take(limit),
            Some(0) if !refused => Step::Take(limit + QUOTE.len()),
            _ => {
                self.close(calls);
                self.go(State::Skip, limit)
            }
        }
    }

    fn close(&mut self, calls: &mut Calls) {
        let mut out = String::new();
        self.transcoder.close(&mut out);
        calls.arguments(&out);
        calls.end();
    }
}

pub(super) fn layout() -> Layout {
    Layout { open: "", separator: "", close: "", is_single: false }
}

/// The grammar of one call.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let head = lark.literal(&format!("<|tool_call>call:{}", tool.name));
    let arguments = lark.gemma_arguments(tool);
    format!("{head} {arguments} {}", lark.literal(END))
}
