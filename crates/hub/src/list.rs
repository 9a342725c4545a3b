//! What is on this disk, for `millstream list`.
//!
//! Every snapshot of every model repository in the cache, complete or not: a half-downloaded model that took
//! 40 GB should be seen. Nothing here is an error; what cannot be read is left out.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Environment;
use crate::cache::{Repository, Snapshot};

/// A model in the cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Installed {
    /// What to type: `org/repo`, or `org/repo@commit` for a snapshot that the plain name does not mean.
    pub name: String,
    /// The snapshot's folder.
    pub path: PathBuf,
    /// The size of its files.
    pub size_bytes: u64,
    /// The commit.
    pub revision: String,
    /// `model_type` of its `config.json`.
    pub model_type: Option<String>,
    /// Whether every file that a model needs is there.
    pub complete: bool,
}

/// Every model in the cache, by name.
pub fn list(environment: &Environment) -> Vec<Installed> {
    let mut installed = Vec::new();
    for cache in environment.cache_folders() {
        for repository in Repository::all(&cache) {
            let plain = repository.snapshot(None);
            for snapshot in repository.snapshots() {
                let is_plain = plain.as_ref() == Some(&snapshot);
                installed.push(Installed {
                    name: name(&repository, &snapshot, is_plain),
                    size_bytes: size_bytes(&snapshot.path),
                    model_type: model_type(&snapshot.path),
                    complete: repository.is_complete(&snapshot),
                    revision: snapshot.commit,
                    path: snapshot.path,
                });
            }
        }
    }
    installed.sort_by(|a, b| a.name.cmp(&b.name));
    installed
}

fn name(repository: &Repository, snapshot: &Snapshot, is_plain: bool) -> String {
    if is_plain {
        return repository.name.clone();
    }
    format!("{}@{}", repository.name, snapshot.commit)
}

/// The sizes of all files, links followed. Snapshots are at most a few folders deep.
fn size_bytes(folder: &Path) -> u64 {
    fn walk(folder: &Path, depth: usize) -> u64 {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let metadata = entry.path().metadata().ok()?;
                match metadata.is_dir() {
                    // The bound also ends a loop of links.
                    true if depth < 8 => Some(walk(&entry.path(), depth + 1)),
                    true => None,
                    false => Some(metadata.len()),
                }
            })
            .sum()
    }
    walk(folder, 0)
}

/// Larger than any published config.json.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

#[derive(Deserialize)]
struct Config {
    model_type: Option<String>,
}

fn model_type(folder: &Path) -> Option<String> {
    let json = machine::file::read(&folder.join("config.json"), CONFIG_BYTES_MAX).ok()??;
    serde_json::from_slice::<Config>(&json).ok()?.model_type
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{WHOLE, folder};

    /// Expects these (name, size, model type, complete).
    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[(&str, u64, Option<&str>, bool)]) {
        let cache = folder(files);
        let environment =
            Environment { hf_hub_cache: Some(cache.path().to_owned()), ..Environment::default() };
        let installed = list(&environment);
        let found: Vec<_> = installed
            .iter()
            .map(|model| {
                (model.name.as_str(), model.size_bytes, model.model_type.as_deref(), model.complete)
            })
            .collect();
        assert_eq!(found, expected);
        for model in &installed {
            assert!(model.path.ends_with(&model.revision));
        }
    }

    #[test]
    fn an_empty_cache() {
        check(&[], &[]);
        check(&[("version.txt", "1")], &[]);
        assert!(list(&Environment::default()).is_empty());
    }

    #[test]
    fn models_are_listed_by_name_with_their_facts() {
        check(
            &[
                ("models--z--last/refs/main", "c1"),
                ("models--z--last/snapshots/c1/config.json", r#"{"model_type":"qwen3_moe"}"#),
                ("models--z--last/snapshots/c1/model.safetensors", WHOLE),
                ("models--z--last/snapshots/c1/assets/a.png", "0123"),
                ("models--a--first/refs/main", "c2"),
                ("models--a--first/snapshots/c2/config.json", "not json"),
                ("models--a--first/snapshots/c2/model-1-of-2.safetensors", "x"),
            ],
            &[("a/first", 9, None, false), ("z/last", 40, Some("qwen3_moe"), true)],
        );
    }

    #[test]
    fn other_snapshots_have_their_commit_in_the_name() {
        check(
            &[
                ("models--a--b/refs/main", "c2"),
                ("models--a--b/snapshots/c1/config.json", "{}"),
                ("models--a--b/snapshots/c1/model.safetensors", WHOLE),
                ("models--a--b/snapshots/c2/config.json", "{}"),
            ],
            &[("a/b", 2, None, false), ("a/b@c1", 12, None, true)],
        );
    }

    #[test]
    fn an_unfinished_download_of_what_is_needed_is_not_complete() {
        let begun = [
            ("models--a--b/refs/main", "c1"),
            ("models--a--b/blobs/e.0123abcd.incomplete", "..."),
            ("models--a--b/snapshots/c1/config.json", "{}"),
        ];
        let weights = ("models--a--b/snapshots/c1/model.safetensors", WHOLE);
        let tokenizer = ("models--a--b/snapshots/c1/tokenizer.json", "{}");
        check(&begun, &[("a/b", 2, None, false)]);
        check(&[&begun[..], &[tokenizer]].concat(), &[("a/b", 4, None, false)]);
        check(&[&begun[..], &[weights]].concat(), &[("a/b", 12, None, false)]);
        check(&[&begun[..], &[weights, tokenizer]].concat(), &[("a/b", 14, None, true)]);
        let cut = ("models--a--b/snapshots/c1/model.safetensors", &WHOLE[..9]);
        check(&[&begun[..1], &begun[2..], &[cut]].concat(), &[("a/b", 11, None, false)]);
    }

    // Links take a privilege on Windows.
    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_loops_end() {
        let cache = folder(&[
            ("models--a--b/blobs/e", "0123456789"),
            ("models--a--b/snapshots/c1/config.json", "{}"),
        ]);
        let snapshot = cache.path().join("models--a--b/snapshots/c1");
        std::os::unix::fs::symlink("../../blobs/e", snapshot.join("model.safetensors")).unwrap();
        assert_eq!(size_bytes(&snapshot), 12);
        std::os::unix::fs::symlink(".", snapshot.join("loop")).unwrap();
        assert_eq!(size_bytes(&snapshot), 12 * 9);
    }
}
