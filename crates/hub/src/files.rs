//! Which files a model folder needs, and which of them are missing.
//!
//! The index lists the shards; without one the shards' own names say how many there are. A dangling link, as
//! a cache cleaned by hand leaves behind, counts as missing. Contents are not checked here, except that [`cut`] finds
//! weight files that are shorter than their own headers say: `checkpoint` checks the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use machine::file::Refusal;
use serde::Deserialize;

use crate::{Error, Result};

/// The file that says which shard holds which tensor.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The file that text goes through.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// As long as headers are read.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// An index of the largest known checkpoints is 30 MB; anything far beyond is not an index.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// An error that names what is missing from `folder`, if anything is.
pub(crate) fn require_complete(folder: &Path) -> Result<()> {
    let missing = missing(folder)?;
    if missing.is_empty() {
        return Ok(());
    }
    refuse_gguf(folder)?;
    Err(Error::Incomplete { path: folder.to_owned(), repository: None, revision: None, missing })
}

/// An error if the weights in `folder` are GGUF files and nothing else.
pub(crate) fn refuse_gguf(folder: &Path) -> Result<()> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let is_part = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "safetensors") || path.ends_with(INDEX)
    };
    if paths.iter().any(is_part) {
        return Ok(());
    }
    match paths.into_iter().find(|path| is_gguf(path)) {
        Some(path) => Err(Error::Gguf { path }),
        None => Ok(()),
    }
}

/// Whether a file says by its name that it is a GGUF.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// The same by what the file begins with: blobs of Ollama have no ending.
pub(crate) fn begins_as_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let file = machine::file::open(path).ok().flatten();
    file.is_some_and(|(mut file, _)| file.read_exact(&mut magic).is_ok() && magic == *b"GGUF")
}

/// The files that a model in `folder` needs and that are not there.
pub(crate) fn missing(folder: &Path) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    if !folder.join("config.json").is_file() {
        missing.push("config.json".to_owned());
    }
    missing.extend(weights(folder)?.into_iter().filter(|name| !folder.join(name).is_file()));
    // Some models have no text; one whose tokenizer was there once, or is on its way, has. What is there and is no file is
    // reported when it is read.
    let tokenizer = folder.join(TOKENIZER);
    if is_present(&tokenizer) && !tokenizer.exists() {
        missing.push(TOKENIZER.to_owned());
    }
    Ok(missing)
}

/// Whether there is a tokenizer.
pub(crate) fn has_tokenizer(folder: &Path) -> bool {
    folder.join(TOKENIZER).is_file()
}

/// The weight files in `folder` that end before their own headers say, each with what it has and what it should have.
/// Files that are missing, or that are no safetensors files at all, are not among them.
pub(crate) fn cut(folder: &Path) -> Result<Vec<Cut>> {
    let mut found = Vec::new();
    for name in weights(folder)? {
        let read = |source| Error::Read { path: folder.join(&name), source };
        let Ok(file) = File::open(folder.join(&name)) else { continue };
        let len_bytes = file.metadata().map_err(read)?.len();
        let Some(needed_bytes) = needed_bytes(file, len_bytes).map_err(read)? else { continue };
        if len_bytes < needed_bytes {
            found.push(Cut { name, len_bytes, needed_bytes });
        }
    }
    Ok(found)
}

/// The weight files that a model in `folder` needs, there or not.
fn weights(folder: &Path) -> Result<BTreeSet<String>> {
    let index = folder.join(INDEX);
    if is_present(&index) { indexed_shards(&index) } else { named_shards(folder) }
}

/// A weight file that ends too early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The file.
    pub name: String,
    /// The bytes it has.
    pub len_bytes: u64,
    /// The bytes that it must have at least.
    pub needed_bytes: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { name, len_bytes, needed_bytes } = self;
        write!(f, "{name} has {len_bytes} bytes of {needed_bytes} or more")
    }
}

/// The end of a safetensors header's last tensor, and what the beginning of one needs; `None` for a file that has no
/// such header. Values that nothing can be made of are no reason to call a file too short.
fn needed_bytes(file: File, len_bytes: u64) -> io::Result<Option<u64>> {
    let mut prefix = Vec::with_capacity(8);
    let mut file = file.take(8);
    file.read_to_end(&mut prefix)?;
    let Ok(prefix) = <[u8; 8]>::try_from(prefix) else { return Ok(Some(8)) };
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > HEADER_BYTES_MAX {
        return Ok(None);
    }
    let data_start = 8 + header_bytes;
    if len_bytes < data_start {
        return Ok(Some(data_start));
    }
    file.set_limit(header_bytes);
    let header: Result<BTreeMap<String, Entry>, _> = serde_json::from_reader(BufReader::new(file));
    let Ok(header) = header else { return Ok(None) };
    let end = header.values().filter_map(|entry| entry.data_offsets).map(|[_, end]| end).max();
    Ok(Some(data_start.saturating_add(end.unwrap_or(0))))
}

