//! One value, in the notation of a model family, turned into JSON text while it arrives.
//!
//! JSON itself passes through without white space; Gemma's and Python's literals become JSON. What goes out
//! can be closed to valid JSON at any moment: a comma waits for what follows it, a number or word for its end,
//! an escape for its last digit. Small mistakes (raw newlines, words without quotes, a trailing comma) are
//! made good; what makes no sense is refused, and the caller closes the value.

use std::fmt::Write;

/// Deeper values are refused: serde_json reads 128 levels.
const DEPTH_LIMIT: usize = 100;

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notation {
    /// `{"a": [true, null]}`
    Json,
    /// `{a:<|"|>text<|"|>}`; the delimiter comes as [`Transcoder::quote`].
    Gemma,
    /// `{'a': (True, None)}`
    Python,
}

/// What a character did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// The value continues.
    More,
    /// The value is complete with this character.
    Done,
    /// The value was complete before this character.
    DoneBefore,
    /// This character cannot stand here.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Object,
    Array,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quote {
    Character(char),
    Delimiter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value must begin; in a list it may also end.
    Value,
    /// A key must begin, or the object may end.
    Key,
    Text {
        quote: Quote,
        is_key: bool,
    },
    /// A number, `true`, or letters without quotes.
    Word {
        is_key: bool,
    },
    /// A colon must come.
    Colon,
    /// A comma must come, or the end.
    After,
    Done,
}

/// Turns one value into JSON.
#[derive(Debug)]
pub(super) struct Transcoder {
    notation: Notation,
    frames: Vec<Frame>,
    state: State,
    /// A comma has come; it goes out with what follows it.
    comma: bool,
    word: String,
    /// An escape so far, from its backslash.
    escape: String,
    /// The first half of a character in two escapes.
    high_surrogate: Option<u32>,
}

impl Transcoder {
    pub(super) fn new(notation: Notation) -> Self {
        Self {
            notation,
            frames: Vec::new(),
            state: State::Value,
            comma: false,
            word: String::new(),
            escape: String::new(),
            high_surrogate: None,
        }
    }

