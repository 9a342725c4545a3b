//! The search: which drafts of which lengths give the most tokens a second.
//!
//! For given sources the drafted tokens of all sequences are taken in the order of their chance to be
//! accepted, and every length of that list is valued, so that a step in the cost of rows
//! is looked over, not only up to. The caller gives the chances and the costs; nothing is remembered.

use super::SourceKind;
use super::draft_cost::{DraftTerms, draft_seconds};

/// Tokens of lag that are caught up in the course of things; more is an investment.
const USUAL_LAG: usize = 16;
/// Rounds over which the catching up beyond that is spread.
const PAYBACK: usize = 32;

/// A draft a sequence could have.
pub(super) struct Candidate {
    /// Its index among the sequence's offers.
    pub(super) offer: usize,
    pub(super) source: SourceKind,
    /// The chance that the first 1, 2, … tokens are all accepted.
    pub(super) survival: Vec<f64>,
    /// Tokens to read first.
    pub(super) behind: usize,
}

/// What passes and drafts of this round cost.
pub(super) struct Costs {
    pub(super) sequences: usize,
    /// Seconds by rows, apart from missed bytes.
    pub(super) curve: Vec<f64>,
    pub(super) byte: f64,
    /// Bytes a row misses, by its depth.
    pub(super) missed: Vec<f64>,
    /// By source; none when drafting is paid already.
    pub(super) drafts: Option<[Option<DraftTerms>; SourceKind::ALL.len()]>,
}

impl Costs {
    /// Seconds of a pass of `rows` rows that misses `bytes`.
    pub(super) fn pass(&self, rows: usize, bytes: f64) -> f64 {
        let rows = rows.min(self.curve.len().saturating_sub(1));
        (self.curve[rows] + self.byte * bytes).max(1e-9)
    }

    /// Bytes a plain pass misses.
    pub(super) fn plain_bytes(&self) -> f64 {
        self.sequences as f64 * self.missed_at(0)
    }

    /// Seconds of a plain pass.
    pub(super) fn plain(&self) -> f64 {
        self.pass(self.sequences, self.plain_bytes())
    }

    /// Tokens a second without speculation.
    pub(super) fn plain_rate(&self) -> f64 {
        self.sequences as f64 / self.plain()
    }

    pub(super) fn missed_at(&self, depth: usize) -> f64 {
        self.missed.get(depth).or(self.missed.last()).copied().unwrap_or(0.0)
    }

    fn draft(&self, source: SourceKind, used: &Use) -> f64 {
        let terms = self.drafts.as_ref().and_then(|drafts| drafts[source.index()].as_ref());
        match terms {
            Some(terms) if used.sequences > 0 => {
                draft_seconds(terms, used.steps, used.sequences, used.read)
            }
            _ => 0.0,
        }
    }

    /// Tokens and seconds expected of a whole choice, catching up counted in full.
    pub(super) fn value(&self, candidates: &[Option<&Candidate>], counts: &[usize]) -> Value {
        let mut uses = [Use::default(); SourceKind::ALL.len()];
        let (mut tokens, mut rows) = (self.sequences as f64, self.sequences);
        let mut bytes = self.plain_bytes();
        for (candidate, &count) in candidates.iter().zip(counts) {
            let Some(candidate) = candidate.filter(|_| count > 0) else { continue };
            tokens += candidate.survival.iter().take(count).sum::<f64>();
            rows += count;
            bytes += (1..=count).map(|depth| self.missed_at(depth)).sum::<f64>();
            uses[candidate.source.index()].add(count, candidate.behind);
        }
        let drafts: f64 = SourceKind::ALL.iter().map(|&s| self.draft(s, &uses[s.index()])).sum();
        Value { tokens, rows, seconds: self.pass(rows, bytes) + drafts }
    }
}

/// What a choice is expected to bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub(super) tokens: f64,
    pub(super) rows: usize,
    pub(super) seconds: f64,
}

impl Value {
    pub(super) fn rate(&self) -> f64 {
        self.tokens / self.seconds
    }
}

/// How much one source drafts in a round.
#[derive(Clone, Copy, Default)]
struct Use {
    steps: usize,
    sequences: usize,
    read: usize,
}

impl Use {
    fn add(&mut self, steps: usize, read: usize) {
        self.steps = self.steps.max(steps);
        self.sequences += 1;
        self.read += read;
    }
}

/// For each sequence the candidate taken (by index) and the tokens; and what that is worth.
pub(super) struct Choice {
    pub(super) picks: Vec<Option<(usize, usize)>>,
    pub(super) value: Value,
}

