//! The same answers with drafts and without, in turns, in one process.
//!
//! The clock runs from an answer's first token to its end, drafting included. Which comes first changes from pair to
//! pair. What the controller has learned stays, as it does in a server; the prefix cache does not.

use std::path::{Path, PathBuf};
use std::time::Instant;

use checkpoint::Checkpoint;
use engine::{Engine, Event, Request, SamplingParams, Usage};
use machine::facts::Facts;
use serde::Serialize;
use speculation::{LOG_HEADER, Oracle, Report as SpeculationReport, Speculation};
use text::ChatRequest;

use crate::{Error, Result};

/// Different prompts of noise.
const PROMPTS: usize = 3;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pairs of answers.
    pub count: usize,
    /// Share of drafts that are right, of a source that knows the answers.
    pub oracle: Option<f64>,
    /// Tokens that are drafted in every round, whether it pays or not; of several, each pair takes the next.
    pub fixed_draft: Vec<usize>,
    /// Tokens of a draft at most.
    pub most_drafted: Option<usize>,
    /// Tokens that a draft head drafts at once, if fewer than it could.
    pub head_drafts: Option<usize>,
    /// Where a line for every round goes.
    pub rounds: Option<PathBuf>,
}

/// What came out.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Threads that computed.
    pub threads: usize,
    /// Positions of the context.
    pub context: usize,
    /// Share of the experts that are in memory.
    pub kept_share: f64,
    /// In the order they were run.
    pub pairs: Vec<Pair>,
    /// Median of the pairs' ratios.
    pub ratio: f64,
    /// Drafted tokens that were right.
    pub accepted_drafts: usize,
    /// Drafted tokens that were wrong.
    pub rejected_drafts: usize,
    /// Tokens a verified draft was worth, the model's own included.
    pub tokens_per_pass: f64,
    /// What the sources and the controller say.
    pub speculation: Option<SpeculationReport>,
    /// This computer.
    pub machine: Facts,
}

/// One answer with drafts and one without.
#[derive(Debug, Serialize)]
pub struct Pair {
    /// Which prompt.
    pub prompt: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// From the first token to the end, without drafts.
    pub plain_seconds: f64,
    /// The same with drafts.
    pub drafted_seconds: f64,
    /// Speed with drafts over speed without.
    pub ratio: f64,
    /// Drafted tokens that were right.
    pub accepted: usize,
    /// Drafted tokens that were wrong.
    pub rejected: usize,
}

/// One answer.
struct Answer {
    tokens: Vec<u32>,
    seconds: f64,
    usage: Usage,
}

/// Prompts of noise, answered with noise, for a model with so many tokens.
pub fn noise(vocab: usize, prompt_tokens: usize, max_tokens: usize) -> Vec<Request> {
    let prompt = |seed: usize| {
        let token = |index: usize| crate::noise_token((seed * prompt_tokens + index) as u64, vocab);
        // With made-up weights all tokens are nearly as likely, and ranking all of them would cost what no real model does.
        let (seed, top_k) = (seed as u64, 40);
        let sampling = SamplingParams { seed, top_k, ..SamplingParams::default() };
        let prompt = (0..prompt_tokens).map(token).collect();
        Request { prompt, max_tokens, sampling, ..Request::default() }
    };
    (0..PROMPTS).map(prompt).collect()
}

/// The lines of a file as questions to a model.
pub fn questions(path: &Path, checkpoint: &Checkpoint, max_tokens: usize) -> Result<Vec<Request>> {
    let read = std::fs::read_to_string(path);
    let text = read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let model_text = engine::open_text(checkpoint)?;
    let mut requests = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let message = serde_json::json!({"role": "user", "content": line});
        let mut chat = ChatRequest::new([message]);
        chat.enable_thinking = Some(false);
        requests.push(Request {
            prompt: model_text.prompt(&chat).map_err(engine::Error::from)?.tokens,
            max_tokens,
            stop_tokens: model_text.eos.clone(),
            sampling: SamplingParams::greedy(),
            ..Request::default()
        });
    }
    match requests.is_empty() {
        true => Err(Error::NoPrompts { path: path.to_owned() }),
        false => Ok(requests),
    }
}

