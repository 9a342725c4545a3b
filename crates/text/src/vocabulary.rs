//! The tokenizer that a GGUF file describes, as the files that other models have.
//!
//! GGUF keeps a vocabulary as lists, and names the way text is split instead of spelling it out. Here both become a
//! `tokenizer.json`, so that there is one tokenizer and one set of checks. Facts about formats and names are from
//! llama.cpp's `llama-vocab.cpp` and from the published `tokenizer.json` files of the same models.

mod ends;
mod merges;
mod splits;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::{Error, Result};

use splits::Splits;

/// What a GGUF file says about text and tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// How pieces are joined: `gpt2`, `llama` or `gemma4`.
    pub model: String,
    /// How text is split before that, for `gpt2`.
    pub pre: Option<String>,
    /// `general.architecture`.
    pub architecture: String,
    /// The tokens, by id.
    pub tokens: Vec<String>,
    /// The kind of each, by the numbers of the format (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte); normal
    /// where the list ends.
    pub kinds: Vec<u8>,
    /// The score of each, for `llama`.
    pub scores: Vec<f32>,
    /// Pairs to join, the first first: `left right`.
    pub merges: Vec<String>,
    /// Tokens with a part to play, by the part: `bos`, `eos`, `eot`, `eom`, `unknown`, `padding`.
    pub special: BTreeMap<&'static str, u32>,
    /// More tokens that end an answer.
    pub ends: Vec<u32>,
    /// Whether a text begins with `bos`, if the file says.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text, if the file says.
    pub add_space_prefix: Option<bool>,
    /// The chat template.
    pub template: Option<String>,
    /// Further chat templates: name and source.
    pub named_templates: Vec<(String, String)>,
}

/// The files of a model that a [`Vocabulary`] amounts to.
#[derive(Clone, Debug, Default)]
pub struct VocabularyFiles {
    /// Contents by name.
    pub files: BTreeMap<&'static str, Vec<u8>>,
    /// What had to be guessed.
    pub warnings: Vec<String>,
}

/// What a token is, by the file's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    /// Stands for what the vocabulary lacks.
    Unknown,
    /// No text: begins or ends something.
    Control,
    /// Text that is never cut.
    UserDefined,
    Unused,
    Byte,
}

/// The ways of joining that are known.
const MODELS: [&str; 3] = ["gpt2", "llama", "gemma4"];

impl Vocabulary {
    /// The files that say the same: tokenizer.json, tokenizer_config.json and generation_config.json.
    pub fn files(&self) -> Result<VocabularyFiles> {
        let mut warnings = Vec::new();
        let tokenizer = self.tokenizer(&mut warnings)?;
        let ends = ends::of(self);
        let generation = match ends.is_empty() {
            true => json!({}),
            false => json!({"eos_token_id": ends}),
        };
        let files = BTreeMap::from([
            ("tokenizer.json", tokenizer.to_string().into_bytes()),
            ("tokenizer_config.json", self.config().to_string().into_bytes()),
            ("generation_config.json", generation.to_string().into_bytes()),
        ]);
        Ok(VocabularyFiles { files, warnings })
    }

    fn kind(&self, id: usize) -> Kind {
        match self.kinds.get(id) {
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            Some(4) => Kind::UserDefined,
            Some(5) => Kind::Unused,
            Some(6) => Kind::Byte,
            _ => Kind::Normal,
        }
    }

    /// A token with a part to play, if it is one.
    fn special(&self, part: &str) -> Option<&str> {
        let id = *self.special.get(part)?;
        self.tokens.get(id as usize).map(String::as_str)
    }

