//! Grammars that make a model call: Lark text in llguidance's dialect.
//!
//! A marker that is a special token is named by its id, any other is a string. White space is bounded, so that
//! a weak model cannot write blanks for ever. Arguments follow each tool's JSON schema; keywords that llguidance
//! does not know are left out of account.

use std::fmt::Write;

use serde_json::{Value, json};

use super::schema::Types;
use super::{
    Choice, Tool, ToolFormat, deepseek, gemma4, glm, harmony, hermes, invoke, kimi, llama3,
    mistral, pythonic, qwen_xml,
};
use crate::{Error, Result};

/// Grammars are compiled for each request: larger ones are refused.
const GRAMMAR_LIMIT_BYTES: usize = 256 << 10;

/// What stands around the calls of an answer.
pub(super) struct Layout {
    pub(super) open: &'static str,
    pub(super) separator: &'static str,
    pub(super) close: &'static str,
    /// The format has no way to make several calls.
    pub(super) is_single: bool,
}

/// What stands around arguments that are written one by one.
pub(super) struct Tags {
    pub(super) before_key: String,
    /// A `?` in it becomes `true` for strings and `false` for other values.
    pub(super) after_key: String,
    pub(super) after_value: String,
}

/// What a format writes before the words of an answer, thinking included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// In Lark, to be followed by the words.
    pub head: String,
    /// The rules that it names; a grammar of calls has them too.
    pub rules: String,
}

/// A grammar in the making.
pub(super) struct Lark<'a> {
    markers: &'static [&'static str],
    special: &'a dyn Fn(&str) -> Option<u32>,
    rules: String,
    count: usize,
}

