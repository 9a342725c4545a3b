//! What a bank counts.

use std::time::{Duration, Instant};

/// Counts since the bank was made.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Experts that were in memory when they were wanted.
    pub hits: u64,
    /// Experts that had to be read.
    pub misses: u64,
    /// Experts that were read before they were wanted.
    pub ahead: u64,
    /// Those of them that then were.
    pub ahead_used: u64,
    /// Experts that could not be read.
    pub failed: u64,
    /// Time threads stood still because of reads.
    pub waited: Duration,
    /// What the reader saw.
    pub reads: crate::reader::Statistics,
}

impl Statistics {
    /// Share of the wanted experts that were in memory.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.misses;
        if all == 0 { 1.0 } else { self.hits as f64 / all as f64 }
    }
}

/// Depths of drafted rows that are counted apart; deeper ones count with the deepest.
const DEPTHS: usize = 17;

/// What was wanted and missed since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Bytes that had to be read, by the least depth of the rows that wanted them: 0 for rows that are
    /// certain, all those of a step without drafted ones; the last for its own depth and all deeper.
    pub bytes: [u64; DEPTHS],
    /// Experts wanted.
    pub wanted: u64,
    /// Those of them that were in memory.
    pub found: u64,
}

impl Missed {
    /// Bytes of all depths.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    pub(crate) fn add(&mut self, depth: u8, bytes: u64) {
        self.bytes[usize::from(depth).min(DEPTHS - 1)] += bytes;
    }
}

/// One visit to a layer.
#[derive(Clone, Copy, Debug)]
pub struct VisitRecord {
    /// The layer.
    pub layer: usize,
    /// Rows it was for.
    pub rows: usize,
    /// Experts that were there.
    pub hits: usize,
    /// Experts that were not.
    pub misses: usize,
    /// Bytes read for them.
    pub missed_bytes: u64,
    /// When it began.
    pub started: Instant,
    /// When the last expert was released.
    pub ended: Instant,
    /// Time threads stood still.
    pub waited: Duration,
}

/// What a thread did during a visit.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    /// The layer.
    pub layer: usize,
    /// When it began.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
    /// Experts it computed with; zero if it stood still.
    pub experts: usize,
}
