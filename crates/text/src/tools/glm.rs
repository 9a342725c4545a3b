//! GLM 4.5 and later: `<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n…</tool_call>`,
//! with or without the newlines.

use super::Tool;
use super::arguments::Arguments;
use super::lark::{Lark, Layout, Tags};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, Scan, head, next, scan};

pub(super) const MARKERS: &[&str] = &["<tool_call>", END, KEY, KEY_END, VALUE, VALUE_END];

const END: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Name,
    /// Between arguments.
    Body,
    Key,
    /// Between a key and its value.
    Gap,
    Value,
}

/// Reads the format.
#[derive(Debug, Default)]
pub(super) struct Glm {
    state: State,
    arguments: Arguments,
}

impl Reader for Glm {
    fn openers(&self) -> &'static [&'static str] {
        &["<tool_call>"]
    }

    fn open(&mut self, _opener: &str) {
        *self = Self::default();
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Name => {
                let name = text.trim_start();
                let start = text.len() - name.len();
                match head(name, &["\n", KEY, END]) {
                    Head::Ends { at, .. } if calls.begin(name[..at].trim(), None) => {
                        self.go(State::Body, start + at)
                    }
                    Head::Ends { at, .. } => Step::Refuse(start + at),
                    Head::Open => Step::Wait,
                    Head::Endless => Step::Refuse(0),
                }
            }
            State::Body => match next(text, &[KEY, END], last, &[]) {
                Next::Is { marker: 0, end } => self.go(State::Key, end),
                Next::Is { end, .. } => {
                    self.arguments.close(calls);
                    Step::Close(end)
                }
                Next::Open => Step::Wait,
                // Not ours: whatever it is, it is no argument.
                Next::Other => text.chars().next().map_or(Step::Wait, |c| Step::Take(c.len_utf8())),
            },
            State::Key => match head(text, &[KEY_END]) {
                Head::Ends { at, .. } => {
                    self.arguments.begin(text[..at].trim(), calls);
                    self.go(State::Gap, at + KEY_END.len())
                }
                Head::Open => Step::Wait,
                Head::Endless => self.go(State::Body, 0),
            },
            State::Gap => match next(text, &[VALUE], last, &[]) {
                Next::Is { end, .. } => self.go(State::Value, end),
                Next::Open => Step::Wait,
                Next::Other => self.go(State::Body, 0),
            },
            State::Value => match scan(text, &[VALUE_END], last) {
                Scan::Found { at, .. } => {
                    self.arguments.text(&text[..at], calls);
                    self.arguments.end(calls);
                    self.go(State::Body, at + VALUE_END.len())
                }
                Scan::Missing { safe: 0 } => Step::Wait,
                Scan::Missing { safe } => {
                    self.arguments.text(&text[..safe], calls);
                    Step::Take(safe)
                }
            },
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        self.arguments.close(calls);
    }
}

impl Glm {
    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }
}

pub(super) fn layout() -> Layout {
    Layout { open: "", separator: "\n", close: "", is_single: false }
}

/// The grammar of one call.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let tags = Tags {
        before_key: KEY.to_owned(),
        after_key: format!("{KEY_END}\n{VALUE}"),
        after_value: format!("{VALUE_END}\n"),
    };
    let head = lark.literal(&format!("<tool_call>{}\n", tool.name));
    let parameters = lark.parameters(tool, &tags);
    format!("{head} {parameters} {}", lark.literal(END))
}
