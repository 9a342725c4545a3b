//! What drafting costs, by source: a fixed part, a part a step, a part a step and further sequence,
//! and a part a token read to catch up.
//!
//! Least squares that forgets, held non-negative, with a weak prior relative to a plain pass: where the
//! same length is drafted again and again, its cost is known exactly and that of others roughly.

use super::SourceKind;

const DECAY: f64 = 0.98;
/// How much of an observation the prior weighs.
const PRIOR: f64 = 0.05;
const TERMS: usize = 4;
const MOST_SECONDS: f64 = 3600.0;

type Terms = [f64; TERMS];

#[derive(Clone, Default)]
struct Fit {
    /// Normal equations: forgetting sums of x·xᵀ and x·seconds.
    square: [Terms; TERMS],
    right: Terms,
    weight: f64,
    solution: Terms,
}

/// The measured cost of drafting, by source.
#[derive(Default)]
pub(super) struct DraftCosts {
    fits: [Fit; SourceKind::ALL.len()],
}

fn terms(steps: usize, sequences: usize, read: usize) -> Terms {
    let further = sequences.saturating_sub(1);
    [1.0, steps as f64, (steps as f64) * (further as f64), read as f64]
}

/// Before it was measured, relative to a plain pass.
fn prior(source: SourceKind) -> Terms {
    match source {
        SourceKind::NGram | SourceKind::Oracle => [0.0; TERMS],
        SourceKind::DraftModel => [0.0, 0.15, 0.05, 0.05],
        SourceKind::Mtp => [0.0, 0.1, 0.03, 0.03],
        SourceKind::Dflash => [0.25, 0.0, 0.02, 0.02],
    }
}

impl DraftCosts {
    /// Takes note of a draft; nonsense times are ignored. `plain` is the seconds of a plain pass.
    pub(super) fn observe(
        &mut self,
        source: SourceKind,
        steps: usize,
        sequences: usize,
        read: usize,
        seconds: f64,
        plain: f64,
    ) {
        if !(0.0..MOST_SECONDS).contains(&seconds) {
            return;
        }
        let x = terms(steps, sequences, read);
        let known = self.fits[source.index()].weight >= 3.0;
        let expected = dot(&self.terms(source, plain), &x);
        let seconds = if known { seconds.min(3.0 * expected + 0.05 * plain) } else { seconds };
        let fit = &mut self.fits[source.index()];
        fit.weight = DECAY * fit.weight + 1.0;
        for i in 0..TERMS {
            for j in 0..TERMS {
                fit.square[i][j] = DECAY * fit.square[i][j] + x[i] * x[j];
            }
            fit.right[i] = DECAY * fit.right[i] + x[i] * seconds;
        }
        fit.solve(&prior(source).map(|share| share * plain));
    }

    /// Seconds such a draft is expected to take.
    pub(super) fn seconds(
        &self,
        source: SourceKind,
        steps: usize,
        sequences: usize,
        read: usize,
        plain: f64,
    ) -> f64 {
        draft_seconds(&self.terms(source, plain), steps, sequences, read)
    }

    /// The coefficients of a source, in seconds.
    pub(super) fn terms(&self, source: SourceKind, plain: f64) -> DraftTerms {
        let fit = &self.fits[source.index()];
        if fit.weight > 0.0 { fit.solution } else { prior(source).map(|share| share * plain) }
    }
}

impl Fit {
    /// Coordinate descent on the normal equations, held at zero from below.
    fn solve(&mut self, prior: &Terms) {
        let solution = &mut self.solution;
        *solution = *prior;
        for _ in 0..12 {
            for i in 0..TERMS {
                let all: f64 = (0..TERMS).map(|j| self.square[i][j] * solution[j]).sum();
                let right =
                    self.right[i] + PRIOR * prior[i] - all + self.square[i][i] * solution[i];
                solution[i] = (right / (self.square[i][i] + PRIOR)).max(0.0);
            }
        }
    }
}

/// Coefficients of one source.
pub(super) type DraftTerms = [f64; TERMS];

/// Seconds of a draft of `steps` for `sequences` that reads `read` tokens first.
pub(super) fn draft_seconds(
    solution: &DraftTerms,
    steps: usize,
    sequences: usize,
    read: usize,
) -> f64 {
    dot(solution, &terms(steps, sequences, read))
}

fn dot(a: &Terms, b: &Terms) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
