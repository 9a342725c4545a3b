//! A loaded model and its session: conversations in, answers out, piece by piece.
//!
//! Shared by one-shot answers and conversations. It knows nothing of terminals: updates go to a sink.

use std::time::Instant;

use anyhow::{Context, Result};
use engine::session::{AnswerRequest, Ending, Finish, Input, Session, Update, WholeAnswer};
use engine::{Engine, Event, Usage};
use serde_json::{Value, json};
use text::{ChatRequest, Message, Prompt};

use crate::args::SamplingArgs;
use crate::interrupt::Answering;
use crate::invocation::{self, Invocation, OpenModel, SwapWatch};
use crate::report::Advised;
use crate::size;

/// A model that can hold a conversation.
pub(crate) struct Speaker {
    /// As the user named it.
    pub(crate) name: String,
    engine: Engine,
    /// Messages to prompts, and events to answers.
    pub(crate) session: Session,
    load_seconds: f64,
    /// What preparing a prompt may take.
    prompt_bytes: usize,
    swap: SwapWatch,
}

/// What encoding takes for each byte of text.
const ENCODE_BYTES: usize = 100;
/// What a prompt takes for each byte of its text: the text, and a token of four bytes for it at most.
const PROMPT_BYTES: usize = 5;
/// How many copies of its messages there are in addition: as they are kept, and as values.
const MESSAGES_COPIES: usize = 3;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The answer itself, and what the model thought before.
    pub(crate) whole: WholeAnswer,
    /// Whether Ctrl-C ended it.
    pub(crate) is_interrupted: bool,
    /// What the engine did: rates count what the model said behind a stop text too.
    usage: Usage,
    /// Tokens of the prompt that were read: all that were not known from before, unless it was interrupted.
    prefilled: usize,
    seed: u64,
}

/// What a speaker will be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// One prompt.
    Prompt,
    /// Prompts that each begin with the one before.
    Conversation,
}

impl Speaker {
    /// Reads the side files and loads the weights.
    pub(crate) fn load(
        invocation: &Invocation,
        model: &OpenModel,
        occasion: Occasion,
    ) -> Result<Speaker> {
        let start = Instant::now();
        // First what is quick and may fail.
        let mut text = model.text()?;
        if text.template.is_none() {
            tracing::warn!(
                "{} has no chat template: it continues the text as it is, and may not answer it",
                model.name
            );
        }
        let pair = match occasion {
            Occasion::Prompt => invocation.plan(model)?,
            Occasion::Conversation => invocation.plan_conversation(model)?,
        };
        text.set_context(pair.plan.context);
        let prompt_bytes = usize::try_from(pair.plan.request_bytes()).unwrap_or(usize::MAX);
        let engine = invocation.load_pair(model, pair)?;
        let load_seconds = start.elapsed().as_secs_f64();
        let (name, swap) = (model.name.clone(), SwapWatch::start());
        let session = Session::new(&engine, text);
        Ok(Speaker { name, engine, session, load_seconds, prompt_bytes, swap })
    }

    /// Ends what was recorded.
    pub(crate) fn finish(&self) -> Result<()> {
        invocation::finish(self.engine.runner())
    }

    /// Positions a conversation may have.
    pub(crate) fn context(&self) -> usize {
        self.session.context
    }

    /// What may be read of a conversation, so that preparing it stays within what is planned.
    pub(crate) fn conversation_bytes(&self) -> usize {
        self.prompt_bytes / MESSAGES_COPIES
    }

    /// The prompt of a conversation, and how much of it the next turn will likely begin with. One that is far too long is
    /// refused before it takes memory and time.
    fn prompt(&self, chat: &ChatRequest) -> Result<(Prompt, usize)> {
        let context = self.context();
        let (text, request_bytes) = (&self.session.text, chat.held_bytes());
        let held = request_bytes.saturating_mul(MESSAGES_COPIES);
        let is_room = |bytes: usize| held.saturating_add(bytes) <= self.prompt_bytes;
        let too_long = || {
            let message = format!(
                "the prompt has {}, far more than a context of {context} tokens holds",
                size::bytes(request_bytes as u64)
            );
            Advised::new(message, "a shorter prompt, or a larger --context")
        };
        if !is_room(0) {
            return Err(too_long().into());
        }
        let rendered = match text.rendered(chat, &mut |bytes| is_room(bytes)) {
            Err(text::Error::NoMemory { .. }) => return Err(too_long().into()),
            rendered => rendered?,
        };
        // So many are encoded that the hint is exact for a prompt that is a little too long.
        let most = context.saturating_mul(2).max(4096);
        self.session.check_length(&rendered, most)?;
        if !is_room(rendered.len().saturating_mul(ENCODE_BYTES)) {
            return Err(too_long().into());
        }
        let prompt_bytes = rendered.len().saturating_mul(PROMPT_BYTES);
        let grant = &mut |bytes: usize| is_room(bytes.saturating_add(prompt_bytes));
        let prompt = match self.session.prompt_of_chat(chat, rendered, most, grant) {
            Err(engine::Error::Text(text::Error::NoMemory { .. })) => return Err(too_long().into()),
            prompt => prompt?,
        };
        let stable = match self.engine.runner().options().checkpoints {
            0 => 0,
            _ => text.stable_prefix(chat, &prompt, grant),
        };
        Ok((prompt, stable))
    }

