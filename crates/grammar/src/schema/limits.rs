//! JSON schemas before they are compiled: limits, references, and how the JSON is written.
//!
//! The library follows references by recursion, and copies what a `$ref` leads to wherever other keywords
//! stand next to it, so a schema of a few lines can require any depth and any size. Both are bounded here.
//! Nothing is fetched: references lead into the schema itself.
//!
//! What is written: no white space but at most one space after each comma and colon, so that a model that
//! prefers blanks to an answer cannot have them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value};

use super::intersections;
use super::references::{self, plainly_referring};
use crate::error::{at_most, invalid};
use crate::{GrammarError, LONGEST_GRAMMAR_BYTES, LONGEST_REGEX_BYTES};

const DEEPEST: usize = 64;
/// Values in a schema once references are followed where the library copies.
const MOST_VALUES: usize = 20_000;
/// Values of an enum.
const MOST_CONSTANTS: usize = 2_000;
/// Schemas of which one or all apply: the library examines them in parallel.
const MOST_OPTIONS: usize = 500;
const MOST_PROPERTIES: usize = 1_000;
/// Expressions for names of an object: the library compares each with every other, 300 of them for seconds.
const MOST_PATTERNS: usize = 100;
/// The product of the lengths of expressions that one text must match: more than any single one has.
const MOST_PAIRS: usize = 1 << 20;
/// Levels that the library descends at most, through all references: 32 KB of its stack for each.
const MOST_LEVELS: usize = 4_096;
/// References in a row that are followed to distinguish options.
const MOST_HOPS: usize = 16;

/// Keywords that apply other schemas in place.
const APPLICATORS: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];
/// Keywords that say nothing about a value.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// Formats that JSON Schema defines. Any other is a note that constrains nothing.
const FORMATS: [&str; 19] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];
/// Keywords whose value is a schema, and those whose value is a list of them.
const OF_ONE: [&str; 8] =
    ["additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"];
const OF_LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// Checks a schema and adds how its JSON is written.
pub(crate) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let Value::Object(_) = schema else {
        return Err(invalid("a schema is a JSON object"));
    };
    let root_depth = depth(schema);
    at_most("levels", root_depth, DEEPEST)?;
    let bytes = schema.to_string().len();
    at_most("bytes", bytes, LONGEST_GRAMMAR_BYTES)?;

    // What leads nowhere is refused further down, by its own name.
    let schema = &plainly_referring(schema, |reference| Some(reference.to_owned()));
    let mut survey = Survey {
        root: schema,
        seen: HashSet::new(),
        targets: BTreeMap::new(),
        open: vec![schema],
        exclusive: true,
    };
    let mut values = 0;
    // References may lead to what is no schema where it stands.
    while let Some(schema) = survey.open.pop() {
        values += survey.visit(schema, Kind::Schema)?;
    }
    at_most("values", values, MOST_VALUES)?;
    let levels: usize = survey.targets.values().map(|target| depth(target)).sum();
    at_most("levels through references", root_depth + levels, MOST_LEVELS)?;
    let expanded = Expansion { root: schema, sizes: BTreeMap::new() }.size(schema, false);
    at_most("values with references followed", expanded, MOST_VALUES)?;
    let met = intersections::largest(schema);
    at_most("pairs in expressions that one text must match", met, MOST_PAIRS)?;

    // Tools request it: a keyword that the library cannot follow should not keep a tool from being called.
    let lenient = schema["x-guidance"]["lenient"].as_bool().unwrap_or(false);
    let mut schema = schema.clone();
    leave_notes_out(&mut schema);
    let writing = JsonCompileOptions {
        lenient,
        item_separator: ", ?".to_owned(),
        key_separator: ": ?".to_owned(),
        whitespace_flexible: false,
        coerce_one_of: survey.exclusive,
        ..JsonCompileOptions::default()
    };
    writing.apply_to(&mut schema);
    Ok(schema)
}

/// Takes out keywords that the library does not know and that say nothing here: formats of others, and names of
/// properties that must be strings.
fn leave_notes_out(schema: &mut Value) {
    let Value::Object(entries) = schema else { return };
    if entries.get("format").and_then(Value::as_str).is_some_and(|name| !FORMATS.contains(&name)) {
        entries.remove("format");
    }
    let is_any_name = |names: &Value| match names {
        Value::Bool(any) => *any,
        Value::Object(names) => names.iter().all(|(key, value)| {
            ANNOTATIONS.contains(&key.as_str()) || (key == "type" && value == "string")
        }),
        _ => false,
    };
    if entries.get("propertyNames").is_some_and(is_any_name) {
        entries.remove("propertyNames");
    }
    for (key, value) in entries {
        let key = key.as_str();
        match value {
            Value::Array(schemas) if OF_LISTS.contains(&key) => {
                schemas.iter_mut().for_each(leave_notes_out);
            }
            Value::Object(schemas) if references::MAPS.contains(&key) => {
                schemas.values_mut().for_each(leave_notes_out);
            }
            schema if OF_ONE.contains(&key) => leave_notes_out(schema),
            _ => {}
        }
    }
}

