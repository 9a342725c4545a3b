//! How likely a drafted token is to be accepted, by source, position and confidence.
//!
//! Every cell is a Beta count that forgets with every observation and leans on its confidence
//! bucket over all positions, which leans on a default. A position is only observed when all before
//! it were accepted, so the estimates are conditional and multiply to the survival of a draft.
//! When what happens differs from what was expected for some time, the past counts a quarter.

use std::collections::VecDeque;

use super::SourceKind;

/// Positions that are distinguished; later ones share the last.
pub(super) const POSITIONS: usize = 16;
/// Confidence buckets that are distinguished; higher numbers share the last.
pub(super) const BUCKETS: usize = 8;

/// Forgetting of a cell, of a bucket over all positions, and of the drafted confidences. Slow: a quick
/// change is seen by the surprise below, and a noisy estimate costs more than a late one.
const DECAY: f64 = 0.99;
const POOLED_DECAY: f64 = 0.995;
/// Observations the pooled mean is worth to a cell, and the default to the pooled mean.
const POOLED_STRENGTH: f64 = 8.0;
const DEFAULT_STRENGTH: f64 = 4.0;
/// Drafts remembered, to know what confidences to expect of the next.
const LAST: usize = 16;
/// A jump of acceptance that means another domain (specification, section 5).
const JUMP: f64 = 0.2;
/// Forgetting of the surprise that detects it: about the last 20 verified tokens.
const SURPRISE: f64 = 0.9;

#[derive(Clone, Copy, Default)]
struct Beta {
    accepted: f64,
    rejected: f64,
}

impl Beta {
    fn add(&mut self, accepted: bool, decay: f64) {
        self.scale(decay);
        if accepted {
            self.accepted += 1.0;
        } else {
            self.rejected += 1.0;
        }
    }

    fn scale(&mut self, by: f64) {
        self.accepted *= by;
        self.rejected *= by;
    }

    fn mean(&self, prior: f64, strength: f64) -> f64 {
        (self.accepted + strength * prior) / (self.accepted + self.rejected + strength)
    }
}

struct Table {
    /// `[position][bucket]`
    cells: [[Beta; BUCKETS]; POSITIONS],
    /// What the counts come to, kept up to date: it is read hundreds of times a round.
    chances: [[f64; BUCKETS]; POSITIONS],
    /// All positions together.
    buckets: [Beta; BUCKETS],
    /// How often a drafted token at each position had each confidence.
    drafted: [[f64; BUCKETS]; POSITIONS],
    /// The confidences of the last drafts, oldest first.
    last: VecDeque<Vec<u8>>,
    /// Forgetting mean of outcome less expectation, and of the variance of the outcome.
    surprise: f64,
    variance: f64,
    /// Tokens judged since the last change of domain.
    judged: u32,
    /// Drafts judged, for telling little evidence from much.
    rounds: f64,
}

/// The estimates of every source.
pub(super) struct Acceptance {
    tables: [Table; SourceKind::ALL.len()],
}

impl Default for Acceptance {
    fn default() -> Self {
        Acceptance { tables: SourceKind::ALL.map(Table::new) }
    }
}

impl Acceptance {
    /// The chance that the token at `position` (from 0) is accepted if all before it were;
    /// without a bucket, for a token of the confidence this source usually has there.
    pub(super) fn chance(&self, source: SourceKind, position: usize, bucket: Option<u8>) -> f64 {
        let table = &self.tables[source.index()];
        let position = position.min(POSITIONS - 1);
        if let Some(bucket) = bucket {
            return table.chances[position][usize::from(bucket).min(BUCKETS - 1)];
        }
        let usual = table.drafted[..=position]
            .iter()
            .rev()
            .find(|drafted| drafted.iter().sum::<f64>() > 0.5);
        let Some(drafted) = usual else {
            return 0.7 * FALLING[position];
        };
        let mean: f64 = drafted.iter().zip(&table.chances[position]).map(|(d, c)| d * c).sum();
        mean / drafted.iter().sum::<f64>()
    }

    /// Takes note of the confidences of a whole draft, verified or not.
    pub(super) fn drafted(&mut self, source: SourceKind, buckets: &[u8]) {
        let table = &mut self.tables[source.index()];
        if table.last.len() == LAST {
            table.last.pop_front();
        }
        table.last.push_back(buckets[..buckets.len().min(POSITIONS)].to_vec());
        for (drafted, &bucket) in table.drafted.iter_mut().zip(buckets) {
            drafted.iter_mut().for_each(|count| *count *= DECAY);
            drafted[usize::from(bucket).min(BUCKETS - 1)] += 1.0;
        }
    }

    /// Takes note of a verified draft: `accepted` of its tokens, the next one rejected if there is one.
    pub(super) fn judged(&mut self, source: SourceKind, buckets: &[u8], accepted: usize) {
        let table = &mut self.tables[source.index()];
        if !buckets.is_empty() {
            table.rounds += 1.0;
        }
        for (index, &bucket) in buckets.iter().enumerate().take(accepted.saturating_add(1)) {
            let position = index.min(POSITIONS - 1);
            let bucket = usize::from(bucket).min(BUCKETS - 1);
            let expected = table.chances[position][bucket];
            let outcome = if index < accepted { 1.0 } else { 0.0 };
            table.cells[position][bucket].add(index < accepted, DECAY);
            table.buckets[bucket].add(index < accepted, POOLED_DECAY);
            table.update(source, bucket);
            table.surprised(source, outcome - expected, expected * (1.0 - expected));
        }
    }

