//! The answers to one ask as they arrive: tokens become text, thinking and tool calls.
//!
//! One [`Answers`] serves all choices of a request. It counts what each took, ends an answer at its
//! stop text, and turns the engine's reasons into the few that dialects know. Dropping it cancels
//! whatever is still under way and frees the request's place.

use std::sync::Arc;

use engine::{Event, FinishReason, Sampled};
use text::{AnswerDecoder, ModelText, Piece};
use tokio::sync::OwnedSemaphorePermit;

use crate::ask::identifier;
use crate::budget::{Denied, Share};
use crate::desk::{Inlet, Told};
use crate::error::ApiError;
use crate::metrics::Metrics;

/// What one token with its log-probability takes in an answer that is collected, and in its JSON.
const LOGPROB_BYTES: usize = 1200;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// So much of the prompt is read.
    Prefill { done: usize, total: usize, cached: usize },
    /// Thinking.
    Reasoning(String),
    /// What is said, with the tokens behind it if log-probabilities were asked for.
    Content { text: String, logprobs: Vec<TokenLogprob> },
    /// A tool is called.
    ToolBegin { index: usize, id: String, name: String },
    /// More of the JSON text of its arguments.
    ToolArguments { index: usize, json: String },
    /// Its arguments are complete.
    ToolEnd { index: usize },
    /// The answer is complete.
    Finished(Ending),
    /// It cannot go on.
    Failed(ApiError),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) reason: Finish,
    /// The stop text that ended it.
    pub(crate) stop_text: Option<String>,
    pub(crate) usage: Usage,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended it, or a stop text came.
    Stop,
    /// It reached its longest length, or the context is full.
    Length,
    /// The model waits for the results of tools.
    ToolCalls,
}

/// What an answer took.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    /// Those of them that were remembered.
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Those of them that were thinking.
    pub(crate) reasoning_tokens: usize,
    /// Those of them that were drafted before the model said them.
    pub(crate) accepted_drafts: usize,
    /// Drafted tokens that the model did not say.
    pub(crate) rejected_drafts: usize,
    pub(crate) prefill_seconds: f64,
    pub(crate) decode_seconds: f64,
    pub(crate) queue_seconds: f64,
}

/// One token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    pub(crate) token: TokenText,
    pub(crate) logprob: f32,
    /// The likeliest tokens in its place.
    pub(crate) top: Vec<(TokenText, f32)>,
}

/// A token as text, and as the bytes it stands for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenText {
    pub(crate) id: u32,
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
}

/// A whole answer, for who does not stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Whole {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) tool_calls: Vec<WholeCall>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) ending: Option<Ending>,
}

/// A whole call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WholeCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON text of an object.
    pub(crate) arguments: String,
}

/// All answers to one ask.
pub(crate) struct Answers {
    inlet: Inlet,
    voices: Vec<Voice>,
    text: Arc<ModelText>,
    metrics: Arc<Metrics>,
    /// Tokens of the prompt, the first if there are several.
    pub(crate) prompt_tokens: usize,
    started: std::time::Instant,
    /// The request's place and its share of memory; free again when all is told.
    held: (OwnedSemaphorePermit, Share),
}

/// How an answer is decoded.
pub(crate) struct Hearing {
    pub(crate) decoder: AnswerDecoder,
    pub(crate) prompt_tokens: usize,
    /// Whether it is the first to its prompt.
    pub(crate) is_first: bool,
    /// Whether it ends with its first call of a tool.
    pub(crate) calls_once: bool,
    /// The field that its grammar is from, if it has one.
    pub(crate) grammar_field: Option<String>,
}

/// One answer.
struct Voice {
    decoder: AnswerDecoder,
    is_first: bool,
    calls_once: bool,
    grammar_field: Option<String>,
    /// Nothing more of it is told: it called a tool, and may only once.
    is_told: bool,
    usage: Usage,
    has_called: bool,
    stop_text: Option<String>,
    is_over: bool,
    /// Tokens whose text is not out yet.
    pending_logprobs: Vec<TokenLogprob>,
    last_token: Option<std::time::Instant>,
}

impl Answers {
    /// Answers that were asked for at once.
    pub(crate) fn new(
        inlet: Inlet,
        hearings: Vec<Hearing>,
        text: Arc<ModelText>,
        metrics: Arc<Metrics>,
        held: (OwnedSemaphorePermit, Share),
    ) -> Answers {
        let prompt_tokens = hearings.first().map_or(0, |hearing| hearing.prompt_tokens);
        let voice = |hearing: Hearing| Voice {
            decoder: hearing.decoder,
            is_first: hearing.is_first,
            calls_once: hearing.calls_once,
            grammar_field: hearing.grammar_field,
            is_told: false,
            usage: Usage { prompt_tokens: hearing.prompt_tokens, ..Usage::default() },
            has_called: false,
            stop_text: None,
            is_over: false,
            pending_logprobs: Vec::new(),
            last_token: None,
        };
        metrics.requests_begun.add(1);
        Answers {
            inlet,
            voices: hearings.into_iter().map(voice).collect(),
            text,
            metrics,
            prompt_tokens,
            started: std::time::Instant::now(),
            held,
        }
    }

