//! What a pass of the model costs: seconds by rows and by expert bytes missed.
//!
//! Every row count keeps its own forgetting mean of seconds and bytes, since real curves have steps; a
//! straight line through all of them stands in where nothing was measured. A row count forgets only
//! when it is measured again, so that a long stretch of verifying does not wipe out what a plain pass
//! costs. One slow pass is clipped; several in a row are believed.

use std::collections::BTreeMap;

use super::acceptance::POSITIONS;

/// Forgetting of a row count, by its own observations.
const DECAY: f64 = 0.98;
/// Forgetting of the seconds-a-byte regression.
const BYTES_DECAY: f64 = 0.99;
/// Samples of a row count after which its mean is trusted to clip the next.
const YOUNG: usize = 5;
/// A sample counts as at most and at least this much of what was expected.
const CLIP: (f64, f64) = (0.5, 1.6);
/// Seconds another row is assumed to add before it was measured, relative to the first row.
const ASSUMED_ROW: f64 = 0.5;
/// Passes over which missed bytes are averaged: they scatter more than anything else.
const MISSED_MEMORY: f64 = 50.0;
const MOST_ROWS: usize = 4096;
/// A pass of an hour says nothing about passes.
const MOST_SECONDS: f64 = 3600.0;

#[derive(Clone, Default)]
struct Cell {
    /// The first samples, until there are enough to have a mean.
    young: Vec<f64>,
    seconds: f64,
    bytes: f64,
    weight: f64,
    /// The pass at which it was last measured.
    last: u64,
}

impl Cell {
    /// Takes a sample, clipped to what is expected. Returns by how much bytes and seconds differ from
    /// the mean before, once there is one.
    fn observe(
        &mut self,
        pass: u64,
        bytes: f64,
        byte: f64,
        seconds: f64,
        foretold: Option<f64>,
    ) -> Option<(f64, f64)> {
        self.last = pass;
        let more = bytes - self.bytes;
        if self.young.len() < YOUNG {
            let first = foretold.filter(|_| self.young.is_empty()).unwrap_or(seconds);
            self.young.push(seconds.min(2.0 * first));
            let mut sorted = self.young.clone();
            sorted.sort_by(f64::total_cmp);
            let middle = sorted[(sorted.len() - 1) / 2];
            let clipped = sorted.iter().map(|s| s.clamp(CLIP.0 * middle, CLIP.1 * middle));
            self.seconds = clipped.sum::<f64>() / sorted.len() as f64;
            self.weight = sorted.len() as f64;
            self.bytes += more / self.weight;
            return None;
        }
        let expected = (self.seconds + byte * more).max(CLIP.0 * self.seconds);
        let slower = seconds.clamp(CLIP.0 * expected, CLIP.1 * expected) - self.seconds;
        self.weight = DECAY * self.weight + 1.0;
        self.seconds += slower / self.weight;
        self.bytes += more / self.weight;
        Some((more, slower))
    }

    /// How often it was measured, less if that is long ago.
    fn evidence(&self, passes: u64) -> f64 {
        let age = (passes - self.last).min(100_000) as f64;
        self.weight * (-age / 500.0).exp()
    }

    /// Seconds apart from missed bytes.
    fn net(&self, byte: f64) -> f64 {
        (self.seconds - byte * self.bytes).max(0.0)
    }
}

/// The measured cost of passes.
#[derive(Default)]
pub(super) struct PassCost {
    /// Plain passes only, by sequences: what everything is compared with is not mixed with verifying.
    plain: BTreeMap<usize, Cell>,
    /// All passes, by rows.
    cells: BTreeMap<usize, Cell>,
    /// Within row counts: covariance of bytes and seconds, variance of bytes.
    covariance: f64,
    variance: f64,
    /// Bytes first missed by a row at each depth, and how often that was seen.
    missed: [(f64, f64); POSITIONS + 1],
    /// Share of the wanted expert bytes that plain passes missed.
    missed_share: f64,
    passes: u64,
}

