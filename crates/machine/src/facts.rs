//! What this machine is, in one serialisable value for `bench --json` and `doctor`.
//!
//! Facts describe; they do not judge (that is `doctor`) and do not measure (that is `probe`). A benchmark
//! without them cannot be compared with another.

use std::path::Path;

use serde::{Serialize, Serializer};

use crate::cpu::{self, Isa};
use crate::memory::Memory;
use crate::{amx, procfs};

/// This machine.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// `linux`, `macos`, `windows`.
    pub os: &'static str,
    /// `x86_64`, `aarch64`.
    pub architecture: &'static str,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// What the processor calls itself.
    pub cpu_model: Option<String>,
    /// Threads that can run at once.
    pub core_count: usize,
    /// The best instruction set that kernels will use.
    pub isa: Isa,
    /// Every usable instruction set.
    pub instruction_sets: Vec<Isa>,
    /// The processor and the system name AMX. If `isa` is less, AMX was tried and did not work.
    pub amx_advertised: bool,
    /// Caches of the first core, smallest first. Instruction caches are left out.
    pub caches: Vec<Cache>,
    /// Whether anonymous memory can have huge pages.
    pub huge_pages: HugePages,
    /// Memory, if the system tells.
    pub memory: Option<Memory>,
}

/// One level of cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Cache {
    /// 1 is closest to the core.
    pub level: u32,
    /// Its size.
    pub size_bytes: u64,
}

/// The system's setting for transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// All memory gets them.
    Always,
    /// Memory that asks gets them, as [`crate::pages::Pages`] does.
    Madvise,
    /// Switched off.
    Never,
    /// This system does not say, or has none.
    Unknown,
}

impl Serialize for Isa {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Facts {
    /// Gathers the facts of this machine.
    pub fn gather() -> Facts {
        let root = Path::new("/");
        Facts {
            os: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
            kernel: kernel(root),
            cpu_model: cpu_model(root),
            core_count: cpu::core_count(),
            isa: cpu::isa(),
            instruction_sets: Isa::ALL.into_iter().filter(|&isa| cpu::supports(isa)).collect(),
            amx_advertised: amx::is_advertised(),
            caches: caches(root),
            huge_pages: huge_pages(root),
            memory: Memory::read().ok(),
        }
    }

    /// The size of the cache furthest from the core.
    pub fn last_cache_bytes(&self) -> Option<u64> {
        self.caches.iter().max_by_key(|cache| cache.level).map(|cache| cache.size_bytes)
    }
}

#[cfg(any(target_os = "linux", test))]
fn kernel_release(root: &Path) -> Option<String> {
    Some(procfs::read(root, "/proc/sys/kernel/osrelease")?.trim().to_owned())
}

#[cfg(target_os = "linux")]
fn kernel(root: &Path) -> Option<String> {
    kernel_release(root)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn kernel(_root: &Path) -> Option<String> {
    Some(rustix::system::uname().release().to_string_lossy().into_owned())
}

#[cfg(not(unix))]
fn kernel(_root: &Path) -> Option<String> {
    None
}

fn cpu_model(root: &Path) -> Option<String> {
    if cfg!(target_os = "macos") {
        let output = std::process::Command::new("sysctl")
            .args(["-n", "machdep.cpu.brand_string"])
            .output()
            .ok()?;
        return Some(String::from_utf8(output.stdout).ok()?.trim().to_owned());
    }
    if cfg!(windows) {
        return std::env::var("PROCESSOR_IDENTIFIER").ok();
    }
    linux_cpu_model(root)
}

fn linux_cpu_model(root: &Path) -> Option<String> {
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

fn caches(root: &Path) -> Vec<Cache> {
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

fn huge_pages(root: &Path) -> HugePages {
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
    use crate::procfs::fixture::tree;

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
        check(&[("/proc/cpuinfo", x86)], linux_cpu_model, &model("Intel(R) Xeon(R) Processor"));
        let arm = "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5\n";
        check(&[("/proc/cpuinfo", arm)], linux_cpu_model, &model("Raspberry Pi 5"));
        let tree = ("/proc/device-tree/model", "Some Board\0");
        check(&[("/proc/cpuinfo", ""), tree], linux_cpu_model, &model("Some Board"));
        check(&[], linux_cpu_model, &None);
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
        check(&files, kernel_release, &Some("6.8.0-generic".to_owned()));
        check(&[], kernel_release, &None);
    }

    #[test]
    fn this_machine_answers() {
        let facts = Facts::gather();
        assert!(facts.instruction_sets.contains(&facts.isa));
        assert_eq!(facts.core_count, cpu::core_count());
        if cfg!(target_os = "linux") {
            assert!(facts.kernel.is_some() && facts.memory.is_some());
        }
    }
}
