//! A `tokenizer.json` loaded through the `tokenizers` crate, with its thread pool off.
//!
//! What that crate lacks is added here: which bytes one token contributes to the text. The answer
//! depends on the decoder the file declares, so the decoder is classified once into a [`Scheme`];
//! the detokeniser streams exactly for the two schemes language models use and falls back for the rest.

mod boundary;
mod check;
mod load;
mod outline;
mod pattern;
mod reach;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use tokenizers::Model;

use self::boundary::guarded;
use self::reach::Reach;
use crate::{Error, Result};

/// Bytes of text a token up to which a text is encoded without a lower bound of its tokens first.
const SHORT_BYTES: usize = 4;
/// Bytes of text that are encoded whatever they come to: a client that receives the exact number knows how much to leave out.
const SMALL_BYTES: usize = 256 << 10;

/// How far beyond the limit, as its multiple, the tokens of a text that is too long are counted: a client that shortens it
/// needs to know by how much.
const RECKONED: usize = 4;

/// A tokenizer. Clones share the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<TokenizerParts>,
}

struct TokenizerParts {
    inner: tokenizers::Tokenizer,
    scheme: Scheme,
    vocab_size: usize,
    special: BTreeSet<u32>,
    /// Made when a long text comes; `None` inside if there is no telling.
    reach: OnceLock<Option<Reach>>,
}

/// How token strings become bytes, as declared by the decoder of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// GPT-2's byte alphabet: each character of a token stands for one byte.
    ByteLevel,
    /// Sentencepiece: replacements (`▁` to space), then `<0xNN>` tokens as raw bytes, then up to
    /// `strip_start` leading characters equal to `strip` removed from the whole text.
    Sentencepiece { replacements: Vec<(String, String)>, strip: char, strip_start: usize },
    /// Any other decoder: only the `tokenizers` crate knows.
    Other,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(tokenizer_json: &[u8]) -> Result<Self> {
        // A second thread pool in addition to the decode threads costs more than it gives; the switch is global.
        tokenizers::utils::parallelism::set_parallelism(false);
        let refused = |reason| Error::TokenizerFile { reason };
        let inner = load::load(tokenizer_json).map_err(refused)?;
        let scheme = Scheme::of(&inner);
        let vocabulary = inner.get_added_vocabulary();
        let added = vocabulary.get_added_tokens_decoder();
        let last_added = added.keys().max().map_or(0, |&id| id as usize + 1);
        let last_model =
            inner.get_model().get_vocab().values().max().map_or(0, |&id| id as usize + 1);
        let vocab_size = last_added.max(last_model);
        // As decoding has it: by the string that the decoder is given.
        let is_special = |&id: &u32| {
            vocabulary.simple_id_to_token(id).is_some_and(|t| vocabulary.is_special_token(&t))
        };
        let special = added.keys().copied().filter(is_special).collect();
        let reach = OnceLock::new();
        Ok(Self { shared: Arc::new(TokenizerParts { inner, scheme, vocab_size, special, reach }) })
    }

    /// Token ids of `text`. With `add_special_tokens` the file's post-processor adds its BOS and EOS;
    /// rendered chat templates are encoded without.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encode = || {
            let encoding = self.shared.inner.encode_fast(text, add_special_tokens);
            encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|error| error.to_string())
        };
        let tokens = guarded(encode).and_then(|tokens| tokens);
        tokens.map_err(|reason| Error::Encode { bytes: text.len(), reason })
    }

    /// The same, or [`Error::TooManyTokens`] if there are more than `most`. Encoding takes a hundred bytes of memory
    /// for one of text, so a text that is far too long is refused by what its tokens come to at least.
    pub fn encode_up_to(
        &self,
        text: &str,
        add_special_tokens: bool,
        most: usize,
    ) -> Result<Vec<u32>> {
        let check = |at_least: usize| match at_least > most {
            true => Err(Error::TooManyTokens { at_least, most }),
            false => Ok(()),
        };
        self.check_length(text, most)?;
        let tokens = self.encode(text, add_special_tokens)?;
        check(tokens.len())?;
        Ok(tokens)
    }

    /// [`Error::TooManyTokens`] if there are more than `most` without a doubt. Takes neither much time nor memory.
    pub fn check_length(&self, text: &str, most: usize) -> Result<()> {
        let at_least = self.fewest_tokens(text, most);
        if at_least > most {
            return Err(Error::TooManyTokens { at_least, most });
        }
        Ok(())
    }

    /// What a text's tokens come to at least, found without encoding it; 0 if it is short or there is no telling.
    fn fewest_tokens(&self, text: &str, most: usize) -> usize {
        if text.len() <= most.saturating_mul(SHORT_BYTES).max(SMALL_BYTES) {
            return 0;
        }
        let reach = self.shared.reach.get_or_init(|| Reach::of(self));
        let reckoned = most.saturating_mul(RECKONED);
        reach.as_ref().map_or(0, |reach| reach.fewest(text, reckoned).tokens)
    }

    /// The text of a whole token sequence. Ids outside the vocabulary contribute nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        let decode = || {
            let text = self.shared.inner.decode(ids, skip_special_tokens);
            text.map_err(|error| error.to_string())
        };
        let text = guarded(decode).and_then(|text| text);
        text.map_err(|reason| Error::Decode { tokens: ids.len(), reason })
    }

    /// One more than the largest token id, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.shared.vocab_size
    }

    /// The id of a token given exactly as the vocabulary spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.shared.inner.token_to_id(token)
    }

    /// A token as the vocabulary spells it (`Ġthe`, `▁the`, `<|im_end|>`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.shared.inner.id_to_token(id)
    }

    /// All tokens as grammars see them, for a model with so many logits.
    pub fn grammar_tokens(&self, logits: usize) -> Vec<grammar::Token> {
        let token = |id| grammar::Token {
            bytes: self.token_bytes(id).unwrap_or_default(),
            is_special: self.is_special(id),
        };
        (0..u32::try_from(logits).unwrap_or(u32::MAX)).map(token).collect()
    }

    /// Whether the file marks this token as special: control, not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.shared.special.contains(&id)
    }

    /// The raw bytes one token contributes to the decoded text, wherever it stands: half a character
    /// for some. `None` for ids outside the vocabulary. Position-dependent rules of the decoder
    /// (stripping the first space) are not applied.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.decoder_token(id)?;
        match &self.shared.scheme {
            Scheme::ByteLevel => Some(byte_level_bytes(&token)),
            Scheme::Sentencepiece { replacements, .. } => {
                let token = replace_all(token, replacements);
                Some(fallback_byte(&token).map_or_else(|| token.into_bytes(), |byte| vec![byte]))
            }
            Scheme::Other => self.decode(&[id], false).ok().map(String::into_bytes),
        }
    }

    pub(crate) fn scheme(&self) -> &Scheme {
        &self.shared.scheme
    }

    /// The string the decoder is given for a token: an added token may be cached in a normalized form.
    pub(crate) fn decoder_token(&self, id: u32) -> Option<String> {
        let inner = &self.shared.inner;
        inner
            .get_added_vocabulary()
            .simple_id_to_token(id)
            .or_else(|| inner.get_model().id_to_token(id))
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocab_size", &self.shared.vocab_size)
            .field("scheme", &self.shared.scheme)
            .finish_non_exhaustive()
    }
}

