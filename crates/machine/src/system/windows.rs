//! Windows: calls of kernel32 and its kin.
//!
//! It does not report which part of the working set is a process's own, nor what went to the page file and
//! back. Huge pages need a privilege that ordinary users do not have.

use std::fs::File;
use std::mem::size_of;
use std::os::windows::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use windows_sys::Wdk::System::SystemServices::RtlGetVersion;
use windows_sys::Win32::Storage::FileSystem::{
    GetDiskFreeSpaceExW, GetDiskFreeSpaceW, GetDriveTypeW, GetVolumeInformationW,
    GetVolumePathNameW,
};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::Win32::System::SystemInformation::{
    CacheInstruction, GetLogicalProcessorInformation, GlobalMemoryStatusEx, MEMORYSTATUSEX,
    OSVERSIONINFOW, RelationCache, SYSTEM_LOGICAL_PROCESSOR_INFORMATION,
};
use windows_sys::Win32::System::Threading::GetCurrentProcess;
use windows_sys::Win32::System::WindowsProgramming::DRIVE_REMOTE;
use windows_sys::w;

use crate::disk::Disk;
use crate::facts::{Cache, HugePages};
use crate::memory::{Memory, MemoryUsage};
use crate::{Error, Result};

pub(crate) fn memory() -> Result<Memory> {
    let len = size_of::<MEMORYSTATUSEX>() as u32;
    let mut status = MEMORYSTATUSEX { dwLength: len, ..Default::default() };
    // SAFETY: the structure is the one the call documents, with its length filled in.
    if unsafe { GlobalMemoryStatusEx(&raw mut status) } == 0 {
        return Err(Error::Unknown { what: "the size of memory" });
    }
    Ok(Memory {
        total_bytes: status.ullTotalPhys,
        available_bytes: status.ullAvailPhys,
        limit: None,
        limit_headroom_bytes: None,
        // The "page file" of this call is what can be promised: memory and page file together.
        swap_total_bytes: status.ullTotalPageFile.saturating_sub(status.ullTotalPhys),
        swap_free_bytes: status.ullAvailPageFile.saturating_sub(status.ullAvailPhys),
    })
}

pub(crate) fn usage() -> MemoryUsage {
    let len = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    let mut counters = PROCESS_MEMORY_COUNTERS { cb: len, ..Default::default() };
    // SAFETY: the pseudo handle needs no closing, and the structure is the one the call documents.
    if unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, len) } == 0 {
        return MemoryUsage::default();
    }
    MemoryUsage {
        resident_bytes: counters.WorkingSetSize as u64,
        peak_resident_bytes: counters.PeakWorkingSetSize as u64,
        ..MemoryUsage::default()
    }
}

pub(crate) fn swap_traffic_bytes() -> Option<u64> {
    None
}

pub(crate) fn kernel() -> Option<String> {
    let len = size_of::<OSVERSIONINFOW>() as u32;
    let mut version = OSVERSIONINFOW { dwOSVersionInfoSize: len, ..Default::default() };
    // SAFETY: the structure is the one the call documents, with its length filled in.
    if unsafe { RtlGetVersion(&raw mut version) } != 0 {
        return None;
    }
    let OSVERSIONINFOW { dwMajorVersion: major, dwMinorVersion: minor, .. } = version;
    Some(format!("{major}.{minor}.{}", version.dwBuildNumber))
}

pub(crate) fn cpu_model() -> Option<String> {
    let key = w!(r"HARDWARE\DESCRIPTION\System\CentralProcessor\0");
    let mut text = [0u16; 256];
    let mut len_bytes = size_of_val(&text) as u32;
    // SAFETY: both names end in a zero, and the answer may take `len_bytes` of `text`.
    let answer = unsafe {
        let (name, out) = (w!("ProcessorNameString"), text.as_mut_ptr().cast());
        let root = HKEY_LOCAL_MACHINE;
        RegGetValueW(root, key, name, RRF_RT_REG_SZ, null_mut(), out, &raw mut len_bytes)
    };
    (answer == 0).then(|| narrow(&text).trim().to_owned()).filter(|name| !name.is_empty())
}

