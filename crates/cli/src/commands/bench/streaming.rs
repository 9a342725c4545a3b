//! What a run with experts from the disk came to, against the bound of the machine it ran on.
//!
//! In a layer the chain mixer → route → read → experts is serial: only computing with experts that are in
//! memory hides a read. So a token takes at least Σ over layers of mixer + max(experts, bytes missed / disk),
//! and its head. The times are those of a rehearsal, the same steps with whatever experts are in slots; the
//! disk's rate is that of the same reads without anything else, both in this process.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use engine::Runner;
use experts::reader::{Priority, TraceEvent};
use experts::{Activity, Statistics, StreamedBank, VisitRecord};
use machine::pages::Pages;
use model::Logits;
use serde::Serialize;
use serde_json::json;
use state::Sequence;

/// Tokens of a rehearsal.
pub(super) const REHEARSAL: usize = 12;

/// Memory that the disk's own rate is measured with.
const PLAIN_BYTES: usize = 32 << 20;

/// What one plain measurement of the disk reads.
const PLAIN_READ_BYTES: u64 = 192 << 20;

/// Plain measurements before the tokens and as many after: neighbours come and go, the median stays.
const PLAIN_ROUNDS: usize = 5;

/// What reading experts came to while tokens were decoded.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StreamedRun {
    /// Share of the wanted experts that were in memory.
    pub(super) hit_rate: f64,
    pub(super) read_bytes_per_token: u64,
    /// Throughput while at least one read was outstanding, as a share of the disk's own.
    pub(super) read_share: f64,
    /// Speed as a share of what is possible without knowing the routing before the router.
    pub(super) bound_share: f64,
    /// The same if all reads could hide behind all computing.
    pub(super) ideal_share: f64,
    /// Share of the time in which nothing could be computed because of reads.
    pub(super) waiting_share: f64,
    /// The rest of it, in which something was computed.
    pub(super) computing_share: f64,
    /// A plain read of the same requests, bytes per second.
    pub(super) disk_bandwidth: f64,
    /// From request to arrival, microseconds.
    pub(super) read_latency_us: Percentiles,
    /// Tokens per second if everything were in memory: the rehearsal.
    pub(super) resident_tok_s: f64,
    pub(super) slots: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: u64,
    p90: u64,
    pub(super) p99: u64,
    max: u64,
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1}/{:.1} ms", self.p50 as f64 / 1e3, self.p99 as f64 / 1e3)
    }
}

/// Watches a bank while tokens are decoded.
pub(super) struct Watch {
    before: Statistics,
    started: Instant,
    plain: Vec<f64>,
}

impl Watch {
    /// Starts.
    pub(super) fn start(bank: &StreamedBank) -> Result<Watch> {
        let plain = plain_rates(bank, 0)?;
        bank.observe(true);
        bank.reader().record_trace(true);
        Ok(Watch { before: bank.statistics(), started: Instant::now(), plain })
    }

    /// The tokens are decoded.
    pub(super) fn stop(self, bank: &StreamedBank, tokens: usize, seconds: f64) -> Stopped {
        let stopped = Stopped {
            before: self.before,
            after: bank.statistics(),
            visits: bank.take_visits(),
            activities: bank.take_activities(),
            reads: bank.reader().take_trace(),
            seconds,
            tokens,
            started: self.started,
            plain: self.plain,
        };
        bank.reader().record_trace(false);
        bank.observe(false);
        stopped
    }
}

/// What was seen.
pub(super) struct Stopped {
    before: Statistics,
    after: Statistics,
    visits: Vec<VisitRecord>,
    activities: Vec<Activity>,
    reads: Vec<TraceEvent>,
    seconds: f64,
    tokens: usize,
    started: Instant,
    /// Rates of the disk before.
    plain: Vec<f64>,
}

/// Times of steps that read nothing.
struct Rehearsal {
    token_seconds: f64,
    /// By visit of a token: the time of its experts.
    visit_seconds: Vec<f64>,
}

