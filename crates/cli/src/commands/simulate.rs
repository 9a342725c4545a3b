//! `millstream simulate`: how often experts would have been in memory, by size of the memory and policy.
//!
//! Replays a routing log; the model is not needed. At the size of the recorded run the counts of the
//! built-in policy are those the run had.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result};
use experts::routing_log::{self, Header, LoggedVisit};
use experts::simulate::{self, Outcome, Policy, Tally};
use experts::{Geometry, Slots};
use serde::Serialize;

use crate::args::{GlobalArgs, SimulateArgs};
use crate::console::{Align, print_json, table};
use crate::invocation::Invocation;
use crate::report::Advised;
use crate::size;

/// Sizes that are tried, in percent of all experts.
const PERCENT: [usize; 10] = [2, 4, 8, 11, 16, 25, 33, 50, 75, 100];

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    /// Layers with experts.
    layers: usize,
    /// Experts of all layers.
    experts: usize,
    /// Experts of all layers that one token uses.
    experts_per_token: usize,
    /// Tokens in steps of a few, which keep what they read.
    decode_tokens: u64,
    /// Tokens in longer steps, which pass through.
    prompt_tokens: u64,
    /// Memory of everything but the slots.
    fixed_bytes: u64,
    sizes: Vec<SizeReport>,
}

/// One size of the memory.
#[derive(Debug, Serialize)]
struct SizeReport {
    /// Slots, those that experts pass through included.
    slots: usize,
    /// Experts that are kept, and which share of all.
    kept: usize,
    kept_share: f64,
    /// Memory of the slots, and with everything else.
    slots_bytes: u64,
    memory_bytes: u64,
    /// Whether the recorded run had it.
    recorded: bool,
    /// Whether it is what the options ask for.
    asked: bool,
    policies: BTreeMap<&'static str, PolicyReport>,
}

/// What a policy comes to. Rates are null where nothing was recorded of the kind.
#[derive(Debug, Serialize)]
struct PolicyReport {
    /// While decoding.
    hit_rate: Option<f64>,
    read_bytes_per_token: Option<u64>,
    /// In prompts.
    prompt_hit_rate: Option<f64>,
    prompt_read_bytes_per_token: Option<u64>,
    /// In both.
    hits: u64,
    misses: u64,
}

pub(crate) fn run(args: &SimulateArgs, invocation: &Invocation) -> Result<()> {
    let (header, visits) = read(&args.file)?;
    let asked = asked_slots(&header, &invocation.global)?;
    let report = simulate(&args.file, &header, &visits, asked.as_ref())?;
    if args.json {
        return print_json(&report);
    }
    std::io::stdout().write_all(text(&report).as_bytes())?;
    Ok(())
}

fn read(path: &Path) -> Result<(Header, Vec<LoggedVisit>)> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let log = routing_log::read(BufReader::new(file));
    let (header, visits) = log.with_context(|| format!("cannot read {}", path.display()))?;
    if visits.is_empty() {
        let message = format!("{} ends after line 1: nothing was recorded", path.display());
        let hint = "`millstream run MODEL PROMPT --record-routing FILE` records";
        return Err(Advised::new(message, hint).into());
    }
    Ok((header, visits))
}

/// The slots that the options ask for, as the plan would read them.
fn asked_slots(header: &Header, global: &GlobalArgs) -> Result<Option<Slots>> {
    let geometry = Geometry::new(&header.layers);
    if let Some(count) = global.expert_slots {
        return Ok(Some(geometry.with_total(count)?));
    }
    let (option, bytes, fixed) = match (global.expert_cache, global.memory) {
        (Some(cache), _) => ("--expert-cache", cache.0, 0),
        (None, Some(memory)) => ("--memory", memory.0, header.fixed_bytes),
        (None, None) => return Ok(None),
    };
    let Some(slots) = geometry.fit(bytes.saturating_sub(fixed)) else {
        let message = format!(
            "{option} {} has no room for one layer's experts of a token",
            size::bytes(bytes)
        );
        let least = fixed.saturating_add(geometry.least_bytes());
        return Err(Advised::new(message, format!("{option} {} would", typed(least))).into());
    };
    Ok(Some(slots))
}

fn simulate(
    path: &Path,
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
            outcome = simulate::run(header, visits, &slots, policy)?;
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
        file: path.display().to_string(),
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
    Ok(geometry.with_total(least)?)
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

fn text(report: &Report) -> String {
    let mut text = format!(
        "{}: {} decoded tokens and {} of prompts, {} layers with {} experts, {} for a token\n\n",
        report.file,
        report.decode_tokens,
        report.prompt_tokens,
        report.layers,
        report.experts,
        report.experts_per_token
    );
    let mut header = vec!["kept", "of all", "slots", "--memory"];
    header.extend(Policy::ALL.map(Policy::name));
    header.extend(["read/token", "in prompts", ""]);
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let percent =
        |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{:.1} %", 100.0 * rate));
    let bytes = |bytes: Option<u64>| bytes.map_or("–".to_owned(), size::bytes);
    for line in &report.sizes {
        let built_in = &line.policies[Policy::Layered.name()];
        let mut row = vec![
            line.kept.to_string(),
            format!("{:.0} %", 100.0 * line.kept_share),
            size::bytes(line.slots_bytes),
            typed(line.memory_bytes),
        ];
        row.extend(Policy::ALL.map(|policy| percent(line.policies[policy.name()].hit_rate)));
        row.push(bytes(built_in.read_bytes_per_token));
        row.push(bytes(built_in.prompt_read_bytes_per_token));
        row.push(match (line.recorded, line.asked) {
            (true, true) => "recorded and asked for".to_owned(),
            (true, false) => "recorded".to_owned(),
            (false, true) => "asked for".to_owned(),
            (false, false) => String::new(),
        });
        rows.push(row);
    }
    let mut columns = vec![Align::Right; 9];
    columns.push(Align::Left);
    text.push_str(&table(&columns, &rows));
    text.push_str(
        "\nPercentages are of a decoded token's experts that are in memory; the two columns after them\n\
         are what a token reads with layered, decoded and in a prompt. layered is what Millstream does:\n\
         each layer has its own slots; lru has one list for all of them; belady knows the future, and\n\
         nothing does better.\n",
    );
    if let Some(line) = report.sizes.iter().find(|line| line.recorded) {
        let built_in = &line.policies[Policy::Layered.name()];
        text.push_str(&format!(
            "The recorded run kept {} experts in {} slots. Its counts were layered's there, prompts \
             included:\n{} hits, {} misses.\n",
            line.kept, line.slots, built_in.hits, built_in.misses
        ));
    }
    text
}

/// A size as it could be typed, no smaller than it is.
fn typed(bytes: u64) -> String {
    let mega = bytes.div_ceil(1 << 20);
    match mega {
        0..10_240 => format!("{mega}M"),
        _ => format!("{:.1}G", (mega as f64 / 102.4).ceil() / 10.0),
    }
}
