//! Whether `--memory` is the truth: a model larger than a kernel memory limit, with the release build.
//!
//! `benches/check_under_limit.py` does the work and says what it demands. It wants root and a memory controller,
//! which tests otherwise do without, and gigabytes of disk for a synthetic model, which stays in the target folder
//! for the next run. So it is no test of a crate but a stage of its own, for `--long` or by name.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::stages::Outcome;
use crate::workspace::{Workspace, ask, find_program, run as run_command};

const SCRIPT: &str = "benches/check_under_limit.py";

/// Folder of the synthetic model, and of it the file that is written last.
const MODELS: &str = "xtask-models";
const WRITTEN_LAST: &str = "qwen3.5-35b-a3b-12l-s1/config.json";

/// The model takes 7.0 GB; a disk should not be full afterwards.
const DISK_BYTES: u64 = 8_000_000_000;

/// The script's exit code where a machine cannot say.
const CANNOT_SAY: i32 = 77;

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let skipped = |reason: &str| Ok(Outcome::Skipped(reason.to_owned()));
    if !cfg!(target_os = "linux") {
        return skipped("control groups are Linux's");
    }
    let Some(python) = find_program(&["python3"]) else {
        return skipped("no python3 on the search path");
    };
    if ask(Command::new("id").arg("-u")).as_deref() != Some("0") {
        return skipped("a memory limit needs root");
    }
    let models = workspace.target.join(MODELS);
    if !models.join(WRITTEN_LAST).is_file()
        && let Some(free) = free_bytes(&workspace.target)
        && free < DISK_BYTES
    {
        let (needed, free) = (DISK_BYTES / 1_000_000_000, free / 1_000_000_000);
        return skipped(&format!("the model needs {needed} GB of disk, {free} GB are free"));
    }
    let mut build = workspace.cargo();
    run_command(build.args(["build", "--release", "--package", "millstream"]))?;
    let mut check = workspace.command(python);
    check.arg(SCRIPT).arg("--models").arg(&models);
    check.arg("--millstream").arg(workspace.target.join("release").join("millstream"));
    let output = check.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("{SCRIPT} did not start"))?;
    std::io::stdout().write_all(&output.stdout)?;
    match output.status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(CANNOT_SAY) => skipped(&reason(&String::from_utf8_lossy(&output.stdout))),
        _ => bail!("{SCRIPT} failed ({})", output.status),
    }
}

/// What the script says when it cannot say anything else.
fn reason(output: &str) -> String {
    let line = output.lines().find_map(|line| line.strip_prefix("SKIP"));
    line.map_or("no reason given", str::trim).to_owned()
}

/// What is free on a folder's disk; `None` where that cannot be found.
fn free_bytes(folder: &Path) -> Option<u64> {
    let answer = ask(Command::new("df").arg("-Pk").arg(folder))?;
    let kilobytes: u64 = answer.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_scripts_own() {
        assert_eq!(
            reason("SKIP  no memory controller is mounted\n"),
            "no memory controller is mounted"
        );
        assert_eq!(reason(""), "no reason given");
    }
}
