//! A value that arrives as plain text, as JSON.
//!
//! Formats like Qwen's XML write `5` for the number and for the word; the schema decides. This reads types
//! only: whether a value satisfies the schema is for the tool to say.

use grammar::schema::Types;
use serde_json::Value;

use super::transcode::{Notation, Token, Transcoder, number, push_string};

/// The JSON of a value given as text.
pub(super) fn convert(text: &str, types: Types) -> String {
    let mut out = String::new();
    if types.is_text() {
        push_string(text, &mut out);
        return out;
    }
    let trimmed = text.trim();
    let says_nothing = types == Types::default();
    if types.null && matches!(trimmed, "null" | "None") {
        return "null".to_owned();
    }
    if types.boolean && trimmed.eq_ignore_ascii_case("true") {
        return "true".to_owned();
    }
    if types.boolean && trimmed.eq_ignore_ascii_case("false") {
        return "false".to_owned();
    }
    if (types.integer || types.number)
        && let Some(number) = number(trimmed)
    {
        let whole = number.strip_suffix(".0").filter(|_| !types.number);
        return whole.unwrap_or(&number).to_owned();
    }
    let value = serde_json::from_str::<Value>(trimmed).ok();
    let fits = |value: &Value| match value {
        Value::Object(_) => types.object || says_nothing,
        Value::Array(_) => types.array || says_nothing,
        _ => says_nothing || !types.string,
    };
    if let Some(value) = value.filter(fits) {
        return value.to_string();
    }
    if (types.object && trimmed.starts_with('{')) || (types.array && trimmed.starts_with('[')) {
        // Models trained on Python write its literals now and then.
        let mut transcoder = Transcoder::new(Notation::Python);
        let done = trimmed
            .chars()
            .map(|c| transcoder.push(c, &mut out))
            .find(|token| *token != Token::More);
        if done == Some(Token::Done) {
            return out;
        }
        out.clear();
    }
    push_string(text, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: &Value, cases: &[(&str, &str)]) {
        let root = json!({"properties": {"x": schema}, "$defs": {"count": {"type": "integer"}}});
        for (text, expect) in cases {
            assert_eq!(
                convert(text, Types::of_parameter(&root, "x")),
                *expect,
                "{text} as {schema}"
            );
        }
    }

    #[test]
    fn the_schema_decides_the_type() {
        check(
            &json!({"type": "string"}),
            &[("5", "\"5\""), (" a\n", "\" a\\n\""), ("null", "\"null\"")],
        );
        check(
            &json!({"type": "integer"}),
            &[("5", "5"), (" 5\n", "5"), ("5.0", "5"), ("five", "\"five\""), ("null", "null")],
        );
        check(&json!({"type": "number"}), &[("5", "5"), ("5.0", "5.0"), (".5", "0.5")]);
        check(
            &json!({"type": "boolean"}),
            &[("true", "true"), ("False", "false"), ("yes", "\"yes\"")],
        );
        check(
            &json!({"type": "array"}),
            &[("[1, 2]", "[1,2]"), ("['a', None]", "[\"a\",null]"), ("[1", "\"[1\"")],
        );
        check(
            &json!({"type": "object"}),
            &[("{\"a\": 1}", "{\"a\":1}"), ("{'a': True}", "{\"a\":true}")],
        );
    }

    #[test]
    fn several_types_and_none() {
        check(
            &json!({"type": ["string", "null"]}),
            &[("null", "null"), ("5", "\"5\""), ("a", "\"a\"")],
        );
        check(
            &json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
            &[("5", "5"), ("a b", "\"a b\"")],
        );
        check(&json!({"enum": ["a", 1]}), &[("1", "1"), ("a", "\"a\"")]);
        check(&json!({"$ref": "#/$defs/count"}), &[("5", "5")]);
        check(
            &json!({}),
            &[("5", "5"), ("{\"a\": [1]}", "{\"a\":[1]}"), ("a b", "\"a b\""), ("true", "true")],
        );
    }
}
