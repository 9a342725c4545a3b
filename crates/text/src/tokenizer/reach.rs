//! The fewest tokens that a text can have, found without encoding it.
//!
//! For what stands at a place of a text, tables of the vocabulary say how far a token that covers the place can
//! reach at most. Going from reach to reach takes no more steps than any tokenizer needs tokens: a token
//! that begins before a step's place ends no later than the step does. The answer is never too high; tables are
//! small, and may say too far. It does not cut, normalize or count as the tokenizer does, and it says nothing of
//! tokenizers that drop text ([`Reach::of`] is `None`).

use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NFC;
use tokenizers::{NormalizedString, Normalizer};

use super::{Scheme, Tokenizer, replace_all};

/// Bytes that are looked at together. What no token contains ends every token before it does.
const WIDTHS: [usize; 4] = [2, 4, 8, 16];

/// Bytes of all tokens from which on tables would be larger than what they save. Gemma's have 3 MB.
const MOST_BYTES: usize = 16 << 20;

/// Bytes of text that are normalized at once.
const BLOCK_BYTES: usize = 16 << 10;

/// What a normalizer may change where a block ends between two characters that could have become one.
const SEAM_BYTES: usize = 256;

/// How far the tokens of a vocabulary reach.
pub(super) struct Reach {
    tables: Vec<Table>,
    /// Bytes of the longest token.
    longest: usize,
    /// What brings text to its composed form, if anything does.
    composes: bool,
    /// Whether a token may take adjacent white space.
    takes_space: bool,
    /// What the decoder writes for marks of the vocabulary: marks in a text are taken for it.
    replacements: Vec<(String, String)>,
}

/// The longest rest of a token from each group of bytes on.
struct Table {
    width: usize,
    /// By the low bits of the group's hash; groups that share a place share the longer rest.
    rests: Vec<u16>,
}

impl Table {
    fn new(width: usize, tokens: &[Vec<u8>]) -> Table {
        let groups: usize =
            tokens.iter().map(|token| (token.len() + 1).saturating_sub(width)).sum();
        let mut table = Table { width, rests: vec![0; (2 * groups).next_power_of_two()] };
        for token in tokens {
            for (start, group) in token.windows(width).enumerate() {
                let place = table.place(group);
                // `Reach::of` has refused longer ones.
                let rest = u16::try_from(token.len() - start).unwrap_or(u16::MAX);
                table.rests[place] = table.rests[place].max(rest);
            }
        }
        table
    }

    /// FNV-1a, whose low bits are the weaker ones.
    fn place(&self, group: &[u8]) -> usize {
        let hash = group.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash ^ (hash >> 32)) as usize & (self.rests.len() - 1)
    }

    /// Bytes from the beginning of a text to where a token that covers it ends at the latest, if the text is long
    /// enough to determine it.
    fn rest(&self, text: &[u8]) -> Option<usize> {
        let group = text.get(..self.width)?;
        Some(usize::from(self.rests[self.place(group)]).max(self.width - 1))
    }
}