    /// How many answers there are.
    pub(crate) fn count(&self) -> usize {
        self.voices.len()
    }

    /// The next parts of one of the answers; `None` when all have ended. What has piled up meanwhile comes
    /// together. Safe to cancel: nothing is lost between two calls.
    pub(crate) async fn next(&mut self) -> Option<(usize, Vec<Part>)> {
        loop {
            if self.voices.iter().all(|voice| voice.is_over) {
                return None;
            }
            let Some(told) = self.inlet.next().await else {
                // The engine is gone, which a client learns once for each answer.
                let choice = self.voices.iter().position(|voice| !voice.is_over)?;
                self.voices[choice].is_over = true;
                let error =
                    ApiError::unavailable("shutting_down", "the server is shutting down", 5);
                return Some((choice, vec![Part::Failed(error)]));
            };
            let choice = told.choice;
            let mut parts = Vec::new();
            self.hear(told, &mut parts);
            // With one answer, all that is there; with several, one after the other.
            while self.voices.len() == 1
                && let Some(told) = self.inlet.try_next()
            {
                self.hear(told, &mut parts);
            }
            if !parts.is_empty() {
                return Some((choice, merge(parts)));
            }
        }
    }

    /// Takes a share of memory for what a collected answer keeps of these parts: log-probabilities are many times as large
    /// as the text.
    pub(crate) fn keep(&mut self, parts: &[Part]) -> Result<(), ApiError> {
        let tokens = parts.iter().flat_map(|part| match part {
            Part::Content { logprobs, .. } => logprobs.as_slice(),
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
                           stream it, or ask for fewer";
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
    pub(crate) async fn collect(mut self) -> Result<(Vec<Whole>, Answers), ApiError> {
        let mut wholes = vec![Whole::default(); self.voices.len()];
        while let Some((choice, parts)) = self.next().await {
            self.keep(&parts)?;
            let whole = &mut wholes[choice];
            for part in parts {
                match part {
                    Part::Prefill { .. } | Part::ToolEnd { .. } => {}
                    Part::Reasoning(text) => whole.reasoning.push_str(&text),
                    Part::Content { text, logprobs } => {
                        whole.content.push_str(&text);
                        whole.logprobs.extend(logprobs);
                    }
                    Part::ToolBegin { id, name, .. } => {
                        whole.tool_calls.push(WholeCall { id, name, arguments: String::new() });
                    }
                    Part::ToolArguments { json, .. } => {
                        if let Some(call) = whole.tool_calls.last_mut() {
                            call.arguments.push_str(&json);
                        }
                    }
                    Part::Finished(ending) => whole.ending = Some(ending),
                    Part::Failed(error) => return Err(error),
                }
            }
        }
        Ok((wholes, self))
    }

    fn hear(&mut self, told: Told, parts: &mut Vec<Part>) {
        let choice = told.choice;
        let voice = &mut self.voices[choice];
        if voice.is_over {
            return;
        }
        match told.event {
            Event::Prefill { done, total, cached, .. } => {
                voice.usage.cached_tokens = cached;
                parts.push(Part::Prefill { done, total, cached });
            }
            // After a stop text, or the only call, just the end is awaited.
            Event::Token { .. } if voice.has_ended() => {}
            Event::Token { sampled, .. } => {
                let now = std::time::Instant::now();
                match voice.last_token.replace(now) {
                    None => self.metrics.first_token.observe(now - self.started),
                    Some(before) => self.metrics.between_tokens.observe(now - before),
                }
                if let Err(error) = voice.take(&sampled, &self.text, parts) {
                    voice.is_over = true;
                    parts.push(Part::Failed(error));
                } else if voice.has_ended() {
                    self.inlet.cancel(choice);
                }
            }
            Event::Finished { reason, usage, .. } => {
                voice.is_over = true;
                match voice.finish(reason, &usage, parts) {
                    Ok(ending) => {
                        self.metrics.count_ended(&ending, voice.is_first);
                        parts.push(Part::Finished(ending));
                    }
                    Err(error) => parts.push(Part::Failed(error)),
                }
            }
            Event::Failed { error, .. } => {
                voice.is_over = true;
                self.metrics.requests_failed.add(1);
                let error = ApiError::from(error);
                parts.push(Part::Failed(match &voice.grammar_field {
                    Some(field) => error.renamed("response_format", field),
                    None => error,
                }));
            }
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let left = self.voices.iter().filter(|voice| !voice.is_over).count();
        self.metrics.requests_cancelled.add(left as u64);
        self.metrics.whole_request.observe(self.started.elapsed());
    }
}

impl Voice {
    fn has_ended(&self) -> bool {
        self.is_told || self.stop_text.is_some()
    }

    /// The next token.
    fn take(
        &mut self,
        sampled: &Sampled,
        text: &ModelText,
        parts: &mut Vec<Part>,
    ) -> Result<(), ApiError> {
        self.usage.completion_tokens += 1;
        if self.decoder.is_reasoning() {
            self.usage.reasoning_tokens += 1;
        }
        // Tokens of thinking are not shown.
        if let Some(logprob) = sampled.logprob.filter(|_| !self.decoder.is_reasoning()) {
            let token = token_text(text, sampled.token);
            let top = sampled.top.iter().map(|&(id, logprob)| (token_text(text, id), logprob));
            self.pending_logprobs.push(TokenLogprob { token, logprob, top: top.collect() });
        }
        let decoded = self.decoder.push(sampled.token)?;
        self.say(decoded.pieces, parts);
        self.stop_text = self.decoder.stop().map(str::to_owned);
        Ok(())
    }

    /// The end, and what was held back until it.
    fn finish(
        &mut self,
        reason: FinishReason,
        usage: &engine::Usage,
        parts: &mut Vec<Part>,
    ) -> Result<Ending, ApiError> {
        if !self.has_ended() {
            let decoded = self.decoder.finish(reason == FinishReason::Stop)?;
            self.say(decoded.pieces, parts);
            self.stop_text = self.decoder.stop().map(str::to_owned);
        }
        let logprobs = std::mem::take(&mut self.pending_logprobs);
        // Those of a stop text or behind a call belong to no text that is shown.
        if !logprobs.is_empty() && self.stop_text.is_none() && !self.has_called {
            parts.push(Part::Content { text: String::new(), logprobs });
        }
        self.usage.cached_tokens = usage.cached_tokens;
        // What was said behind a stop text is no part of the answer.
        self.usage.accepted_drafts = usage.accepted_drafts.min(self.usage.completion_tokens);
        self.usage.rejected_drafts = usage.rejected_drafts;
        self.usage.prefill_seconds = usage.prefill_seconds;
        self.usage.decode_seconds = usage.decode_seconds;
        self.usage.queue_seconds = usage.queue_seconds;
        let reason = match reason {
            _ if self.stop_text.is_some() => Finish::Stop,
            _ if self.is_told => Finish::ToolCalls,
            FinishReason::Length => Finish::Length,
            FinishReason::Stop | FinishReason::Cancelled if self.has_called => Finish::ToolCalls,
            FinishReason::Stop | FinishReason::Cancelled => Finish::Stop,
        };
        let stop_text = self.stop_text.take();
        Ok(Ending { reason, stop_text, usage: self.usage.clone() })
    }

    fn say(&mut self, pieces: Vec<Piece>, parts: &mut Vec<Part>) {
        for piece in pieces {
            if self.is_told {
                return;
            }
            if !matches!(piece, Piece::Content(_)) {
                self.pending_logprobs.clear();
            }
            parts.push(match piece {
                Piece::Reasoning(text) => Part::Reasoning(text),
                Piece::Content(text) => {
                    let mut logprobs = std::mem::take(&mut self.pending_logprobs);
                    // White space behind thinking is no part of the text.
                    let is_shown = |token: &TokenText| {
                        text.starts_with(&token.text) || !token.text.trim().is_empty()
                    };
                    let hidden = logprobs.iter().take_while(|l| !is_shown(&l.token)).count();
                    logprobs.drain(..hidden);
                    Part::Content { text, logprobs }
                }
                Piece::ToolBegin { index, id, name } => {
                    self.has_called = true;
                    let id = id.unwrap_or_else(|| identifier("call_"));
                    Part::ToolBegin { index, id, name }
                }
                Piece::ToolArguments { index, json } => Part::ToolArguments { index, json },
                Piece::ToolEnd { index } => {
                    self.is_told = self.calls_once;
                    Part::ToolEnd { index }
                }
            });
        }
    }
}

fn token_text(text: &ModelText, id: u32) -> TokenText {
    let bytes = text.tokenizer.token_bytes(id).unwrap_or_default();
    TokenText { id, text: String::from_utf8_lossy(&bytes).into_owned(), bytes }
}

/// Joins neighbours of one kind; only the last word on the prompt counts.
fn merge(parts: Vec<Part>) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        match (merged.last_mut(), part) {
            (Some(Part::Reasoning(text)), Part::Reasoning(more)) => text.push_str(&more),
            (
                Some(Part::Content { text, logprobs }),
                Part::Content { text: more, logprobs: further },
            ) => {
                text.push_str(&more);
                logprobs.extend(further);
            }
            (
                Some(Part::ToolArguments { index, json }),
                Part::ToolArguments { index: same, json: more },
            ) if *index == same => json.push_str(&more),
            (Some(last @ Part::Prefill { .. }), part @ Part::Prefill { .. }) => *last = part,
            (_, part) => merged.push(part),
        }
    }
    merged
}
