//! Rules for Rust files: a head, a length, names that say something, no unfinished code, and
//! `unsafe` only where it is at home.

use super::Finding;
use super::code::words;

/// From here on a file is listed as one to be divided.
const LONG_LINES: usize = 600;
const TOO_LONG_LINES: usize = 700;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 7] =
    ["util", "utils", "common", "manager", "managers", "helper", "helpers"];

/// Macros of unfinished code.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// The crates that access the hardware, and a test whose allocator counts.
const UNSAFE_CRATES: [&str; 4] =
    ["crates/machine/", "crates/compute/", "crates/experts/", "crates/text/tests/counting/"];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let head = text.lines().find(|line| !line.trim().is_empty());
    if !head.is_some_and(|line| line.starts_with("//!")) {
        findings.push(Finding::error(
            path,
            1,
            "a module begins with a `//!` head that says what it is",
        ));
    }

    let line_count = text.lines().count();
    if line_count > TOO_LONG_LINES {
        let message = format!("{line_count} lines, more than {TOO_LONG_LINES}: find the seam");
        findings.push(Finding::error(path, line_count, message));
    } else if line_count > LONG_LINES {
        findings.push(Finding::Note(format!("{path}: {line_count} lines, more than {LONG_LINES}")));
    }

    let says_nothing = |name: &str| format!("`{name}` says nothing about what is inside");
    for part in path.trim_end_matches(".rs").split('/').filter(|part| EMPTY_NAMES.contains(part)) {
        findings.push(Finding::error(path, 1, says_nothing(part)));
    }

    let words = match words(text) {
        Ok(words) => words,
        Err(error) => {
            let line = error.span().start().line;
            findings.push(Finding::error(path, line, "this is not Rust"));
            return findings;
        }
    };
    let unsafe_is_at_home = UNSAFE_CRATES.iter().any(|folder| path.starts_with(folder));
    for (index, word) in words.iter().enumerate() {
        let then = |steps: usize| words.get(index + steps).map_or("", |word| word.text.as_str());
        let name = word.text.as_str();
        // A module without a body is a file, and found by its path.
        if name == "mod" && then(2) == "{" && EMPTY_NAMES.contains(&then(1)) {
            findings.push(Finding::error(path, word.line, says_nothing(then(1))));
        }
        if UNFINISHED.contains(&name) && then(1) == "!" {
            let message = format!("`{name}!` is unfinished code");
            findings.push(Finding::error(path, word.line, message));
        }
        if !unsafe_is_at_home && name == "unsafe" {
            let message = "`unsafe` belongs in machine, compute and experts only";
            findings.push(Finding::error(path, word.line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_errors(path: &str, text: &str, expect: &[&str]) {
        let got: Vec<String> = check(path, text)
            .into_iter()
            .map(|finding| match finding {
                Finding::Error(text) | Finding::Note(text) => text,
            })
            .collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn a_module_has_a_head() {
        check_errors("a.rs", "//! What it is.\n", &[]);
        check_errors("a.rs", "\n//! What it is.\n", &[]);
        let expect = ["a.rs:1: a module begins with a `//!` head that says what it is"];
        check_errors("a.rs", "// What it is.\n", &expect);
        check_errors("a.rs", "use a;\n//! Late.\n", &expect);
        check_errors("a.rs", "", &expect);
    }

    #[test]
    fn long_files_are_noted_and_longer_ones_refused() {
        let lines = |count: usize| format!("//! Head.\n{}", "\n".repeat(count - 1));
        check_errors("a.rs", &lines(600), &[]);
        check_errors("a.rs", &lines(601), &["a.rs: 601 lines, more than 600"]);
        check_errors("a.rs", &lines(700), &["a.rs: 700 lines, more than 600"]);
        let expect = ["a.rs:701: 701 lines, more than 700: find the seam"];
        check_errors("a.rs", &lines(701), &expect);
        assert!(matches!(check("a.rs", &lines(700))[..], [Finding::Note(_)]));
        assert!(matches!(check("a.rs", &lines(701))[..], [Finding::Error(_)]));
    }

    #[test]
    fn empty_names_are_refused() {
        let says = |place: &str, name: &str| {
            format!("{place}: `{name}` says nothing about what is inside")
        };
        check_errors("a/utils.rs", "//! H.\n", &[&says("a/utils.rs:1", "utils")]);
        check_errors("a/common/mod.rs", "//! H.\n", &[&says("a/common/mod.rs:1", "common")]);
        check_errors("a.rs", "//! H.\nmod helper {}\n", &[&says("a.rs:2", "helper")]);
        check_errors("a.rs", "//! H.\npub(crate) mod manager {}\n", &[&says("a.rs:2", "manager")]);
        check_errors("a/common_words.rs", "//! H.\nmod helper_thread {}\n", &[]);
    }

    #[test]
    fn unfinished_code_is_refused_but_may_be_written_about() {
        check_errors("a.rs", "//! H.\ntodo!()\n", &["a.rs:2: `todo!` is unfinished code"]);
        check_errors("a.rs", "//! H.\nx(dbg!(1))\n", &["a.rs:2: `dbg!` is unfinished code"]);
        let expect = ["a.rs:2: `unimplemented!` is unfinished code"];
        check_errors("a.rs", "//! H.\nunimplemented!()\n", &expect);
        check_errors("a.rs", "//! H.\n// no todo!() here\nlet x = \"dbg!\";\n", &[]);
    }

    #[test]
    fn what_is_not_rust_is_refused() {
        check_errors("a.rs", "//! H.\nmod a {\n", &["a.rs:2: this is not Rust"]);
    }

    #[test]
    fn unsafe_stays_at_home() {
        let text = "//! H.\nunsafe { x() }\n";
        let message = "`unsafe` belongs in machine, compute and experts only";
        check_errors(
            "crates/text/src/a.rs",
            text,
            &[&format!("crates/text/src/a.rs:2: {message}")],
        );
        check_errors("xtask/src/a.rs", text, &[&format!("xtask/src/a.rs:2: {message}")]);
        check_errors("crates/compute/src/cpu/a.rs", text, &[]);
        check_errors("crates/text/src/a.rs", "//! H.\n#![forbid(unsafe_code)] // unsafe\n", &[]);
    }
}
