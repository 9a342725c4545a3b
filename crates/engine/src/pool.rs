//! What sequences are made from: the model's memory, the prefix cache, and what drafts go with.
//!
//! Entries of the prefix cache count as free: they give way whenever a request needs their place.

use compute::memory::BLOCK;
use runtime::Runner;
use speculation::{AnswerId, Drafter};
use state::{CacheLimits, CodeId, PrefixCache, Sequence, Worth};

use crate::job::{Active, Job};

/// Tokens that the entries of the prefix cache may list, as a multiple of the pool's positions: conversations
/// share pages, but each entry lists all its tokens and pages. A token costs about 12 bytes there.
const CACHE_TOKENS: usize = 8;

/// Entries of the prefix cache of a model whose sequences have no recurrent state.
const CACHE_ENTRIES: usize = 1024;

pub(crate) struct Pool {
    pub(crate) runner: Runner,
    pub(crate) cache: PrefixCache,
    /// Whether sequences can be cut to any length; if not, prompts stop for checkpoints.
    pub(crate) is_rewindable: bool,
    /// Whether the prefix cache can keep anything.
    pub(crate) keeps_entries: bool,
    drafter: Option<Drafter>,
    /// Whether nothing is drafted although something could be.
    drafter_rests: bool,
}

impl Pool {
    pub(crate) fn new(runner: Runner, drafter: Option<Drafter>) -> Pool {
        let is_rewindable = runner.memory().is_rewindable();
        let entries = match runner.memory().recurrent_count() {
            0 => CACHE_ENTRIES,
            _ => runner.options().checkpoints,
        };
        let tokens = runner.options().pool_positions().saturating_mul(CACHE_TOKENS);
        let cache = PrefixCache::new(CacheLimits { entries, tokens }, is_rewindable);
        let keeps_entries = entries > 0;
        Pool { runner, cache, is_rewindable, keeps_entries, drafter, drafter_rests: false }
    }

    /// The drafter, if there is one.
    pub(crate) fn drafter(&self) -> Option<&Drafter> {
        self.drafter.as_ref()
    }

    /// The drafter, whether or not it rests, and the model it drafts for.
    pub(crate) fn drafter_mut(&mut self) -> Option<(&mut Drafter, &mut Runner)> {
        Some((self.drafter.as_mut()?, &mut self.runner))
    }

    /// The same unless it rests.
    pub(crate) fn awake_drafter(&mut self) -> Option<(&mut Drafter, &mut Runner)> {
        if self.drafter_rests { None } else { self.drafter_mut() }
    }

    /// Drafts nothing from now on, or again what pays.
    pub(crate) fn rest_drafter(&mut self, rests: bool) {
        self.drafter_rests = rests;
        self.runner.rest_head(rests);
    }

    /// How sequences keep keys and values.
    pub(crate) fn code(&self) -> CodeId {
        self.runner.memory().code()
    }

    /// A new, empty sequence.
    pub(crate) fn sequence(&mut self) -> state::Result<Sequence> {
        loop {
            match self.runner.new_sequence() {
                Ok(sequence) => return Ok(sequence),
                Err(error) if !self.cache.evict() => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Keeps the sequence of a request for later ones that begin with the same.
    pub(crate) fn keep(&mut self, job: &Job, sequence: Sequence) {
        let worth = worth_of_turn(sequence.len());
        self.cache.insert(&job.tokens[..sequence.len()], sequence, worth);
    }

    /// Before a sequence is kept: drafters put in what belongs into it.
    pub(crate) fn catch_up(&mut self, active: &mut Active) {
        let Active { job, sequence, .. } = active;
        if let Some((drafter, runner)) = self.drafter_mut() {
            drafter.catch_up(runner, answer(job), &job.tokens, sequence);
        }
    }

    /// A request has no sequence any more.
    pub(crate) fn forget(&mut self, job: &Job) {
        if let Some(drafter) = &mut self.drafter {
            drafter.forget(answer(job), &job.tokens);
        }
    }

    /// Forgets all prompts and answers of the past.
    pub(crate) fn clear(&mut self) {
        self.cache.clear();
        if let Some(drafter) = &mut self.drafter {
            drafter.clear();
        }
    }
}

/// The number of a request's answer, for drafters.
pub(crate) fn answer(job: &Job) -> AnswerId {
    AnswerId(job.id.0)
}

/// What the end of a turn is worth: what is soon read again does not drive out what is not.
pub(crate) fn worth_of_turn(len: usize) -> Worth {
    if len < BLOCK { Worth::Spaced } else { Worth::Turn }
}
