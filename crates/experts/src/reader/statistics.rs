//! What a reader did: counts, busy times, latencies.
//!
//! Everything has a fixed size and is kept under the reader's own lock, so counting a read costs a few
//! additions and no allocation.

use std::time::{Duration, Instant};

use super::{Priority, ReadEngine};

/// Steps in each power of two: a latency is known to one part in sixteen.
const STEPS: usize = 16;
/// From 1 µs to 2^28 µs, four and a half minutes.
const BUCKETS: usize = STEPS * 25;

/// Latencies in fixed buckets, each about 6 % wider than the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    count: u64,
    sum: Duration,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS], count: 0, sum: Duration::ZERO, max: Duration::ZERO }
    }
}

/// The bucket of a latency. Below 16 µs each microsecond has its own.
fn bucket(us: u64) -> usize {
    if us < STEPS as u64 {
        return us as usize;
    }
    let exponent = us.ilog2() as usize;
    let step = (us >> (exponent - 4)) as usize % STEPS;
    ((exponent - 3) * STEPS + step).min(BUCKETS - 1)
}

/// The longest latency that falls into a bucket.
fn upper_us(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let exponent = bucket / STEPS + 3;
    let step = (bucket % STEPS) as u64;
    ((STEPS as u64 + step + 1) << (exponent - 4)) - 1
}

impl Histogram {
    pub(super) fn add(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(us)] += 1;
        self.count += 1;
        self.sum += latency;
        self.max = self.max.max(latency);
    }

    /// How many latencies there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// How many do not exceed `limit`, as far as buckets can show: those in the limit's own bucket count only
    /// if the limit is its end.
    pub fn count_within(&self, limit: Duration) -> u64 {
        let us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        let whole = bucket(us.saturating_add(1));
        self.counts[..whole].iter().sum()
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The latency that `share` of all do not exceed: 0.5 is the median. Zero when there are none.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_micros(upper_us(bucket)).min(self.max);
            }
        }
        self.max
    }

    fn since(&self, earlier: &Histogram) -> Histogram {
        let mut rest = self.clone();
        for (count, before) in rest.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        rest.count = self.count.saturating_sub(earlier.count);
        rest.sum = self.sum.saturating_sub(earlier.sum);
        // An older read may hold the record; then the highest bucket has to do.
        if self.max == earlier.max {
            let last = rest.counts.iter().rposition(|&count| count > 0);
            let upper = last.map_or(Duration::ZERO, |last| Duration::from_micros(upper_us(last)));
            rest.max = rest.max.min(upper);
        }
        rest
    }
}

/// What a reader did since it was started, or between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The queue in use at the end of that time.
    pub queue: ReadEngine,
    /// Reads that are done, failed ones included.
    pub reads: u64,
    /// Bytes that the successful ones brought.
    pub bytes: u64,
    /// Reads that ended in an error.
    pub failed: u64,
    /// Attempts beyond the first of a read: short transfers that were continued, and interruptions.
    pub retries: u64,
    /// Reads that were withdrawn before they began.
    pub withdrawn: u64,
    /// Time during which at least one demand read was submitted and not done.
    pub demand_busy: Duration,
    /// The same for any read.
    pub busy: Duration,
    /// From submission to the end.
    pub from_submit: Histogram,
    /// From the moment the read began to its end.
    pub from_start: Histogram,
}

impl Statistics {
    /// What was done since `earlier`, a snapshot of the same reader.
    pub fn since(&self, earlier: &Statistics) -> Statistics {
        Statistics {
            queue: self.queue,
            reads: self.reads.saturating_sub(earlier.reads),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            failed: self.failed.saturating_sub(earlier.failed),
            retries: self.retries.saturating_sub(earlier.retries),
            withdrawn: self.withdrawn.saturating_sub(earlier.withdrawn),
            demand_busy: self.demand_busy.saturating_sub(earlier.demand_busy),
            busy: self.busy.saturating_sub(earlier.busy),
            from_submit: self.from_submit.since(&earlier.from_submit),
            from_start: self.from_start.since(&earlier.from_start),
        }
    }
}

