//! The real device: files on a disk, or bytes that are in memory already.
//!
//! Direct reads go past the file cache, so what is read is charged to nobody but the slot it lands in.
//! Buffered reads go through the cache, and each gives its pages back at once. A file keeps the
//! descriptor it was opened with: replaced by a rename, it reads on as it was; changed in place, it is
//! reported by [`Device::check_unchanged`].

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use checkpoint::{Bytes, Checkpoint, FileIndex, Source};

use super::Device;
use crate::{Error, Result};

/// Whether reads go through the system's file cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the cache: `O_DIRECT`, `F_NOCACHE`, `FILE_FLAG_NO_BUFFERING`.
    Direct,
    /// Through the cache, whose pages are given back after each read.
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
    Disk { path: PathBuf, file: File, identity: Identity },
    Memory(Bytes),
}

/// What tells one file, and one state of it, from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// Device and inode number; zero where the system has none.
    number: (u64, u64),
    len_bytes: u64,
    modified: Option<SystemTime>,
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        #[cfg(unix)]
        let number = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let number = (0, 0);
        Identity { number, len_bytes: metadata.len(), modified: metadata.modified().ok() }
    }
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
                Source::Path(path) => {
                    let before = match checkpoint.opened(index) {
                        Some(file) => file.metadata(),
                        None => std::fs::metadata(path),
                    };
                    open_disk(path, access, before)?
                }
            });
        }
        Ok(Files { access, files })
    }

    /// Opens files that are no checkpoint of their own; they are numbered in this order.
    pub fn open_paths(paths: &[PathBuf], access: Access) -> Result<Files> {
        let open = |path: &PathBuf| open_disk(path, access, std::fs::metadata(path));
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
            Opened::Disk { identity, .. } => identity.len_bytes,
            Opened::Memory(bytes) => bytes.len() as u64,
        }
    }
}

fn open_disk(path: &Path, access: Access, before: io::Result<Metadata>) -> Result<Opened> {
    let failed = |operation: &str, source| {
        let (path, operation) = (path.to_owned(), operation.to_owned());
        Error::Io { path, operation, source }
    };
    let before = Identity::of(&before.map_err(|source| failed("examine", source))?);
    let file = match access {
        Access::Direct => {
            open_direct(path).map_err(|source| failed("open for direct reads", source))?
        }
        Access::Buffered => open_buffered(path).map_err(|source| failed("open", source))?,
    };
    let metadata = file.metadata().map_err(|source| failed("examine", source))?;
    let identity = Identity::of(&metadata);
    if identity != before {
        return Err(Error::Changed { path: path.to_owned() });
    }
    Ok(Opened::Disk { path: path.to_owned(), file, identity })
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

/// Reads by one such handle wait for each other: Windows serialises them unless they are overlapped.
#[cfg(windows)]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_FLAG_NO_BUFFERING: u32 = 0x2000_0000;
    std::fs::OpenOptions::new().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens for reads through the cache. Linux is told that they are scattered: read-ahead would bring
/// pages that nobody asked for and that [`Device::forget`] would not know of.
fn open_buffered(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    Ok(file)
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

#[cfg(windows)]
fn read_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}

impl Device for Files {
    fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        match self.files.get(file.0 as usize) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Opened::Disk { file: disk, .. }) => {
                let count = read_at(disk, offset, out)?;
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
        }
    }

    fn path(&self, file: FileIndex) -> &Path {
        match self.files.get(file.0 as usize) {
            Some(Opened::Disk { path, .. }) => path,
            Some(Opened::Memory(_)) => Path::new("<memory>"),
            None => Path::new("<no such file>"),
        }
    }

    fn check_unchanged(&self, file: FileIndex) -> Result<()> {
        let Some(Opened::Disk { path, file, identity }) = self.files.get(file.0 as usize) else {
            return Ok(());
        };
        let metadata = file.metadata().map_err(|source| {
            let operation = "examine".to_owned();
            Error::Io { path: path.clone(), operation, source }
        })?;
        if Identity::of(&metadata) != *identity {
            return Err(Error::Changed { path: path.clone() });
        }
        Ok(())
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
        #[cfg(target_os = "linux")]
        if let Some(Opened::Disk { file, .. }) = self.files.get(file.0 as usize)
            && let Some(len) = std::num::NonZeroU64::new(len as u64)
        {
            // Advice: where it is refused, the pages stay a while longer.
            let _ = rustix::fs::fadvise(file, offset, Some(len), rustix::fs::Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (file, offset, len);
    }

    fn is_memory(&self) -> bool {
        self.files.iter().all(|opened| matches!(opened, Opened::Memory(_)))
    }
}
