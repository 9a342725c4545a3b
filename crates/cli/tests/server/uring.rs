//! The kernel's ring for reads, failing under the real program: threads continue, and the log says so once.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::served::{COLD, HOT, question};
use crate::weights::streaming;

/// How often a server is started until a trial finds the ring fast enough.
const STARTS: usize = 3;
/// Calls of each thread that the kernel still answers.
const GOOD_CALLS: usize = 20;

/// `strace` on a process whose calls for the ring fail with this error; none where it cannot be used.
struct Failing(Child);

impl Failing {
    fn attach(process: u32, error: &str) -> Option<Failing> {
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &process.to_string(), "-e", "trace=io_uring_enter", "-e"]);
        command.arg(format!("inject=io_uring_enter:error={error}:when={GOOD_CALLS}+"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut said = BufReader::new(child.stderr.take()?);
        let mut first = String::new();
        let _ = said.read_line(&mut first);
        // It waits for what it says to be read.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let failing = Failing(child);
        first.contains("attached").then_some(failing)
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        // Interrupted, it detaches from the process.
        let _ = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn a_ring_that_fails_gives_way_to_threads_once() {
    for (error, words) in [
        ("EBUSY", "Device or resource busy"),
        ("EIO", "Input/output error"),
        ("ENOMEM", "Cannot allocate memory"),
    ] {
        let mut starts = (0..STARTS).map(|_| streaming());
        let by_ring = starts.find(|(_, served)| served.said().contains("at a time by io_uring"));
        let Some((_folder, served)) = by_ring else {
            println!("skipped: experts are not read by io_uring here");
            return;
        };
        served.check_answers();
        let Some(failing) = Failing::attach(served.process(), error) else {
            println!("skipped: strace cannot be used");
            return;
        };
        for index in 0..6 {
            let before = served.metric("expert_misses_total");
            let answer = served.chat(&question(COLD));
            assert_eq!(answer["choices"][0]["message"]["content"], HOT, "{error}, answer {index}");
            assert!(served.metric("expert_misses_total") > before, "nothing was read");
        }
        drop(failing);
        served.check_answers();
        served.signal("TERM");
        let (status, said) = served.wait(Duration::from_secs(60));
        assert_eq!(status.code(), Some(0));
        let lines: Vec<&str> =
            said.lines().filter(|line| line.contains("threads read from now on")).collect();
        assert!(matches!(lines[..], [line] if line.contains(words)), "{error}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}