/// How long at least one of several operations has been running.
#[derive(Debug, Default)]
struct Busy {
    outstanding: usize,
    since: Option<Instant>,
    total: Duration,
}

impl Busy {
    fn add(&mut self, count: usize, now: Instant) {
        if count > 0 && self.outstanding == 0 {
            self.since = Some(now);
        }
        self.outstanding += count;
    }

    fn remove(&mut self, count: usize, now: Instant) {
        self.outstanding -= count;
        if self.outstanding == 0
            && let Some(since) = self.since.take()
        {
            self.total += now.saturating_duration_since(since);
        }
    }

    fn total(&self, now: Instant) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// The counters of a running reader.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// All but the busy times, which depend on the moment of the question.
    pub(super) done: Statistics,
    demand: Busy,
    any: Busy,
}

impl Counters {
    pub(super) fn submitted(&mut self, count: usize, priority: Priority, now: Instant) {
        self.any.add(count, now);
        if priority == Priority::Demand {
            self.demand.add(count, now);
        }
    }

    pub(super) fn promoted(&mut self, count: usize, now: Instant) {
        self.demand.add(count, now);
    }

    /// Counts reads out, done or withdrawn.
    pub(super) fn left(&mut self, count: usize, priority: Priority, now: Instant) {
        self.any.remove(count, now);
        if priority == Priority::Demand {
            self.demand.remove(count, now);
        }
    }

    pub(super) fn snapshot(&self, now: Instant) -> Statistics {
        let (demand_busy, busy) = (self.demand.total(now), self.any.total(now));
        Statistics { demand_busy, busy, ..self.done.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gap() {
        for us in 0..100_000 {
            let bucket = bucket(us);
            assert!(us <= upper_us(bucket), "{us}");
            assert!(bucket == 0 || us > upper_us(bucket - 1), "{us}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket((1 << 28) - 1), BUCKETS - 1);
        assert_eq!(bucket((1 << 28) - 1 - (1 << 23)), BUCKETS - 2);
    }

    #[test]
    fn percentiles_are_right_to_a_sixteenth() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), Duration::ZERO);
        for us in 1..=1000 {
            histogram.add(Duration::from_micros(us));
        }
        for (share, us) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let got = histogram.percentile(share).as_secs_f64() * 1e6;
            assert!((us..us * 17.0 / 16.0).contains(&got), "{share}: {got}");
        }
        assert_eq!(histogram.percentile(1.0), Duration::from_micros(1000));
        assert_eq!(histogram.max(), Duration::from_micros(1000));
        assert_eq!(histogram.sum(), Duration::from_micros(500_500));
        for (limit, least) in [(0, 0), (10, 10), (500, 480), (1000, 960)] {
            let within = histogram.count_within(Duration::from_micros(limit));
            assert!((least..=limit).contains(&within), "{limit}: {within}");
        }
        assert_eq!(histogram.count_within(Duration::from_secs(1)), 1000);
    }

    #[test]
    fn a_difference_forgets_what_was_before() {
        let mut counters = Counters::default();
        counters.done.from_start.add(Duration::from_millis(80));
        counters.done.reads = 1;
        let now = Instant::now();
        let before = counters.snapshot(now);
        counters.done.from_start.add(Duration::from_micros(7));
        counters.done.reads = 2;
        let rest = counters.snapshot(now).since(&before);
        assert_eq!(rest.reads, 1);
        assert_eq!(rest.from_start.count(), 1);
        assert_eq!(rest.from_start.max(), Duration::from_micros(7));
    }

    #[test]
    fn busy_time_is_counted_once_however_many_are_busy() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut counters = Counters::default();
        counters.submitted(2, Priority::Ahead, at(0));
        counters.submitted(1, Priority::Demand, at(1));
        counters.left(1, Priority::Demand, at(3));
        counters.promoted(1, at(4));
        assert_eq!(counters.snapshot(at(5)).demand_busy, Duration::from_secs(3));
        counters.left(1, Priority::Demand, at(5));
        counters.left(1, Priority::Ahead, at(6));
        let statistics = counters.snapshot(at(9));
        assert_eq!(statistics.demand_busy, Duration::from_secs(3));
        assert_eq!(statistics.busy, Duration::from_secs(6));
    }
}
