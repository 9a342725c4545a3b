//! The text in `{"input": "…"}`, read while it comes.
//!
//! A custom tool takes text; to a model it is a function with one parameter, so its arguments are unwrapped
//! here. Where a model writes something other than was requested, what it wrote is the text.
//!
//! Invariant: the pieces joined are the text, however the JSON was cut.

/// Unwraps one call's arguments.
#[derive(Debug, Default)]
pub(crate) struct InputText {
    json: String,
    state: State,
    text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the text.
    #[default]
    Head,
    /// Inside the text, read up to here.
    Body(usize),
    /// Behind the text.
    Tail,
    /// It is something else.
    Other,
}

impl InputText {
    /// The text so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Takes more of the JSON and returns more of the text.
    pub(crate) fn push(&mut self, json: &str) -> String {
        self.json.push_str(json);
        if self.state == State::Head {
            self.state = match head(&self.json) {
                Some(Ok(length)) => State::Body(length),
                Some(Err(())) => State::Other,
                None => State::Head,
            };
        }
        let State::Body(from) = self.state else { return String::new() };
        let (to, is_over) = readable(self.json.as_bytes(), from);
        self.state = if is_over { State::Tail } else { State::Body(to) };
        let raw = &self.json[from..to];
        // Escapes that mean nothing stay as they are.
        let piece = serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.to_owned());
        self.text.push_str(&piece);
        piece
    }

    /// Ends the call and returns the rest of the text.
    pub(crate) fn finish(&mut self) -> String {
        let rest = match self.state {
            State::Head | State::Other => std::mem::take(&mut self.json),
            State::Body(from) => self.json[from..].to_owned(),
            State::Tail => String::new(),
        };
        self.state = State::Tail;
        self.text.push_str(&rest);
        rest
    }
}

/// The length of `{"input": "` with any space between; `None` if there is more to come.
fn head(json: &str) -> Option<Result<usize, ()>> {
    let mut rest = json;
    for token in ["{", "\"input\"", ":", "\""] {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        match rest.strip_prefix(token) {
            Some(after) => rest = after,
            None if token.starts_with(rest) => return None,
            None => return Some(Err(())),
        }
    }
    Some(Ok(json.len() - rest.len()))
}

/// Up to where a string can be read, and whether it ends there.
fn readable(json: &[u8], from: usize) -> (usize, bool) {
    let mut at = from;
    while at < json.len() {
        match json[at] {
            b'"' => return (at, true),
            b'\\' => {
                let Some(length) = escape(&json[at..]) else { return (at, false) };
                at += length;
            }
            _ => at += 1,
        }
    }
    (at, false)
}

/// The length of a complete escape; both halves of a pair belong together.
fn escape(json: &[u8]) -> Option<usize> {
    if *json.get(1)? != b'u' {
        return Some(2);
    }
    let is_high = json.get(2..6)?[..2].eq_ignore_ascii_case(b"d8")
        || json[2..4].eq_ignore_ascii_case(b"d9")
        || json[2..4].eq_ignore_ascii_case(b"da")
        || json[2..4].eq_ignore_ascii_case(b"db");
    if !is_high {
        return Some(6);
    }
    match (json.get(6)?, json.get(7)) {
        (b'\\', None) => None,
        (b'\\', Some(b'u')) => json.get(8..12).map(|_| 12),
        _ => Some(6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn read<'a>(pieces: impl IntoIterator<Item = &'a str>) -> String {
        let mut input = InputText::default();
        let mut text: String = pieces.into_iter().map(|piece| input.push(piece)).collect();
        text.push_str(&input.finish());
        assert_eq!(input.text(), text);
        text
    }

    #[test]
    fn text_is_unwrapped_and_anything_else_kept() {
        #[track_caller]
        fn check(json: &str, expect: &str) {
            assert_eq!(read([json]), expect);
            // And one character after the other.
            let mut buffer = [0; 4];
            let mut input = InputText::default();
            let mut text = String::new();
            for character in json.chars() {
                text.push_str(&input.push(character.encode_utf8(&mut buffer)));
            }
            text.push_str(&input.finish());
            assert_eq!(text, expect);
        }
        check("", "");
        check(r#"{"input": ""}"#, "");
        check(r#"{"input":"*** Begin Patch\n+\"a\"\\\n"}"#, "*** Begin Patch\n+\"a\"\\\n");
        check(" { \"input\"\n: \"ä\\u00e4\\ud83d\\ude00😀\" } ", "ää😀😀");
        check(r#"{"input": "cut o"#, "cut o");
        check(r#"{"patch": "x"}"#, r#"{"patch": "x"}"#);
        check(r#"{"input": 3}"#, r#"{"input": 3}"#);
        check("{}", "{}");
        check(r#"{"inp"#, r#"{"inp"#);
        // Half a pair means nothing.
        check(r#"{"input": "\ud83d!"}"#, r"\ud83d!");
    }

    #[test]
    fn text_comes_as_soon_as_it_can_be_read() {
        let mut input = InputText::default();
        assert_eq!(input.push("{\"inp"), "");
        assert_eq!(input.push("ut\": \"ab"), "ab");
        assert_eq!(input.push("c\\"), "c");
        assert_eq!(input.push("nd"), "\nd");
        assert_eq!(input.push("\"}"), "");
        assert_eq!(input.finish(), "");
        assert_eq!(input.text(), "abc\nd");
    }

    proptest! {
        #[test]
        fn any_text_survives_any_cut(text in ".{0,40}", cuts in prop::collection::vec(0usize..60, 0..6)) {
            let json = json!({"input": text}).to_string();
            let mut at: Vec<usize> =
                cuts.into_iter().map(|cut| cut.min(json.len())).filter(|&cut| json.is_char_boundary(cut)).collect();
            at.extend([0, json.len()]);
            at.sort_unstable();
            prop_assert_eq!(read(at.windows(2).map(|pair| &json[pair[0]..pair[1]])), text);
        }
    }
}
