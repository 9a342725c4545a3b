//! The model that is repacked, as files: weights by their headers, everything else whole.

use std::fs;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use checkpoint::{Checkpoint, FileIndex, Source};
use hub::{Environment, Location};
use model::DecoderSpec;

use super::marker::{self, Stamp};
use crate::builtin::Builtin;
use crate::report::Advised;

/// Endings of weights, in whatever format. They are no side files.
const WEIGHTS: [&str; 9] =
    ["safetensors", "gguf", "bin", "pt", "pth", "npz", "h5", "msgpack", "onnx"];

/// The index of a sharded checkpoint; a copy has its own.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Comes last, so that a copy that is not finished does not pass for a model.
pub(super) const CONFIG: &str = "config.json";

/// The model that is repacked.
pub(super) struct Origin {
    /// As it was asked for.
    pub(super) name: String,
    pub(super) checkpoint: Checkpoint,
    pub(super) spec: DecoderSpec,
    place: Place,
}

enum Place {
    Folder(PathBuf),
    Builtin(&'static Builtin),
}

impl Origin {
    /// Opens the model itself, never a copy of it.
    pub(super) fn open(name: &str, environment: &Environment) -> Result<Origin> {
        let place = match hub::resolve(name, environment)? {
            Location::Folder(folder) => Place::Folder(folder),
            Location::Builtin(builtin) => Place::Builtin(Builtin::find(builtin)?),
            Location::File(file) => {
                let hint = "each of its experts is three stretches of the file as it is";
                let message = format!("{} is a GGUF file, which is not repacked", file.display());
                return Err(Advised::new(message, hint).into());
            }
        };
        let checkpoint = match &place {
            Place::Folder(folder) => Checkpoint::open(folder),
            Place::Builtin(builtin) => builtin.open(),
        };
        let checkpoint = checkpoint.map_err(runtime::Error::from)?;
        let spec = model::arch::spec(&checkpoint).map_err(runtime::Error::from)?;
        let origin = Origin { name: name.to_owned(), checkpoint, spec, place };
        if origin.spec.moe_layers().next().is_none() {
            let hint = "only a mixture of experts gains by it";
            let message = format!("{name} has no routed experts: nothing to repack");
            return Err(Advised::new(message, hint).into());
        }
        if origin.folder().is_some_and(|folder| folder.join(marker::FILE).exists()) {
            bail!("{name} is a repacked copy already");
        }
        Ok(origin)
    }

    /// Where it lies; `None` inside this program.
    pub(super) fn folder(&self) -> Option<&Path> {
        match &self.place {
            Place::Folder(folder) => Some(folder),
            Place::Builtin(_) => None,
        }
    }

    /// What a copy of it is called in the cache.
    pub(super) fn key(&self) -> Option<String> {
        match &self.place {
            Place::Folder(folder) => key(folder),
            Place::Builtin(builtin) => Some(builtin.name.to_owned()),
        }
    }

    /// The files next to the weights, sorted.
    pub(super) fn side_names(&self) -> Result<Vec<String>> {
        match &self.place {
            Place::Folder(folder) => {
                side_names(folder).with_context(|| format!("cannot list {}", folder.display()))
            }
            Place::Builtin(builtin) => {
                let names = builtin.files.iter().map(|(name, _)| (*name).to_owned());
                let mut names: Vec<String> = names.filter(|name| is_side(name)).collect();
                names.sort_unstable();
                Ok(names)
            }
        }
    }

    /// What tells this model from another: its weights, then the side files that matter.
    pub(super) fn stamps(&self) -> Result<Vec<Stamp>> {
        let mut names = Vec::new();
        for index in 0..self.checkpoint.file_count() {
            if let Source::Path(path) = self.checkpoint.source(FileIndex(index as u32)) {
                let name = path.file_name().and_then(|name| name.to_str());
                names.push(name.context("a weight file without a name")?.to_owned());
            }
        }
        if let Place::Builtin(builtin) = &self.place {
            let weights = builtin.files.iter().map(|(name, _)| (*name).to_owned());
            names.extend(weights.filter(|name| !is_side(name)));
        }
        names.extend(self.side_names()?.into_iter().filter(|name| is_watched(name)));
        let stamp = |name: String| {
            let stamp = match &self.place {
                Place::Folder(folder) => stamp(folder, &name),
                Place::Builtin(builtin) => {
                    let file = builtin.files.iter().find(|(other, _)| *other == name);
                    Stamp::new(&name, Cursor::new(file.map_or(&[][..], |(_, bytes)| bytes)))
                }
            };
            stamp.with_context(|| format!("cannot read {name} of {}", self.name))
        };
        names.into_iter().map(stamp).collect()
    }
}

/// Whether a folder still is what a copy of it was made from.
pub(super) fn is_unchanged(folder: &Path, stamps: &[Stamp]) -> io::Result<bool> {
    let mut known = stamps.iter().map(|stamp| stamp.name.as_str()).filter(|name| is_side(name));
    let now = side_names(folder)?;
    if !now.iter().map(String::as_str).filter(|name| is_watched(name)).eq(&mut known) {
        return Ok(false);
    }
    for known in stamps {
        match stamp(folder, &known.name) {
            Ok(now) if now == *known => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The name of a folder's copy: `org--repo` in the Hugging Face cache, elsewhere the whole path, so that
/// every way to name a model finds the same copy. `None` if that would be too long for a file name.
pub(super) fn key(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let parts: Vec<&str> = folder
        .components()
        .filter_map(|part| match part {
            std::path::Component::Normal(part) => Some(part.to_str()),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let cached = parts.windows(2).rev().find_map(|pair| match pair {
        [repository, "snapshots"] => repository.strip_prefix("models--"),
        _ => None,
    });
    let key = cached.map_or_else(|| parts.join("--"), str::to_owned);
    (!key.is_empty() && key.len() <= 200).then_some(key)
}

fn stamp(folder: &Path, name: &str) -> io::Result<Stamp> {
    Stamp::new(name, fs::File::open(folder.join(name))?)
}

fn side_names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Links are followed: the Hugging Face cache is made of them.
        let is_file = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file());
        if let Ok(name) = entry.file_name().into_string()
            && is_file
            && is_side(&name)
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_side(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    !name.starts_with('.') && !extension.is_some_and(|extension| WEIGHTS.contains(&extension))
}

/// Side files that change what the model does. A new README does not make a copy stale.
fn is_watched(name: &str) -> bool {
    name.ends_with(".json") || name.ends_with(".jinja")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_files_are_no_weights() {
        for name in ["tokenizer.json", "README.md", "merges.txt", "LICENSE"] {
            assert!(is_side(name), "{name}");
        }
        for name in ["model.safetensors", "x.gguf", ".gitattributes", "pytorch_model.bin"] {
            assert!(!is_side(name), "{name}");
        }
    }

    #[test]
    fn a_copy_is_called_after_the_repository_or_the_path() {
        let home = tempfile::tempdir().unwrap();
        let snapshot = home.path().join("hub/models--org--repo/snapshots/abc");
        let plain = home.path().join("plain/model");
        for folder in [&snapshot, &plain] {
            fs::create_dir_all(folder).unwrap();
        }
        assert_eq!(key(&snapshot).as_deref(), Some("org--repo"));
        let path = key(&plain).unwrap();
        assert!(path.ends_with("--plain--model") && !path.starts_with('-'), "{path}");
        assert_eq!(key(&home.path().join("plain/../plain/model/.")), Some(path));
        assert_eq!(key(&home.path().join("nowhere")), None);
    }
}
