//! Qwen 3 Coder, Qwen 3.5, Pebble: `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n…`. Seed-OSS writes
//! the same in `<seed:tool_call>`, without newlines around values.
//!
//! A value is raw text: one newline on either side is not its own. `</parameter>` ends it; where a model
//! forgot that, `</function></tool_call>` does. Some models leave `<tool_call>` out.

use super::Tool;
use super::arguments::Arguments;
use super::lark::{Lark, Layout, Tags};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, Scan, head, next, scan};

pub(super) const MARKERS: &[&str] = &["<tool_call>", "</tool_call>"];
pub(super) const SEED_MARKERS: &[&str] = &["<seed:tool_call>", "</seed:tool_call>"];

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
/// Ends of a value; from index 2 on only before the end of the call.
const VALUE_ENDS: [&str; 4] = ["\n</parameter>", "</parameter>", "\n</function>", "</function>"];

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Name,
    /// Between parameters.
    Body,
    Key,
    /// At the newline before a value.
    ValueStart,
    Value,
    /// After `</function>`.
    After,
}

/// Reads the format.
#[derive(Debug)]
pub(super) struct QwenXml {
    state: State,
    arguments: Arguments,
    openers: &'static [&'static str],
    /// What ends a call.
    end: &'static str,
}

impl Default for QwenXml {
    fn default() -> Self {
        QwenXml::within(&["<tool_call>", FUNCTION], MARKERS[1])
    }
}

impl Reader for QwenXml {
    fn openers(&self) -> &'static [&'static str] {
        self.openers
    }

    fn open(&mut self, opener: &str) {
        *self = Self::within(self.openers, self.end);
        if opener == FUNCTION {
            self.state = State::Name;
        }
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Start => match next(text, &[FUNCTION], last, &[]) {
                Next::Is { end, .. } => self.go(State::Name, end),
                Next::Open => Step::Wait,
                Next::Other => Step::Refuse(0),
            },
            State::Name => match head(text, &[">"]) {
                Head::Ends { at, .. } if calls.begin(text[..at].trim(), None) => {
                    self.go(State::Body, at + 1)
                }
                Head::Ends { at, .. } => Step::Refuse(at + 1),
                Head::Open => Step::Wait,
                Head::Endless => Step::Refuse(0),
            },
            State::Body => match next(text, &[PARAMETER, FUNCTION_END, self.end], last, &[]) {
                Next::Is { marker: 0, end } => self.go(State::Key, end),
                Next::Is { marker, end } => {
                    self.arguments.close(calls);
                    self.state = State::After;
                    if marker == 1 { Step::Take(end) } else { Step::Close(end) }
                }
                Next::Open => Step::Wait,
                // Not ours: whatever it is, it is no argument.
                Next::Other => text.chars().next().map_or(Step::Wait, |c| Step::Take(c.len_utf8())),
            },
            State::Key => match head(text, &[">"]) {
                Head::Ends { at, .. } => {
                    self.arguments.begin(text[..at].trim(), calls);
                    self.go(State::ValueStart, at + 1)
                }
                Head::Open => Step::Wait,
                Head::Endless => self.go(State::Body, 0),
            },
            State::ValueStart if text.is_empty() => Step::Wait,
            State::ValueStart => self.go(State::Value, usize::from(text.starts_with('\n'))),
            State::Value => self.read_value(text, last, calls),
            State::After => match next(text, &[self.end, FUNCTION], last, &[]) {
                Next::Is { marker: 0, end } => Step::Close(end),
                Next::Is { end, .. } => self.go(State::Name, end),
                Next::Open => Step::Wait,
                Next::Other => Step::Close(0),
            },
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        self.arguments.close(calls);
    }
}

impl QwenXml {
    /// Seed-OSS's form.
    pub(super) fn seed() -> Self {
        QwenXml::within(&["<seed:tool_call>", FUNCTION], SEED_MARKERS[1])
    }

    fn within(openers: &'static [&'static str], end: &'static str) -> Self {
        let (state, arguments) = (State::default(), Arguments::default());
        QwenXml { state, arguments, openers, end }
    }

    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }

    fn read_value(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        match scan(text, &VALUE_ENDS, last) {
            Scan::Found { at, marker } => {
                self.arguments.text(&text[..at], calls);
                let end = at + VALUE_ENDS[marker].len();
                if marker < 2 {
                    self.arguments.end(calls);
                    return self.go(State::Body, end);
                }
                // The end of the function, or a value that mentions it?
                match next(&text[end..], &[self.end], false, &[]) {
                    Next::Is { .. } => self.go(State::Body, at),
                    Next::Open if last => self.go(State::Body, at),
                    Next::Open if at > 0 => Step::Take(at),
                    Next::Open => Step::Wait,
                    Next::Other => {
                        self.arguments.text(&text[at..end], calls);
                        Step::Take(end)
                    }
                }
            }
            Scan::Missing { safe: 0 } => Step::Wait,
            Scan::Missing { safe } => {
                self.arguments.text(&text[..safe], calls);
                Step::Take(safe)
            }
        }
    }
}

/// The grammar of one call in Seed-OSS's form.
pub(super) fn seed_call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let tags = Tags {
        before_key: "<parameter=".to_owned(),
        after_key: ">".to_owned(),
        after_value: "</parameter>\n".to_owned(),
    };
    let head = lark.literal(&format!("<seed:tool_call>\n<function={}>\n", tool.name));
    let parameters = lark.parameters(tool, &tags);
    format!("{head} {parameters} {}", lark.literal("</function>\n</seed:tool_call>"))
}

pub(super) fn layout() -> Layout {
    Layout { open: "", separator: "\n", close: "", is_single: false }
}

/// The grammar of one call.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let tags = Tags {
        before_key: "<parameter=".to_owned(),
        after_key: ">\n".to_owned(),
        after_value: "\n</parameter>\n".to_owned(),
    };
    let head = lark.literal(&format!("<tool_call>\n<function={}>\n", tool.name));
    let parameters = lark.parameters(tool, &tags);
    format!("{head} {parameters} {}", lark.literal("</function>\n</tool_call>"))
}
