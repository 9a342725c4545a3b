//! A made-up machine for the tests of the controller: true acceptance, true costs, seeded noise.
//!
//! It knows what the controller has to find out, and keeps its own books: seconds without noise and the
//! tokens to be expected, so that a test compares policies and not luck. No clock, no model.

use super::SourceKind;
use super::controller::{Controller, DraftCost, Drafted, Offer, Pass, Pick, Settings, Verdict};

/// A small seeded generator (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The true chance of acceptance: of a sequence's token at a position (from 0) with a confidence, in a
/// draft of which so many tokens are verified.
pub(super) type Chance = Box<dyn Fn(Token) -> f64>;

#[derive(Clone, Copy)]
pub(super) struct Token {
    pub(super) position: usize,
    pub(super) bucket: u8,
    pub(super) verified: usize,
}

/// A source of drafts.
pub(super) struct Source {
    pub(super) kind: SourceKind,
    pub(super) chance: Chance,
    /// Confidences its tokens have, each as likely.
    pub(super) buckets: Vec<u8>,
    /// Whether the confidence is one for the draft and known before.
    pub(super) foretells: bool,
    pub(super) fixed: f64,
    pub(super) step: f64,
    pub(super) read: f64,
    /// Whether it lags when it is not used.
    pub(super) lags: bool,
}

impl Source {
    pub(super) fn new(kind: SourceKind, chance: impl Fn(Token) -> f64 + 'static) -> Source {
        Source {
            kind,
            chance: Box::new(chance),
            buckets: vec![5],
            foretells: kind == SourceKind::NGram,
            fixed: 0.0,
            step: 0.0,
            read: 0.0,
            lags: false,
        }
    }

    /// Accepts each token with the same chance.
    pub(super) fn steady(kind: SourceKind, chance: f64) -> Source {
        Source::new(kind, move |_| chance)
    }
}

/// Experts that are streamed.
#[derive(Clone, Copy)]
pub(super) struct Misses {
    /// Bytes a plain row misses on average, and wants.
    pub(super) missed: f64,
    pub(super) wanted: f64,
    /// Of that, what each further row of a sequence misses.
    pub(super) further: f64,
    pub(super) seconds_a_byte: f64,
}

pub(super) struct World {
    /// True seconds by rows.
    pub(super) curve: Box<dyn Fn(usize) -> f64>,
    pub(super) sources: Vec<Source>,
    pub(super) misses: Option<Misses>,
    pub(super) sequences: usize,
    pub(super) most: usize,
    /// Timing noise: ± this share, and how often a pass takes five times as long.
    pub(super) noise: f64,
    pub(super) outliers: f64,
    pub(super) random: Random,
    /// Tokens each source lags behind, by sequence.
    pub(super) lag: Vec<Vec<usize>>,
}

/// What a stretch of rounds came to, without noise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    /// Tokens to be expected of what was verified.
    pub(super) tokens: f64,
    pub(super) verified: usize,
    pub(super) speculative: usize,
    /// Seconds plain decoding takes for the same tokens.
    pub(super) plain_seconds: f64,
    /// Drafts by source.
    pub(super) drafts: [usize; 5],
}

impl Sum {
    /// How much faster than plain decoding.
    pub(super) fn gain(&self) -> f64 {
        self.plain_seconds / self.seconds
    }

    pub(super) fn mean_verified(&self) -> f64 {
        self.verified as f64 / self.rounds as f64
    }
}

impl World {
    pub(super) fn new(curve: impl Fn(usize) -> f64 + 'static, sources: Vec<Source>) -> World {
        World {
            curve: Box::new(curve),
            sources,
            misses: None,
            sequences: 1,
            most: 16,
            noise: 0.2,
            outliers: 0.01,
            random: Random(1),
            lag: Vec::new(),
        }
    }

    pub(super) fn controller(&self) -> Controller {
        Controller::new(Settings { most: 16, streams: self.misses.is_some() })
    }

    /// Seconds of a pass on average.
    fn pass_seconds(&self, rows: usize, sequences: usize) -> f64 {
        let bytes = self.misses.map_or(0.0, |m| {
            let further = (rows - sequences) as f64 * m.further;
            m.seconds_a_byte * m.missed * (sequences as f64 + further)
        });
        (self.curve)(rows) + bytes
    }

