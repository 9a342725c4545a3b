//! Parts of a JSON schema, taken out with the definitions that they need.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::references::{keys, path, plain_path, rewrite_references};

/// Where schemas keep parts that references lead to.
pub const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// A plainly referring schema whose references lead to definitions, so that its parts can be taken out with these alone.
pub fn settled(schema: &Value) -> Value {
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
    rewrite_references(&mut settled, &mut |reference| {
        let plain = plain_path(schema, reference)?;
        let keys = keys(reference)?;
        match &keys[..] {
            [first] if DEFINITIONS.contains(&first.as_ref()) => None,
            [first, ..] if DEFINITIONS.contains(&first.as_ref()) => Some(plain),
            keys => {
                needs_whole = true;
                let whole = [Cow::from(DEFINITIONS[0]), Cow::from(&name)];
                path(&[&whole[..], keys].concat())
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
pub fn definitions_of(part: &Value, root: &Value) -> Map<String, Value> {
    let mut reached = Map::new();
    let mut open = vec![part.clone()];
    while let Some(mut part) = open.pop() {
        rewrite_references(&mut part, &mut |reference| {
            let keys = keys(reference)?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
