//! Linux: nearly everything is a text file below `/proc` or `/sys`.
//!
//! Whatever reads them takes the root they are below, so that tests can put a fixture folder there.

mod cgroup;
mod disk;
mod facts;
mod memory;
mod procfs;

use std::fs::File;
use std::path::Path;

use crate::Result;
use crate::disk::Disk;
use crate::facts::{Cache, HugePages};
use crate::memory::{Memory, Usage};

const ROOT: &str = "/";

pub(crate) fn memory() -> Result<Memory> {
    memory::memory(Path::new(ROOT))
}

pub(crate) fn usage() -> Usage {
    memory::usage(Path::new(ROOT))
}

pub(crate) fn swap_traffic_bytes() -> Option<u64> {
    Some(memory::swap_traffic_pages(Path::new(ROOT))? * rustix::param::page_size() as u64)
}

pub(crate) fn kernel() -> Option<String> {
    facts::kernel(Path::new(ROOT))
}

pub(crate) fn cpu_model() -> Option<String> {
    facts::cpu_model(Path::new(ROOT))
}

pub(crate) fn caches() -> Vec<Cache> {
    facts::caches(Path::new(ROOT))
}

pub(crate) fn huge_pages() -> HugePages {
    facts::huge_pages(Path::new(ROOT))
}

/// `path` is absolute and without links.
pub(crate) fn disk(path: &Path) -> Disk {
    let mut disk = disk::of_mounted(Path::new(ROOT), path);
    if let Ok(space) = rustix::fs::statvfs(path) {
        disk.total_bytes = space.f_blocks.checked_mul(space.f_frsize);
        disk.free_bytes = space.f_bavail.checked_mul(space.f_frsize);
    }
    disk
}

pub(crate) fn open_file_limit() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Some(limit.current.unwrap_or(u64::MAX))
}

pub(crate) fn forget_cached(file: &File) -> std::io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}
