//! `millstream plan`: where the memory would go, from headers alone.

use std::io::Write;

use anyhow::Result;
use engine::Plan;

use crate::args::PlanArgs;
use crate::console::{Align, Tone, print_json, table};
use crate::invocation::{Invocation, OpenModel};
use crate::size;

pub(crate) fn run(args: &PlanArgs, invocation: &Invocation) -> Result<()> {
    let model = invocation.open(&args.model)?;
    let plan = invocation.plan(&model)?;
    if args.json {
        let mut value = serde_json::to_value(&plan)?;
        value["model"] = model.name.into();
        value["model_type"] = model.spec.model_type.into();
        return print_json(&value);
    }
    let asked = invocation.global.memory.is_some();
    std::io::stdout().write_all(text(&model, &plan, asked).as_bytes())?;
    for hint in &plan.hints {
        eprintln!("{} {hint}", invocation.console.paint(Tone::Hint, "hint:"));
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
        text.push_str(&format!("It fits, with {spare} to spare.\n"));
    } else {
        let over_bytes = plan.total_bytes - plan.budget_bytes;
        let over = size::bytes(over_bytes);
        text.push_str(&format!("It does not fit: {over} too much.\n"));
        if over_bytes > plan.expert_bytes {
            text.push_str("Without its experts it would not fit either.\n");
        } else {
            let stream = size::bytes(plan.would_stream_bytes);
            text.push_str(&format!("{stream} of experts would have to come from the disk.\n"));
        }
    }
    text.push_str(&format!(
        "Context: {} of the model's {} positions.\n",
        plan.context, plan.model_context
    ));
    text.push_str(&format!("A token reads {} of weights.\n", size::bytes(plan.bytes_per_token)));
    text
}
