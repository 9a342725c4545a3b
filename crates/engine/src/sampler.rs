//! From logits to a token.
//!
//! In this order: logit bias → penalties (repetition, then presence and frequency) → mask → temperature → top-k →
//! top-p → min-p → one draw from what is left, by inverse CDF over the candidates from the likeliest down, equal ones by
//! lower id. Temperature 0 takes the largest adjusted logit instead, equal ones by lower id.
//!
//! Log-probabilities are those of the logits as handed in: softmax at temperature 1 before bias, penalties, mask
//! and filters, as OpenAI reports them.
//!
//! Invariant: a token is a pure function of logits, history, parameters, position and mask. The random number depends on
//! seed and position alone, weights are summed in f64 in a fixed order with an exponential of our own, so neither
//! other requests nor the platform's mathematics library changes a token.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::HashMap;

use compute::logits::{Runs, STEPS, Spread, least_weight};
use grammar::Mask;
use serde_json::Value;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Only this many of the likeliest tokens; 0 is all of them.
    pub top_k: usize,
    /// Only the fewest likeliest tokens whose probabilities reach this sum; 1 is all of them.
    pub top_p: f32,
    /// Only tokens at least this likely, relative to the likeliest; 0 is all of them.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer; 1 is none.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the answer.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens in the answer, once for each time they occur.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// With the position, decides every draw.
    pub seed: u64,
    /// Report the token's log-probability and those of this many likeliest tokens; `None` saves the work.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    /// OpenAI's defaults: the model's own distribution.
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// The defaults at temperature 0.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// What a model's makers sample with, by its `generation_config.json`.
    pub fn of_model(config: &Value) -> SamplingParams {
        let mut params = SamplingParams::default();
        let number = |key: &str| config[key].as_f64().map(|value| value as f32);
        if config["do_sample"].as_bool() == Some(false) {
            params.temperature = 0.0;
        } else if let Some(temperature) = number("temperature") {
            params.temperature = temperature;
        }
        if let Some(top_p) = number("top_p") {
            params.top_p = top_p;
        }
        if let Some(top_k) = config["top_k"].as_u64() {
            params.top_k = top_k as usize;
        }
        if let Some(min_p) = number("min_p") {
            params.min_p = min_p;
        }
        if let Some(penalty) = number("repetition_penalty") {
            params.repetition_penalty = penalty;
        }
        // A file may say anything; what makes no sense is not taken over.
        if params.validate().is_ok() { params } else { SamplingParams::default() }
    }

    /// Refuses values outside the ranges of the OpenAI API (and, for the fields it does not have, of its peers).
    pub fn validate(&self) -> Result<(), SampleError> {
        fn check(
            field: &'static str,
            got: f32,
            allowed: &'static str,
            ok: bool,
        ) -> Result<(), SampleError> {
            if ok { Ok(()) } else { Err(SampleError::OutOfRange { field, allowed, got }) }
        }
        let t = self.temperature;
        check("temperature", t, "0 to 2", (0.0..=2.0).contains(&t))?;
        check("top_p", self.top_p, "0 to 1", (0.0..=1.0).contains(&self.top_p))?;
        check("min_p", self.min_p, "0 to 1", (0.0..=1.0).contains(&self.min_p))?;
        let repetition = self.repetition_penalty;
        let ok = repetition > 0.0 && repetition <= 10.0;
        check("repetition_penalty", repetition, "above 0, to 10", ok)?;
        let penalties = [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ];
        for (field, penalty) in penalties {
            check(field, penalty, "-2 to 2", (-2.0..=2.0).contains(&penalty))?;
        }
        for &(_, bias) in &self.logit_bias {
            check("logit_bias", bias, "-100 to 100", (-100.0..=100.0).contains(&bias))?;
        }
        let top = self.logprobs.unwrap_or(0);
        check("logprobs", top as f32, "0 to 20", top <= 20)
    }

    fn penalises(&self) -> bool {
        (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
    }
}

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A parameter makes no sense.
    #[error("{field} must be {allowed}, got {got}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// What it may be.
        allowed: &'static str,
        /// What it is.
        got: f32,
    },
    /// A biased token does not exist.
    #[error("logit_bias names token {token}, the vocabulary has {vocabulary}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// There are no logits at all.
    #[error("there are no logits to choose from")]
    EmptyVocabulary,
    /// The model's arithmetic broke down.
    #[error("{nan} of {vocabulary} logits are NaN and {infinite} are infinite")]
    BrokenLogits {
        /// How many are not a number.
        nan: usize,
        /// How many are plus infinity; minus infinity is a masked token.
        infinite: usize,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A mask for another vocabulary.
    #[error("the mask is for {mask} tokens, the vocabulary has {vocabulary}")]
    MaskWidth {
        /// Tokens of the mask.
        mask: usize,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A constraint left nothing.
    #[error("all {vocabulary} tokens are masked")]
    AllMasked {
        /// Tokens there are.
        vocabulary: usize,
    },
}

/// Which tokens a sequence holds: what penalties look at.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    /// Every token of the prompt or the answer, with its occurrences in the answer.
    generated: HashMap<u32, u32>,
}