impl Reach {
    /// `None` if text may vanish between a prompt and its tokens, so that its length says nothing.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Reach> {
        let inner = &tokenizer.shared.inner;
        // Their fields are private; the serialised form is the file's own.
        let normalizer = serde_json::to_value(inner.get_normalizer()).ok()?;
        let splitter = serde_json::to_value(inner.get_pre_tokenizer()).ok()?;
        let composes = composes(&normalizer, tokenizer.scheme())?;
        if !splits_only(&splitter) || !joins_only(inner.get_model(), &splitter, tokenizer.scheme())
        {
            return None;
        }
        let ids = 0..u32::try_from(tokenizer.vocab_size()).ok()?;
        let mut tokens: Vec<Vec<u8>> = ids.filter_map(|id| tokenizer.token_bytes(id)).collect();
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        // They are found in the text as they are, whatever the decoder makes of them; or as they are normalized, which
        // may put a space in front.
        for token in added.values() {
            tokens.push(token.content.clone().into_bytes());
            tokens.push(format!(" {}", token.content).into_bytes());
        }
        let longest = tokens.iter().map(Vec::len).max()?;
        let all: usize = tokens.iter().map(Vec::len).sum();
        if all > MOST_BYTES || longest > usize::from(u16::MAX) || !spells_every_byte(&tokens) {
            return None;
        }
        let replacements = match tokenizer.scheme() {
            Scheme::Sentencepiece { replacements, .. } => replacements.clone(),
            Scheme::ByteLevel | Scheme::Other => Vec::new(),
        };
        Some(Reach {
            tables: WIDTHS.iter().map(|&width| Table::new(width, &tokens)).collect(),
            longest,
            composes,
            takes_space: added.values().any(|token| token.lstrip || token.rstrip),
            replacements,
        })
    }

    /// No more than the tokens of a text; and no more than just past `most`, where it stops to look.
    pub(super) fn fewest(&self, text: &str, most: usize) -> Fewest {
        let mut fewest = Fewest { tokens: 0, bytes_read: 0 };
        // Bytes of the next block that the last step has covered.
        let mut covered = 0;
        let mut rest = text;
        while !rest.is_empty() && fewest.tokens <= most {
            let (block, is_clean) = next_block(rest);
            rest = &rest[block.len()..];
            fewest.bytes_read += block.len();
            covered = self.cross(&self.normalized(block), covered, most, &mut fewest.tokens);
            if !is_clean {
                covered += SEAM_BYTES;
            }
        }
        fewest
    }

    /// Steps through a block; how far the last one goes beyond it.
    fn cross(&self, block: &str, covered: usize, most: usize, steps: &mut usize) -> usize {
        let bytes = block.as_bytes();
        let mut place = covered;
        while *steps <= most {
            place = if self.takes_space { skip_space(block, place) } else { place };
            let Some(text) = bytes.get(place..).filter(|text| !text.is_empty()) else { break };
            let rests = self.tables.iter().filter_map(|table| table.rest(text));
            place += rests.fold(self.longest, usize::min).max(1);
            *steps += 1;
        }
        place.saturating_sub(bytes.len())
    }

    /// The block as the vocabulary spells text.
    fn normalized(&self, block: &str) -> String {
        let block = replace_all(block.to_owned(), &self.replacements);
        if !self.composes || block.is_ascii() {
            return block;
        }
        let mut composed = NormalizedString::from(block.as_str());
        match NFC.normalize(&mut composed) {
            Ok(()) => composed.get().to_owned(),
            Err(_) => block,
        }
    }
}

/// What [`Reach::fewest`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fewest {
    pub(super) tokens: usize,
    /// Bytes of the text that it looked at.
    pub(super) bytes_read: usize,
}

/// The beginning of a text, and whether nothing behind it can change how it is normalized: nothing joins a character
/// of ASCII from behind.
fn next_block(text: &str) -> (&str, bool) {
    if text.len() <= BLOCK_BYTES {
        return (text, true);
    }
    let seam = text.as_bytes()[BLOCK_BYTES / 2..=BLOCK_BYTES].iter().rposition(u8::is_ascii);
    match seam {
        Some(seam) => (&text[..BLOCK_BYTES / 2 + seam], true),
        None => (&text[..text.floor_char_boundary(BLOCK_BYTES)], false),
    }
}

/// The first place from here on that is not white space. A place inside a character is followed to its end.
fn skip_space(text: &str, place: usize) -> usize {
    if place >= text.len() {
        return place;
    }
    let rest = &text[text.ceil_char_boundary(place)..];
    text.len() - rest.trim_start().len()
}

/// Whether the normalizer composes characters; `None` if it may do more than this and spelling spaces.
fn composes(normalizer: &Value, scheme: &Scheme) -> Option<bool> {
    match normalizer["type"].as_str() {
        None if normalizer.is_null() => Some(false),
        Some("NFC") => Some(true),
        Some("Prepend") => Some(false),
        Some("Replace") => spells_spaces(normalizer, scheme).then_some(false),
        Some("Sequence") => {
            let steps = normalizer["normalizers"].as_array()?;
            let composes = steps.iter().map(|step| composes(step, scheme));
            composes.collect::<Option<Vec<_>>>().map(|steps| steps.contains(&true))
        }
        _ => None,
    }
}

