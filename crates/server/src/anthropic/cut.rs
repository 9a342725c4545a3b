//! Arguments of a call that was cut off: JSON text that ends anywhere.
//!
//! What a stream has sent is read by Anthropic's own client as far as it goes: texts, names and words that are not
//! whole are left out, a number counts as it stands. An answer that comes at once must say the same.

use serde_json::{Map, Value};

/// The object that a text comes to, even if its end is missing; an empty one, if it is none.
pub(super) fn object(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).or_else(|_| serde_json::from_str(&closed(json))).unwrap_or_default()
}

/// The beginning of a text up to the last value in it that is whole, with its brackets closed.
fn closed(json: &str) -> String {
    let mut closers = Vec::new();
    let mut end = 0;
    // Whether the next text in quotes is the name of a member.
    let mut is_name = false;
    let mut rest = json.trim_start();
    while let Some((token, after)) = split_token(rest) {
        let is_whole = match token {
            "{" | "[" => {
                is_name = token == "{";
                closers.push(if is_name { "}" } else { "]" });
                true
            }
            "}" | "]" => closers.pop().is_some(),
            "," | ":" => {
                is_name = token == "," && closers.last() == Some(&"}");
                false
            }
            _ if token.starts_with('"') => !is_name,
            // A number or a word.
            _ => serde_json::from_str::<Value>(token).is_ok(),
        };
        if is_whole {
            end = json.len() - after.len();
        }
        rest = after.trim_start();
    }
    std::iter::once(&json[..end]).chain(closers.into_iter().rev()).collect()
}

/// The first mark, text, number or word, and what follows; `None` at the end, or where a text in quotes has none.
fn split_token(json: &str) -> Option<(&str, &str)> {
    let is_mark = |c: char| "{}[],:".contains(c);
    let length = match json.chars().next()? {
        '"' => quoted_length(json)?,
        first if is_mark(first) => 1,
        _ => json.find(|c: char| is_mark(c) || c == '"' || c.is_whitespace()).unwrap_or(json.len()),
    };
    Some(json.split_at(length))
}

/// Bytes of the text in quotes that begins here, if it ends.
fn quoted_length(json: &str) -> Option<usize> {
    let mut is_escaped = false;
    let ends = |byte: u8| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    };
    // Behind the first quote, and with the last.
    json.bytes().skip(1).position(ends).map(|length| length + 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_that_is_cut_off_says_what_the_official_client_reads_in_it() {
        // What jiter 0.19 makes of it with `partial_mode=True`, which is how `anthropic` 2.10 reads a stream.
        #[track_caller]
        fn check(json: &str, expect: &Value) {
            assert_eq!(Value::from(object(json)), *expect, "{json}");
        }
        for cut in [
            "",
            " ",
            "{",
            r#"{"a"#,
            r#"{"a""#,
            r#"{"a":"#,
            r#"{"a": "#,
            r#"{"a": tr"#,
            r#"{"a": nul"#,
        ] {
            check(cut, &json!({}));
        }
        for cut in ["-", "1.", "1e", r#""b"#, r#""b\"#, r#""b\""#, r#""b\u00"#] {
            check(&format!(r#"{{"a": {cut}"#), &json!({}));
        }
        for cut in ["", " ", ",", ", ", r#", "b"#, r#" , "b" :"#, r#", "b": f"#, "}"] {
            check(&format!(r#" {{"a": 1{cut}"#), &json!({"a": 1}));
        }
        check(r#"{"a": 12"#, &json!({"a": 12}));
        check(r#"{"a": 1.5"#, &json!({"a": 1.5}));
        check(r#"{"a": true"#, &json!({"a": true}));
        check(r#"{"a": "b""#, &json!({"a": "b"}));
        check(r#"{"a": "}\\", "c": "{"#, &json!({"a": r#"}\"#}));
        check(r#"{"a": ["#, &json!({"a": []}));
        check(r#"{"a": {"#, &json!({"a": {}}));
        check(r#"{"a": ["x", "y"#, &json!({"a": ["x"]}));
        check(r#"{"a": [1, 2,"#, &json!({"a": [1, 2]}));
        check(r#"{"a": [{"b": "c"}, {"#, &json!({"a": [{"b": "c"}, {}]}));
        check(r#"{"a": {"b": 1}, "c": {"d""#, &json!({"a": {"b": 1}, "c": {}}));
    }

    #[test]
    fn what_is_no_object_becomes_an_empty_one() {
        for json in ["[1, 2", "5", r#""a""#, "nothing", "}", r#"{"a": 1, b: 2}"#, r#"{"a" 1"#, "{]"]
        {
            assert!(object(json).is_empty(), "{json}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let plain = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i16>().prop_map(|number| Value::from(f64::from(number) / 4.0)),
            any::<String>().prop_map(Value::from),
        ];
        plain.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                members(inner).prop_map(Value::from),
            ]
        })
    }

    fn members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::vec((any::<String>(), value), 0..4)
            .prop_map(|members| members.into_iter().collect())
    }

    proptest! {
        #[test]
        fn every_beginning_of_an_object_is_an_object_with_the_members_that_were_whole(
            whole in members(value()),
            at in any::<prop::sample::Index>(),
            is_spaced in any::<bool>(),
        ) {
            let write = |object: &Map<String, Value>| {
                let written = if is_spaced { serde_json::to_string_pretty(object) } else { serde_json::to_string(object) };
                written.unwrap()
            };
            let json = write(&whole);
            let ends: Vec<usize> = (1..=json.len()).filter(|&end| json.is_char_boundary(end)).collect();
            let cut = &json[..ends[at.index(ends.len())]];
            let closed: Map<String, Value> = serde_json::from_str(&closed(cut)).unwrap();
            prop_assert_eq!(&closed, &object(cut));
            // Members in their order, of which only the last may be less than it would have been.
            prop_assert!(closed.keys().eq(whole.keys().take(closed.len())));
            for (key, value) in closed.iter().take(closed.len().saturating_sub(1)) {
                prop_assert_eq!(value, &whole[key]);
            }
            for count in 1..=whole.len() {
                let some: Map<String, Value> =
                    whole.iter().take(count).map(|(key, value)| (key.clone(), value.clone())).collect();
                let written = write(&some);
                // All but the bracket that closes it.
                if cut.starts_with(written[..written.len() - 1].trim_end()) {
                    prop_assert_eq!(closed.iter().take(count).collect::<Vec<_>>(), some.iter().collect::<Vec<_>>());
                }
            }
        }
    }
}
