//! `millstream list`: the models inside this program and those in the Hugging Face cache.

use std::io::Write;

use anyhow::Result;
use serde_json::json;

use crate::args::ListArgs;
use crate::builtin;
use crate::console::{Align, print_json, table};
use crate::invocation::Invocation;
use crate::size;

pub(crate) fn run(args: &ListArgs, invocation: &Invocation) -> Result<()> {
    let installed = hub::list(&invocation.environment);
    if args.json {
        let mut models = Vec::new();
        for builtin in builtin::ALL {
            models.push(json!({
                "name": builtin.name,
                "builtin": true,
                "path": null,
                "size_bytes": builtin.size_bytes(),
                "revision": null,
                "model_type": model_type(builtin)?,
                "complete": true,
            }));
        }
        for model in installed {
            let mut value = serde_json::to_value(&model)?;
            value["builtin"] = json!(false);
            models.push(value);
        }
        return print_json(&models);
    }
    let titles = ["NAME", "SIZE", "TYPE", "WHERE"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for builtin in builtin::ALL {
        let size = size::bytes(builtin.size_bytes());
        rows.push(vec![
            builtin.name.to_owned(),
            size,
            model_type(builtin)?,
            format!("built in: {}", builtin.about),
        ]);
    }
    for model in installed {
        let place = model.path.display();
        rows.push(vec![
            model.name,
            size::bytes(model.size_bytes),
            model.model_type.unwrap_or_else(|| "?".to_owned()),
            if model.complete { place.to_string() } else { format!("incomplete: {place}") },
        ]);
    }
    let columns = [Align::Left, Align::Right, Align::Left, Align::Left];
    std::io::stdout().write_all(table(&columns, &rows).as_bytes())?;
    Ok(())
}

fn model_type(builtin: &builtin::Builtin) -> Result<String> {
    Ok(builtin.open()?.config().model_type().to_owned())
}