    /// The gain of always verifying the best same number of tokens for one sequence, none included.
    pub(super) fn best_gain(&self) -> (usize, f64) {
        let plain = self.pass_seconds(1, 1);
        let mut best = (0, 1.0);
        for source in &self.sources {
            for count in 1..=self.most {
                let mut tokens = 1.0;
                let mut all = 1.0;
                for position in 0..count {
                    let of_bucket = source.buckets.iter().map(|&bucket| {
                        (source.chance)(Token { position, bucket, verified: count })
                    });
                    all *= of_bucket.sum::<f64>() / source.buckets.len() as f64;
                    tokens += all;
                }
                let draft = source.fixed + source.step * count as f64;
                let gain = tokens * plain / (self.pass_seconds(count + 1, 1) + draft);
                if gain > best.1 {
                    best = (count, gain);
                }
            }
        }
        best
    }

    fn noisy(&mut self, seconds: f64) -> f64 {
        let noise = 1.0 + self.noise * (2.0 * self.random.share() - 1.0);
        let outlier = if self.random.share() < self.outliers { 5.0 } else { 1.0 };
        seconds * noise * outlier
    }

    fn bucket(&mut self, source: usize) -> u8 {
        let buckets = &self.sources[source].buckets;
        buckets[self.random.next() as usize % buckets.len()]
    }

    /// Runs so many rounds and sums them up.
    pub(super) fn run(&mut self, controller: &mut Controller, rounds: usize) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..rounds {
            self.round(controller, &mut sum);
        }
        sum
    }

    fn round(&mut self, controller: &mut Controller, sum: &mut Sum) {
        let sequences = self.sequences;
        self.lag.resize(sequences, vec![0; self.sources.len()]);
        let mut offers = Vec::new();
        for sequence in 0..sequences {
            let mut of_sequence = Vec::new();
            for source in 0..self.sources.len() {
                let bucket = self.sources[source].foretells.then(|| self.bucket(source));
                of_sequence.push(Offer {
                    source: self.sources[source].kind,
                    most: self.most,
                    behind: self.lag[sequence][source],
                    bucket,
                });
            }
            offers.push(of_sequence);
        }
        let picks = controller.plan(&offers);
        assert_eq!(picks.len(), sequences);

        // Draft.
        let mut buckets: Vec<Vec<u8>> = vec![Vec::new(); sequences];
        let mut cost = vec![(0, 0, 0); self.sources.len()];
        for (sequence, pick) in picks.iter().enumerate() {
            let Some(Pick { offer, count }) = *pick else { continue };
            assert!(count >= 1 && count <= self.most);
            buckets[sequence] = (0..count)
                .map(|_| offers[sequence][offer].bucket.unwrap_or_else(|| self.bucket(offer)))
                .collect();
            let (steps, drafting, read) = &mut cost[offer];
            *steps = count.max(*steps);
            *drafting += 1;
            *read += self.lag[sequence][offer];
            self.lag[sequence][offer] = 0;
            sum.drafts[self.sources[offer].kind as usize] += 1;
        }
        for (source, &(tokens, drafting, read)) in cost.iter().enumerate() {
            if drafting > 0 {
                let from = &self.sources[source];
                let further = 1.0 + 0.3 * (drafting - 1) as f64;
                let mut seconds = from.fixed + from.step * tokens as f64 * further;
                seconds += from.read * read as f64;
                let kind = from.kind;
                sum.seconds += seconds;
                let seconds = self.noisy(seconds);
                let cost = DraftCost { source: kind, sequences: drafting, tokens, read, seconds };
                controller.observe_draft(&cost);
            }
        }
        let drafts: Vec<Option<Drafted<'_>>> = (picks.iter().zip(&buckets))
            .map(|(pick, buckets)| {
                pick.map(|pick| Drafted { source: self.sources[pick.offer].kind, buckets })
            })
            .collect();
        let counts = controller.trim(&drafts);
        assert_eq!(counts.len(), sequences);

        // Verify.
        let rows = sequences + counts.iter().sum::<usize>();
        let mut tokens = sequences as f64;
        for sequence in 0..sequences {
            let Some(pick) = picks[sequence] else { continue };
            let verified = counts[sequence];
            assert!(verified <= buckets[sequence].len());
            let (mut all, mut accepted) = (1.0, 0);
            for position in 0..verified {
                let bucket = buckets[sequence][position];
                let token = Token { position, bucket, verified };
                let chance = (self.sources[pick.offer].chance)(token);
                all *= chance;
                tokens += all;
                if accepted == position && self.random.share() < chance {
                    accepted += 1;
                }
            }
            let source = self.sources[pick.offer].kind;
            let buckets = &buckets[sequence][..verified];
            controller.observe_verdict(&Verdict { source, buckets, accepted });
        }
        for (sequence, lags) in self.lag.iter_mut().enumerate() {
            for (source, lag) in lags.iter_mut().enumerate() {
                let used = picks[sequence].is_some_and(|pick| pick.offer == source);
                *lag += usize::from(self.sources[source].lags && !used);
            }
        }
        self.pass(controller, &counts, rows);
        sum.rounds += 1;
        sum.tokens += tokens;
        sum.verified += rows - sequences;
        sum.speculative += usize::from(rows > sequences);
        sum.plain_seconds += tokens / sequences as f64 * self.pass_seconds(sequences, sequences);
        sum.seconds += self.pass_seconds(rows, sequences);
    }

    /// Reports a pass to the controller, with noise.
    fn pass(&mut self, controller: &mut Controller, counts: &[usize], rows: usize) {
        let sequences = self.sequences;
        let mut by_depth = vec![0_u64; 1 + counts.iter().max().copied().unwrap_or(0)];
        let (mut bytes_seconds, mut wanted) = (0.0, 0);
        if let Some(misses) = self.misses {
            for count in counts {
                for depth in 0..=*count {
                    let share = if depth == 0 { 1.0 } else { misses.further };
                    let bytes = misses.missed * share * 2.0 * self.random.share();
                    by_depth[depth] += bytes as u64;
                    wanted += misses.wanted as u64;
                }
            }
            bytes_seconds = misses.seconds_a_byte * by_depth.iter().sum::<u64>() as f64;
        }
        let seconds = self.noisy((self.curve)(rows)) + bytes_seconds;
        controller.observe_pass(&Pass {
            rows,
            sequences,
            missed_bytes: by_depth.iter().sum(),
            wanted_bytes: wanted,
            missed_by_depth: &by_depth,
            seconds,
        });
    }
}

