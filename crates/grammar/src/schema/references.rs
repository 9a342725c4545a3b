//! References inside a JSON schema, and walks over one.
//!
//! References come as clients' libraries write them: to definitions, to any other part (`#/properties/from`), to the
//! whole (`#`), with signs escaped (`#/definitions/Record%3Cstring%3E`). Compilers follow plain paths only.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Keywords whose value is a map of schemas by names that are no keywords.
pub(super) const MAPS: [&str; 5] =
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords whose value is data.
pub(super) const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// References are followed again and again: absurdly long ones are not.
const LONGEST_REFERENCE_BYTES: usize = 1_024;

/// The keys on the way that a reference describes; `None` if it leads out of the schema.
pub(super) fn keys(reference: &str) -> Option<Vec<Cow<'_, str>>> {
    if matches!(reference, "#" | "#/") {
        return Some(Vec::new());
    }
    let path = reference.strip_prefix("#/")?;
    if path.len() > LONGEST_REFERENCE_BYTES {
        return None;
    }
    path.split('/').map(unescaped).collect()
}

/// What a reference leads to in `root`.
pub(super) fn follow<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    keys(reference)?.iter().try_fold(root, |part, key| match part {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        part => part.get(key.as_ref()),
    })
}

/// A reference as a plain path; `None` where a key has a slash in it.
pub(super) fn path(keys: &[Cow<'_, str>]) -> Option<String> {
    let is_plain = keys.iter().all(|key| !key.contains('/'));
    is_plain.then(|| keys.iter().fold("#".to_owned(), |path, key| path + "/" + key))
}

/// The plain path to what a reference leads to in `root`; `None` if there is none, or nothing.
pub(super) fn plain_path(root: &Value, reference: &str) -> Option<String> {
    follow(root, reference)?;
    path(&keys(reference)?)
}

/// Writes every reference in a schema anew; what there is no other text for is taken out.
pub(super) fn rewrite_references(schema: &mut Value, anew: &mut dyn FnMut(&str) -> Option<String>) {
    visit(schema, &mut |entries| {
        if let Some(Value::String(reference)) = entries.get_mut("$ref") {
            match anew(reference) {
                Some(text) => *reference = text,
                None => _ = entries.remove("$ref"),
            }
        }
    });
}

/// A schema whose references are plain paths where they lead somewhere; the others become what `unknown` makes of
/// them, or are taken out.
pub fn plainly_referring(schema: &Value, unknown: impl Fn(&str) -> Option<String>) -> Value {
    let mut plain = schema.clone();
    rewrite_references(&mut plain, &mut |reference| {
        plain_path(schema, reference).or_else(|| unknown(reference))
    });
    plain
}

/// Takes out regular expressions, which can require more than can be followed.
pub fn leave_expressions_out(schema: &mut Value) {
    visit(schema, &mut |schema| {
        schema.remove("format");
        schema.remove("pattern");
        // What one of them allowed is not to be forbidden.
        if schema.remove("patternProperties").is_some() {
            schema.remove("additionalProperties");
        }
    });
}

/// Shows every schema in a schema, itself first.
pub(super) fn visit(schema: &mut Value, see: &mut dyn FnMut(&mut Map<String, Value>)) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(|schema| visit(schema, see)),
        Value::Object(entries) => {
            see(entries);
            for (key, value) in entries {
                match value {
                    Value::Object(named) if MAPS.contains(&key.as_str()) => {
                        named.values_mut().for_each(|schema| visit(schema, see));
                    }
                    _ if DATA.contains(&key.as_str()) => {}
                    value => visit(value, see),
                }
            }
        }
        _ => {}
    }
}

/// A key without `%41`, `~1` and `~0`; `None` if that is not UTF-8.
fn unescaped(key: &str) -> Option<Cow<'_, str>> {
    if !key.contains(['%', '~']) {
        return Some(key.into());
    }
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digit = |index: usize| char::from(*after.get(index)?).to_digit(16);
        let (byte, length) = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => (u8::try_from(high * 16 + low).ok()?, 3),
            _ => (first, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    Some(String::from_utf8(bytes).ok()?.replace("~1", "/").replace("~0", "~").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(reference: &str, expect: Option<&str>) {
        let root = json!({
            "properties": {"from": {"items": [{"const": 1}, {"const": 2}]}},
            "definitions": {"Record<string>": {}, "a/b": {}, "a~b": {}, "50%": {}, "": {"": {}}},
        });
        assert_eq!(plain_path(&root, reference).as_deref(), expect, "{reference}");
    }

    #[test]
    fn references_are_followed_however_they_are_written() {
        check("#", Some("#"));
        check("#/", Some("#"));
        check("#/properties/from", Some("#/properties/from"));
        check("#/properties/from/items/1", Some("#/properties/from/items/1"));
        check("#/definitions/Record%3Cstring%3e", Some("#/definitions/Record<string>"));
        check("#/definitions/Record<string>", Some("#/definitions/Record<string>"));
        check("#/definitions/a~0b", Some("#/definitions/a~b"));
        check("#/definitions/50%", Some("#/definitions/50%"));
        check("#/definitions/50%25", Some("#/definitions/50%"));
        check("#/definitions/", Some("#/definitions/"));
        check("#/definitions/a~1b", None);
        check("#/definitions/%ff", None);
        check("#/definitions/none", None);
        check("#/properties/from/items/2", None);
        check("#/properties/from/items/x", None);
        check("#from", None);
        check("https://example.com/schema.json#/definitions/a", None);
        let root = json!({"definitions": {"a/b": {"const": 3}}});
        assert_eq!(follow(&root, "#/definitions/a~1b"), Some(&json!({"const": 3})));
        let long = "a".repeat(2_000);
        assert_eq!(follow(&json!({&long: 1}), &format!("#/{long}")), None);
    }

    #[test]
    fn references_are_rewritten_and_names_and_data_are_not() {
        let mut schema = json!({
            "properties": {"$ref": {"$ref": "a"}, "enum": {"$ref": "a"}, "gone": {"$ref": "b", "type": "string"}},
            "anyOf": [{"items": {"$ref": "a"}}, {"const": {"$ref": "a"}}],
            "default": {"$ref": "a"},
        });
        rewrite_references(&mut schema, &mut |text| (text == "a").then(|| "A".to_owned()));
        let expect = json!({
            "properties": {"$ref": {"$ref": "A"}, "enum": {"$ref": "A"}, "gone": {"type": "string"}},
            "anyOf": [{"items": {"$ref": "A"}}, {"const": {"$ref": "a"}}],
            "default": {"$ref": "a"},
        });
        assert_eq!(schema, expect);
    }
}
