//! What a tokenizer.json may require of the `tokenizers` crate, checked before the crate sees it.
//!
//! A panic in the crate is caught at the [`super::boundary`]; here is refused what no boundary catches:
//! gigabytes for a small file, a stack that ends, text that multiplies from step to step. Steps are known
//! by their fields rather than by their `type`, since the crate takes them without one too.
//! Every message begins with the part of the file that it is about.

use serde_json::{Map, Value};
use tokenizers::utils::SysRegex;

use super::boundary::guarded;
use super::outline::{MOST_TOKENS, ModelOutline, Outline, shown};
use super::pattern;

/// The largest file. Published ones have up to 33 MB (Gemma).
const LARGEST_FILE_BYTES: usize = 64 << 20;

/// The most values of a file, roughly. Gemma's 262,144 tokens and 514,906 merges come to 1.9 million.
const MOST_VALUES: usize = 6 << 20;

/// The most steps of a section. Published files have up to six.
const MOST_STEPS: usize = 32;

/// How many times its bytes a text may have after normalizer and pre-tokenizer. The largest of a published file
/// is T5's, whose table makes 33 bytes of three.
const MOST_GROWTH: usize = 1024;

/// The longest string of a step, tables of characters and patterns excepted.
const LONGEST_STRING_BYTES: usize = 1024;

/// The longest token of a Unigram model, whose tree is as deep as its longest token and is cloned and dropped
/// by recursion. Published ones have up to 100 bytes.
const LONGEST_PIECE_BYTES: usize = 512;

/// The most nodes in the tree of a Unigram model, each of some 200 bytes.
const MOST_PIECE_NODES: usize = 2 << 20;

/// The most states of the automaton that finds added tokens, each of some 150 bytes while it is built.
const MOST_ADDED_STATES: usize = 3 << 20;

/// The longest word of a WordPiece model. The time for a word grows with the square of its length.
const LONGEST_WORD_CHARS: u64 = 1000;

/// Refuses a file that the crate must not be given.
pub(super) fn check(json: &[u8]) -> Result<Outline, String> {
    if json.len() > LARGEST_FILE_BYTES {
        return Err(format!("the file has more than {LARGEST_FILE_BYTES} bytes"));
    }
    // Counted in strings too, which is rarely more than it should be.
    let values = json.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if values > MOST_VALUES {
        return Err(format!("the file has more than {MOST_VALUES} values"));
    }
    let mut outline = Outline::read(json).map_err(|error| error.to_string())?;
    // A text goes through normalizer and pre-tokenizer, one after the other.
    let (mut normalized, mut split) = (1, 1);
    for (section, value) in &outline.sections {
        let mut walk = Walk { steps: 0, growth: 1 };
        walk.value(value).map_err(|error| format!("{section}: {error}"))?;
        match *section {
            "normalizer" => normalized = walk.growth,
            "pre_tokenizer" => split = walk.growth,
            _ => {}
        }
        if walk.growth.max(normalized.saturating_mul(split)) > MOST_GROWTH {
            return Err(format!(
                "{section}: its steps may make a text more than {MOST_GROWTH} times as long"
            ));
        }
    }
    model(&mut outline.model).map_err(|error| format!("model: {error}"))?;
    if let Some(long) = outline.added.iter().find(|name| name.len() > usize::from(u16::MAX)) {
        return Err(format!(
            "added_tokens: {} has {} bytes, more than {}",
            shown(long),
            long.len(),
            u16::MAX
        ));
    }
    // What the normalizer makes of them is what is looked for.
    let grown = outline.normalized_bytes.saturating_mul(normalized - 1);
    let states = prefixes(&mut outline.added).saturating_add(grown);
    if states > MOST_ADDED_STATES {
        return Err(format!(
            "added_tokens: {states} bytes of names, more than {MOST_ADDED_STATES}"
        ));
    }
    Ok(outline)
}

