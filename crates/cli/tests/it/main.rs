//! The program from outside: every test starts the real binary, in an empty home folder.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue should panic")]

mod answers;
mod bench;
// Links take a privilege on Windows.
#[cfg(unix)]
mod cache;
mod chat;
mod failures;
mod hostile;
mod models;
mod mutants;
mod pages;
mod repack;
mod settings;
mod simulate;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A computer on which nothing but the program is installed.
struct Home {
    folder: TempDir,
}

/// How a run ended.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Home {
    fn new() -> Home {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The program with these arguments, no input and no variables of ours.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null()).env_clear();
        command.env("HOME", self.path()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command(arguments).output().unwrap())
    }

    /// Writes a file of this home.
    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A copy of a model of the repository, as `./model`.
    fn copy_model(&self, model: &str) -> PathBuf {
        let copy = self.path().join("model");
        std::fs::create_dir_all(&copy).unwrap();
        for entry in std::fs::read_dir(repository(model)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        copy
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Standard output of a run that must have gone well.
    #[track_caller]
    fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// Standard error of a run that must have failed with this code and printed no data.
    #[track_caller]
    fn bad(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        self.stderr
    }

    #[track_caller]
    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.good()).unwrap()
    }
}

/// Runs with this on standard input.
#[track_caller]
fn with_input(mut command: Command, input: &[u8]) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Ran::from(child.wait_with_output().unwrap())
}

/// A path in the repository.
fn repository(path: &str) -> PathBuf {
    golden::repository(path)
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}