impl Options {
    /// What the engine must be loaded with; `ngram` says whether repetitions may be drafted.
    pub fn speculation(&self, ngram: bool) -> Speculation {
        let oracle = self.oracle.map(|acceptance| Oracle { acceptance, ..Oracle::default() });
        let usual = Speculation::default();
        Speculation {
            ngram: ngram && oracle.is_none(),
            oracle,
            fixed: self.fixed_draft.iter().max().copied(),
            most: self.most_drafted.unwrap_or(usual.most),
            head: self.head_drafts,
            ..usual
        }
    }

    /// Answers the requests in turns. `kept_share` is the share of the experts that are in memory.
    pub fn run(
        &self,
        model: String,
        kept_share: f64,
        engine: &mut Engine,
        requests: &[Request],
    ) -> Result<Report> {
        // Everything is warm, and the oracle has something to know.
        engine.rest_drafter(true);
        let mut texts = Vec::with_capacity(requests.len());
        for request in requests {
            let answer = answer(engine, request)?;
            texts.push([request.prompt.as_slice(), &answer.tokens].concat());
        }
        if self.rounds.is_some() {
            engine.take_rounds();
        }
        let mut pairs = Vec::with_capacity(self.count);
        for index in 0..self.count {
            if let Some(&tokens) = self.fixed_draft.iter().cycle().nth(index) {
                engine.fix_drafts(tokens);
            }
            let prompt = index % requests.len();
            if let Some(acceptance) = self.oracle {
                engine.tell_oracle(Oracle { texts: texts.clone(), acceptance, seed: index as u64 });
            }
            let mut run = |rests: bool| {
                engine.rest_drafter(rests);
                answer(engine, &requests[prompt])
            };
            let (plain, drafted) = if index.is_multiple_of(2) {
                let plain = run(true)?;
                (plain, run(false)?)
            } else {
                let drafted = run(false)?;
                (run(true)?, drafted)
            };
            if plain.tokens != drafted.tokens {
                return Err(Error::DraftsChanged { prompt });
            }
            pairs.push(Pair {
                prompt,
                tokens: plain.tokens.len(),
                plain_seconds: plain.seconds,
                drafted_seconds: drafted.seconds,
                ratio: plain.seconds / drafted.seconds,
                accepted: drafted.usage.accepted_drafts,
                rejected: drafted.usage.rejected_drafts,
            });
        }
        if let Some(path) = &self.rounds {
            let rounds = engine.take_rounds();
            let lines = rounds.iter().map(|round| format!("{round}\n"));
            let text: String = [format!("{LOG_HEADER}\n")].into_iter().chain(lines).collect();
            let failed = |source| Error::Write { path: path.to_owned(), source };
            std::fs::write(path, text).map_err(failed)?;
        }
        let mut ratios: Vec<f64> = pairs.iter().map(|pair| pair.ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let accepted_drafts = pairs.iter().map(|pair| pair.accepted).sum();
        let tokens: usize = pairs.iter().map(|pair| pair.tokens.saturating_sub(1)).sum();
        Ok(Report {
            model,
            threads: engine.runner().options().threads,
            context: engine.runner().options().context,
            kept_share,
            ratio: ratios[ratios.len() / 2],
            accepted_drafts,
            rejected_drafts: pairs.iter().map(|pair| pair.rejected).sum(),
            tokens_per_pass: tokens as f64 / tokens.saturating_sub(accepted_drafts).max(1) as f64,
            pairs,
            speculation: engine.speculation(),
            machine: Facts::gather(),
        })
    }
}

/// Serves one request to its end.
fn answer(engine: &mut Engine, request: &Request) -> Result<Answer> {
    engine.clear_cache();
    engine.submit(request.clone())?;
    let (mut tokens, mut first) = (Vec::new(), None);
    loop {
        for event in engine.step()? {
            match event {
                Event::Prefill { .. } => {}
                Event::Token { sampled, .. } => {
                    first.get_or_insert_with(Instant::now);
                    tokens.push(sampled.token);
                }
                Event::Finished { usage, .. } => {
                    let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
                    return Ok(Answer { tokens, seconds, usage });
                }
                Event::Failed { error, .. } => return Err(error.into()),
            }
        }
    }
}
