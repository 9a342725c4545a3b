//! Which requests get a sequence, and which give one back.
//!
//! A request is admitted if the pool holds its prompt and the next part of an answer in addition to those of the others;
//! the prefix cache counts as free. The queue is in rounds: a client that wants several answers has one of them in each,
//! and a new request stands in the next round, so none waits for all answers to another; an answer is passed by requests
//! that come before its round begins. The first in the queue is not overtaken, except while it waits for another request
//! to read what both begin with. When a step runs out of pages, entries of the prefix cache go first, then the sequences
//! of paused requests, then those of the youngest: these wait at the head of the queue and are read again.
//!
//! Invariant: the oldest request always finds room, so one always advances.

use compute::memory::BLOCK;
use runtime::Options;
use speculation::Draft;
use state::{Sequence, Worth, common_prefix};

use crate::Event;
use crate::job::{Active, Hold, Job, is_worth_sharing};
use crate::load::Counters;
use crate::pool::{Pool, worth_of_turn};
use crate::queue::Queue;

/// Positions of each answer that must fit when a request is admitted; one that writes more may be preempted.
const ANSWER_POSITIONS: usize = 256;

/// The first length at which a prompt takes a checkpoint unasked; then at every doubling.
const FIRST_SPACED: usize = 512;

/// Waiting requests that are looked at when one is admitted, for what they have in common with it.
const EXPECTED: usize = 64;

impl Queue {
    /// Takes in what waits, as far as there is room.
    pub(crate) fn admit(
        &mut self,
        pool: &mut Pool,
        counters: &mut Counters,
        events: &mut Vec<Event>,
    ) {
        while let Some(index) = self.first_in_line(pool) {
            match self.place(index, pool, counters) {
                Ok(true) => {}
                Ok(false) => {
                    if !self.set_aside(true, pool) {
                        self.is_blocked = true;
                    }
                }
                Err(error) => {
                    let Some(job) = self.waiting.remove(index) else { return };
                    events.push(Event::Failed { id: job.id, error: error.into() });
                }
            }
        }
    }

    /// The waiting request that is next, if there is a sequence for it.
    fn first_in_line(&mut self, pool: &mut Pool) -> Option<usize> {
        let is_full = self.active.len() >= pool.runner.options().sequences;
        let one_is_paused = self.active.iter().any(|active| active.job.is_paused);
        if self.is_blocked || (is_full && !one_is_paused) {
            return None;
        }
        let next = (0..self.waiting.len())
            .find(|&index| !self.waiting[index].is_paused && !self.is_held(index, pool))?;
        if is_full {
            self.set_aside(true, pool);
        }
        Some(next)
    }

    /// Whether a waiting request had better wait until another has read what both begin with.
    fn is_held(&mut self, index: usize, pool: &Pool) -> bool {
        let job = &self.waiting[index];
        if let Some(hold) = job.hold {
            let holds = |active: &Active| {
                active.job.id == hold.on
                    && !active.job.is_paused
                    && active.sequence.len() < hold.until
            };
            if self.active.iter().any(holds) {
                return true;
            }
        }
        let ready = self.reach(job, pool);
        let mut longest: Option<(usize, usize)> = None;
        for (other, active) in self.active.iter().enumerate() {
            if active.job.is_paused || !active.is_prefilling() {
                continue;
            }
            let shared = active.shared(job, pool.is_rewindable);
            let is_ahead = shared > active.sequence.len() && shared >= ready + BLOCK;
            if is_ahead && is_worth_sharing(shared, job) && longest.is_none_or(|l| l.1 < shared) {
                longest = Some((other, shared));
            }
        }
        let hold = longest.map(|(other, until)| {
            let active = &mut self.active[other];
            active.expect(job, pool.is_rewindable);
            Hold { on: active.job.id, until }
        });
        self.waiting[index].hold = hold;
        hold.is_some()
    }

    /// Tokens of a waiting request that need not be computed.
    fn reach(&self, job: &Job, pool: &Pool) -> usize {
        let (tokens, most) = (&job.tokens, job.most_cached());
        let active = self.active.iter().map(|active| active.reach(tokens, most));
        active.max().unwrap_or(0).max(pool.cache.reach(pool.code(), tokens, most))
    }