impl TokenCounts {
    /// An empty history.
    pub fn new() -> TokenCounts {
        TokenCounts::default()
    }

    /// Adds tokens of the prompt.
    pub fn push_prompt(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.generated.entry(token).or_insert(0);
        }
    }

    /// Adds a generated token.
    pub fn push(&mut self, token: u32) {
        let count = self.generated.entry(token).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// Whether the token is in the prompt or the answer.
    pub fn contains(&self, token: u32) -> bool {
        self.generated.contains_key(&token)
    }

    /// Occurrences in the answer.
    pub fn generated(&self, token: u32) -> u32 {
        self.generated.get(&token).copied().unwrap_or(0)
    }
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability, if log-probabilities were requested.
    pub logprob: Option<f32>,
    /// The likeliest tokens and their log-probabilities, descending.
    pub top: Vec<(u32, f32)>,
}

/// Buffers that calls reuse; they grow to the vocabulary's size at most twice over.
#[derive(Debug, Default)]
pub struct Scratch {
    adjusted: Vec<f32>,
    tops: Vec<f32>,
    draw: DrawScratch,
}

#[derive(Debug, Default)]
struct DrawScratch {
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
    spread: Spread,
}

/// Candidates that are ranked at first where any number may be wanted. Most draws fall among a few.
const FIRST_RANKED: usize = 32;

/// Runs into which logits are cut at least, if they are so many, to look at their best ones first.
const LEAST_RUNS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    logit: f32,
    token: u32,
}

/// Chooses the token at `position`, the number of tokens before it in the sequence, among those that the mask
/// allows.
pub fn sample(
    logits: &[f32],
    history: &TokenCounts,
    params: &SamplingParams,
    position: u64,
    mask: Option<&Mask>,
    scratch: &mut Scratch,
) -> Result<Sampled, SampleError> {
    params.validate()?;
    if logits.is_empty() {
        return Err(SampleError::EmptyVocabulary);
    }
    let Scratch { adjusted, tops, draw: draw_scratch } = scratch;
    let adjusted = if params.logit_bias.is_empty() && !params.penalises() && mask.is_none() {
        logits
    } else {
        adjust(logits, history, params, adjusted)?;
        if let Some(mask) = mask {
            // A broken logit is seen below, unless the mask hides it.
            cut(logits, 0, tops)?;
            forbid(adjusted, mask)?;
        }
        adjusted.as_slice()
    };
    let token = {
        let runs = cut(adjusted, params.top_k, tops)?;
        if params.temperature == 0.0 {
            first_of_best(runs)
        } else {
            draw(runs, params, uniform(params.seed, position), draw_scratch)
        }
    };

    let Some(top_count) = params.logprobs else {
        return Ok(Sampled { token, logprob: None, top: Vec::new() });
    };
    let runs = cut(logits, top_count, tops)?;
    let log_mass = runs.mass(1.0).ln();
    let logprob = |logit: f32| (f64::from(logit) - f64::from(runs.best()) - log_mass) as f32;
    let candidates = &mut draw_scratch.candidates;
    rank(runs, top_count, candidates);
    let top = candidates.iter().map(|c| (c.token, logprob(c.logit))).collect();
    Ok(Sampled { token, logprob: Some(logprob(logits[token as usize])), top })
}

/// Logits in runs that are enough to rank so many of them, or what is wrong with them.
fn cut<'a>(
    logits: &'a [f32],
    count: usize,
    tops: &'a mut Vec<f32>,
) -> Result<Runs<'a>, SampleError> {
    let vocabulary = logits.len();
    match Runs::cut(logits, LEAST_RUNS.max(count.saturating_mul(4)), tops) {
        None => {
            let nan = logits.iter().filter(|logit| logit.is_nan()).count();
            let infinite = logits.iter().filter(|&&logit| logit == f32::INFINITY).count();
            Err(SampleError::BrokenLogits { nan, infinite, vocabulary })
        }
        Some(runs) if runs.best() == f32::NEG_INFINITY => {
            Err(SampleError::AllMasked { vocabulary })
        }
        Some(runs) => Ok(runs),
    }
}

