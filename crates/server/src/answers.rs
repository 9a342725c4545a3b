//! The answers to one request as they arrive.
//!
//! One [`Answers`] serves all choices of a request: it reads each from the engine's events, ends an answer at its stop
//! text, and keeps the request's memory and metrics. Dropping it cancels whatever is still under way and frees the
//! request's place.

use std::sync::Arc;
use std::time::Instant;

use engine::session::{AnswerReader, Update, WholeAnswer};
use engine::{Event, Request};
use tokio::sync::OwnedSemaphorePermit;

use crate::budget::{Denied, Share};
use crate::engine_thread::{ChoiceEvent, EngineHandle, EventReceiver};
use crate::error::ApiError;
use crate::fields::Result;
use crate::metrics::Metrics;

/// What one token with its log-probability takes in an answer that is collected, and in its JSON.
const LOGPROB_BYTES: usize = 1200;

/// All answers to one request.
pub(crate) struct Answers {
    events: EventReceiver,
    answers: Vec<Answer>,
    metrics: Arc<Metrics>,
    /// Tokens of the prompt, the first if there are several.
    pub(crate) prompt_tokens: usize,
    started: Instant,
    /// The request's place and its share of memory; free again when all answers are written.
    held: (OwnedSemaphorePermit, Share),
}

/// One answer.
struct Answer {
    reader: AnswerReader,
    /// Whether it is the first to its prompt.
    is_first: bool,
    is_over: bool,
    last_token: Option<Instant>,
}

impl Answers {
    /// Queues the answers to each of several prompts.
    pub(crate) fn begin(
        engine: &EngineHandle,
        prompts: Vec<Vec<(Request, AnswerReader)>>,
        metrics: Arc<Metrics>,
        held: (OwnedSemaphorePermit, Share),
    ) -> Answers {
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        for (choice, (request, reader)) in
            prompts.into_iter().flat_map(|p| p.into_iter().enumerate())
        {
            requests.push(request);
            answers.push(Answer {
                reader,
                is_first: choice == 0,
                is_over: false,
                last_token: None,
            });
        }
        let prompt_tokens = requests.first().map_or(0, |request| request.prompt.len());
        let events = engine.submit(requests);
        metrics.requests_begun.add(1);
        Answers { events, answers, metrics, prompt_tokens, started: Instant::now(), held }
    }

    /// How many answers there are.
    pub(crate) fn count(&self) -> usize {
        self.answers.len()
    }

    /// What is new of one of the answers, an error as its end; `None` when all have ended. What has piled up meanwhile
    /// comes together. Safe to cancel: nothing is lost between two calls.
    pub(crate) async fn next(&mut self) -> Option<(usize, Vec<Result<Update>>)> {
        loop {
            if self.answers.iter().all(|answer| answer.is_over) {
                return None;
            }
            let Some(event) = self.events.next().await else {
                // The engine is gone, which a client learns once for each answer.
                let choice = self.answers.iter().position(|answer| !answer.is_over)?;
                self.answers[choice].is_over = true;
                let error =
                    ApiError::unavailable("shutting_down", "the server is shutting down", 5);
                return Some((choice, vec![Err(error)]));
            };
            let choice = event.choice;
            let mut updates = Vec::new();
            self.take(event, &mut updates);
            // With one answer, all that is there; with several, one after the other.
            while self.answers.len() == 1
                && let Some(event) = self.events.try_next()
            {
                self.take(event, &mut updates);
            }
            if !updates.is_empty() {
                return Some((choice, updates));
            }
        }
    }

    /// Takes a share of memory for what a collected answer keeps of these updates: log-probabilities are many times as
    /// large as the text.
    pub(crate) fn keep(&mut self, updates: &[Result<Update>]) -> Result<()> {
        let tokens = updates.iter().flat_map(|update| match update {
            Ok(Update::Piece(_, logprobs)) => logprobs.as_slice(),
            _ => &[],
        });
        let more: usize = tokens.map(|one| (1 + one.top.len()) * LOGPROB_BYTES).sum();
        let share = &mut self.held.1;
        if more == 0 {
            return Ok(());
        }
        let denied = |denied| {
            self.metrics.requests_refused.add(1);
            let message = "the log-probabilities of this answer take more memory than there is for requests: \
                           stream it, or request fewer";
            match denied {
                Denied::Now => {
                    let seconds = self.metrics.seconds_until_a_place();
                    ApiError::unavailable("memory_in_use", message, seconds)
                }
                Denied::Never => ApiError::bad_request("answer_too_large", message),
            }
        };
        share.resize(share.bytes().saturating_add(more)).map_err(denied)
    }

    /// All of all answers. What they hold is held by the second until it is dropped.
    pub(crate) async fn collect(mut self) -> Result<(Vec<WholeAnswer>, Answers)> {
        let mut wholes = vec![WholeAnswer::default(); self.answers.len()];
        while let Some((choice, updates)) = self.next().await {
            self.keep(&updates)?;
            for update in updates {
                wholes[choice].add(update?);
            }
        }
        Ok((wholes, self))
    }

    /// What an event adds to its answer, behind what came before.
    fn take(&mut self, event: ChoiceEvent, updates: &mut Vec<Result<Update>>) {
        let ChoiceEvent { choice, event } = event;
        let answer = &mut self.answers[choice];
        if answer.is_over {
            return;
        }
        let is_token = matches!(event, Event::Token { .. }) && !answer.reader.has_ended();
        if is_token {
            let now = Instant::now();
            match answer.last_token.replace(now) {
                None => self.metrics.first_token.observe(now - self.started),
                Some(before) => self.metrics.between_tokens.observe(now - before),
            }
        }
        let has_failed = matches!(event, Event::Failed { .. });
        match answer.reader.take(event) {
            Ok(more) => {
                if let Some(Update::Finished(ending)) = more.last() {
                    answer.is_over = true;
                    self.metrics.count_ended(ending, answer.is_first);
                } else if is_token && answer.reader.has_ended() {
                    self.events.cancel(choice);
                }
                more.into_iter().for_each(|update| push(updates, update));
            }
            Err(error) => {
                answer.is_over = true;
                self.metrics.requests_failed.add(u64::from(has_failed));
                updates.push(Err(error.into()));
            }
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let left = self.answers.iter().filter(|answer| !answer.is_over).count();
        self.metrics.requests_cancelled.add(left as u64);
        self.metrics.whole_request.observe(self.started.elapsed());
    }
}

/// Adds an update, joined to the one before if they are of one kind.
fn push(updates: &mut Vec<Result<Update>>, update: Update) {
    let rest = match updates.last_mut() {
        Some(Ok(last)) => last.join(update),
        _ => Some(update),
    };
    updates.extend(rest.map(Ok));
}
