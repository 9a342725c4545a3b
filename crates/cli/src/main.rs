//! The program `millstream`: one file a command under `commands/`.
//!
//! Standard output is data, standard error carries messages. What was typed is in `args`, what the file of
//! settings adds in `settings`, how failures read in `report`.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, reason = "`say!` survives a closed standard error")]

mod answer;
mod args;
mod builtin;
mod commands;
mod console;
mod drafting;
mod interrupt;
mod invocation;
mod log;
mod measured;
mod report;
mod screen;
mod settings;
mod size;

use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgMatches, FromArgMatches};

use args::{Cli, Command};
use console::Console;
use invocation::Invocation;
use settings::{Overlay, SettingsFile};

fn main() -> ExitCode {
    machine::memory::return_large_blocks();
    let console = Console::new(false);
    let typed = match args::command().try_get_matches() {
        Ok(typed) => typed,
        Err(error) => return report::bad_usage(error, console),
    };
    let run = || -> Result<ExitCode> {
        let (matches, overlay) = match lay_settings_under(typed)? {
            Ok(laid) => laid,
            Err(error) => return Ok(report::bad_usage(error, console)),
        };
        let cli = Cli::from_arg_matches(&matches)?;
        let console = Console::new(cli.global.no_progress);
        log::start(cli.global.level(), console);
        let environment = hub::Environment::from_env();
        let invocation = Invocation {
            global: cli.global,
            engine: cli.command.engine(),
            speculation: cli.command.speculation(),
            measuring: cli.command.measuring(),
            console,
            environment,
        };
        dispatch(&cli.command, &invocation, &matches, &overlay)
    };
    run().unwrap_or_else(|error| report::failure(&error, console))
}

type Laid = (ArgMatches, Overlay);

/// Parses the command line again, with the file of settings under it. It was sound without the file and
/// every value of the file is, but together they may not be.
fn lay_settings_under(typed: ArgMatches) -> Result<std::result::Result<Laid, clap::Error>> {
    let Some((name, own)) = typed.subcommand() else { return Ok(Ok((typed, Overlay::new()))) };
    // These use no settings, and must work in a shell's start-up whatever is in the file.
    if matches!(name, "completions" | "man" | "reference") {
        return Ok(Ok((typed, Overlay::new())));
    }
    let file = SettingsFile::find(own.get_one::<std::path::PathBuf>("config").map(AsRef::as_ref))?;
    let innermost = own.subcommand().map_or(own, |(_, inner)| inner);
    let model = innermost.try_get_one::<String>("model").ok().flatten();
    let overlay = file.overlay(model.map_or(builtin::DEFAULT, String::as_str));
    let command = settings::with_defaults(args::command(), &overlay);
    Ok(command.try_get_matches().map(|matches| (matches, overlay)))
}

fn dispatch(
    command: &Command,
    invocation: &Invocation,
    matches: &ArgMatches,
    overlay: &Overlay,
) -> Result<ExitCode> {
    match command {
        Command::Run(args) => commands::run::run(args, invocation)?,
        Command::Serve(args) => commands::serve::run(args, invocation)?,
        Command::Plan(args) => commands::plan::run(args, invocation)?,
        Command::Show(args) => commands::show::run(args, invocation)?,
        Command::List(args) => commands::list::run(args, invocation)?,
        Command::Doctor(args) => return commands::doctor::run(args, invocation),
        Command::Bench(args) => commands::bench::run(args, invocation)?,
        Command::Logits(args) => commands::logits::run(args, invocation)?,
        Command::Perplexity(args) => commands::perplexity::run(args, invocation)?,
        Command::Synth(args) => commands::synth::run(args, invocation)?,
        Command::Repack(args) => commands::repack::run(args, invocation)?,
        Command::Simulate(args) => commands::simulate::run(args, invocation)?,
        Command::Config(args) => commands::config::run(args, matches, overlay)?,
        Command::Completions(args) => commands::completions::run(args)?,
        Command::Man(args) => commands::man::run(args)?,
        Command::Reference(args) => commands::reference::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
