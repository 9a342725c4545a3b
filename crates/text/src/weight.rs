//! What a body will hold once it is read, found by one look at its bytes.
//!
//! A value takes up to a hundred times as much memory as its text, so that the length of a body says little. The scan
//! counts values, keys and texts as the parser will make them, without allocating anything. Texts that hold JSON
//! themselves (the arguments of calls, schemas as text) are counted by the same rules, escapes undone. It does not
//! check JSON: what is broken ends the parser sooner, and weighs too much here at worst.
//!
//! Invariant: reading a body never takes more than its weight says.

use serde_json::Value;

/// What an array takes that is not empty: `serde_json` has room for four values of 72 bytes.
const ARRAY_BYTES: usize = 4 * VALUE_BYTES + BLOCK_BYTES;
/// What an object takes that is not empty: room for three entries of 104 bytes, and a table of 64.
const OBJECT_BYTES: usize = 3 * ENTRY_BYTES + 64 + 2 * BLOCK_BYTES;
/// A further value of an array: both double when they are full, and hold the old half meanwhile.
const ELEMENT_BYTES: usize = 3 * VALUE_BYTES;
/// A further entry of an object, and its place in the table.
const FIELD_BYTES: usize = 5 * ENTRY_BYTES / 2 + 20;
/// A text or a key in addition to its bytes: the least that the allocator hands out.
const TEXT_BYTES: usize = 32;
const VALUE_BYTES: usize = size_of::<Value>();
const ENTRY_BYTES: usize = VALUE_BYTES + 32;
const BLOCK_BYTES: usize = 16;

/// Where the parser stops: it reads no deeper than 127 levels.
const DEEPEST: u32 = 128;

/// Fields whose texts are read as JSON.
const JSON_TEXTS: [&[u8]; 3] = [b"arguments", b"guided_json", b"json"];
/// Fields whose texts are grammars, and what JSON in one follows.
const GRAMMARS: [&[u8]; 2] = [b"guided_grammar", b"grammar"];
const GRAMMAR_JSON: [&[u8]; 3] = [b"%json", b"%regex", b"%llguidance"];
/// JSON in a grammar is there as it is read, with references resolved, and as the compiler takes it.
const GRAMMAR_COPIES: usize = 3;

/// What a body comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Bytes of the values that the parser makes.
    pub values_bytes: usize,
    /// Bytes of values that are made of texts in them.
    pub nested_bytes: usize,
    /// Values there are, those in texts included.
    pub values: usize,
    /// Bytes of all texts.
    pub text_bytes: usize,
}

impl Weight {
    /// What a body weighs.
    pub fn of(json: &[u8]) -> Weight {
        let mut scan = Scan::default();
        let mut nested = Scan::default();
        // The last text, which is a key if a colon follows.
        let (mut last, mut key): (&[u8], &[u8]) = (b"", b"");
        let mut rest = json;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'"' => {
                    let (text, after) = text(rest);
                    rest = after;
                    scan.text(text.len());
                    if is_one_of(key, &JSON_TEXTS) {
                        nested.take_text(text);
                    }
                    if is_one_of(key, &GRAMMARS) {
                        nested.take_grammar(text);
                    }
                    last = text;
                    key = b"";
                }
                b':' => key = last,
                byte if !scan.take(byte) => break,
                _ => {}
            }
        }
        Weight {
            values_bytes: scan.bytes,
            nested_bytes: nested.bytes,
            values: scan.values + nested.values,
            text_bytes: scan.text_bytes,
        }
    }

    /// What reading takes at most: the body, its values, and the request that is made of them.
    pub fn reading_bytes(&self, body_bytes: usize) -> usize {
        body_bytes.saturating_add(self.values_bytes).saturating_add(self.held_bytes())
    }

    /// What the request holds that was made of the body: tools are there twice, as templates and as grammars want them.
    pub fn held_bytes(&self) -> usize {
        self.values_bytes.saturating_mul(2).saturating_add(self.nested_bytes)
    }
}

