//! Requests in, tokens out: [`Engine::step`].
//!
//! All requests that decode advance by a token a step, or by several where drafted tokens turn out right; alongside
//! prompts advance by chunks. Requests share one pool of pages with the prefix cache; a request that must give its
//! sequence back for another is read again later. What else is in a step never changes a request's tokens: rows are
//! computed alike in any batch, and the random draw of a token depends on the request's seed and the token's number
//! alone.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use model::{Batch, Logits, Segment, SegmentKind};
use runtime::{Features, LogitsReader, RowLogits, Runner};
use speculation::{
    Drafter, LoggedRound, ObservedRows, Oracle, Report, SourceKind, Speculation, Subject,
};

use crate::draw::{self, Draw, Outcome};
use crate::job::{Active, Job};
use crate::load::{Counters, Load};
use crate::pool::{SequencePool, answer};
use crate::queue::Queue;
use crate::sampler::SampleError;
use crate::schedule::{Pace, Prompt, pack};
use crate::{Error, Event, Request, RequestId, Result};

/// Serves requests with a [`Runner`].
pub struct Engine {
    queue: Queue,
    pool: SequencePool,
    pace: Pace,
    counters: Counters,
}

impl Engine {
    /// An engine without requests, that speculates.
    pub fn speculating(runner: Runner, speculation: Speculation) -> Result<Engine> {
        let drafter = Drafter::new(speculation, &runner)?;
        Ok(Engine::of(SequencePool::new(runner, Some(drafter))))
    }

    /// An engine without requests, that computes one token of each at a time.
    pub fn new(runner: Runner) -> Engine {
        Engine::of(SequencePool::new(runner, None))
    }

    fn of(pool: SequencePool) -> Engine {
        let (queue, pace, counters) = (Queue::default(), Pace::default(), Counters::default());
        Engine { queue, pool, pace, counters }
    }

    /// Decodes as if there were nothing to draft with, or not any more: to measure what drafts gain.
    pub fn rest_drafter(&mut self, rests: bool) {
        self.pool.rest_drafter(rests);
    }

    /// Gives the answers to the source that knows them, for benchmarks.
    pub fn tell_oracle(&mut self, oracle: Oracle) {
        if let Some((drafter, _)) = self.pool.drafter_mut() {
            drafter.tell_oracle(oracle);
        }
    }

    /// Drafts so many tokens in every round from now on, whatever it costs: to see how good a source is.
    pub fn fix_drafts(&mut self, count: usize) {
        if let Some((drafter, _)) = self.pool.drafter_mut() {
            drafter.fix(count);
        }
    }

    /// The rounds of single answers since the last call; none are kept before the first one.
    pub fn take_rounds(&mut self) -> Vec<LoggedRound> {
        self.pool.drafter_mut().map(|(drafter, _)| drafter.take_log()).unwrap_or_default()
    }

    /// What came of speculation, if there is any.
    pub fn speculation(&self) -> Option<Report> {
        self.pool.drafter().map(Drafter::report)
    }

    /// Where drafts may come from; nowhere without speculation.
    pub fn draft_sources(&self) -> Vec<SourceKind> {
        self.pool.drafter().map(Drafter::source_kinds).unwrap_or_default()
    }

    /// The model.
    pub fn runner(&self) -> &Runner {
        &self.pool.runner
    }

