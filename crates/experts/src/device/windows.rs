//! Files on Windows.
//!
//! They are opened for overlapped reads: by an ordinary handle the system carries out one read at a
//! time, however many threads read, and a disk that gets one request at a time is a slow one.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{ERROR_HANDLE_EOF, ERROR_IO_PENDING};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_NO_BUFFERING, FILE_FLAG_OVERLAPPED,
    GetFileInformationByHandle, ReadFile,
};
use windows_sys::Win32::System::IO::{GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Threading::CreateEventW;

/// Volume and file number.
pub(super) fn number(file: &File, _metadata: &Metadata) -> io::Result<(u64, u64)> {
    let mut about = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open and the structure is the one the call fills.
    if unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut about) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let index = u64::from(about.nFileIndexHigh) << 32 | u64::from(about.nFileIndexLow);
    Ok((about.dwVolumeSerialNumber.into(), index))
}

pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    open(path, FILE_FLAG_OVERLAPPED | FILE_FLAG_NO_BUFFERING)
}

pub(super) fn open_buffered(path: &Path) -> io::Result<File> {
    open(path, FILE_FLAG_OVERLAPPED)
}

fn open(path: &Path, flags: u32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

pub(super) fn read_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    // SAFETY: without name and attributes there is nothing to point to.
    let event = unsafe { CreateEventW(null(), 1, 0, null()) };
    if event.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is fresh and has no other owner.
    let event = unsafe { OwnedHandle::from_raw_handle(event) };
    let mut request = OVERLAPPED { hEvent: event.as_raw_handle(), ..OVERLAPPED::default() };
    request.Anonymous.Anonymous.Offset = offset as u32;
    request.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
    let len = u32::try_from(out.len()).unwrap_or(1 << 30);
    let (handle, mut count) = (file.as_raw_handle(), 0);
    // SAFETY: `out` has at least `len` bytes. Either the read does not begin, or the second call waits
    // for its end: `out`, `request` and `event` are the system's no longer when this is over.
    let is_done = unsafe {
        let target = out.as_mut_ptr();
        let has_begun = ReadFile(handle, target, len, null_mut(), &raw mut request) != 0
            || is_last_error(ERROR_IO_PENDING);
        has_begun && GetOverlappedResult(handle, &raw const request, &raw mut count, 1) != 0
    };
    match is_done || is_last_error(ERROR_HANDLE_EOF) {
        true => Ok(count as usize),
        false => Err(io::Error::last_os_error()),
    }
}

fn is_last_error(code: u32) -> bool {
    io::Error::last_os_error().raw_os_error() == Some(code.cast_signed())
}

/// There is no such call.
pub(super) fn forget(_file: &File, _offset: u64, _len: usize) {}

/// Nor this one.
pub(super) fn forget_file(_file: &File) {}

/// Nothing was dropped.
pub(super) fn may_be_cached(_file: &File, _offset: u64) -> bool {
    true
}
