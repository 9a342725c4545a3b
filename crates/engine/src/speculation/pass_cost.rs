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

/// The measured cost of passes.
#[derive(Default)]
pub(super) struct PassCost {
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
    pub(super) fn observe(&mut self, rows: usize, bytes: u64, seconds: f64) {
        let sensible = seconds > 0.0 && seconds < MOST_SECONDS;
        if !sensible || rows == 0 || rows > MOST_ROWS {
            return;
        }
        self.passes += 1;
        let bytes = bytes as f64;
        let byte = self.byte();
        // Before a row count has samples of its own, its neighbours say what is out of the question.
        let foretold = (!self.cells.is_empty()).then(|| self.net(rows, &self.line()) + byte * bytes);
        let passes = self.passes;
        let cell = self.cells.entry(rows).or_default();
        cell.last = passes;
        if cell.young.len() < YOUNG {
            let first = foretold.filter(|_| cell.young.is_empty()).unwrap_or(seconds);
            cell.young.push(seconds.min(2.0 * first));
            let mut sorted = cell.young.clone();
            sorted.sort_by(f64::total_cmp);
            let middle = sorted[(sorted.len() - 1) / 2];
            let clipped = sorted.iter().map(|s| s.clamp(CLIP.0 * middle, CLIP.1 * middle));
            cell.seconds = clipped.sum::<f64>() / sorted.len() as f64;
            cell.bytes += (bytes - cell.bytes) / sorted.len() as f64;
            cell.weight = sorted.len() as f64;
            return;
        }
        let more = bytes - cell.bytes;
        let expected = (cell.seconds + byte * more).max(CLIP.0 * cell.seconds);
        let seconds = seconds.clamp(CLIP.0 * expected, CLIP.1 * expected);
        self.covariance = BYTES_DECAY * self.covariance + more * (seconds - cell.seconds);
        self.variance = BYTES_DECAY * self.variance + more * more;
        cell.weight = DECAY * cell.weight + 1.0;
        cell.seconds += (seconds - cell.seconds) / cell.weight;
        cell.bytes += more / cell.weight;
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
        self.seconds(sequences, sequences as f64 * self.missed_at(0))
    }

    /// Seconds of a pass of `rows` rows apart from its missed bytes, for every row count up to `most`.
    pub(super) fn curve(&self, most: usize) -> Vec<f64> {
        let line = self.line();
        (0..=most).map(|rows| if rows == 0 { 0.0 } else { self.net(rows, &line) }).collect()
    }

    /// How often this row count was measured, less if that is long ago.
    pub(super) fn evidence(&self, rows: usize) -> f64 {
        self.cells.get(&rows).map_or(0.0, |cell| {
            let age = (self.passes - cell.last).min(100_000) as f64;
            cell.weight * (-age / 500.0).exp()
        })
    }

    /// Seconds by which a row count is dearer than its neighbours suggest.
    pub(super) fn excess(&self, rows: usize) -> f64 {
        let line = self.line();
        (self.net(rows, &line) - self.between(rows, Some(rows), &line)).max(0.0)
    }

    /// The largest row count up to this one that was measured, or else this one.
    pub(super) fn measured_below(&self, rows: usize) -> usize {
        self.cells.range(..=rows).next_back().map_or(rows, |(&measured, _)| measured)
    }

    /// The straight line through everything measured.
    pub(super) fn line(&self) -> Line {
        let byte = self.byte();
        let total: f64 = self.cells.values().map(|cell| cell.weight).sum();
        let Some((&least, first)) = self.cells.first_key_value().filter(|_| total > 0.0) else {
            return Line { base: 0.0, row: 0.0, byte };
        };
        let net = |cell: &Cell| (cell.seconds - byte * cell.bytes).max(0.0);
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
        let between = |skip: Option<usize>| self.between(rows, skip, line);
        match self.cells.get(&rows) {
            None => between(None),
            Some(cell) => {
                let own = (cell.seconds - line.byte * cell.bytes).max(0.0);
                if self.cells.len() == 1 {
                    return own;
                }
                // A single sample leans on its neighbours, many do not.
                (cell.weight * own + 0.5 * between(Some(rows))) / (cell.weight + 0.5)
            }
        }
    }

    /// What the measured neighbours of a row count say about it.
    fn between(&self, rows: usize, skip: Option<usize>, line: &Line) -> f64 {
        let net = |(&rows, cell): (&usize, &Cell)| {
            (rows as f64, (cell.seconds - line.byte * cell.bytes).max(0.0))
        };
        let below = self.cells.range(..=rows).rev().find(|(r, _)| Some(**r) != skip).map(net);
        let above = self.cells.range(rows..).find(|(r, _)| Some(**r) != skip).map(net);
        let at = rows as f64;
        match (below, above) {
            (Some((low, before)), Some((high, after))) if high > low => {
                before + (after - before) * (at - low) / (high - low)
            }
            (Some((low, before)), _) => before + line.row * (at - low),
            // Fewer rows than ever measured: less, but not out of proportion.
            (None, Some((high, after))) => {
                (after - line.row * (high - at)).max(after * (at / high).max(0.3))
            }
            (None, None) => 0.0,
        }
    }
}
