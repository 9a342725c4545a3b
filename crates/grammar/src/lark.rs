//! Lark grammars before they are compiled: limits, and the JSON schemas inside them.
//!
//! The library's parser descends into brackets and its compiler from rule to rule, so both are counted; a
//! `%json` block gets the limits and the writing of a schema of its own. The scan knows Lark just well enough
//! to distinguish brackets and blocks from those in strings, expressions and comments; whether the grammar is right
//! is the library's question.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::error::{at_most, invalid};
use crate::schema::limits;
use crate::{GrammarError, LONGEST_GRAMMAR_BYTES};

const DEEPEST: usize = 64;
/// Rules and terminals.
const MOST_RULES: usize = 2_000;
const MOST_SCHEMAS: usize = 256;
/// Of a block of JSON, before it is parsed; no schema may have more.
const MOST_VALUES: usize = 20_000;
/// The library pairs every branch of one expression with every branch of the other before it counts what that costs,
/// and names let a few intersections become many.
const MOST_INTERSECTIONS: usize = 1;
const LONGEST_INTERSECTION_BYTES: usize = 1 << 10;

/// Checks a grammar and prepares its schemas.
pub(crate) fn prepare(lark: &str) -> Result<String, GrammarError> {
    at_most("bytes", lark.len(), LONGEST_GRAMMAR_BYTES)?;
    let bytes = lark.as_bytes();
    let mut prepared = String::with_capacity(lark.len() + 256);
    let (mut depth, mut rules, mut schemas, mut intersections) = (0usize, 0, 0, 0);
    let mut copied = 0; // all before is in `prepared`
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match rest[0] {
            b'"' => quoted(rest, b'"', true),
            b'#' => line(rest),
            b'/' if rest.get(1) == Some(&b'/') => line(rest),
            b'/' => quoted(rest, b'/', false),
            b'<' => name(rest),
            b'(' | b'[' | b'{' => {
                depth += 1;
                at_most("brackets in brackets", depth, DEEPEST)?;
                1
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                1
            }
            b'&' => {
                intersections += 1;
                at_most("intersections", intersections, MOST_INTERSECTIONS)?;
                at_most("bytes with an intersection", bytes.len(), LONGEST_INTERSECTION_BYTES)?;
                1
            }
            b':' => {
                rules += 1;
                at_most("rules", rules, MOST_RULES)?;
                1
            }
            b'%' => {
                let word = rest[1..].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
                let after = at + 1 + word;
                match &rest[1..=word] {
                    b"json" => {
                        schemas += 1;
                        at_most("%json blocks", schemas, MOST_SCHEMAS)?;
                        let (value, length) = value(&lark[after..])?;
                        prepared.push_str(&lark[copied..after]);
                        prepared.push(' ');
                        prepared.push_str(&limits::prepare(&value)?.to_string());
                        copied = after + length;
                        1 + word + length
                    }
                    b"regex" | b"llguidance" => 1 + word + value(&lark[after..])?.1,
                    _ => 1 + word,
                }
            }
            _ => 1,
        };
    }
    prepared.push_str(&lark[copied..]);
    Ok(prepared)
}

/// Bytes to the end of the line.
fn line(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len())
}

/// Bytes of a string or an expression, with both delimiters; one that is not closed is left to the parser.
fn quoted(bytes: &[u8], delimiter: u8, one_line: bool) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == delimiter => return at + 1,
            b'\n' if one_line => return 1,
            _ => at += 1,
        }
    }
    1
}

/// Bytes of a control token's name, which may hold any sign.
fn name(bytes: &[u8]) -> usize {
    let inner = |&byte: &u8| !matches!(byte, b'<' | b'>') && !byte.is_ascii_whitespace();
    let length = bytes[1..].iter().take_while(|byte| inner(byte)).count();
    if length > 0 && bytes.get(length + 1) == Some(&b'>') { length + 2 } else { 1 }
}

/// The JSON value that the text begins with, and its length. It is counted before anything is made of it.
fn value(text: &str) -> Result<(Value, usize), GrammarError> {
    let wrong = |error| invalid(&format!("the JSON in the grammar: {error}"));
    let mut extent = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let found =
        extent.next().ok_or_else(|| invalid("the grammar ends where JSON should follow"))?;
    found.map_err(wrong)?;
    let json = &text[..extent.byte_offset()];
    // Commas in texts count as well: they are few.
    let values = json.bytes().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count();
    at_most("values", values, MOST_VALUES)?;
    Ok((serde_json::from_str(json).map_err(wrong)?, json.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_a_grammar_is_counted_before_it_is_parsed() {
        #[track_caller]
        fn check(json: &str, expect: &str) {
            for mark in ["%json", "%regex", "%llguidance"] {
                let error = prepare(&format!("start: {mark} {json}")).unwrap_err().to_string();
                assert!(error.contains(expect), "{error}");
            }
        }
        let many = format!("[{}]", vec!["[]"; MOST_VALUES].join(","));
        check(&format!("{{\"enum\": {many}}}"), "values");
        // It ends in nothing, and nothing was made of what came before.
        check(&format!("{{\"enum\": {many}"), "the JSON in the grammar: EOF");
        check("", "where JSON should follow");
        assert!(prepare("start: %json {\"enum\": [1, \"a,b\"]} \"x\"").is_ok());
    }
}
