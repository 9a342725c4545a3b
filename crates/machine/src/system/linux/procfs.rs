//! The small text files of `/proc` and `/sys`, below a root that tests replace with a fixture folder.
//!
//! A file that is missing or unreadable is `None`: these files come and go with kernels, containers and
//! operating systems, and no fact in them is worth failing for.

use std::path::{Path, PathBuf};

/// `absolute` as seen below `root`.
pub(crate) fn below(root: &Path, absolute: impl AsRef<Path>) -> PathBuf {
    let absolute = absolute.as_ref();
    root.join(absolute.strip_prefix("/").unwrap_or(absolute))
}

/// The whole file.
pub(crate) fn read(root: &Path, absolute: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(below(root, absolute)).ok()
}

/// The whole file without surrounding white space.
pub(crate) fn read_trimmed(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The bytes of a `Key:   123 kB` line, as in `meminfo` and `status`.
pub(crate) fn kilobyte_line(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let mut words = rest.split_whitespace();
    let kilobytes: u64 = words.next()?.parse().ok()?;
    (words.next() == Some("kB")).then(|| kilobytes.saturating_mul(1024))
}

/// The number of a `key 123` line, as in cgroup's `memory.stat`.
pub(crate) fn number_line(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The soft limit of a resource in `/proc/self/limits`; `None` for unlimited or unknown.
pub(crate) fn soft_limit(root: &Path, resource: &str) -> Option<u64> {
    let text = read(root, "/proc/self/limits")?;
    let rest = text.lines().find_map(|line| line.strip_prefix(resource))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq)]
pub(crate) struct Mount {
    /// `major:minor` of the device.
    pub(crate) device_number: String,
    /// The folder of the file system that is visible at the mount point.
    pub(crate) root: PathBuf,
    pub(crate) mount_point: PathBuf,
    pub(crate) filesystem: String,
    /// The device, or whatever else the file system calls its source.
    pub(crate) source: String,
    /// The options of the file system itself; for cgroup v1 these name the controllers.
    pub(crate) super_options: String,
}

/// Everything mounted where this process can see it, in mount order.
pub(crate) fn mounts(root: &Path) -> Vec<Mount> {
    let text = read(root, "/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    // id parent major:minor root mount-point options [tags…] - type source super-options
    let (place, filesystem) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(2);
    let mut filesystem = filesystem.split(' ');
    Some(Mount {
        device_number: place.next()?.to_owned(),
        root: unescape(place.next()?).into(),
        mount_point: unescape(place.next()?).into(),
        filesystem: filesystem.next()?.to_owned(),
        source: unescape(filesystem.next()?),
        super_options: filesystem.next().unwrap_or_default().to_owned(),
    })
}

/// Undoes mountinfo's `\040` escapes of space, tab, newline and backslash.
fn unescape(field: &str) -> String {
    ["\\040", "\\011", "\\012"]
        .into_iter()
        .zip([" ", "\t", "\n"])
        .fold(field.to_owned(), |field, (escape, plain)| field.replace(escape, plain))
        // Last, or an escaped backslash before "040" would be taken for a space.
        .replace("\\134", "\\")
}

#[cfg(test)]
pub(crate) mod fixture {
    use std::path::Path;

    /// A folder that stands in for `/`, with the given files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            write(folder.path(), path, text);
        }
        folder
    }

    pub(crate) fn write(root: &Path, path: &str, text: &str) {
        let path = super::below(root, path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<[&str; 6]>) {
        let expected = expected.map(|fields| Mount {
            device_number: fields[0].into(),
            root: fields[1].into(),
            mount_point: fields[2].into(),
            filesystem: fields[3].into(),
            source: fields[4].into(),
            super_options: fields[5].into(),
        });
        assert_eq!(parse_mount(line), expected);
    }

    #[test]
    fn mount_lines() {
        check(
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
            Some(["98:0", "/mnt1", "/mnt2", "ext3", "/dev/root", "rw,errors=continue"]),
        );
        check(
            "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
            Some(["254:0", "/", "/", "ext4", "/dev/vda", "rw"]),
        );
        check(
            r"1 2 0:5 / /media/my\040disk\134040 rw shared:1 master:2 - fuse.x a\040b rw",
            Some(["0:5", "/", r"/media/my disk\040", "fuse.x", "a b", "rw"]),
        );
        check("36 35 98:0 /mnt1 /mnt2 rw,noatime", None);
        check("", None);
        check(" - ", None);
    }

    #[test]
    fn key_lines() {
        let text =
            "VmHWM:\t  2048 kB\nVmSwap:\t0 kB\nThreads:\t3\nVmData:\t99999999999999999999 kB\n";
        assert_eq!(kilobyte_line(text, "VmHWM"), Some(2 << 20));
        assert_eq!(kilobyte_line(text, "VmSwap"), Some(0));
        for key in ["Vm", "Threads", "VmData", "VmPeak"] {
            assert_eq!(kilobyte_line(text, key), None, "{key}");
        }
        let text = "anon 7\ninactive_file 12\nactive_file x\n";
        assert_eq!(number_line(text, "inactive_file"), Some(12));
        assert_eq!(number_line(text, "active_file"), None);
        assert_eq!(number_line(text, "file"), None);
    }

    #[test]
    fn resource_limits() {
        let tree = fixture::tree(&[(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1024                 524288               files     \n\
             Max address space         unlimited            unlimited            bytes     \n",
        )]);
        assert_eq!(soft_limit(tree.path(), "Max open files"), Some(1024));
        assert_eq!(soft_limit(tree.path(), "Max address space"), None);
        assert_eq!(soft_limit(tree.path(), "Max fun"), None);
        assert_eq!(soft_limit(Path::new("/nonexistent"), "Max open files"), None);
    }
}
