//! Requests in, tokens out. A step is schedule → forward → sample → emit.
//!
//! All requests that decode advance by a token a step, or by several where drafted tokens turn out right; beside
//! them prompts advance by chunks. Requests share one
//! pool of pages with the prefix cache; who must give its sequence back for another is read again later.
//! What else is in a step never changes a request's tokens: rows are computed alike in any company,
//! and the random draw of a token depends on the request's seed and the token's number alone.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use compute::memory::BLOCK;
use model::{Batch, Logits, Segment, SegmentKind};
use state::{CacheLimits, PrefixCache, Worth, common_prefix};

use crate::draw::{self, Draw, Outcome};
use crate::job::{Active, Job};
use crate::load::{Counters, Load};
use crate::sampler::SampleError;
use crate::schedule::{Pace, Prompt, pack};
use crate::{Error, Event, FinishReason, Request, RequestId, Result};
use runtime::Reader;
use runtime::Runner;
use speculation::{
    AnswerId, Drafter, LoggedRound, Oracle, Passed, Report, SourceKind, Speculation, Subject,
};

/// Tokens that the entries of the prefix cache may list, as a multiple of the pool's positions: conversations
/// share pages, but each entry lists all its tokens and pages. A token costs about 12 bytes there.
const CACHE_TOKENS: usize = 8;

/// Entries of the prefix cache of a model whose sequences have no recurrent state.
const CACHE_ENTRIES: usize = 1024;

/// Serves requests with a [`Runner`].
pub struct Engine {
    pub(crate) runner: Runner,
    /// Without a sequence, the next one first: who was preempted, then by standing.
    pub(crate) waiting: VecDeque<Job>,
    /// The last round that somebody was let in of.
    pub(crate) round: u64,
    pub(crate) active: Vec<Active>,
    /// Paused, and without a sequence because others wanted the place.
    pub(crate) aside: Vec<Job>,
    pub(crate) cancelled: BTreeSet<RequestId>,
    pub(crate) cache: PrefixCache,
    /// Whether sequences can be cut to any length; if not, prompts stop for checkpoints.
    pub(crate) is_rewindable: bool,
    /// Whether the prefix cache can keep anything.
    pub(crate) keeps_entries: bool,
    /// The first in line did not fit, and nothing was given back since.
    pub(crate) is_blocked: bool,
    pub(crate) counters: Counters,
    next_number: u64,
    pace: Pace,
    drafter: Option<Drafter>,
    /// Whether nothing is drafted although something could be.
    drafter_rests: bool,
    /// Time that drafting took for the step that is being made.
    draft_seconds: f64,
}

impl Engine {
    /// An engine without requests, that speculates.
    pub fn speculating(runner: Runner, speculation: Speculation) -> Result<Engine> {
        let drafter = Drafter::new(speculation, &runner)?;
        Ok(Engine { drafter: Some(drafter), ..Engine::new(runner) })
    }

    /// An engine without requests, that computes one token of each at a time.
    pub fn new(runner: Runner) -> Engine {
        let is_rewindable = runner.memory().is_rewindable();
        let entries = match runner.memory().recurrent_count() {
            0 => CACHE_ENTRIES,
            _ => runner.options().checkpoints,
        };
        let tokens = runner.options().pool_positions().saturating_mul(CACHE_TOKENS);
        Engine {
            runner,
            waiting: VecDeque::new(),
            round: 0,
            active: Vec::new(),
            aside: Vec::new(),
            cancelled: BTreeSet::new(),
            cache: PrefixCache::new(CacheLimits { entries, tokens }, is_rewindable),
            is_rewindable,
            keeps_entries: entries > 0,
            is_blocked: false,
            counters: Counters::default(),
            next_number: 0,
            pace: Pace::default(),
            drafter: None,
            drafter_rests: false,
            draft_seconds: 0.0,
        }
    }

    /// Decodes as if there were nothing to draft with, or not any more: to measure what drafts gain.
    pub fn rest_drafter(&mut self, rests: bool) {
        self.drafter_rests = rests;
        self.runner.rest_head(rests);
    }

    /// Gives the answers to the source that is told them, for benchmarks.
    pub fn tell_oracle(&mut self, oracle: Oracle) {
        if let Some(drafter) = &mut self.drafter {
            drafter.tell_oracle(oracle);
        }
    }

