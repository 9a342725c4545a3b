//! `bench --pairs`: the same answers with drafts and without, in turns, in one process.
//!
//! The clock runs from an answer's first token to its end, drafting included. Who goes first changes from pair to
//! pair. What the controller has learned stays, as it does in a server; the prefix cache does not.

use std::time::Instant;

use anyhow::{Context, Result};
use engine::{
    Dialect, Engine, Event, LOG_HEADER, Oracle, Request, SamplingParams, Speculation,
    SpeculationReport, Usage,
};
use machine::facts::Facts;
use serde::Serialize;
use text::ChatRequest;

use crate::args::BenchArgs;
use crate::console::{Align, print_json, table};
use crate::invocation::{self, Invocation, OpenModel, SwapWatch};

/// Different prompts of noise.
const PROMPTS: usize = 3;

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    threads: usize,
    context: usize,
    /// Share of the experts that are in memory.
    kept_share: f64,
    pairs: Vec<Pair>,
    /// Median of the pairs' ratios.
    ratio: f64,
    accepted_drafts: usize,
    rejected_drafts: usize,
    /// Tokens a verified draft was worth, the model's own included.
    tokens_per_pass: f64,
    speculation: Option<SpeculationReport>,
    machine: Facts,
}

#[derive(Debug, Serialize)]
struct Pair {
    /// Which prompt.
    prompt: usize,
    tokens: usize,
    plain_seconds: f64,
    drafted_seconds: f64,
    /// Speed with drafts over speed without.
    ratio: f64,
    accepted: usize,
    rejected: usize,
}

/// One answer.
struct Answer {
    tokens: Vec<u32>,
    seconds: f64,
    usage: Usage,
}

