//! What every source of drafted tokens can do.

use state::Sequence;

use super::SourceKind;
use super::controller::Offer;
use crate::sampler::{Sampled, SamplingParams, Scratch, TokenCounts, sample};
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
    pub(crate) choice: Choice<'a>,
}

/// How the next token of a draft is chosen.
pub(crate) struct Choice<'a> {
    pub(crate) sampling: &'a SamplingParams,
    pub(crate) generated: usize,
    pub(crate) draft: &'a mut Draft,
}

impl Choice<'_> {
    /// The next token of the draft, by the source's own logits, and its probability.
    ///
    /// A token that will be drawn is drawn here with the same random number, over the same order of tokens: the more
    /// alike the two distributions are, the more often both draws are the same token. So drafts of sampled answers are
    /// as good as they can be without ever having a say in what the answer is.
    pub(crate) fn choose(&self, logits: &[f32], scratch: &mut Scratch) -> (u32, f32) {
        let best = likeliest(logits);
        if self.sampling.temperature == 0.0 {
            return best;
        }
        let position = (self.generated + self.draft.tokens.len()) as u64;
        // What the answer has said so far counts for little, and a mask for nothing: the model will see to them.
        let sampling = SamplingParams {
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logprobs: None,
            ..self.sampling.clone()
        };
        let drawn = sample(logits, &TokenCounts::new(), &sampling, position, None, scratch);
        let Ok(Sampled { token, .. }) = drawn else { return best };
        let less = logits[best.0 as usize] - logits[token as usize];
        (token, best.1 * (-less).exp())
    }
}

/// The likeliest token, the lowest of equal ones, and its probability.
fn likeliest(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (token as u32, logit);
        }
    }
    let mass: f32 = logits.iter().map(|logit| (logit - best.1).exp()).sum();
    (best.0, 1.0 / mass)
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
