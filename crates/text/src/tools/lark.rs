//! Grammars that make a model call: Lark text in llguidance's dialect.
//!
//! A marker that is a special token is named by its id, any other is a string. White space is bounded, so that
//! a weak model cannot write blanks for ever. Arguments follow each tool's JSON schema; keywords that llguidance
//! does not know are left out of account.

use std::collections::HashSet;
use std::fmt::Write;

use grammar::schema::{Types, definitions_of, plainly_referring, settled};
use serde_json::{Map, Value, json};

use super::scan::NAME_LIMIT_BYTES;
use super::tagged::enumeration;
use super::{
    Choice, Tool, ToolFormat, deepseek, gemma4, glm, harmony, hermes, invoke, kimi, llama3,
    mistral, pythonic, qwen_xml,
};
use crate::{Error, Result};

/// Grammars are compiled for each request: larger ones are refused.
const GRAMMAR_LIMIT_BYTES: usize = 256 << 10;

/// Words of one rule: llguidance gives up where 2000 alternatives are open.
const MOST_ALTERNATIVES: usize = 256;

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
    /// Why a tool cannot be called.
    pub(super) obstacle: Option<String>,
}

impl ToolFormat {
    /// A Lark grammar, in llguidance's dialect, of an answer that obeys `choice`: one call, or several if
    /// `parallel`, of the tools allowed, with arguments that follow their schemas; or, for [`Choice::None`],
    /// words without a call. For [`Choice::Auto`] it is the grammar of calls that a free answer may come to, from
    /// [`ToolFormat::opener`] on: a call that was not required is held to names and form, and to the schemas of strict tools
    /// only, since a schema's grammar wants its order too.
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
        let mut lark = Lark::new(self, special);
        let grammar = if *choice == Choice::None {
            self.write_words(&mut lark)
        } else {
            let held = allowed.into_iter().map(|tool| {
                let is_strict = tool.is_strict || *choice != Choice::Auto;
                self.as_written(&Tool { is_strict, ..tool.clone() })
            });
            let held: Vec<Tool> = held.collect::<Result<_>>()?;
            self.write_calls(&mut lark, &held, parallel)
        };
        if let Some(reason) = lark.obstacle {
            return Err(Error::Tool { reason });
        }
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
        let mut lark = Lark::new(self, special);
        let analysis = harmony::analysis(&mut lark);
        let head = format!("analysis? {}", lark.literal(harmony::FINAL));
        Some(Frame { head, rules: format!("{analysis}\n{}", lark.rules) })
    }

    /// The tool with the schema that its grammar is written from.
    fn as_written(self, tool: &Tool) -> Result<Tool> {
        let with = |parameters: Value| Tool { parameters, ..tool.clone() };
        match (self.writes_json(), tool.is_strict) {
            (true, true) => Ok(with(plainly_referring(&tool.parameters, |_| None))),
            (true, false) => Ok(with(json!({"type": "object"}))),
            (false, _) => self.plain_tool(&with(settled(&tool.parameters))),
        }
    }

    /// Whether arguments are one JSON object.
    fn writes_json(self) -> bool {
        match self {
            ToolFormat::Hermes
            | ToolFormat::Harmony
            | ToolFormat::DeepSeek
            | ToolFormat::Kimi
            | ToolFormat::Mistral
            | ToolFormat::Llama3 => true,
            ToolFormat::QwenXml
            | ToolFormat::SeedXml
            | ToolFormat::Gemma4
            | ToolFormat::DeepSeekXml
            | ToolFormat::Glm
            | ToolFormat::MiniMax
            | ToolFormat::Pythonic => false,
        }
    }

    fn write_calls(self, lark: &mut Lark<'_>, tools: &[Tool], parallel: bool) -> String {
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
    !name.is_empty() && name.len() <= NAME_LIMIT_BYTES && name.chars().all(is_plain)
}

