//! Names to files: aliases and the Hugging Face cache layout.
//!
//! [`resolve`] turns what the user typed into a [`Location`]: a built-in model, a folder whose files are all
//! there, or a GGUF file. [`list`] shows what is on this disk. Nothing here downloads, and nothing here knows what is inside a
//! model beyond which files it needs. The environment is an argument, so that tests have their own.

#![forbid(unsafe_code)]

mod alias;
mod cache;
mod environment;
mod error;
mod files;
mod list;
mod name;
mod suggest;

use std::path::{Path, PathBuf};

pub use alias::{Alias, Target, aliases};
pub use environment::Environment;
pub use error::{Error, Result};
pub use files::Cut;
pub use list::{Installed, list};
use name::Name;

/// Where a model is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// Inside this program, under this name.
    Builtin(&'static str),
    /// A folder with `config.json` and every weight file it needs.
    Folder(PathBuf),
    /// A GGUF file that was named itself.
    File(PathBuf),
}

/// Finds the model that `name` means: an alias, a path, or a name in the Hugging Face cache.
///
/// An alias wins over a folder of the same name (`./pebble` means the folder); a path that exists wins over
/// a cached name, as it does in Python's libraries.
pub fn resolve(name: &str, environment: &Environment) -> Result<Location> {
    let typed = name.trim();
    if typed.is_empty() {
        return Err(Error::EmptyName);
    }
    if let Some(alias) = alias::find(typed) {
        return match alias.target {
            Target::Builtin(builtin) => Ok(Location::Builtin(builtin)),
            Target::Repository(repository) => {
                resolve_cached(typed, repository, environment).map_err(without_suggestions)
            }
        };
    }
    let path = environment.absolute(typed);
    if path.is_file() && (files::is_gguf(&path) || files::begins_as_gguf(&path)) {
        return Ok(Location::File(path));
    }
    if path.exists() {
        return resolve_path(&path).map(Location::Folder);
    }
    if name::looks_like_path(typed) {
        let suggestions = suggest::sibling_folders(&path);
        return Err(Error::PathNotFound { path, suggestions });
    }
    // `alias@revision` means the same repository at another revision.
    if let Some((alias, revision)) = name::split_revision(typed)
        && let Some(Alias { target: Target::Repository(repository), .. }) = alias::find(alias)
    {
        let name = format!("{repository}@{revision}");
        return resolve_cached(typed, &name, environment).map_err(without_suggestions);
    }
    resolve_cached(typed, typed, environment)
}

/// A folder with `config.json`, a file inside one, or a repository folder of the cache.
fn resolve_path(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        if !path.join("config.json").exists()
            && path.join("snapshots").is_dir()
            && let Some(repository) = cache::Repository::at(path)
        {
            return repository.complete_snapshot(None);
        }
        return files::require_complete(path).map(|()| path.to_owned());
    }
    let is_model_file = path.extension().is_some_and(|extension| extension == "safetensors")
        || path.file_name().is_some_and(|name| name == "config.json" || name == files::INDEX);
    // Links are not followed first: in the cache a file's own folder is the snapshot, its target's is not.
    match path.parent() {
        Some(folder) if is_model_file => {
            files::require_complete(folder).map(|()| folder.to_owned())
        }
        _ => Err(Error::NotAModelFile { path: path.to_owned() }),
    }
}

/// For an alias, which is meant as it is typed.
fn without_suggestions(mut error: Error) -> Error {
    if let Error::NotFound { suggestions, .. } = &mut error {
        suggestions.clear();
    }
    error
}

fn resolve_cached(typed: &str, name: &str, environment: &Environment) -> Result<Location> {
    let parsed = Name::parse(name).ok_or_else(|| Error::BadName {
        name: typed.to_owned(),
        suggestions: suggest::names(typed, environment),
    })?;
    let mut looked = vec![environment.absolute(typed)];
    for folder in environment.cache_folders() {
        let folder = folder.join(parsed.cache_folder());
        if let Some(repository) = cache::Repository::at(&folder) {
            return repository.complete_snapshot(parsed.revision.as_deref()).map(Location::Folder);
        }
        looked.push(folder);
    }
    Err(Error::NotFound {
        name: typed.to_owned(),
        repository: parsed.repository,
        revision: parsed.revision,
        looked,
        suggestions: suggest::names(typed, environment),
    })
}

#[cfg(test)]
mod fixture;

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
