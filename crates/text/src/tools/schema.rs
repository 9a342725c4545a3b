//! What a tool's JSON schema says about a value that arrives as plain text.
//!
//! Formats like Qwen's XML write `5` for the number and for the word; the schema decides. This reads types
//! only: whether a value satisfies the schema is for the tool to say.

use serde_json::Value;

use super::transcode::{Notation, Token, Transcoder, number, push_string};

/// How far references and alternatives are followed.
const DEPTH_LIMIT: usize = 8;

/// Types a value may have; none at all means that the schema does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Types {
    pub(super) string: bool,
    pub(super) integer: bool,
    pub(super) number: bool,
    pub(super) boolean: bool,
    pub(super) null: bool,
    pub(super) object: bool,
    pub(super) array: bool,
}

impl Types {
    /// Types of the value that `schema`, a part of `root`, describes.
    pub(super) fn of(schema: &Value, root: &Value) -> Types {
        let mut types = Types::default();
        types.collect(schema, root, DEPTH_LIMIT);
        types
    }

    /// Types of one argument of a tool.
    pub(super) fn of_parameter(parameters: &Value, name: &str) -> Types {
        match parameter(parameters, name) {
            Some(schema) => Types::of(schema, parameters),
            None => Types::default(),
        }
    }

    /// Whether text can go out as a string before it has ended.
    pub(super) fn is_text(self) -> bool {
        self == Types { string: true, ..Types::default() }
    }

    fn collect(&mut self, schema: &Value, root: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match &schema["type"] {
            Value::String(name) => self.add(name),
            Value::Array(names) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add(name));
            }
            _ => {
                let values =
                    schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
                values.for_each(|value| self.add_value(value));
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for alternative in schema[key].as_array().into_iter().flatten() {
                self.collect(alternative, root, depth);
            }
        }
        if schema["nullable"] == true {
            self.null = true;
        }
        let target = schema["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
        if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
            self.collect(target, root, depth);
        }
    }

    fn add(&mut self, name: &str) {
        match name {
            "string" | "str" => self.string = true,
            "integer" | "int" => self.integer = true,
            "number" | "float" => self.number = true,
            "boolean" | "bool" => self.boolean = true,
            "null" => self.null = true,
            "object" | "dict" => self.object = true,
            "array" | "list" => self.array = true,
            _ => {}
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::String(_) => self.string = true,
            Value::Number(number) if number.is_f64() => self.number = true,
            Value::Number(_) => self.integer = true,
            Value::Bool(_) => self.boolean = true,
            Value::Null => self.null = true,
            Value::Object(_) => self.object = true,
            Value::Array(_) => self.array = true,
        }
    }
}

/// Schema of one argument of a tool.
pub(super) fn parameter<'a>(parameters: &'a Value, name: &str) -> Option<&'a Value> {
    let declared = parameters["properties"].get(name);
    declared.or_else(|| parameters.get("additionalProperties").filter(|schema| schema.is_object()))
}

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
    use super::*;
    use serde_json::json;

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

    #[test]
    fn references_in_a_circle_end() {
        let root = json!({"properties": {"x": {"$ref": "#/properties/x"}}});
        assert_eq!(Types::of_parameter(&root, "x"), Types::default());
    }
}
