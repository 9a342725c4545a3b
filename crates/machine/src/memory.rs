//! How much memory there is, how much of it we may take, and how much we hold.
//!
//! The machine's own numbers are not the whole answer: a container's limit is often far below them, and
//! past it the kernel kills without asking. So [`Memory`] carries both, and [`Memory::budget_bytes`] is the
//! one place that turns them into a promise. Swap is reported but never counted on.

use std::path::Path;

use serde::Serialize;

pub use crate::cgroup::{Limit, LimitSource};
use crate::{Error, Result};

const GIB: u64 = 1 << 30;

/// The machine's memory at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Memory {
    /// All physical memory.
    pub total_bytes: u64,
    /// What the system could hand out without swapping, file cache given up included.
    pub available_bytes: u64,
    /// The tightest limit below `total_bytes` on this process, if there is one.
    pub limit: Option<Limit>,
    /// The least that any limit leaves. Not always below `limit`: a wider group may be fuller.
    pub limit_headroom_bytes: Option<u64>,
    /// Swap space.
    pub swap_total_bytes: u64,
    /// Swap space that is not in use.
    pub swap_free_bytes: u64,
}

impl Memory {
    /// Asks the system now.
    pub fn read() -> Result<Memory> {
        system::memory()
    }

    /// Reads `/proc` and `/sys` of a Linux system below `root`.
    pub fn read_below(root: &Path) -> Result<Memory> {
        linux::memory(root)
    }

    /// The most this process should take in addition to what it already holds.
    ///
    /// Start from what can be had: available memory, or what the limits leave if that is less. Keep back a
    /// tenth of it, at least 1 GiB, for page tables, file cache, the network and the rest of the machine;
    /// where 1 GiB would be more than a quarter (small machines), keep back a quarter.
    pub fn budget_bytes(&self) -> u64 {
        let headroom_bytes = self.limit_headroom_bytes.unwrap_or(u64::MAX);
        let spare_bytes = self.available_bytes.min(headroom_bytes);
        let reserve_bytes = (spare_bytes / 10).max(GIB.min(spare_bytes / 4));
        spare_bytes - reserve_bytes
    }
}

/// What this process holds. Zero where the system does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Usage {
    /// Physical memory now.
    pub resident_bytes: u64,
    /// The most physical memory ever.
    pub peak_resident_bytes: u64,
    /// The part of `resident_bytes` that is our own: heap, stacks, [`crate::pages::Pages`].
    pub anonymous_bytes: u64,
    /// The part of `resident_bytes` that is mapped from files or shared memory.
    pub file_bytes: u64,
    /// What the system has moved out to swap.
    pub swap_bytes: u64,
}

/// What this process holds now.
pub fn usage() -> Usage {
    system::usage()
}

/// Bytes that the whole system has moved to swap and back since it started. `None` where it does not say.
pub fn swap_traffic_bytes() -> Option<u64> {
    system::swap_traffic_bytes()
}

/// Reads `/proc/self/status` of a Linux system below `root`.
pub fn usage_below(root: &Path) -> Usage {
    linux::usage(root)
}

/// Compiled everywhere, since its tests only need files.
mod linux {
    use super::{Error, Limit, LimitSource, Memory, Path, Result, Usage};
    use crate::{cgroup, procfs};

    pub(super) fn memory(root: &Path) -> Result<Memory> {
        let path = procfs::below(root, "/proc/meminfo");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| Error::Read { path: path.clone(), source })?;
        let line = |key| procfs::kilobyte_line(&text, key);
        let total_bytes = line("MemTotal").ok_or(Error::Parse { path, expected: "MemTotal" })?;
        // Kernels before 3.14 do not estimate; free memory and clean cache come close.
        let available_bytes = line("MemAvailable")
            .unwrap_or_else(|| ["MemFree", "Buffers", "Cached"].into_iter().filter_map(line).sum());