/// One straight line through all measurements: seconds = base + row · (rows − 1) + byte · bytes.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) base: f64,
    pub(super) row: f64,
    pub(super) byte: f64,
}

impl PassCost {
    /// Passes measured so far.
    pub(super) fn passes(&self) -> u64 {
        self.passes
    }

    /// Takes note of a pass; nonsense times are ignored.
    pub(super) fn observe(&mut self, rows: usize, sequences: usize, bytes: u64, seconds: f64) {
        let sensible = seconds > 0.0 && seconds < MOST_SECONDS;
        if !sensible || rows == 0 || rows > MOST_ROWS {
            return;
        }
        self.passes += 1;
        let bytes = bytes as f64;
        let byte = self.byte();
        // Before a row count has samples of its own, its neighbours say what is out of the question.
        let foretold = (!self.cells.is_empty()).then(|| self.seconds(rows, bytes));
        let cell = self.cells.entry(rows).or_default();
        let sample = cell.observe(self.passes, bytes, byte, seconds, foretold);
        if let Some((more, seconds)) = sample {
            self.covariance = BYTES_DECAY * self.covariance + more * seconds;
            self.variance = BYTES_DECAY * self.variance + more * more;
        }
        if rows == sequences {
            let cell = self.plain.entry(rows).or_default();
            cell.observe(self.passes, bytes, byte, seconds, None);
        }
    }

    /// Takes note of the bytes missed by depth: `bytes[i]` over `rows[i]` rows at depth i.
    pub(super) fn observe_missed(&mut self, bytes: &[u64], rows: &[usize]) {
        for ((missed, &bytes), &rows) in self.missed.iter_mut().zip(bytes).zip(rows) {
            if rows > 0 {
                let each = bytes as f64 / rows as f64;
                missed.1 += 1.0;
                missed.0 += (each - missed.0) / missed.1.min(MISSED_MEMORY);
            }
        }
    }

    /// Takes note of how much of what a plain pass wanted was missing.
    pub(super) fn observe_share(&mut self, missed: u64, wanted: u64) {
        if wanted > 0 {
            let share = (missed as f64 / wanted as f64).min(1.0);
            self.missed_share += 0.1 * (share - self.missed_share);
        }
    }

    /// Share of the wanted expert bytes that plain passes miss.
    pub(super) fn missed_share(&self) -> f64 {
        self.missed_share
    }

    /// Bytes a row at `depth` is expected to miss; depth 0 is the row that is no draft. Where
    /// none was seen, as many as the deepest before it.
    pub(super) fn missed_at(&self, depth: usize) -> f64 {
        let seen = self.missed[..=depth.min(POSITIONS)].iter().rev().find(|missed| missed.1 > 0.0);
        seen.map_or(0.0, |missed| missed.0)
    }

    /// Seconds a missed byte costs, from how passes of the same row count differ.
    pub(super) fn byte(&self) -> f64 {
        if self.variance > 0.0 { (self.covariance / self.variance).max(0.0) } else { 0.0 }
    }

    /// Seconds of a pass of `rows` rows that misses `bytes`.
    pub(super) fn seconds(&self, rows: usize, bytes: f64) -> f64 {
        let line = self.line();
        (self.net(rows.max(1), &line) + line.byte * bytes).max(1e-9)
    }

    /// Seconds of a plain pass.
    pub(super) fn plain(&self, sequences: usize) -> f64 {
        let bytes = sequences as f64 * self.missed_at(0);
        (self.plain_net(sequences) + self.byte() * bytes).max(1e-9)
    }

    /// Seconds of a plain pass apart from its missed bytes.
    pub(super) fn plain_net(&self, sequences: usize) -> f64 {
        match self.plain.get(&sequences) {
            Some(cell) if cell.weight >= 3.0 => cell.net(self.byte()),
            _ => self.net(sequences.max(1), &self.line()),
        }
    }