/// What a header says of a tensor; its `__metadata__` says nothing of this.
#[derive(Deserialize)]
struct Entry {
    data_offsets: Option<[u64; 2]>,
}

/// Whether there is a file or a link, dangling or not.
fn is_present(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[derive(Deserialize)]
struct Index {
    weight_map: serde_json::Map<String, serde_json::Value>,
}

fn indexed_shards(path: &Path) -> Result<BTreeSet<String>> {
    let malformed = |reason: String| Error::Malformed { path: path.to_owned(), reason };
    let json = match machine::file::read(path, INDEX_BYTES_MAX) {
        Ok(Some(json)) => json,
        Ok(None) => return Ok(BTreeSet::from([INDEX.to_owned()])),
        Err(Refusal::NotAFile) => return Err(malformed("it is not a plain file".to_owned())),
        Err(Refusal::TooLarge) => {
            return Err(malformed(format!("it has more than {INDEX_BYTES_MAX} bytes")));
        }
        Err(Refusal::Io { source, .. }) => {
            return Err(Error::Read { path: path.to_owned(), source });
        }
    };
    let index: Index =
        serde_json::from_slice(&json).map_err(|error| malformed(error.to_string()))?;
    let mut shards = BTreeSet::new();
    for (tensor, shard) in index.weight_map {
        let shard = shard.as_str().filter(|shard| is_inside(shard)).ok_or_else(|| {
            malformed(format!("tensor `{tensor}` is in {shard}, which is no file of this folder"))
        })?;
        shards.insert(shard.to_owned());
    }
    if shards.is_empty() {
        return Err(malformed("it lists no tensors".to_owned()));
    }
    Ok(shards)
}

/// Whether a name from a file stays in its folder.
fn is_inside(name: &str) -> bool {
    let parts = Path::new(name).components();
    !name.is_empty()
        && !name.contains('\\')
        && parts.into_iter().all(|part| matches!(part, Component::Normal(_)))
}

/// Without an index: `model-00001-of-00004.safetensors` says that there are four.
fn named_shards(folder: &Path) -> Result<BTreeSet<String>> {
    let read = |source| Error::Read { path: folder.to_owned(), source };
    let mut shards = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let name = entry.map_err(read)?.file_name();
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".safetensors")) else {
            continue;
        };
        match numbered(stem) {
            Some((prefix, digits, count)) => {
                shards.extend((1..=count).map(|index| {
                    format!("{prefix}-{index:0digits$}-of-{count:0digits$}.safetensors")
                }));
            }
            None => _ = shards.insert(format!("{stem}.safetensors")),
        }
    }
    if shards.is_empty() {
        shards.insert("model.safetensors".to_owned());
    }
    Ok(shards)
}

