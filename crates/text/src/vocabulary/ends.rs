//! Tokens that end an answer.

use std::collections::BTreeSet;

use super::Vocabulary;

/// Texts of tokens that end an answer in some family.
const TEXTS: [&str; 21] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "</s>",
    "<|calls|>",
    "<|flush|>",
];

/// With both of the first two, the third only ends a part of an answer.
const PARTS: [([&str; 2], &str); 3] = [
    (["<|return|>", "<|call|>"], "<|end|>"),
    (["<|calls|>", "<|flush|>"], "<|end|>"),
    (["<|tool_response>", "<|tool_response>"], "</s>"),
];

/// The tokens that end an answer, in order.
pub(super) fn of(vocabulary: &Vocabulary) -> BTreeSet<u32> {
    let count = vocabulary.tokens.len();
    let id_of = |text: &str| {
        let id = vocabulary.tokens.iter().position(|token| token == text)?;
        u32::try_from(id).ok()
    };
    let mut ends: BTreeSet<u32> = TEXTS.iter().filter_map(|text| id_of(text)).collect();
    let said = ["eos", "eot", "eom"].map(|part| vocabulary.special.get(part).copied());
    ends.extend(said.into_iter().flatten());
    ends.extend(&vocabulary.ends);
    for (marks, part) in PARTS {
        if marks.iter().all(|mark| id_of(mark).is_some()) {
            ends.retain(|&id| Some(id) != id_of(part));
        }
    }
    ends.retain(|&id| (id as usize) < count);
    ends
}
