//! The arguments of a tool in a plain schema: `properties` and `required` at its top, an `enum` for each
//! argument of which all values, strings among them, can be listed, and in `additionalProperties` whether there may
//! be others.
//!
//! Clients' schemas say the same through `$ref`, `allOf`, lone alternatives and `const`. Formats that write
//! arguments one by one have their grammars from the plain schema; those that write JSON need none.

use std::collections::HashSet;

use grammar::schema::{Alternatives, DEFINITIONS, Types, members, target};
use serde_json::{Map, Value, json};

use super::scan::NAME_LIMIT_BYTES;
use super::{Tool, ToolFormat};
use crate::{Error, Result};

/// Longest name of an argument: readers take [`NAME_LIMIT_BYTES`], plus the attributes.
const KEY_LIMIT_BYTES: usize = NAME_LIMIT_BYTES - 32;

/// Schemas and values that are looked at to list the values of a tool's arguments; what is left then is not listed.
const STEP_LIMIT: usize = 50_000;
/// How far references and alternatives are followed to list values.
const DEPTH_LIMIT: usize = 16;

static NULL: Value = Value::Null;
static FALSE: Value = Value::Bool(false);
static TRUE: Value = Value::Bool(true);

impl ToolFormat {
    /// The tool with a plain schema of the arguments that can be named; all that it requires must be. Of a tool that is
    /// not strict only the values and types of its arguments are left.
    pub(super) fn plain_tool(self, tool: &Tool) -> Result<Tool> {
        let mut parameters = plain(&tool.parameters);
        let required = parameters["required"].as_array().into_iter().flatten();
        let mut names = required.filter_map(Value::as_str);
        if let Some(name) = names.find(|name| !self.can_name(name)) {
            let reason =
                format!("{:?} requires {name:?}, which calls of this model cannot name", tool.name);
            return Err(Error::Tool { reason });
        }
        if let Some(properties) = parameters["properties"].as_object_mut() {
            properties.retain(|name, _| self.can_name(name));
            if !tool.is_strict {
                let loosen = |schema: &mut Value| *schema = loose(schema, &tool.parameters);
                properties.values_mut().for_each(loosen);
            }
        }
        Ok(Tool { parameters, ..tool.clone() })
    }

    /// Whether a format that names arguments one by one can write this name and reads it back.
    fn can_name(self, key: &str) -> bool {
        let is_word = |signs: &str| key.chars().all(|c| c.is_alphanumeric() || signs.contains(c));
        let is_fit = match self {
            ToolFormat::Gemma4 => is_word("_-+.") && !key.starts_with(['-', '+', '.']),
            ToolFormat::Pythonic => is_word("_-."),
            ToolFormat::MiniMax | ToolFormat::DeepSeekXml => !key.contains(['"', '>']),
            ToolFormat::Glm => true,
            _ => !key.contains('>'),
        };
        is_fit
            && !key.is_empty()
            && key.len() <= KEY_LIMIT_BYTES
            && key.trim() == key
            && !key.chars().any(char::is_control)
            && !self.markers().iter().any(|marker| key.contains(marker))
    }
}

/// The plain schema of a tool's arguments.
fn plain(parameters: &Value) -> Value {
    let mut properties: Map<String, Value> = Map::new();
    let mut required: Vec<&Value> = Vec::new();
    let mut others: Option<bool> = None;
    for object in members(parameters, parameters, Alternatives::Lone) {
        for (name, schema) in object["properties"].as_object().into_iter().flatten() {
            match properties.get_mut(name) {
                Some(before) => *before = json!({"allOf": [before.take(), schema]}),
                None => {
                    properties.insert(name.clone(), schema.clone());
                }
            }
        }
        required.extend(object["required"].as_array().into_iter().flatten());
        if let Some(schema) = object.get("additionalProperties") {
            others = Some(others != Some(false) && *schema != false);
        }
    }
    for name in required.iter().filter_map(|name| name.as_str()) {
        properties.entry(name).or_insert_with(|| json!({}));
    }
    let mut steps_left = STEP_LIMIT;
    for schema in properties.values_mut() {
        let list = values(schema, parameters, &mut steps_left);
        let is_worth_it =
            |list: &Vec<&Value>| list.is_empty() || list.iter().any(|value| value.is_string());
        if let Some(list) = list.filter(is_worth_it) {
            *schema = json!({"enum": list});
        }
    }
    // Tools that name their arguments seldom mean others, whatever a schema says by saying nothing.
    let others = others.unwrap_or(properties.is_empty());
    let mut plain = json!({
        "type": "object", "properties": properties, "required": distinct(required), "additionalProperties": others,
    });
    for key in DEFINITIONS {
        if let Some(definitions) = parameters.get(key) {
            plain[key] = definitions.clone();
        }
    }
    plain
}

/// No more than the values or the types of an argument.
fn loose(schema: &Value, root: &Value) -> Value {
    match schema.get("enum") {
        Some(values) => json!({"enum": values}),
        None => json!({"type": Types::of(schema, root).names()}),
    }
}

/// All values that `schema`, a part of `root`, allows; `None` where they cannot be listed.
fn values<'a>(
    schema: &'a Value,
    root: &'a Value,
    steps_left: &mut usize,
) -> Option<Vec<&'a Value>> {
    Listing { root, steps_left }.list(schema, DEPTH_LIMIT).map(distinct)
}

struct Listing<'a, 's> {
    root: &'a Value,
    steps_left: &'s mut usize,
}

