//! Systems that are not described yet: `--memory` says what cannot be queried.

use std::fs::File;
use std::path::Path;

use crate::disk::Disk;
use crate::facts::{Cache, HugePages};
use crate::memory::{Memory, MemoryUsage};
use crate::{Error, Result};

pub(crate) fn memory() -> Result<Memory> {
    Err(Error::Unknown { what: "the size of memory" })
}

pub(crate) fn usage() -> MemoryUsage {
    MemoryUsage::default()
}

pub(crate) fn swap_traffic_bytes() -> Option<u64> {
    None
}

pub(crate) fn kernel() -> Option<String> {
    None
}

pub(crate) fn cpu_model() -> Option<String> {
    None
}

pub(crate) fn caches() -> Vec<Cache> {
    Vec::new()
}

pub(crate) fn huge_pages() -> HugePages {
    HugePages::Unknown
}

pub(crate) fn disk(_path: &Path) -> Disk {
    Disk::default()
}

pub(crate) fn open_file_limit() -> Option<u64> {
    None
}

pub(crate) fn set_open_file_limit(_count: u64) {}

pub(crate) fn most_open_files() -> Option<u64> {
    None
}

pub(crate) fn host_name() -> Option<String> {
    None
}

pub(crate) fn wake_promptly() {}

/// The allocator returns freed memory by itself.
pub(crate) fn release_freed() {}

/// The allocator returns large blocks by itself.
pub(crate) fn return_large_blocks(_bytes: i32) {}

pub(crate) fn forget_cached(_file: &File) -> std::io::Result<()> {
    Ok(())
}