fn model(model: &mut ModelOutline) -> Result<(), String> {
    for (key, value) in &model.rest {
        strings(key, value)?;
    }
    if let Some(longest) = model.rest.get("max_input_chars_per_word")
        && longest.as_u64().is_none_or(|longest| longest > LONGEST_WORD_CHARS)
    {
        return Err(format!(
            "max_input_chars_per_word is {longest}, expected at most {LONGEST_WORD_CHARS}"
        ));
    }
    // The crate cuts the prefix off by its length alone, and takes the rest for text.
    if let Some(prefix) = model.rest.get("continuing_subword_prefix").and_then(Value::as_str)
        && (prefix.len() >= 64 || model.inside_characters >> prefix.len() & 1 == 1)
    {
        return Err(format!(
            "continuing_subword_prefix {}: not what the merges append begins with",
            shown(prefix)
        ));
    }
    if let Some(piece) = model.pieces.iter().find(|piece| piece.len() > LONGEST_PIECE_BYTES) {
        return Err(format!(
            "vocab: {} has {} bytes, more than {LONGEST_PIECE_BYTES}",
            shown(piece),
            piece.len()
        ));
    }
    let nodes = prefixes(&mut model.pieces);
    if nodes > MOST_PIECE_NODES {
        return Err(format!("vocab: a tree of {nodes} nodes, more than {MOST_PIECE_NODES}"));
    }
    Ok(())
}

/// How many beginnings these texts have, each counted once: the nodes of their tree.
fn prefixes(texts: &mut [String]) -> usize {
    texts.sort_unstable();
    let (mut count, mut before) = (0, "");
    for text in texts.iter() {
        let common = text.bytes().zip(before.bytes()).take_while(|(a, b)| a == b).count();
        count += text.len() - common;
        before = text;
    }
    count
}

/// A walk over the steps of a section.
struct Walk {
    steps: usize,
    growth: usize,
}

impl Walk {
    fn value(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Array(list) => list.iter().try_for_each(|value| self.value(value)),
            Value::Object(table) => {
                if table.contains_key("type") {
                    self.steps += 1;
                    if self.steps > MOST_STEPS {
                        return Err(format!("more than {MOST_STEPS} steps"));
                    }
                }
                self.step(table).map_err(|error| match table.get("type") {
                    Some(Value::String(kind)) => {
                        format!("{}: {error}", shown(kind).trim_matches('"'))
                    }
                    _ => error,
                })?;
                table.values().try_for_each(|value| self.value(value))
            }
            Value::Number(number) => match number.as_f64() {
                Some(number) if number.abs() < MOST_TOKENS as f64 => Ok(()),
                _ => Err(format!("the number {number} is too large")),
            },
            Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
        }
    }

    /// A table on its own.
    fn step(&mut self, table: &Map<String, Value>) -> Result<(), String> {
        let text = |key: &str| table.get(key).and_then(Value::as_str);
        for (key, value) in table {
            if !matches!(key.as_str(), "precompiled_charsmap" | "Regex") {
                strings(key, value)?;
            }
        }
        if let Some(charsmap) = text("precompiled_charsmap") {
            let longest = charsmap_growth(charsmap)?;
            self.grow(longest.max(1));
        }
        if let Some(pattern) = text("Regex") {
            pattern::check(pattern)?;
            compiled(pattern)?;
        }
        if let (Some(content), Some(pattern)) =
            (text("content"), table.get("pattern").and_then(Value::as_object))
        {
            self.replacement(pattern, content)?;
        }
        if table.get("length").and_then(Value::as_u64) == Some(0) {
            return Err("a length of 0".to_owned());
        }
        match text("type") {
            // Two bytes for one.
            Some("ByteLevel") => self.grow(2),
            // `▁` for a space.
            Some("Metaspace") => self.grow(3),
            // A compatibility character may stand for eighteen, which happens once.
            _ => {}
        }
        Ok(())
    }

    /// `pattern` is replaced by `content`, as often as it is found.
    fn replacement(&mut self, pattern: &Map<String, Value>, content: &str) -> Result<(), String> {
        let mut shortest = 1;
        if let Some(text) = pattern.get("String").and_then(Value::as_str) {
            if text.is_empty() {
                return Err("its pattern is empty".to_owned());
            }
            shortest = text.len();
        }
        if let Some(text) = pattern.get("Regex").and_then(Value::as_str) {
            pattern::check(text)?;
            let regex = compiled(text)?;
            if guarded(|| regex.find_iter("").next().is_some()).unwrap_or(true) {
                return Err(format!("its pattern {} matches the empty text", shown(text)));
            }
        }
        self.grow(content.len().div_ceil(shortest).max(1));
        Ok(())
    }

    fn grow(&mut self, times: usize) {
        self.growth = self.growth.saturating_mul(times);
    }
}

