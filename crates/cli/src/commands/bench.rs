//! `millstream bench`: prefill and decode speed at several context lengths, against the memory's own.

mod pairs;

use anyhow::Result;
use machine::facts::Facts;
use workbench::bench::{Options, Report, StreamedRun};

use crate::args::BenchArgs;
use crate::console::{Align, print_json, table};
use crate::invocation::{self, Invocation, SwapWatch};
use crate::measured::Measured;
use crate::size;

pub(crate) fn run(args: &BenchArgs, invocation: &Invocation) -> Result<()> {
    let model = match &args.synthetic {
        Some(shape) => invocation.open_synthetic(shape, args.layers)?,
        None => invocation.open(&args.model)?,
    };
    if let Some(pairs) = args.pairs {
        return pairs::run(pairs, args, &model, invocation);
    }
    let options = Options {
        prompt_tokens: args.prompt_tokens.clone(),
        gen_tokens: args.gen_tokens,
        repeat: args.repeat,
        trace: args.trace.clone(),
    };
    let plan = invocation.plan_for(&model, options.positions(), 1)?;
    if args.synthetic.is_some() && plan.streaming.is_some() {
        tracing::warn!(
            "experts that are not in memory are made each time they are wanted: what is said of reads is \
             about that, not about a disk"
        );
    }
    let facts = Facts::gather();
    let mut runner = invocation.load_planned(&model, plan)?;
    let mut swap = SwapWatch::start();
    let runs = workbench::bench::runs(&mut runner, &options)?;
    invocation::finish(&runner)?;
    swap.check();
    let report = workbench::bench::report(model.name, runner, runs, facts)?;
    Measured::of(&invocation.environment).keep_memory(report.threads, report.memory_bandwidth);
    print(&report, args)
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
