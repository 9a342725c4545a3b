//! Memory, its limits and this process's share of it, as `/proc` reports them.

use std::path::Path;

use super::{cgroup, procfs};
use crate::memory::{Limit, LimitSource, Memory, MemoryUsage};
use crate::{Error, Result};

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
    Some(Limit { bytes, used_bytes, file_bytes: 0, source: LimitSource::AddressSpace, path })
}

pub(super) fn swap_traffic_pages(root: &Path) -> Option<u64> {
    let text = procfs::read(root, "/proc/vmstat")?;
    let pages = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    Some(pages("pswpin")? + pages("pswpout")?)
}

pub(super) fn usage(root: &Path) -> MemoryUsage {
    let text = procfs::read(root, "/proc/self/status").unwrap_or_default();
    let line = |key| procfs::kilobyte_line(&text, key).unwrap_or(0);
    MemoryUsage {
        resident_bytes: line("VmRSS"),
        peak_resident_bytes: line("VmHWM"),
        anonymous_bytes: line("RssAnon"),
        file_bytes: line("RssFile") + line("RssShmem"),
        swap_bytes: line("VmSwap"),
        // As for the limit itself: of groups that repeat it, the one that sets it.
        group_file_bytes: cgroup::limits(root)
            .into_iter()
            .rev()
            .min_by_key(|limit| limit.bytes)
            .map(|limit| limit.file_bytes),
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
