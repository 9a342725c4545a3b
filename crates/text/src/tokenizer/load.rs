//! From the bytes of a tokenizer.json to a tokenizer of the `tokenizers` crate that has been tried.
//!
//! Everything the crate does here is inside the boundary, and what goes wrong is reported with the part of the
//! file it comes from. A short text with a bit of everything is encoded and decoded once: what panics on
//! that is refused with the file, and not with every prompt.

use serde::de::DeserializeOwned;
use tokenizers::{
    Decoder, DecoderWrapper, Model, NormalizedString, Normalizer, NormalizerWrapper,
    OffsetReferential, OffsetType, PostProcessorWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper,
};

use super::boundary::guarded;
use super::check::check;
use super::outline::Outline;

/// Words whose tokens each thread that encodes remembers. One of 255 bytes takes 9 KB, and the crate's own 10,000 let
/// a client that sends odd words fill 90 MB a thread.
const CACHED_WORDS: usize = 1000;

/// Letters of one to four bytes, some that compose or come apart, white space, control characters.
const TRIAL: &str =
    "Ab 1,23 e\u{301}é ﷺ\u{a0}世界 👩\u{200d}👧 \u{0}\u{fffd}\u{1100}\u{1161}\t\n  x";

/// Reads, checks and tries a file.
pub(super) fn load(json: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    let outline = check(json)?;
    let inner = guarded(|| read(json))
        .and_then(|read| read)
        .map_err(|reason| format!("{}: {reason}", blamed(&outline)))?;
    attempt(&inner)?;
    Ok(inner)
}

fn read(json: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
    // Some files carry the truncation and padding of their training run: a prompt is never cut silently.
    inner.with_truncation(None).map_err(|error| error.to_string())?;
    inner.with_padding(None);
    // There is no way to the model but to put another in its place.
    let mut model = inner.get_model().clone();
    model.resize_cache(CACHED_WORDS);
    inner.with_model(model);
    Ok(inner)
}

/// The section that the crate does not take. The large ones are not tried again: it is them if it is no other.
fn blamed(outline: &Outline) -> &'static str {
    fn is_taken<T: DeserializeOwned>(value: &serde_json::Value) -> bool {
        let value = value.clone();
        guarded(|| serde_json::from_value::<Option<T>>(value).is_ok()).unwrap_or(false)
    }
    let is_wrong = |(section, value): &&(&'static str, serde_json::Value)| match *section {
        "normalizer" => !is_taken::<NormalizerWrapper>(value),
        "pre_tokenizer" => !is_taken::<PreTokenizerWrapper>(value),
        "post_processor" => !is_taken::<PostProcessorWrapper>(value),
        _ => !is_taken::<DecoderWrapper>(value),
    };
    let wrong = outline.sections.iter().find(is_wrong);
    wrong.map_or("model or added_tokens", |(section, _)| *section)
}

/// Goes the way of a text, part by part. What is an error there is one of the text, not of the file.
fn attempt(inner: &tokenizers::Tokenizer) -> Result<(), String> {
    let part = |name: &str, work: &dyn Fn()| {
        guarded(work).map_err(|words| format!("{name}: it fails on a plain text: {words}"))
    };
    part("normalizer", &|| {
        if let Some(normalizer) = inner.get_normalizer() {
            let _ = normalizer.normalize(&mut NormalizedString::from(TRIAL));
        }
    })?;
    part("pre_tokenizer", &|| {
        if let Some(splitter) = inner.get_pre_tokenizer() {
            let mut text = PreTokenizedString::from(TRIAL);
            let _ = splitter.pre_tokenize(&mut text);
            text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        }
    })?;
    part("model", &|| {
        let _ = inner.get_model().tokenize("Ab");
    })?;
    part("added_tokens or model", &|| {
        let _ = inner.encode_fast(TRIAL, false);
    })?;
    part("post_processor", &|| {
        let _ = inner.encode_fast(TRIAL, true);
    })?;
    part("decoder", &|| {
        if let Some(decoder) = inner.get_decoder() {
            let tokens = TRIAL.split_inclusive(' ').map(str::to_owned).collect();
            let _ = decoder.decode(tokens);
        }
    })
}
