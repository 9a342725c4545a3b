//! Anonymous memory straight from the system: zeroed, page-aligned, untouched until written.
//!
//! Blocks of 2 MiB and more start on a 2 MiB boundary and request transparent huge pages, which is what lets
//! a core stream weights without spending its time on address translation. Smaller blocks lie side by side in a
//! shelf of such pages. The request is advice: where the system has no huge pages the memory works the same, only
//! slower.
//! Invariant: a [`Pages`] owns its bytes alone, and gives its mapping back when dropped, or its shelf when all blocks
//! of that are dropped.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Error, Result};

/// The size of a transparent huge page on x86-64 and on 64-bit Arm with 4 KiB pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory that small blocks share: those of a small model fill several, and one that is nearly empty is no loss.
const SHELF_BYTES: usize = 4 * HUGE_PAGE_BYTES;

/// The shelf that the next small block comes from, and how much of it is taken. Nothing is taken twice, so that every
/// block begins as zeros.
static OPEN_SHELF: Mutex<(Weak<Pages>, usize)> = Mutex::new((Weak::new(), 0));

/// A block of anonymous memory.
pub struct Pages {
    start: NonNull<u8>,
    len_bytes: usize,
    /// The shelf that owns the mapping, if it is not its own.
    shelf: Option<Arc<Pages>>,
}

// SAFETY: the mapping belongs to this value alone and any thread may read, write or unmap it.
unsafe impl Send for Pages {}
// SAFETY: a shared `Pages` only hands out shared slices; there is no interior mutability.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `len_bytes` of zeroed memory. Nothing is resident until it is written.
    pub fn new(len_bytes: usize) -> Result<Pages> {
        if len_bytes == 0 {
            return Ok(Pages { start: NonNull::dangling(), len_bytes, shelf: None });
        }
        // A slice must not exceed isize::MAX bytes, whatever the system would map.
        if len_bytes > isize::MAX as usize - 2 * HUGE_PAGE_BYTES {
            let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            return Err(Error::Map { len_bytes, source });
        }
        if len_bytes < HUGE_PAGE_BYTES {
            return Pages::on_shelf(len_bytes);
        }
        let start = map::map(len_bytes).map_err(|source| Error::Map { len_bytes, source })?;
        Ok(Pages { start, len_bytes, shelf: None })
    }

    /// A block alongside others that are smaller than a huge page.
    fn on_shelf(len_bytes: usize) -> Result<Pages> {
        let mut open = OPEN_SHELF.lock().unwrap_or_else(PoisonError::into_inner);
        let (shelf, taken) = match open.0.upgrade() {
            Some(shelf) if open.1 + len_bytes <= SHELF_BYTES => (shelf, open.1),
            _ => (Arc::new(Pages::new(SHELF_BYTES)?), 0),
        };
        *open = (Arc::downgrade(&shelf), (taken + len_bytes).next_multiple_of(map::page_bytes()));
        // SAFETY: the block ends inside the shelf, and no other has bytes of it.
        let start = unsafe { shelf.start.add(taken) };
        Ok(Pages { start, len_bytes, shelf: Some(shelf) })
    }

    /// Makes every page resident now, so that the first use of each does not pay for a page fault.
    /// The contents do not change.
    pub fn prefault(&mut self) {
        if self.len_bytes == 0 || map::populate(self.start, self.len_bytes) {
            return;
        }
        // A page is at least 4 KiB everywhere, so this stride touches each one.
        for offset in (0..self.len_bytes).step_by(4096) {
            // SAFETY: `offset` is inside the mapping and `&mut self` makes this the only access to it.
            unsafe {
                let byte = self.start.as_ptr().add(offset);
                byte.write_volatile(byte.read_volatile());
            }
        }
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first byte, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `len_bytes` long, initialised (the system zeroes it), and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the slice unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.len_bytes > 0 && self.shelf.is_none() {
            // SAFETY: `start` came from `map::map(len_bytes)` and nothing borrows from `self` any more.
            unsafe { map::unmap(self.start, self.len_bytes) }
        }
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("len_bytes", &self.len_bytes).finish_non_exhaustive()
    }
}

#[cfg(unix)]
mod map {
    use std::ffi::c_void;
    use std::io;
    use std::ptr::NonNull;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::HUGE_PAGE_BYTES;

    pub(super) fn page_bytes() -> usize {
        rustix::param::page_size()
    }

    pub(super) fn map(len_bytes: usize) -> io::Result<NonNull<u8>> {
        // The system aligns to small pages only: map one huge page too many and give both ends back.
        let kept_bytes = len_bytes.next_multiple_of(page_bytes());
        let mapped_bytes = kept_bytes + HUGE_PAGE_BYTES;
        let mapped = map_anywhere(mapped_bytes)?;
        let head_bytes =
            mapped.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr().get();
        let tail_bytes = mapped_bytes - head_bytes - kept_bytes;
        // SAFETY: head, kept part and tail divide the fresh mapping at page boundaries; no other code has seen it yet.
        let start = unsafe {
            let start = mapped.add(head_bytes);
            if head_bytes > 0 {
                unmap(mapped, head_bytes);
            }
            if tail_bytes > 0 {
                unmap(start.add(kept_bytes), tail_bytes);
            }
            start
        };
        advise_huge(start, kept_bytes);
        Ok(start)
    }