/// What a value holds, about.
pub fn of_value(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => TEXT_BYTES + text.len(),
        Value::Array(items) => {
            let inner: usize = items.iter().map(of_value).sum();
            ARRAY_BYTES.max(2 * VALUE_BYTES * items.len()) + inner
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| TEXT_BYTES + key.len() + of_value(value);
            let inner: usize = map.iter().map(entry).sum();
            OBJECT_BYTES.max(2 * (ENTRY_BYTES + BLOCK_BYTES) * map.len()) + inner
        }
    }
}

/// Whether a field is one of these. A key with escapes may be any.
fn is_one_of(key: &[u8], fields: &[&[u8]]) -> bool {
    fields.contains(&key) || key.contains(&b'\\')
}

/// A text up to its closing quote, and what follows.
fn text(json: &[u8]) -> (&[u8], &[u8]) {
    let mut end = 0;
    while let Some(step) = json[end..].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        end += step;
        if json[end] == b'"' {
            return (&json[..end], &json[end + 1..]);
        }
        end = (end + 2).min(json.len());
    }
    (json, b"")
}

/// Values as they come.
#[derive(Debug, Default)]
struct Scan {
    bytes: usize,
    values: usize,
    text_bytes: usize,
    depth: u32,
    /// What an array or object takes that has just been opened, if it is not empty.
    opened: usize,
    /// Whether what is open is an object, the innermost lowest.
    objects: u128,
}

impl Scan {
    /// Counts what this byte begins. False where the parser gives up.
    fn take(&mut self, byte: u8) -> bool {
        match byte {
            b'{' | b'[' => {
                self.bytes += self.opened;
                self.opened = if byte == b'{' { OBJECT_BYTES } else { ARRAY_BYTES };
                self.values += 1;
                self.objects = self.objects << 1 | u128::from(byte == b'{');
                self.depth += 1;
            }
            b'}' | b']' => {
                self.opened = 0;
                self.objects >>= 1;
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => {
                self.bytes += if self.objects & 1 == 1 { FIELD_BYTES } else { ELEMENT_BYTES };
                self.values += 1;
            }
            b' ' | b'\n' | b'\r' | b'\t' => {}
            _ => self.bytes += std::mem::take(&mut self.opened),
        }
        self.depth < DEEPEST
    }

    fn text(&mut self, bytes: usize) {
        self.bytes += std::mem::take(&mut self.opened) + TEXT_BYTES + bytes;
        self.text_bytes += bytes;
    }

    /// Counts the JSON of a text, if it holds any: nothing but an object or an array has more than one value.
    fn take_text(&mut self, text: &[u8]) {
        let mut bytes = Unescaped(text).skip_while(u8::is_ascii_whitespace).peekable();
        if !matches!(bytes.peek(), Some(b'{' | b'[')) {
            return;
        }
        (self.depth, self.objects, self.opened) = (0, 0, 0);
        // The length of the text that is open, and whether its next byte is escaped.
        let mut open: Option<(usize, bool)> = None;
        for byte in bytes {
            open = match (open, byte) {
                (Some((length, true)), _) => Some((length + 1, false)),
                (Some((length, false)), b'\\') => Some((length, true)),
                (Some((length, false)), b'"') => {
                    self.text(length);
                    None
                }
                (Some((length, false)), _) => Some((length + 1, false)),
                (None, b'"') => Some((0, false)),
                (None, byte) if !self.take(byte) => return,
                (None, _) => None,
            };
        }
        self.text(open.map_or(0, |(length, _)| length));
    }

    /// Counts the JSON in a grammar: all that looks like values behind the first mark of one. What is in strings and in
    /// expressions is not distinguished, since what opens those can be written in many ways.
    fn take_grammar(&mut self, text: &[u8]) {
        let mut open: Vec<u8> = Vec::with_capacity(GRAMMAR_JSON[2].len());
        let mut is_found = false;
        for byte in Unescaped(text) {
            if is_found {
                let bytes = match byte {
                    b'{' => OBJECT_BYTES,
                    b'[' => ARRAY_BYTES,
                    b',' | b':' => FIELD_BYTES.max(ELEMENT_BYTES),
                    b'"' => TEXT_BYTES / 2,
                    _ => 1,
                };
                self.bytes += GRAMMAR_COPIES * bytes;
                self.values += usize::from(matches!(byte, b'{' | b'[' | b','));
                continue;
            }
            match byte {
                b'%' => open.clear(),
                _ if open.is_empty() => continue,
                _ => {}
            }
            open.push(byte);
            is_found = GRAMMAR_JSON.contains(&open.as_slice());
            if !GRAMMAR_JSON.iter().any(|mark| mark.starts_with(&open)) {
                open.clear();
            }
        }
    }
}

/// The bytes of a text without its escapes. Characters beyond ASCII that are escaped count as one byte: they are in texts only.
struct Unescaped<'a>(&'a [u8]);