    fn tokenizer(&self, warnings: &mut Vec<String>) -> Result<Value> {
        let refused = |reason: String| Err(Error::Vocabulary { reason });
        if self.tokens.is_empty() {
            return refused("the file lists no tokens".to_owned());
        }
        let distinct: BTreeSet<&String> = self.tokens.iter().collect();
        if distinct.len() != self.tokens.len() {
            let twice = self.tokens.len() - distinct.len();
            return refused(format!("{twice} of its tokens are there more than once"));
        }
        // Every token has its id from here: the crate would number added tokens after all others.
        let vocabulary: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
        let added = self.tokens.iter().enumerate().filter_map(|(id, content)| {
            let special = match self.kind(id) {
                Kind::Unknown | Kind::Control => true,
                Kind::UserDefined => false,
                Kind::Normal | Kind::Unused | Kind::Byte => return None,
            };
            Some(json!({
                "id": id, "content": content, "special": special, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            }))
        });
        let added: Vec<Value> = added.collect();
        let way = match self.model.as_str() {
            "gpt2" => self.byte_level(warnings)?,
            "llama" => self.by_score()?,
            "gemma4" => self.by_rank()?,
            other => {
                return refused(format!(
                    "tokenizers of the kind `{other}` are not supported; those of the kinds {} are",
                    MODELS.join(", ")
                ));
            }
        };
        let Way { normalizer, pre_tokenizer, decoder, mut model, adds_bos } = way;
        model.insert("type".to_owned(), "BPE".into());
        model.insert("vocab".to_owned(), vocabulary.into());
        Ok(json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self.post_processor(self.add_bos.unwrap_or(adds_bos)),
            "decoder": decoder,
            "model": model,
        }))
    }

    /// GPT-2's: bytes as letters, joined by rank.
    fn byte_level(&self, warnings: &mut Vec<String>) -> Result<Way> {
        let splits = Splits::find(self, warnings)?;
        let mut steps: Vec<Value> = splits.patterns.iter().map(|p| split(p)).collect();
        steps.push(json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        }));
        Ok(Way {
            normalizer: if splits.composes { json!({"type": "NFC"}) } else { Value::Null },
            pre_tokenizer: json!({"type": "Sequence", "pretokenizers": steps}),
            decoder: json!({
                "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
            }),
            model: model(merges::listed(self)?, splits.ignores_merges, None),
            adds_bos: splits.adds_bos,
        })
    }

    /// Sentencepiece's: the pair whose piece has the highest score is joined first.
    fn by_score(&self) -> Result<Way> {
        let prefix = self.add_space_prefix.unwrap_or(true);
        let mut steps = Vec::new();
        if prefix {
            steps.push(json!({"type": "Prepend", "prepend": SPACE}));
        }
        steps.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE}));
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let normal = |id: usize| self.kind(id) == Kind::Normal;
        Ok(Way {
            normalizer: json!({"type": "Sequence", "normalizers": steps}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model: model(
                merges::by_score(&self.tokens, &self.scores, normal)?,
                false,
                self.unknown(),
            ),
            adds_bos: true,
        })
    }

    /// Gemma 4's: plain text, spaces as `▁`, joined by rank within lines.
    fn by_rank(&self) -> Result<Way> {
        Ok(Way {
            normalizer: json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE}),
            pre_tokenizer: split(r"[^\n]+|[\n]+"),
            decoder: json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ]}),
            model: model(merges::listed(self)?, false, self.unknown()),
            adds_bos: true,
        })
    }

    /// What stands for characters that are in no piece and are no bytes either.
    fn unknown(&self) -> Option<&str> {
        let first = || (0..self.tokens.len()).find(|&id| self.kind(id) == Kind::Unknown);
        self.special("unknown").or_else(|| first().map(|id| self.tokens[id].as_str()))
    }

    /// Adds what a text begins and ends with.
    fn post_processor(&self, adds_bos: bool) -> Value {
        let bos = self.special("bos").filter(|_| adds_bos);
        let eos = self.special("eos").filter(|_| self.add_eos == Some(true));
        if bos.is_none() && eos.is_none() {
            return Value::Null;
        }
        let token = |token: &str, sequence: usize| json!({"SpecialToken": {"id": token, "type_id": sequence}});
        let around = |name: &str, sequence: usize| {
            let mut all = Vec::new();
            all.extend(bos.map(|bos| token(bos, sequence)));
            all.push(json!({"Sequence": {"id": name, "type_id": sequence}}));
            all.extend(eos.map(|eos| token(eos, sequence)));
            all
        };
        let pair = [around("A", 0), around("B", 1)].concat();
        let parts = [("bos", bos), ("eos", eos)];
        let used = parts.into_iter().filter_map(|(part, text)| {
            let (text, id) = (text?, self.special[part]);
            let entry = json!({"id": text, "ids": [id], "tokens": [text]});
            Some((text.to_owned(), entry))
        });
        json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": used.collect::<Map<String, Value>>(),
        })
    }

    /// tokenizer_config.json: templates, and the tokens that they name.
    fn config(&self) -> Value {
        let mut config = Map::new();
        for (part, key) in [("bos", "bos_token"), ("eos", "eos_token"), ("padding", "pad_token")] {
            config.extend(self.special(part).map(|token| (key.to_owned(), token.into())));
        }
        let entry = |(name, source): (&str, &str)| json!({"name": name, "template": source});
        let default = self.template.as_deref().map(|source| entry(("default", source)));
        let named = self.named_templates.iter().map(|(n, s)| entry((n.as_str(), s.as_str())));
        let templates: Vec<Value> = default.into_iter().chain(named).collect();
        if !templates.is_empty() {
            config.insert("chat_template".to_owned(), templates.into());
        }
        config.into()
    }
}

/// What stands for a space in vocabularies that are plain text.
const SPACE: &str = "\u{2581}";

/// The parts of a tokenizer.json that differ between kinds.
struct Way {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Map<String, Value>,
    /// Whether a text begins with `bos` where the file does not say.
    adds_bos: bool,
}

/// A step that cuts a text into the matches of a pattern and what is between them.
fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// The joining part. Without an unknown token there are no bytes to fall back to either.
fn model(
    merges: Vec<(&str, &str)>,
    ignores_merges: bool,
    unknown: Option<&str>,
) -> Map<String, Value> {
    let merges: Vec<Value> = merges.into_iter().map(|(left, right)| json!([left, right])).collect();
    let falls_back = unknown.is_some();
    let model = json!({
        "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": falls_back, "byte_fallback": falls_back,
        "ignore_merges": ignores_merges, "merges": merges,
    });
    match model {
        Value::Object(model) => model,
        _ => Map::new(),
    }
}

#[cfg(test)]
#[path = "vocabulary_tests.rs"]
mod tests;
