//! Where generation ends: the tokens that end a turn, and the stop strings of a request.
//!
//! End tokens are compared as ids, so text that merely looks like `<|im_end|>` never stops anything.
//! The [`StopFilter`] works on text the client sees: it holds back whatever may be the beginning of a
//! stop string, so that no part of one is ever emitted.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::source::{TemplateFiles, read_json, token_text};
use crate::{Result, Tokenizer};

/// Tokens that end a document in the families that have them, chat or not.
const DOCUMENT_ENDS: [&str; 3] = ["<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"];

/// Tokens that end a turn: Qwen and ChatML, Llama 3 and 4, Gemma, gpt-oss, Phi, Command.
const TURN_ENDS: [&str; 10] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|return|>",
    "<|call|>",
    "<|end|>",
    "<|END_OF_TURN_TOKEN|>",
];

/// The ids that end generation: the union of `eos_token_id` in `generation_config.json` and
/// `config.json` (its `text_config` too), the tokenizer's `eos_token`, and the family's own end tokens.
///
/// The last are taken only when the vocabulary marks them as special, and turn ends only when the
/// chat template, if there is one, writes them: many vocabularies carry tokens of other families.
pub fn eos_ids(
    read: impl Fn(&str) -> Option<Vec<u8>>,
    tokenizer: &Tokenizer,
) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for file in ["generation_config.json", "config.json"] {
        let config = read_json(file, &read)?.unwrap_or_default();
        for eos in [&config["eos_token_id"], &config["text_config"]["eos_token_id"]] {
            insert_ids(eos, &mut ids);
        }
    }
    let config = read_json("tokenizer_config.json", &read)?.unwrap_or_default();
    ids.extend(token_text(&config["eos_token"]).and_then(|eos| tokenizer.token_to_id(eos)));

    let special_id =
        |token: &str| tokenizer.token_to_id(token).filter(|&id| tokenizer.is_special(id));
    ids.extend(DOCUMENT_ENDS.into_iter().filter_map(special_id));
    let template = TemplateFiles::find(&read)?;
    // In gpt-oss `<|end|>` ends a message and the turn continues; `<|return|>` shows that template.
    let message_end_only = special_id("<|return|>").is_some();
    let ends_turn = |token: &&str| {
        let written = template.as_ref().is_none_or(|files| {
            files.default.contains(*token)
                || files.tool_use.as_ref().is_some_and(|source| source.contains(*token))
        });
        written && !(*token == "<|end|>" && message_end_only)
    };
    ids.extend(TURN_ENDS.into_iter().filter(ends_turn).filter_map(special_id));
    Ok(ids)
}

/// `eos_token_id` is a number, a list of numbers, or null.
fn insert_ids(eos: &Value, ids: &mut BTreeSet<u32>) {
    match eos {
        Value::Array(list) => list.iter().for_each(|id| insert_ids_scalar(id, ids)),
        scalar => insert_ids_scalar(scalar, ids),
    }
}

fn insert_ids_scalar(id: &Value, ids: &mut BTreeSet<u32>) {
    ids.extend(id.as_u64().and_then(|id| u32::try_from(id).ok()));
}

/// Removes stop strings from a stream of text and says when one has come.
///
/// Of several stop strings the one that is complete first wins; of those complete at the same
/// character, the longest. The stop string itself and all after it are not emitted.
#[derive(Debug, Clone)]
pub struct StopFilter {
    stops: Vec<String>,
    /// Text not emitted yet: the beginning of one or more stop strings.
    held: String,
    stopped: bool,
}

/// What a [`StopFilter`] lets through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stopped {
    /// Text to show.
    pub text: String,
    /// The stop string that ended the stream, once.
    pub stop: Option<String>,
}

