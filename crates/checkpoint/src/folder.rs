//! Where files come from: a folder on disk, bytes in memory (the built-in model, tests), or a rule that makes the
//! bytes when they are read (synthetic models).
//!
//! All answer the same three questions (which names, a small file whole, a large file for
//! positioned reads), so everything above is one code path. Only plain names are accepted: no
//! separators, no `..`. Symbolic links are followed, because the Hugging Face cache is made of them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use machine::file::Refusal;

use crate::{Error, Result};

/// A file's bytes in memory. A clone is another handle to the same bytes.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// Compiled in.
    Static(&'static [u8]),
    /// Made at run time.
    Shared(Arc<Vec<u8>>),
}

impl Bytes {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Static(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// A file that is nowhere: its bytes are made whenever they are read, the same ones each time.
pub trait Made: Debug + Send + Sync {
    /// How long the file is.
    fn len_bytes(&self) -> u64;

    /// Fills `out` with the bytes from `offset` on, all of which lie inside the file.
    fn fill(&self, offset: u64, out: &mut [u8]);

    /// The same for a range that may end beyond the file: how many bytes there were.
    fn fill_some(&self, offset: u64, out: &mut [u8]) -> usize {
        let left = self.len_bytes().saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        self.fill(offset, &mut out[..count]);
        count
    }
}

/// A set of files.
#[derive(Debug)]
pub(crate) enum Folder {
    Disk(PathBuf),
    /// A model that is one file, or files named after it, without any at its side.
    File(PathBuf),
    Memory {
        files: BTreeMap<String, Bytes>,
        /// Weight files.
        made: BTreeMap<String, Arc<dyn Made>>,
    },
}

/// A large file, open for positioned reads.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) path: PathBuf,
    pub(crate) len_bytes: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Disk(File),
    Memory(Bytes),
    Made(Arc<dyn Made>),
}

/// Where a checkpoint file's bytes are, for a reader that brings its own I/O.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A file on disk.
    Path(&'a Path),
    /// The file's bytes; a clone of the handle outlives the checkpoint.
    Memory(&'a Bytes),
    /// What makes the bytes; a clone of the handle outlives the checkpoint.
    Made(&'a Arc<dyn Made>),
}

/// Whether `name` is one component that stays inside its folder on every system.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.chars().any(|c| matches!(c, '/' | '\\' | ':') || c.is_control())
}

impl Folder {
    /// The folder's path, for error messages.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Folder::Disk(path) | Folder::File(path) => path.clone(),
            Folder::Memory { .. } => PathBuf::from("<memory>"),
        }
    }

    /// The path of a file in it.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        match self {
            Folder::Disk(path) | Folder::File(path) => path.join(name),
            // No path of this system, so it reads the same on all.
            Folder::Memory { .. } => PathBuf::from(format!("<memory>/{name}")),
        }
    }

    /// The plain file names in it, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        match self {
            Folder::Memory { files, made } => {
                let mut names: Vec<String> = files.keys().chain(made.keys()).cloned().collect();
                names.sort_unstable();
                Ok(names)
            }
            Folder::File(_) => Ok(Vec::new()),
            Folder::Disk(path) => {
                let failed = |source| Error::Io { path: path.clone(), operation: "list", source };
                let mut names = Vec::new();
                for entry in fs::read_dir(path).map_err(failed)? {
                    // A name that is not UTF-8 cannot be one of ours.
                    if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                        names.push(name);
                    }
                }
                names.sort_unstable();
                Ok(names)
            }
        }
    }

    /// Opens a file for positioned reads; `None` when there is none of that name.
    pub(crate) fn open(&self, name: &str) -> Result<Option<OpenFile>> {
        if !is_plain_name(name) {
            return Ok(None);
        }
        let path = self.path_of(name);
        match self {
            Folder::Memory { files, made } => {
                let (len_bytes, content) = match (files.get(name), made.get(name)) {
                    (Some(bytes), _) => (bytes.len() as u64, Content::Memory(bytes.clone())),
                    (None, Some(made)) => (made.len_bytes(), Content::Made(Arc::clone(made))),
                    (None, None) => return Ok(None),
                };
                Ok(Some(OpenFile { path, len_bytes, content }))
            }
            Folder::File(_) => Ok(None),
            Folder::Disk(_) => match machine::file::open(&path) {
                Ok(found) => Ok(found.map(|(file, len_bytes)| OpenFile {
                    path,
                    len_bytes,
                    content: Content::Disk(file),
                })),
                Err(refusal) => Err(refused(path, refusal, u64::MAX)),
            },
        }
    }

    /// A whole file of at most `limit` bytes; `None` when there is none of that name.
    pub(crate) fn read_small(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        if !is_plain_name(name) {
            return Ok(None);
        }
        let path = self.path_of(name);
        match self {
            Folder::Memory { files, .. } => match files.get(name) {
                Some(bytes) if bytes.len() as u64 > limit => {
                    Err(refused(path, Refusal::TooLarge, limit))
                }
                found => Ok(found.map(|bytes| bytes.to_vec())),
            },
            Folder::File(_) => Ok(None),
            Folder::Disk(_) => {
                machine::file::read(&path, limit).map_err(|refusal| refused(path, refusal, limit))
            }
        }
    }
}

fn refused(path: PathBuf, refusal: Refusal, limit: u64) -> Error {
    match refusal {
        Refusal::NotAFile => Error::NotAFile { path },
        Refusal::TooLarge => Error::TooLarge { path, limit },
        Refusal::Io { operation, source } => Error::Io { path, operation, source },
    }
}

/// A zeroed buffer, or an error where `vec![0; n]` would abort the process.
pub(crate) fn allocate(path: &Path, bytes: u64, purpose: &'static str) -> Result<Vec<u8>> {
    let failed = || Error::Allocation { path: path.to_owned(), bytes, purpose };
    let len = usize::try_from(bytes).map_err(|_| failed())?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| failed())?;
    buffer.resize(len, 0);
    Ok(buffer)
}

impl OpenFile {
    /// Fills `out` from `offset`, or says how far it came.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let expected = out.len() as u64;
        let mut got = 0_usize;
        while got < out.len() {
            let position = offset.saturating_add(got as u64);
            match self.read_some(position, &mut out[got..]) {
                Ok(0) => {
                    let (path, got) = (self.path.clone(), got as u64);
                    return Err(Error::ShortRead { path, offset, expected, got });
                }
                Ok(count) => got += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::Io { path: self.path.clone(), operation: "read", source });
                }
            }
        }
        Ok(())
    }

    fn read_some(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        match &self.content {
            Content::Disk(file) => read_some_at(file, offset, out),
            Content::Memory(bytes) => {
                let bytes = bytes.as_slice();
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let count = out.len().min(bytes.len() - start);
                out[..count].copy_from_slice(&bytes[start..start + count]);
                Ok(count)
            }
            Content::Made(made) => Ok(made.fill_some(offset, out)),
        }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        match &self.content {
            Content::Disk(_) => Source::Path(&self.path),
            Content::Memory(bytes) => Source::Memory(bytes),
            Content::Made(made) => Source::Made(made),
        }
    }

    pub(crate) fn opened(&self) -> Option<&File> {
        match &self.content {
            Content::Disk(file) => Some(file),
            Content::Memory(_) | Content::Made(_) => None,
        }
    }
}

#[cfg(unix)]
fn read_some_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

#[cfg(windows)]
fn read_some_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}
