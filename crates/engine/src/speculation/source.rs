//! What every source of drafted tokens can do.

use state::Sequence;

use super::SourceKind;
use super::controller::Offer;
use crate::{RequestId, Result, Runner};

/// Proposes how answers go on. A source may be wrong, slow or silent; it never changes an answer.
pub(crate) trait Source: Send {
    /// Which one it is.
    fn kind(&self) -> SourceKind;

    /// What it could propose to an answer whose tokens so far are these, `most` tokens at most.
    fn offer(&mut self, id: RequestId, tokens: &[u32], most: usize) -> Option<Offer>;

    /// Fills the drafts of several answers, none longer than asked for.
    fn draft(&mut self, target: &mut Runner, wanted: &mut [Wanted<'_>]) -> Result<()>;

    /// Rows of a pass that are right, for who looks at what the target thought of them.
    fn observe_rows(&mut self, _target: &mut Runner, _passed: &mut [Passed<'_>]) {}

    /// A sequence is about to be kept for others: what belongs into it and is not in yet goes in now.
    fn catch_up(
        &mut self,
        _target: &mut Runner,
        _id: RequestId,
        _tokens: &[u32],
        _sequence: &mut Sequence,
    ) {
    }

    /// So many of the tokens that were verified were right.
    fn observe(&mut self, _id: RequestId, _verified: usize, _accepted: usize) {}

    /// Nothing of the past is to be remembered.
    fn clear(&mut self) {}

    /// An answer ended, or lost its sequence.
    fn forget(&mut self, _id: RequestId, _tokens: &[u32]) {}
}

/// An answer that a source is to go on with.
pub(crate) struct Wanted<'a> {
    pub(crate) id: RequestId,
    /// The prompt and the answer so far.
    pub(crate) tokens: &'a [u32],
    /// The target's own memory of all of them but the last.
    pub(crate) sequence: &'a mut Sequence,
    /// Tokens at most.
    pub(crate) count: usize,
    pub(crate) draft: &'a mut Draft,
}

/// Rows that a sequence has advanced by.
pub(crate) struct Passed<'a> {
    pub(crate) id: RequestId,
    /// The prompt and the answer so far; the sequence holds the first of them.
    pub(crate) tokens: &'a [u32],
    pub(crate) sequence: &'a mut Sequence,
    /// What the target thought of the rows: so many floats each.
    pub(crate) features: &'a [f32],
    /// Whether they are rows of a prompt.
    pub(crate) is_prompt: bool,
}

/// Tokens that may come next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) source: Option<SourceKind>,
    pub(crate) tokens: Vec<u32>,
    /// How sure the source is of each: see [`bucket`].
    pub(crate) buckets: Vec<u8>,
}

impl Draft {
    pub(crate) fn clear(&mut self) {
        self.source = None;
        self.tokens.clear();
        self.buckets.clear();
    }

    pub(crate) fn push(&mut self, token: u32, bucket: u8) {
        self.tokens.push(token);
        self.buckets.push(bucket);
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.buckets.truncate(len);
        if len == 0 {
            self.source = None;
        }
    }
}

/// Probabilities that begin a new bucket of confidence.
const BUCKETS: [f32; 7] = [0.2, 0.4, 0.6, 0.75, 0.85, 0.93, 0.98];

/// The bucket of a token that a source gives this probability.
pub(crate) fn bucket(probability: f32) -> u8 {
    BUCKETS.iter().filter(|&&least| probability >= least).count() as u8
}
