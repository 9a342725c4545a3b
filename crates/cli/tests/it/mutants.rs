//! Mutants of checkpoints, configs, tokenizers and templates, each shown, planned and run by the real program
//! under limits of the kernel.
//!
//! A mutant is a small real model with some of its files changed, all by its number; one whose template was changed is also
//! talked to. Whatever it says, the
//! program ends by itself with 0, 1 or 2, within 10 seconds of processor and 2 GB of memory, and prints no
//! panic. `MILLSTREAM_MUTANT=<number>` runs one alone, `<first>-<last>` several; the folder of one that fails is kept and
//! named.

mod draw;
mod fragments;
mod json;
mod seeds;
mod weights;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Home, repository};
use draw::Draw;

/// Seconds of processor and KiB of memory that a run may take.
const LIMITS: &str = "-c 0 -t 10 -d 2097152";

/// What no run may say: that it broke, or that it requested memory that was not there, however politely.
const FORBIDDEN: [&str; 6] = [
    "panicked at",
    "RUST_BACKTRACE",
    "memory allocation of",
    "overflowed its stack",
    "cannot allocate",
    "Cannot allocate memory",
];

/// A run that waits for something uses no processor.
const LONGEST: Duration = Duration::from_secs(60);

/// Mutants that run at once.
const RUNNERS: usize = 2;

/// Mutants of the ordinary run, and of the long one.
const ORDINARY: u64 = 500;
const LONG: u64 = 10_000;

#[test]
fn five_hundred_mutants_end_by_themselves() {
    let Ok(numbers) = std::env::var("MILLSTREAM_MUTANT") else { return run(0..=ORDINARY - 1) };
    let (first, last) = numbers.split_once('-').unwrap_or((&numbers, &numbers));
    run(first.parse().unwrap()..=last.parse().unwrap());
}

#[test]
fn ten_thousand_mutants_end_by_themselves() {
    if std::env::var_os("MILLSTREAM_LONG_TESTS").is_none_or(|value| value != "1") {
        println!("skipped: slow; MILLSTREAM_LONG_TESTS=1 runs it");
        return;
    }
    run(ORDINARY..=LONG - 1);
}

/// Runs these mutants and fails with all that did not end well.
#[track_caller]
fn run(numbers: std::ops::RangeInclusive<u64>) {
    if !cfg!(target_os = "linux") {
        println!("skipped: the limits are those of Linux");
        return;
    }
    let next = AtomicU64::new(*numbers.start());
    let failures = Mutex::new(String::new());
    std::thread::scope(|scope| {
        for _ in 0..RUNNERS {
            scope.spawn(|| {
                // What is measured of disk and memory stays in the home, so it is measured once.
                let home = Home::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number > *numbers.end() {
                        return;
                    }
                    if let Some(failure) = attempt(&home, number) {
                        failures.lock().unwrap().push_str(&failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{failures}");
}

/// Makes a mutant and runs it; what went wrong, if something did.
fn attempt(home: &Home, number: u64) -> Option<String> {
    let folder = home.path().join("mutant");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let changes = seeds::make(&folder, &mut Draw::new(number));
    let mut wrong = String::new();
    let mut runs = vec![
        &["show", "./mutant"][..],
        &["plan", "./mutant"],
        &["logits", "./mutant", "--tokens", "1,2,3", "--out", "logits", "--greedy", "1"],
    ];
    // The others render no conversation.
    if changes.iter().any(|change| change.starts_with(seeds::TEMPLATE)) {
        runs.push(&["run", "./mutant", "hello there", "--max-tokens", "1"]);
    }
    for arguments in runs {
        if let Err(problem) = one(home, arguments) {
            writeln!(wrong, "  millstream {}: {problem}", arguments.join(" ")).unwrap();
        }
    }
    if wrong.is_empty() {
        return None;
    }
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mutant-{number}"));
    keep(&folder, &kept);
    let changes = changes.join("; ");
    Some(format!("mutant {number} ({changes}), kept in {}:\n{wrong}", kept.display()))
}

/// One run of the program.
fn one(home: &Home, arguments: &[&str]) -> Result<(), String> {
    let mut command = limited(home, LIMITS, arguments);
    // Into a file: a pipe that is full would make the program wait.
    let talk = home.path().join("talk");
    let stderr = std::fs::File::create(&talk).unwrap();
    command.stdout(Stdio::null()).stderr(stderr);
    let status = wait(command.spawn().unwrap())?;
    let talk = String::from_utf8_lossy(&std::fs::read(&talk).unwrap()).into_owned();
    let is_panic = FORBIDDEN.iter().any(|words| talk.contains(words));
    if is_panic || !matches!(status.code(), Some(0..=2)) {
        let talk: String = talk.chars().take(600).collect();
        return Err(format!("{status}: {talk}"));
    }
    Ok(())
}

/// The program with these arguments, after the shell has set limits, which are options of `ulimit`.
pub(super) fn limited(home: &Home, limits: &str, arguments: &[&str]) -> Command {
    let program = home.command(arguments);
    // Not every shell takes more than one limit at a time.
    let limits: Vec<&str> = limits.split(' ').collect();
    let set: String = limits.chunks(2).map(|l| format!("ulimit {} && ", l.join(" "))).collect();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{set}exec \"$@\""), "sh"]);
    command.arg(program.get_program()).args(program.get_args());
    command.current_dir(home.path()).env_clear().env("HOME", home.path());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    command
}

fn wait(mut child: Child) -> Result<ExitStatus, String> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Ok(status);
        }
        if begin.elapsed() > LONGEST {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("still running after {LONGEST:?}"));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Moves a folder to where it stays, as far as what is in it can be moved.
fn keep(folder: &Path, kept: &Path) {
    let _ = std::fs::remove_dir_all(kept);
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).arg(folder).arg(kept).status();
    assert!(copied.is_ok_and(|status| status.success()), "cannot keep {}", folder.display());
}