/// Checks what can be checked of a regular expression before it is parsed.
pub(crate) fn check_regex(regex: &str) -> Result<(), GrammarError> {
    at_most("bytes of a regular expression", regex.len(), LONGEST_REGEX_BYTES)?;
    if regex.is_empty() {
        return Err(invalid("the regular expression is empty"));
    }
    let backslashes = regex.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if backslashes % 2 == 1 {
        return Err(invalid("the regular expression ends in a backslash"));
    }
    Ok(())
}

/// Levels of arrays and objects. Without recursion: this is what makes it safe elsewhere.
fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut open = vec![(value, 1)];
    while let Some((value, level)) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(entries) => open.extend(entries.values().map(|item| (item, level + 1))),
            _ => continue,
        }
        deepest = deepest.max(level);
    }
    deepest
}

/// One walk over all that is written in a schema, and over all that its references make one.
struct Survey<'a> {
    root: &'a Value,
    /// Schemas that it has been to.
    seen: HashSet<*const Map<String, Value>>,
    /// Every reference and where it leads.
    targets: BTreeMap<&'a str, &'a Value>,
    /// Schemas that it has yet to go to.
    open: Vec<&'a Value>,
    /// Whether no value matches two options of any `oneOf`, as far as can be decided.
    exclusive: bool,
}

/// What a value in a schema is.
#[derive(Clone, Copy)]
enum Kind {
    Schema,
    /// A map of schemas by name.
    Map,
    Data,
}

impl<'a> Survey<'a> {
    /// Values in this one, itself included; none of a schema that it has been to.
    fn visit(&mut self, value: &'a Value, kind: Kind) -> Result<usize, GrammarError> {
        let mut count = 1;
        match value {
            Value::Array(items) => {
                for item in items {
                    count += self.visit(item, kind)?;
                }
            }
            Value::Object(entries) => {
                if let Kind::Schema = kind {
                    if !self.seen.insert(entries) {
                        return Ok(0);
                    }
                    self.visit_keywords(entries)?;
                }
                for (key, value) in entries {
                    let kind = match kind {
                        Kind::Schema if references::MAPS.contains(&key.as_str()) => Kind::Map,
                        Kind::Schema if references::DATA.contains(&key.as_str()) => Kind::Data,
                        Kind::Schema | Kind::Map => Kind::Schema,
                        Kind::Data => Kind::Data,
                    };
                    count += self.visit(value, kind)?;
                }
            }
            _ => {}
        }
        Ok(count)
    }

    fn visit_keywords(&mut self, entries: &'a Map<String, Value>) -> Result<(), GrammarError> {
        if let Some(Value::Array(options)) = entries.get("enum") {
            at_most("values of an enum", options.len(), MOST_CONSTANTS)?;
        }
        for keyword in ["allOf", "anyOf", "oneOf", "prefixItems"] {
            if let Some(Value::Array(options)) = entries.get(keyword) {
                at_most("options in a list", options.len(), MOST_OPTIONS)?;
            }
        }
        if let Some(Value::Object(properties)) = entries.get("properties") {
            at_most("properties of an object", properties.len(), MOST_PROPERTIES)?;
        }
        if let Some(Value::Object(patterns)) = entries.get("patternProperties") {
            at_most("patterns for properties of an object", patterns.len(), MOST_PATTERNS)?;
        }
        if let Some(Value::String(pattern)) = entries.get("pattern") {
            at_most("bytes of a regular expression", pattern.len(), LONGEST_REGEX_BYTES)?;
        }
        if let Some(Value::String(reference)) = entries.get("$ref") {
            let target = resolve(self.root, reference)?;
            if self.targets.insert(reference, target).is_none() {
                self.open.push(target);
            }
        }
        if let Some(Value::Array(options)) = entries.get("oneOf") {
            // Every pair is looked at: a long list is left to the library.
            self.exclusive &= options.len() <= DEEPEST
                && options.iter().enumerate().all(|(index, option)| {
                    options[..index].iter().all(|other| disjoint(self.root, option, other))
                });
        }
        Ok(())
    }
}

