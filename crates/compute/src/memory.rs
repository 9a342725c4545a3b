//! The memory that sequences keep between steps, and its layout: KV pages and recurrent slots.
//!
//! Both arenas have a capacity fixed at construction; `PageMemory` and `SlotMemory` are what the CPU keeps in them.
//! Which page or slot belongs to which sequence, and how many share it, is decided elsewhere (crate `state`): here is
//! only where the bytes are. Invariant: a page holds [`BLOCK`] consecutive positions, starting at a
//! multiple of [`BLOCK`], of all planes of one layer.
//!
//! The compute threads of one step write disjoint pages and slots of the same arena at once; the
//! `unsafe` functions that allow this say what may not be read meanwhile.

mod arena;
mod pages;

use std::marker::PhantomData;
use std::ops::Range;

use machine::Result;
use machine::pages::Pages;

pub use arena::{KvArena, RecurrentArena};
pub use pages::{
    ArenaShape, BLOCK, KvCode, KvFormat, MOST_CHUNK_PAGES, PageId, PageShape, Plane, PlaneOrder,
};
pub(crate) use pages::{PANEL, PageMemory, PlaneBlock, ShapedPages, panel_width};

/// Slots of a [`RecurrentArena`] start on a cache line.
const SLOT_ALIGN_FLOATS: usize = 16;

/// A slot of a [`RecurrentArena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Slots of f32 in host memory, for what a recurrent layer remembers.
pub(crate) struct SlotMemory {
    slot_floats: usize,
    slot_count: usize,
    base: *mut f32,
    memory: Pages,
}

// SAFETY: as for `PageMemory`.
unsafe impl Send for SlotMemory {}
// SAFETY: as for `PageMemory`.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    /// Maps `slot_count` zeroed slots; nothing is resident until it is written.
    pub(crate) fn new(slot_floats: usize, slot_count: usize) -> Result<SlotMemory> {
        let slot_bytes = slot_bytes(slot_floats);
        let mut memory = Pages::new(slot_bytes.saturating_mul(slot_count))?;
        let base = memory.as_mut_ptr().cast();
        Ok(SlotMemory { slot_floats, slot_count, base, memory })
    }

    /// Makes the whole arena resident now.
    pub(crate) fn prefault(&mut self) {
        self.memory.prefault();
    }

    /// A slot, for reading.
    pub(crate) fn slot(&self, slot: SlotId) -> &[f32] {
        // SAFETY: a slot is `slot_floats` initialised floats (zeros at first); a caller that writes through
        // `slot_ptr` promises that no other holds this.
        unsafe { std::slice::from_raw_parts(self.slot_ptr(slot), self.slot_floats) }
    }

    /// A slot, for writing.
    pub(crate) fn slot_mut(&mut self, slot: SlotId) -> &mut [f32] {
        // SAFETY: as in `slot`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.slot_ptr(slot), self.slot_floats) }
    }

    /// Copies a slot.
    pub(crate) fn copy(&mut self, from: SlotId, to: SlotId) {
        let (from, to) = (self.slot_ptr(from), self.slot_ptr(to));
        // SAFETY: both are slots of this arena (or the same one); `&mut self` excludes every other access.
        unsafe { std::ptr::copy(from, to, self.slot_floats) }
    }

    /// The first float of a slot, for the compute threads of one step. Valid for `slot_floats` floats as long as
    /// the arena lives; a caller that writes through it makes sure that no other thread reads or writes the same floats
    /// meanwhile, and that no slice of this slot is held.
    pub(crate) fn slot_ptr(&self, slot: SlotId) -> *mut f32 {
        assert!((slot.0 as usize) < self.slot_count);
        // SAFETY: the slot is in range, so the offset is inside the mapping.
        unsafe {
            self.base.add(slot.0 as usize * (slot_bytes(self.slot_floats) / size_of::<f32>()))
        }
    }
}

impl std::fmt::Debug for SlotMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotMemory")
            .field("slot_floats", &self.slot_floats)
            .field("slot_count", &self.slot_count)
            .finish_non_exhaustive()
    }
}

/// Bytes of one slot of a [`RecurrentArena`], before there is one.
pub fn slot_bytes(slot_floats: usize) -> usize {
    let lines = slot_floats.div_ceil(SLOT_ALIGN_FLOATS);
    lines.saturating_mul(SLOT_ALIGN_FLOATS * size_of::<f32>())
}

/// Rows of equal width inside a larger matrix, for reading: row `i` starts at `i * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    data: &'a [f32],
    stride: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    /// `data` starts at the first row's first element.
    pub(crate) fn new(data: &'a [f32], stride: usize, width: usize) -> Rows<'a> {
        assert!(width <= stride);
        Rows { data, stride, width }
    }

    /// Elements of a row.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.stride..][..self.width]
    }

    /// The same rows, some columns of them.
    pub(crate) fn columns(&self, columns: Range<usize>) -> Rows<'a> {
        assert!(columns.start <= columns.end && columns.end <= self.width);
        let data = self.data.get(columns.start..).unwrap_or(&[]);
        Rows { data, stride: self.stride, width: columns.len() }
    }
}

/// Rows of equal width inside a larger matrix, for writing: tasks that own different columns or rows of one matrix
/// each hold their own.
#[derive(Debug)]
pub(crate) struct RowsMut<'a> {
    start: *mut f32,
    count: usize,
    stride: usize,
    width: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for mutable slices of f32, which may move between threads.
unsafe impl Send for RowsMut<'_> {}

impl<'a> RowsMut<'a> {
    /// `data` starts at the first row's first element; the last row may be cut after `width`.
    #[cfg(test)]
    pub(crate) fn new(data: &'a mut [f32], stride: usize, width: usize) -> RowsMut<'a> {
        assert!(width <= stride);
        let len = data.len();
        let count = if width == 0 { 0 } else { (len + stride - width) / stride };
        RowsMut { start: data.as_mut_ptr(), count, stride, width, owner: PhantomData }
    }

    /// Rows behind a pointer.
    ///
    /// # Safety
    /// For the lifetime `'a`, each of the `count` rows is `width` initialised floats that no other thread accesses.
    pub(crate) unsafe fn from_raw(
        start: *mut f32,
        count: usize,
        stride: usize,
        width: usize,
    ) -> RowsMut<'a> {
        assert!(width <= stride);
        RowsMut { start, count, stride, width, owner: PhantomData }
    }

    /// How many rows there are.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Elements of a row.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&mut self, index: usize) -> &mut [f32] {
        assert!(index < self.count);
        // SAFETY: the row is in range, and the constructor's contract makes it ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index * self.stride), self.width) }
    }

    /// Copies one row over another.
    pub(crate) fn copy_row(&mut self, from: usize, to: usize) {
        assert!(from < self.count && to < self.count);
        // SAFETY: both rows are in range and ours alone; they are the same or do not overlap.
        unsafe {
            let (from, to) = (self.start.add(from * self.stride), self.start.add(to * self.stride));
            std::ptr::copy(from, to, self.width);
        }
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
