//! `millstream config show`: every setting, its value, and where the value comes from.

use std::io::Write;

use anyhow::Result;
use clap::ArgMatches;

use crate::args::{ConfigArgs, ConfigCommand};
use crate::console::{Align, print_json, table};
use crate::settings::{Overlay, effective};

pub(crate) fn run(args: &ConfigArgs, matches: &ArgMatches, overlay: &Overlay) -> Result<()> {
    let ConfigCommand::Show(show) = &args.command;
    let inner = ["config", "show"]
        .iter()
        .fold(matches, |matches, name| matches.subcommand_matches(name).unwrap_or(matches));
    let settings = effective(inner, overlay);
    if show.json {
        return print_json(&settings);
    }
    let mut rows = vec![vec!["SETTING".to_owned(), "VALUE".to_owned(), "FROM".to_owned()]];
    rows.extend(settings.into_iter().map(|setting| {
        let value = setting.value.unwrap_or_else(|| "-".to_owned());
        vec![setting.name, value, setting.origin]
    }));
    let text = table(&[Align::Left, Align::Left, Align::Left], &rows);
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