    /// Queues a request, unless it can never be served.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.submit_choice(request, 0)
    }

    /// Queues the answer of this number to a client that wants several. Clients take turns: a second answer to one is
    /// not admitted before the first answers to those that came before it was its turn.
    pub fn submit_choice(&mut self, request: Request, choice: usize) -> Result<RequestId> {
        request.sampling.validate()?;
        let (vocab, context) = (self.runner().spec().vocab, self.runner().options().context);
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
        Ok(self.queue.submit(request, choice, &self.pool))
    }

    /// Ends a request at the next step.
    pub fn cancel(&mut self, id: RequestId) {
        self.queue.cancel(id);
    }

    /// Leaves a request alone until [`Engine::resume`], because its client is slow to read. If others wait for its
    /// place it loses it.
    pub fn pause(&mut self, id: RequestId) {
        self.queue.pause(id);
    }

    /// Continues a request that was paused; if it was preempted meanwhile, it is queued like a new one.
    pub fn resume(&mut self, id: RequestId) {
        self.queue.resume(id);
    }

    /// Whether there are no requests.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Forgets all prompts and answers of the past.
    pub fn clear_cache(&mut self) {
        self.pool.clear();
        self.queue.is_blocked = false;
    }

    /// How busy it is, and what it has done.
    pub fn load(&self) -> Load {
        let Engine { queue, pool, .. } = self;
        let (pages, free_pages) = pool.runner.memory().pages();
        let (states, free_states) = pool.runner.memory().states();
        Load {
            queued: queue.waiting.len(),
            active: queue.active.len(),
            prefilling: queue.active.iter().filter(|active| active.is_prefilling()).count(),
            paused: queue.paused(),
            pages,
            free_pages,
            states,
            free_states,
            cache_entries: pool.cache.len(),
            cache_tokens: pool.cache.token_count(),
            counters: self.counters,
        }
    }

    /// One step. An error is one of the engine, not of a request.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        // Which requests have a sequence.
        self.queue.drop_cancelled(&mut self.pool, &mut events);
        self.queue.admit(&mut self.pool, &mut self.counters, &mut events);
        // How many rows each has, and which tokens it may continue with.
        let is_decoding = self.schedule();
        let draft_seconds = self.draft(is_decoding);
        // Pages for all rows of the batch.
        self.queue.reserve(&mut self.pool, &mut self.counters, &mut events);
        let batch = self.batch();
        if batch.segments.is_empty() {
            return Ok(events);
        }
        let started = Instant::now();
        let mut outcomes = self.forward_and_sample(&batch)?;
        let forward_seconds = started.elapsed().as_secs_f64();
        let ended = self.commit(&batch, &mut outcomes, Seconds { forward_seconds, draft_seconds });
        events.extend(events_of(outcomes));
        events.extend(ended);
        Ok(events)
    }

    /// Gives every request its rows: one to those that decode, and what is left of the step to prompts. Whether there
    /// are only those that decode.
    fn schedule(&mut self) -> bool {
        let mut prompts = Vec::new();
        let mut one_decodes = false;
        for (index, active) in self.queue.active.iter_mut().enumerate() {
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
                one_decodes = true;
            }
        }
        if prompts.is_empty() {
            return true;
        }
        let room = self.pace.room(self.pool.runner.options().chunk, one_decodes);
        for (index, rows) in pack(&mut prompts, self.pace.next_turn(), room) {
            self.queue.active[index].rows = rows;
        }
        false
    }

    /// Drafts for all that are scheduled for their next token, and adds rows to verify; this may run models. Seconds
    /// that it took.
    fn draft(&mut self, is_decoding: bool) -> f64 {
        let Engine { queue: Queue { active, .. }, pool, .. } = self;
        let Some((drafter, runner)) = pool.awake_drafter() else { return 0.0 };
        if !is_decoding {
            // With a prompt passes are long anyway, and nothing is learned from them.
            drafter.wake(runner);
            return 0.0;
        }
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
            id: answer(job),
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
        started.elapsed().as_secs_f64()
    }

    /// The rows that were scheduled.
    fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        let active = self.queue.active.iter().enumerate();
        for (index, Active { job, sequence, rows, draft, .. }) in active {
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
        let Engine { queue: Queue { active, .. }, pool, .. } = self;
        let context = pool.runner.options().context;
        // The length of the sequence with each row of logits.
        let wanted = batch.segments.iter().flat_map(Segment::logit_rows);
        let lengths: Vec<usize> = wanted.map(|row| batch.positions[row] as usize + 1).collect();
        // Sequences and what sampling needs are different parts of the active requests.
        let mut sequences = Vec::with_capacity(active.len());
        let mut parts = Vec::with_capacity(active.len());
        for Active { job, sequence, draft, .. } in active.iter_mut() {
            sequences.push(sequence);
            parts.push(Some((job, draft.tokens.as_slice())));
        }
        let draws = batch.segments.iter().map(|segment| {
            let (job, drafts) = parts[segment.sequence].take().expect("one segment a request");
            let outcome = Outcome::new(segment.sequence, job.id);
            Mutex::new(Draw { job, drafts, outcome })
        });
        let draws: Vec<Mutex<Draw<'_>>> = draws.collect();
        let read = |segment: usize, row: usize, logits: RowLogits<'_>| {
            let mut draw = draws[segment].lock().unwrap_or_else(PoisonError::into_inner);
            // With the token that is drawn.
            draw.next(logits.all(), lengths[row] + 1 >= context);
        };
        let failures =
            pool.runner.forward_reserved(batch, &mut sequences, LogitsReader::AtOnce(&read));
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
            pool.runner.settle(batch, &right, &mut sequences);
        }
        drop(sequences);
        self.show_features(batch, &outcomes);
        for failed in failures {
            let own = outcomes.iter_mut().filter(|outcome| outcome.index == failed.sequence);
            let mut error = Some(Error::from(failed.error));
            own.for_each(|outcome| outcome.error = outcome.error.take().or(error.take()));
        }
        for (segment, outcome) in batch.segments.iter().zip(&mut outcomes) {
            let Active { job, sequence, cached, .. } = &self.queue.active[segment.sequence];
            // The first token of the answer is drawn already.
            let total = job.tokens.len() - outcome.drawn.len();
            let is_prompt = segment.kind == SegmentKind::Prefill;
            outcome.read = is_prompt.then_some((sequence.len(), total, *cached));
        }
        Ok(outcomes)
    }

    /// Shows drafters what the model thought of the rows that are right.
    fn show_features(&mut self, batch: &Batch, outcomes: &[Outcome]) {
        let Engine { queue: Queue { active, .. }, pool, .. } = self;
        let features = pool.runner.take_features();
        let drafter = pool.drafter_mut().filter(|_| !features.is_empty());
        let Some((drafter, runner)) = drafter else { return };
        let mut by_index: Vec<Option<(Features, bool)>> = vec![None; active.len()];
        for ((segment, features), outcome) in batch.segments.iter().zip(&features).zip(outcomes) {
            let right = if segment.is_trial() { outcome.rows } else { segment.count };
            let is_prompt = segment.kind == SegmentKind::Prefill;
            by_index[segment.sequence] = Some((features.slice(0..right), is_prompt));
        }
        let rows = active.iter_mut().zip(by_index).filter_map(|(active, rows)| {
            let (features, is_prompt) = rows?;
            let Active { job, sequence, .. } = active;
            let id = answer(job);
            Some(ObservedRows { id, tokens: &job.tokens, sequence, features, is_prompt })
        });
        drafter.observe_rows(runner, &mut rows.collect::<Vec<_>>());
    }

    /// Settles what the step did: usage, checkpoints, what is learned from it, and requests that end; of an answer that is
    /// kept, a draft head takes in the last tokens, which may run it. The events of those that end.
    fn commit(&mut self, batch: &Batch, outcomes: &mut [Outcome], seconds: Seconds) -> Vec<Event> {
        self.count(batch, seconds);
        if let Some((drafter, runner)) = self.pool.awake_drafter() {
            drafter.observe_pass(runner, batch, seconds.forward_seconds);
        }
        let failed = outcomes.iter().filter(|outcome| outcome.error.is_some());
        self.take_checkpoints(&failed.map(|outcome| outcome.index).collect());
        let mut ended = Vec::new();
        for Outcome { index, drawn, end, rows, error, .. } in outcomes {
            let Active { job, draft, .. } = &mut self.queue.active[*index];
            if *rows > 0 && !draft.tokens.is_empty() {
                let accepted = *rows - 1;
                job.usage.accepted_drafts += accepted;
                job.usage.rejected_drafts += draft.tokens.len() - accepted;
                if let Some((drafter, _)) = self.pool.drafter_mut() {
                    drafter.observe_verdict(answer(job), draft, accepted);
                }
            }
            self.counters.generated_tokens += drawn.len() as u64;
            match (error.take(), *end) {
                (Some(error), _) => ended.push((*index, Err(error))),
                (None, Some(reason)) => ended.push((*index, Ok(reason))),
                (None, None) => {}
            }
        }
        // From the back, so that indices stay true.
        ended.sort_by_key(|end| std::cmp::Reverse(end.0));
        let end = |(index, end)| match end {
            Ok(reason) => {
                let job = self.queue.finish(index, &mut self.pool);
                Event::Finished { id: job.id, reason, usage: job.usage }
            }
            Err(error) => {
                let id = self.queue.release(index, &mut self.pool).job.id;
                Event::Failed { id, error }
            }
        };
        ended.into_iter().map(end).collect()
    }

    /// Counts what the step took.
    fn count(&mut self, batch: &Batch, seconds: Seconds) {
        let Seconds { forward_seconds, draft_seconds } = seconds;
        let mut prefill_rows = 0;
        for segment in &batch.segments {
            let usage = &mut self.queue.active[segment.sequence].job.usage;
            if segment.kind == SegmentKind::Prefill {
                prefill_rows += segment.count;
                usage.prefill_seconds += forward_seconds;
            } else {
                usage.decode_seconds += forward_seconds + draft_seconds;
            }
        }
        let prefill_seconds = forward_seconds * prefill_rows as f64 / batch.tokens.len() as f64;
        self.pace.observe(prefill_rows, forward_seconds);
        self.counters.steps += 1;
        self.counters.prompt_tokens_computed += prefill_rows as u64;
        self.counters.prefill_seconds += prefill_seconds;
        self.counters.decode_seconds += forward_seconds - prefill_seconds + draft_seconds;
    }

    /// Keeps sequences that are now where later prompts may want to begin. What failed is never kept.
    fn take_checkpoints(&mut self, failed: &BTreeSet<usize>) {
        for (index, active) in self.queue.active.iter_mut().enumerate() {
            if active.rows == 0 || failed.contains(&index) {
                continue;
            }
            if let Some(worth) = active.passed_stops() {
                self.pool.cache.insert(active.held(), active.sequence.fork(), worth);
            }
        }
    }
}

/// What a step took.
#[derive(Clone, Copy)]
struct Seconds {
    forward_seconds: f64,
    draft_seconds: f64,
}

/// Events of requests that continue: prompt progress first, then tokens.
fn events_of(outcomes: Vec<Outcome>) -> Vec<Event> {
    let read = outcomes.iter().filter_map(|outcome| {
        let (done, total, cached) = outcome.read?;
        Some(Event::Prefill { id: outcome.id, done, total, cached })
    });
    let mut events: Vec<Event> = read.collect();
    for Outcome { id, drawn, .. } in outcomes {
        events.extend(drawn.into_iter().map(|sampled| Event::Token { id, sampled }));
    }
    events
}
