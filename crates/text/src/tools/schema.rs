//! What a tool's JSON schema says about a value that arrives as plain text.
//!
//! Formats like Qwen's XML write `5` for the number and for the word; the schema decides. This reads types
//! only: whether a value satisfies the schema is for the tool to say.
//!
//! Schemas come from clients: every walk over one is bounded, whatever its references and alternatives.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::transcode::{Notation, Token, Transcoder, number, push_string};
use crate::json_schema;

/// Schemas that references and alternatives may add up to; of more than these nothing is known.
const MEMBER_LIMIT: usize = 2_000;

/// Where schemas keep parts that references lead to.
pub(super) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

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
        for member in members(schema, root, Alternatives::All) {
            types.add_own(member);
        }
        types
    }

    /// Types of one argument of a tool.
    pub(super) fn of_parameter(parameters: &Value, name: &str) -> Types {
        let of = |schemas: Vec<&Value>| {
            schemas
                .into_iter()
                .fold(Types::default(), |types, schema| types.or(Types::of(schema, parameters)))
        };
        let objects = members(parameters, parameters, Alternatives::All);
        let declared: Vec<&Value> =
            objects.iter().filter_map(|object| object["properties"].get(name)).collect();
        if !declared.is_empty() {
            return of(declared);
        }
        let others = objects.iter().filter_map(|object| object.get("additionalProperties"));
        of(others.filter(|schema| schema.is_object()).collect())
    }

    /// Types that a schema names itself.
    pub(super) fn named(schema: &Value) -> Types {
        let mut types = Types::default();
        match &schema["type"] {
            Value::String(name) => types.add(name),
            Value::Array(names) => {
                names.iter().filter_map(Value::as_str).for_each(|name| types.add(name));
            }
            _ => {}
        }
        types
    }

    /// The names of these types.
    pub(super) fn names(self) -> Vec<&'static str> {
        let names = [
            (self.string, "string"),
            (self.integer, "integer"),
            (self.number, "number"),
            (self.boolean, "boolean"),
            (self.null, "null"),
            (self.object, "object"),
            (self.array, "array"),
        ];
        names.into_iter().filter(|(is_one, _)| *is_one).map(|(_, name)| name).collect()
    }

    /// Whether text can go out as a string before it has ended.
    pub(super) fn is_text(self) -> bool {
        self == Types { string: true, ..Types::default() }
    }

    /// Whether a value is of one of these types.
    pub(super) fn admit(self, value: &Value) -> bool {
        match value {
            Value::String(_) => self.string,
            Value::Number(number) => {
                let is_whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
                self.number || (self.integer && is_whole)
            }
            Value::Bool(_) => self.boolean,
            Value::Null => self.null,
            Value::Object(_) => self.object,
            Value::Array(_) => self.array,
        }
    }

    fn or(self, other: Types) -> Types {
        Types {
            string: self.string | other.string,
            integer: self.integer | other.integer,
            number: self.number | other.number,
            boolean: self.boolean | other.boolean,
            null: self.null | other.null,
            object: self.object | other.object,
            array: self.array | other.array,
        }
    }

    /// What one schema says, references and alternatives aside.
    fn add_own(&mut self, schema: &Value) {
        *self = self.or(Types::named(schema));
        if schema["type"].is_null() {
            let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
            values.for_each(|value| self.add_value(value));
        }
        self.null |= schema["nullable"] == true;
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

/// Which alternatives of a schema are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alternatives {
    /// All.
    All,
    /// Those that have no other beside them, except for null.
    Lone,
}

/// The schemas that describe one value: `schema`, a part of `root`, and those it points to or combines, each
/// once; none if there are too many.
pub(super) fn members<'a>(
    schema: &'a Value,
    root: &'a Value,
    alternatives: Alternatives,
) -> Vec<&'a Value> {
    let mut members = Vec::new();
    let mut seen = HashSet::new();
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        if !seen.insert(std::ptr::from_ref(schema)) {
            continue;
        }
        if members.len() == MEMBER_LIMIT {
            return Vec::new();
        }
        members.push(schema);
        let mut parts: Vec<&Value> = target(schema, root).into_iter().collect();
        parts.extend(schema["allOf"].as_array().into_iter().flatten());
        for key in ["anyOf", "oneOf"] {
            let options = schema[key].as_array().into_iter().flatten();
            let others = options.clone().filter(|option| option["type"] != "null");
            match alternatives {
                Alternatives::All => parts.extend(options),
                Alternatives::Lone if others.clone().count() == 1 => parts.extend(others),
                Alternatives::Lone => {}
            }
        }
        // The last is looked at first.
        open.extend(parts.into_iter().rev());
    }
    members
}

/// Where the reference of a schema leads.
pub(super) fn target<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    json_schema::follow(root, schema["$ref"].as_str()?)
}

/// A schema whose references are plain paths. Those that lead nowhere, to other files, or by names with a slash are left
/// out: whatever they mean, a tool can be called without it.
pub(super) fn plainly_referring(schema: &Value) -> Value {
    let mut plain = schema.clone();
    json_schema::rewrite_references(&mut plain, &mut |reference| {
        json_schema::plain_path(schema, reference)
    });
    plain
}

