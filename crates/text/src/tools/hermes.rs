//! Hermes, Qwen 2.5 and 3: `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`, one block a call.

use super::Tool;
use super::envelope::{Envelope, Progress};
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{Next, Scan, next, scan};

pub(super) const MARKERS: &[&str] = &["<tool_call>", "</tool_call>"];

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Object,
    /// The object is complete.
    After,
    /// The object was broken: all up to the end marker is dropped.
    Skip,
}

/// Reads the format.
#[derive(Debug, Default)]
pub(super) struct Hermes {
    state: State,
    envelope: Envelope,
}

impl Reader for Hermes {
    fn openers(&self) -> &'static [&'static str] {
        &["<tool_call>"]
    }

    fn open(&mut self, _opener: &str) {
        *self = Self::default();
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        let ends = ["</tool_call>"];
        match self.state {
            State::Object => {
                for (at, c) in text.char_indices() {
                    match self.envelope.push(c, calls) {
                        Progress::More => {}
                        Progress::Done => {
                            self.state = State::After;
                            return Step::Take(at + c.len_utf8());
                        }
                        Progress::Refused => return Step::Refuse(at),
                        Progress::Broken => {
                            self.state = State::Skip;
                            return Step::Take(at);
                        }
                    }
                }
                if text.is_empty() { Step::Wait } else { Step::Take(text.len()) }
            }
            // One brace too many is a mistake these models make.
            State::After => match next(text, &ends, last, &['}']) {
                Next::Is { end, .. } => Step::Close(end),
                Next::Open => Step::Wait,
                Next::Other => Step::Close(0),
            },
            State::Skip => match scan(text, &ends, last) {
                Scan::Found { at, .. } => Step::Close(at + ends[0].len()),
                Scan::Missing { safe: 0 } => Step::Wait,
                Scan::Missing { safe } => Step::Take(safe),
            },
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        self.envelope.finish(calls);
    }
}

pub(super) fn layout() -> Layout {
    Layout { open: "", separator: "\n", close: "", is_single: false }
}

/// The grammar of one call.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let arguments = lark.json(&tool.parameters);
    let name = serde_json::Value::from(tool.name.as_str());
    let head = lark.literal(&format!("<tool_call>\n{{\"name\": {name}, \"arguments\": "));
    format!("{head} {arguments} {}", lark.literal("}\n</tool_call>"))
}
