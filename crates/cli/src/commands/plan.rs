//! `millstream plan`: where the memory would go, from headers alone; and where experts would come from the
//! disk, what that disk and this memory let one expect. Those two are measured unless they were in the last days.

use std::io::Write;

use anyhow::Result;
use experts::probe::Choice;
use runtime::{Plan, StreamPlan};
use serde_json::{Value, json};

use crate::args::PlanArgs;
use crate::console::{Align, Tone, print_json, say, table};
use crate::invocation::{self, Invocation, OpenModel};
use crate::measured::{Dated, Measured};
use crate::size;

/// Share of a plain read's bandwidth that decoding reaches, at the slow end and at the fast one:
/// `benches/compare_llama.py` measured 0.80 and 0.86 for twelve layers of a 35B-A3B's shape with everything in memory (two
/// threads of a Xeon, with AMX and without, 15 Nov 2026); other hours and machines give less.
const BANDWIDTH_SHARES: [f64; 2] = [0.6, 0.8];

/// Memory the bandwidth is measured with. `bench` takes more; an expectation need not be as good.
const BANDWIDTH_BYTES: usize = 256 << 20;

/// How often it is measured. Neighbours on the machine come and go: the best counts.
const BANDWIDTH_TRIALS: usize = 3;

/// What the disk lets one expect.
#[derive(Debug)]
struct Expected {
    disk: Dated<Choice>,
    /// Bytes that are read from memory in a second; `None` where the disk was not timed.
    memory: Option<Dated<f64>>,
    threads: usize,
    /// At the worst and at the best hit rate expected; `None` where the disk was not timed.
    tok_s: Option<[f64; 2]>,
}

pub(crate) fn run(args: &PlanArgs, invocation: &Invocation) -> Result<()> {
    let model = invocation.open(&args.model)?;
    let plan = invocation.plan(&model)?.plan;
    let expected = expect(&model, &plan, &Measured::of(&invocation.environment))?;
    if args.json {
        let mut value = serde_json::to_value(&plan)?;
        value["model"] = model.name.into();
        value["model_type"] = model.spec.model_type.into();
        value["disk"] = expected.as_ref().map_or(Value::Null, disk_json);
        value["memory"] = expected.as_ref().map_or(Value::Null, memory_json);
        value["expected_tok_s"] = serde_json::to_value(expected.and_then(|e| e.tok_s))?;
        return print_json(&value);
    }
    let asked = invocation.global.memory.is_some();
    let mut text = text(&model, &plan, asked);
    if let Some(streaming) = &plan.streaming
        && plan.fits
    {
        text.push_str(&streaming_text(&model, streaming, expected.as_ref()));
    }
    std::io::stdout().write_all(text.as_bytes())?;
    for hint in &plan.hints {
        say!("{} {hint}", invocation.console.paint(Tone::Hint, "hint:"));
    }
    Ok(())
}

fn text(model: &OpenModel, plan: &Plan, asked: bool) -> String {
    let (all, active) = model.spec.parameters();
    let mut text =
        format!("{} ({}): {} parameters", model.name, model.spec.model_type, size::count(all));
    if active < all {
        text.push_str(&format!(", {} used by a token", size::count(active)));
    }
    text.push_str("\n\n");

    let row = |name: &str, bytes: u64, note: &str| {
        vec![format!("  {name}"), size::bytes(bytes), note.to_owned()]
    };
    let mut rows: Vec<_> = plan.rows.iter().map(|r| row(r.name, r.bytes, &r.note)).collect();
    rows.push(row("total", plan.total_bytes, ""));
    // Sizes are decimal here and binary where they are typed.
    let note = match asked {
        true if plan.budget_bytes < 1 << 30 => format!("--memory, {} MiB", plan.budget_bytes >> 20),
        true => format!("--memory, {:.1} GiB", plan.budget_bytes as f64 / f64::from(1 << 30)),
        false => "a safe share of what the system allows".to_owned(),
    };
    rows.push(row("budget", plan.budget_bytes, &note));
    text.push_str(&table(&[Align::Left, Align::Right, Align::Left], &rows));

    text.push('\n');
    if plan.fits {
        let spare = size::bytes(plan.budget_bytes - plan.total_bytes);
        text.push_str(&format!("It fits, with {spare} to spare"));
        match plan.streaming {
            Some(_) => {
                text.push_str(&format!("; experts come from {}.\n", model.expert_source()));
            }
            None => text.push_str(".\n"),
        }
    } else {
        let over = size::bytes(plan.total_bytes - plan.budget_bytes);
        text.push_str(&format!("It does not fit: {over} too much"));
        // Not even one token's experts of one layer have room.
        text.push_str(match (&plan.streaming, &model.folder) {
            (Some(StreamPlan { slots: 0, .. }), Some(_)) => {
                ", even with its experts on the disk.\n"
            }
            (Some(StreamPlan { slots: 0, .. }), None) => {
                ", even with its experts left where they are.\n"
            }
            _ => ".\n",
        });
    }
    text.push_str(&format!(
        "Context: {} of the model's {} positions.\n",
        plan.context, plan.model_context
    ));
    text.push_str(&format!("A token reads {} of weights.\n", size::bytes(plan.bytes_per_token)));
    text
}

