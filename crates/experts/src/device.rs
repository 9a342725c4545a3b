//! Files that can be read at any position, whatever holds them.
//!
//! A device knows nothing of experts, slots or queues. One call is one attempt: it may bring fewer
//! bytes than requested, and it may fail; the reader above decides what that means.

mod faulty;
mod files;
mod identity;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fmt::Debug;
use std::io;
use std::path::Path;

use checkpoint::FileIndex;

pub use faulty::{Fault, Faulty, Rule};
pub use files::{Access, Files};

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

use crate::Result;

/// Reads begin, end and land at multiples of this. Every disk of today accepts it for direct reads.
pub const ALIGNMENT: usize = 4096;

/// A call to io_uring that may fail.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingCall {
    /// A ring is made.
    Setup,
    /// Reads are handed to the kernel.
    Submit,
    /// Reads are waited for.
    Wait,
    /// A read that is done is collected; where this fails, the kernel had no place to say that it is done.
    Complete,
}

/// The weight files of one checkpoint.
pub trait Device: Debug + Send + Sync {
    /// Brings up to `out.len()` bytes from `offset` on: how many came. Zero only at the end of the file.
    fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// The file's path, for messages.
    fn path(&self, file: FileIndex) -> &Path;

    /// Whether a file is still what it was when it was opened.
    fn check_unchanged(&self, file: FileIndex) -> Result<()>;

    /// The descriptor to read a file by, for queues of the system's own; `None` where only
    /// [`Device::read`] will do.
    #[cfg(target_os = "linux")]
    fn descriptor(&self, _file: FileIndex) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Makes a call to io_uring fail with this error instead of being made: for tests, which cannot make the
    /// kernel fail.
    #[cfg(target_os = "linux")]
    fn ring_fault(&self, _call: RingCall) -> Option<io::Error> {
        None
    }

    /// Lets the system drop what it keeps in memory of a range of the file. Advice: it may do nothing.
    fn forget(&self, _file: FileIndex, _offset: u64, _len: usize) {}

    /// The same for all of a file. What the system keeps in large pieces it drops in whole ones only, so
    /// advice about ranges may leave much where this leaves nothing.
    fn forget_file(&self, _file: FileIndex) {}

    /// Whether a buffered read of the byte at `offset` might be answered from memory. For systems that cannot
    /// report it: true.
    fn may_be_cached(&self, _file: FileIndex, _offset: u64) -> bool {
        true
    }

    /// Whether the bytes are in memory already, or are made there, so that there is no disk to be measured.
    fn is_memory(&self) -> bool {
        false
    }
}
