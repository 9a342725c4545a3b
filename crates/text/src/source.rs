//! Finds the chat template and the special tokens among a model's files.
//!
//! Order: `chat_template.jinja`, then `chat_template.json`, then `chat_template` in
//! `tokenizer_config.json`: a string, or a list of named ones, of which `default` and `tool_use` are
//! used. The files come through a closure: this module opens nothing.

use serde_json::{Map, Value};

use crate::{Error, Result};

/// The templates of a model and the tokens they name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TemplateFiles {
    /// Source of the template.
    pub default: String,
    /// Source of the template to use when tools are given, where the model has one apart.
    pub tool_use: Option<String>,
    /// `bos_token`, `eos_token` and the other `…_token` strings of `tokenizer_config.json`.
    pub special_tokens: Map<String, Value>,
}

impl TemplateFiles {
    /// Looks through a model's files; `Ok(None)` when it has no chat template.
    pub fn find(read: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Option<Self>> {
        let config = read_json("tokenizer_config.json", &read)?.unwrap_or_default();
        let special_tokens = special_tokens(&config);
        let single = |source: String| {
            Some(Self { default: source, tool_use: None, special_tokens: special_tokens.clone() })
        };
        if let Some(bytes) = read("chat_template.jinja") {
            let source = String::from_utf8(bytes)
                .map_err(|_| Error::Utf8 { file: "chat_template.jinja" })?;
            return Ok(single(source));
        }
        let json = read_json("chat_template.json", &read)?.unwrap_or_default();
        if let Some(source) = json["chat_template"].as_str() {
            return Ok(single(source.to_owned()));
        }
        Ok(match &config["chat_template"] {
            Value::String(source) => single(source.clone()),
            Value::Array(named) => {
                let named = |name: &str| {
                    let entry = named.iter().find(|entry| entry["name"] == name)?;
                    entry["template"].as_str().map(str::to_owned)
                };
                let tool_use = named("tool_use");
                let default = named("default").or_else(|| tool_use.clone());
                default.map(|default| Self { default, tool_use, special_tokens })
            }
            _ => None,
        })
    }
}

/// The text of a special token, which is a string or an object with `content`.
pub(crate) fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// A JSON file of the model, if it is there.
pub(crate) fn read_json(
    file: &'static str,
    read: &impl Fn(&str) -> Option<Vec<u8>>,
) -> Result<Option<Value>> {
    read(file)
        .map(|bytes| serde_json::from_slice(&bytes).map_err(|source| Error::Json { file, source }))
        .transpose()
}

fn special_tokens(config: &Value) -> Map<String, Value> {
    const NAMES: [&str; 7] = [
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    ];
    NAMES
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), Value::from(token_text(&config[name])?))))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Tokenizer;
    use serde_json::json;
    use std::sync::OnceLock;

    /// Reads a file of the built-in model.
    pub(crate) fn pebble_file(name: &str) -> Option<Vec<u8>> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pebble/");
        std::fs::read(format!("{folder}{name}")).ok()
    }

    pub(crate) fn pebble() -> Tokenizer {
        static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
        TOKENIZER
            .get_or_init(|| Tokenizer::from_bytes(&pebble_file("tokenizer.json").unwrap()).unwrap())
            .clone()
    }

    #[track_caller]
    fn check(files: &[(&str, Value)], expect: Option<(&str, Option<&str>)>) {
        let read = |name: &str| {
            let (_, content) = files.iter().find(|(file, _)| *file == name)?;
            Some(content.as_str().map_or_else(|| content.to_string(), str::to_owned).into_bytes())
        };
        let found = TemplateFiles::find(read).unwrap();
        let found = found.as_ref().map(|files| (files.default.as_str(), files.tool_use.as_deref()));
        assert_eq!(found, expect);
    }

    #[test]
    fn templates_are_found_in_order() {
        let config = json!({"chat_template": "from config"});
        check(&[], None);
        check(&[("tokenizer_config.json", json!({"chat_template": null}))], None);
        check(&[("tokenizer_config.json", config.clone())], Some(("from config", None)));
        let json_file = json!({"chat_template": "from json"});
        let both = [("tokenizer_config.json", config.clone()), ("chat_template.json", json_file)];
        check(&both, Some(("from json", None)));
        let file = [("tokenizer_config.json", config), ("chat_template.jinja", json!("from file"))];
        check(&file, Some(("from file", None)));
    }

    #[test]
    fn named_templates() {
        let named = json!({"chat_template": [
            {"name": "rag", "template": "r"},
            {"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d"},
        ]});
        check(&[("tokenizer_config.json", named)], Some(("d", Some("t"))));
        let other = json!({"chat_template": [{"name": "rag", "template": "r"}]});
        check(&[("tokenizer_config.json", other)], None);
    }

    #[test]
    fn tokens_are_strings_or_objects() {
        let config =
            json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null});
        let expect = json!({"bos_token": "<s>", "eos_token": "</s>"});
        assert_eq!(Value::Object(special_tokens(&config)), expect);
    }

    #[test]
    fn broken_json_names_the_file() {
        let read = |name: &str| (name == "tokenizer_config.json").then(|| b"{".to_vec());
        let error = TemplateFiles::find(read).unwrap_err();
        assert_eq!(error.to_string(), "tokenizer_config.json is not valid JSON");
    }
}
