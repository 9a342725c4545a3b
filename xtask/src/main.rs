//! The project's own tasks, run as `cargo xtask TASK`.
//!
//! A task is a plain program over cargo, git and the file tree: nothing here is linked into the
//! engine, and nothing needs more than a Rust toolchain. What a test wants beyond that (Python, npm,
//! qemu-user) is found or made when it can be, and reported as skipped when it cannot.

mod aarch64;
mod environment;
mod limit;
mod reference;
mod stages;
mod tally;
mod targets;
mod tidy;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};
use stages::{Options, Stage};
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask TASK

tasks:
  test [--long] [--only STAGE,…]   every check, stopping at the first stage that fails
  tidy                             what the compiler does not check: arrows, heads, names, sizes, locks
  reference                        write docs/reference anew from the program
  help                             this text

stages of test, in order:
  fmt clippy tidy test doc reference aarch64 targets limit

--long adds the slow tests (it sets MILLSTREAM_LONG_TESTS=1) and the stage `limit`: 7 GB of disk, root.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("caused by: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<ExitCode> {
    match arguments {
        ["test", options @ ..] => {
            let Some(options) = test_options(options) else { return Ok(misused()) };
            stages::run(&Workspace::open()?, &options)
        }
        ["tidy"] => tidy::run(&Workspace::open()?).map(|()| ExitCode::SUCCESS),
        ["reference"] => reference::write(&Workspace::open()?).map(|()| ExitCode::SUCCESS),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(misused()),
    }
}

fn misused() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}

/// `None` when an option or a stage is unknown.
fn test_options(arguments: &[&str]) -> Option<Options> {
    let mut options = Options { long: false, stages: Stage::ALL.to_vec() };
    let (mut rest, mut is_named) = (arguments.iter(), false);
    while let Some(argument) = rest.next() {
        match *argument {
            "--long" => options.long = true,
            "--only" => {
                let wanted: Vec<&str> = rest.next()?.split(',').collect();
                if !wanted.iter().all(|name| Stage::ALL.iter().any(|stage| stage.name() == *name)) {
                    return None;
                }
                options.stages.retain(|stage| wanted.contains(&stage.name()));
                is_named = true;
            }
            _ => return None,
        }
    }
    if !options.long && !is_named {
        options.stages.retain(|stage| !stage.is_slow());
    }
    Some(options)
}

/// What a check of the tree found, for `bail!` at its end.
fn fail_when_any(count: usize, what: &str) -> Result<()> {
    match count {
        0 => Ok(()),
        1 => bail!("1 {what}"),
        count => bail!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arguments: &[&str], expect: Option<(bool, &str)>) {
        let got = test_options(arguments).map(|options| {
            let names: Vec<&str> = options.stages.iter().map(|stage| stage.name()).collect();
            (options.long, names.join(" "))
        });
        assert_eq!(got, expect.map(|(long, names)| (long, names.to_owned())));
    }

    #[test]
    fn options_choose_stages_in_their_fixed_order() {
        check(&[], Some((false, "fmt clippy tidy test doc reference aarch64 targets")));
        check(
            &["--long"],
            Some((true, "fmt clippy tidy test doc reference aarch64 targets limit")),
        );
        check(&["--only", "test,fmt"], Some((false, "fmt test")));
        check(&["--only", "limit"], Some((false, "limit")));
        check(&["--only", "tests"], None);
        check(&["--only"], None);
        check(&["--quick"], None);
    }

    #[test]
    fn usage_names_every_stage() {
        let names: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert!(USAGE.contains(&names.join(" ")));
    }
}
