//! From rows of logits to the tokens of a request. Requests draw at once, each on one thread: nothing of one's draw depends
//! on another's.

use std::cell::RefCell;

use grammar::Constraint;

use crate::job::Job;
use crate::sampler::{Sampled, SamplingParams, Scratch, TokenCounts, sample};
use crate::{Error, FinishReason, RequestId, Result};

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// What the rows of a request came to.
pub(crate) struct Outcome {
    /// Index of the request.
    pub(crate) index: usize,
    pub(crate) id: RequestId,
    /// Its tokens, and why they are the last. The stop token is not among them.
    pub(crate) drawn: Vec<Sampled>,
    pub(crate) end: Option<FinishReason>,
    /// Rows that were right: each gave a token, or the end.
    pub(crate) rows: usize,
    pub(crate) error: Option<Error>,
    /// How far a prompt has come: tokens that are in, all of them, and those that came from the prefix cache.
    pub(crate) read: Option<(usize, usize, usize)>,
}

impl Outcome {
    pub(crate) fn new(index: usize, id: RequestId) -> Outcome {
        Outcome { index, id, drawn: Vec::new(), end: None, rows: 0, error: None, read: None }
    }
}

/// A request that looks at its rows, one after another.
pub(crate) struct Draw<'a> {
    pub(crate) job: &'a mut Job,
    /// The tokens that its rows after the first were computed for.
    pub(crate) drafts: &'a [u32],
    pub(crate) outcome: Outcome,
}

impl Draw<'_> {
    /// Draws the next token of the answer from the next row, if all before it turned out right. `is_full` says that no other
    /// row will fit.
    pub(crate) fn next(&mut self, logits: &[f32], is_full: bool) {
        let Draw { job, drafts, outcome } = self;
        let drafts = drafts.get(..outcome.rows);
        let drawn = outcome.drawn.iter().map(|sampled| &sampled.token);
        if outcome.end.is_some() || outcome.error.is_some() || !drafts.is_some_and(|d| drawn.eq(d))
        {
            return;
        }
        outcome.rows += 1;
        if job.max_tokens == 0 {
            outcome.end = Some(FinishReason::Length);
            return;
        }
        let sampled = match choose(job, logits) {
            Ok(sampled) => sampled,
            Err(error) => {
                outcome.error = Some(error);
                return;
            }
        };
        let since = job.submitted.elapsed().as_secs_f64();
        job.usage.first_token_seconds.get_or_insert(since);
        if job.stop_tokens.contains(&sampled.token) {
            outcome.end = Some(FinishReason::Stop);
            return;
        }
        job.push(sampled.token);
        outcome.drawn.push(sampled);
        let is_long = job.generated() >= job.max_tokens;
        outcome.end = (is_full || is_long).then_some(FinishReason::Length);
    }
}

/// The next token of an answer.
fn choose(job: &mut Job, logits: &[f32]) -> Result<Sampled> {
    let position = job.generated() as u64;
    let mask = job.constraint.as_mut().map(Constraint::mask).transpose()?.flatten();
    SCRATCH.with_borrow_mut(|scratch| {
        Ok(sample(logits, &job.counts, &job.sampling, position, mask, scratch)?)
    })
}

/// A token that an answer may continue with after `ahead` drafted ones, by the logits of another model, and its probability.
///
/// A token that will be drawn is drawn here with the same random number, over the same order of tokens: the more
/// alike the two distributions are, the more often both draws are the same token. So drafts of sampled answers are
/// as good as they can be without ever having a say in what the answer is.
pub(crate) fn draft(job: &Job, ahead: usize, logits: &[f32]) -> (u32, f32) {
    let best = likeliest(logits);
    if job.sampling.temperature == 0.0 {
        return best;
    }
    let position = (job.generated() + ahead) as u64;
    // What the answer has said so far counts for little, and a mask for nothing: the model will see to them.
    let sampling = SamplingParams {
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logprobs: None,
        ..job.sampling.clone()
    };
    let drawn = SCRATCH.with_borrow_mut(|scratch| {
        sample(logits, &TokenCounts::new(), &sampling, position, None, scratch)
    });
    let Ok(Sampled { token, .. }) = drawn else { return best };
    let less = logits[best.0 as usize] - logits[token as usize];
    (token, best.1 * (-less).exp())
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