impl Scheme {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        let Some(decoder) = tokenizer.get_decoder() else { return Self::Other };
        // The decoder's fields are private; its serialised form is the file's own, stable format.
        let Ok(decoder) = serde_json::to_value(decoder) else { return Self::Other };
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().cloned().unwrap_or_default(),
            _ => vec![decoder],
        };
        let kinds: Vec<&str> =
            steps.iter().map(|step| step["type"].as_str().unwrap_or_default()).collect();
        if kinds == ["ByteLevel"] {
            return Self::ByteLevel;
        }
        Self::sentencepiece(&steps, &kinds).unwrap_or(Self::Other)
    }

    /// `Replace`…, `ByteFallback`, `Fuse`, optionally one `Strip` at the start; anything else is `None`.
    fn sentencepiece(steps: &[serde_json::Value], kinds: &[&str]) -> Option<Self> {
        let replace_count = kinds.iter().take_while(|&&kind| kind == "Replace").count();
        let mut replacements = Vec::new();
        for step in &steps[..replace_count] {
            let pattern = step["pattern"]["String"].as_str().filter(|text| !text.is_empty())?;
            replacements.push((pattern.to_owned(), step["content"].as_str()?.to_owned()));
        }
        let (strip, strip_start) = match &kinds[replace_count..] {
            ["ByteFallback", "Fuse"] => (' ', 0),
            ["ByteFallback", "Fuse", "Strip"] => {
                let step = steps.last()?;
                if step["stop"].as_u64()? != 0 {
                    return None;
                }
                let start = usize::try_from(step["start"].as_u64()?).ok()?;
                (step["content"].as_str()?.chars().next()?, start)
            }
            _ => return None,
        };
        Some(Self::Sentencepiece { replacements, strip, strip_start })
    }
}

