//! `millstream bench`: prefill and decode speed at several context lengths, against the memory's own.

mod pairs;
mod streaming;

use std::ops::Range;
use std::time::Instant;

use anyhow::Result;
use engine::Runner;
use machine::facts::Facts;
use machine::memory::Usage;
use model::Logits;
use serde::Serialize;
use state::Sequence;

use super::logits::argmax;
use crate::args::BenchArgs;
use crate::console::{Align, print_json, table};
use crate::invocation::{self, Invocation, SwapWatch};
use crate::measured::Measured;
use crate::size;
use streaming::{REHEARSAL, STRETCH, Stopped, StreamedRun, Watch};

/// Tokens decoded before the clock starts, so that buffers have their size and threads are awake.
const WARM_UP: usize = 2;

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    model_type: String,
    threads: usize,
    isa: String,
    weight_bytes: u64,
    /// A plain read of memory with the same threads in this run, bytes per second.
    memory_bandwidth: f64,
    runs: Vec<Run>,
    /// What the process held at the end of the last run: resident, from files, in swap.
    memory: Usage,
    machine: Facts,
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    prompt_tokens: usize,
    gen_tokens: usize,
    prefill_tok_s: f64,
    decode_tok_s: f64,
    /// Bytes one decoded token touches: weights, keys and values, recurrent state read and written.
    bytes_per_token: u64,
    /// Share of the plain read's bandwidth that decoding reaches.
    bandwidth_share: f64,
    peak_bytes: u64,
    /// If experts came from the disk.
    #[serde(flatten)]
    streamed: Option<StreamedRun>,
}

pub(crate) fn run(args: &BenchArgs, invocation: &Invocation) -> Result<()> {
    let model = invocation.open(&args.model)?;
    if let Some(pairs) = args.pairs {
        return pairs::run(pairs, args, &model, invocation);
    }
    let longest = args.prompt_tokens.iter().max().copied().unwrap_or(0) + args.gen_tokens;
    // A copy of the sequence is rehearsed on.
    let plan =
        invocation.plan_for(&model, longest + WARM_UP + compute::memory::BLOCK + REHEARSAL, 1)?;
    let facts = Facts::gather();
    let (threads, isa) = (plan.options.threads, plan.options.isa);
    let mut runner = invocation.load_planned(&model, plan)?;
    let mut swap = SwapWatch::start();
    let mut runs = Vec::new();
    for &prompt_tokens in &args.prompt_tokens {
        let mut best: Option<(Run, Option<Stopped>)> = None;
        for repeat in 0..args.repeat {
            let (run, seen) = measure(&mut runner, prompt_tokens, repeat, args)?;
            best = Some(match best {
                None => (run, seen),
                Some((best, best_seen)) => {
                    let prefill_tok_s = best.prefill_tok_s.max(run.prefill_tok_s);
                    let is_faster = run.decode_tok_s > best.decode_tok_s;
                    let (faster, seen) = if is_faster { (run, seen) } else { (best, best_seen) };
                    (Run { prefill_tok_s, ..faster }, seen)
                }
            });
        }
        let Some((run, seen)) = best else { continue };
        if let (Some(seen), Some(path)) = (seen, &args.trace) {
            seen.write_trace(path)?;
        }
        runs.push(run);
    }
    invocation::finish(&runner)?;
    swap.check();
    let memory = machine::memory::usage();
    // After the runs and without the model, so that the buffer of the plain read finds room and is not in
    // their peak. Neighbours on the machine come and go: the ceiling is the better of two.
    drop(runner);
    let bandwidth = measure_bandwidth(&facts, threads)?.max(measure_bandwidth(&facts, threads)?);
    Measured::of(&invocation.environment).keep_memory(threads, bandwidth);
    for run in &mut runs {
        run.bandwidth_share = run.bytes_per_token as f64 * run.decode_tok_s / bandwidth;
    }
    let report = Report {
        model: model.name,
        model_type: model.spec.model_type.clone(),
        threads,
        isa: isa.to_string(),
        weight_bytes: model.spec.resident_bytes() + model.spec.expert_bytes(),
        memory_bandwidth: bandwidth,
        runs,
        memory,
        machine: facts,
    };
    print(&report, args)
}

fn measure_bandwidth(facts: &Facts, threads: usize) -> Result<f64> {
    Ok(machine::probe::read_bandwidth(threads, machine::probe::buffer_bytes(facts))?)
}

