//! Numbers for `/metrics`: counters and histograms that any thread may add to, and their text form.
//!
//! What the engine counts itself comes from its pulse; here is what only the server sees. The text is
//! Prometheus' exposition format 0.0.4.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::session::Ending;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper ends of the buckets, in seconds: from a fast small model's token to a long prompt on a slow disk.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// How long things took.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BUCKETS.iter().position(|&end| seconds <= end).unwrap_or(BUCKETS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn sum_seconds(&self) -> f64 {
        self.sum_us.load(Ordering::Relaxed) as f64 / 1e6
    }
}

/// What the server counts.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) requests_begun: Counter,
    pub(crate) requests_failed: Counter,
    /// Refused with 503: the queue was full.
    pub(crate) requests_refused: Counter,
    /// Answers whose client disconnected before they were complete.
    pub(crate) requests_cancelled: Counter,
    /// Answers that ended by themselves.
    pub(crate) answers_finished: Counter,
    /// Times a slow reader paused its answer.
    pub(crate) pauses: Counter,
    pub(crate) prompt_tokens: Counter,
    pub(crate) cached_tokens: Counter,
    pub(crate) completion_tokens: Counter,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) whole_request: Histogram,
    /// Responses by class of status: 1xx to 5xx.
    pub(crate) responses: [Counter; 5],
}

impl Metrics {
    /// `is_first`: of several answers to one prompt, which counts once.
    pub(crate) fn count_ended(&self, ending: &Ending, is_first: bool) {
        self.answers_finished.add(1);
        if is_first {
            self.prompt_tokens.add(ending.usage.prompt_tokens as u64);
            self.cached_tokens.add(ending.usage.cached_tokens as u64);
        }
        self.completion_tokens.add(ending.usage.completion_tokens as u64);
    }

    /// A guess for `Retry-After`: as long as requests take on average, but not too long.
    pub(crate) fn seconds_until_a_place(&self) -> u64 {
        let count = self.whole_request.count().max(1);
        (self.whole_request.sum_seconds() / count as f64).ceil().clamp(1.0, 30.0) as u64
    }
}

/// The text form, line by line.
#[derive(Default)]
pub(crate) struct Exposition(String);

impl Exposition {
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.one(name, help, "counter", value);
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.one(name, help, "gauge", value);
    }

    /// Several values under one name: label, value.
    pub(crate) fn labelled(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        label: &str,
        values: &[(String, f64)],
    ) {
        self.head(name, help, kind);
        for (text, value) in values {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(self.0, "millstream_{name}{{{label}=\"{text}\"}} {value}");
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let mut count = 0;
        let cumulative = |(&end, bucket): (&f64, &AtomicU64)| {
            count += bucket.load(Ordering::Relaxed);
            (end, count)
        };
        let buckets: Vec<(f64, u64)> =
            BUCKETS.iter().zip(&histogram.counts).map(cumulative).collect();
        count += histogram.counts[BUCKETS.len()].load(Ordering::Relaxed);
        self.buckets(name, help, &buckets, count, histogram.sum_seconds());
    }

    /// A histogram that was counted elsewhere: ends of buckets and how many do not exceed them.
    pub(crate) fn buckets(
        &mut self,
        name: &str,
        help: &str,
        buckets: &[(f64, u64)],
        count: u64,
        sum: f64,
    ) {
        self.head(name, help, "histogram");
        for (end, count) in buckets {
            let _ = writeln!(self.0, "millstream_{name}_bucket{{le=\"{end}\"}} {count}");
        }
        let _ = writeln!(self.0, "millstream_{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "millstream_{name}_sum {sum}");
        let _ = writeln!(self.0, "millstream_{name}_count {count}");
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }

    fn one(&mut self, name: &str, help: &str, kind: &str, value: f64) {
        self.head(name, help, kind);
        let _ = writeln!(self.0, "millstream_{name} {value}");
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ =
            writeln!(self.0, "# HELP millstream_{name} {help}\n# TYPE millstream_{name} {kind}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let histogram = Histogram::default();
        for milliseconds in [1, 3, 3, 700, 1_000_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let mut exposition = Exposition::default();
        exposition.histogram("wait_seconds", "How long.", &histogram);
        let text = exposition.into_text();
        let line = |text: &str, start: &str| {
            text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned()
        };
        let bucket =
            |end: &str| line(&text, &format!("millstream_wait_seconds_bucket{{le=\"{end}\"}}"));
        assert!(bucket("0.001").ends_with(" 1"));
        assert!(bucket("0.005").ends_with(" 3"));
        assert!(bucket("300").ends_with(" 4"));
        assert!(bucket("+Inf").ends_with(" 5"));
        assert_eq!(line(&text, "millstream_wait_seconds_count"), "millstream_wait_seconds_count 5");
        assert_eq!(
            line(&text, "millstream_wait_seconds_sum"),
            "millstream_wait_seconds_sum 1000.707"
        );
    }
}
