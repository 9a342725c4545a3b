//! Tool calls: what a request offers, how a model's family writes a call, and how to read it as it comes.
//!
//! One file a format. A format reads text into events ([`ToolParser`]) and writes the grammar that makes a
//! model call ([`ToolFormat::grammar`]). Arguments come out as the text of one JSON object in pieces, whatever
//! the family writes. What is no call after all comes out as text: nothing a model says is lost.
//!
//! The invariant: events, with neighbours of a kind joined, do not depend on how the stream was cut.

mod arguments;
mod convert;
mod deepseek;
mod envelope;
mod gemma4;
mod glm;
mod harmony;
mod hermes;
mod invoke;
mod json_body;
mod kimi;
mod lark;
mod literal;
mod llama3;
mod mistral;
mod parser;
mod plain;
mod pythonic;
mod qwen_xml;
mod scan;
mod tagged;
mod transcode;

use serde_json::Value;

use crate::{Error, Result};
pub use lark::Frame;
pub use parser::ToolParser;

/// A tool that a request offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// What it is called by.
    pub name: String,
    /// What it does, for the model to read.
    pub description: Option<String>,
    /// JSON schema of its arguments; `{}` if it has none.
    pub parameters: Value,
    /// Whether a model that calls it of its own accord is held to the schema, too.
    pub is_strict: bool,
}

impl Tool {
    /// A tool as clients send it: `{"type": "function", "function": {…}}`, or the inner object alone.
    pub fn from_json(tool: &Value) -> Result<Tool> {
        let function = tool.get("function").filter(|inner| inner.is_object()).unwrap_or(tool);
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Error::Tool { reason: "it has no name".to_owned() })?;
        let parameters =
            ["parameters", "input_schema"].into_iter().find_map(|key| function.get(key));
        let parameters = match parameters {
            None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(_) => {
                let reason = format!("the parameters of {name:?} are not an object");
                return Err(Error::Tool { reason });
            }
        };
        let description = function["description"].as_str().map(str::to_owned);
        let is_strict = function["strict"] == true;
        Ok(Tool { name: name.to_owned(), description, parameters, is_strict })
    }

    /// The tool without the regular expressions of its schema, which can require more than can be followed.
    pub fn without_expressions(&self) -> Tool {
        let mut tool = self.clone();
        grammar::schema::leave_expressions_out(&mut tool.parameters);
        tool
    }
}

/// Whether and what a model shall call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Choice {
    /// As it likes.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// Some tool.
    Required,
    /// This tool.
    Named(String),
}

