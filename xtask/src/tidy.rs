//! `cargo xtask tidy`: rules of the house that no compiler checks.
//!
//! Each file of `tidy/` holds one kind of rule, as a function from a text (or a list of sizes, or
//! cargo's metadata) to findings, so that every rule has a test in which it bites. This file reads
//! the tree: what git tracks or would track, or every file where there is no git.

mod arrows;
mod code;
mod lines;
mod lock;
mod sizes;
mod source;

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::fail_when_any;
use crate::workspace::{Workspace, ask};

/// One thing found. Errors fail the task, notes do not.
#[derive(Debug, PartialEq)]
enum Finding {
    Error(String),
    Note(String),
}

impl Finding {
    fn error(path: &str, line_number: usize, message: impl std::fmt::Display) -> Finding {
        Finding::Error(format!("{path}:{line_number}: {message}"))
    }
}

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let paths = files(workspace)?;
    let mut findings = arrows::check(&workspace.metadata);
    let lock = std::fs::read_to_string(workspace.root.join(lock::PATH))
        .with_context(|| format!("cannot read {}", lock::PATH))?;
    findings.extend(lock::check(&lock, &fuzz_metadata(workspace)?, &workspace.metadata));
    let mut file_sizes = Vec::new();
    for path in &paths {
        let file = workspace.root.join(path);
        // A tracked file may be deleted and not yet committed; a link is checked where it leads.
        let Ok(metadata) = std::fs::symlink_metadata(&file) else { continue };
        if !metadata.is_file() {
            continue;
        }
        file_sizes.push((path.as_str(), metadata.len()));
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {path}"))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if text.contains('\0') {
            continue;
        }
        findings.extend(lines::check(path, &text));
        if path.ends_with(".rs") {
            findings.extend(source::check(path, &text));
        }
    }
    findings.extend(sizes::check(&file_sizes));
    let mut error_count = 0;
    for finding in &findings {
        match finding {
            Finding::Note(text) => println!("note: {text}"),
            Finding::Error(text) => {
                println!("tidy: {text}");
                error_count += 1;
            }
        }
    }
    fail_when_any(error_count, "untidy thing")?;
    println!("tidy: {} files, nothing untidy", file_sizes.len());
    Ok(())
}

/// What the fuzz targets depend on. Nothing is resolved, so neither a network nor a nightly is needed.
fn fuzz_metadata(workspace: &Workspace) -> Result<Value> {
    let mut cargo = workspace.cargo();
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    cargo.args(["--manifest-path", "fuzz/Cargo.toml"]);
    let answer = ask(&mut cargo).context("cargo metadata failed for fuzz/Cargo.toml")?;
    Ok(serde_json::from_str(&answer)?)
}

/// Paths relative to the root, with forward slashes.
fn files(workspace: &Workspace) -> Result<Vec<String>> {
    let mut git = workspace.command("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let mut paths = match ask(&mut git) {
        Some(listing) => listing.split('\0').map(str::to_owned).collect(),
        None => walk(&workspace.root)?,
    };
    paths.retain(|path| !path.is_empty());
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Every file under a folder, apart from build output and git's own.
pub(crate) fn walk(root: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder))
            .with_context(|| format!("cannot list {}", root.join(&folder).display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if entry.file_type()?.is_dir() {
                if !matches!(path.as_str(), ".git" | "target" | ".venv" | "fuzz/target") {
                    folders.push(path);
                }
            } else {
                paths.push(path);
            }
        }
    }
    paths.sort();
    Ok(paths)
}