impl<'a> Lark<'a> {
    fn new(format: ToolFormat, special: &'a dyn Fn(&str) -> Option<u32>) -> Lark<'a> {
        let markers = format.markers();
        Lark { markers, special, rules: String::new(), count: 0, obstacle: None }
    }

    /// Whether a marker is a special token.
    pub(super) fn is_special(&self, marker: &str) -> bool {
        (self.special)(marker).is_some()
    }

    /// Whether it will be refused whatever is added.
    pub(super) fn is_too_large(&self) -> bool {
        self.rules.len() > GRAMMAR_LIMIT_BYTES
    }

    /// What the next rule will be called, if it is of this kind: for a rule that names itself.
    pub(super) fn next_name(&self, kind: &str) -> String {
        format!("{kind}_{}", self.count)
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, kind: &str, body: &str) -> String {
        let name = self.next_name(kind);
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
        self.like_until("/(?s:.*)/", end)
    }

    /// What a terminal matches, up to the first place where `end` stands, and `end`.
    pub(super) fn like_until(&mut self, terminal: &str, end: &str) -> String {
        match self.split_at_special(end) {
            Some((before, id, after)) => {
                let after = self.literal(after);
                let text = self.rule("TEXT", &format!("({terminal}) {}", quoted(before)));
                format!("{text} <[{id}]> {after}")
            }
            None => {
                let text = self.rule("TEXT", terminal);
                let name = format!("text_{}", self.count);
                self.count += 1;
                let _ = writeln!(self.rules, "{name}[suffix={}]: {text}", quoted(end));
                name
            }
        }
    }

    pub(super) fn split_at_special<'t>(&self, text: &'t str) -> Option<(&'t str, u32, &'t str)> {
        let found = self.markers.iter().filter_map(|marker| {
            let id = (self.special)(marker)?;
            text.find(marker).map(|at| (at, *marker, id))
        });
        let (at, marker, id) =
            found.min_by_key(|&(at, marker, _)| (at, usize::MAX - marker.len()))?;
        Some((&text[..at], id, &text[at + marker.len()..]))
    }

    /// JSON of a whole schema: the arguments of a tool, which are an object even where it allows more.
    pub(super) fn json(&mut self, schema: &Value) -> String {
        let types = Types::of(schema, schema);
        let object = Types { object: true, ..Types::default() };
        let is_open = types == Types::default() || (types.object && types != object);
        let mut schema = schema.as_object().cloned().unwrap_or_default();
        if is_open {
            schema.insert("type".to_owned(), "object".into());
        }
        self.json_value(schema)
    }

    /// JSON of one part of a schema.
    pub(super) fn json_part(&mut self, schema: &Value, root: &Value) -> String {
        let mut part = schema.as_object().cloned().unwrap_or_default();
        part.extend(definitions_of(schema, root));
        self.json_value(part)
    }

    fn json_value(&mut self, mut schema: Map<String, Value>) -> String {
        schema.retain(|key, _| !matches!(key.as_str(), "$schema" | "$id"));
        // One space at most, as models are trained on either style.
        let options = json!({
            "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?", "lenient": true,
        });
        schema.insert("x-guidance".to_owned(), options);
        self.rule("json", &format!("%json {}", Value::Object(schema)))
    }
}

/// Name, schema and whether it must come, of each argument.
pub(super) fn named_schemas(schema: &Value) -> impl Iterator<Item = (&str, &Value, bool)> {
    let required = schema["required"].as_array().into_iter().flatten();
    let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(move |(key, schema)| (key.as_str(), schema, required.contains(key.as_str())))
}

/// Those whose name can stand anywhere.
pub(super) fn properties(schema: &Value) -> Vec<(&str, &Value, bool)> {
    named_schemas(schema).filter(|(key, ..)| is_speakable(key)).collect()
}

/// The words of an enumeration of strings, if they are few enough to be alternatives of a rule.
pub(super) fn words(schema: &Value) -> Option<Vec<&str>> {
    let is_short = |values: &&Vec<Value>| !values.is_empty() && values.len() <= MOST_ALTERNATIVES;
    enumeration(schema).filter(is_short)?.iter().map(Value::as_str).collect()
}

/// A Lark string; nothing for no text.
pub(super) fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { lark_string(text) }
}

pub(super) fn lark_string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
