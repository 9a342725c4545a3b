//! Rules for every text file: no path of one machine, no reminder to oneself, clean line ends.
//!
//! Files that other programs wrote, or whose exact bytes matter, keep the line ends they have.

use super::Finding;

/// A reminder that belongs in the issue tracker. Put together here, or this file would hold it.
const REMINDER: &str = concat!("FIX", "ME");

/// Folders under the root of a file system in which one machine's owner lives.
const OWNED: [&str; 4] = ["home", "root", "Users", "work"];
/// Owners for examples.
const PLACEHOLDERS: [&str; 5] = ["me", "you", "user", "name", "runner"];

/// Left as they are: models, inputs of the fuzzer, snapshots of terminal output.
const EXACT_FOLDERS: [&str; 3] = ["models/", "testdata/models/", "fuzz/corpus/"];
const EXACT_ENDINGS: [&str; 2] = [".snap", ".golden"];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let exact = EXACT_FOLDERS.iter().any(|folder| path.starts_with(folder))
        || EXACT_ENDINGS.iter().any(|ending| path.ends_with(ending));
    for (index, line) in text.split('\n').enumerate() {
        let number = index + 1;
        if let Some(found) = machine_path(line) {
            let message = format!("`{found}` is a path of one machine");
            findings.push(Finding::error(path, number, message));
        }
        if exact {
            continue;
        }
        if line.contains(REMINDER) {
            let message = format!("{REMINDER}: fix it, or open an issue");
            findings.push(Finding::error(path, number, message));
        }
        if line.ends_with('\r') {
            findings.push(Finding::error(path, number, "carriage return at the end of the line"));
        } else if line.ends_with([' ', '\t']) {
            findings.push(Finding::error(path, number, "white space at the end of the line"));
        }
    }
    if !exact && !text.is_empty() && !text.ends_with('\n') {
        let last = text.lines().count();
        findings.push(Finding::error(path, last, "no new line at the end of the file"));
    }
    findings
}

/// An absolute path into a user's folder, e.g. `/home/` and a name.
fn machine_path(line: &str) -> Option<&str> {
    let starts = line.match_indices(['/', '\\']);
    starts.map(|(at, _)| at).find_map(|at| {
        let mut rest = line[at + 1..].split(['/', '\\']);
        let (folder, next) = (rest.next()?, rest.next()?);
        let owner: &str = next.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
        let is_path =
            OWNED.contains(&folder) && !owner.is_empty() && !PLACEHOLDERS.contains(&owner);
        let end = at + 1 + folder.len() + 1 + owner.len();
        (is_path && begins_a_path(&line[..at])).then(|| &line[at..end])
    })
}

/// Whether a slash after this is the root: not so after a name, a variable or a placeholder.
fn begins_a_path(before: &str) -> bool {
    let drive =
        before.ends_with(':') && before.chars().rev().nth(1).is_some_and(char::is_alphabetic);
    let inside = |c: char| c.is_alphanumeric() || "_-.~})>*]%".contains(c);
    drive || !before.ends_with(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples are written with `@` for a slash, or this file would hold such paths.
    #[track_caller]
    fn check_path(line: &str, expect: Option<&str>) {
        let (line, expect) = (line.replace('@', "/"), expect.map(|found| found.replace('@', "/")));
        assert_eq!(machine_path(&line), expect.as_deref());
    }

    #[track_caller]
    fn check_lines(path: &str, text: &str, expect: &[&str]) {
        let expect: Vec<Finding> =
            expect.iter().map(|text| Finding::Error((*text).to_owned())).collect();
        assert_eq!(check(path, text), expect);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        check_path("cd @home@alice@src", Some("@home@alice"));
        check_path("\"@root@models\"", Some("@root@models"));
        check_path("at @Users@bob.", Some("@Users@bob"));
        check_path("x=@work@main", Some("@work@main"));
        check_path("file:@@@home@alice", Some("@home@alice"));
        check_path("c:@Users@bob", Some("@Users@bob"));
        check_path("or @home@me, then @home@alice", Some("@home@alice"));
    }

    #[test]
    fn paths_without_a_user_are_not() {
        check_path("@home@you@models", None);
        check_path("@home@me", None);
        check_path("$HOME@work@x", None);
        check_path("${WORLD}@work@x", None);
        check_path("some@work@x", None);
        check_path("https:@@example.org@home@page", None);
        check_path("home@alice", None);
        check_path("@home@", None);
        check_path("@(home|root)@", None);
        check_path("@workers@one", None);
    }

    #[test]
    fn line_ends_are_clean() {
        check_lines("a.md", "one\ntwo\n", &[]);
        check_lines("a.md", "", &[]);
        check_lines(
            "a.md",
            "one \n\ttwo\t\n",
            &[
                "a.md:1: white space at the end of the line",
                "a.md:2: white space at the end of the line",
            ],
        );
        check_lines("a.md", "one\r\n", &["a.md:1: carriage return at the end of the line"]);
        check_lines("a.md", "one\ntwo", &["a.md:2: no new line at the end of the file"]);
        check_lines("models/a.jinja", "one \r\ntwo", &[]);
        check_lines("a/b.snap", "one \n", &[]);
    }

    #[test]
    fn reminders_are_refused() {
        let text = format!("# {REMINDER} later\n");
        check_lines("a.py", &text, &[&format!("a.py:1: {REMINDER}: fix it, or open an issue")]);
    }

    #[test]
    fn a_model_may_not_name_a_machine_either() {
        let text = "{\"path\": \"@home@alice\"}".replace('@', "/");
        assert_eq!(check("models/x/config.json", &text).len(), 1);
    }
}