    /// How often a plain pass of so many sequences was measured, less if that is long ago.
    pub(super) fn plain_evidence(&self, sequences: usize) -> f64 {
        self.plain.get(&sequences).map_or(0.0, |cell| cell.evidence(self.passes))
    }

    /// Seconds of a pass of `rows` rows apart from its missed bytes, for every row count up to `most`.
    pub(super) fn curve(&self, most: usize) -> Vec<f64> {
        let line = self.line();
        let points: Vec<(usize, f64, f64)> = self
            .cells
            .iter()
            .map(|(&rows, cell)| (rows, cell.net(line.byte), cell.weight))
            .collect();
        let point = |index: usize| points.get(index).map(|&(rows, net, _)| (rows as f64, net));
        let mut curve = vec![0.0; most + 1];
        // The number of measured row counts below the one at hand.
        let mut below = 0_usize;
        for (rows, seconds) in curve.iter_mut().enumerate().skip(1) {
            let before = below.checked_sub(1).and_then(point);
            match points.get(below) {
                Some(&(measured, own, weight)) if measured == rows => {
                    let others = between(rows, before, point(below + 1), &line);
                    *seconds = if points.len() == 1 { own } else { lean(own, weight, others) };
                    below += 1;
                }
                _ => *seconds = between(rows, before, point(below), &line),
            }
        }
        curve
    }

    /// How often this row count was measured, less if that is long ago.
    pub(super) fn evidence(&self, rows: usize) -> f64 {
        self.cells.get(&rows).map_or(0.0, |cell| cell.evidence(self.passes))
    }

    /// The largest smaller row count that was measured a few times not long ago, or 0.
    pub(super) fn known_below(&self, rows: usize) -> usize {
        let known = |cell: &Cell| cell.evidence(self.passes) >= 2.5;
        let below = self.cells.range(..rows).rev().find(|(_, cell)| known(cell));
        below.map_or(0, |(&measured, _)| measured)
    }

    /// The straight line through everything measured.
    pub(super) fn line(&self) -> Line {
        let byte = self.byte();
        let total: f64 = self.cells.values().map(|cell| cell.weight).sum();
        let Some((&least, first)) = self.cells.first_key_value().filter(|_| total > 0.0) else {
            return Line { base: 0.0, row: 0.0, byte };
        };
        let net = |cell: &Cell| cell.net(byte);
        let mean = |value: &dyn Fn(usize, &Cell) -> f64| {
            self.cells.iter().map(|(&r, cell)| cell.weight * value(r, cell)).sum::<f64>() / total
        };
        let mean_rows = mean(&|rows, _| rows as f64);
        let mean_net = mean(&|_, cell| net(cell));
        let (mut spread, mut common) = (0.0, 0.0);
        for (&rows, cell) in &self.cells {
            let distance = rows as f64 - mean_rows;
            spread += cell.weight * distance * distance;
            common += cell.weight * distance * (net(cell) - mean_net);
        }
        // The assumption weighs as much as half a measurement one row away.
        let assumed = ASSUMED_ROW * net(first) / (1.0 + ASSUMED_ROW * (least as f64 - 1.0));
        let row = ((common + 0.5 * assumed) / (spread + 0.5)).max(0.0);
        Line { base: (mean_net - row * (mean_rows - 1.0)).max(0.0), row, byte }
    }

    /// Seconds of a pass apart from missed bytes.
    fn net(&self, rows: usize, line: &Line) -> f64 {
        let others = self.others(rows, line);
        match self.cells.get(&rows) {
            None => others,
            Some(cell) if self.cells.len() == 1 => cell.net(line.byte),
            Some(cell) => lean(cell.net(line.byte), cell.weight, others),
        }
    }

