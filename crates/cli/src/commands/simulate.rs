//! `millstream simulate`: how often experts would have been in memory, by size of the memory and policy.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result};
use experts::routing_log::{self, Header, LoggedVisit};
use experts::simulate::Policy;
use experts::{Geometry, Slots};
use workbench::simulate::Report;

use crate::args::SimulateArgs;
use crate::console::{Align, print_json, table};
use crate::invocation::Invocation;
use crate::report::{Advised, RECORDING};
use crate::size;

pub(crate) fn run(args: &SimulateArgs, invocation: &Invocation) -> Result<()> {
    let (header, visits) = read(&args.file)?;
    let asked = asked_slots(&header, invocation)?;
    let report = workbench::simulate::run(
        args.file.display().to_string(),
        &header,
        &visits,
        asked.as_ref(),
    )?;
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
        return Err(Advised::new(message, RECORDING).into());
    }
    Ok((header, visits))
}

/// The slots that the options request, as the plan would read them.
fn asked_slots(header: &Header, invocation: &Invocation) -> Result<Option<Slots>> {
    let (engine, geometry) = (&invocation.engine, Geometry::new(&header.layers));
    if let Some(count) = invocation.measuring.slots.expert_slots {
        return Ok(Some(geometry.with_total(count)?));
    }
    let (option, bytes, fixed) = match (engine.cache.expert_cache, invocation.global.memory) {
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
