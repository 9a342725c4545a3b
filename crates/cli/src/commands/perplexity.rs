//! `millstream perplexity`: how well a model predicts a text, and how far it is from another model.
//!
//! The text is cut into windows of `--chunk` tokens, each with a fresh sequence; every token but a
//! window's first is predicted. With `--reference`, both models see the same tokens, and the mean
//! Kullback–Leibler divergence of the model from the reference is told: the price of an option that
//! changes answers.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::{Dialect, Runner};
use model::Logits;
use serde::Serialize;
use state::Sequence;

use super::logits::argmax;
use crate::args::PerplexityArgs;
use crate::console::print_json;
use crate::invocation::{self, Invocation, OpenModel};

/// Positions whose logits are held at once when two models are compared.
const PIECE: usize = 64;

#[derive(Debug, Default, Serialize)]
struct Report {
    model: String,
    tokens: usize,
    predicted: usize,
    /// e to the mean negative log-likelihood of a token.
    perplexity: f64,
    /// Mean negative log-likelihood, in nats.
    nll: f64,
    /// Standard error of the mean.
    nll_error: f64,
    /// Share of positions whose likeliest token is the right one.
    accuracy: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<Comparison>,
}

#[derive(Debug, Default, Serialize)]
struct Comparison {
    model: String,
    perplexity: f64,
    /// Mean KL divergence of the model from the reference, in nats.
    kl: f64,
    kl_max: f64,
    /// Share of positions where both like the same token best.
    same_choice: f64,
}

pub(crate) fn run(args: &PerplexityArgs, invocation: &Invocation) -> Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let model = invocation.open(&args.model)?;
    let dialect = Dialect::open(&model.checkpoint)?;
    let tokens = dialect.tokenizer.encode(&text, false)?;
    if tokens.len() < 2 {
        bail!("{} has {} token(s); there is nothing to predict", args.file.display(), tokens.len());
    }
    let mut first = Reader::new(args, invocation, &model)?;
    let reference = match &args.reference {
        Some(name) => {
            let other = invocation.open(name)?;
            if other.spec.vocab != model.spec.vocab {
                bail!(
                    "{name} has {} tokens, {} has {}: their distributions cannot be compared",
                    other.spec.vocab,
                    args.model,
                    model.spec.vocab
                );
            }
            Some((name.clone(), Reader::new(args, invocation, &other)?))
        }
        None => None,
    };
    let report = measure(args, invocation, &tokens, &mut first, reference)?;
    invocation::finish(&first.runner)?;
    if args.json {
        return print_json(&report);
    }
    println!(
        "perplexity {:.4} (nll {:.4} ± {:.4}, {} of {} tokens predicted, {:.1} % right)",
        report.perplexity,
        report.nll,
        report.nll_error,
        report.predicted,
        report.tokens,
        100.0 * report.accuracy
    );
    if let Some(other) = &report.reference {
        println!(
            "against {}: perplexity {:.4}, KL {:.6} (max {:.4}), same choice {:.2} %",
            other.model,
            other.perplexity,
            other.kl,
            other.kl_max,
            100.0 * other.same_choice
        );
    }
    Ok(())
}

/// A model that reads the text.
struct Reader {
    runner: Runner,
    sequence: Option<Sequence>,
    step_by_step: bool,
}

impl Reader {
    fn new(args: &PerplexityArgs, invocation: &Invocation, model: &OpenModel) -> Result<Reader> {
        let plan = invocation.plan_for(model, args.chunk, 0)?;
        let runner = invocation.load_planned(model, plan)?;
        Ok(Reader { runner, sequence: None, step_by_step: args.step_by_step })
    }

    fn restart(&mut self) -> Result<()> {
        self.sequence = None;
        self.sequence = Some(self.runner.sequence()?);
        Ok(())
    }

