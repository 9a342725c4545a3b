//! The input and output of an engine: requests, events, and what a request used.

use std::collections::BTreeSet;

use grammar::Constraint;

use crate::Error;
use crate::sampler::{Sampled, SamplingParams};

/// One request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Tokens before the answer.
    pub prompt: Vec<u32>,
    /// The longest answer.
    pub max_tokens: usize,
    /// Tokens that end it; they are not part of it.
    pub stop_tokens: BTreeSet<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Lengths of the prompt that later prompts are likely to begin with, such as the end of the last user
    /// turn. Only hints: the last few that make sense are used, by models that cannot be rewound.
    pub checkpoints: Vec<usize>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
}

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What happened in a step.
#[derive(Debug)]
pub enum Event {
    /// A prompt advanced. After a preemption it does so again, with what was generated as part of it.
    Prefill {
        /// The request.
        id: RequestId,
        /// Tokens of it that are in.
        done: usize,
        /// All its tokens.
        total: usize,
        /// Tokens that were taken from the prefix cache.
        cached: usize,
    },
    /// A token of an answer.
    Token {
        /// The request.
        id: RequestId,
        /// The token, and its probabilities if they were requested.
        sampled: Sampled,
    },
    /// An answer is complete.
    Finished {
        /// The request.
        id: RequestId,
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// A request cannot continue; the others do.
    Failed {
        /// The request.
        id: RequestId,
        /// Why.
        error: Error,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token came.
    Stop,
    /// It reached its longest length, or the context is full.
    Length,
    /// [`Engine::cancel`](crate::Engine::cancel) was called.
    Cancelled,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were taken from the prefix cache when the request was first admitted.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Those of them that were thinking: counted where the answer is read, by an
    /// [`AnswerReader`](crate::session::AnswerReader).
    pub reasoning_tokens: usize,
    /// Drafted tokens that were verified and right.
    pub accepted_drafts: usize,
    /// Drafted tokens that were verified and wrong, or came after one.
    pub rejected_drafts: usize,
    /// Time until it was first admitted.
    pub queue_seconds: f64,
    /// Time until its first token was there, waiting included; `None` without one.
    pub first_token_seconds: Option<f64>,
    /// Time in steps that took in the prompt, or took it in again.
    pub prefill_seconds: f64,
    /// Time in steps that decoded.
    pub decode_seconds: f64,
}
