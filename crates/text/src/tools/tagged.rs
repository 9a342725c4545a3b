//! Grammars of arguments between tags: strings are raw text, other values JSON.
//!
//! A string keeps to its list of values or to its lengths. `pattern` is left out of account: it is a search in
//! another dialect of regular expressions, and one that does not compile would fail the request.

use grammar::schema::{Alternatives, Types, members};
use serde_json::Value;

use super::Tool;
use super::lark::{Lark, Tags, lark_string, named_schemas, quoted};

/// Lengths of strings are counted up to here: every count is a state of its own.
const LENGTH_LIMIT: u64 = 2_000;

/// Required arguments that are waited for in any order: twice the rules for each.
const MOST_AWAITED: usize = 4;

/// Arguments that a schema does not name.
pub(super) const MOST_OTHERS: usize = 64;

/// A name that no tag ends in.
const ANY_KEY: &str = r#"/[^\s<>"'=|]{1,64}/"#;

impl Lark<'_> {
    /// Arguments one by one; those that are not required may be left out. For a strict tool in the schema's order, for
    /// any other as they come.
    pub(super) fn parameters(&mut self, tool: &Tool, tags: &Tags) -> String {
        if !tool.is_strict && has_others(&tool.parameters) {
            let forms = self.forms_of_any(tags);
            return format!("{}{{0,{MOST_OTHERS}}}", self.rule("parameter", &forms.join(" | ")));
        }
        let mut rules: Vec<(String, bool)> = Vec::new();
        for (key, schema, is_required) in named_schemas(&tool.parameters) {
            if self.is_too_large() {
                break;
            }
            let forms = self.forms(key, schema, &tool.parameters, tags);
            if forms.is_empty() && is_required {
                let reason = format!("{:?} requires {key:?}, which has no value", tool.name);
                self.obstacle.get_or_insert(reason);
            }
            if forms.is_empty() {
                continue;
            }
            rules.push((self.rule("parameter", &forms.join(" | ")), is_required));
        }
        if tool.is_strict {
            let write =
                |(rule, is_required): (String, bool)| rule + if is_required { " " } else { "? " };
            return rules.into_iter().map(write).collect();
        }
        self.in_any_order(&rules, "")
    }

    /// Arguments as they come, with a separator between them: each of a few that are required once, and between them no
    /// more of the others than there are, so that a weak model comes to an end.
    pub(super) fn in_any_order(&mut self, arguments: &[(String, bool)], separator: &str) -> String {
        let are_few = arguments.iter().filter(|argument| argument.1).count() <= MOST_AWAITED;
        let of = |is_awaited: bool| {
            let is_meant = move |argument: &&(String, bool)| (argument.1 && are_few) == is_awaited;
            arguments.iter().filter(is_meant).map(|argument| argument.0.as_str()).collect()
        };
        let (awaited, others): (Vec<&str>, Vec<&str>) = (of(true), of(false));
        let most = others.len();
        let others = others.join(" | ");
        let more = if others.is_empty() {
            String::new()
        } else {
            let other = self.rule("other", &format!("{separator} ({others})"));
            format!("{other}{{0,{most}}}")
        };
        // What may follow when these of the awaited have come, a bit for each.
        let all = (1 << awaited.len()) - 1;
        let mut after = vec![more.clone(); all + 1];
        for came in (0..all).rev() {
            let left = awaited.iter().enumerate().filter(|(index, _)| came >> index & 1 == 0);
            let next = left.map(|(index, argument)| {
                format!("{separator} {argument} {}", after[came | 1 << index])
            });
            let next: Vec<String> = next.collect();
            after[came] = self.rule("after", &format!("{more} ({})", next.join(" | ")));
        }
        if separator.is_empty() {
            return after.swap_remove(0);
        }
        let first = awaited.iter().enumerate();
        let mut first: Vec<String> =
            first.map(|(index, argument)| format!("{argument} {}", after[1 << index])).collect();
        if !others.is_empty() {
            first.push(format!("({others}) {}", after[0]));
        }
        match (first.is_empty(), awaited.is_empty()) {
            (true, _) => String::new(),
            (false, true) => format!("({})?", first.join(" | ")),
            (false, false) => format!("({})", first.join(" | ")),
        }
    }

    /// The ways to write an argument of any name.
    fn forms_of_any(&mut self, tags: &Tags) -> Vec<String> {
        let spellings: &[&str] =
            if tags.after_key.contains('?') { &["true", "false"] } else { &[""] };
        let mut forms = Vec::new();
        for spelling in spellings {
            let after_key = self.literal(&tags.after_key.replace('?', spelling));
            let (before, value) =
                (self.literal(&tags.before_key), self.text_until(&tags.after_value));
            forms.push(format!("{before} {ANY_KEY} {after_key} {value}"));
        }
        forms
    }

    /// The ways to write one argument.
    fn forms(&mut self, key: &str, schema: &Value, root: &Value, tags: &Tags) -> Vec<String> {
        let before = |lark: &Self, is_text: bool| {
            let after_key = tags.after_key.replace('?', if is_text { "true" } else { "false" });
            lark.literal(&format!("{}{key}{after_key}", tags.before_key))
        };
        let end = &tags.after_value;
        if let Some(values) = enumeration(schema) {
            let (texts, others): (Vec<&Value>, Vec<&Value>) =
                values.iter().partition(|value| value.is_string());
            let mut forms = Vec::new();
            for (is_text, values) in [(true, texts), (false, others)] {
                let words = values.into_iter().map(written);
                let words: Vec<String> = words.filter(|word| !word.contains(end.trim())).collect();
                if !words.is_empty() {
                    let word = self.one_until(&words, end);
                    forms.push(format!("{} {word}", before(self, is_text)));
                }
            }
            return forms;
        }
        let types = Types::of(schema, root);
        let is_text = types.string || types == Types::default();
        let value = match lengths(schema, root) {
            _ if !is_text => format!("{} {}", self.json_part(schema, root), self.literal(end)),
            (least, Some(most)) if types.is_text() && least > most => return Vec::new(),
            (least, most) if types.is_text() && (least > 0 || most.is_some()) => {
                self.counted_until(least, most, end)
            }
            _ => self.text_until(end),
        };
        vec![format!("{} {value}", before(self, is_text))]
    }

    /// One of these texts, which do not have `end` in them, and `end`. All are one terminal: of several the
    /// lexer takes the longest, so that of "x" and "x\n" the first could not be followed by an `end` with a newline.
    fn one_until(&mut self, texts: &[String], end: &str) -> String {
        let texts: Vec<String> = texts.iter().map(|text| lark_string(text)).collect();
        let texts = texts.join(" | ");
        match self.split_at_special(end) {
            Some((before, id, after)) => {
                let after = self.literal(after);
                let text = self.rule("WORD", &format!("({texts}) {}", quoted(before)));
                format!("{text} <[{id}]> {after}")
            }
            None => self.rule("WORD", &format!("({texts}) {}", quoted(end))),
        }
    }

    /// Text of so many characters, up to the first place where `end` stands, and `end`.
    fn counted_until(&mut self, least: u64, most: Option<u64>, end: &str) -> String {
        let most = most.map_or(String::new(), |most| most.to_string());
        let text = format!("/(?s:.{{{least},{most}}})/");
        if least == 0 || self.split_at_special(end).is_some() {
            return self.like_until(&text, end);
        }
        // Where the text is too short for its end, it must not continue as text with an end inside.
        let ended = self.rule("ENDED", &format!("/(?s:.*)/ {} /(?s:.*)/", quoted(end)));
        self.like_until(&format!("{text} & ~{ended}"), end)
    }
}

/// Whether a plain schema allows arguments that it does not name.
pub(super) fn has_others(schema: &Value) -> bool {
    schema["additionalProperties"] == true
}

/// The values of an enumeration that has strings.
pub(super) fn enumeration(schema: &Value) -> Option<&Vec<Value>> {
    let values = schema["enum"].as_array()?;
    (values.is_empty() || values.iter().any(Value::is_string)).then_some(values)
}

/// How a value is written between tags.
fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The least and the most characters of a string, as far as they are counted.
fn lengths(schema: &Value, root: &Value) -> (u64, Option<u64>) {
    let (mut least, mut most) = (0, None::<u64>);
    for member in members(schema, root, Alternatives::Lone) {
        let length = |key: &str| member[key].as_u64().filter(|&length| length <= LENGTH_LIMIT);
        least = least.max(length("minLength").unwrap_or(0));
        most = most.into_iter().chain(length("maxLength")).min();
    }
    (least, most)
}