/// Takes `model-00002-of-00004` apart: prefix, digits in a number, and how many there are.
fn numbered(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, index) = rest.rsplit_once('-')?;
    let (index_number, count_number) = (index.parse::<usize>().ok()?, count.parse::<usize>().ok()?);
    // More shards than any checkpoint has would only be a long list of nonsense.
    let is_sensible = index.len() == count.len() && (1..=count_number).contains(&index_number);
    (is_sensible && count_number <= 9999).then_some((prefix, count.len(), count_number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{WHOLE, folder};

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let folder = folder(files);
        assert_eq!(missing(folder.path()).unwrap(), expected);
    }

    #[track_caller]
    fn check_malformed(index: &str, reason: &str) {
        let folder = folder(&[("config.json", "{}"), (INDEX, index)]);
        let message = missing(folder.path()).unwrap_err().to_string();
        assert!(message.contains(INDEX) && message.contains(reason), "{message}");
    }

    const CONFIG: (&str, &str) = ("config.json", "{}");

    #[test]
    fn a_single_file() {
        check(&[CONFIG, ("model.safetensors", "")], &[]);
        check(&[CONFIG], &["model.safetensors"]);
        check(&[("model.safetensors", "")], &["config.json"]);
        check(&[("README.md", "")], &["config.json", "model.safetensors"]);
        check(&[CONFIG, ("weights.safetensors", "")], &[]);
    }

    #[test]
    fn an_index_lists_the_shards() {
        let index = (
            INDEX,
            r#"{"metadata":{},"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors","c":"x-1.safetensors"}}"#,
        );
        check(&[CONFIG, index], &["x-1.safetensors", "x-2.safetensors"]);
        check(&[CONFIG, index, ("x-1.safetensors", "")], &["x-2.safetensors"]);
        check(&[CONFIG, index, ("x-1.safetensors", ""), ("x-2.safetensors", "")], &[]);
        // A shard that the index does not list does not help.
        check(
            &[CONFIG, index, ("x-1.safetensors", ""), ("x-3.safetensors", "")],
            &["x-2.safetensors"],
        );
    }

    #[test]
    fn shard_names_count_themselves_without_an_index() {
        check(
            &[CONFIG, ("model-00002-of-00003.safetensors", "")],
            &["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"],
        );
        check(&[CONFIG, ("m-1-of-2.safetensors", ""), ("m-2-of-2.safetensors", "")], &[]);
        for odd in ["m-3-of-2", "m-0-of-2", "m-1-of-00002", "one-of-two", "m-1-of-99999"] {
            check(&[CONFIG, (&format!("{odd}.safetensors"), "")], &[]);
        }
    }

    // Links take a privilege on Windows.
    #[cfg(unix)]
    #[test]
    fn dangling_links_are_missing_files() {
        let folder = folder(&[CONFIG]);
        std::os::unix::fs::symlink("../blobs/gone", folder.path().join("model.safetensors"))
            .unwrap();
        assert_eq!(missing(folder.path()).unwrap(), ["model.safetensors"]);
        std::os::unix::fs::symlink("../blobs/gone", folder.path().join(INDEX)).unwrap();
        assert_eq!(missing(folder.path()).unwrap(), [INDEX]);
    }

    /// Expects this many bytes to be needed of a file with this text.
    #[track_caller]
    fn check_cut(text: &str, needed_bytes: Option<u64>) {
        let folder = folder(&[CONFIG, ("model.safetensors", text)]);
        let cut = cut(folder.path()).unwrap();
        let expected = needed_bytes.map(|needed_bytes| Cut {
            name: "model.safetensors".to_owned(),
            len_bytes: text.len() as u64,
            needed_bytes,
        });
        assert_eq!(cut, Vec::from_iter(expected));
    }

    #[test]
    fn a_header_says_how_long_its_file_is() {
        check_cut(WHOLE, None);
        let with = |header: &str, data: &str| {
            format!("{}\0\0\0\0\0\0\0{header}{data}", char::from(header.len() as u8))
        };
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        let whole = with(header, "1234");
        check_cut(&whole, None);
        check_cut(&with(header, "12345"), None);
        check_cut(&whole[..whole.len() - 1], Some(whole.len() as u64));
        check_cut(&whole[..20], Some(8 + header.len() as u64));
        check_cut(&whole[..7], Some(8));
        check_cut("", Some(8));
        // Damaged, and not for this module to judge.
        for odd in ["not a header at all", &with("[]", ""), &with(r#"{"a":1}"#, "")] {
            check_cut(odd, None);
        }
        let odd = r#"{"a":{"data_offsets":[0,18446744073709551615]}}"#;
        check_cut(&with(odd, ""), Some(u64::MAX));
    }

    #[test]
    fn every_indexed_file_is_looked_at() {
        let index =
            r#"{"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors","c":"x-3.safetensors"}}"#;
        let files = [
            CONFIG,
            (INDEX, index),
            ("x-1.safetensors", WHOLE),
            ("x-2.safetensors", ""),
            ("y.safetensors", ""),
        ];
        let names: Vec<_> =
            cut(folder(&files).path()).unwrap().into_iter().map(|cut| cut.to_string()).collect();
        assert_eq!(names, ["x-2.safetensors has 0 bytes of 8 or more"]);
    }

    #[test]
    fn broken_indexes_are_errors() {
        check_malformed("", "EOF");
        check_malformed("[]", "expected");
        check_malformed(r#"{"weight_map":{}}"#, "no tensors");
        check_malformed(r#"{"weight_map":{"a":3}}"#, "`a`");
        for name in ["../x", "/etc/passwd", "", "a/../../b", "..\\\\x", "."] {
            check_malformed(
                &format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#),
                "no file of this folder",
            );
        }
    }
}
