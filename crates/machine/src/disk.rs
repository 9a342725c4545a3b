//! The disk below a path: file system, device, kind, block size, free space.
//!
//! Best effort: layered file systems (overlay, network, encrypted) hide their device, and then the fields
//! are `None`. Nothing here measures speed; `bench` and the expert reader's own probe do that.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{Error, Result, procfs};

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
        let mut disk = Disk::of_mounted(Path::new("/"), &path);
        if let Some((total_bytes, free_bytes)) = space(&path) {
            disk.total_bytes = Some(total_bytes);
            disk.free_bytes = Some(free_bytes);
        }
        Ok(disk)
    }

    /// Describes the disk that a file at `path` would be written to, with the folder that is there already.
    pub fn to_hold(path: &Path) -> Result<(PathBuf, Disk)> {
        let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new(""));
        // A relative path without folders has "" as its last ancestor.
        let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
        Ok((existing.to_owned(), Disk::of(existing)?))
    }

    /// What the mount table and `/sys` below `root` say of `path`, an absolute path without links.
    fn of_mounted(root: &Path, path: &Path) -> Disk {
        let mounts = procfs::mounts(root);
        // The innermost mount holds the path; of two on the same folder the later one covers the earlier.
        let holding = mounts.iter().filter(|mount| path.starts_with(&mount.mount_point));
        let Some(mount) = holding.max_by_key(|mount| mount.mount_point.components().count()) else {
            return Disk::default();
        };
        let mut disk = Disk {
            mount_point: Some(mount.mount_point.clone()),
            filesystem: Some(mount.filesystem.clone()),
            device: Some(mount.source.clone()),
            ..Disk::default()
        };
        if let Some(folder) = block_device(root, &mount.device_number, &mount.source) {
            let queue = folder.join("queue");
            disk.disk = folder.file_name().map(|name| name.to_string_lossy().into_owned());
            disk.rotational =
                procfs::read_trimmed(&queue.join("rotational")).map(|text| text == "1");
            disk.logical_block_bytes = procfs::read_trimmed(&queue.join("logical_block_size"))
                .and_then(|text| text.parse().ok());
        }
        disk
    }
}

/// Forgets what the page cache holds of a file, so that the next read asks the disk. Only pages that are
/// written already can be forgotten: synchronise first. Where the system has no such call, nothing happens.
pub fn forget_cached(file: &File) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    #[cfg(not(target_os = "linux"))]
    let _ = file;
    Ok(())
}

/// The `/sys` folder of the whole disk: the one with a `queue`. A partition's folder lies inside it.
fn block_device(root: &Path, device_number: &str, source: &str) -> Option<PathBuf> {
    let by_number = procfs::below(root, "/sys/dev/block").join(device_number);
    // File systems over several devices (btrfs) have a made-up number; their source is a real device,
    // perhaps behind a link such as /dev/mapper/root.
    let device = procfs::below(root, source).canonicalize().unwrap_or_else(|_| source.into());
    let by_name = device.file_name().map(|name| procfs::below(root, "/sys/class/block").join(name));
    let found = by_number.canonicalize().ok().or_else(|| by_name?.canonicalize().ok())?;
    found.ancestors().take(2).find(|folder| folder.join("queue").is_dir()).map(Path::to_owned)
}

/// Total bytes and bytes free to unprivileged users.
#[cfg(unix)]
fn space(path: &Path) -> Option<(u64, u64)> {
    let space = rustix::fs::statvfs(path).ok()?;
    Some((space.f_blocks.checked_mul(space.f_frsize)?, space.f_bavail.checked_mul(space.f_frsize)?))
}

#[cfg(not(unix))]
fn space(_path: &Path) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::fixture::tree;

    const MOUNTS: (&str, &str) = (
        "/proc/self/mountinfo",
        "20 1 254:0 / / rw - ext4 /dev/vda rw\n\
         21 20 259:2 / /models rw - xfs /dev/nvme0n1p2 rw\n\
         22 20 0:44 / /cache rw - btrfs /dev/sdb1 rw\n\
         23 20 0:45 / /merged rw - overlay overlay rw\n\
         24 20 8:0 / /spinning rw - ext4 /dev/sda rw\n\
         25 24 259:2 / /spinning rw - xfs /dev/nvme0n1p2 rw\n",
    );

    fn machine() -> tempfile::TempDir {
        let tree = tree(&[
            MOUNTS,
            ("/sys/dev/block/254:0/queue/rotational", "1\n"),
            ("/sys/dev/block/254:0/queue/logical_block_size", "512\n"),
            ("/sys/devices/nvme0n1/queue/rotational", "0\n"),
            ("/sys/devices/nvme0n1/queue/logical_block_size", "4096\n"),
            ("/sys/devices/nvme0n1/nvme0n1p2/partition", "2\n"),
            ("/sys/devices/sdb/queue/rotational", "1\n"),
            ("/sys/devices/sdb/sdb1/partition", "1\n"),
            ("/sys/class/block/empty", ""),
        ]);
        #[cfg(unix)]
        for (target, link) in [
            ("devices/nvme0n1/nvme0n1p2", "dev/block/259:2"),
            ("devices/sdb/sdb1", "class/block/sdb1"),
        ] {
            let sys = tree.path().join("sys");
            std::os::unix::fs::symlink(sys.join(target), sys.join(link)).unwrap();
        }
        tree
    }

    #[track_caller]
    fn check(path: &str, expected: (&str, &str, Option<&str>, Option<bool>, Option<u64>)) {
        let disk = Disk::of_mounted(machine().path(), Path::new(path));
        let found = (
            disk.mount_point.as_deref().and_then(Path::to_str).unwrap(),
            disk.filesystem.as_deref().unwrap(),
            disk.disk.as_deref(),
            disk.rotational,
            disk.logical_block_bytes,
        );
        assert_eq!(found, expected);
    }

    #[cfg(unix)]
    #[test]
    fn the_innermost_mount_and_its_disk_are_found() {
        check("/home/me", ("/", "ext4", Some("254:0"), Some(true), Some(512)));
        check("/models/x", ("/models", "xfs", Some("nvme0n1"), Some(false), Some(4096)));
        check("/modelsx", ("/", "ext4", Some("254:0"), Some(true), Some(512)));
        check("/cache", ("/cache", "btrfs", Some("sdb"), Some(true), None));
        check("/merged/a", ("/merged", "overlay", None, None, None));
        // The second mount on the same folder covers the first.
        check("/spinning/a", ("/spinning", "xfs", Some("nvme0n1"), Some(false), Some(4096)));
    }

    #[test]
    fn without_a_mount_table_nothing_is_known() {
        assert_eq!(Disk::of_mounted(Path::new("/nonexistent"), Path::new("/x")), Disk::default());
    }

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
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        forget_cached(&file).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
    }

    #[cfg(unix)]
    #[test]
    fn this_machine_answers() {
        let disk = Disk::of(Path::new(".")).unwrap();
        assert!(disk.free_bytes.unwrap() <= disk.total_bytes.unwrap());
        assert_eq!(disk.filesystem.is_some(), cfg!(target_os = "linux"));
    }
}