    /// Takes a character and appends the JSON it makes certain to `out`.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> Token {
        match self.state {
            State::Text { quote, is_key } => self.push_text(c, quote, is_key, out),
            State::Word { is_key } => {
                if c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.') {
                    self.word.push(c);
                    return Token::More;
                }
                self.end_word(is_key, out);
                match self.state {
                    State::Done => Token::DoneBefore,
                    _ => self.push(c, out),
                }
            }
            State::Done => Token::DoneBefore,
            _ if c.is_whitespace() => Token::More,
            State::Value => self.begin_value(c, out),
            State::Key => match c {
                '}' => self.end_frame(Frame::Object, out),
                '"' => self.begin_text(Quote::Character(c), true, out),
                '\'' if self.notation == Notation::Python => {
                    self.begin_text(Quote::Character(c), true, out)
                }
                c if c.is_alphanumeric() || c == '_' => {
                    self.word.push(c);
                    self.state = State::Word { is_key: true };
                    Token::More
                }
                _ => Token::Refused,
            },
            State::Colon => {
                if c != ':' {
                    return Token::Refused;
                }
                out.push(':');
                self.state = State::Value;
                Token::More
            }
            State::After => match c {
                ',' => {
                    self.comma = true;
                    let is_object = self.frames.last() == Some(&Frame::Object);
                    self.state = if is_object { State::Key } else { State::Value };
                    Token::More
                }
                '}' => self.end_frame(Frame::Object, out),
                ']' => self.end_frame(Frame::Array, out),
                ')' if self.notation == Notation::Python => self.end_frame(Frame::Array, out),
                _ => Token::Refused,
            },
        }
    }

    /// Gemma's string delimiter.
    pub(super) fn quote(&mut self, out: &mut String) -> Token {
        match self.state {
            State::Text { quote: Quote::Delimiter, is_key } => self.end_text(is_key, out),
            State::Text { .. } => {
                self.flush_escape(out);
                self.flush_surrogate(out);
                "<|\"|>".chars().for_each(|c| push_escaped(c, out));
                Token::More
            }
            State::Value => self.begin_text(Quote::Delimiter, false, out),
            State::Key => self.begin_text(Quote::Delimiter, true, out),
            _ => Token::Refused,
        }
    }

    /// Completes the value wherever it stands.
    pub(super) fn close(&mut self, out: &mut String) {
        match self.state {
            State::Text { is_key, .. } => {
                self.flush_escape(out);
                self.end_text(is_key, out);
            }
            State::Word { is_key } => self.end_word(is_key, out),
            _ => {}
        }
        match self.state {
            State::Colon => out.push_str(":null"),
            // After a colon, or where there is nothing at all.
            State::Value if self.frames.last() != Some(&Frame::Array) => out.push_str("null"),
            _ => {}
        }
        while let Some(frame) = self.frames.pop() {
            out.push(if frame == Frame::Object { '}' } else { ']' });
        }
        self.state = State::Done;
    }

    fn begin_value(&mut self, c: char, out: &mut String) -> Token {
        let in_list = self.frames.last() == Some(&Frame::Array);
        match c {
            '{' | '[' => self.begin_frame(c, out),
            '(' if self.notation == Notation::Python => self.begin_frame(c, out),
            ']' if in_list => self.end_frame(Frame::Array, out),
            ')' if in_list && self.notation == Notation::Python => {
                self.end_frame(Frame::Array, out)
            }
            '"' => self.begin_text(Quote::Character(c), false, out),
            '\'' if self.notation == Notation::Python => {
                self.begin_text(Quote::Character(c), false, out)
            }
            c if c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.') => {
                self.word.push(c);
                self.state = State::Word { is_key: false };
                Token::More
            }
            _ => Token::Refused,
        }
    }

    fn begin_frame(&mut self, c: char, out: &mut String) -> Token {
        if self.frames.len() >= DEPTH_LIMIT {
            return Token::Refused;
        }
        self.flush_comma(out);
        let frame = if c == '{' { Frame::Object } else { Frame::Array };
        out.push(if c == '{' { '{' } else { '[' });
        self.frames.push(frame);
        self.state = if c == '{' { State::Key } else { State::Value };
        Token::More
    }

    fn end_frame(&mut self, frame: Frame, out: &mut String) -> Token {
        if self.frames.last() != Some(&frame) {
            return Token::Refused;
        }
        self.frames.pop();
        self.comma = false;
        out.push(if frame == Frame::Object { '}' } else { ']' });
        self.end_value()
    }

    fn begin_text(&mut self, quote: Quote, is_key: bool, out: &mut String) -> Token {
        self.flush_comma(out);
        out.push('"');
        self.state = State::Text { quote, is_key };
        Token::More
    }

    fn push_text(&mut self, c: char, quote: Quote, is_key: bool, out: &mut String) -> Token {
        if !self.escape.is_empty() {
            return self.push_escape(c, out);
        }
        let Quote::Character(quote) = quote else {
            push_escaped(c, out);
            return Token::More;
        };
        if c == '\\' {
            self.escape.push(c);
            return Token::More;
        }
        self.flush_surrogate(out);
        if c == quote {
            return self.end_text(is_key, out);
        }
        push_escaped(c, out);
        Token::More
    }

    fn end_text(&mut self, is_key: bool, out: &mut String) -> Token {
        self.flush_surrogate(out);
        out.push('"');
        if is_key {
            self.state = State::Colon;
            return Token::More;
        }
        self.end_value()
    }

    fn end_word(&mut self, is_key: bool, out: &mut String) {
        self.flush_comma(out);
        let word = std::mem::take(&mut self.word);
        if is_key {
            push_string(&word, out);
            self.state = State::Colon;
        } else {
            push_word(&word, out);
            self.end_value();
        }
    }

    fn end_value(&mut self) -> Token {
        if self.frames.is_empty() {
            self.state = State::Done;
            return Token::Done;
        }
        self.state = State::After;
        Token::More
    }

    fn flush_comma(&mut self, out: &mut String) {
        if std::mem::take(&mut self.comma) {
            out.push(',');
        }
    }

    fn flush_surrogate(&mut self, out: &mut String) {
        if self.high_surrogate.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// An escape that never became whole stands for itself.
    fn flush_escape(&mut self, out: &mut String) {
        let escape = std::mem::take(&mut self.escape);
        if !escape.is_empty() {
            self.flush_surrogate(out);
        }
        escape.chars().for_each(|c| push_escaped(c, out));
    }

    fn push_escape(&mut self, c: char, out: &mut String) -> Token {
        let digits = match self.escape.chars().nth(1) {
            None => 0,
            Some('x') => 2,
            Some('u') => 4,
            Some(_) => 8,
        };
        if digits == 0 {
            let plain = match c {
                '"' | '\\' | '/' | '\'' => Some(c),
                'b' => Some('\u{8}'),
                'f' => Some('\u{c}'),
                'n' => Some('\n'),
                'r' => Some('\r'),
                't' => Some('\t'),
                _ => None,
            };
            if let Some(plain) = plain {
                self.escape.clear();
                self.flush_surrogate(out);
                push_escaped(plain, out);
                return Token::More;
            }
            self.escape.push(c);
            let python = self.notation == Notation::Python;
            if !(c == 'u' || (python && matches!(c, 'x' | 'U'))) {
                self.flush_escape(out);
            }
            return Token::More;
        }
        if !c.is_ascii_hexdigit() {
            // No escape after all, and the character is text of its own: a quote ends the string.
            self.flush_escape(out);
            return self.push(c, out);
        }
        self.escape.push(c);
        if self.escape.len() == 2 + digits {
            let code = u32::from_str_radix(&self.escape[2..], 16).unwrap_or(0xFFFD);
            self.escape.clear();
            self.push_code(code, out);
        }
        Token::More
    }

    fn push_code(&mut self, code: u32, out: &mut String) {
        if let (Some(high), 0xDC00..=0xDFFF) = (self.high_surrogate, code) {
            self.high_surrogate = None;
            let code = 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00);
            push_escaped(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), out);
            return;
        }
        self.flush_surrogate(out);
        if let 0xD800..=0xDBFF = code {
            self.high_surrogate = Some(code);
        } else {
            push_escaped(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), out);
        }
    }
}

