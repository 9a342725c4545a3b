//! What a run with experts from the disk came to, against the bound of the machine it ran on.
//!
//! In a layer the chain mixer → route → read → experts is serial: only computing with experts that are in
//! memory hides a read. So a token takes at least Σ over layers of mixer + max(experts, bytes missed / disk),
//! and its head. The times are those of a rehearsal, the same steps with whatever experts are in slots; the
//! disk's rate is that of the same reads into the same memory without anything else. Both are measured in pauses between the
//! tokens: a disk that others use too was seen to change from 4.7 to 2.4 GB/s within seconds, and what is compared must have
//! met the same.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use experts::reader::{Priority, TraceEvent};
use experts::{Activity, Statistics, StreamedBank, VisitRecord};
use model::{DecoderSpec, Logits};
use runtime::Runner;
use serde::Serialize;
use serde_json::json;
use state::Sequence;

use crate::{Error, Result, argmax};

/// Tokens from one pause to the next.
pub(super) const STRETCH: usize = 8;

/// Tokens that are rehearsed in a pause. The first is not counted: it finds the weights out of the processor's caches.
pub(super) const REHEARSAL: usize = 2;

/// What is read from the disk in a pause, for its rate.
const PLAIN_READ_BYTES: u64 = 96 << 20;

/// What reading experts came to while tokens were decoded.
#[derive(Clone, Debug, Serialize)]
pub struct StreamedRun {
    /// Share of the wanted experts that were in memory.
    pub hit_rate: f64,
    /// Bytes that were read for a token.
    pub read_bytes_per_token: u64,
    /// Throughput while at least one read was outstanding, as a share of the disk's own.
    pub read_share: f64,
    /// Speed as a share of what is possible without knowing the routing before the router.
    pub bound_share: f64,
    /// The same if all reads could hide behind all computing.
    pub ideal_share: f64,
    /// Share of the time in which nothing could be computed because of reads.
    pub waiting_share: f64,
    /// The rest of it, in which something was computed.
    pub computing_share: f64,
    /// A plain read of the same requests, bytes per second.
    pub disk_bandwidth: f64,
    /// From request to arrival, microseconds.
    pub read_latency_us: Percentiles,
    /// Tokens per second if everything were in memory: the rehearsal.
    pub resident_tok_s: f64,
    /// Experts that are kept.
    pub slots: usize,
}

/// Of how long something took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    /// Half took no longer.
    pub p50: u64,
    /// Nine of ten took no longer.
    pub p90: u64,
    /// All but one in a hundred took no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1}/{:.1} ms", self.p50 as f64 / 1e3, self.p99 as f64 / 1e3)
    }
}

/// Watches a bank while tokens are decoded.
pub(super) struct Watch {
    started: Instant,
    before: Statistics,
    visits: Vec<VisitRecord>,
    activities: Vec<Activity>,
    plain: PlainReads,
    rehearsal: Rehearsal,
}

impl Watch {
    /// Starts, after a first pause.
    pub(super) fn start(runner: &mut Runner, sequence: &Sequence) -> Result<Option<Watch>> {
        let Some(bank) = runner.streamed() else { return Ok(None) };
        let mut watch = Watch {
            started: Instant::now(),
            before: bank.statistics(),
            visits: Vec::new(),
            activities: Vec::new(),
            plain: PlainReads::default(),
            rehearsal: Rehearsal::default(),
        };
        watch.pause(runner, sequence)?;
        if let Some(bank) = runner.streamed() {
            bank.reader().record_trace(true);
            (watch.started, watch.before) = (Instant::now(), bank.statistics());
        }
        Ok(Some(watch))
    }

    /// Measures the disk and the processor; the sequence is not touched.
    pub(super) fn pause(&mut self, runner: &mut Runner, sequence: &Sequence) -> Result<()> {
        let Some(bank) = runner.streamed() else { return Ok(()) };
        self.visits.extend(bank.take_visits());
        self.activities.extend(bank.take_activities());
        self.plain.measure(bank)?;
        let outcome = self.rehearsal.measure(runner, sequence);
        if let Some(bank) = runner.streamed() {
            bank.rehearse(false);
            bank.observe(true);
        }
        outcome
    }

    /// The tokens are decoded, the last pause is over.
    pub(super) fn stop(self, bank: &StreamedBank, tokens: usize, seconds: f64) -> Stopped {
        let stopped = Stopped {
            after: bank.statistics(),
            reads: bank.reader().take_trace(),
            seconds,
            tokens,
            watch: self,
        };
        bank.reader().record_trace(false);
        bank.observe(false);
        stopped
    }
}

/// What was seen.
pub(super) struct Stopped {
    after: Statistics,
    reads: Vec<TraceEvent>,
    seconds: f64,
    tokens: usize,
    watch: Watch,
}

/// Times of steps that read nothing.
#[derive(Default)]
struct Rehearsal {
    token_seconds: Vec<f64>,
    visits: Vec<VisitRecord>,
}

impl Rehearsal {
    /// Decodes with whatever experts are in slots, on a copy of the sequence.
    fn measure(&mut self, runner: &mut Runner, sequence: &Sequence) -> Result<()> {
        let mut copy = sequence.fork();
        for index in 0..REHEARSAL {
            if let Some(bank) = runner.streamed() {
                bank.rehearse(true);
                bank.observe(true);
            }
            let start = Instant::now();
            runner.feed(&mut copy, &[index as u32], Logits::Last, |_, logits| {
                std::hint::black_box(argmax(logits));
            })?;
            let seconds = start.elapsed().as_secs_f64();
            if index > 0 {
                self.token_seconds.push(seconds);
                self.visits
                    .extend(runner.streamed().into_iter().flat_map(StreamedBank::take_visits));
            }
        }
        Ok(())
    }