/// Whether the decoder takes back what this step does.
fn spells_spaces(step: &Value, scheme: &Scheme) -> bool {
    let Scheme::Sentencepiece { replacements, .. } = scheme else { return false };
    let (from, to) = (step["pattern"]["String"].as_str(), step["content"].as_str());
    from == Some(" ")
        && replacements.iter().any(|(mark, space)| space == " " && Some(mark.as_str()) == to)
}

/// Whether a pre-tokenizer drops nothing between the pieces it makes.
fn splits_only(splitter: &Value) -> bool {
    match splitter["type"].as_str() {
        None => splitter.is_null(),
        Some("ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts" | "FixedLength") => true,
        Some("Split" | "Punctuation") => splitter["behavior"] != "Removed",
        Some("Sequence") => {
            splitter["pretokenizers"].as_array().is_some_and(|steps| steps.iter().all(splits_only))
        }
        Some(_) => false,
    }
}

/// Whether each token of the model stands for its own bytes and nothing else, words that it does not know included.
fn joins_only(model: &ModelWrapper, splitter: &Value, scheme: &Scheme) -> bool {
    let is_bytewise = match scheme {
        Scheme::ByteLevel => maps_bytes(splitter),
        Scheme::Sentencepiece { .. } => false,
        Scheme::Other => return false,
    };
    match model {
        ModelWrapper::BPE(bpe) => {
            let is_plain = |affix: &Option<String>| affix.as_ref().is_none_or(String::is_empty);
            bpe.dropout.is_none()
                && is_plain(&bpe.continuing_subword_prefix)
                && is_plain(&bpe.end_of_word_suffix)
                && (is_bytewise || bpe.byte_fallback)
        }
        ModelWrapper::Unigram(unigram) => unigram.byte_fallback(),
        _ => false,
    }
}

