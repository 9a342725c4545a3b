//! How well a model predicts a text, and how far it is from another model.
//!
//! The text is cut into windows, each with a fresh sequence; every token but a window's first is predicted.
//! With a reference, both models see the same tokens, and the mean Kullback–Leibler divergence of the model
//! from the reference is reported: the price of an option that changes answers.

use model::Logits;
use runtime::Runner;
use serde::Serialize;
use state::Sequence;

use crate::{Result, argmax};

/// Positions whose logits are held at once when two models are compared.
const PIECE: usize = 64;

/// What came out.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Tokens of the text.
    pub tokens: usize,
    /// Tokens that were predicted.
    pub predicted: usize,
    /// e to the mean negative log-likelihood of a token.
    pub perplexity: f64,
    /// Mean negative log-likelihood, in nats.
    pub nll: f64,
    /// Standard error of the mean.
    pub nll_error: f64,
    /// Share of positions whose likeliest token is the right one.
    pub accuracy: f64,
    /// Compared with another model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Comparison>,
}

/// The model compared with a reference.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    /// Name of the reference.
    pub model: String,
    /// Its own perplexity.
    pub perplexity: f64,
    /// Mean KL divergence of the model from the reference, in nats.
    pub kl: f64,
    /// The largest divergence of a position.
    pub kl_max: f64,
    /// Share of positions where both like the same token best.
    pub same_choice: f64,
}

/// A model that reads the text.
pub struct Evaluation {
    /// Name of the model, for the report.
    pub name: String,
    /// The model.
    pub runner: Runner,
    /// Whether it runs one token at a time, as generating does, instead of whole chunks.
    pub step_by_step: bool,
}

impl Evaluation {
    /// Log-probabilities of the next token after each of `tokens`.
    fn read(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        mut row: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
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

/// Reads a text in windows of `window` tokens; `progress` is called for every token that is predicted.
pub fn measure(
    tokens: &[u32],
    window: usize,
    reader: &mut Evaluation,
    mut reference: Option<&mut Evaluation>,
    mut progress: impl FnMut(),
) -> Result<Report> {
    let vocab = reader.runner.spec().vocab;
    let (mut nlls, mut right) = (Vec::new(), 0usize);
    let (mut other_nll, mut kls, mut same) = (0.0, Vec::new(), 0usize);
    let mut own = vec![0.0f64; vocab];
    let mut held = vec![0.0f64; if reference.is_some() { PIECE * vocab } else { 0 }];
    for window in tokens.chunks(window) {
        let mut sequence = reader.runner.sequence()?;
        let mut other_sequence =
            reference.as_mut().map(|other| other.runner.sequence()).transpose()?;
        // The last token of a window is predicted but predicts nothing.
        let inputs = &window[..window.len() - 1];
        for (piece, part) in inputs.chunks(PIECE).enumerate() {
            let next = |row: usize| window[piece * PIECE + row + 1];
            if let Some((other, sequence)) = reference.as_mut().zip(other_sequence.as_mut()) {
                other.read(sequence, part, |row, logits| {
                    let to = &mut held[row * vocab..][..vocab];
                    log_softmax(logits, to);
                    other_nll -= to[next(row) as usize];
                })?;
            }
            reader.read(&mut sequence, part, |row, logits| {
                log_softmax(logits, &mut own);
                nlls.push(-own[next(row) as usize]);
                let choice = argmax(logits);
                right += usize::from(choice == next(row));
                if !held.is_empty() {
                    let other = &held[row * vocab..][..vocab];
                    kls.push(divergence(other, &own));
                    same += usize::from(choice == argmax_f64(other));
                }
                progress();
            })?;
        }
    }
    let predicted = nlls.len();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let nll = mean(&nlls);
    let squares: Vec<f64> = nlls.iter().map(|value| (value - nll).powi(2)).collect();
    Ok(Report {
        model: reader.name.clone(),
        tokens: tokens.len(),
        predicted,
        perplexity: nll.exp(),
        nll,
        nll_error: (mean(&squares) / predicted.max(1) as f64).sqrt(),
        accuracy: right as f64 / predicted.max(1) as f64,
        reference: reference.map(|reference| Comparison {
            model: reference.name.clone(),
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