/// One prompt and one answer, and for a trace what was seen of reads meanwhile. Tokens are drawn at random, so that
/// routing does not settle on the experts of a repeated token; each repeat draws others, which the cache of
/// experts does not know yet.
fn measure(
    runner: &mut Runner,
    prompt_tokens: usize,
    repeat: usize,
    args: &BenchArgs,
) -> Result<(Run, Option<Stopped>)> {
    let gen_tokens = args.gen_tokens;
    let vocab = runner.spec().vocab as u64;
    let token = |index: usize| -> u32 {
        let draw = ((repeat as u64) << 32) + index as u64 + 1;
        let hash = draw.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> 20) % vocab) as u32
    };
    let prompt: Vec<u32> = (0..prompt_tokens).map(token).collect();
    let mut sequence = runner.sequence()?;
    let start = Instant::now();
    runner.feed(&mut sequence, &prompt, Logits::Last, |_, _| {})?;
    let prefill_seconds = start.elapsed().as_secs_f64();
    let decode =
        |runner: &mut Runner, sequence: &mut Sequence, range: Range<usize>| -> Result<f64> {
            let start = Instant::now();
            for index in range {
                let next = [token(prompt_tokens + index)];
                runner.feed(sequence, &next, Logits::Last, |_, logits| {
                    std::hint::black_box(argmax(logits));
                })?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
    decode(runner, &mut sequence, 0..WARM_UP)?;
    let mut watch = Watch::start(runner, &sequence)?;
    let (mut decoded, mut decode_seconds) = (0, 0.0);
    while decoded < gen_tokens {
        let stretch = if watch.is_some() { STRETCH } else { gen_tokens };
        let end = gen_tokens.min(decoded + stretch);
        let range = WARM_UP + decoded..WARM_UP + end;
        decode_seconds += decode(runner, &mut sequence, range)?;
        decoded = end;
        if let Some(watch) = &mut watch {
            watch.pause(runner, &sequence)?;
        }
    }
    let peak_bytes = machine::memory::usage().peak_resident_bytes;
    let stopped = watch.zip(runner.streamed());
    let stopped = stopped.map(|(watch, bank)| watch.stop(bank, gen_tokens, decode_seconds));
    let streamed = stopped.as_ref().map(|stopped| stopped.judge(runner)).transpose()?;
    let layout = runner.spec().layout()?;
    let kv = runner.options().kv;
    let state = layout.kv_bytes(kv, prompt_tokens + gen_tokens / 2) + 2 * layout.recurrent_bytes();
    let run = Run {
        prompt_tokens,
        gen_tokens,
        prefill_tok_s: prompt_tokens as f64 / prefill_seconds,
        decode_tok_s: gen_tokens as f64 / decode_seconds,
        bytes_per_token: runner.spec().bytes_per_token() + state as u64,
        bandwidth_share: 0.0,
        peak_bytes,
        streamed,
    };
    // Nobody else wants it, and it takes memory.
    Ok((run, stopped.filter(|_| args.trace.is_some())))
}

fn print(report: &Report, args: &BenchArgs) -> Result<()> {
    if args.json {
        return print_json(report);
    }
    if args.csv {
        println!(
            "model,threads,isa,prompt_tokens,gen_tokens,prefill_tok_s,decode_tok_s,bytes_per_token,\
             bandwidth_share,peak_bytes,slots,hit_rate,read_bytes_per_token,disk_bandwidth,read_share,\
             read_latency_us_p50,read_latency_us_p99,computing_share,waiting_share,bound_share,ideal_share"
        );
        for run in &report.runs {
            println!(
                "{},{},{},{},{},{:.2},{:.2},{},{:.3},{},{}",
                report.model,
                report.threads,
                report.isa,
                run.prompt_tokens,
                run.gen_tokens,
                run.prefill_tok_s,
                run.decode_tok_s,
                run.bytes_per_token,
                run.bandwidth_share,
                run.peak_bytes,
                streamed_columns(run.streamed.as_ref())
            );
        }
        return Ok(());
    }
    println!(
        "{} ({}), {} of weights, {} threads, {} kernels, plain read {}/s",
        report.model,
        report.model_type,
        size::bytes(report.weight_bytes),
        report.threads,
        report.isa,
        size::bytes(report.memory_bandwidth as u64)
    );
    let header =
        ["prompt", "prefill tok/s", "decode tok/s", "bytes/token", "of plain read", "peak memory"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for run in &report.runs {
        rows.push(vec![
            run.prompt_tokens.to_string(),
            format!("{:.1}", run.prefill_tok_s),
            format!("{:.2}", run.decode_tok_s),
            size::bytes(run.bytes_per_token),
            format!("{:.0} %", 100.0 * run.bandwidth_share),
            size::bytes(run.peak_bytes),
        ]);
    }
    print!("{}", table(&[Align::Right; 6], &rows));
    print_streamed(report);
    Ok(())
}

/// What came from the disk, as the last columns of a line: empty if nothing did.
fn streamed_columns(streamed: Option<&StreamedRun>) -> String {
    let Some(run) = streamed else { return ",".repeat(10) };
    format!(
        "{},{:.3},{},{:.0},{:.3},{},{},{:.3},{:.3},{:.3},{:.3}",
        run.slots,
        run.hit_rate,
        run.read_bytes_per_token,
        run.disk_bandwidth,
        run.read_share,
        run.read_latency_us.p50,
        run.read_latency_us.p99,
        run.computing_share,
        run.waiting_share,
        run.bound_share,
        run.ideal_share
    )
}

/// What came from the disk, if anything did.
fn print_streamed(report: &Report) {
    let header = [
        "prompt",
        "hits",
        "read/token",
        "disk",
        "of disk",
        "latency p50/p99",
        "computing",
        "waiting",
        "of bound",
        "of ideal",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    for run in &report.runs {
        let Some(streamed) = &run.streamed else { continue };
        rows.push(vec![
            run.prompt_tokens.to_string(),
            percent(streamed.hit_rate),
            size::bytes(streamed.read_bytes_per_token),
            format!("{}/s", size::bytes(streamed.disk_bandwidth as u64)),
            percent(streamed.read_share),
            streamed.read_latency_us.to_string(),
            percent(streamed.computing_share),
            percent(streamed.waiting_share),
            percent(streamed.bound_share),
            percent(streamed.ideal_share),
        ]);
    }
    if rows.len() > 1 {
        println!();
        print!("{}", table(&[Align::Right; 10], &rows));
    }
}
