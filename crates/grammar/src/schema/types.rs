//! What a JSON schema says about the types of a value.
//!
//! Schemas come from clients: every walk over one is bounded, whatever its references and alternatives.

use std::collections::HashSet;

use serde_json::Value;

use super::references;

/// Schemas that references and alternatives may add up to; of more than these nothing is known.
const MEMBER_LIMIT: usize = 2_000;

/// Types a value may have; none at all means that the schema does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Types {
    /// A text.
    pub string: bool,
    /// A whole number.
    pub integer: bool,
    /// Any number.
    pub number: bool,
    /// `true` or `false`.
    pub boolean: bool,
    /// `null`.
    pub null: bool,
    /// An object.
    pub object: bool,
    /// A list.
    pub array: bool,
}

impl Types {
    /// Types of the value that `schema`, a part of `root`, describes.
    pub fn of(schema: &Value, root: &Value) -> Types {
        let mut types = Types::default();
        for member in members(schema, root, Alternatives::All) {
            types.add_own(member);
        }
        types
    }

    /// Types of one argument of a tool.
    pub fn of_parameter(parameters: &Value, name: &str) -> Types {
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
    pub fn named(schema: &Value) -> Types {
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
    pub fn names(self) -> Vec<&'static str> {
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
    pub fn is_text(self) -> bool {
        self == Types { string: true, ..Types::default() }
    }

    /// Whether a value is of one of these types.
    pub fn admit(self, value: &Value) -> bool {
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
pub enum Alternatives {
    /// All.
    All,
    /// Those with no other type except null.
    Lone,
}

/// The schemas that describe one value: `schema`, a part of `root`, and those it points to or combines, each
/// once; none if there are too many.
pub fn members<'a>(
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
pub fn target<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    references::follow(root, schema["$ref"].as_str()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
