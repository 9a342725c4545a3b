//! A request inside the engine: what of it outlives its sequence, and the part that runs.

use std::collections::BTreeSet;
use std::time::Instant;

use compute::memory::BLOCK;
use grammar::Constraint;
use speculation::Draft;
use state::{Sequence, Worth, common_prefix};

use crate::sampler::{SamplingParams, TokenCounts};
use crate::{Request, RequestId, Usage};

/// Hints of a request that are used: each ends a chunk early.
const MOST_HINTS: usize = 4;

/// Tokens from which on a hint is used. A question of one line is worth a step of its own: a large model takes seconds to
/// read it, and its next turn or a later answer begins with it.
const LEAST_HINT: usize = 8;

/// Places where a prompt stops for a checkpoint.
const MOST_STOPS: usize = 16;

/// A request, whether or not it has a sequence now.
pub(crate) struct Job {
    pub(crate) id: RequestId,
    /// Age among those that run: the job with the least goes first and is the last to be preempted.
    pub(crate) order: u64,
    /// Where it waits.
    pub(crate) standing: Standing,
    /// The prompt and what was generated.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    pub(crate) max_tokens: usize,
    pub(crate) stop_tokens: BTreeSet<u32>,
    pub(crate) sampling: SamplingParams,
    pub(crate) counts: TokenCounts,
    /// What the answer must look like; it has seen what was generated.
    pub(crate) constraint: Option<Constraint>,
    /// Lengths worth a checkpoint, ascending.
    pub(crate) hints: Vec<usize>,
    pub(crate) usage: Usage,
    pub(crate) submitted: Instant,
    pub(crate) was_admitted: bool,
    pub(crate) is_paused: bool,
    pub(crate) hold: Option<Hold>,
}

/// A place in the line. In a round, first answers come before second ones, and equals as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    pub(crate) round: u64,
    /// Which answer to its client it is.
    pub(crate) choice: usize,
}

/// Why a request waits although there may be room: another is reading what both begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) on: RequestId,
    /// Tokens that the other must have read.
    pub(crate) until: usize,
}

impl Job {
    pub(crate) fn new(number: u64, standing: Standing, request: Request) -> Job {
        let Request { prompt, max_tokens, stop_tokens, sampling, checkpoints, constraint } =
            request;
        let prompt_len = prompt.len();
        let sensible = checkpoints.into_iter().filter(|len| (LEAST_HINT..prompt_len).contains(len));
        let mut hints: Vec<usize> = sensible.collect::<BTreeSet<usize>>().into_iter().collect();
        hints.drain(..hints.len().saturating_sub(MOST_HINTS));
        let mut counts = TokenCounts::new();
        counts.push_prompt(&prompt);
        Job {
            id: RequestId(number),
            order: number,
            standing,
            tokens: prompt,
            prompt_len,
            max_tokens,
            stop_tokens,
            sampling,
            counts,
            constraint,
            hints,
            usage: Usage { prompt_tokens: prompt_len, ..Usage::default() },
            submitted: Instant::now(),
            was_admitted: false,
            is_paused: false,
            hold: None,
        }
    }

    /// Tokens of the answer so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tokens that a cached sequence may hold: one at least must run, for its logits.
    pub(crate) fn most_cached(&self) -> usize {
        self.tokens.len() - 1
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.counts.push(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        self.usage.completion_tokens = self.generated();
    }
}

/// A request with a sequence.
pub(crate) struct Active {
    pub(crate) job: Job,
    pub(crate) sequence: Sequence,
    /// Tokens that its sequence began with.
    pub(crate) cached: usize,
    /// Lengths at which to take a checkpoint, ascending, all ahead.
    pub(crate) stops: Vec<(usize, Worth)>,
    /// Rows it has in the step that is being made.
    pub(crate) rows: usize,
    /// Tokens that may come next, verified in the step that is being made.
    pub(crate) draft: Draft,
}

impl Active {
    /// Tokens that are not in the sequence yet.
    pub(crate) fn left(&self) -> usize {
        self.job.tokens.len() - self.sequence.len()
    }

    /// Whether more than the next token is to be taken in.
    pub(crate) fn is_prefilling(&self) -> bool {
        self.left() > 1
    }

    /// The tokens that are in the sequence.
    pub(crate) fn held(&self) -> &[u32] {
        &self.job.tokens[..self.sequence.len()]
    }

    /// How much of `tokens` a fork of its sequence would hold, `most` at most.
    pub(crate) fn reach(&self, tokens: &[u32], most: usize) -> usize {
        let len = common_prefix(self.held(), tokens).min(most);
        if self.sequence.check_truncate(len).is_ok() { len } else { 0 }
    }

    /// Tokens that a waiting request could take over, once they are in; of models that cannot be rewound the whole
    /// blocks of them, where this one is made to stop.
    pub(crate) fn shared(&self, job: &Job, is_rewindable: bool) -> usize {
        let shared = common_prefix(&self.job.tokens, &job.tokens).min(job.most_cached());
        if is_rewindable { shared } else { shared / BLOCK * BLOCK }
    }

    /// Makes a prompt that is being read stop where a waiting request will want to begin.
    pub(crate) fn expect(&mut self, job: &Job, is_rewindable: bool) {
        if is_rewindable || !self.is_prefilling() {
            return;
        }
        let shared = self.shared(job, is_rewindable);
        if is_worth_sharing(shared, job) {
            self.stop_at(shared, Worth::Turn);
        }
    }

    /// Adds a place for a checkpoint, if it is still ahead.
    pub(crate) fn stop_at(&mut self, len: usize, worth: Worth) {
        if len <= self.sequence.len() || len > self.job.tokens.len() {
            return;
        }
        match self.stops.binary_search_by_key(&len, |stop| stop.0) {
            Ok(index) => self.stops[index].1 = self.stops[index].1.max(worth),
            Err(index) if self.stops.len() < MOST_STOPS => self.stops.insert(index, (len, worth)),
            Err(_) => {}
        }
    }

    /// Drops the places it has passed; what a checkpoint here would be worth, if it is one of them.
    pub(crate) fn passed_stops(&mut self) -> Option<Worth> {
        let len = self.sequence.len();
        let passed = self.stops.partition_point(|stop| stop.0 <= len);
        self.stops.drain(..passed).find(|stop| stop.0 == len).map(|stop| stop.1)
    }
}

/// Whether sharing so much is worth waiting for.
pub(crate) fn is_worth_sharing(shared: usize, job: &Job) -> bool {
    shared >= BLOCK && 2 * shared >= job.tokens.len()
}