/// A curve through measured points, straight between them.
pub(super) fn through(points: &'static [(usize, f64)]) -> impl Fn(usize) -> f64 {
    move |rows| {
        let above = points.iter().position(|point| point.0 >= rows).unwrap_or(points.len() - 1);
        let (low, high) = (points[above.saturating_sub(1)], points[above]);
        if high.0 == low.0 || high.0 == rows {
            return high.1;
        }
        let along = (rows as f64 - low.0 as f64) / (high.0 - low.0) as f64;
        low.1 + along * (high.1 - low.1)
    }
}

/// Twelve layers of a 35B-A3B model on two cores, seconds by rows.
pub(super) const TWELVE_LAYERS: &[(usize, f64)] = &[
    (1, 0.039),
    (2, 0.058),
    (3, 0.075),
    (4, 0.088),
    (5, 0.096),
    (6, 0.151),
    (8, 0.181),
    (12, 0.215),
    (16, 0.225),
    (20, 0.262),
];

/// A tiny model on two cores.
pub(super) const TINY: &[(usize, f64)] = &[
    (1, 0.00175),
    (2, 0.0025),
    (3, 0.0034),
    (4, 0.0036),
    (5, 0.0046),
    (6, 0.006),
    (8, 0.0084),
    (12, 0.0103),
    (16, 0.013),
    (20, 0.0165),
];

/// A share φ of the time does not depend on rows, the rest on the union of experts
/// (256 experts, 8 of them a row, independent).
pub(super) fn union(fixed: f64) -> impl Fn(usize) -> f64 {
    move |rows| {
        let distinct = 256.0 / 8.0 * (1.0 - (1.0_f64 - 8.0 / 256.0).powi(rows as i32));
        0.02 * (fixed + (1.0 - fixed) * distinct)
    }
}

/// A base and so much a further row.
pub(super) fn linear(further: f64) -> impl Fn(usize) -> f64 {
    move |rows| 0.01 * (1.0 + further * (rows as f64 - 1.0))
}
