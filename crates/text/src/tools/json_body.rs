//! Arguments as one JSON object between markers, with whatever stands around it (fences, spaces) left out.

use super::parser::Calls;
use super::scan::{Scan, scan};
use super::transcode::{Notation, Token, Transcoder};

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// So many bytes.
    Take(usize),
    /// More text is needed.
    Wait,
    /// The call is complete after so many bytes, its end marker included.
    End(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first brace.
    Seek,
    Value,
    /// After the last brace: the end marker is still to come.
    Tail,
}

/// Reads the arguments of the open call, and ends it.
#[derive(Debug)]
pub(super) struct JsonBody {
    state: State,
    transcoder: Transcoder,
}

impl Default for JsonBody {
    fn default() -> Self {
        Self { state: State::Seek, transcoder: Transcoder::new(Notation::Json) }
    }
}

impl JsonBody {
    /// Reads on. One of `ends` ends the call wherever it comes; without any the last brace does.
    pub(super) fn read(
        &mut self,
        text: &str,
        last: bool,
        ends: &[&str],
        calls: &mut Calls,
    ) -> Body {
        let (limit, end) = match scan(text, ends, last) {
            Scan::Found { at, marker } => (at, Some(at + ends[marker].len())),
            Scan::Missing { safe } => (safe, None),
        };
        let taken = self.read_value(&text[..limit], calls);
        if self.state == State::Tail && ends.is_empty() {
            calls.end();
            return Body::End(taken);
        }
        match end {
            Some(end) => {
                self.finish(calls);
                Body::End(end)
            }
            None if limit == 0 => Body::Wait,
            None => Body::Take(limit),
        }
    }

    /// Completes the call wherever it stands.
    pub(super) fn finish(&mut self, calls: &mut Calls) {
        if self.state == State::Value {
            let mut out = String::new();
            self.transcoder.close(&mut out);
            calls.arguments(&out);
        }
        calls.end();
    }

    /// Bytes up to the end of the value, or all.
    fn read_value(&mut self, text: &str, calls: &mut Calls) -> usize {
        let mut out = String::new();
        let mut taken = text.len();
        for (at, c) in text.char_indices() {
            if self.state == State::Seek && c == '{' {
                self.state = State::Value;
            }
            if self.state != State::Value {
                continue;
            }
            match self.transcoder.push(c, &mut out) {
                Token::More => {}
                Token::Done => {
                    self.state = State::Tail;
                    taken = at + c.len_utf8();
                    break;
                }
                Token::DoneBefore | Token::Refused => {
                    self.transcoder.close(&mut out);
                    self.state = State::Tail;
                    taken = at;
                    break;
                }
            }
        }
        calls.arguments(&out);
        taken
    }
}
