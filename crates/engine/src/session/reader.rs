//! One answer as it arrives: the engine's events become thinking, words and tool calls.

use std::sync::Arc;

use grammar::ConstraintError;
use text::{AnswerDecoder, ModelText, Piece};

use crate::{Error, Event, FinishReason, Result, Sampled, Usage};

/// What is new of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// So much of the prompt is read.
    Prefill {
        /// Tokens that are in.
        done: usize,
        /// All tokens.
        total: usize,
        /// Tokens that were taken from the prefix cache.
        cached: usize,
    },
    /// More of the answer, and the tokens behind its words if log-probabilities were requested.
    Piece(Piece, Vec<TokenLogprob>),
    /// The answer is complete.
    Finished(Ending),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Why.
    pub reason: Finish,
    /// The stop text that ended it.
    pub stop_text: Option<String>,
    /// What it took. What the model said behind the end of the answer does not count.
    pub usage: Usage,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop text came.
    Stop,
    /// It reached its longest length, or the context is full.
    Length,
    /// The model waits for the results of tools.
    ToolCalls,
}

/// One token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenText,
    /// Its log-probability.
    pub logprob: f32,
    /// The likeliest tokens in its place.
    pub top: Vec<(TokenText, f32)>,
}

/// A token as text, and as the bytes it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenText {
    /// With replacement characters where its bytes are no text.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A whole answer: what its updates add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WholeAnswer {
    /// What was thought.
    pub reasoning: String,
    /// What was said.
    pub content: String,
    /// Which tools were called.
    pub tool_calls: Vec<WholeCall>,
    /// The tokens behind the text, if log-probabilities were requested.
    pub logprobs: Vec<TokenLogprob>,
    /// `None` before the end.
    pub ending: Option<Ending>,
}

/// A whole call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WholeCall {
    /// The model's own id of the call, where its format has one.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

/// Reads one answer from the events of its request.
#[derive(Debug)]
pub struct AnswerReader {
    text: Arc<ModelText>,
    decoder: AnswerDecoder,
    /// Whether the answer ends with its first call of a tool.
    calls_once: bool,
    /// The field that its grammar is from, if it has one.
    grammar_field: Option<String>,
    completion_tokens: usize,
    reasoning_tokens: usize,
    has_called: bool,
    /// Whether its only call is complete.
    ended_by_call: bool,
    stop_text: Option<String>,
    /// Tokens whose text is not out yet.
    pending_logprobs: Vec<TokenLogprob>,
}

impl Update {
    /// Takes in the update that follows, or hands it back if it is of another kind. Of the prompt only the last word
    /// counts.
    pub fn join(&mut self, next: Update) -> Option<Update> {
        use Piece::{Content, Reasoning, ToolArguments};
        match (&mut *self, next) {
            (Update::Piece(Reasoning(text), _), Update::Piece(Reasoning(more), _)) => {
                text.push_str(&more);
            }
            (Update::Piece(Content(text), tokens), Update::Piece(Content(more), further)) => {
                text.push_str(&more);
                tokens.extend(further);
            }
            (
                Update::Piece(ToolArguments { index, json }, _),
                Update::Piece(ToolArguments { index: same, json: more }, _),
            ) if *index == same => json.push_str(&more),
            (last @ Update::Prefill { .. }, next @ Update::Prefill { .. }) => *last = next,
            (_, next) => return Some(next),
        }
        None
    }
}

impl WholeAnswer {
    /// Adds what is new.
    pub fn add(&mut self, update: Update) {
        match update {
            Update::Prefill { .. } | Update::Piece(Piece::ToolEnd { .. }, _) => {}
            Update::Piece(Piece::Reasoning(text), _) => self.reasoning.push_str(&text),
            Update::Piece(Piece::Content(text), logprobs) => {
                self.content.push_str(&text);
                self.logprobs.extend(logprobs);
            }
            Update::Piece(Piece::ToolBegin { id, name, .. }, _) => {
                self.tool_calls.push(WholeCall { id, name, arguments: String::new() });
            }
            Update::Piece(Piece::ToolArguments { json, .. }, _) => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(&json);
                }
            }
            Update::Finished(ending) => self.ending = Some(ending),
        }
    }
}

impl AnswerReader {
    pub(super) fn new(
        text: &Arc<ModelText>,
        decoder: AnswerDecoder,
        calls_once: bool,
        grammar_field: Option<String>,
    ) -> AnswerReader {
        AnswerReader {
            text: Arc::clone(text),
            decoder,
            calls_once,
            grammar_field,
            completion_tokens: 0,
            reasoning_tokens: 0,
            has_called: false,
            ended_by_call: false,
            stop_text: None,
            pending_logprobs: Vec::new(),
        }
    }

    /// Whether only [`Update::Finished`] is still to come: the request can be cancelled.
    pub fn has_ended(&self) -> bool {
        self.ended_by_call || self.stop_text.is_some()
    }

    /// What an event of the request adds to the answer. An error is its end.
    pub fn take(&mut self, event: Event) -> Result<Vec<Update>> {
        match event {
            Event::Prefill { done, total, cached, .. } => {
                Ok(vec![Update::Prefill { done, total, cached }])
            }
            Event::Token { .. } if self.has_ended() => Ok(Vec::new()),
            Event::Token { sampled, .. } => self.token(&sampled),
            Event::Finished { reason, usage, .. } => self.finish(reason, usage),
            Event::Failed { error, .. } => Err(self.of_its_field(error)),
        }
    }

