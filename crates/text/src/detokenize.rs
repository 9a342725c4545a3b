//! Tokens to text one at a time, for streaming.
//!
//! The pieces put together equal [`Tokenizer::decode`] of the whole sequence, and no piece ever ends in
//! half a character. Byte-level and sentencepiece vocabularies are streamed exactly, from bytes. Any
//! other decoder goes through a sliding window of decodes: two windows that begin at the same token
//! differ by the new text alone; there, a tail ending in U+FFFD waits for the next token.

use std::collections::BTreeSet;

use crate::tokenizer::{Scheme, byte_level_bytes, fallback_byte, replace_all};
use crate::{Error, Result, Tokenizer};

/// Tokens that may give no text, or half a character, before they are released. A window is decoded for each token,
/// so one that never moved would take time by the square of the answer.
const MOST_WAITING: usize = 256;

/// Incremental detokeniser of one sequence.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    kept: BTreeSet<u32>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Bytes of a character whose end has not arrived: at most three.
    ByteLevel { pending: Vec<u8> },
    /// A run of `<0xNN>` tokens is text only if the whole run is valid, so it waits for its end.
    /// `strip_left` is how many leading characters may still be stripped.
    Sentencepiece { byte_run: Vec<u8>, strip_left: usize },
    /// `ids[prefix..read]` has been emitted and gives the window its context.
    Window { ids: Vec<u32>, prefix: usize, read: usize },
}

impl Detokenizer {
    /// A detokeniser at the start of a sequence. Special tokens give no text.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let state = match tokenizer.scheme() {
            Scheme::ByteLevel => State::ByteLevel { pending: Vec::new() },
            Scheme::Sentencepiece { strip_start, .. } => {
                State::Sentencepiece { byte_run: Vec::new(), strip_left: *strip_start }
            }
            Scheme::Other => State::Window { ids: Vec::new(), prefix: 0, read: 0 },
        };
        Self {
            tokenizer: tokenizer.clone(),
            skip_special_tokens: true,
            kept: BTreeSet::new(),
            state,
        }
    }

    /// Whether special tokens are left out (the default) or written as they are spelt.
    #[must_use]
    pub fn skip_special_tokens(mut self, skip: bool) -> Self {
        self.skip_special_tokens = skip;
        self
    }

    /// Special tokens that are written all the same: marks that a parser of the text must see.
    #[must_use]
    pub fn keep(mut self, ids: impl IntoIterator<Item = u32>) -> Self {
        self.kept.extend(ids);
        self
    }

    /// Takes the next token and returns the text it completes, which may be empty.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let is_kept = || self.kept.contains(&id);
        if self.skip_special_tokens && self.tokenizer.is_special(id) && !is_kept() {
            return Ok(String::new());
        }
        let Some(token) = self.tokenizer.decoder_token(id) else { return Ok(String::new()) };
        match (&mut self.state, self.tokenizer.scheme()) {
            (State::ByteLevel { pending }, _) => {
                pending.extend(byte_level_bytes(&token));
                Ok(take_complete(pending))
            }
            (
                State::Sentencepiece { byte_run, strip_left },
                Scheme::Sentencepiece { replacements, strip, .. },
            ) => {
                let token = replace_all(token, replacements);
                if let Some(byte) = fallback_byte(&token) {
                    byte_run.push(byte);
                    return Ok(String::new());
                }
                let text = take_byte_run(byte_run) + &token;
                Ok(strip_start(text, *strip, strip_left))
            }
            (State::Window { ids, .. }, _) => {
                ids.push(id);
                self.advance_window(false)
            }
            (State::Sentencepiece { .. }, _) => unreachable!("the state follows the scheme"),
        }
    }

    /// Ends the sequence: what was held back comes out as a whole decode would show it.
    pub fn finish(&mut self) -> Result<String> {
        match (&mut self.state, self.tokenizer.scheme()) {
            (State::ByteLevel { pending }, _) => {
                let text = String::from_utf8_lossy(pending).into_owned();
                pending.clear();
                Ok(text)
            }
            (
                State::Sentencepiece { byte_run, strip_left },
                Scheme::Sentencepiece { strip, .. },
            ) => Ok(strip_start(take_byte_run(byte_run), *strip, strip_left)),
            (State::Window { .. }, _) => self.advance_window(true),
            (State::Sentencepiece { .. }, _) => unreachable!("the state follows the scheme"),
        }
    }

    /// Ends a sequence that was cut off: what was held back comes out as far as its characters are whole.
    pub fn cut(&mut self) -> Result<String> {
        match &mut self.state {
            State::ByteLevel { pending } => pending.clear(),
            State::Sentencepiece { byte_run, .. } => {
                if let Err(error) = std::str::from_utf8(byte_run)
                    && error.error_len().is_none()
                {
                    byte_run.truncate(error.valid_up_to());
                }
            }
            State::Window { .. } => {
                let text = self.advance_window(true)?;
                return Ok(text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned());
            }
        }
        self.finish()
    }

    fn advance_window(&mut self, finish: bool) -> Result<String> {
        let State::Window { ids, prefix, read } = &mut self.state else { return Ok(String::new()) };
        let before = self.tokenizer.decode(&ids[*prefix..*read], false)?;
        let after = self.tokenizer.decode(&ids[*prefix..], false)?;
        let waits = after.len() <= before.len() || (after.ends_with('\u{FFFD}') && !finish);
        if waits && ids.len() - *read < MOST_WAITING {
            return Ok(String::new());
        }
        let before = before.len().min(after.len());
        let text = after.get(before..).map(str::to_owned).ok_or_else(|| Error::Decode {
            tokens: ids.len() - *prefix,
            reason: "the decoder rewrote text it had already given".to_owned(),
        })?;
        ids.drain(..*read);
        (*prefix, *read) = (0, ids.len());
        Ok(text)
    }
}