/// Where a reference leads.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Result<&'a Value, GrammarError> {
    if reference == "#" || reference == "#/" {
        return Ok(root);
    }
    let shown = || reference.chars().take(100).collect::<String>();
    let unsupported = || GrammarError::Unsupported { keyword: format!("$ref to {:?}", shown()) };
    let path = reference.strip_prefix("#/").ok_or_else(unsupported)?;
    let step = |value: &'a Value, segment: &str| match value {
        Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
        value => value.get(segment),
    };
    path.split('/').try_fold(root, step).ok_or_else(|| match references::follow(root, reference) {
        Some(_) => unsupported(),
        None => invalid(&format!("$ref {:?} leads nowhere", shown())),
    })
}

/// How large a schema becomes where the library copies what references lead to.
struct Expansion<'a> {
    root: &'a Value,
    /// Size behind each reference; none while it is being found, which is where a circle closes.
    sizes: BTreeMap<&'a str, Option<usize>>,
}

impl<'a> Expansion<'a> {
    /// `mixed`: another schema applies to the same value, so references are copied.
    fn size(&mut self, value: &'a Value, mixed: bool) -> usize {
        match value {
            Value::Array(items) => {
                items.iter().fold(1, |sum, item| sum.saturating_add(self.size(item, mixed)))
            }
            Value::Object(entries) => {
                let keywords =
                    entries.keys().filter(|key| !ANNOTATIONS.contains(&key.as_str())).count();
                let applies = APPLICATORS.iter().any(|key| entries.contains_key(*key));
                let several = entries
                    .get("allOf")
                    .and_then(Value::as_array)
                    .is_some_and(|schemas| schemas.len() > 1);
                let mixed = mixed || several || (applies && keywords > 1);
                let behind = match entries.get("$ref") {
                    Some(Value::String(reference)) if mixed => self.behind(reference),
                    _ => 1,
                };
                entries
                    .values()
                    .fold(behind, |sum, value| sum.saturating_add(self.size(value, mixed)))
            }
            _ => 1,
        }
    }

    fn behind(&mut self, reference: &'a str) -> usize {
        if let Some(&size) = self.sizes.get(reference) {
            return size.unwrap_or(1);
        }
        self.sizes.insert(reference, None);
        let root = self.root;
        let size = resolve(root, reference).map_or(1, |target| self.size(target, true));
        self.sizes.insert(reference, Some(size));
        size
    }
}

/// Whether no value satisfies both schemas, by their types, their constants, or a required constant property.
fn disjoint(root: &Value, a: &Value, b: &Value) -> bool {
    let (a, b) = (follow(root, a), follow(root, b));
    if differ(a, b) {
        return true;
    }
    let (Some(types_a), Some(types_b)) = (types(a), types(b)) else { return false };
    if types_a.is_disjoint(&types_b) {
        return true;
    }
    let object = BTreeSet::from(["object"]);
    if types_a != object || types_b != object {
        return false;
    }
    let requires = |schema: &Value, name: &str| {
        let required = schema["required"].as_array();
        required.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let Some(properties) = a["properties"].as_object() else { return false };
    properties.iter().any(|(name, property)| {
        let other = &b["properties"][name];
        requires(a, name)
            && requires(b, name)
            && differ(follow(root, property), follow(root, other))
    })
}

/// Whether both are lists of constants without a common one.
fn differ(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (constants(a), constants(b)) else { return false };
    let plain = |value: &&Value| !value.is_array() && !value.is_object();
    let same = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    };
    a.iter().all(plain) && b.iter().all(plain) && !a.iter().any(|a| b.iter().any(|b| same(a, b)))
}

fn follow<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..MOST_HOPS {
        let target = schema["$ref"].as_str().and_then(|reference| resolve(root, reference).ok());
        let Some(target) = target else { break };
        schema = target;
    }
    schema
}

fn constants(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(constant), _) => Some(vec![constant]),
        (None, Some(Value::Array(options))) => Some(options.iter().collect()),
        _ => None,
    }
}

/// The types a value may have, integers as numbers; none if any.
fn types(schema: &Value) -> Option<BTreeSet<&str>> {
    if let Some(constants) = constants(schema) {
        let name = |value: &Value| match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        return Some(constants.into_iter().map(name).collect());
    }
    let number = |name| if name == "integer" { "number" } else { name };
    match schema.get("type")? {
        Value::String(name) => Some(BTreeSet::from([number(name.as_str())])),
        Value::Array(names) => names.iter().map(|name| name.as_str().map(number)).collect(),
        _ => None,
    }
}
