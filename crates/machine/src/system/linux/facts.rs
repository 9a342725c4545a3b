//! The processor, its caches and the kernel, as `/proc` and `/sys` report them.

use std::path::Path;

use super::procfs;
use crate::facts::{Cache, HugePages};

pub(super) fn kernel(root: &Path) -> Option<String> {
    Some(procfs::read(root, "/proc/sys/kernel/osrelease")?.trim().to_owned())
}

pub(super) fn cpu_model(root: &Path) -> Option<String> {
    let text = procfs::read(root, "/proc/cpuinfo")?;
    let line = |key: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == key)
            .map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|value| !value.is_empty())
    };
    // Arm has no model name there; single-board computers have one in the device tree.
    line("model name").or_else(|| line("Model")).or_else(|| {
        let model = procfs::read(root, "/proc/device-tree/model")?;
        Some(model.trim_end_matches('\0').trim().to_owned())
    })
}

pub(super) fn caches(root: &Path) -> Vec<Cache> {
    let folder = procfs::below(root, "/sys/devices/system/cpu/cpu0/cache");
    let mut caches: Vec<Cache> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let text = |file: &str| procfs::read_trimmed(&entry.path().join(file));
            if text("type")? == "Instruction" {
                return None;
            }
            Some(Cache { level: text("level")?.parse().ok()?, size_bytes: size(&text("size")?)? })
        })
        .collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// `48K`, `2M` or plain bytes.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, ""),
    };
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => 0,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

pub(super) fn huge_pages(root: &Path) -> HugePages {
    // All choices are listed and the one in force stands in brackets.
    let text =
        procfs::read(root, "/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(mode, _)| mode) {
        Some("always") => HugePages::Always,
        Some("madvise") => HugePages::Madvise,
        Some("never") => HugePages::Never,
        _ => HugePages::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::linux::procfs::fixture::tree;

    #[track_caller]
    fn check<T: PartialEq + std::fmt::Debug>(
        files: &[(&str, &str)],
        fact: fn(&Path) -> T,
        expected: &T,
    ) {
        assert_eq!(&fact(tree(files).path()), expected);
    }

    #[test]
    fn huge_page_modes() {
        for (text, mode) in [
            ("[always] madvise never\n", HugePages::Always),
            ("always [madvise] never\n", HugePages::Madvise),
            ("always madvise [never]\n", HugePages::Never),
            ("always madvise never\n", HugePages::Unknown),
            ("", HugePages::Unknown),
        ] {
            check(&[("/sys/kernel/mm/transparent_hugepage/enabled", text)], huge_pages, &mode);
        }
        check(&[], huge_pages, &HugePages::Unknown);
    }

    #[test]
    fn cpu_models() {
        let model = |text: &str| Some(text.to_owned());
        let x86 = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R)  Xeon(R) Processor\n";
        check(&[("/proc/cpuinfo", x86)], cpu_model, &model("Intel(R) Xeon(R) Processor"));
        let arm = "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5\n";
        check(&[("/proc/cpuinfo", arm)], cpu_model, &model("Raspberry Pi 5"));
        let tree = ("/proc/device-tree/model", "Some Board\0");
        check(&[("/proc/cpuinfo", ""), tree], cpu_model, &model("Some Board"));
        check(&[], cpu_model, &None);
    }

    #[test]
    fn caches_are_sorted_and_without_instructions() {
        let cache = "/sys/devices/system/cpu/cpu0/cache";
        let files: Vec<(String, &str)> = [
            ("index0", "3", "Unified", "307200K"),
            ("index1", "1", "Instruction", "32K"),
            ("index2", "1", "Data", "48K"),
            ("index3", "2", "Unified", "2M"),
            ("index4", "4", "Unified", "lots"),
        ]
        .into_iter()
        .flat_map(|(index, level, kind, size)| {
            let file = move |name, text| (format!("{cache}/{index}/{name}"), text);
            [file("level", level), file("type", kind), file("size", size)]
        })
        .collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let expected = [(1, 48 << 10), (2, 2 << 20), (3, 300 << 20)]
            .map(|(level, size_bytes)| Cache { level, size_bytes });
        check(&files, caches, &expected.to_vec());
        check(&[], caches, &vec![]);
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("48K", Some(48 << 10)), ("1G", Some(1 << 30)), ("64", Some(64))] {
            assert_eq!(size(text), bytes);
        }
        for text in ["", "K", "4T", "-1K", "18446744073709551615K"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn kernel_releases() {
        let files = [("/proc/sys/kernel/osrelease", "6.8.0-generic\n")];
        check(&files, kernel, &Some("6.8.0-generic".to_owned()));
        check(&[], kernel, &None);
    }
}