fn compiled(pattern: &str) -> Result<SysRegex, String> {
    let failed = |reason: String| format!("the pattern {}: {reason}", shown(pattern));
    guarded(|| SysRegex::new(pattern).map_err(|error| error.to_string()))
        .and_then(|compiled| compiled)
        .map_err(failed)
}

/// Refuses a long string, which may be written into every text.
fn strings(key: &str, value: &Value) -> Result<(), String> {
    match value.as_str() {
        Some(text) if text.len() > LONGEST_STRING_BYTES => Err(format!(
            "{} has {} bytes, more than {LONGEST_STRING_BYTES}",
            shown(key),
            text.len()
        )),
        _ => Ok(()),
    }
}

/// Sentencepiece's table of characters: the length of a tree in bytes, the tree, and what it leads to, each ended
/// by a zero byte. The crate reserves whatever the length says. Gives the bytes of the longest replacement.
fn charsmap_growth(base64: &str) -> Result<usize, String> {
    let wrong = |reason: &str| format!("precompiled_charsmap: {reason}");
    let table = decoded(base64).ok_or_else(|| wrong("it is not base64"))?;
    let Some((length, rest)) = table.split_first_chunk() else {
        return Err(wrong("it ends before its length does"));
    };
    let length = u32::from_le_bytes(*length) as usize;
    // Four bytes a node, and a search begins at the first.
    if length < 4 || !length.is_multiple_of(4) {
        return Err(wrong(&format!("a tree of {length} bytes")));
    }
    let Some(replacements) = rest.get(length..) else {
        return Err(wrong(&format!("a tree of {length} bytes, where {} are left", rest.len())));
    };
    if std::str::from_utf8(replacements).is_err() {
        return Err(wrong("its replacements are not UTF-8"));
    }
    Ok(replacements.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}

/// Bytes from base64 with its padding; `None` if it is none.
fn decoded(base64: &str) -> Option<Vec<u8>> {
    let code = |byte: u8| {
        Some(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let digits = base64.trim_end_matches('=');
    if base64.len() - digits.len() > 2 || !base64.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.as_bytes().chunks(4) {
        let mut word = 0_u32;
        for &digit in group {
            word = word << 6 | u32::from(code(digit)?);
        }
        word <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A small tokenizer with a change.
    fn file(change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let mut file = json!({
            "version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
            "normalizer": {"type": "NFC"}, "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        });
        change(&mut file);
        file.to_string().into_bytes()
    }

    #[track_caller]
    fn check_refused(expect: &str, change: impl FnOnce(&mut Value)) {
        let error = check(&file(change)).expect_err("refused");
        assert!(error.starts_with(expect), "{error}");
    }

    #[test]
    fn a_sound_file_passes() {
        check(&file(|_| ())).unwrap();
        let pebble = crate::source::tests::pebble_file("tokenizer.json").unwrap();
        check(&pebble).unwrap();
        check(&file(|file| {
            file["normalizer"] = json!({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ]});
        }))
        .unwrap();
    }

    #[test]
    fn tables_of_characters_are_whole() {
        for (charsmap, expect) in [
            ("AAAA", "it ends before its length does"),
            ("/////wAAAAA=", "a tree of 4294967295 bytes"),
            ("/P///wAAAAA=", "a tree of 4294967292 bytes, where 4 are left"),
            ("AAAAAA==", "a tree of 0 bytes"),
            ("*", "it is not base64"),
            ("BAAAAAAAAAD/", "its replacements are not UTF-8"),
        ] {
            check_refused(
                &format!("normalizer: Precompiled: precompiled_charsmap: {expect}"),
                |file| {
                    file["normalizer"] =
                        json!({"type": "Precompiled", "precompiled_charsmap": charsmap});
                },
            );
        }
        // Without its type too, wherever it stands.
        check_refused("normalizer: precompiled_charsmap", |file| {
            file["normalizer"] =
                json!({"type": "Sequence", "normalizers": [{"precompiled_charsmap": "AAAA"}]});
        });
        assert_eq!(decoded("BAAAAAAAAABhYgBj"), Some(b"\x04\0\0\0\0\0\0\0ab\0c".to_vec()));
        assert_eq!(charsmap_growth("BAAAAAAAAABhYgBj"), Ok(2));
    }

    #[test]
    fn replacements_find_something_and_do_not_multiply() {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        check_refused("normalizer: Replace: its pattern is empty", |file| {
            file["normalizer"] = replace(json!({"String": ""}), "a");
        });
        check_refused("decoder: Replace: its pattern \"a*\" matches the empty text", |file| {
            file["decoder"] = replace(json!({"Regex": "a*"}), "a");
        });
        check_refused("pre_tokenizer: the pattern \"(\"", |file| {
            file["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("},
                "behavior": "Isolated", "invert": false});
        });
        check_refused("normalizer: Replace: a pattern that repeats", |file| {
            file["normalizer"] = replace(json!({"Regex": r"(?=a)\w{100000}"}), "a");
        });
        check_refused("normalizer: its steps may make a text more than 1024 times", |file| {
            let step = replace(json!({"String": "a"}), "aa");
            file["normalizer"] = json!({"type": "Sequence", "normalizers": vec![step; 11]});
        });
        check_refused("normalizer: Replace: \"content\" has 2000 bytes", |file| {
            file["normalizer"] = replace(json!({"String": "a"}), &"a".repeat(2000));
        });
        check_refused("pre_tokenizer: FixedLength: a length of 0", |file| {
            file["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0});
        });
        check_refused("pre_tokenizer: more than 32 steps", |file| {
            let step = json!({"type": "Digits", "individual_digits": true});
            file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": vec![step; 32]});
        });
    }

    #[test]
    fn vocabularies_are_bounded() {
        check_refused("model: vocab: \"b\" has the id 4294967295, ids are below 2097152", |file| {
            file["model"]["vocab"]["b"] = json!(u32::MAX);
        });
        check_refused("added_tokens: \"<s>\" has the id 4000000000", |file| {
            file["added_tokens"][0]["id"] = json!(4_000_000_000_u32);
        });
        check_refused("model: vocab: \"aaa", |file| {
            let long = "a".repeat(600);
            file["model"] =
                json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], [long, 1.0]]});
        });
        check_refused("model: max_input_chars_per_word is 100000", |file| {
            file["model"] = json!({"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100_000, "vocab": {"a": 0}});
        });
        check_refused("model: continuing_subword_prefix \"#\"", |file| {
            file["model"] = json!({"type": "BPE", "continuing_subword_prefix": "#",
                "vocab": {"a": 0, "é": 1, "aé": 2}, "merges": [["a", "é"]]});
        });
        check_refused("added_tokens: 1018", |file| {
            // A thousand bytes for one, in ten thousand tokens.
            file["normalizer"] =
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(1000)});
            let mut token = file["added_tokens"][0].clone();
            token["normalized"] = json!(true);
            token["content"] = json!("a".repeat(100));
            file["added_tokens"] = json!(vec![token; 102]);
        });
        let mut texts = ["abc", "abd", "b", "abc"].map(str::to_owned);
        assert_eq!(prefixes(&mut texts), 5);
    }

    #[test]
    fn files_are_small_flat_and_say_things_once() {
        let text = |file: Vec<u8>| String::from_utf8(file).unwrap();
        let twice = text(file(|_| ())).replacen("\"model\"", "\"model\":{},\"model\"", 1);
        assert!(check(twice.as_bytes()).unwrap_err().starts_with("\"model\" is there twice"));
        check_refused("post_processor: more than 32768 values", |file| {
            file["post_processor"] = json!(vec![0; 40_000]);
        });
        check_refused("decoder: values more than 24 deep", |file| {
            let deep = (0..30).fold(json!(0), |inner, _| json!([inner]));
            file["decoder"] = deep;
        });
        let nested = [b"{\"model\":".as_slice(), &[b'['; 100_000]].concat();
        assert!(check(&nested).is_err());
        let many = [b"{\"model\":{\"merges\":[".as_slice(), &b"[],".repeat(4 << 20)].concat();
        assert!(check(&many).unwrap_err().starts_with("the file has more than"));
    }
}
