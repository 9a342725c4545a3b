//! The Hugging Face cache layout, read only.
//!
//! `models--org--repo/refs/main` holds the commit that `main` meant at the last download;
//! `snapshots/<commit>/` holds that commit's files, as links into `blobs/` (or as plain files where links need
//! privileges); a download in progress is `blobs/<etag>.incomplete`, or `blobs/<etag>.<8 hex>.incomplete`, which stays
//! behind when the download is killed. A snapshot is only handed out when every file it needs is there in full; what
//! else is unfinished does not matter, since a name in `blobs` does not say which file it belongs to.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::name::Name;
use crate::{Error, Result, files};

const DEFAULT_REVISION: &str = "main";

/// A reference is the name of a commit: 40 hexadecimal digits.
const REFERENCE_BYTES_MAX: u64 = 4096;

/// One repository's folder.
pub(crate) struct Repository {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
}

/// One commit of a repository on this disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Snapshot {
    pub(crate) commit: String,
    pub(crate) path: PathBuf,
}

impl Repository {
    /// The repository in this folder, if it is one.
    pub(crate) fn at(folder: &Path) -> Option<Repository> {
        let name = Name::from_cache_folder(folder.file_name()?.to_str()?)?;
        let is_repository = folder.join("snapshots").is_dir() || folder.join("blobs").is_dir();
        is_repository.then(|| Repository { name, folder: folder.to_owned() })
    }

    /// The repositories of a cache folder, by name.
    pub(crate) fn all(cache: &Path) -> Vec<Repository> {
        let mut repositories: Vec<_> =
            entries(cache).iter().filter_map(|path| Repository::at(path)).collect();
        repositories.sort_by(|a, b| a.name.cmp(&b.name));
        repositories
    }

    /// The folder of a revision, with every file that a model needs.
    pub(crate) fn complete_snapshot(&self, revision: Option<&str>) -> Result<PathBuf> {
        let Some(snapshot) = self.snapshot(revision) else {
            // A first download that stopped early has blobs and no snapshot.
            let unfinished = self.unfinished();
            if revision.is_none() && !unfinished.is_empty() {
                return Err(self.incomplete(&self.folder, revision, unfinished));
            }
            return Err(self.revision_not_found(revision.unwrap_or(DEFAULT_REVISION)));
        };
        self.require_complete(&snapshot, revision)?;
        Ok(snapshot.path)
    }

    /// Whether a snapshot has every file that a model needs.
    pub(crate) fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.require_complete(snapshot, None).is_ok()
    }

    fn require_complete(&self, snapshot: &Snapshot, revision: Option<&str>) -> Result<()> {
        let path = &snapshot.path;
        let mut missing = files::missing(path)?;
        // A model may do without, unless it is what is still being downloaded.
        if !files::has_tokenizer(path) && missing.is_empty() && !self.unfinished().is_empty() {
            missing.push(files::TOKENIZER.to_owned());
        }
        if !missing.is_empty() {
            files::refuse_gguf(path)?;
            return Err(self.incomplete(path, revision, missing));
        }
        let files = files::cut(path)?;
        if !files.is_empty() {
            let (path, repository) = (path.clone(), self.name.clone());
            let revision = revision.map(str::to_owned);
            return Err(Error::TooShort { path, repository, revision, files });
        }
        Ok(())
    }

    /// The snapshot of a revision: what its ref says, or the commit itself, in full or shortened.
    /// Without a revision: `main`, or else the snapshot that was written last.
    pub(crate) fn snapshot(&self, revision: Option<&str>) -> Option<Snapshot> {
        let snapshots = self.snapshots();
        let find = |commit: &str| snapshots.iter().find(|snapshot| snapshot.commit == commit);
        let referenced = self.reference(revision.unwrap_or(DEFAULT_REVISION));
        if let Some(snapshot) = referenced.and_then(|commit| find(&commit)) {
            return Some(snapshot.clone());
        }
        let Some(revision) = revision else {
            return snapshots.iter().max_by_key(|snapshot| modified(&snapshot.path)).cloned();
        };
        // Seven digits are what git itself shortens to; fewer are more likely a mistyped branch.
        let mut matching = snapshots.iter().filter(|snapshot| {
            snapshot.commit == revision
                || revision.len() >= 7 && snapshot.commit.starts_with(revision)
        });
        let found = matching.next()?;
        matching.next().is_none().then(|| found.clone())
    }

    /// Every snapshot, by commit.
    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        let mut snapshots: Vec<_> = entries(&self.folder.join("snapshots"))
            .into_iter()
            .filter(|path| path.is_dir())
            .filter_map(|path| {
                Some(Snapshot { commit: path.file_name()?.to_str()?.to_owned(), path })
            })
            .collect();
        snapshots.sort_by(|a, b| a.commit.cmp(&b.commit));
        snapshots
    }

    /// The commit that a branch or tag meant at the last download.
    fn reference(&self, revision: &str) -> Option<String> {
        let path = self.folder.join("refs").join(revision);
        let commit = machine::file::read(&path, REFERENCE_BYTES_MAX).ok()??;
        Some(std::str::from_utf8(&commit).ok()?.trim().to_owned())
    }

    /// Downloads that have begun and not ended. One whose finished twin is there is only litter.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let mut unfinished: Vec<_> = entries(&self.folder.join("blobs"))
            .into_iter()
            .filter_map(|path| {
                let name = path.file_name()?.to_str()?;
                // `<etag>.incomplete`, or `<etag>.<random>.incomplete` in newer versions.
                let etag = name.strip_suffix(".incomplete")?.split('.').next()?;
                (!path.with_file_name(etag).exists()).then(|| format!("blobs/{name}"))
            })
            .collect();
        unfinished.sort();
        unfinished
    }

    fn incomplete(&self, path: &Path, revision: Option<&str>, missing: Vec<String>) -> Error {
        Error::Incomplete {
            path: path.to_owned(),
            repository: Some(self.name.clone()),
            revision: revision.map(str::to_owned),
            missing,
        }
    }

    fn revision_not_found(&self, revision: &str) -> Error {
        Error::RevisionNotFound {
            repository: self.name.clone(),
            revision: revision.to_owned(),
            looked: vec![
                self.folder.join("refs").join(revision),
                self.folder.join("snapshots").join(revision),
            ],
            known: self.snapshots().into_iter().map(|snapshot| snapshot.commit).collect(),
        }
    }
}