    /// Answers a conversation. Ctrl-C ends the answer early; an error of the sink ends it at once.
    pub(crate) fn answer(
        &mut self,
        messages: &[Message],
        choices: &SamplingArgs,
        sink: &mut dyn FnMut(&Update) -> Result<()>,
    ) -> Result<Answer> {
        let answering = Answering::begin();
        let mut request = AnswerRequest::new(Input::Chat(Vec::new()));
        request.max_tokens = choices.max_tokens;
        request.sampling = choices.overrides();
        request.stop.clone_from(&choices.stop);
        request.thinking = choices.enable_thinking();
        let chat = request.take_chat(messages.iter().cloned());
        let (prompt, stable) = self.prompt(&chat)?;
        tracing::debug!("prompt of {} tokens: {:?}", prompt.tokens.len(), prompt.text);
        // The next turn can begin where this one's question ends: templates leave thinking out of the past.
        let keeps_checkpoints = self.engine.runner().options().checkpoints > 0;
        let checkpoint = keeps_checkpoints.then_some(stable);
        let answers = self.session.begin(&request, &prompt, checkpoint)?;
        let (request, mut reader) = answers.into_iter().next().context("no answer was begun")?;
        let seed = request.sampling.seed;
        let id = self.engine.submit(request)?;
        sink(&Update::Prefill { done: 0, total: prompt.tokens.len(), cached: 0 })?;

        let mut answer = Answer {
            whole: WholeAnswer::default(),
            is_interrupted: false,
            usage: Usage::default(),
            prefilled: 0,
            seed,
        };
        let mut is_cancelled = false;
        loop {
            if answering.is_stopped() && !is_cancelled {
                self.engine.cancel(id);
                (answer.is_interrupted, is_cancelled) = (true, true);
            }
            for event in self.engine.step()? {
                match &event {
                    // After a cancel, tokens of the same step are not wanted any more.
                    Event::Token { .. } if is_cancelled => continue,
                    Event::Prefill { done, cached, .. } => answer.prefilled = done - cached,
                    Event::Finished { usage, .. } => {
                        answer.usage = *usage;
                        self.swap.check();
                    }
                    _ => {}
                }
                for update in reader.take(event)? {
                    sink(&update)?;
                    answer.whole.add(update);
                }
                if answer.whole.ending.is_some() {
                    return Ok(answer);
                }
                if reader.has_ended() && !is_cancelled {
                    self.engine.cancel(id);
                    is_cancelled = true;
                }
            }
            anyhow::ensure!(!self.engine.is_idle(), "the engine lost the request");
        }
    }
}

impl Answer {
    fn finish_reason(&self) -> &'static str {
        match &self.whole.ending {
            _ if self.is_interrupted => "interrupted",
            Some(Ending { reason: Finish::Length, .. }) => "length",
            _ => "stop",
        }
    }

    /// Tokens a second while the prompt was read.
    fn prefill_rate(&self) -> f64 {
        rate(self.prefilled, self.usage.prefill_seconds)
    }

    /// Tokens a second after that. The first token comes with the prompt.
    fn decode_rate(&self) -> f64 {
        rate(self.usage.completion_tokens.saturating_sub(1), self.usage.decode_seconds)
    }

    /// One line on what it took.
    pub(crate) fn summary(&self, name: &str) -> String {
        let memory = size::bytes(machine::memory::usage().peak_resident_bytes);
        let prompt = paced(self.prefilled, "prompt token", self.prefill_rate());
        let answer = paced(self.usage.completion_tokens, "answer token", self.decode_rate());
        format!("{name}: {prompt}, {answer}, {memory} memory")
    }

    /// The same and the answer, for programs.
    pub(crate) fn to_json(&self, speaker: &Speaker) -> Value {
        let WholeAnswer { reasoning, content, .. } = &self.whole;
        let reasoning = (!reasoning.is_empty()).then_some(reasoning);
        json!({
            "model": speaker.name,
            "text": content,
            "reasoning": reasoning,
            "finish_reason": self.finish_reason(),
            "seed": self.seed,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "total_tokens": self.usage.prompt_tokens + self.usage.completion_tokens,
            },
            "timings": {
                "load_seconds": speaker.load_seconds,
                "prefill_seconds": self.usage.prefill_seconds,
                "prefill_tok_s": self.prefill_rate(),
                "decode_seconds": self.usage.decode_seconds,
                "decode_tok_s": self.decode_rate(),
            },
            "peak_bytes": machine::memory::usage().peak_resident_bytes,
            "memory": machine::memory::usage(),
        })
    }
}

/// So many tokens, and how fast, where there were enough of them to measure it.
fn paced(tokens: usize, one: &str, rate: f64) -> String {
    let tokens = size::counted(tokens, one);
    if rate > 0.0 { format!("{tokens} at {rate:.0} tok/s") } else { tokens }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_reported_where_there_is_one() {
        #[track_caller]
        fn check(tokens: usize, rate: f64, expect: &str) {
            assert_eq!(paced(tokens, "answer token", rate), expect);
        }
        check(0, 0.0, "0 answer tokens");
        check(1, 0.0, "1 answer token");
        check(1, 20.4, "1 answer token at 20 tok/s");
        check(64, 20.4, "64 answer tokens at 20 tok/s");
    }
}