/// The likeliest token.
fn first_of_best(runs: Runs<'_>) -> u32 {
    let best = runs.best();
    let (first, run) = runs.of_tops(|top| top == best).next().expect("a run has the best logit");
    first + run.iter().position(|&logit| logit == best).unwrap_or(0) as u32
}

/// Bias and penalties. Masked tokens stay masked, and no other one becomes infinite.
fn adjust(
    logits: &[f32],
    history: &TokenCounts,
    params: &SamplingParams,
    adjusted: &mut Vec<f32>,
) -> Result<(), SampleError> {
    adjusted.clear();
    adjusted.extend_from_slice(logits);
    for &(token, bias) in &params.logit_bias {
        let vocabulary = logits.len();
        let Some(logit) = adjusted.get_mut(token as usize) else {
            return Err(SampleError::UnknownToken { token, vocabulary });
        };
        if logit.is_finite() {
            *logit = (*logit + bias).clamp(f32::MIN, f32::MAX);
        }
    }
    if !params.penalises() {
        return Ok(());
    }
    for (&token, &generated) in &history.generated {
        // Tokens the head does not know (image placeholders) cannot come out of it.
        let Some(logit) = adjusted.get_mut(token as usize) else { continue };
        if logit.is_infinite() {
            continue;
        }
        let penalty = params.repetition_penalty;
        let mut penalised = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        if generated > 0 {
            penalised -= params.presence_penalty + params.frequency_penalty * generated as f32;
        }
        *logit = penalised.clamp(f32::MIN, f32::MAX);
    }
    Ok(())
}

/// Gives the tokens that the mask forbids no chance at all.
fn forbid(logits: &mut [f32], mask: &Mask) -> Result<(), SampleError> {
    let vocabulary = logits.len();
    if mask.vocabulary() != vocabulary {
        return Err(SampleError::MaskWidth { mask: mask.vocabulary(), vocabulary });
    }
    for (logits, &word) in logits.chunks_mut(64).zip(mask.words()) {
        // Nearly every word of a mask is one of these two.
        match word {
            u64::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
    Ok(())
}

/// Temperature, the filters and the draw.
fn draw(runs: Runs<'_>, params: &SamplingParams, uniform: f64, scratch: &mut DrawScratch) -> u32 {
    let inverse = f64::from(params.temperature).recip();
    let (top_p, min_p) = (f64::from(params.top_p), f64::from(params.min_p));
    let limits_count = params.top_k > 0 && params.top_k < runs.logits().len();
    let filters = limits_count || top_p < 1.0 || min_p > 0.0;

    let drawn_mass = (!filters).then(|| runs.mass(inverse));
    // The likeliest weighs 1: where it is drawn, nothing has to be ranked.
    if drawn_mass.is_some_and(|mass| uniform * mass < 1.0) {
        return first_of_best(runs);
    }
    // Sorting a vocabulary for a token that is nearly always among the first few would be a waste.
    let count = if limits_count { params.top_k } else { FIRST_RANKED };
    let DrawScratch { candidates, weights, spread } = scratch;
    rank(runs, count, candidates);
    weights.clear();
    weights.extend(candidates.iter().map(|c| runs.weight(c.logit, inverse)));
    let all_mass = match drawn_mass {
        Some(mass) => mass,
        None if limits_count => weights.iter().sum(),
        None if top_p < 1.0 => runs.mass(inverse),
        None => f64::INFINITY, // min_p does not look at it
    };
    // The likeliest candidate weighs 1, so min_p is a bound on the weight itself.
    let reach = if top_p < 1.0 { top_p * all_mass } else { f64::INFINITY };
    let is_cut = |weight: f64, before: f64| weight < min_p || (before > 0.0 && before >= reach);

    let mut kept_mass = 0.0;
    let mut kept = 0;
    for &weight in weights.iter() {
        if is_cut(weight, kept_mass) {
            break;
        }
        kept_mass += weight;
        kept += 1;
    }
    let target = uniform * if filters { kept_mass } else { all_mass };
    let is_complete = limits_count || candidates.len() < count || kept < candidates.len();
    if is_complete || (!filters && kept_mass > target) {
        return candidates[pick(&weights[..kept], target)].token;
    }

    let likeliest = candidates[0].token;
    spread.fill(&runs, inverse);
    let mut steps = Steps { runs, inverse, spread, candidates };
    let cut = filters.then(|| {
        let may_end = |step, after| after >= reach || least_weight(step) < min_p * (1.0 + 1e-5);
        steps.walk(may_end, |_, weight, before| is_cut(weight, before))
    });
    let kept_mass = match &cut {
        Some(cut) => cut.sum,
        None => (0..STEPS).map(|step| steps.spread.mass(step)).sum(),
    };
    let target = uniform * kept_mass;
    // Sums of steps and of their tokens differ in the last digits: what was cut off is not drawn for that.
    let end = cut.and_then(|cut| cut.end);
    let drawn = steps.walk(
        |_, after| after > target,
        |token, weight, before| before + weight > target || Some(token) == end,
    );
    let token = if drawn.end == end { steps.last_before(&drawn) } else { drawn.end };
    token.unwrap_or(likeliest)
}

/// Where adding up weights ended.
struct Walked {
    /// What the tokens before the end weigh.
    sum: f64,
    /// The token that ended it, if one did.
    end: Option<u32>,
    /// The last that was looked at before.
    before_end: Option<u32>,
    /// The step of the end.
    step: usize,
}

/// All tokens from the likeliest down, where many are about as likely: in steps of likelihood, of which only those that matter
/// are looked into.
struct Steps<'a> {
    runs: Runs<'a>,
    inverse: f64,
    spread: &'a Spread,
    candidates: &'a mut Vec<Candidate>,
}

impl Steps<'_> {
    /// Adds up weights until `ends` says so of a token, its weight and the sum before it. Steps are looked into if `may_end`
    /// says so of one and of the sum after it.
    fn walk(
        &mut self,
        may_end: impl Fn(usize, f64) -> bool,
        ends: impl Fn(u32, f64, f64) -> bool,
    ) -> Walked {
        let mut walked = Walked { sum: 0.0, end: None, before_end: None, step: STEPS };
        for step in 0..STEPS {
            let mass = self.spread.mass(step);
            if mass == 0.0 {
                continue;
            }
            if !may_end(step, walked.sum + mass) {
                walked.sum += mass;
                continue;
            }
            self.look_into(step);
            for &Candidate { token, logit } in self.candidates.iter() {
                let weight = self.runs.weight(logit, self.inverse);
                if ends(token, weight, walked.sum) {
                    (walked.end, walked.step) = (Some(token), step);
                    return walked;
                }
                walked.sum += weight;
                walked.before_end = Some(token);
            }
        }
        walked
    }

    /// The token before an end, whether its step was looked into or not.
    fn last_before(&mut self, walked: &Walked) -> Option<u32> {
        walked.before_end.or_else(|| {
            let step = (0..walked.step).rev().find(|&step| self.spread.mass(step) > 0.0)?;
            self.look_into(step);
            self.candidates.last().map(|candidate| candidate.token)
        })
    }

    /// Makes the tokens of a step the candidates, the likeliest first.
    fn look_into(&mut self, step: usize) {
        let candidates = &mut *self.candidates;
        candidates.clear();
        self.runs.tokens_of_step(self.inverse, step, |token, logit| {
            candidates.push(Candidate { logit, token });
        });
        candidates.sort_unstable_by(likelier);
    }
}

