//! Grammars of values in Gemma's and Python's notations.
//!
//! Objects and lists follow the schema some levels deep; below that, and where a schema allows several types,
//! any value will do.

use grammar::schema::Types;
use serde_json::Value;

use super::Tool;
use super::lark::{Lark, properties, quoted, words};
use super::tagged::{MOST_OTHERS, has_others};

/// How deep values follow a schema.
const DEPTH_LIMIT: usize = 6;

const INTEGER: &str = "/-?(0|[1-9][0-9]{0,17})/";
const NUMBER: &str = "/-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?/";
const PYTHON_STRING: &str = r#"/"([^"\\\x00-\x1F\x7F]|\\["\\nrt'])*"/"#;
const GEMMA_QUOTE: &str = "<|\"|>";

/// Which notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    Gemma,
    Python,
}

impl Lark<'_> {
    /// `{key:value,…}`
    pub(super) fn gemma_arguments(&mut self, tool: &Tool) -> String {
        let pairs = self.arguments(tool, Notation::Gemma, ":");
        format!("{} {pairs} {}", quoted("{"), quoted("}"))
    }

    /// `key=value, …`
    pub(super) fn python_arguments(&mut self, tool: &Tool) -> String {
        self.arguments(tool, Notation::Python, "=")
    }

    /// For a strict tool in the schema's order, for any other as they come.
    fn arguments(&mut self, tool: &Tool, notation: Notation, after_key: &str) -> String {
        let schema = &tool.parameters;
        let separator = separator(notation);
        if !tool.is_strict && has_others(schema) {
            let value = self.any(notation);
            let pair = format!("/[A-Za-z_][A-Za-z0-9_]{{0,63}}{after_key}/ {value}");
            let pair = self.rule("pair", &pair);
            let more = self.rule("more", &format!("{separator} {pair}"));
            return format!("({pair} {more}{{0,{MOST_OTHERS}}})?");
        }
        let pairs = self.pairs(schema, schema, notation, ("", after_key), DEPTH_LIMIT);
        if tool.is_strict {
            in_order(&pairs, &separator)
        } else {
            self.in_any_order(&pairs, &separator)
        }
    }

    /// Each property with its value, and whether it must come.
    fn pairs(
        &mut self,
        schema: &Value,
        root: &Value,
        notation: Notation,
        (before_key, after_key): (&str, &str),
        depth: usize,
    ) -> Vec<(String, bool)> {
        let mut pairs = Vec::new();
        for (key, schema, is_required) in properties(schema) {
            let value = self.value(schema, root, notation, depth);
            let key = quoted(&format!("{before_key}{key}{after_key}"));
            pairs.push((self.rule("pair", &format!("{key} {value}")), is_required));
        }
        pairs
    }

    fn value(&mut self, schema: &Value, root: &Value, notation: Notation, depth: usize) -> String {
        let types = Types::of(schema, root);
        if let Some(words) = words(schema) {
            let words: Vec<String> = words.iter().map(|word| self.word(word, notation)).collect();
            return format!("({})", words.join(" | "));
        }
        let only = |expect: Types| types == expect;
        let none = Types::default();
        if only(Types { string: true, ..none }) {
            self.string(notation)
        } else if only(Types { integer: true, ..none }) {
            INTEGER.to_owned()
        } else if types == (Types { number: true, integer: types.integer, ..none }) {
            NUMBER.to_owned()
        } else if only(Types { boolean: true, ..none }) {
            boolean(notation)
        } else if only(Types { array: true, ..none }) && depth > 0 {
            let item = self.value(&schema["items"], root, notation, depth - 1);
            let item = self.rule("item", &item);
            let separator = separator(notation);
            format!("\"[\" ({item} ({separator} {item})*)? \"]\"")
        } else if only(Types { object: true, ..none })
            && depth > 0
            && schema["properties"].is_object()
        {
            let around_key = if notation == Notation::Gemma { ("", ":") } else { ("\"", "\": ") };
            let pairs = self.pairs(schema, root, notation, around_key, depth - 1);
            format!("\"{{\" {} \"}}\"", in_order(&pairs, &separator(notation)))
        } else {
            self.any(notation)
        }
    }

    fn word(&self, word: &str, notation: Notation) -> String {
        match notation {
            Notation::Gemma => self.literal(&format!("{GEMMA_QUOTE}{word}{GEMMA_QUOTE}")),
            Notation::Python => quoted(&Value::from(word).to_string()),
        }
    }

    fn string(&mut self, notation: Notation) -> String {
        match notation {
            Notation::Gemma => {
                format!("{} {}", self.literal(GEMMA_QUOTE), self.text_until(GEMMA_QUOTE))
            }
            Notation::Python => PYTHON_STRING.to_owned(),
        }
    }

    /// Any value.
    fn any(&mut self, notation: Notation) -> String {
        let string = self.string(notation);
        let (boolean, null) = match notation {
            Notation::Gemma => (boolean(notation), "\"null\""),
            Notation::Python => (boolean(notation), "\"None\""),
        };
        let separator = separator(notation);
        let key = match notation {
            Notation::Gemma => "/[A-Za-z_][A-Za-z0-9_]{0,63}:/".to_owned(),
            Notation::Python => format!("{PYTHON_STRING} \": \""),
        };
        let value = self.next_name("value");
        let list = format!("\"[\" ({value} ({separator} {value})*)? \"]\"");
        let object = format!("\"{{\" ({key} {value} ({separator} {key} {value})*)? \"}}\"");
        self.rule("value", &format!("{string} | {NUMBER} | {boolean} | {null} | {list} | {object}"))
    }
}

/// Pairs in this order, with separators between those that come: all that must, and any of the others.
fn in_order(pairs: &[(String, bool)], separator: &str) -> String {
    // One alternative for each pair that can come first.
    let mut alternatives = Vec::new();
    let mut may_be_empty = true;
    for (first, (pair, is_required)) in pairs.iter().enumerate() {
        let rest = pairs[first + 1..].iter().map(|(pair, is_required)| {
            if *is_required {
                format!("{separator} {pair}")
            } else {
                format!("({separator} {pair})?")
            }
        });
        alternatives.push(format!("{pair} {}", rest.collect::<Vec<_>>().join(" ")));
        if *is_required {
            may_be_empty = false;
            break;
        }
    }
    match (alternatives.is_empty(), may_be_empty) {
        (true, _) => String::new(),
        (false, true) => format!("({})?", alternatives.join(" | ")),
        (false, false) => format!("({})", alternatives.join(" | ")),
    }
}

/// What stands between values and between arguments.
fn separator(notation: Notation) -> String {
    quoted(if notation == Notation::Gemma { "," } else { ", " })
}

fn boolean(notation: Notation) -> String {
    match notation {
        Notation::Gemma => "(\"true\" | \"false\")".to_owned(),
        Notation::Python => "(\"True\" | \"False\")".to_owned(),
    }
}
