//! Which experts are used and read, counted while they are watched.
//!
//! Every bank has one. The backend counts uses, a bank that reads counts reads, and an observer takes the
//! counts. While they are not watched it costs one look at a flag for each layer of a step; its memory is
//! taken when the bank is made. It says nothing of when, and results never depend on it.
//!
//! How many experts several rows want together is counted always: the price of a draft depends on it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Rows of the largest visit whose union is counted.
const MOST_ROWS: usize = 64;

/// Counts of each expert of a model.
#[derive(Debug)]
pub struct Tally {
    is_watched: AtomicBool,
    /// By layer, then expert; empty for layers without.
    layers: Vec<Vec<Counts>>,
    /// By rows of a visit, from one: visits, and the distinct experts they wanted.
    unions: Vec<(AtomicU64, AtomicU64)>,
}

/// What all visits for so many rows wanted since the bank was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Union {
    /// Rows of each visit.
    pub rows: usize,
    /// Visits to layers.
    pub visits: u64,
    /// Distinct experts, summed over the visits. By visit and by experts of one row it is the union
    /// factor.
    pub experts: u64,
}

#[derive(Debug, Default)]
struct Counts {
    uses: AtomicU32,
    reads: AtomicU32,
}

/// What one expert was good for since the counts were last taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tallied {
    /// Its layer, layers without experts counted too.
    pub layer: usize,
    /// Its index in the layer.
    pub expert: u32,
    /// Rows that it was computed for.
    pub uses: u32,
    /// Times it was read.
    pub reads: u32,
}

impl Tally {
    /// For layers with so many experts each; 0 for those without.
    pub fn new(experts: impl IntoIterator<Item = usize>) -> Tally {
        let layer = |experts| (0..experts).map(|_| Counts::default()).collect();
        let layers = experts.into_iter().map(layer).collect();
        let unions = (0..MOST_ROWS).map(|_| Default::default()).collect();
        Tally { is_watched: AtomicBool::new(false), layers, unions }
    }

    /// A visit for so many rows wants so many distinct experts.
    pub fn count_union(&self, rows: usize, experts: usize) {
        if let Some((visits, distinct)) = rows.checked_sub(1).and_then(|row| self.unions.get(row)) {
            visits.fetch_add(1, Ordering::Relaxed);
            distinct.fetch_add(experts as u64, Ordering::Relaxed);
        }
    }

    /// How many experts visits wanted, by their rows: for each number up to 64 that there were visits of.
    pub fn unions(&self) -> Vec<Union> {
        let counts = self.unions.iter().map(|(visits, experts)| {
            (visits.load(Ordering::Relaxed), experts.load(Ordering::Relaxed))
        });
        let all = counts.zip(1..).map(|((visits, experts), rows)| Union { rows, visits, experts });
        all.filter(|union| union.visits > 0).collect()
    }

    /// Counts from now on, or no more.
    pub fn watch(&self, on: bool) {
        if on && !self.is_watched() {
            // What was counted as the last one looked away.
            self.take();
        }
        self.is_watched.store(on, Ordering::Relaxed);
    }

    /// Whether they are watched.
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// An expert was used for so many rows.
    pub fn count_use(&self, layer: usize, expert: u32, rows: usize) {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        self.counts(layer, expert, |counts| counts.uses.fetch_add(rows, Ordering::Relaxed));
    }

    /// An expert is read.
    pub fn count_read(&self, layer: usize, expert: u32) {
        self.counts(layer, expert, |counts| counts.reads.fetch_add(1, Ordering::Relaxed));
    }

    /// The experts that were used or read since the last call, in order.
    pub fn take(&self) -> Vec<Tallied> {
        let mut taken = Vec::new();
        for (layer, counts) in self.layers.iter().enumerate() {
            for (expert, counts) in counts.iter().enumerate() {
                // Most are zero, and a plain look is cheaper than an exchange.
                let take = |count: &AtomicU32| match count.load(Ordering::Relaxed) {
                    0 => 0,
                    _ => count.swap(0, Ordering::Relaxed),
                };
                let (uses, reads) = (take(&counts.uses), take(&counts.reads));
                if uses > 0 || reads > 0 {
                    taken.push(Tallied { layer, expert: expert as u32, uses, reads });
                }
            }
        }
        taken
    }

    fn counts(&self, layer: usize, expert: u32, count: impl FnOnce(&Counts) -> u32) {
        if self.is_watched()
            && let Some(counts) = self.layers.get(layer).and_then(|l| l.get(expert as usize))
        {
            count(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_once_and_only_while_watched() {
        let tally = Tally::new([2, 0, 3]);
        tally.count_use(0, 1, 4);
        assert_eq!(tally.take(), []);
        tally.watch(true);
        tally.count_use(0, 1, 4);
        tally.count_use(0, 1, 1);
        tally.count_read(2, 0);
        // Layers and experts that there are not.
        tally.count_use(1, 0, 1);
        tally.count_read(2, 3);
        tally.count_read(9, 0);
        let expect = [
            Tallied { layer: 0, expert: 1, uses: 5, reads: 0 },
            Tallied { layer: 2, expert: 0, uses: 0, reads: 1 },
        ];
        assert_eq!(tally.take(), expect);
        assert_eq!(tally.take(), []);
        tally.count_use(2, 2, 7);
        tally.watch(false);
        // The next watcher sees nothing of it.
        tally.watch(true);
        assert_eq!(tally.take(), []);
    }

    #[test]
    fn unions_are_counted_by_rows_whether_watched_or_not() {
        let tally = Tally::new([8]);
        assert_eq!(tally.unions(), []);
        for (rows, experts) in [(1, 2), (64, 8), (3, 5), (3, 4), (65, 8), (0, 0), (1000, 8)] {
            tally.count_union(rows, experts);
        }
        let union = |rows, visits, experts| Union { rows, visits, experts };
        assert_eq!(tally.unions(), [union(1, 1, 2), union(3, 2, 9), union(64, 1, 8)]);
        // They are sums, not taken by an observer.
        assert_eq!(tally.unions().len(), 3);
    }
}
