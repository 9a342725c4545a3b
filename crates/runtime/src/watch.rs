//! What can be seen of a model's experts from outside: counts, latencies, and which experts are used, read and kept.
//!
//! It only looks. Counts are there at all times; which expert does what is counted only between
//! [`Runner::watch_experts`] calls, so that a model that is not watched pays nothing. Layers are numbered among
//! those with experts.

use std::time::Duration;

use serde::Serialize;

use crate::Runner;

/// Ends of the buckets of read latencies, in microseconds.
const LATENCY_ENDS_US: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 5_000_000,
];

/// What reading experts came to since the model was loaded. But for the percentiles nothing here ever decreases.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExpertLoad {
    /// Experts that were in memory when they were wanted.
    pub hits: u64,
    /// Experts that had to be read.
    pub misses: u64,
    /// Bytes that came from the disk.
    pub read_bytes: u64,
    /// Experts that could not be read.
    pub failed: u64,
    /// Experts that were read before they were wanted.
    pub ahead: u64,
    /// Those of them that then were.
    pub ahead_used: u64,
    /// Time threads stood still because of reads.
    pub wait_seconds: f64,
    /// Time during which something was being read.
    pub busy_seconds: f64,
    /// Reads that are done; an expert may take several.
    pub reads: u64,
    /// Their latencies together, from when they were requested.
    pub latency_seconds: f64,
    /// The latency that half of them do not exceed.
    pub latency_seconds_p50: f64,
    /// The latency that all but one in a hundred do not exceed.
    pub latency_seconds_p99: f64,
    /// Ends of buckets in seconds, and the reads that took no longer.
    #[serde(skip)]
    pub latency_buckets: Vec<(f64, u64)>,
    /// What the disk gave when it was tried, if it was.
    pub disk_bytes_per_second: Option<f64>,
}

impl ExpertLoad {
    /// Share of the wanted experts that were in memory.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.misses;
        if all == 0 { 1.0 } else { self.hits as f64 / all as f64 }
    }
}

/// How many experts a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertShape {
    /// Layers with experts.
    pub layers: usize,
    /// Experts of the layer with the most.
    pub experts: usize,
    /// Experts a token uses in a layer.
    pub experts_per_token: usize,
    /// Experts that can be kept in memory at once.
    pub slots: usize,
}

/// How many experts rows of one pass want together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpertUnion {
    /// Rows of a pass.
    pub rows: usize,
    /// Distinct experts they want in a layer, as a multiple of what one row wants.
    pub factor: f64,
}

/// What experts did since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertActivity {
    /// Layer, expert, and the rows it was computed for.
    pub uses: Vec<(u32, u32, u32)>,
    /// Layer and expert of what was read.
    pub reads: Vec<(u32, u32)>,
    /// One bit an expert, layer by layer with [`ExpertShape::experts`] bits each, the lowest bit of a byte
    /// first: whether it is in memory.
    pub resident: Vec<u8>,
}

impl Runner {
    /// How many experts there are; `None` for a model without.
    pub fn expert_shape(&self) -> Option<ExpertShape> {
        let layers = || self.spec().moe_layers().map(|(_, moe)| moe);
        let all: usize = layers().map(|moe| moe.experts.experts()).sum();
        let slots = self.streamed().map_or(all, |bank| bank.options().slots.kept());
        Some(ExpertShape {
            layers: layers().count(),
            experts: layers().map(|moe| moe.experts.experts()).max()?,
            experts_per_token: layers().map(|moe| moe.experts_per_token()).max()?,
            slots,
        })
    }

    /// What reading experts came to; `None` if all are in memory.
    pub fn expert_load(&self) -> Option<ExpertLoad> {
        let statistics = self.streamed()?.statistics();
        let latency = &statistics.reads.from_submit;
        let within = |&us: &u64| (us as f64 / 1e6, latency.count_within(Duration::from_micros(us)));
        let rate = self.options().reading.as_ref().map(|choice| choice.bytes_per_second);
        Some(ExpertLoad {
            hits: statistics.hits,
            misses: statistics.misses,
            read_bytes: statistics.reads.bytes,
            failed: statistics.failed,
            ahead: statistics.ahead,
            ahead_used: statistics.ahead_used,
            wait_seconds: statistics.waited.as_secs_f64(),
            busy_seconds: statistics.reads.busy.as_secs_f64(),
            reads: latency.count(),
            latency_seconds: latency.sum().as_secs_f64(),
            latency_seconds_p50: latency.percentile(0.5).as_secs_f64(),
            latency_seconds_p99: latency.percentile(0.99).as_secs_f64(),
            latency_buckets: LATENCY_ENDS_US.iter().map(within).collect(),
            disk_bytes_per_second: rate.filter(|&rate| rate > 0.0),
        })
    }

    /// How many experts passes wanted, for each number of rows up to 64 that there were passes of; nothing for
    /// a model without. It is counted always, and never forgotten.
    pub fn expert_unions(&self) -> Vec<ExpertUnion> {
        let (layers, each) = self
            .spec()
            .moe_layers()
            .fold((0, 0), |(layers, each), (_, moe)| (layers + 1, each + moe.experts_per_token()));
        let Some(bank) = self.bank().filter(|_| each > 0) else { return Vec::new() };
        let one_row = each as f64 / f64::from(layers);
        let factor = |experts: u64, visits: u64| experts as f64 / visits as f64 / one_row;
        let unions = bank.tally().unions().into_iter();
        unions
            .map(|union| ExpertUnion {
                rows: union.rows,
                factor: factor(union.experts, union.visits),
            })
            .collect()
    }

    /// Counts what each expert does from now on, or no more.
    pub fn watch_experts(&self, on: bool) {
        if let Some(bank) = self.bank() {
            bank.tally().watch(on);
        }
    }

    /// What experts did since the last call, if they are watched, and where they are. `None` for a model
    /// without.
    pub fn take_expert_activity(&self) -> Option<ExpertActivity> {
        let shape = self.expert_shape()?;
        // Among all layers: which of those with experts it is.
        let mut ordinals = vec![0; self.spec().layers.len()];
        for (ordinal, (layer, _)) in self.spec().moe_layers().enumerate() {
            ordinals[layer] = ordinal;
        }
        let mut activity = ExpertActivity::default();
        for tallied in self.bank()?.tally().take() {
            let layer = ordinals[tallied.layer] as u32;
            if tallied.uses > 0 {
                activity.uses.push((layer, tallied.expert, tallied.uses));
            }
            if tallied.reads > 0 {
                activity.reads.push((layer, tallied.expert));
            }
        }
        let bits = shape.layers * shape.experts;
        activity.resident = vec![0; bits.div_ceil(8)];
        let mut set = |bit: usize| activity.resident[bit / 8] |= 1 << (bit % 8);
        match self.streamed() {
            Some(bank) => {
                let kept = bank.kept().into_iter();
                kept.for_each(|(layer, expert)| {
                    set(ordinals[layer] * shape.experts + expert as usize);
                });
            }
            None => {
                for (ordinal, (_, moe)) in self.spec().moe_layers().enumerate() {
                    (0..moe.experts.experts())
                        .for_each(|expert| set(ordinal * shape.experts + expert));
                }
            }
        }
        Some(activity)
    }
}
