//! The compute tests on another instruction set: aarch64 under qemu-user.
//!
//! NEON kernels have their scalar twins to agree with, but only where they can run. Two ways to
//! build for it are tried: the GNU target with a cross linker, and the musl target, which links with
//! the linker that comes with Rust and needs no foreign compiler.

use std::path::PathBuf;

use anyhow::Result;

use crate::stages::{Outcome, Stage, run_tests};
use crate::tally::Tally;
use crate::workspace::{Workspace, find_program};

/// Packages with kernels.
const PACKAGES: [&str; 1] = ["millstream-compute"];

const GNU: &str = "aarch64-unknown-linux-gnu";
const GNU_LINKER: &str = "aarch64-linux-gnu-gcc";
/// Where a cross compiler keeps the C library of the programs it makes.
const GNU_SYSROOT: &str = "/usr/aarch64-linux-gnu";
const MUSL: &str = "aarch64-unknown-linux-musl";

/// How to build and run.
struct Way {
    target: &'static str,
    linker: &'static str,
    rust_flags: &'static str,
    runner: String,
}

pub(crate) fn run(workspace: &Workspace, tally: &mut Tally) -> Result<Outcome> {
    if cfg!(target_arch = "aarch64") {
        return Ok(Outcome::NotApplicable("this machine is aarch64, the tests ran on it".into()));
    }
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("qemu-user runs on Linux only".into()));
    }
    let qemu = find_program(&["qemu-aarch64", "qemu-aarch64-static"]);
    let has_linker = find_program(&[GNU_LINKER]).is_some();
    let way = match way(qemu, has_linker && workspace.has_target(GNU), workspace.has_target(MUSL)) {
        Ok(way) => way,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let mut cargo = workspace.cargo();
    // Integration and unit tests; examples in the documentation have run on this machine already.
    cargo.args(["test", "--no-fail-fast", "--tests", "--target", way.target]);
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    let prefix = format!("CARGO_TARGET_{}", way.target.to_uppercase().replace('-', "_"));
    cargo.env(format!("{prefix}_LINKER"), way.linker);
    cargo.env(format!("{prefix}_RUNNER"), way.runner);
    cargo.env(format!("{prefix}_RUSTFLAGS"), way.rust_flags);
    run_tests(workspace, Stage::Aarch64, &mut cargo, tally)?;
    Ok(Outcome::Passed)
}

/// The way to take, or what is missing.
fn way(qemu: Option<PathBuf>, gnu: bool, musl: bool) -> Result<Way, String> {
    let Some(qemu) = qemu else {
        return Err("no qemu-aarch64 on the search path (Debian: apt install qemu-user)".into());
    };
    let qemu = qemu.display();
    if gnu {
        let runner = format!("{qemu} -L {GNU_SYSROOT}");
        Ok(Way { target: GNU, linker: GNU_LINKER, rust_flags: "", runner })
    } else if musl {
        let (linker, rust_flags) = ("rust-lld", "-Clink-self-contained=yes");
        Ok(Way { target: MUSL, linker, rust_flags, runner: qemu.to_string() })
    } else {
        Err(format!(
            "no Rust target {MUSL} (rustup target add {MUSL}), nor {GNU} with {GNU_LINKER}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(qemu: Option<&str>, gnu: bool, musl: bool, expect: Result<(&str, &str), &str>) {
        match (way(qemu.map(PathBuf::from), gnu, musl), expect) {
            (Ok(way), Ok(expect)) => assert_eq!((way.target, way.runner.as_str()), expect),
            (Err(reason), Err(expect)) => assert!(reason.starts_with(expect), "{reason}"),
            (Ok(way), Err(_)) => panic!("found a way: {}", way.target),
            (Err(reason), Ok(_)) => panic!("{reason}"),
        }
    }

    #[test]
    fn the_gnu_target_is_preferred_and_what_is_missing_is_named() {
        check(None, true, true, Err("no qemu-aarch64"));
        check(Some("q"), false, false, Err("no Rust target"));
        check(Some("q"), true, true, Ok((GNU, "q -L /usr/aarch64-linux-gnu")));
        check(Some("q"), false, true, Ok((MUSL, "q")));
    }
}