/// Whether a pre-tokenizer writes text in GPT-2's alphabet of bytes.
fn maps_bytes(splitter: &Value) -> bool {
    let steps = splitter["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice);
    splitter["type"] == "ByteLevel" || steps.iter().any(maps_bytes)
}

/// Whether no text is unknown: each byte that UTF-8 uses is a token.
fn spells_every_byte(tokens: &[Vec<u8>]) -> bool {
    let mut is_there = [false; 256];
    for token in tokens {
        if let [byte] = token[..] {
            is_there[usize::from(byte)] = true;
        }
    }
    (0..=0xF4).filter(|byte| !matches!(byte, 0xC0 | 0xC1)).all(|byte: usize| is_there[byte])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::pebble;
    use proptest::prelude::*;
    use serde_json::json;

    /// A tokenizer that spells spaces with marks and bytes with numbers, as sentencepiece does.
    fn marked(model: &Value, change: impl Fn(&mut Value)) -> Tokenizer {
        let mut file = json!({
            "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "pre_tokenizer": null,
            "added_tokens": [{
                "id": 400, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
            ]},
            "model": model,
        });
        change(&mut file);
        Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
    }

    fn merging() -> Value {
        let words = ["▁", "a", "b", "é", "▁▁", "▁▁▁▁", "▁a", "ab", "▁ab", "▁abab", "abab"];
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let tokens = std::iter::once("<unk>".to_owned()).chain(bytes);
        let tokens = tokens.chain(words.map(str::to_owned)).enumerate();
        let vocab: serde_json::Map<String, Value> =
            tokens.map(|(id, token)| (token, id.into())).collect();
        json!({
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab,
            "merges": ["▁ ▁", "▁▁ ▁▁", "a b", "▁ ab", "▁ a", "ab ab", "▁ab ab"],
        })
    }

    #[track_caller]
    fn check(tokenizer: &Tokenizer, text: &str) {
        let reach = Reach::of(tokenizer).unwrap();
        let tokens = tokenizer.encode(text, false).unwrap().len();
        let fewest = reach.fewest(text, usize::MAX);
        assert!(fewest.tokens <= tokens, "{} of {tokens} in {text:?}", fewest.tokens);
        assert_eq!(fewest.bytes_read, text.len());
        // What has few tokens for its length is not taken for much less than it is.
        assert!(fewest.tokens * reach.longest >= text.len() / 3);
    }

    #[test]
    fn no_text_has_fewer_tokens() {
        for tokenizer in [pebble(), marked(&merging(), |_| ())] {
            for text in [
                "",
                "a",
                "word ",
                "What's the opposite of cold?",
                "  abab abab▁▁ab",
                "<s>abab<s> ab",
                "<|im_start|>user\n",
                "Grüße, 世界! 👩‍👩‍👧 <think>\n\tfn main() {}</think>",
                "e\u{301}o\u{308}\u{304}\u{1100}\u{1161}\u{11a8}",
            ] {
                check(&tokenizer, text);
                check(&tokenizer, &text.repeat(1000));
            }
        }
    }

    #[test]
    fn blocks_end_where_nothing_joins() {
        // Composed characters on both sides of every seam, with and without ASCII to cut at.
        for unit in ["e\u{301}", "\u{1100}\u{1161}\u{11a8}", "\u{301}", "字", "か\u{3099}"] {
            check(&pebble(), &unit.repeat(30_000));
        }
        assert_eq!(next_block("abc"), ("abc", true));
        let text = "é".repeat(20_000);
        let (block, is_clean) = next_block(&text);
        assert_eq!((block.len(), is_clean), (BLOCK_BYTES, false));
        let text = "é".repeat(5000) + "a" + &"é".repeat(20_000);
        assert_eq!(next_block(&text), (&text[..10_000], true));
    }

    #[test]
    fn it_looks_at_no_more_than_it_must() {
        let reach = Reach::of(&pebble()).unwrap();
        for text in ["a", "word ", " ", "\n", "é", "世", "\u{301}", "😀"] {
            let text = text.repeat(4_000_000 / text.len());
            let fewest = reach.fewest(&text, 1000);
            assert_eq!(fewest.tokens, 1001);
            assert!(fewest.bytes_read <= 4 * BLOCK_BYTES, "{} bytes", fewest.bytes_read);
        }
    }

    #[test]
    fn space_that_a_token_may_take_counts_nothing() {
        let strips = |file: &mut Value| file["added_tokens"][0]["rstrip"] = true.into();
        let tokenizer = marked(&merging(), strips);
        let text = format!("<s>{}ab", " ".repeat(100_000));
        assert!(tokenizer.encode(&text, false).unwrap().len() <= 3);
        assert!(Reach::of(&tokenizer).unwrap().fewest(&text, usize::MAX).tokens <= 3);
        let text = format!("<s>{}ab", " \u{3000}".repeat(20_000));
        assert!(Reach::of(&tokenizer).unwrap().fewest(&text, usize::MAX).tokens <= 3);
    }

    #[test]
    fn a_tokenizer_that_may_drop_text_is_not_judged() {
        let none = |change: &dyn Fn(&mut Value)| Reach::of(&marked(&merging(), change)).is_none();
        assert!(!none(&|_| ()));
        assert!(none(&|file| file["normalizer"] =
            json!({"type": "Strip", "strip_left": true, "strip_right": true})));
        assert!(none(&|file| file["normalizer"] = json!({"type": "NFKC"})));
        assert!(none(&|file| file["pre_tokenizer"] = json!({"type": "Whitespace"})));
        assert!(none(
            &|file| file["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false})
        ));
        assert!(none(&|file| file["model"]["byte_fallback"] = false.into()));
        assert!(none(
            &|file| file["decoder"] = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})
        ));
        assert!(none(&|file| file["model"] = json!({
            "type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1},
        })));
    }

    proptest! {
        #[test]
        fn no_random_text_has_fewer_tokens(
            text in "([a-z ]{0,20}|\\PC{0,8}|\\s{0,20}|[ab▁ ]{0,30}|<s>|<\\|im_end\\|>|[e\u{301}\u{338}>]{0,9}){0,12}",
        ) {
            check(&pebble(), &text);
            check(&marked(&merging(), |_| ()), &text);
        }
    }
}
