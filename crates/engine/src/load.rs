//! How busy an engine is, and what it has done: numbers that are cheap to read after every step.

use serde::Serialize;

/// How busy an engine is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// Requests without a sequence that wait for one.
    pub queued: usize,
    /// Requests with a sequence.
    pub active: usize,
    /// Those of them whose prompt is not in yet.
    pub prefilling: usize,
    /// Requests that are paused, with or without a sequence.
    pub paused: usize,
    /// Pages of keys and values, over all layers.
    pub pages: usize,
    /// Those of them that neither a sequence nor the prefix cache holds.
    pub free_pages: usize,
    /// Recurrent states there is room for; 0 for a model without.
    pub states: usize,
    /// Those of them that neither a sequence nor the prefix cache holds.
    pub free_states: usize,
    /// Entries of the prefix cache.
    pub cache_entries: usize,
    /// Their tokens, shared ones counted again.
    pub cache_tokens: usize,
    /// What has been done since the engine was made.
    pub counters: Counters,
}

/// What an engine has done. Nothing here ever decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Forward passes.
    pub steps: u64,
    /// Rows of prompts that were computed, again after a preemption.
    pub prompt_tokens_computed: u64,
    /// Tokens of prompts that came from the prefix cache when the request was first admitted.
    pub prompt_tokens_cached: u64,
    /// Tokens of answers.
    pub generated_tokens: u64,
    /// Requests that had to give their sequence back and begin again.
    pub preemptions: u64,
    /// Time in forward passes, the share of rows of prompts.
    pub prefill_seconds: f64,
    /// Time in forward passes, the share of rows of answers.
    pub decode_seconds: f64,
}