impl ToolFormat {
    /// A Lark grammar, in llguidance's dialect, of an answer that obeys `choice`: one call, or several if
    /// `parallel`, of the tools allowed, with arguments that follow their schemas; or, for [`Choice::None`],
    /// words without a call. [`Choice::Auto`] asks for nothing and has no grammar.
    ///
    /// The grammar begins where thinking has ended, or with the answer in harmony, which thinks inside.
    /// `special` gives the id of a text that is a special token of the vocabulary.
    pub fn grammar(
        self,
        tools: &[Tool],
        choice: &Choice,
        parallel: bool,
        special: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<String> {
        if *choice == Choice::Auto {
            return Err(Error::Tool { reason: "a free choice has no grammar".to_owned() });
        }
        let allowed: Vec<&Tool> = tools
            .iter()
            .filter(|tool| match choice {
                Choice::Named(name) => tool.name == *name,
                _ => true,
            })
            .collect();
        if allowed.is_empty() {
            let reason = match choice {
                Choice::Named(name) => format!("there is none called {name:?}"),
                _ => "there are none to choose from".to_owned(),
            };
            return Err(Error::Tool { reason });
        }
        if let Some(tool) = allowed.iter().find(|tool| !is_speakable(&tool.name)) {
            return Err(Error::Tool { reason: format!("{:?} is no name for one", tool.name) });
        }
        let mut lark = Lark { markers: self.markers(), special, rules: String::new(), count: 0 };
        let grammar = match choice {
            Choice::None => self.write_words(&mut lark),
            _ => self.write_calls(&mut lark, &allowed, parallel),
        };
        if grammar.len() > GRAMMAR_LIMIT_BYTES {
            let reason = format!(
                "their grammar has {} bytes of at most {GRAMMAR_LIMIT_BYTES}",
                grammar.len()
            );
            return Err(Error::Tool { reason });
        }
        Ok(grammar)
    }

    /// What stands before the words of every answer, where the format has such a thing.
    pub fn frame(self, special: &dyn Fn(&str) -> Option<u32>) -> Option<Frame> {
        if self != ToolFormat::Harmony {
            return None;
        }
        let mut lark = Lark { markers: self.markers(), special, rules: String::new(), count: 0 };
        let analysis = harmony::analysis(&mut lark);
        let head = format!("analysis? {}", lark.literal(harmony::FINAL));
        Some(Frame { head, rules: format!("{analysis}\n{}", lark.rules) })
    }

    fn write_calls(self, lark: &mut Lark<'_>, tools: &[&Tool], parallel: bool) -> String {
        let layout = match self {
            ToolFormat::Hermes => hermes::layout(),
            ToolFormat::QwenXml | ToolFormat::SeedXml => qwen_xml::layout(),
            ToolFormat::Gemma4 => gemma4::layout(),
            ToolFormat::Harmony => harmony::layout(),
            ToolFormat::DeepSeek => deepseek::layout(),
            ToolFormat::DeepSeekXml => invoke::deepseek_layout(),
            ToolFormat::Glm => glm::layout(),
            ToolFormat::Kimi => kimi::layout(),
            ToolFormat::MiniMax => invoke::minimax_layout(),
            ToolFormat::Mistral => mistral::layout(lark),
            ToolFormat::Llama3 => llama3::layout(),
            ToolFormat::Pythonic => pythonic::layout(lark),
        };
        let mut calls = Vec::new();
        for tool in tools {
            let body = match self {
                ToolFormat::Hermes => hermes::call(lark, tool),
                ToolFormat::QwenXml => qwen_xml::call(lark, tool),
                ToolFormat::SeedXml => qwen_xml::seed_call(lark, tool),
                ToolFormat::Gemma4 => gemma4::call(lark, tool),
                ToolFormat::Harmony => harmony::call(lark, tool),
                ToolFormat::DeepSeek => deepseek::call(lark, tool),
                ToolFormat::DeepSeekXml => invoke::deepseek_call(lark, tool),
                ToolFormat::Glm => glm::call(lark, tool),
                ToolFormat::Kimi => kimi::call(lark, tool),
                ToolFormat::MiniMax => invoke::minimax_call(lark, tool),
                ToolFormat::Mistral => mistral::call(lark, tool),
                ToolFormat::Llama3 => llama3::call(lark, tool),
                ToolFormat::Pythonic => pythonic::call(lark, tool),
            };
            calls.push(lark.rule("call", &body));
        }
        if self == ToolFormat::Harmony {
            let analysis = harmony::analysis(lark);
            lark.rules.push_str(&analysis);
            lark.rules.push('\n');
        }
        let (open, close) = (lark.literal(layout.open), lark.literal(layout.close));
        let several = match (parallel && !layout.is_single, lark.literal(layout.separator)) {
            (false, _) => String::new(),
            (true, separator) => format!("({separator} call)*"),
        };
        let rules = &lark.rules;
        let block =
            format!("block: {open} call {several} {close}\ncall: {}\n{rules}", calls.join(" | "));
        // Models write up to two newlines after their thinking.
        format!("start: LEAD? block\nLEAD: /\\n{{1,2}}/\n{block}")
    }

    /// An answer in which no block of calls opens.
    fn write_words(self, lark: &mut Lark<'_>) -> String {
        let opener = match self {
            ToolFormat::Harmony => {
                let analysis = harmony::analysis(lark);
                let head = lark.literal(harmony::FINAL);
                let end = lark.literal("<|return|>");
                return format!(
                    "start: analysis? {head} TEXT ({end})?\nTEXT: /(?s:.*)/\n{analysis}\n{}",
                    lark.rules
                );
            }
            ToolFormat::Llama3 => return "start: TEXT\nTEXT: /[^{](?s:.*)/".to_owned(),
            ToolFormat::Pythonic if !lark.is_special(self.markers()[0]) => {
                return "start: TEXT\nTEXT: /[^\\[](?s:.*)/".to_owned();
            }
            ToolFormat::DeepSeekXml if !lark.is_special(self.markers()[0]) => "<｜DSML｜",
            _ => self.markers()[0],
        };
        if lark.is_special(opener) {
            return "start: TEXT\nTEXT: /(?s:.*)/".to_owned();
        }
        let opener = Value::from(opener);
        format!("start: TEXT\nTEXT: /(?s:.*)/ & ~OPENED\nOPENED: /(?s:.*)/ {opener} /(?s:.*)/")
    }
}

/// Whether a name can stand in any format without being mistaken for markup.
pub(super) fn is_speakable(name: &str) -> bool {
    let is_plain =
        |c: char| !c.is_whitespace() && !c.is_control() && !"<>\"'`{}()[]|,=\\".contains(c);
    !name.is_empty() && name.len() <= super::scan::NAME_LIMIT_BYTES && name.chars().all(is_plain)
}

impl Lark<'_> {
    /// Whether a marker is a special token.
    pub(super) fn is_special(&self, marker: &str) -> bool {
        (self.special)(marker).is_some()
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, kind: &str, body: &str) -> String {
        let name = format!("{kind}_{}", self.count);
        self.count += 1;
        // Writing to a string does not fail.
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// Exactly this text; markers that are special tokens by their ids.
    pub(super) fn literal(&self, text: &str) -> String {
        match self.split_at_special(text) {
            Some((before, id, after)) => {
                format!("{} <[{id}]> {}", quoted(before), self.literal(after))
            }
            None => quoted(text),
        }
    }

    /// Any text up to the first place where `end` stands, and `end`.
    pub(super) fn text_until(&mut self, end: &str) -> String {
        match self.split_at_special(end) {
            Some((before, id, after)) => {
                let after = self.literal(after);
                let text = self.rule("TEXT", &format!("/(?s:.*)/ {}", quoted(before)));
                format!("{text} <[{id}]> {after}")
            }
            None => {
                let name = format!("text_{}[suffix={}]", self.count, quoted(end));
                let _ = writeln!(self.rules, "{name}: /(?s:.*)/");
                self.count += 1;
                format!("text_{}", self.count - 1)
            }
        }
    }

    fn split_at_special<'t>(&self, text: &'t str) -> Option<(&'t str, u32, &'t str)> {
        let found = self.markers.iter().filter_map(|marker| {
            let id = (self.special)(marker)?;
            text.find(marker).map(|at| (at, *marker, id))
        });
        let (at, marker, id) =
            found.min_by_key(|&(at, marker, _)| (at, usize::MAX - marker.len()))?;
        Some((&text[..at], id, &text[at + marker.len()..]))
    }