    /// What the measured neighbours of a row count say about it.
    fn others(&self, rows: usize, line: &Line) -> f64 {
        let point = |(&rows, cell): (&usize, &Cell)| (rows as f64, cell.net(line.byte));
        let before = self.cells.range(..rows).next_back().map(point);
        let after = self.cells.range(rows + 1..).next().map(point);
        between(rows, before, after, line)
    }
}

/// A single sample leans on its neighbours, many do not.
fn lean(own: f64, weight: f64, others: f64) -> f64 {
    (weight * own + 0.5 * others) / (weight + 0.5)
}

/// Seconds between two measured row counts, or beyond the only one.
fn between(rows: usize, before: Option<(f64, f64)>, after: Option<(f64, f64)>, line: &Line) -> f64 {
    let at = rows as f64;
    match (before, after) {
        (Some((low, before)), Some((high, after))) => {
            before + (after - before) * (at - low) / (high - low)
        }
        (Some((low, before)), None) => before + line.row * (at - low),
        // Fewer rows than ever measured: less, but not out of proportion.
        (None, Some((high, after))) => {
            (after - line.row * (high - at)).max(after * (at / high).max(0.3))
        }
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::PassCost;

    #[track_caller]
    fn check(cost: &PassCost, rows: usize, bytes: f64, expect: f64) {
        let is = cost.seconds(rows, bytes);
        assert!((is / expect - 1.0).abs() < 0.05, "{rows} rows, {bytes} bytes: {is}, not {expect}");
    }

    #[test]
    fn before_it_is_measured_a_row_adds_half_a_pass() {
        let mut cost = PassCost::default();
        (0..8).for_each(|_| cost.observe(1, 1, 0, 0.04));
        check(&cost, 1, 0.0, 0.04);
        check(&cost, 2, 0.0, 0.06);
        check(&cost, 5, 0.0, 0.12);
    }

    #[test]
    fn steps_are_kept_and_gaps_are_bridged() {
        let mut cost = PassCost::default();
        for _ in 0..20 {
            for (rows, seconds) in [(1, 0.039), (5, 0.096), (6, 0.151), (8, 0.181)] {
                cost.observe(rows, 1, 0, seconds);
            }
        }
        check(&cost, 5, 0.0, 0.096);
        check(&cost, 6, 0.0, 0.151);
        check(&cost, 3, 0.0, 0.0675);
        check(&cost, 7, 0.0, 0.166);
    }

    #[test]
    fn one_slow_pass_is_clipped_and_many_are_believed() {
        let mut cost = PassCost::default();
        // The very first is slow, and one later.
        for pass in 0..30 {
            cost.observe(1, 1, 0, if pass == 0 || pass == 20 { 0.2 } else { 0.04 });
        }
        check(&cost, 1, 0.0, 0.04);
        (0..200).for_each(|_| cost.observe(1, 1, 0, 0.2));
        check(&cost, 1, 0.0, 0.2);
    }

    #[test]
    fn missed_bytes_are_distinguished_from_rows() {
        let mut cost = PassCost::default();
        for pass in 0..200_u64 {
            let (rows, bytes) = (1 + pass as usize % 3, (pass * 7919) % 1000 * 10_000);
            let seconds = 0.01 + 0.002 * (rows as f64 - 1.0) + 2e-9 * bytes as f64;
            cost.observe(rows, 1, bytes, seconds);
        }
        check(&cost, 1, 0.0, 0.01);
        check(&cost, 3, 5e6, 0.024);
        check(&cost, 2, 1e7, 0.032);
    }

    #[test]
    fn plain_passes_of_several_sequences_are_not_mixed_with_verifying_one() {
        let mut cost = PassCost::default();
        for _ in 0..50 {
            cost.observe(1, 1, 0, 0.01);
            cost.observe(4, 1, 0, 0.02);
            cost.observe(4, 4, 0, 0.03);
        }
        assert!((cost.plain(4) - 0.03).abs() < 1e-3, "{}", cost.plain(4));
    }
}
