//! MiniMax M2 and DeepSeek V3.2: `<invoke name="NAME"><parameter name="KEY">VALUE</parameter>…</invoke>`, one
//! or more in a block. DeepSeek writes `｜DSML｜` into every tag and says of each value whether it is a string.

use grammar::schema::Types;

use super::Tool;
use super::arguments::Arguments;
use super::lark::{Lark, Layout, Tags};
use super::parser::{Calls, Reader, Step};
use super::scan::{Head, Next, Scan, head, next, scan};

pub(super) const MINIMAX_MARKERS: &[&str] = &["<minimax:tool_call>", "</minimax:tool_call>"];
pub(super) const DEEPSEEK_MARKERS: &[&str] = &["｜DSML｜"];

/// How the tags are spelt.
#[derive(Debug)]
struct Spelling {
    openers: &'static [&'static str],
    closers: &'static [&'static str],
    invoke: &'static str,
    invoke_end: &'static str,
    parameter: &'static str,
    parameter_end: &'static str,
}

static MINIMAX: Spelling = Spelling {
    openers: &["<minimax:tool_call>"],
    closers: &["</minimax:tool_call>"],
    invoke: "<invoke name=",
    invoke_end: "</invoke>",
    parameter: "<parameter name=",
    parameter_end: "</parameter>",
};

static DEEPSEEK: Spelling = Spelling {
    openers: &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
    closers: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    invoke: "<｜DSML｜invoke name=",
    invoke_end: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter name=",
    parameter_end: "</｜DSML｜parameter>",
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between calls.
    Block,
    Name,
    /// Between parameters.
    Body,
    Key,
    Value,
}

/// Reads the format.
#[derive(Debug)]
pub(super) struct Invoke {
    spelling: &'static Spelling,
    state: State,
    arguments: Arguments,
}

impl Invoke {
    pub(super) fn minimax() -> Self {
        Self { spelling: &MINIMAX, state: State::Block, arguments: Arguments::default() }
    }

    pub(super) fn deepseek() -> Self {
        Self { spelling: &DEEPSEEK, state: State::Block, arguments: Arguments::default() }
    }

    fn go(&mut self, state: State, bytes: usize) -> Step {
        self.state = state;
        Step::Take(bytes)
    }
}

impl Reader for Invoke {
    fn openers(&self) -> &'static [&'static str] {
        self.spelling.openers
    }

    fn open(&mut self, _opener: &str) {
        (self.state, self.arguments) = (State::Block, Arguments::default());
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        let spelling = self.spelling;
        match self.state {
            State::Block => {
                let markers: Vec<&str> =
                    [spelling.invoke].into_iter().chain(spelling.closers.iter().copied()).collect();
                match next(text, &markers, last, &[]) {
                    Next::Is { marker: 0, end } => self.go(State::Name, end),
                    Next::Is { end, .. } => Step::Close(end),
                    Next::Open => Step::Wait,
                    Next::Other => Step::Close(0),
                }
            }
            State::Name => match head(text, &[">"]) {
                Head::Ends { at, .. } if calls.begin(quoted(&text[..at]), None) => {
                    self.go(State::Body, at + 1)
                }
                Head::Ends { at, .. } => Step::Refuse(at + 1),
                Head::Open => Step::Wait,
                Head::Endless => Step::Refuse(0),
            },
            State::Body => {
                match next(text, &[spelling.parameter, spelling.invoke_end], last, &[]) {
                    Next::Is { marker: 0, end } => self.go(State::Key, end),
                    Next::Is { end, .. } => {
                        self.arguments.close(calls);
                        self.go(State::Block, end)
                    }
                    Next::Open => Step::Wait,
                    // Not ours: whatever it is, it is no argument.
                    Next::Other => {
                        text.chars().next().map_or(Step::Wait, |c| Step::Take(c.len_utf8()))
                    }
                }
            }
            State::Key => match head(text, &[">"]) {
                Head::Ends { at, .. } => {
                    let (key, attributes) = (quoted(&text[..at]), &text[..at]);
                    let mut types = Types::of_parameter(calls.parameters(), key);
                    if attributes.contains("string=\"true\"") {
                        types = Types { string: true, ..Types::default() };
                    } else if attributes.contains("string=\"false\"") && types.is_text() {
                        types = Types::default();
                    }
                    self.arguments.begin_typed(key, types, calls);
                    self.go(State::Value, at + 1)
                }
                Head::Open => Step::Wait,
                Head::Endless => self.go(State::Body, 0),
            },
            State::Value => match scan(text, &[spelling.parameter_end], last) {
                Scan::Found { at, .. } => {
                    self.arguments.text(&text[..at], calls);
                    self.arguments.end(calls);
                    self.go(State::Body, at + spelling.parameter_end.len())
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

/// The text between the first quotes, or all of it where there are none.
fn quoted(attribute: &str) -> &str {
    let text = attribute.trim();
    for quote in ['"', '\''] {
        if let Some(rest) = text.strip_prefix(quote) {
            return rest.split(quote).next().unwrap_or(rest);
        }
    }
    text
}

pub(super) fn minimax_layout() -> Layout {
    Layout {
        open: "<minimax:tool_call>\n",
        separator: "",
        close: "</minimax:tool_call>",
        is_single: false,
    }
}

pub(super) fn deepseek_layout() -> Layout {
    Layout {
        open: "<｜DSML｜function_calls>\n",
        separator: "",
        close: "</｜DSML｜function_calls>",
        is_single: false,
    }
}

/// The grammar of one call of MiniMax.
pub(super) fn minimax_call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    call(lark, tool, &MINIMAX, "\">")
}

/// The grammar of one call of DeepSeek.
pub(super) fn deepseek_call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    call(lark, tool, &DEEPSEEK, "\" string=\"?\">")
}

fn call(lark: &mut Lark<'_>, tool: &Tool, spelling: &Spelling, after_key: &str) -> String {
    let tags = Tags {
        before_key: format!("{}\"", spelling.parameter),
        after_key: after_key.to_owned(),
        after_value: format!("{}\n", spelling.parameter_end),
    };
    let head = lark.literal(&format!("{}\"{}\">\n", spelling.invoke, tool.name));
    let parameters = lark.parameters(tool, &tags);
    format!("{head} {parameters} {}", lark.literal(&format!("{}\n", spelling.invoke_end)))
}
