//! Answers that follow a grammar: JSON, a JSON schema, a regular expression, or Lark.
//!
//! [`Grammars`] compiles a grammar for one model's vocabulary, through `llguidance`. A [`Constraint`] is one
//! answer under it: before each token its [`Mask`] says which tokens may come, and each token that came is
//! accepted. The next mask is computed by a worker thread while the model computes the next logits. A grammar may
//! also wait for a token that the model is free to write or not ([`Grammars::compile_from`]). [`schema`] reads JSON
//! schemas, for grammars and for the formats of tool calls.
//!
//! It does not sample, and knows nothing of HTTP, tokenizers or formats of tool calls.
//!
//! Invariant: a mask is a function of the grammar and the accepted tokens alone. What a grammar costs is bounded in
//! time, and its memory is granted by an [`Allowance`] before it is taken; what goes wrong fails its own request.

#![forbid(unsafe_code)]

mod compile;
mod compiled;
mod constraint;
mod error;
mod follower;
mod lark;
mod marker;
mod mask;
mod memory;
pub mod schema;
mod state;
#[cfg(test)]
mod tests;
mod vocabulary;
mod worker;

use serde_json::Value;

pub use compile::Grammars;
pub use constraint::Constraint;
pub use error::{ConstraintError, GrammarError};
pub use mask::Mask;
pub use memory::{Allowance, Unlimited};
pub use vocabulary::Token;

/// The longest JSON schema and the longest Lark grammar.
const LONGEST_GRAMMAR_BYTES: usize = 256 << 10;
/// The longest regular expression.
const LONGEST_REGEX_BYTES: usize = 16 << 10;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that satisfies a schema.
    JsonSchema(Value),
    /// The whole answer matches, in the syntax of the `regex` crate.
    Regex(String),
    /// Lark, in `llguidance`'s dialect; its `%json` blocks are treated as [`Grammar::JsonSchema`].
    Lark(String),
}

/// What may stand before the grammar begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before<'a> {
    /// Nothing: it begins with the first token.
    Nothing,
    /// Thinking, which the prompt has opened: everything up to and including `close` is free, and up to two newline
    /// tokens may follow it.
    Thinking {
        /// Such as `</think>`.
        close: &'a str,
    },
    /// The same if the answer opens it, with exactly these tokens; else the grammar begins at once. Where the grammar
    /// itself may begin with the first of them, it does.
    MaybeThinking {
        /// Such as those of `<think>`.
        open: &'a [u32],
        /// Such as `</think>`.
        close: &'a str,
    },
}
