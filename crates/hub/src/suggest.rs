//! Did you mean …? Names close to a mistyped one, by edit distance and by containment.

use std::path::Path;

use strsim::osa_distance;

use crate::cache::Repository;
use crate::{Environment, aliases};

/// More suggestions than this are no help.
const SUGGESTION_COUNT: usize = 3;

/// Aliases and cached names that look like `typed`, closest first.
pub(crate) fn names(typed: &str, environment: &Environment) -> Vec<String> {
    let cached = environment.cache_folders();
    let cached = cached.iter().flat_map(|cache| Repository::all(cache));
    let known = aliases().iter().map(|alias| alias.name.to_owned());
    // An alias that is known but not on disk is no suggestion for itself.
    let all = known.chain(cached.map(|repository| repository.name)).filter(|name| name != typed);
    closest(typed, all)
}

/// Sibling folders of a missing path with similar names.
pub(crate) fn sibling_folders(path: &Path) -> Vec<String> {
    let (Some(parent), Some(name)) =
        (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let siblings = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok());
    closest(name, siblings)
        .into_iter()
        .map(|name| parent.join(name).display().to_string())
        .collect()
}

fn closest(typed: &str, known: impl Iterator<Item = String>) -> Vec<String> {
    let typed = typed.to_lowercase();
    let mut ranked: Vec<(usize, String)> =
        known.filter_map(|name| Some((distance(&typed, &name.to_lowercase())?, name))).collect();
    ranked.sort();
    ranked.dedup();
    ranked.into_iter().map(|(_, name)| name).take(SUGGESTION_COUNT).collect()
}

/// How far apart two names are; `None` if they have too little in common to be worth saying.
fn distance(typed: &str, name: &str) -> Option<usize> {
    // People leave out the owner, so the part after it counts as well as the whole.
    let bare = name.rsplit('/').next().unwrap_or(name);
    // Swapped neighbours count once, as one slip of the fingers does.
    let edits = osa_distance(typed, name).min(osa_distance(typed, bare));
    // A third of the letters wrong is a typing mistake; more is another name.
    if edits <= (typed.chars().count() / 3).max(1) {
        return Some(edits);
    }
    // Part of a name, as in `qwen3.5`; shorter parts are in too many names. Ranked after typing mistakes.
    (typed.chars().count() >= 3 && name.contains(typed)).then_some(100 + name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(typed: &str, expected: &[&str]) {
        let known = [
            "pebble",
            "pebble-draft",
            "qwen3.5-35b-a3b",
            "qwen3.5-122b-a10b",
            "mlx-community/Qwen3.5-35B-A3B-8bit",
            "gpt-oss-20b",
        ];
        assert_eq!(closest(typed, known.iter().map(|name| (*name).to_owned())), expected);
    }

    #[test]
    fn suggestions() {
        check("peble", &["pebble"]);
        check("PEBBLE", &["pebble", "pebble-draft"]);
        check("qwen3.5-35b-a3", &["qwen3.5-35b-a3b", "mlx-community/Qwen3.5-35B-A3B-8bit"]);
        check("gpt-oss-20", &["gpt-oss-20b"]);
        check("gpt-oss", &["gpt-oss-20b"]);
        check("Qwen3.5-35B-A3B-8bit", &["mlx-community/Qwen3.5-35B-A3B-8bit", "qwen3.5-35b-a3b"]);
        check("mlx-comunity/qwen3.5-35b-a3b-8bit", &["mlx-community/Qwen3.5-35B-A3B-8bit"]);
        check("llama", &[]);
        check("a", &[]);
    }

    #[test]
    fn siblings_of_a_missing_folder() {
        let parent =
            crate::fixture::folder(&[("qwen-a/x", ""), ("other/x", ""), ("qwen-file", "")]);
        let expected = parent.path().join("qwen-a").display().to_string();
        assert_eq!(sibling_folders(&parent.path().join("qwen-b")), [expected]);
        assert!(sibling_folders(&parent.path().join("nothing/alike")).is_empty());
        assert!(sibling_folders(Path::new("/")).is_empty());
    }
}
