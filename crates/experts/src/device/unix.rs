//! Files on Linux, macOS and other Unixes.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Device and inode number.
pub(super) fn number(_file: &File, metadata: &Metadata) -> io::Result<(u64, u64)> {
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(target_os = "linux")]
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

#[cfg(target_vendor = "apple")]
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub(super) fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens for reads through the cache. Linux receives the advice that they are scattered: read-ahead would bring
/// pages that were not requested and that [`forget`] would not know of.
pub(super) fn open_buffered(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    Ok(file)
}

pub(super) fn read_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    file.read_at(out, offset)
}

#[cfg(target_os = "linux")]
pub(super) fn forget(file: &File, offset: u64, len: usize) {
    if let Some(len) = std::num::NonZeroU64::new(len as u64) {
        // Advice: where it is refused, the pages stay somewhat longer.
        let _ = rustix::fs::fadvise(file, offset, Some(len), rustix::fs::Advice::DontNeed);
    }
}

#[cfg(target_os = "linux")]
pub(super) fn forget_file(file: &File) {
    // Advice, as above.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Requests a byte without waiting for it. Where that is not possible at all, [`forget_file`] is believed.
#[cfg(target_os = "linux")]
pub(super) fn may_be_cached(file: &File, offset: u64) -> bool {
    use rustix::io::{ReadWriteFlags, preadv2};
    let mut byte = [0];
    let mut target = [io::IoSliceMut::new(&mut byte)];
    matches!(preadv2(file, &mut target, offset, ReadWriteFlags::NOWAIT), Ok(1))
}

/// There is no such call.
#[cfg(not(target_os = "linux"))]
pub(super) fn forget(_file: &File, _offset: u64, _len: usize) {}

/// Nor this one.
#[cfg(not(target_os = "linux"))]
pub(super) fn forget_file(_file: &File) {}

/// Nothing was dropped.
#[cfg(not(target_os = "linux"))]
pub(super) fn may_be_cached(_file: &File, _offset: u64) -> bool {
    true
}
