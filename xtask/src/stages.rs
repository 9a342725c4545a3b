//! `cargo xtask test`: every check there is, in order, stopping at the first stage that fails.
//!
//! The closing line gives the totals. A stage that fails outside the tests counts as one failure,
//! and one that cannot run here as one skip, so the line never looks better than the run was.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::environment::TestEnvironment;
use crate::tally::Tally;
use crate::workspace::{Workspace, find_program, run as run_command};
use crate::{aarch64, limit, reference, targets, tidy};

/// The options of `cargo xtask test`.
pub(crate) struct Options {
    pub(crate) long: bool,
    /// In the order of [`Stage::ALL`].
    pub(crate) stages: Vec<Stage>,
}

/// One step of the run.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Stage {
    Fmt,
    Clippy,
    Tidy,
    Test,
    Doc,
    Reference,
    Aarch64,
    Targets,
    Limit,
}

/// How a stage ended that did not fail.
pub(crate) enum Outcome {
    Passed,
    /// It would have something to say, but cannot run here: counted.
    Skipped(String),
    /// It has nothing to say here: not counted.
    NotApplicable(String),
}

impl Stage {
    pub(crate) const ALL: [Stage; 9] = [
        Stage::Fmt,
        Stage::Clippy,
        Stage::Tidy,
        Stage::Test,
        Stage::Doc,
        Stage::Reference,
        Stage::Aarch64,
        Stage::Targets,
        Stage::Limit,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Fmt => "fmt",
            Stage::Clippy => "clippy",
            Stage::Tidy => "tidy",
            Stage::Test => "test",
            Stage::Doc => "doc",
            Stage::Reference => "reference",
            Stage::Aarch64 => "aarch64",
            Stage::Targets => "targets",
            Stage::Limit => "limit",
        }
    }

    /// Whether it runs tests, so that totals mean something.
    fn counts(self) -> bool {
        matches!(self, Stage::Test | Stage::Aarch64)
    }

    /// Whether it runs only if the slow tests do, or if it is named.
    pub(crate) fn is_slow(self) -> bool {
        self == Stage::Limit
    }

    fn run(self, workspace: &Workspace, options: &Options, tally: &mut Tally) -> Result<Outcome> {
        let mut cargo = workspace.cargo();
        match self {
            Stage::Fmt => {
                need_component("rustfmt")?;
                run_command(cargo.args(["fmt", "--all", "--check"]))?;
            }
            Stage::Clippy => {
                need_component("clippy-driver")?;
                let targets = ["clippy", "--workspace", "--all-targets"];
                run_command(cargo.args(targets).args(["--", "-D", "warnings"]))?;
                // The program without the models inside it.
                let bare = ["clippy", "--package", "millstream", "--no-default-features"];
                let targets = ["--all-targets", "--", "-D", "warnings"];
                run_command(workspace.cargo().args(bare).args(targets))?;
            }
            Stage::Tidy => tidy::run(workspace)?,
            Stage::Test => {
                let environment = TestEnvironment::prepare(workspace);
                cargo.args(["test", "--workspace", "--no-fail-fast"]).envs(environment.variables());
                if options.long {
                    cargo.env("MILLSTREAM_LONG_TESTS", "1");
                }
                run_tests(workspace, self, &mut cargo, tally)?;
            }
            Stage::Doc => {
                cargo.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
                run_command(&mut cargo)?;
            }
            Stage::Reference => return reference::check(workspace),
            Stage::Aarch64 => return aarch64::run(workspace, tally),
            Stage::Targets => {
                need_component("clippy-driver")?;
                return targets::run(workspace);
            }
            Stage::Limit => return limit::run(workspace),
        }
        Ok(Outcome::Passed)
    }
}

/// Runs the stages and prints the summary. An error is about this program, not about the project.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let mut lines = Vec::new();
    let mut failed = false;
    let run_start = Instant::now();
    for stage in &options.stages {
        let name = stage.name();
        println!("=== {name}");
        let start = Instant::now();
        let failures_before = tally.failed;
        let outcome = stage.run(workspace, options, &mut tally);
        let seconds = start.elapsed();
        failed = outcome.is_err();
        match outcome {
            Ok(Outcome::Passed) => lines.push(summary_line(name, seconds, "ok")),
            Ok(Outcome::NotApplicable(reason)) => {
                lines.push(summary_line(name, seconds, &format!("not applicable: {reason}")));
            }
            Ok(Outcome::Skipped(reason)) => {
                tally.skip(&format!("stage {name}"), &reason);
                lines.push(summary_line(name, seconds, "skipped"));
            }
            Err(error) => {
                if tally.failed == failures_before {
                    tally.failed += 1;
                }
                eprintln!("error: stage {name} failed: {error:#}");
                eprintln!("hint: `cargo xtask test --only {name}` runs this stage alone");
                lines.push(summary_line(name, seconds, "FAILED"));
                break;
            }
        }
    }
    println!("=== summary");
    lines.push(summary_line("all", run_start.elapsed(), if failed { "FAILED" } else { "ok" }));
    for line in lines {
        println!("{line}");
    }
    if failed || options.stages.iter().any(|stage| stage.counts()) {
        for name in &tally.failed_names {
            println!("failed: {name}");
        }
        for (name, reason) in &tally.skipped {
            println!("skipped: {name}: {reason}");
        }
        println!("{}", tally.totals());
    }
    std::io::stdout().flush()?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn summary_line(name: &str, time: Duration, outcome: &str) -> String {
    format!("{name:<10} {:>7.1} s  {outcome}", time.as_secs_f64())
}

fn need_component(program: &str) -> Result<()> {
    if find_program(&[program]).is_none() {
        bail!("{program} is not installed; `rustup component add rustfmt clippy` installs it");
    }
    Ok(())
}

/// Runs a `cargo test` and counts. Everything it says goes to a log; what matters is shown.
pub(crate) fn run_tests(
    workspace: &Workspace,
    stage: Stage,
    command: &mut Command,
    tally: &mut Tally,
) -> Result<()> {
    let (passed_before, failed_before) = (tally.passed, tally.failed);
    let log_path = workspace.target.join(format!("xtask-{}.log", stage.name()));
    let log_error = || format!("cannot write {}", log_path.display());
    let mut log = std::fs::File::create(&log_path).with_context(log_error)?;
    command.args(["--", "--show-output"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cargo did not start")?;
    let mut output = BufReader::new(child.stdout.take().context("no pipe")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        log.write_all(&line).with_context(log_error)?;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        if tally.read(text) {
            println!("{text}");
        }
        line.clear();
    }
    let status = child.wait()?;
    println!("(all output of the tests: {})", log_path.display());
    let failures = tally.failed - failed_before;
    if failures > 0 {
        bail!("{failures} failed");
    }
    if !status.success() {
        bail!("cargo test failed ({status}): it did not build, or a test program died");
    }
    if tally.passed == passed_before {
        bail!("no test ran");
    }
    Ok(())
}