/// Moves every complete character out of `pending`; invalid sequences become U+FFFD, one for each
/// maximal invalid prefix, as `String::from_utf8_lossy` does. An incomplete tail stays.
fn take_complete(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut start = 0;
    loop {
        match std::str::from_utf8(&pending[start..]) {
            Ok(valid) => {
                text.push_str(valid);
                start = pending.len();
                break;
            }
            Err(error) => {
                let valid_end = start + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&pending[start..valid_end]));
                start = valid_end;
                let Some(invalid_len) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                start += invalid_len;
            }
        }
    }
    pending.drain(..start);
    text
}

/// Text of a finished run of byte tokens: one U+FFFD for each byte if the run as a whole is invalid.
fn take_byte_run(byte_run: &mut Vec<u8>) -> String {
    let count = byte_run.len();
    String::from_utf8(std::mem::take(byte_run)).unwrap_or_else(|_| "\u{FFFD}".repeat(count))
}

fn strip_start(text: String, strip: char, strip_left: &mut usize) -> String {
    if *strip_left == 0 {
        return text;
    }
    let mut rest = text.as_str();
    while *strip_left > 0 {
        let Some(first) = rest.chars().next() else { break };
        if first == strip {
            *strip_left -= 1;
            rest = &rest[first.len_utf8()..];
        } else {
            *strip_left = 0;
        }
    }
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::pebble;
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::OnceLock;

    /// A sentencepiece-like vocabulary: all bytes, some words, one special token.
    fn sentencepiece(decoder: &serde_json::Value) -> Tokenizer {
        let mut vocab = serde_json::Map::new();
        for byte in 0..=255u32 {
            vocab.insert(format!("<0x{byte:02X}>"), byte.into());
        }
        let words = ["▁", "▁the", "the", "▁▁a", "é", "\u{FFFD}", ".", "<unk>"];
        for (index, word) in words.iter().enumerate() {
            vocab.insert((*word).to_owned(), (256 + index).into());
        }
        let file = json!({
            "version": "1.0",
            "added_tokens": [{"id": 264, "content": "<s>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": decoder,
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>",
                "byte_fallback": true, "fuse_unk": true},
        });
        Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
    }

    fn llama() -> Tokenizer {
        static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        TOKENIZER.get_or_init(|| sentencepiece(&decoder)).clone()
    }

    fn metaspace() -> Tokenizer {
        static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
        let decoder = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        TOKENIZER.get_or_init(|| sentencepiece(&decoder)).clone()
    }

    #[track_caller]
    fn check(tokenizer: &Tokenizer, ids: &[u32], skip: bool) {
        let mut detokenizer = Detokenizer::new(tokenizer).skip_special_tokens(skip);
        let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
        pieces.push(detokenizer.finish().unwrap());
        assert_eq!(pieces.concat(), tokenizer.decode(ids, skip).unwrap(), "{pieces:?}");
    }

    #[test]
    fn an_emoji_split_over_byte_tokens_comes_out_whole() {
        let tokenizer = pebble();
        let ids = tokenizer.encode("a 👩‍👧 b", false).unwrap();
        let mut detokenizer = Detokenizer::new(&tokenizer);
        let pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
        assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
        assert!(pieces.iter().any(String::is_empty), "the emoji should take several tokens");
        assert_eq!(pieces.concat(), "a 👩‍👧 b");
        assert_eq!(detokenizer.finish().unwrap(), "");
    }

    #[test]
    fn half_a_character_at_the_end_is_replaced() {
        let tokenizer = pebble();
        let ids = tokenizer.encode("👧", false).unwrap();
        check(&tokenizer, &ids[..ids.len() - 1], true);
    }

    #[test]
    fn a_sequence_that_is_cut_off_ends_with_a_whole_character() {
        let bytes = "é👧".bytes().map(u32::from).collect::<Vec<u32>>();
        let emoji = pebble().encode("é👧", false).unwrap();
        for (tokenizer, ids) in [(pebble(), &emoji), (llama(), &bytes)] {
            for length in 0..=ids.len() {
                let mut detokenizer = Detokenizer::new(&tokenizer);
                let mut text: String =
                    ids[..length].iter().map(|&id| detokenizer.push(id).unwrap()).collect();
                text += &detokenizer.cut().unwrap();
                assert!("é👧".starts_with(&text), "{text:?} of {length}");
                assert_eq!(text == "é👧", length == ids.len());
            }
        }
    }

    #[test]
    fn special_tokens_are_skipped_or_shown() {
        let tokenizer = pebble();
        let ids = tokenizer.encode("<|im_start|>a<|im_end|>", false).unwrap();
        check(&tokenizer, &ids, true);
        check(&tokenizer, &ids, false);
        check(&tokenizer, &[1_000_000, ids[0]], false);
    }

    #[test]
    fn kept_special_tokens_are_shown_among_hidden_ones() {
        let tokenizer = pebble();
        let ids = tokenizer.encode("<|im_start|>a<|im_end|>", false).unwrap();
        let mut detokenizer = Detokenizer::new(&tokenizer).keep([ids[2]]);
        let text: String = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
        assert_eq!(text, "a<|im_end|>");
    }

    #[test]
    fn the_first_space_is_stripped_once() {
        assert!(matches!(llama().scheme(), Scheme::Sentencepiece { strip_start: 1, .. }));
        for ids in [&[257, 257][..], &[264, 256, 256], &[259, 257], &[0x20, 0x20, 257], &[258, 256]]
        {
            check(&llama(), ids, true);
        }
        assert!(matches!(metaspace().scheme(), Scheme::Other));
        check(&metaspace(), &[257, 257, 258, 259], true);
    }

    proptest! {
        #[test]
        fn byte_level_pieces_equal_the_whole(
            ids in prop::collection::vec(prop_oneof![0u32..4100, 0u32..260], 0..60), skip: bool,
        ) {
            check(&pebble(), &ids, skip);
        }

        #[test]
        fn byte_level_text_survives(text in "\\PC{0,30}") {
            let tokenizer = pebble();
            check(&tokenizer, &tokenizer.encode(&text, false).unwrap(), true);
        }

        #[test]
        fn sentencepiece_pieces_equal_the_whole(
            ids in prop::collection::vec(prop_oneof![250u32..266, 0x80u32..0x100, 0xE2u32..0xE3, 0x20u32..0x21], 0..40),
            skip: bool,
        ) {
            check(&llama(), &ids, skip);
        }

        #[test]
        fn window_pieces_equal_the_whole(ids in prop::collection::vec(256u32..266, 0..40), skip: bool) {
            check(&metaspace(), &ids, skip);
        }
    }
}