pub(crate) fn caches() -> Vec<Cache> {
    let mut entries = vec![SYSTEM_LOGICAL_PROCESSOR_INFORMATION::default(); 1024];
    let mut len_bytes = size_of_val(entries.as_slice()) as u32;
    // SAFETY: the answer may take `len_bytes` of `entries`. Any bytes are a value of its integers.
    if unsafe { GetLogicalProcessorInformation(entries.as_mut_ptr(), &raw mut len_bytes) } == 0 {
        return Vec::new();
    }
    entries.truncate(len_bytes as usize / size_of::<SYSTEM_LOGICAL_PROCESSOR_INFORMATION>());
    let of_first_core = |entry: &&SYSTEM_LOGICAL_PROCESSOR_INFORMATION| {
        entry.Relationship == RelationCache && entry.ProcessorMask & 1 == 1
    };
    let mut caches: Vec<Cache> = entries
        .iter()
        .filter(of_first_core)
        // SAFETY: this relationship is the one whose entries describe a cache.
        .map(|entry| unsafe { entry.Anonymous.Cache })
        .filter(|cache| cache.Type != CacheInstruction)
        .map(|cache| Cache { level: cache.Level.into(), size_bytes: cache.Size.into() })
        .collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

pub(crate) fn huge_pages() -> HugePages {
    HugePages::Unknown
}

/// `path` is absolute and without links.
pub(crate) fn disk(path: &Path) -> Disk {
    let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    let mut disk = Disk::default();
    let (mut total_bytes, mut free_bytes) = (0, 0);
    // SAFETY: the path ends in a zero, and the numbers are written before the call returns.
    let answer = unsafe {
        let (free, total) = (&raw mut free_bytes, &raw mut total_bytes);
        GetDiskFreeSpaceExW(path.as_ptr(), free, total, null_mut())
    };
    if answer != 0 {
        (disk.total_bytes, disk.free_bytes) = (Some(total_bytes), Some(free_bytes));
    }
    let mut mount_point = [0u16; 1024];
    // SAFETY: the path ends in a zero, and the answer may take all of `mount_point`.
    let answer = unsafe {
        let out = mount_point.as_mut_ptr();
        GetVolumePathNameW(path.as_ptr(), out, mount_point.len() as u32)
    };
    if answer == 0 {
        return disk;
    }
    disk.mount_point = Some(narrow(&mount_point).into());
    let volume = mount_point.as_ptr();
    let mut filesystem = [0u16; 64];
    // SAFETY: `volume` ends in a zero, and the answer may take all of `filesystem`.
    let answer = unsafe {
        let (out, len) = (filesystem.as_mut_ptr(), filesystem.len() as u32);
        let none = null_mut();
        GetVolumeInformationW(volume, none, 0, null_mut(), null_mut(), null_mut(), out, len)
    };
    // SAFETY: `volume` ends in a zero.
    if unsafe { GetDriveTypeW(volume) } == DRIVE_REMOTE {
        disk.filesystem = Some("network".to_owned());
    } else if answer != 0 {
        disk.filesystem = Some(narrow(&filesystem));
    }
    let (mut clusters, mut sector_bytes, mut free, mut total) = (0, 0, 0, 0);
    // SAFETY: `volume` ends in a zero, and the numbers are written before the call returns.
    let answer = unsafe {
        let (sector, clusters) = (&raw mut sector_bytes, &raw mut clusters);
        GetDiskFreeSpaceW(volume, clusters, sector, &raw mut free, &raw mut total)
    };
    disk.logical_block_bytes = (answer != 0).then_some(sector_bytes.into());
    disk
}

/// Handles are limited by memory alone.
pub(crate) fn open_file_limit() -> Option<u64> {
    None
}

pub(crate) fn set_open_file_limit(_count: u64) {}

pub(crate) fn most_open_files() -> Option<u64> {
    None
}

pub(crate) fn host_name() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

pub(crate) fn wake_promptly() {}

/// The allocator returns freed memory by itself.
pub(crate) fn release_freed() {}

/// The allocator returns large blocks by itself.
pub(crate) fn return_large_blocks(_bytes: i32) {}

pub(crate) fn forget_cached(_file: &File) -> std::io::Result<()> {
    Ok(())
}

/// The text before the first zero.
fn narrow(text: &[u16]) -> String {
    let len = text.iter().position(|&unit| unit == 0).unwrap_or(text.len());
    String::from_utf16_lossy(&text[..len])
}
