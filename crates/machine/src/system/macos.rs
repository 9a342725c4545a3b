//! macOS: calls of libSystem, since there is no `/proc` and running `ps` or `vm_stat` costs a process each.
//!
//! Available memory is what Activity Monitor would not call used: free pages, pages of files, and pages
//! that their owners have marked as purgeable.

use std::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::mem::size_of;
use std::path::Path;

use crate::disk::Disk;
use crate::facts::{Cache, HugePages};
use crate::memory::{Memory, MemoryUsage};
use crate::{Error, Result};

// libc has it too, but only as deprecated in favour of one more crate.
unsafe extern "C" {
    safe fn mach_host_self() -> libc::mach_port_t;
}

pub(crate) fn memory() -> Result<Memory> {
    let total_bytes = number(c"hw.memsize").ok_or(Error::Unknown { what: "the size of memory" })?;
    // Without statistics assume half is taken.
    let available_bytes = virtual_memory().map_or(total_bytes / 2, |pages| {
        // Pages that were read ahead count as free and as pages of files.
        let free = u64::from(pages.free_count.saturating_sub(pages.speculative_count));
        let given_up = u64::from(pages.external_page_count) + u64::from(pages.purgeable_count);
        (free + given_up) * page_bytes()
    });
    // SAFETY: five integers, for which all zeros is a value; the system knows no other length.
    let swap = unsafe { value::<libc::xsw_usage>(c"vm.swapusage") };
    Ok(Memory {
        total_bytes,
        available_bytes: available_bytes.min(total_bytes),
        limit: None,
        limit_headroom_bytes: None,
        swap_total_bytes: swap.map_or(0, |swap| swap.xsu_total),
        swap_free_bytes: swap.map_or(0, |swap| swap.xsu_avail),
    })
}

/// The footprint is what is ours alone, compressed pages included: as much of it as can be resident
/// is taken to be.
pub(crate) fn usage() -> MemoryUsage {
    // SAFETY: integers and arrays of them, for which all zeros is a value.
    let mut now: libc::rusage_info_v2 = unsafe { std::mem::zeroed() };
    let process = std::process::id().cast_signed();
    // SAFETY: the structure is the one of this flavour. The declared type of the last argument is a
    // quirk of the header: the call fills what it points to.
    let answer = unsafe {
        let out = (&raw mut now).cast::<libc::rusage_info_t>();
        libc::proc_pid_rusage(process, libc::RUSAGE_INFO_V2, out)
    };
    if answer != 0 {
        return MemoryUsage::default();
    }
    // SAFETY: as above.
    let mut ever: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the one the call fills.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut ever) };
    // In bytes here; other systems count in kilobytes.
    let peak_bytes = if answer == 0 { u64::try_from(ever.ru_maxrss).unwrap_or(0) } else { 0 };
    let resident_bytes = now.ri_resident_size;
    let anonymous_bytes = now.ri_phys_footprint.min(resident_bytes);
    MemoryUsage {
        resident_bytes,
        peak_resident_bytes: peak_bytes.max(resident_bytes),
        anonymous_bytes,
        file_bytes: resident_bytes - anonymous_bytes,
        ..MemoryUsage::default()
    }
}

pub(crate) fn swap_traffic_bytes() -> Option<u64> {
    let pages = virtual_memory()?;
    Some((pages.swapins + pages.swapouts) * page_bytes())
}

pub(crate) fn kernel() -> Option<String> {
    Some(rustix::system::uname().release().to_string_lossy().into_owned())
}

pub(crate) fn cpu_model() -> Option<String> {
    let mut text = [0u8; 256];
    // SAFETY: any bytes are a value of an array of them.
    unsafe { ask(c"machdep.cpu.brand_string", text.as_mut_ptr().cast(), text.len())? };
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().trim().to_owned())
}

/// Of the fast cores, where there are two kinds.
pub(crate) fn caches() -> Vec<Cache> {
    let names = [
        (1, c"hw.perflevel0.l1dcachesize", c"hw.l1dcachesize"),
        (2, c"hw.perflevel0.l2cachesize", c"hw.l2cachesize"),
        (3, c"hw.perflevel0.l3cachesize", c"hw.l3cachesize"),
    ];
    let cache = |(level, fast, any)| {
        let size_bytes = number(fast).or_else(|| number(any)).filter(|&bytes| bytes > 0)?;
        Some(Cache { level, size_bytes })
    };
    names.into_iter().filter_map(cache).collect()
}

/// Anonymous memory has none here.
pub(crate) fn huge_pages() -> HugePages {
    HugePages::Unknown
}

pub(crate) fn disk(path: &Path) -> Disk {
    let Ok(space) = rustix::fs::statfs(path) else { return Disk::default() };
    let block_bytes = u64::from(space.f_bsize);
    Disk {
        mount_point: text(&space.f_mntonname).map(Into::into),
        filesystem: text(&space.f_fstypename),
        device: text(&space.f_mntfromname),
        total_bytes: space.f_blocks.checked_mul(block_bytes),
        free_bytes: space.f_bavail.checked_mul(block_bytes),
        ..Disk::default()
    }
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

pub(crate) fn wake_promptly() {}

/// The allocator returns freed memory by itself.
pub(crate) fn release_freed() {}

/// The allocator returns large blocks by itself.
pub(crate) fn return_large_blocks(_bytes: i32) {}

pub(crate) fn forget_cached(_file: &File) -> std::io::Result<()> {
    Ok(())
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

fn virtual_memory() -> Option<libc::vm_statistics64> {
    // SAFETY: integers, for which all zeros is a value.
    let mut pages: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut count = libc::HOST_VM_INFO64_COUNT;
    // SAFETY: the structure is the one of this flavour and `count` its length; older systems fill less.
    let answer = unsafe {
        let out = (&raw mut pages).cast::<libc::integer_t>();
        libc::host_statistics64(mach_host_self(), libc::HOST_VM_INFO64, out, &raw mut count)
    };
    (answer == libc::KERN_SUCCESS).then_some(pages)
}

/// An integer of the system's, of four bytes or eight.
fn number(name: &CStr) -> Option<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: any bytes are a value of an array of them.
    let len = unsafe { ask(name, bytes.as_mut_ptr().cast(), bytes.len())? };
    match len {
        4 => Some(u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))),
        8 => Some(u64::from_ne_bytes(bytes)),
        _ => None,
    }
}

/// A value of the system's that is a structure.
///
/// # Safety
/// `T` must be the structure of this name, and all zeros a value of it.
unsafe fn value<T>(name: &CStr) -> Option<T> {
    // SAFETY: the caller's promise.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: `value` is of this length, and the caller promises that the answer is a value of it.
    let len = unsafe { ask(name, (&raw mut value).cast(), size_of::<T>())? };
    (len == size_of::<T>()).then_some(value)
}

/// How many bytes of the answer were written.
///
/// # Safety
/// `out` must be `len` bytes to write to, and the answer a value of what lies there.
unsafe fn ask(name: &CStr, out: *mut c_void, mut len: usize) -> Option<usize> {
    // SAFETY: the name ends in a zero; the caller promises the rest. Nothing is set.
    let answer =
        unsafe { libc::sysctlbyname(name.as_ptr(), out, &raw mut len, std::ptr::null_mut(), 0) };
    (answer == 0).then_some(len)
}

/// A field of fixed length that ends in a zero.
fn text(field: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> =
        field.iter().map(|&byte| byte.cast_unsigned()).take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}