    /// JSON of a whole schema: the arguments of a tool.
    pub(super) fn json(&mut self, schema: &Value) -> String {
        let mut schema = schema.as_object().cloned().unwrap_or_default();
        schema.retain(|key, _| !matches!(key.as_str(), "$schema" | "$id"));
        if !["type", "anyOf", "oneOf", "allOf", "$ref"].iter().any(|key| schema.contains_key(*key))
        {
            schema.insert("type".to_owned(), "object".into());
        }
        // One space at most, as models are trained on either style.
        let options = json!({
            "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?", "lenient": true,
        });
        schema.insert("x-guidance".to_owned(), options);
        self.rule("json", &format!("%json {}", Value::Object(schema)))
    }

    /// JSON of one part of a schema.
    fn json_part(&mut self, schema: &Value, root: &Value) -> String {
        let mut part = schema.as_object().cloned().unwrap_or_default();
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                part.entry(key).or_insert_with(|| definitions.clone());
            }
        }
        self.json(&Value::Object(part))
    }

    /// Arguments one by one, in the schema's order; those that are not required may be left out.
    pub(super) fn parameters(&mut self, tool: &Tool, tags: &Tags) -> String {
        let mut out = String::new();
        for (key, schema, is_required) in properties(&tool.parameters) {
            let types = Types::of(schema, &tool.parameters);
            let is_text = types.string || types == Types::default();
            let flag = if is_text { "true" } else { "false" };
            let before = format!("{}{key}{}", tags.before_key, tags.after_key.replace('?', flag));
            let before = self.literal(&before);
            let after = self.literal(&tags.after_value);
            let value = match words(schema) {
                Some(words) => format!(
                    "({}) {after}",
                    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" | ")
                ),
                None if is_text => self.text_until(&tags.after_value),
                None => format!("{} {after}", self.json_part(schema, &tool.parameters)),
            };
            let rule = self.rule("parameter", &format!("{before} {value}"));
            out.push_str(&rule);
            out.push_str(if is_required { " " } else { "? " });
        }
        out
    }
}

/// Name, schema and whether it must come, of each argument that can be named.
pub(super) fn properties(schema: &Value) -> Vec<(&str, &Value, bool)> {
    let required = schema["required"].as_array();
    let is_required = |key: &str| required.is_some_and(|keys| keys.iter().any(|name| name == key));
    let properties = schema["properties"].as_object().into_iter().flatten();
    let named = properties.filter(|(key, _)| is_speakable(key));
    named.map(|(key, schema)| (key.as_str(), schema, is_required(key))).collect()
}

/// The words of an enumeration of strings.
pub(super) fn words(schema: &Value) -> Option<Vec<&str>> {
    let values =
        schema["enum"].as_array().filter(|values| !values.is_empty() && values.len() <= 256)?;
    values.iter().map(|value| value.as_str().filter(|word| !word.is_empty())).collect()
}

/// A Lark string; nothing for no text.
pub(super) fn quoted(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