    fn map_anywhere(len_bytes: usize) -> io::Result<NonNull<u8>> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a null hint lets the system choose the address, so no existing mapping is replaced.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, flags)? };
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// The range must be a mapping of this module, to its last page, that is not used any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, len_bytes: usize) {
        // SAFETY: the caller's promise. A failure would mean a wrong range, which is our bug, not the world's.
        let result = unsafe { munmap(start.as_ptr().cast::<c_void>(), len_bytes) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }

    #[cfg(target_os = "linux")]
    fn advise_huge(start: NonNull<u8>, len_bytes: usize) {
        use rustix::mm::{Advice, madvise};
        // SAFETY: the range is our own mapping, and this advice never changes its contents.
        // An error means that this system has no huge pages; small ones serve as well.
        let _ = unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_huge(_start: NonNull<u8>, _len_bytes: usize) {}

    /// Requests that the system make the range resident; false if it cannot (Linux before 5.14, other systems).
    #[cfg(target_os = "linux")]
    pub(super) fn populate(start: NonNull<u8>, len_bytes: usize) -> bool {
        use rustix::mm::{Advice, madvise};
        // SAFETY: the range is our own mapping, and populating never changes its contents.
        unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxPopulateWrite).is_ok() }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn populate(_start: NonNull<u8>, _len_bytes: usize) -> bool {
        false
    }
}

/// Systems without `mmap`: the allocator's zeroed memory, aligned the same way.
#[cfg(not(unix))]
mod map {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    use super::HUGE_PAGE_BYTES;

    pub(super) fn page_bytes() -> usize {
        4096
    }

    fn layout(len_bytes: usize) -> io::Result<Layout> {
        Layout::from_size_align(len_bytes, HUGE_PAGE_BYTES)
            .map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn map(len_bytes: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: the layout is not empty, since `Pages::new` handles zero itself.
        let start = unsafe { alloc_zeroed(layout(len_bytes)?) };
        NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// `start` must come from `map(len_bytes)` and it may not be used any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, len_bytes: usize) {
        if let Ok(layout) = layout(len_bytes) {
            // SAFETY: the same layout that `map` allocated with.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }

    pub(super) fn populate(_start: NonNull<u8>, _len_bytes: usize) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(len_bytes: usize) {
        let mut pages = Pages::new(len_bytes).unwrap();
        assert_eq!(pages.len(), len_bytes);
        let align = if len_bytes < HUGE_PAGE_BYTES { 4096 } else { HUGE_PAGE_BYTES };
        if len_bytes > 0 {
            assert_eq!(pages.as_ptr().addr() % align, 0);
            assert!(pages.iter().step_by(511).all(|&byte| byte == 0));
            pages[0] = 7;
            pages[len_bytes - 1] = 9;
        }
        pages.prefault();
        if len_bytes > 1 {
            assert_eq!((pages[0], pages[len_bytes - 1]), (7, 9));
        }
    }

    #[test]
    fn blocks_are_zeroed_aligned_and_keep_their_contents() {
        let sizes = [0, 1, 4095, 4096, 4097, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES];
        for len_bytes in sizes.into_iter().chain([HUGE_PAGE_BYTES + 1, 5 << 20, (5 << 20) + 13]) {
            check(len_bytes);
        }
    }

    #[test]
    fn small_blocks_lie_apart_and_outlive_their_neighbours() {
        // More than a shelf has room for, of sizes that are no multiples of anything.
        let sizes = (0..40).map(|i| 1000 + i * 10_007);
        let mut blocks: Vec<Pages> = sizes.map(|bytes| Pages::new(bytes).unwrap()).collect();
        for (block, byte) in blocks.iter_mut().zip(1..) {
            assert!(block.iter().all(|&byte| byte == 0));
            block.fill(byte);
        }
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % 3 == 0
        });
        for (block, byte) in blocks.iter().zip((3..).step_by(3)) {
            assert!(block.iter().all(|&b| b == byte));
        }
        drop(blocks);
        assert!(Pages::new(5000).unwrap().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn memory_is_not_resident_until_it_is_written() {
        // More than this machine is likely to have; only possible because nothing is touched.
        let Ok(mut pages) = Pages::new(1 << 40) else { return };
        pages[1 << 39] = 1;
        assert_eq!(pages[1 << 39], 1);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        for len_bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
            let error = Pages::new(len_bytes).unwrap_err();
            assert!(matches!(error, Error::Map { len_bytes: asked, .. } if asked == len_bytes));
        }
    }

    #[test]
    fn threads_share_and_move_blocks() {
        let mut pages = Pages::new(1 << 16).unwrap();
        std::thread::scope(|scope| {
            for (part, byte) in pages.chunks_mut(1 << 14).zip(1..) {
                scope.spawn(move || part.fill(byte));
            }
        });
        let sum =
            std::thread::spawn(move || pages.iter().map(|&byte| u64::from(byte)).sum::<u64>());
        assert_eq!(sum.join().unwrap(), (1 + 2 + 3 + 4) << 14);
    }
}
