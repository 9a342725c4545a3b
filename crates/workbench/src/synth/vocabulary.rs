//! The tokenizer a synthetic model carries: Pebble's, filled up with tokens that no text has.

use serde_json::Value;

pub(crate) static TOKENIZER: &str = include_str!("../../../../models/pebble/tokenizer.json");
pub(crate) const TOKENIZER_CONFIG: &str =
    include_str!("../../../../models/pebble/tokenizer_config.json");
pub(crate) const CHAT_TEMPLATE: &str =
    include_str!("../../../../models/pebble/chat_template.jinja");

/// `<|im_end|>` and `<|endoftext|>` in Pebble's tokenizer.
pub(crate) const END_OF_TURN: u32 = 4082;
pub(crate) const END_OF_TEXT: u32 = 4080;

/// `llama_token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// What the tokenizer section of a GGUF file lists.
pub(crate) struct Vocabulary {
    pub(crate) tokens: Vec<String>,
    pub(crate) kinds: Vec<i32>,
    pub(crate) merges: Vec<String>,
}

/// A vocabulary of `size` tokens, at least Pebble's 4096.
pub(crate) fn vocabulary(size: usize) -> Vocabulary {
    let pebble: Value = serde_json::from_str(TOKENIZER).expect("Pebble's tokenizer is JSON");
    let mut tokens: Vec<String> = (0..size).map(|id| format!("synth{id}")).collect();
    let mut kinds = vec![NORMAL; size];
    let id = |value: &Value| value.as_u64().map_or(usize::MAX, |id| id as usize);
    for (token, value) in pebble["model"]["vocab"].as_object().into_iter().flatten() {
        tokens[id(value)] = token.clone();
    }
    for added in pebble["added_tokens"].as_array().into_iter().flatten() {
        let index = id(&added["id"]);
        tokens[index] = added["content"].as_str().unwrap_or_default().to_owned();
        kinds[index] = if added["special"] == true { CONTROL } else { USER_DEFINED };
    }
    let pair = |merge: &Value| {
        let [first, second] = [0, 1].map(|side| merge[side].as_str().unwrap_or_default());
        format!("{first} {second}")
    };
    let merges = pebble["model"]["merges"].as_array().into_iter().flatten().map(pair).collect();
    Vocabulary { tokens, kinds, merges }
}