/// The first index at which the running sum passes `target`; if rounding kept it below, the last that weighs anything.
fn pick(weights: &[f64], target: f64) -> usize {
    let mut sum = 0.0;
    let mut last = 0;
    for (index, &weight) in weights.iter().enumerate() {
        sum += weight;
        if weight > 0.0 {
            last = index;
        }
        if sum > target {
            break;
        }
    }
    last
}

/// The `count` likeliest tokens that are not masked, descending, equal ones by lower id; fewer if there are fewer.
fn rank(runs: Runs<'_>, count: usize, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    if count == 0 {
        return;
    }
    // What does not reach the bar cannot be among the best. Masked tokens never do.
    let bar = Cell::new(runs.bar(count).max(f32::MIN));
    runs.reaching(
        || bar.get(),
        |token, logit| {
            candidates.push(Candidate { logit, token });
            if candidates.len() == count.saturating_mul(2) {
                candidates.select_nth_unstable_by(count - 1, likelier);
                candidates.truncate(count);
                // Later ones that are equal have higher ids.
                bar.set(candidates[count - 1].logit.next_up());
            }
        },
    );
    if candidates.len() > count {
        candidates.select_nth_unstable_by(count - 1, likelier);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(likelier);
}

/// Descending by logit (never NaN here), then ascending by token.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// A number in [0, 1) that depends on seed and position alone: SplitMix64 (Steele, Lea, Flood 2014) from a mixed seed,
/// so that neighbouring seeds do not walk the same numbers one step apart.
fn uniform(seed: u64, position: u64) -> f64 {
    fn mix(mut z: u64) -> u64 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = mix(seed.wrapping_add(GOLDEN));
    let bits = mix(start.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
