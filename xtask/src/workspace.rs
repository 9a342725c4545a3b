//! Where the project lies, and how other programs are run in it.
//!
//! Commands start in the root. Variables that `cargo run` sets for this program are taken out of
//! their environment: build scripts that watch them would otherwise rebuild at every other call.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The checkout this task works on.
pub(crate) struct Workspace {
    /// The folder of the top `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder: everything a task makes goes there.
    pub(crate) target: PathBuf,
    /// `cargo metadata --no-deps`.
    pub(crate) metadata: Value,
}

impl Workspace {
    pub(crate) fn open() -> Result<Workspace> {
        // Read at run time, because a target folder may outlive the checkout that filled it.
        let manifest = std::env::var("CARGO_MANIFEST_DIR")
            .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
        let root = Path::new(&manifest).parent().context("xtask lies in no folder")?.to_path_buf();
        let output = cargo_in(&root)
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .stderr(Stdio::inherit())
            .output()
            .context("cargo metadata did not start")?;
        if !output.status.success() {
            bail!("cargo metadata failed in {}", root.display());
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let target = metadata["target_directory"].as_str().context("no target_directory")?;
        Ok(Workspace { root, target: PathBuf::from(target), metadata })
    }

    /// Cargo, in the root.
    pub(crate) fn cargo(&self) -> Command {
        cargo_in(&self.root)
    }

    /// Another program, in the root.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// Whether the toolchain has the standard library of a target.
    pub(crate) fn has_target(&self, target: &str) -> bool {
        let mut question = self.command("rustc");
        let folder = ask(question.args(["--print", "target-libdir", "--target", target]));
        folder.is_some_and(|folder| Path::new(&folder).is_dir())
    }
}

fn cargo_in(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command.current_dir(root);
    command
}

/// Runs a command whose output is for the reader; an error says which command failed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    let status = command.status().with_context(|| format!("`{line}` did not start"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// The standard output of a command that answers a question; `None` when it cannot be run.
pub(crate) fn ask(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a command that uses a network, and gives up on it after the limit. The error is the last
/// line it wrote to standard error.
pub(crate) fn run_within(limit: Duration, command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{program} did not start"))?;
    let mut stderr = child.stderr.take().context("no pipe")?;
    let (said, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stderr.read_to_end(&mut bytes);
        let _ = said.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("{program} was stopped after {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        // A grandchild may hold the pipe open: do not wait for it for ever.
        let words = hears.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        bail!("{program} failed ({status}): {}", last.trim());
    }
    Ok(())
}

/// A program on the search path.
pub(crate) fn find_program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| {
        let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
        folders.iter().map(|folder| folder.join(&file)).find(|program| program.is_file())
    })
}

fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_what_one_would_type() {
        let mut command = Command::new(Path::new("some").join("cargo"));
        command.args(["fmt", "--all"]);
        assert_eq!(command_line(&command), "cargo fmt --all");
    }

    #[test]
    fn a_missing_program_is_an_error_and_not_a_panic() {
        let mut command = Command::new("no-such-program-anywhere");
        assert!(ask(&mut command).is_none());
        let error = run_within(Duration::from_secs(1), &mut command).unwrap_err();
        assert_eq!(error.to_string(), "no-such-program-anywhere did not start");
        assert!(find_program(&["no-such-program-anywhere"]).is_none());
    }

    // The programs it runs are those of Unix.
    #[cfg(unix)]
    #[test]
    fn a_slow_command_is_stopped_and_a_failed_one_quoted() {
        let mut slow = Command::new("sleep");
        let error = run_within(Duration::from_millis(100), slow.arg("60")).unwrap_err();
        assert!(error.to_string().starts_with("sleep was stopped"), "{error}");
        let mut failed = Command::new("sh");
        failed.args(["-c", "echo first >&2; echo no network >&2; exit 3"]);
        let error = run_within(Duration::from_secs(10), &mut failed).unwrap_err();
        assert!(error.to_string().ends_with(": no network"), "{error}");
    }
}