impl StopFilter {
    /// A filter for these stop strings; empty ones are ignored.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops = stops.into_iter().map(Into::into).filter(|stop: &String| !stop.is_empty());
        Self { stops: stops.collect(), held: String::new(), stopped: false }
    }

    /// Takes the next text and returns what is safe to show. After a stop nothing more comes.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.stopped {
            return Stopped::default();
        }
        if self.stops.is_empty() {
            return Stopped { text: text.to_owned(), stop: None };
        }
        self.held.push_str(text);
        if let Some((start, stop)) = self.first_stop() {
            let stop = stop.to_owned();
            self.stopped = true;
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return Stopped { text, stop: Some(stop) };
        }
        let keep_from = self.held_start();
        let tail = self.held.split_off(keep_from);
        Stopped { text: std::mem::replace(&mut self.held, tail), stop: None }
    }

    /// Ends the stream: what was held back was no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that ends first, the longest of equals, and where it starts.
    fn first_stop(&self) -> Option<(usize, &str)> {
        self.stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start, stop.as_str())))
            .min_by_key(|(start, stop)| (start + stop.len(), *start))
    }

    /// Start of the longest tail that a stop string begins with.
    fn held_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let earliest = self.held.len().saturating_sub(longest);
        (earliest..self.held.len())
            .filter(|&start| self.held.is_char_boundary(start))
            .find(|&start| self.stops.iter().any(|stop| stop.starts_with(&self.held[start..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::{pebble, pebble_file};
    use proptest::prelude::*;
    use serde_json::json;

    #[track_caller]
    fn check(stops: &[&str], pieces: &[&str], expect: (&str, Option<&str>)) {
        let mut filter = StopFilter::new(stops.iter().copied());
        let mut shown = String::new();
        let mut stop = None;
        for piece in pieces {
            let stopped = filter.push(piece);
            shown.push_str(&stopped.text);
            stop = stop.or(stopped.stop);
        }
        shown.push_str(&filter.finish());
        assert_eq!((shown.as_str(), stop.as_deref()), expect);
    }

    #[test]
    fn stop_strings_across_pieces() {
        check(&["\n\n"], &["a\n", "b\n", "\nc"], ("a\nb", Some("\n\n")));
        check(&["END"], &["the E", "N", "ergy"], ("the ENergy", None));
        check(&["END"], &["EEN", "D"], ("E", Some("END")));
        check(&["abcdef", "bcd"], &["abcdef"], ("a", Some("bcd")));
        check(&["bc", "abc"], &["xabc"], ("x", Some("abc")));
        check(&["é"], &["caf", "é", "s"], ("caf", Some("é")));
        check(&[""], &["a", "b"], ("ab", None));
        check(&["a"], &["xa", "more"], ("x", Some("a")));
    }

    /// The definition, character by character over the whole text.
    fn naive(stops: &[String], text: &str) -> (String, Option<String>) {
        for end in text.char_indices().map(|(at, character)| at + character.len_utf8()) {
            let complete = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(stop) = complete.max_by_key(|stop| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn filtering_is_invariant_to_cuts(
            pieces in prop::collection::vec("[abé]{0,4}", 0..8),
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let mut filter = StopFilter::new(stops.clone());
            let (mut shown, mut stop) = (String::new(), None);
            for piece in &pieces {
                let stopped = filter.push(piece);
                shown.push_str(&stopped.text);
                stop = stop.or(stopped.stop);
            }
            shown.push_str(&filter.finish());
            prop_assert_eq!((shown, stop), naive(&stops, &pieces.concat()));
        }
    }

    #[test]
    fn pebble_ends_at_its_two_tokens() {
        let ids = eos_ids(pebble_file, &pebble()).unwrap();
        assert_eq!(ids, BTreeSet::from([4080, 4082]));
    }

    #[test]
    fn gpt_oss_ends_at_three_tokens_and_continues_after_a_message() {
        const TOKENS: [(&str, u32); 6] = [
            ("<|endoftext|>", 199_999),
            ("<|return|>", 200_002),
            ("<|start|>", 200_006),
            ("<|end|>", 200_007),
            ("<|message|>", 200_008),
            ("<|call|>", 200_012),
        ];
        let mut vocab = json!({"a": 0});
        TOKENS.iter().for_each(|&(token, id)| vocab[token] = json!(id));
        let added = TOKENS.map(|(content, id)| {
            json!({"id": id, "content": content, "special": true, "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        });
        let tokenizer = json!({"version": "1.0", "added_tokens": added,
            "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        let tokenizer = Tokenizer::from_bytes(tokenizer.to_string().as_bytes()).unwrap();
        let template = TOKENS.map(|(token, _)| token).concat();
        let expect = BTreeSet::from([199_999, 200_002, 200_012]);
        for generation in [json!({"eos_token_id": [200_002, 199_999, 200_012]}), json!({})] {
            let read = |name: &str| {
                let text = match name {
                    "generation_config.json" => generation.to_string(),
                    "config.json" => json!({"eos_token_id": 200_002}).to_string(),
                    "tokenizer_config.json" => json!({"eos_token": "<|return|>"}).to_string(),
                    "chat_template.jinja" => template.clone(),
                    _ => return None,
                };
                Some(text.into_bytes())
            };
            assert_eq!(eos_ids(read, &tokenizer).unwrap(), expect, "{generation}");
        }
    }

    #[test]
    fn ids_come_from_every_file() {
        let tokenizer = pebble();
        let read = |name: &str| {
            let value = match name {
                "generation_config.json" => json!({"eos_token_id": [7, 8]}),
                "config.json" => json!({"eos_token_id": null, "text_config": {"eos_token_id": 9}}),
                "tokenizer_config.json" => {
                    json!({"eos_token": {"content": "<|mask|>"}, "chat_template": "no turn ends"})
                }
                _ => return None,
            };
            Some(value.to_string().into_bytes())
        };
        let ids = eos_ids(read, &tokenizer).unwrap();
        // 4080 is `<|endoftext|>`; `<|im_end|>` is in the vocabulary but not in the template.
        assert_eq!(ids, BTreeSet::from([7, 8, 9, 4080, 4089]));
        // Without any file: the document end, and the turn end for want of a template.
        assert_eq!(eos_ids(|_| None, &tokenizer).unwrap(), BTreeSet::from([4080, 4082]));
    }
}
