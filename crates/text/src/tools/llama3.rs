//! Llama 3: an answer that is `{"name": …, "parameters": {…}}` is a call; `<|python_tag|>` may stand before it.
//!
//! Only an answer that begins with a brace can be one: an object further on is text. So is an object with
//! other keys, as soon as the first of them is known.

use super::Tool;
use super::envelope::{Envelope, Progress};
use super::lark::{Lark, Layout};
use super::parser::{Calls, Reader, Step};
use super::scan::{Next, next};

pub(super) const MARKERS: &[&str] = &[TAG];

const TAG: &str = "<|python_tag|>";

/// Reads the format.
#[derive(Debug, Default)]
pub(super) struct Llama3 {
    envelope: Envelope,
    /// An object is complete; another may follow.
    is_after: bool,
}

impl Reader for Llama3 {
    fn openers(&self) -> &'static [&'static str] {
        &[TAG]
    }

    fn first_openers(&self) -> &'static [&'static str] {
        &["{"]
    }

    fn open(&mut self, opener: &str) {
        *self = Self::default();
        if opener == "{" {
            self.envelope = Envelope::opened();
        }
    }

    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step {
        if self.is_after {
            return match next(text, &["{"], last, &[';', ',']) {
                Next::Is { end, .. } => {
                    *self = Self::default();
                    Step::Take(end - 1)
                }
                Next::Open => Step::Wait,
                Next::Other => Step::Close(0),
            };
        }
        for (at, c) in text.char_indices() {
            match self.envelope.push(c, calls) {
                Progress::More => {}
                Progress::Done => {
                    self.is_after = true;
                    return Step::Take(at + c.len_utf8());
                }
                Progress::Refused => return Step::Refuse(at),
                Progress::Broken => return Step::Close(at),
            }
        }
        if text.is_empty() { Step::Wait } else { Step::Take(text.len()) }
    }

    fn finish(&mut self, calls: &mut Calls) {
        self.envelope.finish(calls);
    }
}

pub(super) fn layout() -> Layout {
    Layout { open: "", separator: "", close: "", is_single: true }
}

/// The grammar of one call.
pub(super) fn call(lark: &mut Lark<'_>, tool: &Tool) -> String {
    let arguments = lark.json(&tool.parameters);
    let name = serde_json::Value::from(tool.name.as_str());
    let head = lark.literal(&format!("{{\"name\": {name}, \"parameters\": "));
    format!("{head} {arguments} {}", lark.literal("}"))
}
