//! Closed schemas: an object has the properties that its schema lists and no others, as Ollama takes them.
//!
//! JSON Schema lets an object have any further property unless `additionalProperties` says no, and a model
//! would make some up. Ollama's grammars know only what is listed (llama.cpp's `json-schema-to-grammar`).
//!
//! Invariant: what can be satisfied stays so. Where several schemas hold for the same object, none of them
//! lists all its properties, so they stay as they are.

use serde_json::{Map, Value};

use super::DEFINITIONS;

/// Keys whose schemas hold for what the schema they stand in describes, too.
const FURTHER: [&str; 8] =
    ["allOf", "anyOf", "oneOf", "$ref", "not", "if", "dependentSchemas", "patternProperties"];

/// The schema with its objects closed. Recursion is as deep as the request, which JSON's reader bounds.
pub fn closed(schema: &Value) -> Value {
    let mut closed = schema.clone();
    // A schema that is referred to from among several must stay open, wherever it stands.
    if close(&mut closed) { closed } else { schema.clone() }
}

/// Closes a schema and those inside. False if one of several that hold together is a reference.
fn close(schema: &mut Value) -> bool {
    let Value::Object(schema) = schema else { return true };
    if holds_with_others(schema) {
        return !(schema.contains_key("$ref") || schema.values().any(refers));
    }
    if lists_all(schema) {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    schema.iter_mut().all(|(key, value)| match (key.as_str(), value) {
        (key, Value::Object(named)) if key == "properties" || DEFINITIONS.contains(&key) => {
            named.values_mut().all(close)
        }
        ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(list)) => {
            list.iter_mut().all(close)
        }
        ("items" | "additionalProperties", schema) => close(schema),
        _ => true,
    })
}

/// Whether more than one schema holds for the object that this one describes.
fn holds_with_others(schema: &Map<String, Value>) -> bool {
    let has = |key: &&&str| schema.contains_key(**key);
    let own = ["properties", "required", "additionalProperties"].iter().any(|key| has(&key));
    let further = FURTHER.iter().filter(has).count();
    let all_of = schema.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    all_of > 1 || further + usize::from(own) > 1
}

/// Whether a schema lists properties, all that it requires among them, and says nothing of others.
fn lists_all(schema: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = schema.get("properties") else { return false };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let of_others = ["additionalProperties", "unevaluatedProperties"];
    required.filter_map(Value::as_str).all(|name| properties.contains_key(name))
        && !of_others.iter().any(|key| schema.contains_key(*key))
}

fn refers(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key("$ref") || map.values().any(refers),
        Value::Array(list) => list.iter().any(refers),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn open(name: &str) -> Value {
        json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]})
    }

    fn shut(name: &str) -> Value {
        let mut schema = open(name);
        schema["additionalProperties"] = false.into();
        schema
    }

    #[track_caller]
    fn check(schema: &Value, expect: &Value) {
        assert_eq!(closed(schema), *expect);
    }

    #[track_caller]
    fn stays(schema: &Value) {
        check(schema, schema);
    }

    #[test]
    fn objects_have_the_listed_properties_only() {
        check(&open("a"), &shut("a"));
        // As Pydantic writes a model that holds others, one of them optional.
        let schema = |of: &dyn Fn(&str) -> Value| {
            json!({
                "$defs": {"Pet": of("name")},
                "definitions": {"Old": of("b")},
                "type": "object",
                "properties": {
                    "pets": {"type": "array", "items": {"$ref": "#/$defs/Pet"}},
                    "best": {"anyOf": [{"$ref": "#/$defs/Pet"}, {"type": "null"}], "default": null},
                    "old": {"allOf": [{"$ref": "#/definitions/Old"}], "description": "d"},
                    "either": {"oneOf": [of("c"), of("d")]},
                    "pair": {"prefixItems": [of("e"), of("f")]},
                    "map": {"type": "object", "additionalProperties": of("g")},
                    // Names of properties, not words of a schema.
                    "properties": of("h"),
                    "allOf": {"type": "array", "items": of("i")},
                },
                "required": ["pets"],
            })
        };
        let mut expect = schema(&shut);
        expect["additionalProperties"] = false.into();
        check(&schema(&open), &expect);
    }

    #[test]
    fn a_schema_that_mentions_others_stays() {
        let mut schema = open("a");
        for says in [json!(true), json!(false), json!({"type": "integer"})] {
            schema["additionalProperties"] = says;
            stays(&schema);
        }
        stays(&json!({"properties": {"a": {}}, "unevaluatedProperties": true}));
        // No list of properties at all, or none of those that must be there.
        stays(&json!({"type": "object"}));
        stays(&json!({"properties": {"a": {}}, "required": ["b"]}));
        stays(&json!(true));
        stays(&json!({"const": open("a"), "default": open("b")}));
    }

    #[test]
    fn schemas_that_hold_together_stay_open() {
        stays(&json!({"allOf": [open("a"), open("b")]}));
        stays(&json!({"properties": {"a": open("x")}, "anyOf": [open("b"), open("c")]}));
        stays(&json!({"required": ["a"], "oneOf": [open("a"), open("b")]}));
        stays(&json!({"anyOf": [open("a"), open("b")], "oneOf": [open("c"), open("d")]}));
        stays(&json!({"properties": {"a": open("x")}, "patternProperties": {"^a": open("y")}}));
        // Next to others that need not.
        let both = json!({"allOf": [open("a"), open("b")]});
        check(
            &json!({"properties": {"both": both, "one": open("c")}}),
            &json!({"properties": {"both": both, "one": shut("c")}, "additionalProperties": false}),
        );
        // What they refer to must stay open too.
        let base = json!({"$ref": "#/$defs/Base"});
        stays(&json!({"$defs": {"Base": open("a")}, "allOf": [base, open("b")]}));
        stays(
            &json!({"$defs": {"Base": open("a")}, "properties": {"x": {"allOf": [base, open("b")]}}}),
        );
        stays(
            &json!({"$defs": {"Base": open("a")}, "$ref": "#/$defs/Base", "properties": {"b": {}}}),
        );
    }
}
