//! The real device: files on a disk, bytes that are in memory already, or bytes that are made when they are read.
//!
//! Direct reads go past the file cache, so what is read is charged to the slot it lands in alone.
//! Buffered reads go through the cache, and each gives its pages back at once. A file keeps the
//! descriptor it was opened with: replaced by a rename or removed, it reads on as it was; changed in place, it
//! is reported by [`Device::check_unchanged`], unless nothing but its time has changed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::{Bytes, Checkpoint, FileIndex, Made, Source};
use serde::{Deserialize, Serialize};

use super::identity::Original;
use super::{Device, system};
use crate::{Error, Result};

/// Whether reads go through the system's file cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Past the cache: `O_DIRECT`, `F_NOCACHE`, `FILE_FLAG_NO_BUFFERING`.
    Direct,
    /// Through the cache, whose pages are released after each read.
    Buffered,
}

/// A set of files, numbered from zero.
#[derive(Debug)]
pub struct Files {
    access: Access,
    files: Vec<Opened>,
}

#[derive(Debug)]
enum Opened {
    Disk { path: PathBuf, file: File, original: Original },
    Memory(Bytes),
    Made(Arc<dyn Made>),
}

impl Files {
    /// Opens the weight files of a checkpoint. Each must be the very file whose header the checkpoint
    /// has read.
    pub fn open(checkpoint: &Checkpoint, access: Access) -> Result<Files> {
        let mut files = Vec::with_capacity(checkpoint.file_count());
        for index in 0..checkpoint.file_count() {
            let index = FileIndex(index as u32);
            files.push(match checkpoint.source(index) {
                Source::Memory(bytes) => Opened::Memory(bytes.clone()),
                Source::Made(made) => Opened::Made(Arc::clone(made)),
                Source::Path(path) => open_disk(path, access, checkpoint.opened(index))?,
            });
        }
        Ok(Files { access, files })
    }

    /// Opens files that are no checkpoint of their own; they are numbered in this order.
    pub fn open_paths(paths: &[PathBuf], access: Access) -> Result<Files> {
        let open = |path: &PathBuf| open_disk(path, access, None);
        Ok(Files { access, files: paths.iter().map(open).collect::<Result<_>>()? })
    }

    /// How the files were opened.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The length of a file when it was opened.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn len_bytes(&self, file: FileIndex) -> u64 {
        match &self.files[file.0 as usize] {
            Opened::Disk { original, .. } => original.len_bytes(),
            Opened::Memory(bytes) => bytes.len() as u64,
            Opened::Made(made) => made.len_bytes(),
        }
    }
}

/// Opens a file, which must be the same as `before`.
fn open_disk(path: &Path, access: Access, before: Option<&File>) -> Result<Opened> {
    let failed = |operation: &str, source| {
        let (path, operation) = (path.to_owned(), operation.to_owned());
        Error::Io { path, operation, source }
    };
    let file = match access {
        Access::Direct => {
            system::open_direct(path).map_err(|source| failed("open for direct reads", source))?
        }
        Access::Buffered => system::open_buffered(path).map_err(|source| failed("open", source))?,
    };
    let original = Original::of(&file, before, path)?;
    Ok(Opened::Disk { path: path.to_owned(), file, original })
}

impl Device for Files {
    fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        match self.files.get(file.0 as usize) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Opened::Disk { file: disk, .. }) => {
                let count = system::read_at(disk, offset, out)?;
                if self.access == Access::Buffered {
                    self.forget(file, offset, count);
                }
                Ok(count)
            }
            Some(Opened::Memory(bytes)) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let count = out.len().min(bytes.len() - start);
                out[..count].copy_from_slice(&bytes[start..start + count]);
                Ok(count)
            }
            Some(Opened::Made(made)) => Ok(made.fill_some(offset, out)),
        }
    }

    fn path(&self, file: FileIndex) -> &Path {
        match self.files.get(file.0 as usize) {
            Some(Opened::Disk { path, .. }) => path,
            Some(Opened::Memory(_) | Opened::Made(_)) => Path::new("<memory>"),
            None => Path::new("<no such file>"),
        }
    }

    fn check_unchanged(&self, file: FileIndex) -> Result<()> {
        let Some(Opened::Disk { path, file, original }) = self.files.get(file.0 as usize) else {
            return Ok(());
        };
        original.check(file, path)
    }

    /// Direct files only: a buffered read has to give its pages back afterwards, and a queue of the
    /// system's own would not.
    #[cfg(target_os = "linux")]
    fn descriptor(&self, file: FileIndex) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        match self.files.get(file.0 as usize) {
            Some(Opened::Disk { file, .. }) if self.access == Access::Direct => Some(file.as_fd()),
            _ => None,
        }
    }

    fn forget(&self, file: FileIndex, offset: u64, len: usize) {
        if let Some(Opened::Disk { file, .. }) = self.files.get(file.0 as usize) {
            system::forget(file, offset, len);
        }
    }

    fn forget_file(&self, file: FileIndex) {
        if let Some(Opened::Disk { file, .. }) = self.files.get(file.0 as usize) {
            system::forget_file(file);
        }
    }

    fn may_be_cached(&self, file: FileIndex, offset: u64) -> bool {
        match self.files.get(file.0 as usize) {
            Some(Opened::Disk { file, .. }) => system::may_be_cached(file, offset),
            Some(Opened::Memory(_) | Opened::Made(_)) | None => true,
        }
    }

    fn is_memory(&self) -> bool {
        !self.files.iter().any(|opened| matches!(opened, Opened::Disk { .. }))
    }
}
