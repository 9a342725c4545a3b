//! `millstream man [COMMAND]`: a manual page, for `man -l -` or for a package.

use std::io::Write;

use anyhow::Result;

use crate::args::{ManArgs, command};
use crate::report::Advised;

pub(crate) fn run(args: &ManArgs) -> Result<()> {
    let mut program = command();
    // Fills in the names of subcommands (`millstream run`) and the global options.
    program.build();
    let page = match &args.command {
        None => program,
        Some(name) => match program.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                let names: Vec<&str> = program
                    .get_subcommands()
                    .filter(|command| !command.is_hide_set())
                    .map(clap::Command::get_name)
                    .collect();
                let hint = format!("commands are {}", names.join(", "));
                return Err(Advised::usage(format!("there is no command `{name}`"), hint).into());
            }
        },
    };
    let mut text = Vec::new();
    let source = concat!("millstream ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(page).source(source).manual("Millstream").render(&mut text)?;
    std::io::stdout().write_all(&text)?;
    Ok(())
}
