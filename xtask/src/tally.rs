//! Counts of what `cargo test -- --show-output` says.
//!
//! One [`Tally`] reads the output of many test programs, line by line. A test that passes but
//! printed a line beginning `skipped:` did not do its work: it counts as skipped, never as passed,
//! and so does an ignored one. A result line counts only where its numbers add up to the number of
//! tests announced, so that a test which prints such a line itself changes nothing.

use std::collections::BTreeMap;

/// The word with which a test says that it cannot run here.
const SKIPPED: &str = "skipped:";

/// What ran, and what did not.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Test (or stage) and reason.
    pub(crate) skipped: Vec<(String, String)>,
    pub(crate) failed_names: Vec<String>,
    program: Option<Program>,
}

/// One test program, between `running N tests` and `test result:`.
struct Program {
    announced: usize,
    part: Part,
    /// Reasons by test, from its captured output.
    said: BTreeMap<String, Vec<String>>,
    ignored: Vec<(String, String)>,
}

#[derive(PartialEq)]
enum Part {
    Tests,
    /// Captured output of tests that passed, and of which test.
    Successes(Option<String>),
    Failures,
}

impl Tally {
    /// Reads one line; true when it is worth showing.
    pub(crate) fn read(&mut self, line: &str) -> bool {
        let at_tests = self.program.as_ref().is_none_or(|program| program.part == Part::Tests);
        if let Some(announced) = announced(line).filter(|_| at_tests) {
            // A program that died before its result is cargo's failure to report.
            let (said, ignored) = (BTreeMap::new(), Vec::new());
            self.program = Some(Program { announced, part: Part::Tests, said, ignored });
            return false;
        }
        let Some(program) = &mut self.program else { return !line.is_empty() };
        if let Some(counts) = result(line).filter(|counts| counts.total() == program.announced) {
            self.close(&counts);
            return counts.total() > 0;
        }
        match (&mut program.part, line) {
            (Part::Tests | Part::Successes(_), "failures:") => program.part = Part::Failures,
            (Part::Tests, "successes:") => program.part = Part::Successes(None),
            // The second heading is over a list of names.
            (Part::Successes(test), "successes:") => *test = None,
            (Part::Successes(test), line) => {
                if let Some(name) = captured(line) {
                    *test = Some(name.to_owned());
                } else if let (Some(test), Some(reason)) =
                    (test, line.trim_start().strip_prefix(SKIPPED))
                {
                    let reasons = program.said.entry(test.clone()).or_default();
                    reasons.push(reason.trim().to_owned());
                }
                return false;
            }
            (Part::Tests, line) => {
                let verdict = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
                return match verdict {
                    Some((_, "ok")) => false,
                    Some((name, "FAILED")) => {
                        self.failed_names.push(name.to_owned());
                        true
                    }
                    Some((name, verdict)) if verdict.starts_with("ignored") => {
                        let reason = verdict.trim_start_matches("ignored").trim_start_matches(", ");
                        let reason = if reason.is_empty() { "ignored" } else { reason };
                        program.ignored.push((name.to_owned(), reason.to_owned()));
                        false
                    }
                    _ => !line.is_empty(),
                };
            }
            (Part::Failures, _) => {}
        }
        program.part == Part::Failures
    }

    /// Settles the program that has just given its result.
    fn close(&mut self, counts: &Counts) {
        let Some(mut program) = self.program.take() else { return };
        // A verdict torn by the output of a child process still counts.
        let unnamed = || ("a test".to_owned(), "ignored".to_owned());
        program.ignored.resize_with(counts.ignored, unnamed);
        self.passed += counts.passed.saturating_sub(program.said.len());
        self.failed += counts.failed;
        self.skipped.extend(program.ignored);
        self.skipped
            .extend(program.said.into_iter().map(|(test, reasons)| (test, reasons.join("; "))));
    }

    /// Adds a stage that could not run.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push((name.to_owned(), reason.to_owned()));
    }

    /// The closing line.
    pub(crate) fn totals(&self) -> String {
        let skipped = self.skipped.len();
        format!("totals: {} passed, {} failed, {skipped} skipped", self.passed, self.failed)
    }
}

struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
    measured: usize,
}

impl Counts {
    fn total(&self) -> usize {
        self.passed + self.failed + self.ignored + self.measured
    }
}

/// `running 12 tests`
fn announced(line: &str) -> Option<usize> {
    let (count, noun) = line.strip_prefix("running ")?.split_once(' ')?;
    if noun == "test" || noun == "tests" { count.parse().ok() } else { None }
}

/// `---- tests::name stdout ----`
fn captured(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn result(line: &str) -> Option<Counts> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |noun: &str| {
        let mut parts = counts.split("; ").filter_map(|part| part.split_once(' '));
        parts.find(|(_, word)| *word == noun)?.0.parse().ok()
    };
    Some(Counts {
        passed: count("passed")?,
        failed: count("failed")?,
        ignored: count("ignored")?,
        measured: count("measured")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(output: &str, totals: &str, skipped: &[(&str, &str)]) {
        let mut tally = Tally::default();
        for line in output.lines() {
            tally.read(line);
        }
        assert_eq!(tally.totals(), totals);
        let got: Vec<_> = tally.skipped.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(got, skipped);
    }

    #[test]
    fn programs_add_up() {
        check(
            "
running 2 tests
test a ... ok
test b ... ok

successes:

successes:
    a
    b

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s


running 1 test
test c ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.10s
",
            "totals: 3 passed, 0 failed, 0 skipped",
            &[],
        );
    }

    #[test]
    fn a_test_that_says_skipped_is_not_passed() {
        check(
            "
running 3 tests
test a ... ok
test b ... ok
test c ... ok

successes:

---- a stdout ----
skipped: no AMX here
  skipped: no NEON here

---- b stdout ----
rows skipped: 4

successes:
    a
    b
    c

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
            "totals: 2 passed, 0 failed, 1 skipped",
            &[("a", "no AMX here; no NEON here")],
        );
    }

    #[test]
    fn ignored_tests_are_skipped_with_their_reason() {
        check(
            "
running 3 tests
test a ... ignored
test b ... ignored, needs a GPU
test c ... torn by a child

test result: ok. 0 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
            "totals: 0 passed, 0 failed, 3 skipped",
            &[("a", "ignored"), ("b", "needs a GPU"), ("a test", "ignored")],
        );
    }

    #[test]
    fn failures_are_named_and_shown_and_their_skips_do_not_count() {
        let output = "
running 2 tests
test a ... ok
test b ... FAILED

successes:

successes:
    a

failures:

---- b stdout ----
skipped: the first half
thread 'b' panicked

failures:
    b

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        check(output, "totals: 1 passed, 1 failed, 0 skipped", &[]);
        let mut tally = Tally::default();
        let shown: Vec<&str> = output.lines().filter(|line| tally.read(line)).collect();
        assert!(shown.contains(&"thread 'b' panicked"));
        assert!(!shown.contains(&"test a ... ok"));
        assert_eq!(tally.failed_names, ["b"]);
    }

    #[test]
    fn a_result_printed_by_a_test_does_not_count() {
        check(
            "
running 1 test
test a ... ok

successes:

---- a stdout ----
running 9 tests
test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

successes:
    a

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
            "totals: 1 passed, 0 failed, 0 skipped",
            &[],
        );
    }

    #[test]
    fn a_program_that_dies_does_not_swallow_the_next() {
        check(
            "
running 5 tests
test a ... ok

running 1 test
test b ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
            "totals: 1 passed, 0 failed, 0 skipped",
            &[],
        );
    }
}
