//! The vocabulary as the grammar library sees it: a trie of the bytes that each token adds to the text.
//!
//! Control tokens (special ones, and all that end an answer) stand in it under the
//! library's marker byte 0xFF, which no text contains, so only a grammar that names one allows it. Rows of
//! the model's head that no token belongs to are not in it at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::{GrammarError, Mask};

/// The trie keeps lengths in ten bits.
const LONGEST_TOKEN_BYTES: usize = 1000;

/// One token of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// What it adds to the text, control tokens their name; nothing for a logit that no token belongs to.
    pub bytes: Vec<u8>,
    /// Whether it is a control token, which no text contains.
    pub is_special: bool,
}

pub(crate) struct Vocabulary {
    environment: TokEnv,
    /// Tokens that ever may be sampled under a grammar: all that have bytes, and those that end an answer.
    pub(crate) known: Mask,
    /// Tokens that end an answer.
    pub(crate) ends: Vec<u32>,
    /// Tokens of one or two newlines and nothing else.
    pub(crate) newlines: Vec<u32>,
}

impl Vocabulary {
    pub(crate) fn new(tokens: &[Token], ends: &BTreeSet<u32>) -> Result<Vocabulary, GrammarError> {
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let ends: Vec<u32> = ends.iter().copied().filter(|&end| end < count).collect();
        let Some(&first_end) = ends.first() else {
            let reason = "no token of the model ends an answer".to_owned();
            return Err(GrammarError::Vocabulary { reason });
        };
        let marker = TokTrie::SPECIAL_TOKEN_MARKER;
        let word = |(id, token): (u32, &Token)| {
            if ends.contains(&id) || token.is_special {
                [&[marker], token.bytes.as_slice()].concat()
            } else if token.bytes.contains(&marker) {
                Vec::new() // never part of UTF-8
            } else {
                token.bytes.clone()
            }
        };
        let mut words: Vec<Vec<u8>> = (0..count).zip(tokens).map(word).collect();
        for word in words.iter_mut().filter(|word| word.len() > LONGEST_TOKEN_BYTES) {
            word.clear();
        }
        let known = (0..count).filter(|&token| {
            let word = &words[token as usize];
            !word.is_empty() && *word != [marker] || ends.contains(&token)
        });
        let known = Mask::of(words.len(), known);
        let newlines = (0..count)
            .filter(|&token| matches!(words[token as usize].as_slice(), b"\n" | b"\n\n"))
            .collect();
        let info = TokRxInfo::new(count, first_end);
        // The vocabulary is a file's word, and the library asserts what it expects of one.
        let trie = std::panic::catch_unwind(|| TokTrie::from(&info, &words).with_eos_tokens(&ends));
        let trie = trie.map_err(|_| GrammarError::Vocabulary {
            reason: "its tokens do not fit in a trie".to_owned(),
        })?;
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        Ok(Vocabulary { environment, known, ends, newlines })
    }

    pub(crate) fn environment(&self) -> &TokEnv {
        &self.environment
    }

    /// Rows of the model's head.
    pub(crate) fn len(&self) -> usize {
        self.known.vocabulary()
    }

    /// What a token adds to the text, control tokens by their name.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        let word = self.environment.tok_trie().token(token);
        word.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(word)
    }
}
