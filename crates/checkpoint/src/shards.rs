//! Which of a folder's files hold the weights.
//!
//! The index is a hint, not a truth: published repositories list shards that do not exist, and MLX
//! itself loads `model*.safetensors`. The headers decide which tensors there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::folder::{Folder, is_plain_name};
use crate::{Error, Result};

/// The index of a sharded checkpoint.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// Larger than the index of the largest published models (30 MB).
const INDEX_LIMIT_BYTES: u64 = 64 << 20;

/// The weight files to open, in order, and what the index promised beyond them.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    pub(crate) files: Vec<String>,
    pub(crate) missing: Vec<String>,
    /// Tensor names the index lists, sorted; empty without an index.
    pub(crate) listed: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Decides which files to open.
pub(crate) fn find(folder: &Folder) -> Result<Shards> {
    let names = folder.names()?;
    let mut shards = Shards::default();
    if let Some(json) = folder.read_small(INDEX_NAME, INDEX_LIMIT_BYTES)? {
        let (listed, files) = parse_index(&json, &folder.path_of(INDEX_NAME))?;
        shards.listed = listed;
        let there = |name: &String| names.binary_search(name).is_ok();
        (shards.files, shards.missing) = files.into_iter().partition(there);
    }
    if shards.files.is_empty() || !shards.missing.is_empty() {
        shards.files = glob(&names, "model");
    }
    if shards.files.is_empty() {
        shards.files = glob(&names, "");
    }
    if shards.files.is_empty() {
        return Err(Error::NoWeights { folder: folder.path(), missing: shards.missing });
    }
    Ok(shards)
}

/// The tensor names and the file names an index lists, each sorted and without repetition.
fn parse_index(json: &[u8], path: &Path) -> Result<(Vec<String>, BTreeSet<String>)> {
    let index: Index = serde_json::from_slice(json)
        .map_err(|error| Error::Json { path: path.to_owned(), detail: error.to_string() })?;
    let mut tensors = Vec::with_capacity(index.weight_map.len());
    let mut files = BTreeSet::new();
    for (tensor, file) in index.weight_map {
        if !is_plain_name(&file) {
            return Err(Error::FileName { path: path.to_owned(), name: file });
        }
        tensors.push(tensor);
        files.insert(file);
    }
    Ok((tensors, files))
}

fn glob(names: &[String], prefix: &str) -> Vec<String> {
    let wanted = |name: &&String| {
        name.starts_with(prefix) && name.ends_with(".safetensors") && !name.starts_with('.')
    };
    names.iter().filter(wanted).cloned().collect()
}