impl<'a> Listing<'a, '_> {
    fn list(&mut self, schema: &'a Value, depth: usize) -> Option<Vec<&'a Value>> {
        let depth = depth.checked_sub(1)?;
        self.spend(1)?;
        // All of these apply at once.
        let mut lists: Vec<Vec<&Value>> =
            schema.get("const").map(|value| vec![value]).into_iter().collect();
        if let Some(values) = schema["enum"].as_array() {
            self.spend(values.len())?;
            lists.push(values.iter().collect());
        }
        let parts = schema["allOf"].as_array().into_iter().flatten();
        for part in parts.chain(target(schema, self.root)) {
            lists.extend(self.list(part, depth));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(options) = schema[key].as_array() {
                let options: Option<Vec<_>> =
                    options.iter().map(|option| self.list(option, depth)).collect();
                lists.extend(options.map(|options| options.concat()));
            }
        }
        let types = Types::named(schema);
        if lists.is_empty() {
            lists.extend(all_of(types));
        }
        let mut lists = lists.into_iter();
        let mut common = lists.next()?;
        for list in lists {
            let texts: HashSet<String> = list.iter().map(|value| value.to_string()).collect();
            common.retain(|value| texts.contains(&value.to_string()));
        }
        if types != Types::default() {
            common.retain(|value| types.admit(value));
        }
        Some(common)
    }

    fn spend(&mut self, steps: usize) -> Option<()> {
        let left = self.steps_left.checked_sub(steps);
        *self.steps_left = left.unwrap_or(0);
        left.map(|_| ())
    }
}

/// The values of types that have few.
fn all_of(types: Types) -> Option<Vec<&'static Value>> {
    let few = Types { null: types.null, boolean: types.boolean, ..Types::default() };
    if types != few || types == Types::default() {
        return None;
    }
    let values = [(types.null, &NULL), (types.boolean, &FALSE), (types.boolean, &TRUE)];
    Some(values.into_iter().filter(|(is_allowed, _)| *is_allowed).map(|(_, value)| value).collect())
}

/// Each value once, in order.
fn distinct(mut values: Vec<&Value>) -> Vec<&Value> {
    let mut seen = HashSet::new();
    values.retain(|value| seen.insert(value.to_string()));
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schema: &Value, expect: Option<&Value>) {
        let definitions = json!({
            "color": {"type": "string", "enum": ["red", "blue"]},
            "loop": {"allOf": [{"$ref": "#/$defs/loop"}]},
        });
        let root = json!({"properties": {"x": schema}, "$defs": definitions});
        let list = values(&root["properties"]["x"], &root, &mut { STEP_LIMIT });
        assert_eq!(list.map(|list| json!(list)).as_ref(), expect, "{schema}");
    }

    #[test]
    fn values_are_listed_wherever_they_stand() {
        let color = json!({"$ref": "#/$defs/color"});
        check(&json!({"const": "a"}), Some(&json!(["a"])));
        check(&json!({"enum": ["", "a", 1, null, "a"]}), Some(&json!(["", "a", 1, null])));
        check(&json!({"type": "string", "enum": ["a", 1, null]}), Some(&json!(["a"])));
        check(&color, Some(&json!(["red", "blue"])));
        check(&json!({"allOf": [color], "default": "red"}), Some(&json!(["red", "blue"])));
        check(&json!({"allOf": [color, {"enum": ["blue", "green"]}]}), Some(&json!(["blue"])));
        check(&json!({"allOf": [color, {"enum": ["green"]}]}), Some(&json!([])));
        check(&json!({"anyOf": [color, {"type": "null"}]}), Some(&json!(["red", "blue", null])));
        check(&json!({"oneOf": [{"const": "a"}, {"const": 5}]}), Some(&json!(["a", 5])));
        check(
            &json!({"anyOf": [color, {"type": "boolean"}]}),
            Some(&json!(["red", "blue", false, true])),
        );
        check(&json!({"anyOf": [color, {"type": "string"}]}), None);
        check(&json!({"type": "string"}), None);
        check(&json!({"type": ["string", "null"]}), None);
        check(&json!({}), None);
        check(&json!({"$ref": "#/$defs/loop"}), None);
        check(&json!({"$ref": "#/$defs/nothing"}), None);
    }

    #[test]
    fn listing_ends() {
        let many = vec![json!({"$ref": "#/$defs/A"}); 2_000];
        for key in ["anyOf", "allOf"] {
            let root =
                json!({"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": {key: many}}});
            assert_eq!(values(&root["properties"]["x"], &root, &mut { STEP_LIMIT }), None);
        }
        let numbers: Vec<usize> = (0..=STEP_LIMIT).collect();
        assert_eq!(values(&json!({"enum": numbers}), &Value::Null, &mut { STEP_LIMIT }), None);
    }

    #[test]
    fn arguments_come_to_the_top() {
        let schema = json!({
            "$ref": "#/$defs/Args",
            "$defs": {"Args": {
                "allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}],
                "anyOf": [{"properties": {"b": {"const": "x"}, "a": {"maxLength": 5}}, "required": ["b", "a", "c"]}],
            }},
        });
        let plain = plain(&schema);
        assert_eq!(
            plain["properties"],
            json!({"a": {"allOf": [{"type": "string"}, {"maxLength": 5}]}, "b": {"enum": ["x"]}, "c": {}})
        );
        assert_eq!(plain["required"], json!(["a", "b", "c"]));
        assert_eq!(plain["$defs"], schema["$defs"]);
    }
}