/// The choice with the most tokens a second; `candidates[i]` are those of sequence i.
pub(super) fn best(candidates: &[Vec<Candidate>], costs: &Costs) -> Choice {
    let plain = costs.value(&[], &[]);
    let mut best = Choice { picks: vec![None; candidates.len()], value: plain };
    let mut present = 0_u32;
    for candidate in candidates.iter().flatten() {
        present |= 1 << candidate.source.index();
    }
    for sources in 1..1_u32 << SourceKind::ALL.len() {
        // A single sequence has one source at a time.
        if sources & !present != 0 || (candidates.len() == 1 && sources.count_ones() > 1) {
            continue;
        }
        let taken: Vec<Option<usize>> =
            candidates.iter().map(|offered| favourite(offered, sources)).collect();
        let chosen: Vec<Option<&Candidate>> =
            candidates.iter().zip(&taken).map(|(c, t)| t.map(|t| &c[t])).collect();
        let mut counts = scan(&chosen, costs, |value| value.rate());
        without_laggards(&chosen, &mut counts, costs);
        let value = spread(costs, &chosen, &counts);
        if value.rate() > best.value.rate() {
            let picks = taken.iter().zip(&counts);
            let picks = picks.map(|(&t, &n)| t.filter(|_| n > 0).map(|t| (t, n))).collect();
            best = Choice { picks, value };
        }
    }
    best
}

/// The candidate of these sources from which a sequence may expect most.
fn favourite(offered: &[Candidate], sources: u32) -> Option<usize> {
    let hope = |c: &Candidate| c.survival.iter().take(4).sum::<f64>();
    (0..offered.len())
        .filter(|&i| sources & (1 << offered[i].source.index()) != 0)
        .max_by(|&a, &b| hope(&offered[a]).total_cmp(&hope(&offered[b])))
}

/// Tokens of each draft such that `worth` is largest.
pub(super) fn scan(
    chosen: &[Option<&Candidate>],
    costs: &Costs,
    worth: impl Fn(&Value) -> f64,
) -> Vec<usize> {
    let mut order: Vec<(f64, usize, usize)> = Vec::new();
    for (sequence, candidate) in chosen.iter().enumerate() {
        let Some(candidate) = candidate else { continue };
        order.extend(candidate.survival.iter().enumerate().map(|(i, &p)| (p, i, sequence)));
    }
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));

    let mut value = costs.value(&[], &[]);
    let (mut bytes, mut drafting) = (costs.plain_bytes(), [0.0; SourceKind::ALL.len()]);
    let mut uses = [Use::default(); SourceKind::ALL.len()];
    let (mut best, mut best_length) = (worth(&value), 0);
    for (length, &(chance, position, sequence)) in order.iter().enumerate() {
        let Some(candidate) = chosen[sequence] else { continue };
        let source = candidate.source.index();
        if position == 0 {
            uses[source].add(1, usual(candidate.behind));
        }
        uses[source].steps = uses[source].steps.max(position + 1);
        drafting[source] = costs.draft(candidate.source, &uses[source]);
        bytes += costs.missed_at(position + 1);
        value.tokens += chance;
        value.rows += 1;
        value.seconds = costs.pass(value.rows, bytes) + drafting.iter().sum::<f64>();
        if worth(&value) > best {
            (best, best_length) = (worth(&value), length + 1);
        }
    }
    let mut counts = vec![0; chosen.len()];
    for &(_, _, sequence) in &order[..best_length] {
        counts[sequence] += 1;
    }
    counts
}

/// Leaves out sequences whose source lags so much that the others are better off without.
fn without_laggards(chosen: &[Option<&Candidate>], counts: &mut [usize], costs: &Costs) {
    let mut rate = spread(costs, chosen, counts).rate();
    for sequence in 0..counts.len() {
        let lags = chosen[sequence].is_some_and(|candidate| candidate.behind > 0);
        if lags && counts[sequence] > 0 {
            let count = std::mem::take(&mut counts[sequence]);
            let without = spread(costs, chosen, counts).rate();
            if without > rate {
                rate = without;
            } else {
                counts[sequence] = count;
            }
        }
    }
}

/// The value with the catching up beyond the usual spread over the rounds to come.
fn spread(costs: &Costs, chosen: &[Option<&Candidate>], counts: &[usize]) -> Value {
    let mut value = costs.value(chosen, counts);
    if let Some(drafts) = &costs.drafts {
        for (candidate, _) in chosen.iter().zip(counts).filter(|(_, n)| **n > 0) {
            let Some(candidate) = candidate else { continue };
            let read = drafts[candidate.source.index()].map_or(0.0, |terms| terms[3]);
            value.seconds -= read * (candidate.behind - usual(candidate.behind)) as f64;
        }
    }
    value.seconds = value.seconds.max(1e-9);
    value
}

/// The part of a lag that counts for one round.
fn usual(behind: usize) -> usize {
    behind.min(USUAL_LAG) + behind.saturating_sub(USUAL_LAG) / PAYBACK
}