    fn token(&mut self, sampled: &Sampled) -> Result<Vec<Update>> {
        self.completion_tokens += 1;
        if self.decoder.is_reasoning() {
            self.reasoning_tokens += 1;
        }
        // Tokens of thinking are not shown.
        if let Some(logprob) = sampled.logprob.filter(|_| !self.decoder.is_reasoning()) {
            let token = self.token_text(sampled.token);
            let top = sampled.top.iter().map(|&(id, logprob)| (self.token_text(id), logprob));
            let top = top.collect();
            self.pending_logprobs.push(TokenLogprob { token, logprob, top });
        }
        let pieces = self.decoder.push(sampled.token)?;
        let updates = self.updates(pieces);
        self.stop_text = self.decoder.stop().map(str::to_owned);
        Ok(updates)
    }

    /// The end, and what was held back until it.
    fn finish(&mut self, reason: FinishReason, usage: Usage) -> Result<Vec<Update>> {
        let mut updates = Vec::new();
        if !self.has_ended() {
            let pieces = self.decoder.finish(reason == FinishReason::Stop)?;
            updates = self.updates(pieces);
            self.stop_text = self.decoder.stop().map(str::to_owned);
        }
        let logprobs = std::mem::take(&mut self.pending_logprobs);
        // Those of a stop text or behind a call belong to no text that is shown.
        if !logprobs.is_empty() && self.stop_text.is_none() && !self.has_called {
            updates.push(Update::Piece(Piece::Content(String::new()), logprobs));
        }
        let reason = match reason {
            _ if self.stop_text.is_some() => Finish::Stop,
            _ if self.ended_by_call => Finish::ToolCalls,
            FinishReason::Length => Finish::Length,
            FinishReason::Stop | FinishReason::Cancelled if self.has_called => Finish::ToolCalls,
            FinishReason::Stop | FinishReason::Cancelled => Finish::Stop,
        };
        let usage = Usage {
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.reasoning_tokens,
            accepted_drafts: usage.accepted_drafts.min(self.completion_tokens),
            ..usage
        };
        let stop_text = self.stop_text.take();
        updates.push(Update::Finished(Ending { reason, stop_text, usage }));
        Ok(updates)
    }

    fn updates(&mut self, pieces: Vec<Piece>) -> Vec<Update> {
        let mut updates = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if self.ended_by_call {
                break;
            }
            let mut logprobs = Vec::new();
            match &piece {
                Piece::Content(text) => {
                    logprobs = std::mem::take(&mut self.pending_logprobs);
                    // White space behind thinking is no part of the text.
                    let is_shown = |token: &TokenText| {
                        text.starts_with(&token.text) || !token.text.trim().is_empty()
                    };
                    let hidden = logprobs.iter().take_while(|l| !is_shown(&l.token)).count();
                    logprobs.drain(..hidden);
                }
                _ => self.pending_logprobs.clear(),
            }
            self.has_called |= matches!(piece, Piece::ToolBegin { .. });
            self.ended_by_call = self.calls_once && matches!(piece, Piece::ToolEnd { .. });
            updates.push(Update::Piece(piece, logprobs));
        }
        updates
    }

    fn token_text(&self, id: u32) -> TokenText {
        let bytes = self.text.tokenizer.token_bytes(id).unwrap_or_default();
        TokenText { text: String::from_utf8_lossy(&bytes).into_owned(), bytes }
    }

    /// An error that the request's grammar is to blame for, said of its field.
    fn of_its_field(&mut self, error: Error) -> Error {
        match (error, self.grammar_field.take()) {
            (
                Error::Constraint(
                    error @ (ConstraintError::Stuck | ConstraintError::Failed { .. }),
                ),
                Some(field),
            ) => Error::Field { field, reason: error.to_string() },
            (error, _) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_of_one_kind_are_joined() {
        #[track_caller]
        fn check(first: Update, next: Update, expect: &[Update]) {
            let mut joined = vec![first];
            let rest = joined[0].join(next);
            joined.extend(rest);
            assert_eq!(joined, expect);
        }
        let prefill = |done| Update::Prefill { done, total: 9, cached: 1 };
        let say = |text: &str| Update::Piece(Piece::Content(text.to_owned()), Vec::new());
        let think = |text: &str| Update::Piece(Piece::Reasoning(text.to_owned()), Vec::new());
        let arguments = |index, json: &str| {
            Update::Piece(Piece::ToolArguments { index, json: json.to_owned() }, Vec::new())
        };
        check(prefill(2), prefill(4), &[prefill(4)]);
        check(say("a"), say("b"), &[say("ab")]);
        check(think("a"), think("b"), &[think("ab")]);
        check(think("a"), say("b"), &[think("a"), say("b")]);
        check(arguments(0, "{"), arguments(0, "}"), &[arguments(0, "{}")]);
        check(arguments(0, "{"), arguments(1, "}"), &[arguments(0, "{"), arguments(1, "}")]);
    }
}
