//! What every source of drafted tokens can do.

use runtime::{Result, Runner};
use state::Sequence;

use super::SourceKind;
use super::controller::Offer;
use crate::AnswerId;
use crate::drafter::ObservedRows;

/// Proposes how answers continue. A source may be wrong, slow or silent; it never changes an answer.
pub(crate) trait Source: Send {
    /// Which one it is.
    fn kind(&self) -> SourceKind;

    /// What it could propose to an answer whose tokens so far are these, `most` tokens at most.
    fn offer(&mut self, id: AnswerId, tokens: &[u32], most: usize) -> Option<Offer>;

    /// Fills the drafts of several answers, none longer than requested.
    fn draft(&mut self, target: &mut Runner, wanted: &mut [Wanted<'_>]) -> Result<()>;

    /// Rows of a pass that are right, with what the target thought of them.
    fn observe_rows(&mut self, _target: &mut Runner, _passed: &mut [ObservedRows<'_>]) {}

    /// A sequence is about to be kept for others: what belongs into it and is not in yet goes in now.
    fn catch_up(
        &mut self,
        _target: &mut Runner,
        _id: AnswerId,
        _tokens: &[u32],
        _sequence: &mut Sequence,
    ) {
    }

    /// So many of the tokens that were verified were right.
    fn observe(&mut self, _id: AnswerId, _verified: usize, _accepted: usize) {}

    /// Nothing of the past is to be remembered.
    fn clear(&mut self) {}

    /// An answer ended, or lost its sequence.
    fn forget(&mut self, _id: AnswerId, _tokens: &[u32]) {}
}

/// Chooses the next token of a draft by a source's own logits, given how many tokens the draft has: the token and its
/// probability.
pub type Choose<'a> = dyn Fn(&[f32], usize) -> (u32, f32) + 'a;

/// An answer that a source is to continue.
pub(crate) struct Wanted<'a> {
    pub(crate) id: AnswerId,
    /// The prompt and the answer so far.
    pub(crate) tokens: &'a [u32],
    /// The target's own memory of all of them but the last.
    pub(crate) sequence: &'a mut Sequence,
    /// Tokens at most.
    pub(crate) count: usize,
    pub(crate) choose: &'a Choose<'a>,
    pub(crate) draft: &'a mut Draft,
}

impl Wanted<'_> {
    /// The next token of the draft and its probability.
    pub(crate) fn choose(&self, logits: &[f32]) -> (u32, f32) {
        (self.choose)(logits, self.draft.tokens.len())
    }
}

/// Tokens that may come next.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Where they are from; none for an empty draft.
    pub source: Option<SourceKind>,
    /// In order.
    pub tokens: Vec<u32>,
    /// How sure the source is of each: see [`bucket`].
    pub(crate) buckets: Vec<u8>,
}

impl Draft {
    /// Leaves nothing.
    pub fn clear(&mut self) {
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
