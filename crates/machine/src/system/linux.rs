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
use crate::memory::{Memory, MemoryUsage};

const ROOT: &str = "/";

pub(crate) fn memory() -> Result<Memory> {
    memory::memory(Path::new(ROOT))
}

pub(crate) fn usage() -> MemoryUsage {
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

pub(crate) fn set_open_file_limit(count: u64) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = rustix::process::Rlimit { current: Some(count), ..getrlimit(Resource::Nofile) };
    // What the system refuses is seen by the next query.
    let _ = setrlimit(Resource::Nofile, limit);
}

pub(crate) fn most_open_files() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Some(limit.maximum.unwrap_or(u64::MAX))
}

pub(crate) fn host_name() -> Option<String> {
    Some(rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// The time slice that a thread requests: the shortest the kernel grants.
const SHORT_TURN_NS: u64 = 100_000;

/// Since Linux 6.12 a thread that requests short time slices runs before one that computes. Without that it waits until most
/// of the other's slice is over, about a millisecond (measured on 6.18, 2026-11-16). Older kernels ignore the request, and a
/// sandbox may refuse it: then the thread waits like any other.
pub(crate) fn wake_promptly() {
    // SAFETY: integers, for which all zeros is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes to the structure. Thread 0 is the calling one.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if answer != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.size = size;
    attributes.sched_runtime = SHORT_TURN_NS;
    // SAFETY: the kernel reads `size` bytes of the structure and keeps no reference to it.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

pub(crate) fn forget_cached(file: &File) -> std::io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// The GNU library keeps what threads have freed for the same threads, and what lies below anything that is in use.
#[cfg(target_env = "gnu")]
pub(crate) fn release_freed() {
    // SAFETY: it takes the allocator's own locks, and what is in use stays where it is.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Left to itself the GNU library raises both bounds to what was freed last, up to 32 and 64 MB, and keeps as much for each
/// thread; `malloc_trim` does not reach the tops of threads' heaps.
#[cfg(target_env = "gnu")]
pub(crate) fn return_large_blocks(bytes: i32) {
    // SAFETY: two settings of the allocator, which takes its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, bytes);
        libc::mallopt(libc::M_TRIM_THRESHOLD, bytes);
    }
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn return_large_blocks(_bytes: i32) {}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn release_freed() {}