/// What disk and memory let one expect, if experts would come from a disk. Both are tried unless it is known
/// how fast they are.
fn expect(model: &OpenModel, plan: &Plan, measured: &Measured) -> Result<Option<Expected>> {
    let Some(streaming) = plan.streaming.as_ref().filter(|_| plan.fits) else { return Ok(None) };
    let Some(place) = model.place() else { return Ok(None) };
    let disk = match measured.disk(&place) {
        Some(disk) => disk,
        None => measured.keep_disk(&place, runtime::probe(&model.checkpoint, &model.spec)?),
    };
    let (rate, threads) = (disk.value.bytes_per_second, plan.options.threads);
    if rate <= 0.0 {
        return Ok(Some(Expected { disk, memory: None, threads, tok_s: None }));
    }
    let memory = match measured.memory(threads) {
        Some(memory) => memory,
        None => measured.keep_memory(threads, memory_bandwidth(threads)?),
    };
    let compute =
        BANDWIDTH_SHARES.map(|share| plan.bytes_per_token as f64 / (share * memory.value));
    let read = streaming.read_bytes_per_token.map(|bytes| bytes as f64 / rate);
    let tok_s = Some(tok_s(compute, read));
    Ok(Some(Expected { disk, memory: Some(memory), threads, tok_s }))
}

fn memory_bandwidth(threads: usize) -> Result<f64> {
    let mut best = 0.0_f64;
    for _ in 0..BANDWIDTH_TRIALS {
        best = best.max(machine::probe::read_bandwidth(threads, BANDWIDTH_BYTES)?);
    }
    Ok(best)
}

/// The slow end has the most to read and computes nothing meanwhile; the fast end has the least to read
/// and does both at once. Seconds of a token at the slow end and at the fast one.
fn tok_s(compute_seconds: [f64; 2], read_seconds: [f64; 2]) -> [f64; 2] {
    let ([slowest, fastest], [most, least]) = (compute_seconds, read_seconds);
    [1.0 / (slowest + most), 1.0 / fastest.max(least)]
}

fn disk_json(expected: &Expected) -> Value {
    let disk = &expected.disk.value;
    json!({
        "access": disk.access.to_string(),
        "queue": disk.method.queue.to_string(),
        "depth": disk.method.depth,
        "bytes_per_second": Some(disk.bytes_per_second).filter(|&rate| rate > 0.0),
        "measured": expected.disk.date(),
    })
}

fn memory_json(expected: &Expected) -> Value {
    let Some(memory) = &expected.memory else { return Value::Null };
    json!({
        "bytes_per_second": memory.value,
        "threads": expected.threads,
        "measured": memory.date(),
    })
}

/// What one may expect of experts that come from the disk.
fn streaming_text(
    model: &OpenModel,
    streaming: &StreamPlan,
    expected: Option<&Expected>,
) -> String {
    let source = model.expert_source();
    let [even, published] = streaming.hit_rate.map(|rate| 100.0 * rate);
    let [most, least] = streaming.read_bytes_per_token.map(size::bytes);
    let mut text = match published {
        0.0 => format!("The slots keep no experts: all {most} of a token's come from {source}.\n"),
        _ => format!(
            "Of a token's experts {even:.0} % (if all are alike) to {published:.0} % (as published) are in \
             memory;\n{least} to {most} come from {source}.\n"
        ),
    };
    if let Some(expected) = expected {
        let Expected { disk, memory, threads, .. } = expected;
        let line = invocation::disk_line(&disk.value);
        text.push_str(&format!("Disk: {line}; measured {}.\n", disk.date()));
        if let Some(memory) = memory {
            let (rate, threads) =
                (size::bytes(memory.value as u64), size::counted(*threads, "thread"));
            text.push_str(&format!("Memory: {rate}/s by {threads}; measured {}.\n", memory.date()));
        }
        if let Some([slow, fast]) = expected.tok_s {
            text.push_str(&format!("Expect {slow:.1} to {fast:.1} tokens/s when decoding.\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::tok_s;

    #[test]
    fn the_slow_end_adds_and_the_fast_end_overlaps() {
        assert_eq!(tok_s([0.25, 0.125], [0.75, 0.5]), [1.0, 2.0]);
        assert_eq!(tok_s([0.25, 0.25], [0.25, 0.125]), [2.0, 4.0]);
        assert_eq!(tok_s([0.25, 0.125], [0.0, 0.0]), [4.0, 8.0]);
    }
}
