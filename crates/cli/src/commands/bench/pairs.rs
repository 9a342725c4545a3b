//! `bench --pairs`: the same answers with drafts and without, in turns, in one process.

use anyhow::Result;
use workbench::bench::pairs::{Options, Report, noise, questions};

use crate::args::BenchArgs;
use crate::console::{Align, print_json, table};
use crate::invocation::{self, Invocation, OpenModel, SwapWatch};

pub(super) fn run(
    count: usize,
    args: &BenchArgs,
    model: &OpenModel,
    invocation: &Invocation,
) -> Result<()> {
    let max_tokens = args.gen_tokens.max(2);
    let requests = match &args.prompts {
        Some(path) => questions(path, &model.checkpoint, max_tokens)?,
        None => noise(model.spec.vocab, args.prompt_tokens[0], max_tokens),
    };
    let longest = requests.iter().map(|request| request.prompt.len()).max().unwrap_or(0);
    let positions = (longest + args.gen_tokens + 64).next_multiple_of(64);
    let request = runtime::PlanRequest {
        context: Some(invocation.global.context.unwrap_or(0).max(positions)),
        ..invocation.plan_request()
    };
    let pair = invocation.plan_pair(model, &request)?;
    let kept_share = pair.plan.streaming.as_ref().map_or(1.0, |streaming| streaming.kept_share);
    let options = Options {
        count,
        oracle: args.oracle,
        fixed_draft: args.fixed_draft.clone(),
        most_drafted: args.num_draft_tokens,
        // One token of a block is known.
        head_drafts: args.dflash_block_size.map(|size| size - 1),
        rounds: args.rounds.clone(),
    };
    let speculation = options.speculation(!invocation.speculation.names_a_source());
    let mut engine = invocation.load_with(model, pair, speculation)?;
    let mut swap = SwapWatch::start();
    let report = options.run(model.name.clone(), kept_share, &mut engine, &requests)?;
    invocation::finish(engine.runner())?;
    swap.check();
    print(&report, args)
}

fn print(report: &Report, args: &BenchArgs) -> Result<()> {
    if args.json {
        return print_json(report);
    }
    let header = ["prompt", "tokens", "plain tok/s", "drafted tok/s", "ratio", "right", "wrong"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for pair in &report.pairs {
        let rate = |seconds: f64| format!("{:.2}", pair.tokens.saturating_sub(1) as f64 / seconds);
        rows.push(vec![
            pair.prompt.to_string(),
            pair.tokens.to_string(),
            rate(pair.plain_seconds),
            rate(pair.drafted_seconds),
            format!("{:.3}", pair.ratio),
            pair.accepted.to_string(),
            pair.rejected.to_string(),
        ]);
    }
    print!("{}", table(&[Align::Right; 7], &rows));
    println!(
        "with drafts {:.3} times as fast (median of {}), {:.2} tokens a pass",
        report.ratio,
        report.pairs.len(),
        report.tokens_per_pass
    );
    if let Some(speculation) = &report.speculation {
        for source in &speculation.sources {
            println!(
                "{:?}: {} drafts, {} of {} tokens right, the first of {:.0} %",
                source.source,
                source.rounds,
                source.accepted,
                source.verified,
                100.0 * source.first_accepted
            );
        }
    }
    Ok(())
}
