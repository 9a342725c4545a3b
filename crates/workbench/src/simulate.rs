//! How often experts would have been in memory, by size of the memory and policy.
//!
//! Replays a routing log; the model is not needed. At the size of the recorded run the counts of the
//! built-in policy are those the run had.

use std::collections::BTreeMap;

use experts::routing_log::{Header, LoggedVisit};
use experts::simulate::{self as replay, Outcome, Policy, Tally};
use experts::{Geometry, Result, Slots};
use serde::Serialize;

/// Sizes that are tried, in percent of all experts.
const PERCENT: [usize; 10] = [2, 4, 8, 11, 16, 25, 33, 50, 75, 100];

/// What came out.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The log.
    pub file: String,
    /// Layers with experts.
    pub layers: usize,
    /// Experts of all layers.
    pub experts: usize,
    /// Experts of all layers that one token uses.
    pub experts_per_token: usize,
    /// Tokens in steps of a few, which keep what they read.
    pub decode_tokens: u64,
    /// Tokens in longer steps, which pass through.
    pub prompt_tokens: u64,
    /// Memory of everything but the slots.
    pub fixed_bytes: u64,
    /// From the smallest to the largest.
    pub sizes: Vec<SizeReport>,
}

/// One size of the memory.
#[derive(Debug, Serialize)]
pub struct SizeReport {
    /// Slots, those that experts pass through included.
    pub slots: usize,
    /// Experts that are kept.
    pub kept: usize,
    /// Share of all experts that are kept.
    pub kept_share: f64,
    /// Memory of the slots.
    pub slots_bytes: u64,
    /// The same with everything else.
    pub memory_bytes: u64,
    /// Whether the recorded run had it.
    pub recorded: bool,
    /// Whether it is what the options request.
    pub asked: bool,
    /// What each policy comes to, by name.
    pub policies: BTreeMap<&'static str, PolicyReport>,
}

/// What a policy comes to. Rates are null where nothing was recorded of the kind.
#[derive(Debug, Serialize)]
pub struct PolicyReport {
    /// While decoding.
    pub hit_rate: Option<f64>,
    /// While decoding.
    pub read_bytes_per_token: Option<u64>,
    /// In prompts.
    pub prompt_hit_rate: Option<f64>,
    /// In prompts.
    pub prompt_read_bytes_per_token: Option<u64>,
    /// In both.
    pub hits: u64,
    /// In both.
    pub misses: u64,
}

/// Replays the log of a run at many sizes, at its own, and at the one that is requested.
pub fn run(
    file: String,
    header: &Header,
    visits: &[LoggedVisit],
    asked: Option<&Slots>,
) -> Result<Report> {
    let geometry = Geometry::new(&header.layers);
    let experts = geometry.experts();
    let mut sizes: Vec<Slots> = PERCENT
        .iter()
        .map(|percent| keeping(&geometry, experts * percent / 100))
        .collect::<Result<_>>()?;
    sizes.push(header.slots.clone());
    sizes.extend(asked.cloned());
    sizes.sort_by_key(|slots| (slots.kept(), slots.staging()));
    sizes.dedup();
    let layers = header.layers.iter().flatten().count();
    let mut reports = Vec::new();
    let mut outcome = Outcome::default();
    for slots in sizes {
        let mut policies = BTreeMap::new();
        for policy in Policy::ALL {
            outcome = replay::run(header, visits, &slots, policy)?;
            policies.insert(policy.name(), PolicyReport::new(&outcome, layers));
        }
        reports.push(SizeReport {
            slots: slots.kept() + slots.staging(),
            kept: slots.kept(),
            kept_share: slots.kept() as f64 / experts as f64,
            slots_bytes: slots.bytes,
            memory_bytes: header.fixed_bytes.saturating_add(slots.bytes),
            recorded: slots == header.slots,
            asked: asked == Some(&slots),
            policies,
        });
    }
    Ok(Report {
        file,
        layers,
        experts,
        experts_per_token: geometry.experts_per_token(),
        // The same in every run over the log.
        decode_tokens: outcome.decode.rows / layers as u64,
        prompt_tokens: outcome.prompt.rows / layers as u64,
        fixed_bytes: header.fixed_bytes,
        sizes: reports,
    })
}

/// The fewest slots that keep this many experts, or the fewest that run the model.
fn keeping(geometry: &Geometry, kept: usize) -> Result<Slots> {
    let mut least: usize = geometry.classes().iter().map(|class| class.experts_per_token).sum();
    let mut most = least;
    while geometry.with_total(most)?.kept() < kept {
        most = most.saturating_mul(2);
    }
    while least < most {
        let middle = least.midpoint(most);
        if geometry.with_total(middle)?.kept() >= kept {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    geometry.with_total(least)
}

impl PolicyReport {
    fn new(outcome: &Outcome, layers: usize) -> PolicyReport {
        // Each token is a row of every layer.
        let per_token = |tally: &Tally| {
            let bytes = u128::from(tally.read_bytes) * layers as u128;
            bytes.checked_div(u128::from(tally.rows)).map(|bytes| bytes as u64)
        };
        PolicyReport {
            hit_rate: outcome.decode.hit_rate(),
            read_bytes_per_token: per_token(&outcome.decode),
            prompt_hit_rate: outcome.prompt.hit_rate(),
            prompt_read_bytes_per_token: per_token(&outcome.prompt),
            hits: outcome.counts().hits,
            misses: outcome.counts().misses,
        }
    }
}
