//! What the metadata of a GGUF file says about text, as `text` wants to know it.

use std::collections::BTreeMap;

use checkpoint::gguf::{Field, Metadata};
use text::Vocabulary;

use crate::{Error, Result};

/// Tokens with a part to play, and their keys.
const SPECIAL: [(&str, &str); 6] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("eot", "tokenizer.ggml.eot_token_id"),
    ("eom", "tokenizer.ggml.eom_token_id"),
    ("unknown", "tokenizer.ggml.unknown_token_id"),
    ("padding", "tokenizer.ggml.padding_token_id"),
];

const TEMPLATE: &str = "tokenizer.chat_template";

/// The vocabulary of a file.
pub(super) fn of(metadata: &Metadata) -> Result<Vocabulary> {
    let text = |key: &str| metadata.str(key).map(str::to_owned);
    let mut special = BTreeMap::new();
    for (part, key) in SPECIAL {
        let id = metadata.u64(key)?.and_then(|id| u32::try_from(id).ok());
        special.extend(id.map(|id| (part, id)));
    }
    let named = metadata.fields().filter_map(|(key, field)| {
        let name = key.strip_prefix(TEMPLATE)?.strip_prefix('.')?;
        Some((name.to_owned(), field.as_str()?.to_owned()))
    });
    let named_templates = named.collect();
    Ok(Vocabulary {
        model: text("tokenizer.ggml.model").unwrap_or_default(),
        pre: text("tokenizer.ggml.pre"),
        architecture: text("general.architecture").unwrap_or_default(),
        tokens: texts(metadata, "tokenizer.ggml.tokens")?,
        kinds: numbers(metadata, "tokenizer.ggml.token_type", |field| {
            u8::try_from(field.as_u64()?).ok()
        }),
        scores: numbers(metadata, "tokenizer.ggml.scores", |field| Some(field.as_f64()? as f32)),
        merges: texts(metadata, "tokenizer.ggml.merges")?,
        special,
        // Ollama's own.
        ends: numbers(metadata, "tokenizer.ggml.eos_token_ids", |field| {
            u32::try_from(field.as_u64()?).ok()
        }),
        add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
        add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
        template: text(TEMPLATE),
        named_templates,
    })
}

/// A list of texts; empty if there is none.
fn texts(metadata: &Metadata, key: &'static str) -> Result<Vec<String>> {
    let Some(Field::Texts(texts)) = metadata.get(key) else { return Ok(Vec::new()) };
    let text = |(index, bytes): (usize, &[u8])| {
        let text = str::from_utf8(bytes).map_err(|_| Error::TokenText {
            path: metadata.path().to_owned(),
            key,
            index,
        })?;
        Ok(text.to_owned())
    };
    texts.iter().enumerate().map(text).collect()
}

/// A list of numbers; those that are none of this kind count as zero.
fn numbers<T: Default>(
    metadata: &Metadata,
    key: &str,
    number: impl Fn(Field) -> Option<T>,
) -> Vec<T> {
    match metadata.get(key) {
        Some(Field::Numbers(numbers)) => {
            numbers.iter().map(|field| number(field).unwrap_or_default()).collect()
        }
        _ => Vec::new(),
    }
}