    /// Gives a waiting request a sequence, unless the pool has no room for it now.
    fn place(
        &mut self,
        index: usize,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> state::Result<bool> {
        let sequence = self.begin(index, pool)?;
        let job = &self.waiting[index];
        // Alone it always fits.
        if !self.active.is_empty() {
            let Options { context, chunk, .. } = *pool.runner.options();
            let growth = |job: &Job, sequence: &Sequence| {
                let rest = job.max_tokens.saturating_sub(job.generated()).min(ANSWER_POSITIONS);
                (job.tokens.len() + rest).min(context).saturating_sub(sequence.len())
            };
            let active = self.active.iter().map(|active| (&active.job, &active.sequence));
            let all = active.chain([(job, &sequence)]);
            let all: Vec<_> =
                all.map(|(job, sequence)| (sequence, growth(job, sequence))).collect();
            if !pool.runner.memory().can_hold(&all, chunk) {
                return Ok(false);
            }
        }
        let stops = self.stops(job, sequence.len(), pool);
        let Some(mut job) = self.waiting.remove(index) else { return Ok(false) };
        job.hold = None;
        self.round = self.round.max(job.standing.round);
        if !job.was_admitted {
            job.was_admitted = true;
            job.order = self.number();
            job.usage.cached_tokens = sequence.len();
            job.usage.queue_seconds = job.submitted.elapsed().as_secs_f64();
            counters.prompt_tokens_cached += sequence.len() as u64;
        }
        let cached = sequence.len();
        let draft = Draft::default();
        let mut active = Active { job, sequence, cached, stops: Vec::new(), rows: 0, draft };
        stops.into_iter().for_each(|(len, worth)| active.stop_at(len, worth));
        for job in self.waiting.iter().take(EXPECTED) {
            active.expect(job, pool.is_rewindable);
        }
        self.active.push(active);
        Ok(true)
    }

    /// A sequence that holds as much of a waiting request's tokens as have been computed for any.
    fn begin(&mut self, index: usize, pool: &mut Pool) -> state::Result<Sequence> {
        let job = &self.waiting[index];
        let (tokens, most) = (&job.tokens, job.most_cached());
        let reaches = self.active.iter().map(|active| active.reach(tokens, most));
        let active = reaches.enumerate().max_by_key(|reach| reach.1);
        if let Some((other, reach)) = active
            && reach > pool.cache.reach(pool.code(), tokens, most)
        {
            let mut sequence = self.active[other].sequence.fork();
            sequence.truncate(reach)?;
            return Ok(sequence);
        }
        match pool.cache.find(pool.code(), tokens, most) {
            Some(sequence) => Ok(sequence),
            None => pool.sequence(),
        }
    }

    /// Where a prompt should stop for a checkpoint: at the caller's hints, at its end, at every doubling, and where
    /// it leaves what others began with, for the next that does.
    fn stops(&self, job: &Job, cached: usize, pool: &Pool) -> Vec<(usize, Worth)> {
        if pool.is_rewindable || !pool.keeps_entries {
            return Vec::new();
        }
        let mut stops: Vec<(usize, Worth)> =
            job.hints.iter().map(|&len| (len, worth_of_turn(len))).collect();
        // A hint near the end serves better: the same prompt can begin there again.
        let has_hint = job.hints.last().is_some_and(|&len| len + BLOCK >= job.prompt_len);
        if !has_hint && job.prompt_len >= BLOCK {
            stops.push((job.prompt_len, Worth::Turn));
        }
        let active = self.active.iter().map(|other| common_prefix(&other.job.tokens, &job.tokens));
        let common =
            active.max().unwrap_or(0).max(pool.cache.longest_common(pool.code(), &job.tokens));
        let divergence = common.min(job.most_cached()) / BLOCK * BLOCK;
        if divergence > cached {
            stops.push((divergence, Worth::Turn));
        }
        // Shorter ones would cut chunks, and where experts come from the disk a step costs its reads.
        let first = FIRST_SPACED.max(pool.runner.options().chunk.next_power_of_two());
        let spaced = std::iter::successors(Some(first), |len| len.checked_mul(2));
        let spaced = spaced.take_while(|&len| len < job.prompt_len);
        stops.extend(spaced.map(|len| (len, Worth::Spaced)));
        stops
    }

    /// Finds pages for all rows that were scheduled, the oldest request first.
    pub(crate) fn reserve(
        &mut self,
        pool: &mut Pool,
        counters: &mut Counters,
        events: &mut Vec<Event>,
    ) {
        let scheduled = self.active.iter().filter(|active| active.rows > 0);
        let mut orders: Vec<u64> = scheduled.map(|active| active.job.order).collect();
        orders.sort_unstable();
        for order in orders {
            // It may have been preempted.
            while let Some(index) = self.active.iter().position(|a| a.job.order == order) {
                let Active { sequence, rows, draft, .. } = &mut self.active[index];
                let Err(error) = pool.runner.reserve(sequence, *rows) else { break };
                if !draft.tokens.is_empty() {
                    // Nothing is given up for what may turn out wrong.
                    *rows -= draft.tokens.len();
                    draft.clear();
                    continue;
                }
                if self.make_room(order, pool, counters) {
                    continue;
                }
                if self.active.len() > 1 {
                    // The youngest waits with what it has until an older one ends, or takes it.
                    self.active[index].rows = 0;
                } else {
                    let id = self.release(index, pool).job.id;
                    events.push(Event::Failed { id, error: error.into() });
                }
                break;
            }
        }
    }

    /// Takes pages from what needs them least. Whether there was anything.
    fn make_room(&mut self, order: u64, pool: &mut Pool, counters: &mut Counters) -> bool {
        if pool.cache.evict() || self.set_aside(false, pool) {
            return true;
        }
        let younger = self.active.iter().enumerate().filter(|(_, a)| a.job.order > order);
        let Some((index, _)) = younger.max_by_key(|(_, active)| active.job.order) else {
            return false;
        };
        let job = self.release(index, pool).job;
        self.waiting.push_front(job);
        counters.preemptions += 1;
        true
    }

    /// Takes the sequence of a request that is paused, the youngest. Whether there was one.
    fn set_aside(&mut self, keep: bool, pool: &mut Pool) -> bool {
        let paused = self.active.iter().enumerate().filter(|(_, active)| active.job.is_paused);
        let Some((index, _)) = paused.max_by_key(|(_, active)| active.job.order) else {
            return false;
        };
        let Active { job, sequence, .. } = self.release(index, pool);
        if keep {
            pool.keep(&job, sequence);
        }
        self.aside.push(job);
        true
    }
}