    /// Drafts so many tokens in every round from now on, whatever it costs: to see how good a source is.
    pub fn fix_drafts(&mut self, count: usize) {
        if let Some(drafter) = &mut self.drafter {
            drafter.fix(count);
        }
    }

    /// What the rounds of single answers were like since it was asked last; none were kept before the first time.
    pub fn take_rounds(&mut self) -> Vec<LoggedRound> {
        self.drafter.as_mut().map(Drafter::take_log).unwrap_or_default()
    }

    /// What came of speculation, if there is any.
    pub fn speculation(&self) -> Option<Report> {
        self.drafter.as_ref().map(Drafter::report)
    }

    /// Where drafts may come from; nowhere without speculation.
    pub fn draft_sources(&self) -> Vec<SourceKind> {
        self.drafter.as_ref().map(Drafter::source_kinds).unwrap_or_default()
    }

    /// The model.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Queues a request, unless it can never be served.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.submit_choice(request, 0)
    }

    /// Queues the answer of this number to an ask that wants several. Asks take turns: a second answer to one is not
    /// let in before the first answers to those that came before it was its turn.
    pub fn submit_choice(&mut self, request: Request, choice: usize) -> Result<RequestId> {
        request.sampling.validate()?;
        let (vocab, context) = (self.runner.spec().vocab, self.runner.options().context);
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(runtime::Error::Token { token, vocab }.into());
        }
        let mut biased = request.sampling.logit_bias.iter().map(|bias| bias.0);
        if let Some(token) = biased.find(|&token| token as usize >= vocab) {
            return Err(SampleError::UnknownToken { token, vocabulary: vocab }.into());
        }
        if request.prompt.len() >= context {
            let needed = request.prompt.len() + 1;
            return Err(runtime::Error::Context { needed, context }.into());
        }
        let standing = self.standing(choice);
        let job = Job::new(self.number(), standing, request);
        let id = job.id;
        self.active.iter_mut().for_each(|active| expect(active, &job, self.is_rewindable));
        self.line_up(job);
        Ok(id)
    }

    /// Ends a request at the next step.
    pub fn cancel(&mut self, id: RequestId) {
        self.cancelled.insert(id);
    }

    /// Leaves a request alone until [`Engine::resume`]: whoever reads its answer is slow. If others wait for
    /// its place it loses it.
    pub fn pause(&mut self, id: RequestId) {
        if let Some(job) = self.find_job(id) {
            job.is_paused = true;
            self.is_blocked = false;
        }
    }

    /// Goes on with a request that was paused; like one that has just come if it lost its place.
    pub fn resume(&mut self, id: RequestId) {
        if let Some(index) = self.aside.iter().position(|job| job.id == id) {
            let (order, standing) = (self.number(), self.standing(0));
            let job = self.aside.remove(index);
            self.line_up(Job { is_paused: false, order, standing, ..job });
        } else if let Some(job) = self.find_job(id) {
            job.is_paused = false;
        }
    }

    /// Whether there are no requests.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty() && self.aside.is_empty()
    }

    /// Whether a step would do anything: not if all requests are paused.
    pub fn has_work(&self) -> bool {
        !self.cancelled.is_empty()
            || self.active.iter().any(|active| !active.job.is_paused)
            || self.waiting.iter().any(|job| !job.is_paused)
    }

    /// Forgets all prompts and answers of the past.
    pub fn clear_cache(&mut self) {
        self.cache.clear();
        if let Some(drafter) = &mut self.drafter {
            drafter.clear();
        }
        self.is_blocked = false;
    }

    /// How busy it is, and what it has done.
    pub fn load(&self) -> Load {
        let (pages, free_pages) = self.runner.memory().pages();
        let (states, free_states) = self.runner.memory().states();
        let jobs = self.active.iter().map(|active| &active.job).chain(&self.waiting);
        Load {
            queued: self.waiting.len(),
            active: self.active.len(),
            prefilling: self.active.iter().filter(|active| active.is_prefilling()).count(),
            paused: jobs.chain(&self.aside).filter(|job| job.is_paused).count(),
            pages,
            free_pages,
            states,
            free_states,
            cache_entries: self.cache.len(),
            cache_tokens: self.cache.token_count(),
            counters: self.counters,
        }
    }

    /// One step: schedule, forward, sample, emit. An error is one of the engine, not of a request.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.drop_cancelled(&mut events);
        self.admit(&mut events);
        self.schedule();
        self.reserve(&mut events);
        let batch = self.batch();
        if batch.segments.is_empty() {
            return Ok(events);
        }
        let started = Instant::now();
        let outcomes = self.forward_and_sample(&batch)?;
        self.emit(&batch, outcomes, started.elapsed().as_secs_f64(), &mut events);
        Ok(events)
    }

    /// Gives every request its rows: one for those that decode, and what is left of the step to prompts.
    fn schedule(&mut self) {
        let mut prompts = Vec::new();
        let mut somebody_decodes = false;
        self.draft_seconds = 0.0;
        for (index, active) in self.active.iter_mut().enumerate() {
            active.rows = 0;
            active.draft.clear();
            if active.job.is_paused {
                continue;
            }
            let (order, position, left) = (active.job.order, active.sequence.len(), active.left());
            if active.is_prefilling() {
                let stop = active.stops.first().map(|stop| stop.0);
                prompts.push(Prompt { index, order, position, left, stop });
            } else {
                active.rows = left;
                somebody_decodes = true;
            }
        }
        if prompts.is_empty() {
            self.draft();
            return;
        }
        // Beside a prompt passes are long anyway, and nothing is learned from them.
        if let Some(drafter) = self.drafter.as_mut().filter(|_| !self.drafter_rests) {
            drafter.wake(&mut self.runner);
        }
        let room = self.pace.room(self.runner.options().chunk, somebody_decodes);
        for (index, rows) in pack(&mut prompts, self.pace.next_turn(), room) {
            self.active[index].rows = rows;
        }
    }

    /// Drafts for all that are scheduled for their next token.
    fn draft(&mut self) {
        let Engine { active, runner, .. } = self;
        let Some(drafter) = self.drafter.as_mut().filter(|_| !self.drafter_rests) else { return };
        let started = Instant::now();
        let context = runner.options().context;
        let (mut choosers, mut parts) = (Vec::new(), Vec::new());
        for Active { job, sequence, rows, draft, .. } in active.iter_mut().filter(|a| a.rows > 0) {
            let job: &Job = job;
            // The row after the last draft still needs a place, and the answer an end.
            let places = context.saturating_sub(sequence.len() + 1);
            let rest = job.max_tokens.saturating_sub(job.generated() + 1);
            choosers.push(move |logits: &[f32], ahead: usize| draw::draft(job, ahead, logits));
            parts.push((job, sequence, rows, draft, places.min(rest)));
        }
        let pairs = parts.iter_mut().zip(&choosers);
        let subjects = pairs.map(|((job, sequence, _, draft, most), choose)| Subject {
            id: AnswerId(job.id.0),
            tokens: &job.tokens,
            sequence,
            most: *most,
            choose,
            draft,
        });
        drafter.draft(runner, &mut subjects.collect::<Vec<_>>());
        for (_, _, rows, draft, _) in parts {
            *rows = 1 + draft.tokens.len();
        }
        self.draft_seconds = started.elapsed().as_secs_f64();
    }

    /// The rows that were scheduled.
    fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        for (index, Active { job, sequence, rows, draft, .. }) in self.active.iter().enumerate() {
            let position = sequence.len();
            if *rows == 0 {
                continue;
            }
            if !draft.tokens.is_empty() {
                let mut tokens = job.tokens[position..].to_vec();
                tokens.extend_from_slice(&draft.tokens);
                batch.push(index, position, &tokens, SegmentKind::Verify, Logits::All);
                continue;
            }
            let end = position + rows;
            let is_prompt = *rows > 1 || position < job.prompt_len;
            let kind = if is_prompt { SegmentKind::Prefill } else { SegmentKind::Decode };
            let logits = if end == job.tokens.len() { Logits::Last } else { Logits::None };
            batch.push(index, position, &job.tokens[position..end], kind, logits);
        }
        batch
    }

    /// Runs the batch and draws tokens from it: the outcome of each request that wanted logits, and an error for
    /// each that could not be computed.
    fn forward_and_sample(&mut self, batch: &Batch) -> Result<Vec<Outcome>> {
        let context = self.runner.options().context;
        // The length of the sequence with each row of logits.
        let wanted = batch.segments.iter().flat_map(Segment::logit_rows);
        let lengths: Vec<usize> = wanted.map(|row| batch.positions[row] as usize + 1).collect();
        // Sequences and what sampling needs are different parts of the active requests.
        let mut sequences = Vec::with_capacity(self.active.len());
        let mut parts = Vec::with_capacity(self.active.len());
        for Active { job, sequence, draft, .. } in &mut self.active {
            sequences.push(sequence);
            parts.push(Some((job, draft.tokens.as_slice())));
        }
        let draws = batch.segments.iter().map(|segment| {
            let (job, drafts) = parts[segment.sequence].take().expect("one segment a request");
            Mutex::new(Draw { job, drafts, outcome: Outcome::new(segment.sequence) })
        });
        let draws: Vec<Mutex<Draw<'_>>> = draws.collect();
        let read = |segment: usize, row: usize, logits: &[f32]| {
            let mut draw = draws[segment].lock().unwrap_or_else(PoisonError::into_inner);
            // With the token that is drawn.
            draw.next(logits, lengths[row] + 1 >= context);
        };
        let failures = self.runner.forward_for(batch, &mut sequences, Reader::AtOnce(&read));
        let outcomes = draws
            .into_iter()
            .map(|draw| draw.into_inner().unwrap_or_else(PoisonError::into_inner).outcome);
        let mut outcomes: Vec<Outcome> = outcomes.collect();
        let failures = failures.inspect_err(|_| {
            // Nothing was written: what was reserved is given up.
            sequences.iter_mut().for_each(|sequence| sequence.advance(0));
        })?;
        if batch.keeps {
            let right: Vec<usize> = outcomes.iter().map(|outcome| outcome.rows).collect();
            self.runner.settle(batch, &right, &mut sequences);
        }
        drop(sequences);
        self.show_features(batch, &outcomes);
        for failed in failures {
            let own = outcomes.iter_mut().filter(|outcome| outcome.index == failed.sequence);
            let mut error = Some(Error::from(failed.error));
            own.for_each(|outcome| outcome.error = outcome.error.take().or(error.take()));
        }
        Ok(outcomes)
    }

    /// Shows drafters what the model thought of the rows that are right.
    fn show_features(&mut self, batch: &Batch, outcomes: &[Outcome]) {
        let features = self.runner.take_features();
        let Some(drafter) = self.drafter.as_mut().filter(|_| !features.is_empty()) else { return };
        let mut by_index: Vec<Option<(&[f32], bool)>> = vec![None; self.active.len()];
        for ((segment, features), outcome) in batch.segments.iter().zip(&features).zip(outcomes) {
            let right = if segment.is_trial() { outcome.rows } else { segment.count };
            let width = features.len() / segment.count;
            let is_prompt = segment.kind == SegmentKind::Prefill;
            by_index[segment.sequence] = Some((&features[..right * width], is_prompt));
        }
        let rows = self.active.iter_mut().zip(by_index).filter_map(|(active, rows)| {
            let (features, is_prompt) = rows?;
            let Active { job, sequence, .. } = active;
            let id = AnswerId(job.id.0);
            Some(Passed { id, tokens: &job.tokens, sequence, features, is_prompt })
        });
        drafter.observe_rows(&mut self.runner, &mut rows.collect::<Vec<_>>());
    }

    /// Records what the step did and tells it.
    fn emit(
        &mut self,
        batch: &Batch,
        outcomes: Vec<Outcome>,
        seconds: f64,
        events: &mut Vec<Event>,
    ) {
        let mut prefill_rows = 0;
        for (segment, outcome) in batch.segments.iter().zip(&outcomes) {
            let Active { job, sequence, cached, .. } = &mut self.active[segment.sequence];
            if segment.kind != SegmentKind::Prefill {
                job.usage.decode_seconds += seconds + self.draft_seconds;
                continue;
            }
            prefill_rows += segment.count;
            job.usage.prefill_seconds += seconds;
            // The first token of the answer is drawn already.
            let total = job.tokens.len() - outcome.drawn.len();
            let (done, cached) = (sequence.len(), *cached);
            events.push(Event::Prefill { id: job.id, done, total, cached });
        }
        let prefill_seconds = seconds * prefill_rows as f64 / batch.rows.len() as f64;
        self.pace.observe(prefill_rows, seconds);
        self.counters.steps += 1;
        self.counters.prompt_tokens_computed += prefill_rows as u64;
        self.counters.prefill_seconds += prefill_seconds;
        self.counters.decode_seconds += seconds - prefill_seconds + self.draft_seconds;
        if let Some(drafter) = self.drafter.as_mut().filter(|_| !self.drafter_rests) {
            drafter.observe_pass(&self.runner, batch, seconds);
        }

        let failed = outcomes.iter().filter(|outcome| outcome.error.is_some());
        self.take_checkpoints(&failed.map(|outcome| outcome.index).collect());
        let mut ended = Vec::new();
        for Outcome { index, drawn, end, rows, error } in outcomes {
            let Active { job, draft, .. } = &mut self.active[index];
            if rows > 0 && !draft.tokens.is_empty() {
                let accepted = rows - 1;
                job.usage.accepted_drafts += accepted;
                job.usage.rejected_drafts += draft.tokens.len() - accepted;
                if let Some(drafter) = &mut self.drafter {
                    drafter.observe_verdict(AnswerId(job.id.0), draft, accepted);
                }
            }
            self.counters.generated_tokens += drawn.len() as u64;
            let id = job.id;
            events.extend(drawn.into_iter().map(|sampled| Event::Token { id, sampled }));
            match (error, end) {
                (Some(error), _) => ended.push((index, Err(error))),
                (None, Some(reason)) => ended.push((index, Ok(reason))),
                (None, None) => {}
            }
        }
        // From the back, so that indices stay true.
        ended.sort_by_key(|end| std::cmp::Reverse(end.0));
        for (index, end) in ended {
            match end {
                Ok(reason) => self.finish(index, reason, events),
                Err(error) => {
                    let id = self.release(index).job.id;
                    events.push(Event::Failed { id, error });
                }
            }
        }
    }

    /// Keeps sequences that are now where later prompts may want to begin. What failed is never kept.
    fn take_checkpoints(&mut self, failed: &BTreeSet<usize>) {
        for (index, active) in self.active.iter_mut().enumerate() {
            if active.rows == 0 || failed.contains(&index) {
                continue;
            }
            if let Some(worth) = active.passed_stops() {
                self.cache.insert(active.held(), active.sequence.fork(), worth);
            }
        }
    }

    /// Ends an answer; its sequence may be the beginning of a later prompt.
    pub(crate) fn finish(&mut self, index: usize, reason: FinishReason, events: &mut Vec<Event>) {
        if let Some(drafter) = &mut self.drafter {
            let Active { job, sequence, .. } = &mut self.active[index];
            drafter.catch_up(&mut self.runner, AnswerId(job.id.0), &job.tokens, sequence);
        }
        let Active { job, sequence, .. } = self.release(index);
        let worth = worth_of_turn(sequence.len());
        self.cache.insert(&job.tokens[..sequence.len()], sequence, worth);
        events.push(Event::Finished { id: job.id, reason, usage: job.usage });
    }

    /// Takes a request out of those that run.
    pub(crate) fn release(&mut self, index: usize) -> Active {
        self.is_blocked = false;
        let active = self.active.remove(index);
        if let Some(drafter) = &mut self.drafter {
            drafter.forget(AnswerId(active.job.id.0), &active.job.tokens);
        }
        active
    }

    /// A number that no request had before.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// A request that runs or waits.
    fn find_job(&mut self, id: RequestId) -> Option<&mut Job> {
        let active = self.active.iter_mut().map(|active| &mut active.job);
        active.chain(&mut self.waiting).find(|job| job.id == id)
    }
}

/// Tokens that a waiting request could take over from one that runs, once they are in; for models that cannot be
/// rewound the whole blocks of them, where the other is made to stop.
pub(crate) fn shared(active: &Active, job: &Job, is_rewindable: bool) -> usize {
    let shared = common_prefix(&active.job.tokens, &job.tokens).min(job.most_cached());
    if is_rewindable { shared } else { shared / BLOCK * BLOCK }
}

/// What the end of a turn is worth: what is soon read again does not drive out what is not.
pub(crate) fn worth_of_turn(len: usize) -> Worth {
    if len < BLOCK { Worth::Spaced } else { Worth::Turn }
}

/// Whether sharing so much is worth waiting for.
pub(crate) fn is_worth_sharing(shared: usize, job: &Job) -> bool {
    shared >= BLOCK && 2 * shared >= job.tokens.len()
}

/// Makes a prompt that is being read stop where a waiting request will want to begin.
pub(crate) fn expect(active: &mut Active, job: &Job, is_rewindable: bool) {
    if is_rewindable || !active.is_prefilling() {
        return;
    }
    let shared = shared(active, job, is_rewindable);
    if is_worth_sharing(shared, job) {
        active.stop_at(shared, Worth::Turn);
    }
}