/// How a family of models writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// `<tool_call><function=…><parameter=…>…`: Qwen 3 Coder, Qwen 3.5, Pebble.
    QwenXml,
    /// `<seed:tool_call><function=…><parameter=…>…`: Seed-OSS.
    SeedXml,
    /// `<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`.
    Gemma4,
    /// Channels: gpt-oss.
    Harmony,
    /// `<｜tool▁calls▁begin｜>…`: DeepSeek V3, R1 and V3.1.
    DeepSeek,
    /// `<｜DSML｜invoke name="…">…`: DeepSeek V3.2 and later.
    DeepSeekXml,
    /// `<tool_call>NAME<arg_key>…</arg_key><arg_value>…`: GLM 4.5 and later.
    Glm,
    /// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}`: Kimi K2.
    Kimi,
    /// `<minimax:tool_call><invoke name="…">…`: MiniMax M2.
    MiniMax,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`, or a JSON list in older ones.
    Mistral,
    /// `{"name": …, "parameters": {…}}` instead of an answer: Llama 3.
    Llama3,
    /// `[f(a=1, b="x")]`: Llama 4, LFM2.
    Pythonic,
}

impl ToolFormat {
    /// All formats.
    pub const ALL: [ToolFormat; 13] = [
        ToolFormat::Hermes,
        ToolFormat::QwenXml,
        ToolFormat::Gemma4,
        ToolFormat::Harmony,
        ToolFormat::DeepSeek,
        ToolFormat::DeepSeekXml,
        ToolFormat::Glm,
        ToolFormat::Kimi,
        ToolFormat::MiniMax,
        ToolFormat::Mistral,
        ToolFormat::Llama3,
        ToolFormat::Pythonic,
        ToolFormat::SeedXml,
    ];

    /// The format a model speaks: what its chat template writes, or else what its family is known for.
    pub fn detect(template: &str, model_type: &str) -> Option<ToolFormat> {
        let has = |text: &str| template.contains(text);
        // The order matters: a template may mention the marker of another family too.
        let by_template = if has("<minimax:tool_call>") {
            Some(ToolFormat::MiniMax)
        } else if has("<seed:tool_call>") {
            Some(ToolFormat::SeedXml)
        } else if has("<|tool_call>") && has("<tool_call|>") {
            Some(ToolFormat::Gemma4)
        } else if has("<arg_key>") {
            Some(ToolFormat::Glm)
        } else if has("<|tool_list_start|>") || has("<|tool_call_start|>[") {
            Some(ToolFormat::Pythonic)
        } else if has("<tool_call>\\n<function=") || has("<tool_call>\n<function=") {
            Some(ToolFormat::QwenXml)
        } else if has("<|tool_calls_section_begin|>") {
            Some(ToolFormat::Kimi)
        } else if has("[TOOL_CALLS]") {
            Some(ToolFormat::Mistral)
        } else if has("<|channel|>") && has("<|message|>") {
            Some(ToolFormat::Harmony)
        } else if has("｜DSML｜") {
            Some(ToolFormat::DeepSeekXml)
        } else if has("<｜tool▁calls▁begin｜>") {
            Some(ToolFormat::DeepSeek)
        } else if has("<tool_call>") && !has("<invoke name=") {
            Some(ToolFormat::Hermes)
        } else if has("<|start_header_id|>") && has("\"parameters\": ") {
            Some(ToolFormat::Llama3)
        } else {
            None
        };
        by_template.or_else(|| ToolFormat::of_family(model_type))
    }

    fn of_family(model_type: &str) -> Option<ToolFormat> {
        const FAMILIES: [(&str, ToolFormat); 19] = [
            ("seed_oss", ToolFormat::SeedXml),
            ("qwen3_5", ToolFormat::QwenXml),
            ("qwen3_next", ToolFormat::QwenXml),
            ("qwen2", ToolFormat::Hermes),
            ("qwen3", ToolFormat::Hermes),
            ("gemma4", ToolFormat::Gemma4),
            ("gpt_oss", ToolFormat::Harmony),
            ("deepseek_v32", ToolFormat::DeepSeekXml),
            ("deepseek_v4", ToolFormat::DeepSeekXml),
            ("deepseek_v3", ToolFormat::DeepSeek),
            ("glm4_moe", ToolFormat::Glm),
            ("glm_moe", ToolFormat::Glm),
            ("kimi", ToolFormat::Kimi),
            ("minimax", ToolFormat::MiniMax),
            ("mistral", ToolFormat::Mistral),
            ("mixtral", ToolFormat::Mistral),
            ("ministral", ToolFormat::Mistral),
            ("llama4", ToolFormat::Pythonic),
            ("lfm2", ToolFormat::Pythonic),
        ];
        FAMILIES
            .into_iter()
            .find(|(family, _)| model_type.starts_with(family))
            .map(|(_, format)| format)
    }

    /// A short name, for logs.
    pub fn name(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "hermes",
            ToolFormat::QwenXml => "qwen_xml",
            ToolFormat::SeedXml => "seed_xml",
            ToolFormat::Gemma4 => "gemma4",
            ToolFormat::Harmony => "harmony",
            ToolFormat::DeepSeek => "deepseek",
            ToolFormat::DeepSeekXml => "deepseek_xml",
            ToolFormat::Glm => "glm",
            ToolFormat::Kimi => "kimi",
            ToolFormat::MiniMax => "minimax",
            ToolFormat::Mistral => "mistral",
            ToolFormat::Llama3 => "llama3",
            ToolFormat::Pythonic => "pythonic",
        }
    }

    /// Texts that may be special tokens and that the parser must see.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => hermes::MARKERS,
            ToolFormat::QwenXml => qwen_xml::MARKERS,
            ToolFormat::SeedXml => qwen_xml::SEED_MARKERS,
            ToolFormat::Gemma4 => gemma4::MARKERS,
            ToolFormat::Harmony => harmony::MARKERS,
            ToolFormat::DeepSeek => deepseek::MARKERS,
            ToolFormat::DeepSeekXml => invoke::DEEPSEEK_MARKERS,
            ToolFormat::Glm => glm::MARKERS,
            ToolFormat::Kimi => kimi::MARKERS,
            ToolFormat::MiniMax => invoke::MINIMAX_MARKERS,
            ToolFormat::Mistral => mistral::MARKERS,
            ToolFormat::Llama3 => llama3::MARKERS,
            ToolFormat::Pythonic => pythonic::MARKERS,
        }
    }

    /// The text that every block of calls begins with, and nothing else: where it is one token of the vocabulary, a free
    /// answer becomes a call with it. Harmony's calls and words begin alike, and some formats begin with plain signs.
    pub fn opener(self) -> Option<&'static str> {
        match self {
            ToolFormat::Harmony | ToolFormat::DeepSeekXml | ToolFormat::Llama3 => None,
            _ => self.markers().first().copied(),
        }
    }

    /// Special tokens that end an answer where tools are offered, in addition to the model's own end tokens.
    pub fn stop_markers(self) -> &'static [&'static str] {
        match self {
            // The result of a call is the client's to write.
            ToolFormat::Gemma4 => &["<|tool_response>"],
            ToolFormat::Harmony => &["<|call|>"],
            _ => &[],
        }
    }

    /// Whether a model should think where tools are offered, unless it is instructed not to. Gemma 4 without thinking
    /// begins after an empty thought, and with tools and a vague question it then writes nonsense
    /// (reported of more than one engine).
    pub fn thinks_with_tools(self) -> bool {
        self == ToolFormat::Gemma4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(template: &str, model_type: &str, expect: Option<ToolFormat>) {
        assert_eq!(ToolFormat::detect(template, model_type), expect);
    }

    #[test]
    fn the_template_decides_before_the_family() {
        check("{{ '<tool_call>\\n<function=' }}", "qwen3_moe", Some(ToolFormat::QwenXml));
        check("{{ '<tool_call>\\n{\"name\": \"' }}", "qwen3_5_moe", Some(ToolFormat::Hermes));
        check("'<seed:tool_call>'\n<function=", "", Some(ToolFormat::SeedXml));
        check("<tool_call>{{ name }}<arg_key>", "", Some(ToolFormat::Glm));
        check("no tools at all", "qwen3_moe", Some(ToolFormat::Hermes));
        check("no tools at all", "qwen3_5_moe", Some(ToolFormat::QwenXml));
        check("no tools at all", "gpt2", None);
    }

    #[test]
    fn tools_are_read_in_both_shapes() {
        let inner = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
        let tool = Tool::from_json(&json!({"type": "function", "function": inner})).unwrap();
        assert_eq!(tool, Tool::from_json(&inner).unwrap());
        assert_eq!(Tool::from_json(&json!({"name": "f"})).unwrap().parameters, json!({}));
        assert!(Tool::from_json(&json!({"name": ""})).is_err());
        assert!(Tool::from_json(&json!({"name": "f", "parameters": [1]})).is_err());
    }
}