impl Iterator for Unescaped<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        if byte != b'\\' {
            return Some(byte);
        }
        let (&kind, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match kind {
            b'b' | b'f' | b'n' | b'r' | b't' => b' ',
            b'u' => {
                let (digits, rest) = self.0.split_at(self.0.len().min(4));
                self.0 = rest;
                let digits = std::str::from_utf8(digits).unwrap_or_default();
                u32::from_str_radix(digits, 16)
                    .ok()
                    .and_then(|code| u8::try_from(code).ok())
                    .unwrap_or(b'x')
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// What a value holds: its blocks by their capacities, as far as those can be queried.
    fn held(value: &Value) -> usize {
        let block = |bytes: usize| if bytes == 0 { 0 } else { bytes + 8 };
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => block(text.capacity()),
            Value::Array(items) => {
                block(items.capacity() * VALUE_BYTES) + items.iter().map(held).sum::<usize>()
            }
            Value::Object(map) => {
                // Entries and table grow to 3, 7, 14, 28 … together.
                let room = match map.len() {
                    0 => 0,
                    1..=3 => 3,
                    more => (more * 8).div_ceil(7).next_power_of_two() * 7 / 8,
                };
                let inner = |(key, value): (&String, &Value)| block(key.capacity()) + held(value);
                let table = if room == 0 { 0 } else { (room + 1) * 9 + 24 };
                block(room * ENTRY_BYTES) + table + map.iter().map(inner).sum::<usize>()
            }
        }
    }

    #[track_caller]
    fn check(json: &str) -> Weight {
        let weight = Weight::of(json.as_bytes());
        if let Ok(value) = serde_json::from_str::<Value>(json) {
            let held = held(&value);
            assert!(weight.values_bytes >= held, "{weight:?} for {held} of {json:.80}");
            // Not so much more that ordinary requests are refused.
            let is_plain = !json.contains('\\');
            assert!(
                !is_plain || weight.values_bytes <= 4 * held + 100,
                "{weight:?} for {held} of {json:.80}"
            );
        }
        weight
    }

    #[test]
    fn what_is_read_weighs_no_more_than_was_said() {
        for json in [
            "null",
            "[]",
            "{}",
            "[0]",
            "[[],[],[],[],[]]",
            "[[0],[0],[0]]",
            "\"a text of some length, longer than the least\"",
            "{\"\":0}",
            "{\"a\":{\"b\":[1,2,3,{\"c\":null}]}}",
        ] {
            check(json);
        }
        check(&json!(vec![json!({"a": 0}); 1000]).to_string());
        check(&json!(vec![0; 1025]).to_string());
        check(&json!(vec!["x"; 513]).to_string());
        let wide: serde_json::Map<String, Value> =
            (0..1000).map(|index| (index.to_string(), Value::Null)).collect();
        check(&json!(wide).to_string());
        check(
            &json!({"messages": [{"role": "user", "content": "word ".repeat(10_000)}]}).to_string(),
        );
        check(&json!({"a, b": "[{\"x\": 1, \"y\": 2}, 3]", "c": "\\\"[[["}).to_string());
    }

    #[test]
    fn deep_values_weigh_as_far_as_the_parser_goes() {
        let deep = check(&"[".repeat(1_000_000));
        assert_eq!(deep.values, DEEPEST as usize);
        assert!(deep.values_bytes < 100_000);
        // One closed is not one deeper.
        assert_eq!(check(&format!("[{}]", vec!["[]"; 1000].join(","))).values, 2000);
    }

    #[test]
    fn json_in_texts_weighs_like_json() {
        let inner = json!({"x": vec![json!({"a": "\"[,,\\"}); 100], "y": "é\u{7f}"}).to_string();
        let alone = Weight::of(inner.as_bytes());
        for key in ["arguments", "guided_json", "json"] {
            let weight = check(&json!([{"name": "f", key: inner}]).to_string());
            assert!(weight.nested_bytes >= alone.values_bytes - alone.text_bytes, "{weight:?}");
            assert!(weight.nested_bytes <= alone.values_bytes + 64, "{weight:?} of {alone:?}");
        }
        assert_eq!(
            check(&json!({"content": inner, "x": ["arguments", inner]}).to_string()).nested_bytes,
            0
        );
        // However it is written.
        let hidden: String = inner.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
        for body in [
            format!("{{\"arguments\": \"{hidden}\"}}"),
            format!("{{\"argum\\u0065nts\" : \" \\n{hidden}\"}}"),
        ] {
            assert!(
                check(&body).nested_bytes >= alone.values_bytes - 2 * alone.text_bytes,
                "{body}"
            );
        }
        for text in ["", "  ", "plain, text", "\"[1,2,3]\"", "12"] {
            assert_eq!(check(&json!({"arguments": text}).to_string()).nested_bytes, 0, "{text}");
        }
    }

    #[test]
    fn json_in_a_grammar_weighs_like_json() {
        let values = json!(vec![json!({"a": 0}); 1000]).to_string();
        let alone = Weight::of(values.as_bytes());
        for (key, grammar) in [
            ("guided_grammar", format!("start: %json {{\"enum\": {values}}}")),
            ("grammar", format!("start: \"50%\" a %%json {{\"enum\": {values}}}")),
            // A quote that is none, and a key and a mark that are written in escapes.
            ("guided_grammar", format!("start: /\"/ a\na: %regex {{\"x\": {values}}}")),
            ("grammar", format!("start: %llguidance {{\"x\": {values}}}")),
        ] {
            let weight = check(&json!({key: grammar}).to_string());
            assert!(weight.nested_bytes >= 3 * held(&serde_json::from_str(&values).unwrap()));
            assert!(weight.nested_bytes <= 12 * alone.values_bytes, "{weight:?} of {alone:?}");
            assert!(weight.values > 1000, "{weight:?}");
        }
        let hidden = "{\"gr\\u0061mmar\": \"start: \\u0025json [[0],[0]]\"}";
        assert!(check(hidden).nested_bytes > 3 * ARRAY_BYTES);
        // Without JSON it is text.
        for text in ["start: \"a\" | \"b\" | \"{,,,}\"", "start: /%js/ \"%js on\""] {
            assert_eq!(check(&json!({"guided_grammar": text}).to_string()).nested_bytes, 0);
        }
    }

    #[test]
    fn a_request_of_an_agent_is_light() {
        let property =
            json!({"type": "string", "description": "What to look for, as a regular expression."});
        let properties: serde_json::Map<String, Value> = ["pattern", "path", "glob", "mode"]
            .map(|key| (key.to_owned(), property.clone()))
            .into_iter()
            .collect();
        let tool = |index: usize| {
            json!({"type": "function", "function": {
            "name": format!("tool_{index}"), "description": "Finds things. ".repeat(40),
            "parameters": {"type": "object", "properties": properties, "required": ["pattern"]}}})
        };
        let turn = json!({"role": "assistant", "content": "I shall look. ".repeat(50), "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "tool_1", "arguments": "{\"pattern\": \"fn \\\\w+\"}"}}]});
        let body =
            json!({"messages": vec![turn; 260], "tools": (0..60).map(tool).collect::<Vec<_>>()})
                .to_string();
        assert!(body.len() > 250_000, "{}", body.len());
        let weight = check(&body);
        assert!(weight.held_bytes() < 4 << 20, "{weight:?} for {} bytes", body.len());
        // Types for the envelope would save what is neither: see docs/concepts/memory-plan.md.
        let value: Value = serde_json::from_str(&body).unwrap();
        let all = held(&value);
        let rest = all - held(&value["messages"]) - held(&value["tools"]);
        assert!(all < 4 * body.len() && rest < 1000, "{all} and {rest} for {} bytes", body.len());
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_weighed(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Weight::of(&bytes);
        }

        #[test]
        fn any_json_weighs_enough(json in "[\\[\\]{}\",:a0\\\\ ]{0,40}") {
            check(&json);
        }
    }
}