/// Bytes of a token in GPT-2's alphabet. A token with any character outside it stands for itself,
/// which is how the decoder treats it too.
pub(crate) fn byte_level_bytes(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(byte_of_character)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

/// GPT-2's alphabet: printable Latin-1 bytes are themselves; the 68 others are U+0100 onwards in byte order.
fn byte_of_character(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(), // 0x00..=0x20
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(), // 0x7F..=0xA0
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The byte of a `<0xNN>` token.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

pub(crate) fn replace_all(mut token: String, replacements: &[(String, String)]) -> String {
    for (from, to) in replacements {
        if token.contains(from.as_str()) {
            token = token.replace(from.as_str(), to);
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::pebble;
    use proptest::prelude::*;

    #[test]
    fn byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> =
            (0..0x200u32).filter_map(char::from_u32).filter_map(byte_of_character).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_level_bytes("Ġthe"), b" the");
        assert_eq!(byte_level_bytes("Ċ"), b"\n");
        assert_eq!(byte_level_bytes("<｜end▁of｜>"), "<｜end▁of｜>".as_bytes());
    }

    #[test]
    fn fallback_tokens_are_recognised() {
        assert_eq!(fallback_byte("<0xE2>"), Some(0xE2));
        assert_eq!(fallback_byte("<0x0a>"), Some(10));
        assert_eq!(fallback_byte("<0xZZ>"), None);
        assert_eq!(fallback_byte("<0x1>"), None);
    }

    #[test]
    fn pebble_vocabulary() {
        let tokenizer = pebble();
        assert_eq!(tokenizer.vocab_size(), 4096);
        let end = tokenizer.token_to_id("<|im_end|>").unwrap();
        assert_eq!(end, 4082);
        assert_eq!(tokenizer.id_to_token(end).as_deref(), Some("<|im_end|>"));
        assert!(tokenizer.is_special(end));
        assert!(!tokenizer.is_special(tokenizer.token_to_id("<think>").unwrap()));
        assert!(!tokenizer.is_special(4096));
        assert_eq!(tokenizer.token_bytes(end).as_deref(), Some(&b"<|im_end|>"[..]));
        assert_eq!(tokenizer.token_bytes(4096), None);
    }

    #[test]
    fn token_bytes_add_up_to_the_text() {
        let tokenizer = pebble();
        let text = "Grüße, 世界! 👩‍👩‍👧 <think>\n\tfn main() {}</think>";
        let ids = tokenizer.encode(text, false).unwrap();
        let bytes: Vec<u8> =
            ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }

    #[test]
    fn a_text_that_is_far_too_long_is_not_encoded() {
        let tokenizer = pebble();
        for text in ["a", "word ", "世界", "\n"].map(|text| text.repeat(1_000_000)) {
            // Encoding it whole would give their exact number.
            match tokenizer.encode_up_to(&text, false, 1000).unwrap_err() {
                Error::TooManyTokens { at_least, most } => {
                    assert_eq!((at_least, most), (4001, 1000));
                }
                error => panic!("{error}"),
            }
        }
    }

    proptest! {
        #[test]
        fn a_limit_changes_no_token(text in "([a-zé ]{0,40}|\\PC{0,9}|\\s{0,20}|<\\|im_end\\|>){0,20}") {
            let tokenizer = pebble();
            let tokens = tokenizer.encode(&text, false).unwrap();
            for most in [tokens.len(), tokens.len() + 1, usize::MAX] {
                prop_assert_eq!(&tokenizer.encode_up_to(&text, false, most).unwrap(), &tokens);
            }
            if let Some(less) = tokens.len().checked_sub(1) {
                let error = tokenizer.encode_up_to(&text, false, less).unwrap_err();
                let is_right = matches!(error, Error::TooManyTokens { at_least, most }
                    if most == less && (less + 1..=tokens.len()).contains(&at_least));
                prop_assert!(is_right, "{}", error);
            }
        }
    }

    #[test]
    fn a_broken_file_is_an_error() {
        assert!(matches!(Tokenizer::from_bytes(b"{}"), Err(Error::TokenizerFile { .. })));
    }
}