impl Stopped {
    /// Rehearses, measures the disk, and compares. The sequence is spoiled.
    pub(super) fn judge(
        &self,
        runner: &mut Runner,
        sequence: &mut Sequence,
    ) -> Result<StreamedRun> {
        let rehearsal = rehearse(runner, sequence)?;
        let bank = runner.streamed().context("the experts are in memory")?;
        let mut plain = self.plain.clone();
        plain.extend(plain_rates(bank, PLAIN_ROUNDS)?);
        let disk = median(plain);
        let layers = rehearsal.visit_seconds.len();
        let rest = rehearsal.token_seconds - rehearsal.visit_seconds.iter().sum::<f64>();
        let (mut bound, mut ideal) = (0.0, 0.0);
        for token in self.visits.chunks_exact(layers) {
            bound += rest;
            for (visit, &compute) in token.iter().zip(&rehearsal.visit_seconds) {
                bound += compute.max(visit.missed_bytes as f64 / disk);
            }
            let missed: u64 = token.iter().map(|visit| visit.missed_bytes).sum();
            ideal += rehearsal.token_seconds.max(missed as f64 / disk);
        }
        let reads = self.after.reads.since(&self.before.reads);
        let (hits, misses) =
            (self.after.hits - self.before.hits, self.after.misses - self.before.misses);
        let waited = (self.after.waited - self.before.waited).as_secs_f64();
        let waiting_share = waited / self.seconds;
        let busy = reads.busy.as_secs_f64();
        let us = |share| reads.from_submit.percentile(share).as_micros() as u64;
        Ok(StreamedRun {
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
            resident_tok_s: 1.0 / rehearsal.token_seconds,
            slots: bank.options().slots.kept(),
        })
    }

    /// Writes what happened in the form that trace viewers read.
    pub(super) fn write_trace(&self, path: &Path) -> Result<()> {
        let failed = || format!("cannot write {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(failed)?);
        let us = |at: Instant| at.saturating_duration_since(self.started).as_micros() as u64;
        let mut events = Vec::new();
        let name = |thread: u32, name: &str| json!({"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": name}});
        events.push(name(0, "layers"));
        events.push(name(1, "experts"));
        for visit in &self.visits {
            events.push(json!({
                "ph": "X", "pid": 1, "tid": 0, "ts": us(visit.started),
                "dur": us(visit.ended) - us(visit.started), "name": format!("layer {}", visit.layer),
                "args": {"hits": visit.hits, "misses": visit.misses, "bytes": visit.missed_bytes},
            }));
        }
        for activity in &self.activities {
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
        serde_json::to_writer(&mut file, &json!({ "traceEvents": events })).with_context(failed)?;
        file.flush().with_context(failed)
    }
}

/// Decodes with whatever experts are in slots.
fn rehearse(runner: &mut Runner, sequence: &mut Sequence) -> Result<Rehearsal> {
    let layers = runner.spec().moe_layers().count();
    let watch = |runner: &Runner, on: bool| {
        if let Some(bank) = runner.streamed() {
            bank.rehearse(on);
            bank.observe(on);
        }
    };
    watch(runner, true);
    let mut seconds = Vec::new();
    let outcome = (0..REHEARSAL).try_for_each(|index| {
        let start = Instant::now();
        let outcome = runner.feed(sequence, &[index as u32], Logits::Last, |_, logits| {
            std::hint::black_box(super::super::logits::argmax(logits));
        });
        seconds.push(start.elapsed().as_secs_f64());
        outcome
    });
    let visits = runner.streamed().map(StreamedBank::take_visits).unwrap_or_default();
    watch(runner, false);
    outcome?;
    // The median of tokens and of each layer's visits: a neighbour's moment is not ours.
    let visit_seconds = (0..layers)
        .map(|layer| {
            let of_layer = visits.iter().skip(layer).step_by(layers);
            median(of_layer.map(|visit| (visit.ended - visit.started).as_secs_f64()).collect())
        })
        .collect();
    Ok(Rehearsal { token_seconds: median(seconds), visit_seconds })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Rates of the same reads with nothing else going on, each on other experts.
fn plain_rates(bank: &StreamedBank, skip: usize) -> Result<Vec<f64>> {
    let mut scratch = Pages::new(PLAIN_BYTES)?;
    let samples = engine::samples(bank.layers());
    let mut rest = samples.iter().copied().cycle();
    let mut next = || {
        let mut left = PLAIN_READ_BYTES;
        let mut part = Vec::new();
        while left > 0 && part.len() < samples.len() {
            let Some(sample) = rest.next() else { break };
            left = left.saturating_sub(sample.2 as u64);
            part.push(sample);
        }
        part
    };
    (0..skip).for_each(|_| drop(next()));
    let (device, method) = (bank.device(), bank.options().method);
    let mut rates = Vec::new();
    for _ in 0..PLAIN_ROUNDS {
        rates.push(experts::probe::throughput(device, method, &next(), &mut scratch)?);
    }
    Ok(rates)
}
