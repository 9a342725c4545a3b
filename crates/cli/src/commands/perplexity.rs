//! `millstream perplexity`: how well a model predicts a text, and how far it is from another model.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use workbench::perplexity::{Evaluation, measure};

use crate::args::PerplexityArgs;
use crate::console::print_json;
use crate::invocation::{self, Invocation, OpenModel};
use crate::report::Advised;

pub(crate) fn run(args: &PerplexityArgs, invocation: &Invocation) -> Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let model = invocation.open(&args.model)?;
    let model_text = model.text()?;
    let tokens = model_text.tokenizer.encode(&text, false)?;
    if tokens.len() < 2 {
        let (file, count) = (args.file.display(), tokens.len());
        let message = format!("{file} has {count} token(s); there is nothing to predict");
        return Err(Advised::new(message, "give a file with a text of some length").into());
    }
    let mut reader = load(args, invocation, &model)?;
    let mut reference = match &args.reference {
        Some(name) => {
            let other = invocation.open(name)?;
            if other.spec.vocab != model.spec.vocab {
                bail!(
                    "{name} has {} tokens, {} has {}: their distributions cannot be compared",
                    other.spec.vocab,
                    args.model,
                    model.spec.vocab
                );
            }
            Some(load(args, invocation, &other)?)
        }
        None => None,
    };
    let bar = invocation.console.token_bar("reading", tokens.len() as u64, Duration::ZERO);
    let report = measure(&tokens, args.chunk, &mut reader, reference.as_mut(), || bar.inc(1))?;
    bar.finish_and_clear();
    invocation::finish(&reader.runner)?;
    if args.json {
        return print_json(&report);
    }
    println!(
        "perplexity {:.4} (nll {:.4} ± {:.4}, {} of {} tokens predicted, {:.1} % right)",
        report.perplexity,
        report.nll,
        report.nll_error,
        report.predicted,
        report.tokens,
        100.0 * report.accuracy
    );
    if let Some(other) = &report.reference {
        println!(
            "against {}: perplexity {:.4}, KL {:.6} (max {:.4}), same choice {:.2} %",
            other.model,
            other.perplexity,
            other.kl,
            other.kl_max,
            100.0 * other.same_choice
        );
    }
    Ok(())
}

/// Loads a model that reads the text.
fn load(args: &PerplexityArgs, invocation: &Invocation, model: &OpenModel) -> Result<Evaluation> {
    let plan = invocation.plan_for(model, args.chunk, 0)?;
    let runner = invocation.load_planned(model, plan)?;
    Ok(Evaluation { name: model.name.clone(), runner, step_by_step: args.step_by_step })
}
