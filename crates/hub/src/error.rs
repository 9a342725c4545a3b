//! What can go wrong between a name and its files, with what to do about it.
//!
//! `Display` states the facts in one line; [`Error::hint`] is the advice, which the command line prints as
//! `hint: …` on lines of its own.

use std::path::PathBuf;

use crate::{Cut, alias, name};

/// The result of looking for a model.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model was not found or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // === Names ===
    /// Nothing was typed.
    #[error("the model name is empty")]
    EmptyName,
    /// Neither a path nor a possible name.
    #[error("`{name}` is neither a path nor a model name")]
    BadName {
        /// What was typed.
        name: String,
        /// Names that look alike.
        suggestions: Vec<String>,
    },
    /// A good name, but nothing on this disk.
    #[error("model `{name}` is not on this computer; looked in {}", join(looked))]
    NotFound {
        /// What was typed.
        name: String,
        /// The Hugging Face repository that it means.
        repository: String,
        /// The revision that was asked for.
        revision: Option<String>,
        /// Every place that was looked at.
        looked: Vec<PathBuf>,
        /// Names that look alike.
        suggestions: Vec<String>,
    },
    /// The repository is there, the revision is not.
    #[error("{} has no revision `{revision}`; looked in {}", repository, join(looked))]
    RevisionNotFound {
        /// The repository.
        repository: String,
        /// The revision that was asked for.
        revision: String,
        /// Every place that was looked at.
        looked: Vec<PathBuf>,
        /// The revisions that are there.
        known: Vec<String>,
    },

    // === Paths ===
    /// A path that leads nowhere.
    #[error("{} does not exist", path.display())]
    PathNotFound {
        /// The path, made absolute.
        path: PathBuf,
        /// Sibling folders with similar names.
        suggestions: Vec<String>,
    },
    /// A file that is no part of a model folder.
    #[error("{} is not a model: expected a folder with config.json, a .safetensors file in one, or a GGUF file", path.display())]
    NotAModelFile {
        /// The file.
        path: PathBuf,
    },

    /// A folder of GGUF files, of which one has to be named.
    #[error("{} holds GGUF files and no other weights", path.parent().unwrap_or(path).display())]
    Gguf {
        /// The first of them.
        path: PathBuf,
    },

    // === Files ===
    /// Some files are not there.
    #[error("{} is incomplete; missing {}", path.display(), missing.join(", "))]
    Incomplete {
        /// The model's folder.
        path: PathBuf,
        /// The Hugging Face repository, when it is known.
        repository: Option<String>,
        /// The revision that was asked for.
        revision: Option<String>,
        /// The names of the missing files.
        missing: Vec<String>,
    },
    /// Weights that were not copied or written to their end.
    #[error("{} is incomplete; {}", path.display(), list(files))]
    TooShort {
        /// The model's folder.
        path: PathBuf,
        /// The Hugging Face repository.
        repository: String,
        /// The revision that was asked for.
        revision: Option<String>,
        /// The files.
        files: Vec<Cut>,
    },
    /// A file is there but does not say what it should.
    #[error("{} is not valid: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or folder could not be read.
    #[error("could not read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// What the user can do about it, one sentence a line.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::EmptyName => Some("try `pebble`, the built-in model".to_owned()),
            Error::BadName { suggestions, .. } => {
                Some(did_you_mean(suggestions).unwrap_or_else(|| {
                    "names look like org/repo or org/repo@revision; paths to a folder work too"
                        .to_owned()
                }))
            }
            Error::NotFound { name, repository, revision, suggestions, .. } => {
                let mut lines: Vec<String> = did_you_mean(suggestions).into_iter().collect();
                let alias = name::split_revision(name).map_or(name.as_str(), |(alias, _)| alias);
                if alias::find(alias).is_some() {
                    lines.push(format!("`{alias}` stands for {repository}"));
                }
                // A bare word is not a repository that could be downloaded.
                if repository.contains('/') {
                    let download = download_command(repository, revision.as_deref());
                    lines.push(format!(
                        "download it with `{download}` (pip install huggingface_hub)"
                    ));
                    lines.push("set HF_HOME if your models are in another place".to_owned());
                } else if lines.is_empty() {
                    lines.push("name a repository as org/repo, or a folder by its path".to_owned());
                }
                Some(lines.join("\n"))
            }
            Error::RevisionNotFound { repository, revision, known, .. } => {
                let download = download_command(repository, Some(revision));
                let download = format!("download it with `{download}`");
                if known.is_empty() {
                    return Some(download);
                }
                Some(format!("on this computer: {}\n{download}", known.join(", ")))
            }
            Error::PathNotFound { suggestions, .. } => {
                Some(did_you_mean(suggestions).unwrap_or_else(|| {
                    "a model is a folder with config.json and its .safetensors files, a GGUF file, or a name \
                     like org/repo"
                        .to_owned()
                }))
            }
            Error::Incomplete { repository: Some(repository), revision, .. } => {
                let download = download_command(repository, revision.as_deref());
                Some(format!("finish the download with `{download}`"))
            }
            Error::Incomplete { repository: None, .. } => Some(
                "a model folder needs config.json and all of its .safetensors files".to_owned(),
            ),
            Error::TooShort { repository, revision, files, .. } => {
                // What is there counts as downloaded, so it would be left as it is.
                let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
                let (names, revision) = (names.join(" "), revision.as_deref());
                let download = download_command(&format!("{repository} {names}"), revision);
                Some(format!("download it again with `{download} --force-download`"))
            }
            Error::Gguf { path } => Some(format!("name the file itself: {}", path.display())),
            Error::NotAModelFile { .. } | Error::Malformed { .. } | Error::Read { .. } => None,
        }
    }
}

fn download_command(repository: &str, revision: Option<&str>) -> String {
    match revision {
        Some(revision) => format!("hf download {repository} --revision {revision}"),
        None => format!("hf download {repository}"),
    }
}

fn did_you_mean(suggestions: &[String]) -> Option<String> {
    let (last, others) = suggestions.split_last()?;
    if others.is_empty() {
        return Some(format!("did you mean `{last}`?"));
    }
    Some(format!("did you mean `{}` or `{last}`?", others.join("`, `")))
}

fn list(files: &[Cut]) -> String {
    files.iter().map(Cut::to_string).collect::<Vec<_>>().join(", ")
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