    /// The median: a neighbour's moment is not ours.
    fn token_seconds(&self) -> f64 {
        median(self.token_seconds.clone())
    }

    /// The same of a visit of each layer with experts.
    fn visit_seconds(&self, layers: usize) -> Vec<f64> {
        let seconds = |visit: &VisitRecord| (visit.ended - visit.started).as_secs_f64();
        let of_layer = |layer| self.visits.iter().skip(layer).step_by(layers).map(seconds);
        (0..layers).map(|layer| median(of_layer(layer).collect())).collect()
    }
}

impl Stopped {
    /// Compares what was seen with what was measured in the pauses.
    pub(super) fn judge(&self, bank: &StreamedBank, spec: &DecoderSpec) -> StreamedRun {
        let layers = spec.moe_layers().count();
        let disk = self.watch.plain.rate();
        let token_seconds = self.watch.rehearsal.token_seconds();
        let visit_seconds = self.watch.rehearsal.visit_seconds(layers);
        let rest = token_seconds - visit_seconds.iter().sum::<f64>();
        let (mut bound, mut ideal) = (0.0, 0.0);
        for token in self.watch.visits.chunks_exact(layers) {
            bound += rest;
            for (visit, &compute) in token.iter().zip(&visit_seconds) {
                bound += compute.max(visit.missed_bytes as f64 / disk);
            }
            let missed: u64 = token.iter().map(|visit| visit.missed_bytes).sum();
            ideal += token_seconds.max(missed as f64 / disk);
        }
        let before = &self.watch.before;
        let reads = self.after.reads.since(&before.reads);
        let (hits, misses) = (self.after.hits - before.hits, self.after.misses - before.misses);
        let waited = (self.after.waited - before.waited).as_secs_f64();
        let waiting_share = waited / self.seconds;
        let busy = reads.busy.as_secs_f64();
        let us = |share| reads.from_submit.percentile(share).as_micros() as u64;
        StreamedRun {
            hit_rate: hits as f64 / (hits + misses).max(1) as f64,
            read_bytes_per_token: reads.bytes / self.tokens.max(1) as u64,
            read_share: if busy > 0.0 { reads.bytes as f64 / busy / disk } else { 1.0 },
            bound_share: bound / self.seconds,
            ideal_share: ideal / self.seconds,
            waiting_share,
            computing_share: (1.0 - waiting_share).max(0.0),
            disk_bandwidth: disk,
            read_latency_us: Percentiles {
                p50: us(0.5),
                p90: us(0.9),
                p99: us(0.99),
                max: reads.from_submit.max().as_micros() as u64,
            },
            resident_tok_s: 1.0 / token_seconds,
            slots: bank.options().slots.kept(),
        }
    }

    /// Writes what happened in the form that trace viewers read.
    pub(super) fn write_trace(&self, path: &Path) -> Result<()> {
        let failed = |source| Error::Write { path: path.to_owned(), source };
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        let us = |at: Instant| at.saturating_duration_since(self.watch.started).as_micros() as u64;
        let mut events = Vec::new();
        let name = |thread: u32, name: &str| json!({"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": name}});
        events.push(name(0, "layers"));
        events.push(name(1, "experts"));
        for visit in &self.watch.visits {
            events.push(json!({
                "ph": "X", "pid": 1, "tid": 0, "ts": us(visit.started),
                "dur": us(visit.ended) - us(visit.started), "name": format!("layer {}", visit.layer),
                "args": {"hits": visit.hits, "misses": visit.misses, "bytes": visit.missed_bytes},
            }));
        }
        for activity in &self.watch.activities {
            let name = if activity.experts == 0 { "wait" } else { "compute" };
            events.push(json!({
                "ph": "X", "pid": 1, "tid": 1, "ts": us(activity.started),
                "dur": us(activity.ended) - us(activity.started), "name": name,
                "args": {"layer": activity.layer, "experts": activity.experts},
            }));
        }
        for read in &self.reads {
            events.push(json!({
                "ph": "X", "pid": 1, "tid": 100 + read.lane, "ts": us(read.start),
                "dur": us(read.end) - us(read.start), "name": "read",
                "args": {
                    "layer": read.label[0], "expert": read.label[1], "bytes": read.len,
                    "offset": read.offset, "slot": read.ticket,
                    "ahead": read.priority == Priority::Ahead,
                },
            }));
        }
        let written = serde_json::to_writer(&mut file, &json!({ "traceEvents": events }));
        written.map_err(|error| failed(error.into()))?;
        file.flush().map_err(failed)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// What plain reads came to.
#[derive(Default)]
struct PlainReads {
    bytes: f64,
    seconds: f64,
}

impl PlainReads {
    fn measure(&mut self, bank: &StreamedBank) -> Result<()> {
        let (bytes, time) = bank.read_plainly(PLAIN_READ_BYTES)?;
        self.bytes += bytes as f64;
        self.seconds += time.as_secs_f64();
        Ok(())
    }

    /// Bytes a second, all measurements together.
    fn rate(&self) -> f64 {
        self.bytes / self.seconds
    }
}