pub(super) fn run(
    count: usize,
    args: &BenchArgs,
    model: &OpenModel,
    invocation: &Invocation,
) -> Result<()> {
    let requests = requests(args, model)?;
    let longest = requests.iter().map(|request| request.prompt.len()).max().unwrap_or(0);
    let positions = (longest + args.gen_tokens + 64).next_multiple_of(64);
    let request = engine::PlanRequest {
        context: Some(invocation.global.context.unwrap_or(0).max(positions)),
        ..invocation.plan_request()
    };
    let pair = invocation.plan_pair(model, &request)?;
    let (threads, context) = (pair.plan.options.threads, pair.plan.context);
    let kept_share = pair.plan.streaming.as_ref().map_or(1.0, |streaming| streaming.kept_share);
    let oracle = args.oracle.map(|acceptance| Oracle { acceptance, ..Oracle::default() });
    let speculation = Speculation {
        ngram: oracle.is_none() && !invocation.global.speculation.names_a_source(),
        oracle,
        fixed: args.fixed_draft.iter().max().copied(),
        ..Speculation::default()
    };
    let mut engine = invocation.load_with(model, pair, speculation)?;
    let mut swap = SwapWatch::start();
    // Everything is warm, and the oracle has something to know.
    engine.rest_drafter(true);
    let mut texts = Vec::with_capacity(requests.len());
    for request in &requests {
        let answer = answer(&mut engine, request)?;
        texts.push([request.prompt.as_slice(), &answer.tokens].concat());
    }
    if args.rounds.is_some() {
        engine.take_rounds();
    }
    let mut pairs = Vec::with_capacity(count);
    for index in 0..count {
        if let Some(&tokens) = args.fixed_draft.iter().cycle().nth(index) {
            engine.fix_drafts(tokens);
        }
        let prompt = index % requests.len();
        if let Some(acceptance) = args.oracle {
            engine.tell_oracle(Oracle { texts: texts.clone(), acceptance, seed: index as u64 });
        }
        let mut run = |rests: bool| {
            engine.rest_drafter(rests);
            answer(&mut engine, &requests[prompt])
        };
        let (plain, drafted) = if index.is_multiple_of(2) {
            let plain = run(true)?;
            (plain, run(false)?)
        } else {
            let drafted = run(false)?;
            (run(true)?, drafted)
        };
        anyhow::ensure!(
            plain.tokens == drafted.tokens,
            "drafts changed the answer to prompt {prompt}"
        );
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
    invocation::finish(engine.runner())?;
    swap.check();
    if let Some(path) = &args.rounds {
        let rounds = engine.take_rounds();
        let lines = rounds.iter().map(|round| format!("{round}\n"));
        let text: String = [format!("{LOG_HEADER}\n")].into_iter().chain(lines).collect();
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut ratios: Vec<f64> = pairs.iter().map(|pair| pair.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let accepted_drafts = pairs.iter().map(|pair| pair.accepted).sum();
    let tokens: usize = pairs.iter().map(|pair| pair.tokens.saturating_sub(1)).sum();
    let report = Report {
        model: model.name.clone(),
        threads,
        context,
        kept_share,
        ratio: ratios[ratios.len() / 2],
        accepted_drafts,
        rejected_drafts: pairs.iter().map(|pair| pair.rejected).sum(),
        tokens_per_pass: tokens as f64 / tokens.saturating_sub(accepted_drafts).max(1) as f64,
        pairs,
        speculation: engine.speculation(),
        machine: Facts::gather(),
    };
    print(&report, args)
}

/// What is asked: the lines of the file, or noise.
fn requests(args: &BenchArgs, model: &OpenModel) -> Result<Vec<Request>> {
    let max_tokens = args.gen_tokens.max(2);
    let Some(path) = &args.prompts else {
        let (vocab, count) = (model.spec.vocab as u64, args.prompt_tokens[0]);
        let prompt = |seed: usize| {
            let token = |index: usize| {
                let hash = ((seed * count + index) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ((hash >> 20) % vocab) as u32
            };
            // Of made-up weights all tokens are nearly as likely: ranking all of them is nobody's case.
            let (seed, top_k) = (seed as u64, 40);
            let sampling = SamplingParams { seed, top_k, ..SamplingParams::default() };
            let prompt = (0..count).map(token).collect();
            Request { prompt, max_tokens, sampling, ..Request::default() }
        };
        return Ok((0..PROMPTS).map(prompt).collect());
    };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let dialect = Dialect::open(&model.checkpoint)?;
    let mut requests = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let message = serde_json::json!({"role": "user", "content": line});
        let mut chat = ChatRequest::new([message]);
        chat.enable_thinking = Some(false);
        requests.push(Request {
            prompt: dialect.prompt(&chat)?.tokens,
            max_tokens,
            stop_tokens: dialect.eos.clone(),
            sampling: SamplingParams::greedy(),
            ..Request::default()
        });
    }
    anyhow::ensure!(!requests.is_empty(), "{} has no prompts", path.display());
    Ok(requests)
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

fn print(report: &Report, args: &BenchArgs) -> Result<()> {
    if args.json {
        return print_json(report);
    }
    let header = ["prompt", "tokens", "plain tok/s", "drafted tok/s", "ratio", "right", "wrong"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for pair in &report.pairs {
        let rate = |seconds: f64| format!("{:.2}", pair.tokens.saturating_sub(1) as f64 / seconds);
        rows.push(vec![
            pair.prompt.to_string(),
            pair.tokens.to_string(),
            rate(pair.plain_seconds),
            rate(pair.drafted_seconds),
            format!("{:.3}", pair.ratio),
            pair.accepted.to_string(),
            pair.rejected.to_string(),
        ]);
    }
    print!("{}", table(&[Align::Right; 7], &rows));
    println!(
        "with drafts {:.3} times as fast (median of {}), {:.2} tokens a pass",
        report.ratio,
        report.pairs.len(),
        report.tokens_per_pass
    );
    if let Some(speculation) = &report.speculation {
        for source in &speculation.sources {
            println!(
                "{:?}: {} drafts, {} of {} tokens right, the first of {:.0} %",
                source.source,
                source.rounds,
                source.accepted,
                source.verified,
                100.0 * source.first_accepted
            );
        }
    }
    Ok(())
}
