//! Arguments that arrive as named texts, written out as one JSON object.
//!
//! A value that can only be a string streams as it comes; any other waits for its end, because its type
//! is known only then.

use grammar::schema::Types;

use super::convert::convert;
use super::parser::Calls;
use super::transcode::{push_escaped, push_string};

/// Writes the arguments of the open call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    has_any: bool,
    value: Option<Pending>,
}

#[derive(Debug)]
enum Pending {
    /// The opening quote is out.
    Text,
    /// Waits for its end.
    Typed { text: String, types: Types },
}

impl Arguments {
    /// An argument begins; its type comes from the schema of the open call.
    pub(super) fn begin(&mut self, key: &str, calls: &mut Calls) {
        let types = Types::of_parameter(calls.parameters(), key);
        self.begin_typed(key, types, calls);
    }

    /// An argument of known types begins.
    pub(super) fn begin_typed(&mut self, key: &str, types: Types, calls: &mut Calls) {
        self.end(calls);
        let mut out = String::from(if self.has_any { "," } else { "{" });
        self.has_any = true;
        push_string(key, &mut out);
        out.push(':');
        self.value = Some(if types.is_text() {
            out.push('"');
            Pending::Text
        } else {
            Pending::Typed { text: String::new(), types }
        });
        calls.arguments(&out);
    }

    /// More of the value.
    pub(super) fn text(&mut self, piece: &str, calls: &mut Calls) {
        match &mut self.value {
            Some(Pending::Text) => {
                let mut out = String::new();
                piece.chars().for_each(|c| push_escaped(c, &mut out));
                calls.arguments(&out);
            }
            Some(Pending::Typed { text, .. }) => text.push_str(piece),
            None => {}
        }
    }

    /// The value is complete.
    pub(super) fn end(&mut self, calls: &mut Calls) {
        match self.value.take() {
            Some(Pending::Text) => calls.arguments("\""),
            Some(Pending::Typed { text, types }) => calls.arguments(&convert(&text, types)),
            None => {}
        }
    }

    /// All arguments are complete, and the call with them.
    pub(super) fn close(&mut self, calls: &mut Calls) {
        self.end(calls);
        calls.arguments(if self.has_any { "}" } else { "{}" });
        calls.end();
        self.has_any = false;
    }
}