    /// Log-probabilities of the next token after each of `tokens`.
    fn read(&mut self, tokens: &[u32], mut row: impl FnMut(usize, &[f32])) -> Result<()> {
        let Some(sequence) = &mut self.sequence else { return Ok(()) };
        if !self.step_by_step {
            return Ok(self.runner.feed(sequence, tokens, Logits::All, row)?);
        }
        for (index, token) in tokens.iter().enumerate() {
            let one = std::slice::from_ref(token);
            self.runner.feed(sequence, one, Logits::Last, |_, values| row(index, values))?;
        }
        Ok(())
    }
}

fn measure(
    args: &PerplexityArgs,
    invocation: &Invocation,
    tokens: &[u32],
    reader: &mut Reader,
    mut reference: Option<(String, Reader)>,
) -> Result<Report> {
    let vocab = reader.runner.spec().vocab;
    let bar = invocation.console.token_bar("reading", tokens.len() as u64, Duration::ZERO);
    let (mut nlls, mut right) = (Vec::new(), 0usize);
    let (mut other_nll, mut kls, mut same) = (0.0, Vec::new(), 0usize);
    let mut held = vec![0.0f64; if reference.is_some() { PIECE * vocab } else { 0 }];
    for window in tokens.chunks(args.chunk) {
        reader.restart()?;
        if let Some((_, other)) = &mut reference {
            other.restart()?;
        }
        // The last token of a window is predicted but predicts nothing.
        let inputs = &window[..window.len() - 1];
        for (piece, part) in inputs.chunks(PIECE).enumerate() {
            let next = |row: usize| window[piece * PIECE + row + 1];
            if let Some((_, other)) = &mut reference {
                other.read(part, |row, logits| {
                    let to = &mut held[row * vocab..][..vocab];
                    log_softmax(logits, to);
                    other_nll -= to[next(row) as usize];
                })?;
            }
            let mut own = vec![0.0f64; vocab];
            reader.read(part, |row, logits| {
                log_softmax(logits, &mut own);
                nlls.push(-own[next(row) as usize]);
                let choice = argmax(logits);
                right += usize::from(choice == next(row));
                if !held.is_empty() {
                    let other = &held[row * vocab..][..vocab];
                    kls.push(divergence(other, &own));
                    same += usize::from(choice == argmax_f64(other));
                }
                bar.inc(1);
            })?;
        }
    }
    bar.finish_and_clear();
    let predicted = nlls.len();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let nll = mean(&nlls);
    let squares: Vec<f64> = nlls.iter().map(|value| (value - nll).powi(2)).collect();
    Ok(Report {
        model: args.model.clone(),
        tokens: tokens.len(),
        predicted,
        perplexity: nll.exp(),
        nll,
        nll_error: (mean(&squares) / predicted.max(1) as f64).sqrt(),
        accuracy: right as f64 / predicted.max(1) as f64,
        reference: reference.map(|(name, _)| Comparison {
            model: name,
            perplexity: (other_nll / predicted.max(1) as f64).exp(),
            kl: mean(&kls),
            kl_max: kls.iter().copied().fold(0.0, f64::max),
            same_choice: same as f64 / predicted.max(1) as f64,
        }),
    })
}

fn log_softmax(logits: &[f32], out: &mut [f64]) {
    let largest = logits.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(f64::from(x)));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    let shift = largest + sum.ln();
    for (to, &x) in out.iter_mut().zip(logits) {
        *to = f64::from(x) - shift;
    }
}

/// KL(p ‖ q) from log-probabilities.
fn divergence(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0)
}

fn argmax_f64(values: &[f64]) -> u32 {
    let best = values.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(index, _)| index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_zero_from_itself_and_positive_otherwise() {
        let (mut p, mut q) = ([0.0; 3], [0.0; 3]);
        log_softmax(&[1.0, 2.0, 3.0], &mut p);
        log_softmax(&[3.0, 2.0, 1.0], &mut q);
        assert!((p.iter().map(|x| x.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(divergence(&p, &p), 0.0);
        // KL of two known distributions, by hand: Σ p (ln p − ln q) = 2 (p₃ − p₁).
        let want = 2.0 * (p[2].exp() - p[0].exp());
        assert!((divergence(&p, &q) - want).abs() < 1e-12);
    }
}
