//! The generated part of the documentation: docs/reference, written by the program itself.
//!
//! `millstream reference --out DIR` writes the pages. `cargo xtask reference` writes them into the
//! tree; the stage of the same name writes them elsewhere and compares, so a page that no longer
//! says what the program does fails the tests.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::stages::Outcome;
use crate::workspace::{Workspace, run};
use crate::{fail_when_any, tidy};

const PAGES: &str = "docs/reference";

/// Pages by their path inside the folder.
type Pages = BTreeMap<String, String>;

/// Writes the pages into the tree.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    generate(workspace, &workspace.root.join(PAGES))
}

/// Compares the pages in the tree with what the program writes now.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let committed = workspace.root.join(PAGES);
    if !committed.is_dir() {
        return Ok(Outcome::NotApplicable(format!("there is no {PAGES}")));
    }
    let fresh = workspace.target.join("xtask-reference");
    generate(workspace, &fresh)?;
    let differences = differences(&read(&committed)?, &read(&fresh)?);
    for difference in &differences {
        println!("{difference}");
    }
    if !differences.is_empty() {
        println!("hint: `cargo xtask reference` writes the pages anew");
    }
    fail_when_any(differences.len(), "page that differs from the program")?;
    Ok(Outcome::Passed)
}

/// Has the program fill a folder, which is emptied first.
fn generate(workspace: &Workspace, folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).context("cannot remove the old pages")?;
    }
    std::fs::create_dir_all(folder)?;
    let mut program = workspace.cargo();
    // As the tests of the workspace have it, so that it is built once.
    program.args(["run", "--quiet", "--package", "millstream", "--features", "compute/recording"]);
    program.args(["--", "reference", "--out"]);
    run(program.arg(folder))
}

fn read(folder: &Path) -> Result<Pages> {
    let mut pages = Pages::new();
    for path in tidy::walk(folder)? {
        let text = std::fs::read_to_string(folder.join(&path)).with_context(|| path.clone())?;
        pages.insert(path, text);
    }
    Ok(pages)
}

fn differences(committed: &Pages, fresh: &Pages) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in fresh {
        match committed.get(path) {
            None => found.push(format!("{PAGES}/{path}: missing")),
            Some(old) if old != text => {
                let same = old.lines().zip(text.lines()).take_while(|(a, b)| a == b).count();
                let line = |text: &str| text.lines().nth(same).unwrap_or("(the end)").to_owned();
                let (was, is, number) = (line(old), line(text), same + 1);
                found.push(format!("{PAGES}/{path}:{number}: says `{was}`, should say `{is}`"));
            }
            Some(_) => {}
        }
    }
    let extra = committed.keys().filter(|path| !fresh.contains_key(*path));
    found.extend(extra.map(|path| format!("{PAGES}/{path}: the program does not write this page")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(committed: &[(&str, &str)], fresh: &[(&str, &str)], expect: &[&str]) {
        let pages = |list: &[(&str, &str)]| -> Pages {
            list.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
        };
        let got = differences(&pages(committed), &pages(fresh));
        let expect: Vec<String> =
            expect.iter().map(|end| format!("docs/reference/{end}")).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn drift_is_named_by_page_and_line() {
        check(&[("a.md", "1\n2\n")], &[("a.md", "1\n2\n")], &[]);
        check(&[("a.md", "1\n2\n")], &[("a.md", "1\n3\n")], &["a.md:2: says `2`, should say `3`"]);
        check(
            &[("a.md", "1\n")],
            &[("a.md", "1\n2\n")],
            &["a.md:2: says `(the end)`, should say `2`"],
        );
        check(&[], &[("a.md", "1\n")], &["a.md: missing"]);
        check(&[("b.md", "1\n")], &[], &["b.md: the program does not write this page"]);
    }
}
