//! The disk below a path: file system, device, kind, block size, free space.
//!
//! Best effort: layered file systems (overlay, network, encrypted) hide their device, and then the fields
//! are `None`. Nothing here measures speed; `bench` and the expert reader's own probe do that.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{Error, Result, system};

/// What is known of the disk that holds a path.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Disk {
    /// Where the file system is mounted.
    pub mount_point: Option<PathBuf>,
    /// `ext4`, `xfs`, `overlay`, …
    pub filesystem: Option<String>,
    /// What the mount table calls the device, e.g. `/dev/nvme0n1p2`.
    pub device: Option<String>,
    /// The whole disk behind the device, e.g. `nvme0n1`.
    pub disk: Option<String>,
    /// Whether it spins. Virtual disks may say yes without spinning.
    pub rotational: Option<bool>,
    /// The smallest unit that direct reads can address.
    pub logical_block_bytes: Option<u64>,
    /// The size of the file system.
    pub total_bytes: Option<u64>,
    /// What an unprivileged user may still write.
    pub free_bytes: Option<u64>,
}

impl Disk {
    /// Describes the disk that holds `path`, which must exist.
    pub fn of(path: &Path) -> Result<Disk> {
        let path =
            path.canonicalize().map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Ok(system::disk(&path))
    }

    /// Describes the disk that a file at `path` would be written to, with the folder that is there already.
    pub fn to_hold(path: &Path) -> Result<(PathBuf, Disk)> {
        let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new(""));
        // A relative path without folders has "" as its last ancestor.
        let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
        Ok((existing.to_owned(), Disk::of(existing)?))
    }
}

/// Forgets what the page cache holds of a file, so that the next read goes to the disk. Only pages that are
/// written already can be forgotten: synchronize first. Where the system has no such call, nothing happens.
pub fn forget_cached(file: &File) -> std::io::Result<()> {
    system::forget_cached(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_is_an_error() {
        let error = Disk::of(Path::new("/nonexistent/model")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/model"), "{error}");
    }

    #[test]
    fn a_path_that_is_not_there_yet_lies_on_the_disk_of_its_nearest_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (existing, disk) = Disk::to_hold(&folder.path().join("a/b/c")).unwrap();
        assert_eq!(existing, folder.path());
        assert_eq!(disk.mount_point, Disk::of(folder.path()).unwrap().mount_point);
        assert_eq!(Disk::to_hold(Path::new("nowhere-yet")).unwrap().0, Path::new("."));
    }

    #[test]
    fn a_forgotten_file_is_still_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"content").unwrap();
        // Windows synchronises by handles for writing only.
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        forget_cached(&file).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
    }

    #[test]
    fn this_machine_answers() {
        let disk = Disk::of(Path::new(".")).unwrap();
        assert!(disk.free_bytes.unwrap() <= disk.total_bytes.unwrap());
        assert!(disk.filesystem.is_some() && disk.mount_point.is_some(), "{disk:?}");
    }
}
