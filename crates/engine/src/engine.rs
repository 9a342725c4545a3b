//! Requests in, tokens out. A step is schedule → forward → sample → emit.
//!
//! All requests that decode advance by one token a step; beside them one prompt advances by a chunk.
//! What else is in a step never changes a request's tokens: rows are computed alike in any company,
//! and the random draw of a token depends on the request's seed and the token's number alone.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use model::{Batch, Logits, SegmentKind};
use state::Sequence;

use crate::sampler::{Sampled, SamplingParams, Scratch, TokenCounts, sample};
use crate::{Error, Result, Runner};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens before the answer.
    pub prompt: Vec<u32>,
    /// The longest answer.
    pub max_tokens: usize,
    /// Tokens that end it; they are not part of it.
    pub stop_tokens: BTreeSet<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
}

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What happened in a step.
#[derive(Debug)]
pub enum Event {
    /// A prompt advanced.
    Prefill {
        /// Whose.
        id: RequestId,
        /// Tokens of it that are in.
        done: usize,
        /// All its tokens.
        total: usize,
    },
    /// A token of an answer.
    Token {
        /// Whose.
        id: RequestId,
        /// The token, and its probabilities if they were asked for.
        sampled: Sampled,
    },
    /// An answer is complete.
    Finished {
        /// Whose.
        id: RequestId,
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// A request cannot go on; the others do.
    Failed {
        /// Whose.
        id: RequestId,
        /// Why.
        error: Error,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token came.
    Stop,
    /// It reached its longest length, or the context is full.
    Length,
    /// Somebody called [`Engine::cancel`].
    Cancelled,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Time in steps that took in the prompt.
    pub prefill_seconds: f64,
    /// Time in steps that decoded.
    pub decode_seconds: f64,
}

struct Active {
    id: RequestId,
    request: Request,
    sequence: Sequence,
    counts: TokenCounts,
    /// Tokens of the prompt that are in.
    prefilled: usize,
    /// The last token, not yet in the sequence.
    pending: Option<u32>,
    usage: Usage,
}

/// Serves requests with a [`Runner`].
pub struct Engine {
    runner: Runner,
    waiting: VecDeque<(RequestId, Request)>,
    active: Vec<Active>,
    cancelled: BTreeSet<RequestId>,
    next_id: u64,
    scratch: Scratch,
}

impl Engine {
    /// An engine without requests.
    pub fn new(runner: Runner) -> Engine {
        Engine {
            runner,
            waiting: VecDeque::new(),
            active: Vec::new(),
            cancelled: BTreeSet::new(),
            next_id: 0,
            scratch: Scratch::default(),
        }
    }

    /// The model.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Queues a request, unless it can never be served.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        request.sampling.validate()?;
        let (vocab, context) = (self.runner.spec().vocab, self.runner.options().context);
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(Error::Token { token, vocab });
        }
        if request.prompt.len() >= context {
            return Err(Error::Context { needed: request.prompt.len() + 1, context });
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Ends a request at the next step.
    pub fn cancel(&mut self, id: RequestId) {
        self.cancelled.insert(id);
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// One step: schedule, forward, sample, emit.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = self.admit();
        let batch = self.schedule();
        if batch.segments.is_empty() {
            return Ok(events);
        }
        let started = Instant::now();
        let sampled = self.forward_and_sample(&batch)?;
        self.emit(&batch, sampled, started.elapsed().as_secs_f64(), &mut events);
        Ok(events)
    }

    /// Lets go of what was cancelled and takes in what waits, as far as there is room.
    fn admit(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for id in std::mem::take(&mut self.cancelled) {
            let reason = FinishReason::Cancelled;
            if let Some(index) = self.active.iter().position(|active| active.id == id) {
                let usage = self.active.remove(index).usage;
                events.push(Event::Finished { id, reason, usage });
            } else if let Some(index) = self.waiting.iter().position(|waiting| waiting.0 == id) {
                self.waiting.remove(index);
                events.push(Event::Finished { id, reason, usage: Usage::default() });
            }
        }
        while self.active.len() < self.runner.options().sequences {
            let Some((id, request)) = self.waiting.pop_front() else { break };
            match self.runner.sequence() {
                Ok(sequence) => {
                    let mut counts = TokenCounts::new();
                    counts.push_prompt(&request.prompt);
                    let usage = Usage { prompt_tokens: request.prompt.len(), ..Usage::default() };
                    let (prefilled, pending) = (0, None);
                    let active =
                        Active { id, request, sequence, counts, prefilled, pending, usage };
                    self.active.push(active);
                }
                Err(error) => events.push(Event::Failed { id, error }),
            }
        }
        events
    }

    /// One token of every answer, and a chunk of the first prompt that is not in yet.
    fn schedule(&self) -> Batch {
        let mut batch = Batch::default();
        let mut prefilling = false;
        for (index, active) in self.active.iter().enumerate() {
            let position = active.sequence.len();
            if let Some(token) = active.pending {
                batch.push(index, position, &[token], SegmentKind::Decode, Logits::Last);
            } else if !prefilling {
                prefilling = true;
                let left = &active.request.prompt[active.prefilled..];
                let count = self.runner.next_chunk(position, left.len(), Logits::Last);
                let logits = if count == left.len() { Logits::Last } else { Logits::None };
                batch.push(index, position, &left[..count], SegmentKind::Prefill, logits);
            }
        }
        batch
    }

    /// Runs the batch; the result has the sampled token of each segment that wanted logits, and an error
    /// for each that could not be computed.
    fn forward_and_sample(&mut self, batch: &Batch) -> Result<Vec<(usize, Result<Sampled>)>> {
        let wanting: Vec<usize> = batch
            .segments
            .iter()
            .filter(|segment| segment.logits == Logits::Last)
            .map(|segment| segment.sequence)
            .collect();
        let mut sampled = Vec::with_capacity(wanting.len());
        // Sequences and what sampling needs are different parts of the active requests.
        let (mut sequences, choosers): (Vec<&mut Sequence>, Vec<_>) = self
            .active
            .iter_mut()
            .map(|a| (&mut a.sequence, (&a.request.sampling, &a.counts, a.usage.completion_tokens)))
            .unzip();
        let scratch = &mut self.scratch;
        let failures = self.runner.forward(batch, &mut sequences, |row, logits| {
            let index = wanting[row];
            let (params, counts, position) = choosers[index];
            let outcome = sample(logits, counts, params, position as u64, scratch);
            sampled.push((index, outcome.map_err(Error::from)));
        })?;
        sampled.extend(failures.into_iter().map(|failed| (failed.sequence, Err(failed.error))));
        Ok(sampled)
    }

    /// Records what the step did and tells it.
    fn emit(
        &mut self,
        batch: &Batch,
        sampled: Vec<(usize, Result<Sampled>)>,
        seconds: f64,
        events: &mut Vec<Event>,
    ) {
        for segment in &batch.segments {
            let active = &mut self.active[segment.sequence];
            if segment.kind == SegmentKind::Prefill {
                active.prefilled += segment.count;
                active.usage.prefill_seconds += seconds;
                let (done, total) = (active.prefilled, active.request.prompt.len());
                events.push(Event::Prefill { id: active.id, done, total });
            } else {
                active.usage.decode_seconds += seconds;
            }
        }
        let context = self.runner.options().context;
        let mut ended: Vec<usize> = Vec::new();
        for (index, outcome) in sampled {
            let active = &mut self.active[index];
            let id = active.id;
            let token = match outcome {
                Ok(sampled) => {
                    let token = sampled.token;
                    if !active.request.stop_tokens.contains(&token) {
                        events.push(Event::Token { id, sampled });
                    }
                    token
                }
                Err(error) => {
                    events.push(Event::Failed { id, error });
                    ended.push(index);
                    continue;
                }
            };
            let reason = if active.request.stop_tokens.contains(&token) {
                Some(FinishReason::Stop)
            } else {
                active.usage.completion_tokens += 1;
                active.counts.push(token);
                active.pending = Some(token);
                let full = active.sequence.len() >= context;
                let long = active.usage.completion_tokens >= active.request.max_tokens;
                (full || long).then_some(FinishReason::Length)
            };
            if let Some(reason) = reason {
                events.push(Event::Finished { id, reason, usage: active.usage });
                ended.push(index);
            }
        }
        ended.sort_unstable();
        for index in ended.into_iter().rev() {
            self.active.remove(index);
        }
    }
}