/// What is in a folder; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{WHOLE, folder};

    const COMMIT: &str = "0123456789abcdef";
    const OTHER: &str = "0123456fedcba987";

    /// A repository with two snapshots; `main` is the first, the tag `v2` the second.
    fn repository_files() -> Vec<(String, String)> {
        let top = "models--org--repo";
        let mut files = vec![
            (format!("{top}/refs/main"), format!("{COMMIT}\n")),
            (format!("{top}/refs/v2"), OTHER.to_owned()),
            (format!("{top}/refs/refs/pr/1"), OTHER.to_owned()),
            (format!("{top}/refs/gone"), "fffffffffff".to_owned()),
        ];
        for commit in [COMMIT, OTHER] {
            for (file, text) in
                [("config.json", "{}"), ("model.safetensors", WHOLE), ("tokenizer.json", "{}")]
            {
                files.push((format!("{top}/snapshots/{commit}/{file}"), text.to_owned()));
            }
        }
        files
    }

    fn repository(files: &[(String, String)]) -> (tempfile::TempDir, Repository) {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let cache = folder(&files);
        let repository = Repository::at(&cache.path().join("models--org--repo")).unwrap();
        (cache, repository)
    }

    #[track_caller]
    fn check(revision: Option<&str>, expected: Option<&str>) {
        let (_cache, repository) = repository(&repository_files());
        let found = repository.snapshot(revision).map(|snapshot| snapshot.commit);
        assert_eq!(found.as_deref(), expected);
        assert_eq!(repository.complete_snapshot(revision).is_ok(), expected.is_some());
    }

    #[test]
    fn revisions() {
        check(None, Some(COMMIT));
        check(Some("main"), Some(COMMIT));
        check(Some("v2"), Some(OTHER));
        check(Some("refs/pr/1"), Some(OTHER));
        check(Some(OTHER), Some(OTHER));
        check(Some("0123456f"), Some(OTHER));
        check(Some("0123456789"), Some(COMMIT));
        // Ambiguous, too short, gone, unknown.
        for revision in ["0123456", "01234", "gone", "v3"] {
            check(Some(revision), None);
        }
    }

    #[test]
    fn without_a_ref_the_last_written_snapshot_counts() {
        let files: Vec<_> =
            repository_files().into_iter().filter(|(path, _)| !path.contains("/refs/")).collect();
        let (_cache, repository) = repository(&files);
        let (first, second) =
            (repository.snapshot(Some(COMMIT)).unwrap(), repository.snapshot(Some(OTHER)).unwrap());
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        for newest in [first, second] {
            std::fs::File::open(&newest.path).unwrap().set_modified(later).unwrap();
            assert_eq!(repository.snapshot(None).unwrap(), newest);
            std::fs::File::open(&newest.path)
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();
        }
    }

    #[test]
    fn unknown_revisions_name_the_known_ones() {
        let (_cache, repository) = repository(&repository_files());
        let error = repository.complete_snapshot(Some("v3")).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("org/repo") && message.contains("`v3`"), "{message}");
        assert!(message.contains("refs/v3") && message.contains("snapshots/v3"), "{message}");
        let hint = error.hint().unwrap();
        assert!(hint.contains(COMMIT) && hint.contains(OTHER), "{hint}");
        assert!(hint.contains("hf download org/repo --revision v3"), "{hint}");
    }

    #[test]
    fn unfinished_downloads_matter_only_where_something_is_missing() {
        let blobs = "models--org--repo/blobs";
        let mut files = repository_files();
        files.push((format!("{blobs}/aaa"), String::new()));
        files.push((format!("{blobs}/aaa.incomplete"), String::new()));
        files.push((format!("{blobs}/aaa.1234.incomplete"), String::new()));
        let (_cache, complete) = repository(&files);
        assert_eq!(complete.unfinished(), Vec::<String>::new());
        assert!(complete.complete_snapshot(None).is_ok());

        // Of files that the model does not need.
        files.push((format!("{blobs}/bbb.incomplete"), String::new()));
        files.push((format!("{blobs}/ccc.0123abcd.incomplete"), String::new()));
        let (_cache, complete) = repository(&files);
        assert_eq!(
            complete.unfinished(),
            ["blobs/bbb.incomplete", "blobs/ccc.0123abcd.incomplete"]
        );
        assert!(complete.complete_snapshot(None).is_ok());

        for missing in ["config.json", "model.safetensors", "tokenizer.json"] {
            let file = format!("models--org--repo/snapshots/{COMMIT}/{missing}");
            let rest: Vec<_> = files.iter().filter(|(path, _)| *path != file).cloned().collect();
            let (_cache, incomplete) = repository(&rest);
            let error = incomplete.complete_snapshot(None).unwrap_err();
            let message = error.to_string();
            assert!(
                message.ends_with(&format!("{COMMIT} is incomplete; missing {missing}")),
                "{message}"
            );
            assert_eq!(error.hint().unwrap(), "finish the download with `hf download org/repo`");
            // The other snapshot has all.
            assert!(incomplete.complete_snapshot(Some("v2")).is_ok());
        }
    }

    #[test]
    fn weights_that_are_too_short_are_downloaded_again() {
        let mut files = repository_files();
        files.retain(|(path, _)| !path.ends_with("model.safetensors"));
        for commit in [COMMIT, OTHER] {
            let path = format!("models--org--repo/snapshots/{commit}/model.safetensors");
            files.push((path, WHOLE[..9].to_owned()));
        }
        let (_cache, repository) = repository(&files);
        let error = repository.complete_snapshot(Some("v2")).unwrap_err();
        let message = error.to_string();
        assert!(
            message.ends_with("is incomplete; model.safetensors has 9 bytes of 10 or more"),
            "{message}"
        );
        assert_eq!(
            error.hint().unwrap(),
            "download it again with `hf download org/repo model.safetensors --revision v2 --force-download`"
        );
    }

    // Links take a privilege on Windows.
    #[cfg(unix)]
    #[test]
    fn links_to_blobs_that_are_gone_are_missing_files() {
        for gone in ["config.json", "model.safetensors", "tokenizer.json"] {
            let (cache, repository) = repository(&repository_files());
            let file = cache.path().join(format!("models--org--repo/snapshots/{COMMIT}/{gone}"));
            std::fs::remove_file(&file).unwrap();
            std::os::unix::fs::symlink("../../blobs/gone", &file).unwrap();
            let message = repository.complete_snapshot(None).unwrap_err().to_string();
            assert!(message.ends_with(&format!("missing {gone}")), "{message}");
        }
    }

    #[test]
    fn a_download_that_stopped_before_its_first_file() {
        let blob = ("models--org--repo/blobs/a.incomplete".to_owned(), String::new());
        let (_cache, repository) = repository(&[blob]);
        let error = repository.complete_snapshot(None).unwrap_err();
        assert!(
            matches!(&error, Error::Incomplete { missing, .. } if missing == &["blobs/a.incomplete"])
        );
    }

    #[test]
    fn only_model_folders_are_repositories() {
        let cache = folder(&[
            ("models--b--two/snapshots/1/config.json", "{}"),
            ("models--a--one/snapshots/1/config.json", "{}"),
            ("models--solo/blobs/x", ""),
            ("models--empty/refs/main", "1"),
            ("datasets--a--data/snapshots/1/x", ""),
            ("models--a--b--c/snapshots/1/x", ""),
            (".locks/models--a--one/x.lock", ""),
            ("version.txt", "1"),
        ]);
        let names: Vec<_> =
            Repository::all(cache.path()).into_iter().map(|repository| repository.name).collect();
        assert_eq!(names, ["a/one", "b/two", "solo"]);
        assert!(Repository::all(Path::new("/nonexistent")).is_empty());
    }
}
