//! The disk below a path, as the mount table and `/sys` report it.

use std::path::{Path, PathBuf};

use super::procfs;
use crate::disk::Disk;

/// What the mount table and `/sys` below `root` say of `path`, an absolute path without links.
pub(super) fn of_mounted(root: &Path, path: &Path) -> Disk {
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
        disk.rotational = procfs::read_trimmed(&queue.join("rotational")).map(|text| text == "1");
        disk.logical_block_bytes = procfs::read_trimmed(&queue.join("logical_block_size"))
            .and_then(|text| text.parse().ok());
    }
    disk
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::linux::procfs::fixture::tree;

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
        let disk = of_mounted(machine().path(), Path::new(path));
        let found = (
            disk.mount_point.as_deref().and_then(Path::to_str).unwrap(),
            disk.filesystem.as_deref().unwrap(),
            disk.disk.as_deref(),
            disk.rotational,
            disk.logical_block_bytes,
        );
        assert_eq!(found, expected);
    }

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
        assert_eq!(of_mounted(Path::new("/nonexistent"), Path::new("/x")), Disk::default());
    }
}
