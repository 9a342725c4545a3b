//! The systems that the tests do not run on: does everything still compile for them, without a warning?
//!
//! No dependency builds C code, so this needs the Rust target alone: no linker and no foreign compiler.
//! Libraries and programs only. What compiles here has not run; CONTRIBUTING.md says how to run it.

use anyhow::Result;

use crate::stages::Outcome;
use crate::workspace::{Workspace, run as run_command};

/// Systems, as Rust names them, and a target for each. `.ci/run` adds the same.
const TARGETS: [(&str, &str); 2] =
    [("macos", "aarch64-apple-darwin"), ("windows", "x86_64-pc-windows-gnu")];

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let foreign = TARGETS.into_iter().filter(|(system, _)| *system != std::env::consts::OS);
    let foreign = foreign.map(|(_, target)| target);
    let (present, absent): (Vec<&str>, Vec<&str>) =
        foreign.partition(|target| workspace.has_target(target));
    for target in present {
        // Clippy is `cargo check` that can be made to fail at warnings without building dependencies anew.
        let mut cargo = workspace.cargo();
        cargo.args(["clippy", "--workspace", "--target", target, "--", "-D", "warnings"]);
        run_command(&mut cargo)?;
    }
    Ok(match absent.join(" ") {
        none if none.is_empty() => Outcome::Passed,
        names => Outcome::Skipped(format!("not installed: rustup target add {names}")),
    })
}