/// A character inside a JSON string.
pub(super) fn push_escaped(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if u32::from(c) < 0x20 => {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// A whole JSON string.
pub(super) fn push_string(text: &str, out: &mut String) {
    out.push('"');
    text.chars().for_each(|c| push_escaped(c, out));
    out.push('"');
}

/// A word without quotes: a literal, a number, or else a string.
fn push_word(word: &str, out: &mut String) {
    match word {
        "true" | "True" => out.push_str("true"),
        "false" | "False" => out.push_str("false"),
        "null" | "None" => out.push_str("null"),
        _ => match number(word) {
            Some(number) => out.push_str(&number),
            None => push_string(word, out),
        },
    }
}

/// A number as JSON writes it.
pub(super) fn number(word: &str) -> Option<String> {
    if serde_json::from_str::<serde_json::Number>(word).is_ok() {
        return Some(word.to_owned());
    }
    if !word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    if let Ok(integer) = word.parse::<i64>() {
        return Some(integer.to_string());
    }
    let float = word.parse::<f64>().ok()?;
    serde_json::Number::from_f64(float).map(|number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The whole of `text`, closed; what was refused is cut off.
    fn transcode(notation: Notation, text: &str) -> String {
        let mut transcoder = Transcoder::new(notation);
        let mut out = String::new();
        for c in text.chars() {
            // In these tests a tilde is Gemma's delimiter.
            let token = match c {
                '~' if notation == Notation::Gemma => transcoder.quote(&mut out),
                c => transcoder.push(c, &mut out),
            };
            if matches!(token, Token::Done | Token::DoneBefore) {
                return out;
            }
            if token == Token::Refused {
                break;
            }
        }
        transcoder.close(&mut out);
        out
    }

    #[track_caller]
    fn check(notation: Notation, text: &str, expect: &str) {
        assert_eq!(transcode(notation, text), expect, "{text}");
    }

    #[test]
    fn json_passes_through() {
        check(
            Notation::Json,
            r#"{"a": [1, -2.5e3, true], "b": {"c": null}}"#,
            r#"{"a":[1,-2.5e3,true],"b":{"c":null}}"#,
        );
        check(
            Notation::Json,
            r#"{"a": "x\n\"y\" \u00e9 \ud83d\ude00"}"#,
            r#"{"a":"x\n\"y\" é 😀"}"#,
        );
        check(Notation::Json, "{} trailing", "{}");
        check(Notation::Json, "12 ", "12");
    }

    #[test]
    fn small_mistakes_are_made_good() {
        check(Notation::Json, "{\"a\": \"line\nline\"}", r#"{"a":"line\nline"}"#);
        check(Notation::Json, r#"{"a": [1, 2,], }"#, r#"{"a":[1,2]}"#);
        check(
            Notation::Json,
            r#"{city: Paris, "n": 007, "t": True}"#,
            r#"{"city":"Paris","n":7,"t":true}"#,
        );
        check(
            Notation::Json,
            r#"{"a": "\d \ud800x", "b": 1e999}"#,
            r#"{"a":"\\d �x","b":"1e999"}"#,
        );
    }

    #[test]
    fn a_value_is_closed_wherever_it_ends() {
        check(Notation::Json, r#"{"a": {"b": [1, "x"#, r#"{"a":{"b":[1,"x"]}}"#);
        check(Notation::Json, r#"{"a": 1, "b"#, r#"{"a":1,"b":null}"#);
        check(Notation::Json, r#"{"a": 1, "b": "#, r#"{"a":1,"b":null}"#);
        check(Notation::Json, r#"{"a": 1,"#, r#"{"a":1}"#);
        check(Notation::Json, r#"{"a": "\u12"#, r#"{"a":"\\u12"}"#);
        check(Notation::Json, "", "null");
    }

    #[test]
    fn gemma_and_python() {
        check(
            Notation::Gemma,
            r#"{a:~say "hi"\~,b:[1,true],c:{d:~~}}"#,
            r#"{"a":"say \"hi\"\\","b":[1,true],"c":{"d":""}}"#,
        );
        check(
            Notation::Python,
            r#"{'a': (1, None), "b": 'it\'s \x41'}"#,
            r#"{"a":[1,null],"b":"it's A"}"#,
        );
    }

    proptest! {
        #[test]
        fn anything_closes_to_json(
            parts in prop::collection::vec(prop_oneof![
                Just("{"), Just("}"), Just("["), Just("]"), Just("("), Just(")"), Just("\""), Just("'"), Just("~"), Just(","),
                Just(":"), Just("\\"), Just("u"), Just("d83d"), Just("de00"), Just("1"), Just("-"), Just("e9"), Just("tru"),
                Just(" "), Just("\n"), Just("é"), Just("\"a\":"),
            ], 0..40),
            python: bool,
        ) {
            let text = parts.concat();
            for notation in [Notation::Json, Notation::Gemma, if python { Notation::Python } else { Notation::Json }] {
                let out = transcode(notation, &text);
                prop_assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{text} -> {out}");
            }
        }

        #[test]
        fn json_values_survive(text in "\\PC{0,20}", number: f64, flag: bool) {
            let value = serde_json::json!({"a": [text, number, {"b": flag}], "": null});
            prop_assert_eq!(transcode(Notation::Json, &value.to_string()), value.to_string());
        }
    }
}