        let mut limits = cgroup::limits(root);
        limits.extend(address_space_limit(root));
        // A limit above all the memory there is cannot bind.
        limits.retain(|limit| limit.bytes < total_bytes);
        Ok(Memory {
            total_bytes,
            available_bytes: available_bytes.min(total_bytes),
            limit_headroom_bytes: limits.iter().map(Limit::headroom_bytes).min(),
            // Version 1 repeats an outer limit in every group inside; name the one that sets it.
            limit: limits.into_iter().rev().min_by_key(|limit| limit.bytes),
            swap_total_bytes: line("SwapTotal").unwrap_or(0),
            swap_free_bytes: line("SwapFree").unwrap_or(0),
        })
    }

    fn address_space_limit(root: &Path) -> Option<Limit> {
        let bytes = procfs::soft_limit(root, "Max address space")?;
        let status = procfs::read(root, "/proc/self/status").unwrap_or_default();
        let used_bytes = procfs::kilobyte_line(&status, "VmSize").unwrap_or(0);
        let path = procfs::below(root, "/proc/self/limits");
        Some(Limit { bytes, used_bytes, source: LimitSource::AddressSpace, path })
    }

    pub(super) fn swap_traffic_pages(root: &Path) -> Option<u64> {
        let text = procfs::read(root, "/proc/vmstat")?;
        let pages = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
            line.trim().parse::<u64>().ok()
        };
        Some(pages("pswpin")? + pages("pswpout")?)
    }

    pub(super) fn usage(root: &Path) -> Usage {
        let text = procfs::read(root, "/proc/self/status").unwrap_or_default();
        let line = |key| procfs::kilobyte_line(&text, key).unwrap_or(0);
        Usage {
            resident_bytes: line("VmRSS"),
            peak_resident_bytes: line("VmHWM"),
            anonymous_bytes: line("RssAnon"),
            file_bytes: line("RssFile") + line("RssShmem"),
            swap_bytes: line("VmSwap"),
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use super::{Memory, Path, Result, Usage, linux};

    pub(super) fn memory() -> Result<Memory> {
        linux::memory(Path::new("/"))
    }

    pub(super) fn usage() -> Usage {
        linux::usage(Path::new("/"))
    }

    pub(super) fn swap_traffic_bytes() -> Option<u64> {
        Some(linux::swap_traffic_pages(Path::new("/"))? * rustix::param::page_size() as u64)
    }
}

/// macOS and other Unixes: the system's own tools, since their calls have no stable safe binding.
#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    use std::process::Command;

    use super::{Error, Memory, Result, Usage, vm_stat};

    pub(super) fn memory() -> Result<Memory> {
        let total_bytes = output("sysctl", &["-n", "hw.memsize"])
            .and_then(|text| text.trim().parse().ok())
            .ok_or(Error::Unknown { what: "the size of memory" })?;
        // Without `vm_stat` assume half is taken.
        let available_bytes = output("vm_stat", &[])
            .and_then(|text| vm_stat::available_bytes(&text))
            .unwrap_or(total_bytes / 2)
            .min(total_bytes);
        Ok(Memory {
            total_bytes,
            available_bytes,
            limit: None,
            limit_headroom_bytes: None,
            swap_total_bytes: 0,
            swap_free_bytes: 0,
        })
    }

    pub(super) fn usage() -> Usage {
        let pid = std::process::id().to_string();
        let kilobytes: Option<u64> =
            output("ps", &["-o", "rss=", "-p", &pid]).and_then(|text| text.trim().parse().ok());
        Usage { resident_bytes: kilobytes.unwrap_or(0) * 1024, ..Usage::default() }
    }

    pub(super) fn swap_traffic_bytes() -> Option<u64> {
        None
    }

    fn output(program: &str, arguments: &[&str]) -> Option<String> {
        let output = Command::new(program).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8(output.stdout).ok())?
    }
}

/// What macOS's `vm_stat` prints.
#[cfg(any(test, all(unix, not(target_os = "linux"))))]
mod vm_stat {
    /// Pages that are free or given up without writing anything: free, inactive, speculative, purgeable.
    pub(super) fn available_bytes(text: &str) -> Option<u64> {
        let page_bytes: u64 =
            text.split_once("page size of ")?.1.split(' ').next()?.parse().ok()?;
        let pages = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().trim_end_matches('.').parse().ok()
        };
        let free = pages("Pages free")?;
        let given_up = ["Pages inactive", "Pages speculative", "Pages purgeable"];
        Some((free + given_up.into_iter().filter_map(pages).sum::<u64>()) * page_bytes)
    }
}

#[cfg(windows)]
mod system {
    use std::mem::size_of;

    use super::{Error, Memory, Result, Usage};

    /// `MEMORYSTATUSEX` of sysinfoapi.h.
    #[repr(C)]
    #[derive(Default)]
    struct MemoryStatus {
        len_bytes: u32,
        load_percent: u32,
        total_bytes: u64,
        available_bytes: u64,
        page_file_total_bytes: u64,
        page_file_available_bytes: u64,
        virtual_total_bytes: u64,
        virtual_available_bytes: u64,
        virtual_extended_bytes: u64,
    }

    /// `PROCESS_MEMORY_COUNTERS` of psapi.h.
    #[repr(C)]
    #[derive(Default)]
    struct ProcessMemory {
        len_bytes: u32,
        page_faults: u32,
        peak_working_set_bytes: usize,
        working_set_bytes: usize,
        pool_bytes: [usize; 4],
        page_file_bytes: usize,
        peak_page_file_bytes: usize,
    }

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GlobalMemoryStatusEx(status: *mut MemoryStatus) -> i32;
        fn GetCurrentProcess() -> *mut std::ffi::c_void;
        fn K32GetProcessMemoryInfo(
            process: *mut std::ffi::c_void,
            counters: *mut ProcessMemory,
            len_bytes: u32,
        ) -> i32;
    }

    pub(super) fn memory() -> Result<Memory> {
        let mut status =
            MemoryStatus { len_bytes: size_of::<MemoryStatus>() as u32, ..Default::default() };
        // SAFETY: the structure is the one the call documents, with its length filled in.
        if unsafe { GlobalMemoryStatusEx(&raw mut status) } == 0 {
            return Err(Error::Unknown { what: "the size of memory" });
        }
        Ok(Memory {
            total_bytes: status.total_bytes,
            available_bytes: status.available_bytes,
            limit: None,
            limit_headroom_bytes: None,
            swap_total_bytes: status.page_file_total_bytes.saturating_sub(status.total_bytes),
            swap_free_bytes: status
                .page_file_available_bytes
                .saturating_sub(status.available_bytes),
        })
    }

    pub(super) fn swap_traffic_bytes() -> Option<u64> {
        None
    }

    pub(super) fn usage() -> Usage {
        let len_bytes = size_of::<ProcessMemory>() as u32;
        let mut counters = ProcessMemory { len_bytes, ..Default::default() };
        // SAFETY: the pseudo handle needs no closing, and the structure is the one the call documents.
        if unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, len_bytes) }
            == 0
        {
            return Usage::default();
        }
        Usage {
            resident_bytes: counters.working_set_bytes as u64,
            peak_resident_bytes: counters.peak_working_set_bytes as u64,
            ..Usage::default()
        }
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