    /// The confidences of this source's last drafts.
    pub(super) fn last_drafts(&self, source: SourceKind) -> &VecDeque<Vec<u8>> {
        &self.tables[source.index()].last
    }

    /// Drafts of this source judged so far (less after a change of domain).
    pub(super) fn evidence(&self, source: SourceKind) -> f64 {
        self.tables[source.index()].rounds
    }
}

impl Table {
    fn new(source: SourceKind) -> Table {
        let mut table = Table {
            cells: Default::default(),
            chances: Default::default(),
            buckets: Default::default(),
            drafted: Default::default(),
            last: VecDeque::new(),
            surprise: 0.0,
            variance: 0.0,
            judged: 0,
            rounds: 0.0,
        };
        (0..BUCKETS).for_each(|bucket| table.update(source, bucket));
        table
    }

    fn update(&mut self, source: SourceKind, bucket: usize) {
        let pooled = self.buckets[bucket].mean(default_chance(source, bucket), DEFAULT_STRENGTH);
        for position in 0..POSITIONS {
            let prior = pooled * FALLING[position];
            self.chances[position][bucket] =
                self.cells[position][bucket].mean(prior, POOLED_STRENGTH);
        }
    }

    fn surprised(&mut self, source: SourceKind, by: f64, variance: f64) {
        self.surprise = SURPRISE * self.surprise + (1.0 - SURPRISE) * by;
        self.variance = SURPRISE * self.variance + (1.0 - SURPRISE) * variance;
        self.judged += 1;
        // Chance alone moves the mean of ~19 outcomes: a jump has to stand out of that as well.
        let noise = (self.variance * (1.0 - SURPRISE) / (1.0 + SURPRISE)).sqrt();
        if self.judged >= 5 && self.surprise.abs() > JUMP.max(2.5 * noise) {
            self.cells.as_flattened_mut().iter_mut().for_each(|cell| cell.scale(0.25));
            self.buckets.iter_mut().for_each(|cell| cell.scale(0.25));
            (self.surprise, self.judged) = (0.0, 0);
            self.rounds *= 0.25;
            (0..BUCKETS).for_each(|bucket| self.update(source, bucket));
        }
    }
}

/// Later tokens are a little harder, all else equal.
const FALLING: [f64; POSITIONS] = {
    let mut falling = [1.0; POSITIONS];
    let mut position = 1;
    while position < POSITIONS {
        falling[position] = 0.99 * falling[position - 1];
        position += 1;
    }
    falling
};

/// What to believe before anything was verified.
fn default_chance(source: SourceKind, bucket: usize) -> f64 {
    let confidence = bucket as f64 / (BUCKETS - 1) as f64;
    match source {
        SourceKind::NGram => 0.4 + 0.5 * confidence,
        _ => 0.5 + 0.4 * confidence,
    }
}

#[cfg(test)]
mod tests {
    use super::{Acceptance, SourceKind};

    #[test]
    fn what_is_verified_replaces_what_was_assumed() {
        let mut acceptance = Acceptance::default();
        let chance = |a: &Acceptance, position| a.chance(SourceKind::Mtp, position, Some(5));
        // The first token always, the second never.
        (0..100).for_each(|_| acceptance.judged(SourceKind::Mtp, &[5, 5, 5], 1));
        assert!(chance(&acceptance, 0) > 0.9 && chance(&acceptance, 1) < 0.1);
        // Another source and another confidence know nothing of it.
        assert!(acceptance.chance(SourceKind::Dflash, 1, Some(5)) > 0.6);
        assert!(acceptance.chance(SourceKind::Mtp, 1, Some(2)) > 0.5);
    }

    #[test]
    fn without_a_confidence_it_is_that_of_the_usual_draft() {
        let mut acceptance = Acceptance::default();
        for _ in 0..100 {
            acceptance.judged(SourceKind::Dflash, &[7], 1);
            acceptance.judged(SourceKind::Dflash, &[0], 0);
            acceptance.drafted(SourceKind::Dflash, &[7]);
            acceptance.drafted(SourceKind::Dflash, &[0]);
        }
        let usual = acceptance.chance(SourceKind::Dflash, 0, None);
        assert!((usual - 0.5).abs() < 0.05, "{usual}");
    }

    #[test]
    fn a_jump_makes_the_past_count_less() {
        let mut acceptance = Acceptance::default();
        let rounds_until = |acceptance: &mut Acceptance, accepted: usize, low: f64, high: f64| {
            (0..).find(|_| {
                acceptance.judged(SourceKind::NGram, &[4], accepted);
                (low..high).contains(&acceptance.chance(SourceKind::NGram, 0, Some(4)))
            })
        };
        (0..500).for_each(|_| acceptance.judged(SourceKind::NGram, &[4], 1));
        // A hundred effective observations alone would take about seventy rounds.
        assert!(rounds_until(&mut acceptance, 0, 0.0, 0.5) < Some(20));
        assert!(rounds_until(&mut acceptance, 1, 0.5, 1.0) < Some(20));
    }
}
