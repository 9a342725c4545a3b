//! Help, completions, manual and reference: what is made from the options.

use super::{Home, assert_has, repository};

#[test]
fn help_reads_as_it_should() {
    let home = Home::new();
    insta::assert_snapshot!("help", home.run(&["--help"]).good());
    insta::assert_snapshot!("help_run", home.run(&["run", "--help"]).good());
    insta::assert_snapshot!("help_plan", home.run(&["plan", "-h"]).good());
}

#[test]
fn every_command_has_help() {
    let home = Home::new();
    let help = home.run(&["--help"]).good();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut count = 0;
    for line in commands.lines() {
        let Some(name) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) else {
            continue;
        };
        let name = name.split_whitespace().next().unwrap();
        if name != "help" {
            assert_has(
                &home.run(&[name, "--help"]).good(),
                &["Usage: millstream ", "--memory <SIZE>"],
            );
            count += 1;
        }
    }
    assert!(count >= 12, "{commands}");
}

#[test]
fn no_command_is_a_usage_error() {
    assert_has(&Home::new().run(&[]).bad(2), &["Usage: millstream"]);
}

#[test]
fn the_version_is_the_package_version() {
    let expect = format!("millstream {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(Home::new().run(&["--version"]).good(), expect);
    assert_eq!(Home::new().run(&["-V"]).good(), expect);
}

#[test]
fn completions_know_the_options() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = home.run(&["completions", shell]).good();
        assert_has(&script, &["millstream", "temperature", "perplexity"]);
    }
    home.run(&["completions", "dos"]).bad(2);
}

#[test]
fn manual_pages_are_troff() {
    let home = Home::new();
    assert_has(
        &home.run(&["man"]).good(),
        &[".TH millstream 1", ".SH OPTIONS", "millstream\\-run(1)"],
    );
    let page = home.run(&["man", "run"]).good();
    assert_has(&page, &[".TH millstream-run 1", "temperature", "MILLSTREAM_TOP_P"]);
    assert_has(&home.run(&["man", "nothing"]).bad(2), &["hint: commands are run, serve, plan"]);
}

#[test]
fn the_committed_reference_is_what_the_program_writes() {
    let home = Home::new();
    home.run(&["reference", "--out", "pages"]).good();
    let committed = repository("docs/reference");
    let names = |folder: &std::path::Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let pages = home.path().join("pages");
    assert_eq!(names(&pages), names(&committed));
    for name in names(&pages) {
        let read = |folder: &std::path::Path| std::fs::read_to_string(folder.join(&name)).unwrap();
        let (written, kept) = (read(&pages), read(&committed));
        assert!(written == kept, "{name:?} has drifted: `cargo xtask reference` writes it anew");
    }
}

#[test]
fn the_reference_does_not_depend_on_variables() {
    let home = Home::new();
    home.run(&["reference", "--out", "plain"]).good();
    let mut command = home.command(&["reference", "--out", "other"]);
    command.env("MILLSTREAM_MEMORY", "16G").env("COLUMNS", "40").env("MILLSTREAM_KV", "f32");
    assert!(command.status().unwrap().success());
    for name in ["cli.md", "environment.md", "config.md"] {
        let read =
            |folder: &str| std::fs::read_to_string(home.path().join(folder).join(name)).unwrap();
        assert_eq!(read("plain"), read("other"));
    }
}