/// The same, and they lead to definitions, so that its parts can be taken out with these alone.
pub(super) fn settled(schema: &Value) -> Value {
    let is_taken = |name: &String| DEFINITIONS.iter().any(|key| schema[key].get(name).is_some());
    let mut count = 0;
    let name = loop {
        let name = format!("whole{count}");
        if !is_taken(&name) {
            break name;
        }
        count += 1;
    };
    let mut needs_whole = false;
    let mut settled = schema.clone();
    json_schema::rewrite_references(&mut settled, &mut |reference| {
        let plain = json_schema::plain_path(schema, reference)?;
        let keys = json_schema::keys(reference)?;
        match &keys[..] {
            [first] if DEFINITIONS.contains(&first.as_ref()) => None,
            [first, ..] if DEFINITIONS.contains(&first.as_ref()) => Some(plain),
            keys => {
                needs_whole = true;
                let whole = [Cow::from(DEFINITIONS[0]), Cow::from(&name)];
                json_schema::path(&[&whole[..], keys].concat())
            }
        }
    });
    if needs_whole && let Value::Object(entries) = &mut settled {
        let mut whole = entries.clone();
        DEFINITIONS.iter().for_each(|key| _ = whole.remove(*key));
        let definitions = entries.entry(DEFINITIONS[0]).or_insert_with(|| json!({}));
        if !definitions.is_object() {
            *definitions = json!({});
        }
        definitions[&name] = whole.into();
    }
    settled
}

/// The definitions of a settled schema that references in a part of it lead to.
pub(super) fn definitions_of(part: &Value, root: &Value) -> Map<String, Value> {
    let mut reached = Map::new();
    let mut open = vec![part.clone()];
    while let Some(mut part) = open.pop() {
        json_schema::rewrite_references(&mut part, &mut |reference| {
            let keys = json_schema::keys(reference)?;
            let [key, name, ..] = &keys[..] else { return None };
            let definition = root.get(key.as_ref())?.get(name.as_ref())?;
            let definitions = reached.entry(key.as_ref()).or_insert_with(|| json!({}));
            if definitions.get(name.as_ref()).is_none() {
                definitions[name.as_ref()] = definition.clone();
                open.push(definition.clone());
            }
            None
        });
    }
    reached
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
    fn a_part_takes_along_what_it_leads_to() {
        let leads = |name: &str| json!({"items": {"$ref": format!("#/$defs/{name}")}});
        let root = settled(&json!({
            "properties": {"a": leads("one"), "b": {"$ref": "#/properties/a"}, "c": {"type": "string"}},
            "$defs": {"one": leads("two"), "two": leads("one"), "three": {}, "whole0": {}},
        }));
        #[track_caller]
        fn check(root: &Value, name: &str, expect: &[&str]) {
            let reached = definitions_of(&root["properties"][name], root);
            let reached = reached.get("$defs").and_then(Value::as_object);
            let names: Vec<&str> =
                reached.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, expect, "{name}");
        }
        check(&root, "a", &["one", "two"]);
        check(&root, "b", &["whole1", "one", "two"]);
        check(&root, "c", &[]);
        assert_eq!(root["properties"]["b"]["$ref"], "#/$defs/whole1/properties/a");
        assert_eq!(settled(&json!({"$ref": "#/$defs", "$defs": {}})), json!({"$defs": {}}));
        for odd in [json!(null), json!([])] {
            let root = settled(
                &json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}, "$defs": odd}),
            );
            assert_eq!(root["$defs"]["whole0"]["properties"]["b"], json!({}), "{odd}");
        }
    }

    #[test]
    fn references_in_a_circle_end() {
        let root = json!({"properties": {"x": {"$ref": "#/properties/x"}}});
        assert_eq!(Types::of_parameter(&root, "x"), Types::default());
    }

    /// With every path followed, these would be the breadth to the power of the depth.
    #[test]
    fn a_wide_schema_is_walked_once() {
        let types = |breadth: usize| {
            let wide = |name: &str| {
                let reference = json!({"$ref": format!("#/$defs/{name}")});
                json!({"anyOf": vec![reference; breadth], "allOf": [{"type": "integer"}]})
            };
            let root = json!({
                "properties": {"x": {"$ref": "#/$defs/A"}},
                "$defs": {"A": wide("B"), "B": wide("C"), "C": wide("A")},
            });
            Types::of_parameter(&root, "x")
        };
        assert_eq!(types(400), Types { integer: true, ..Types::default() });
        assert_eq!(types(2_000), Types::default());
    }

    #[test]
    fn arguments_are_found_behind_references() {
        let root = json!({
            "$ref": "#/$defs/Args",
            "$defs": {"Args": {"allOf": [
                {"properties": {"x": {"type": "string"}}},
                {"anyOf": [{"properties": {"y": {"type": "integer"}}}]},
                {"additionalProperties": {"type": "boolean"}},
            ]}},
        });
        let none = Types::default();
        for (name, expect) in [
            ("x", Types { string: true, ..none }),
            ("y", Types { integer: true, ..none }),
            ("z", Types { boolean: true, ..none }),
        ] {
            assert_eq!(Types::of_parameter(&root, name), expect, "{name}");
        }
    }
}
