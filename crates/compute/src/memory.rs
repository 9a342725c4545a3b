//! The memory that sequences keep between steps, and its layout: KV pages and recurrent slots.
//!
//! Both arenas have a capacity fixed at construction and live in huge-page memory. Which page or slot
//! belongs to whom, and how many sequences share it, is decided elsewhere (crate `state`): here is
//! only where the bytes are. Invariant: a page holds [`BLOCK`] consecutive positions, starting at a
//! multiple of [`BLOCK`], of every kv head of one layer.
//!
//! The compute threads of one step write disjoint pages and slots of the same arena at once; the
//! `unsafe` functions that allow this say who may not be looking meanwhile.

use std::marker::PhantomData;
use std::ops::Range;

use half::f16;
use machine::Result;
use machine::cpu::Isa;
use machine::pages::Pages;

use crate::cpu::{half_float, prefetch};

/// Positions in a KV page: the one granularity of pages, attention blocks and prefix-cache keys.
pub const BLOCK: usize = 64;

/// Columns of V that lie together in a page; the last panel of a head may be narrower.
pub(crate) const PANEL: usize = 64;

/// Slots of a [`RecurrentArena`] start on a cache line.
const SLOT_ALIGN_FLOATS: usize = 16;

/// The largest finite f16: what is written to an f16 page saturates here.
const F16_MAX: f32 = 65504.0;

/// A page of a [`KvArena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// A slot of a [`RecurrentArena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// Two bytes a value, saturating at ±65504.
    F16,
    /// Four bytes a value.
    F32,
}

impl KvFormat {
    fn value_bytes(self) -> usize {
        match self {
            KvFormat::F16 => 2,
            KvFormat::F32 => 4,
        }
    }
}

/// Pages of keys and values of one layer shape.
///
/// A page is, for each kv head, K transposed `[head_dim][BLOCK]`, so that scores are computed for
/// sixteen keys at once, then V in panels `[head_dim / PANEL][BLOCK][PANEL]`, so that outputs are
/// computed for a panel of columns at once and both are read from front to back. The last V panel
/// is as wide as needed, rounded up to sixteen columns.
pub struct KvArena {
    format: KvFormat,
    kv_heads: usize,
    head_dim: usize,
    page_count: usize,
    isa: Isa,
    base: *mut u8,
    memory: Pages,
}

// SAFETY: `base` points into `memory`, which the arena owns; sharing it is governed by the contracts of the
// unsafe functions, and the safe ones follow Rust's borrowing.
unsafe impl Send for KvArena {}
// SAFETY: as above.
unsafe impl Sync for KvArena {}

/// Keys and values of one kv head in one page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KvBlock<'a> {
    /// Bits of f16.
    F16 {
        /// `[head_dim][BLOCK]`.
        k: &'a [u16],
        /// `[panel][BLOCK][panel width]`.
        v: &'a [u16],
    },
    /// Plain f32, in the same layout.
    F32 {
        /// `[head_dim][BLOCK]`.
        k: &'a [f32],
        /// `[panel][BLOCK][panel width]`.
        v: &'a [f32],
    },
}

impl<'a> KvBlock<'a> {
    /// The bytes of K.
    #[inline(always)]
    pub(crate) fn k_bytes(&self) -> &'a [u8] {
        match *self {
            KvBlock::F16 { k, .. } => bytemuck::cast_slice(k),
            KvBlock::F32 { k, .. } => bytemuck::cast_slice(k),
        }
    }

    /// The bytes of V, which follow those of K.
    #[inline(always)]
    pub(crate) fn v_bytes(&self) -> &'a [u8] {
        match *self {
            KvBlock::F16 { v, .. } => bytemuck::cast_slice(v),
            KvBlock::F32 { v, .. } => bytemuck::cast_slice(v),
        }
    }

    /// Bytes of [`BLOCK`] values.
    #[inline(always)]
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            KvBlock::F16 { .. } => BLOCK * size_of::<u16>(),
            KvBlock::F32 { .. } => BLOCK * size_of::<f32>(),
        }
    }
}

/// Width in memory of the V panel that starts at `column`.
#[inline(always)]
pub(crate) fn panel_width(head_dim: usize, column: usize) -> usize {
    (head_dim - column).min(PANEL).next_multiple_of(16)
}

/// Values of one kv head's V in a page.
fn v_values(head_dim: usize) -> usize {
    // Divides first: a bad config may ask for any size, and only the mapping refuses it.
    head_dim.div_ceil(16).saturating_mul(16 * BLOCK)
}

impl KvArena {
    /// Maps an arena of `page_count` pages; nothing is resident until it is written.
    pub fn new(
        format: KvFormat,
        kv_heads: usize,
        head_dim: usize,
        page_count: usize,
    ) -> Result<KvArena> {
        let page_bytes = page_bytes(format, kv_heads, head_dim);
        let mut memory = Pages::new(page_bytes.saturating_mul(page_count))?;
        let base = memory.as_mut_ptr();
        let isa = machine::cpu::isa();
        Ok(KvArena { format, kv_heads, head_dim, page_count, isa, base, memory })
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        page_bytes(self.format, self.kv_heads, self.head_dim)
    }

    /// How many pages there are.
    pub fn page_count(&self) -> usize {
        self.page_count
    }

    /// How values are stored.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// Heads in a page.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Dimensions of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Makes the whole arena resident now.
    pub fn prefault(&mut self) {
        self.memory.prefault();
    }

    /// Stores one position: `k` and `v` are `[kv_heads * head_dim]`.
    pub fn write(&mut self, page: PageId, slot: usize, k: &[f32], v: &[f32]) {
        // SAFETY: `&mut self` excludes every other access.
        unsafe { self.write_shared(page, slot, k, v) }
    }

    /// [`KvArena::write`] from one of several threads.
    ///
    /// # Safety
    /// Until this returns no other thread writes this slot of the page or holds a block of the page.
    pub unsafe fn write_shared(&self, page: PageId, slot: usize, k: &[f32], v: &[f32]) {
        assert!(slot < BLOCK && k.len() == self.kv_heads * self.head_dim && v.len() == k.len());
        let heads = k.chunks_exact(self.head_dim).zip(v.chunks_exact(self.head_dim));
        for (kv_head, (k, v)) in heads.enumerate() {
            let start = self.head_ptr(page, kv_head);
            // SAFETY: the head's K and V lie inside the page, `slot` is below BLOCK, values are aligned because
            // every offset is a multiple of the value size, and the caller excludes other accesses to the slot.
            unsafe {
                match self.format {
                    KvFormat::F16 => self.write_head_f16(start.cast(), slot, k, v),
                    KvFormat::F32 => write_head(start.cast(), slot, self.head_dim, k, v),
                }
            }
        }
    }

    /// # Safety
    /// As [`write_head`].
    unsafe fn write_head_f16(&self, start: *mut u16, slot: usize, k: &[f32], v: &[f32]) {
        const CHUNK: usize = 64;
        let mut clamped = [0.0; CHUNK];
        let mut k_bits = [0u16; CHUNK];
        let mut v_bits = [0u16; CHUNK];
        for column in (0..k.len()).step_by(CHUNK) {
            let columns = column..(column + CHUNK).min(k.len());
            let count = columns.len();
            for (bits, values) in [(&mut k_bits, &k[columns.clone()]), (&mut v_bits, &v[columns])] {
                for (y, x) in clamped.iter_mut().zip(values) {
                    *y = x.clamp(-F16_MAX, F16_MAX);
                }
                half_float::f32_to_f16(self.isa, &clamped[..count], &mut bits[..count]);
            }
            // SAFETY: the caller's promise.
            unsafe {
                write_columns(
                    start,
                    slot,
                    self.head_dim,
                    column,
                    &k_bits[..count],
                    &v_bits[..count],
                );
            }
        }
    }

    /// Asks for the memory of one position, before it is written.
    pub(crate) fn prefetch(&self, page: PageId, slot: usize) {
        let value_bytes = self.format.value_bytes();
        for kv_head in 0..self.kv_heads {
            let start = self.head_ptr(page, kv_head);
            let at = |value: usize| start.wrapping_add(value * value_bytes);
            (0..self.head_dim).for_each(|d| prefetch::line(at(d * BLOCK + slot)));
            for column in (0..self.head_dim).step_by(PANEL) {
                let width = panel_width(self.head_dim, column);
                let row = (self.head_dim + column) * BLOCK + slot * width;
                prefetch::lines(at(row), width * value_bytes);
            }
        }
    }

    /// Copies a page.
    pub fn copy_page(&mut self, from: PageId, to: PageId) {
        let (from, to) = (self.head_ptr(from, 0), self.head_ptr(to, 0));
        // SAFETY: both are whole pages of this arena (or the same one); `&mut self` excludes every other access.
        unsafe { std::ptr::copy(from, to, self.page_bytes()) }
    }

    /// Key and value of one position and kv head, as f32: for checks. A step reads whole blocks.
    pub fn read(&self, page: PageId, slot: usize, kv_head: usize) -> (Vec<f32>, Vec<f32>) {
        assert!(slot < BLOCK);
        let k_at = |d: usize| d * BLOCK + slot;
        let v_at = |d: usize| {
            let panel = d / PANEL * PANEL;
            panel * BLOCK + slot * panel_width(self.head_dim, panel) + d - panel
        };
        let columns = 0..self.head_dim;
        match self.block(page, kv_head) {
            KvBlock::F16 { k, v } => {
                let value = |bits: u16| f16::from_bits(bits).to_f32();
                let k = columns.clone().map(|d| value(k[k_at(d)])).collect();
                (k, columns.map(|d| value(v[v_at(d)])).collect())
            }
            KvBlock::F32 { k, v } => {
                let k = columns.clone().map(|d| k[k_at(d)]).collect();
                (k, columns.map(|d| v[v_at(d)]).collect())
            }
        }
    }

    /// Keys and values of one kv head. Slots that were never written hold zeros or another sequence's values.
    pub(crate) fn block(&self, page: PageId, kv_head: usize) -> KvBlock<'_> {
        let start = self.head_ptr(page, kv_head);
        let (k_values, v_values) = (self.head_dim * BLOCK, v_values(self.head_dim));
        // SAFETY: both slices lie inside the head's part of the page, aligned, and initialised since the memory
        // began as zeros; a caller that writes through `&self` promises that no block of the page is held.
        unsafe {
            match self.format {
                KvFormat::F16 => {
                    let start = start.cast::<u16>();
                    KvBlock::F16 {
                        k: std::slice::from_raw_parts(start, k_values),
                        v: std::slice::from_raw_parts(start.add(k_values), v_values),
                    }
                }
                KvFormat::F32 => {
                    let start = start.cast::<f32>();
                    KvBlock::F32 {
                        k: std::slice::from_raw_parts(start, k_values),
                        v: std::slice::from_raw_parts(start.add(k_values), v_values),
                    }
                }
            }
        }
    }

    fn head_ptr(&self, page: PageId, kv_head: usize) -> *mut u8 {
        let page_index = page.0 as usize;
        assert!(page_index < self.page_count && kv_head < self.kv_heads);
        let head_bytes = head_bytes(self.format, self.head_dim);
        // SAFETY: page and head are in range, so the offset is inside the mapping.
        unsafe { self.base.add((page_index * self.kv_heads + kv_head) * head_bytes) }
    }
}

impl std::fmt::Debug for KvArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvArena")
            .field("format", &self.format)
            .field("kv_heads", &self.kv_heads)
            .field("head_dim", &self.head_dim)
            .field("page_count", &self.page_count)
            .finish_non_exhaustive()
    }
}

fn head_bytes(format: KvFormat, head_dim: usize) -> usize {
    let values = head_dim.saturating_mul(BLOCK).saturating_add(v_values(head_dim));
    values.saturating_mul(format.value_bytes())
}

/// Bytes of one page of a [`KvArena`] of this shape, before there is one.
pub fn page_bytes(format: KvFormat, kv_heads: usize, head_dim: usize) -> usize {
    head_bytes(format, head_dim).saturating_mul(kv_heads)
}

/// Stores one position of one head, a panel at a time.
///
/// # Safety
/// `start` is the head's part of a page of `head_dim`-wide heads, `slot` is below [`BLOCK`], and no other thread
/// accesses the slot.
unsafe fn write_head<T: Copy>(start: *mut T, slot: usize, head_dim: usize, k: &[T], v: &[T]) {
    for column in (0..head_dim).step_by(PANEL) {
        let columns = column..(column + PANEL).min(head_dim);
        // SAFETY: the caller's promise.
        unsafe {
            write_columns(start, slot, head_dim, column, &k[columns.clone()], &v[columns]);
        }
    }
}

/// Stores some columns of one position: at most a panel, starting at a multiple of [`PANEL`].
///
/// # Safety
/// As [`write_head`].
#[inline]
unsafe fn write_columns<T: Copy>(
    start: *mut T,
    slot: usize,
    head_dim: usize,
    column: usize,
    k: &[T],
    v: &[T],
) {
    // SAFETY: `column + i` is below head_dim and `slot` below BLOCK, so K stays inside its [head_dim][BLOCK];
    // the V panel that starts at `column` begins at BLOCK * column and each of its rows is at least v.len() long.
    unsafe {
        for (i, &value) in k.iter().enumerate() {
            *start.add((column + i) * BLOCK + slot) = value;
        }
        let panel = start.add(head_dim * BLOCK + column * BLOCK);
        let row = panel.add(slot * panel_width(head_dim, column));
        std::ptr::copy_nonoverlapping(v.as_ptr(), row, v.len());
    }
}

/// Slots of f32 for what a recurrent layer remembers.
pub struct RecurrentArena {
    slot_floats: usize,
    slot_count: usize,
    base: *mut f32,
    memory: Pages,
}

// SAFETY: as for `KvArena`.
unsafe impl Send for RecurrentArena {}
// SAFETY: as for `KvArena`.
unsafe impl Sync for RecurrentArena {}

impl RecurrentArena {
    /// Maps `slot_count` zeroed slots; nothing is resident until it is written.
    pub fn new(slot_floats: usize, slot_count: usize) -> Result<RecurrentArena> {
        let slot_bytes = slot_bytes(slot_floats);
        let mut memory = Pages::new(slot_bytes.saturating_mul(slot_count))?;
        let base = memory.as_mut_ptr().cast();
        Ok(RecurrentArena { slot_floats, slot_count, base, memory })
    }

    /// Bytes one slot takes in memory.
    pub fn slot_bytes(&self) -> usize {
        slot_bytes(self.slot_floats)
    }

    /// Floats of one slot.
    pub fn slot_floats(&self) -> usize {
        self.slot_floats
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// Makes the whole arena resident now.
    pub fn prefault(&mut self) {
        self.memory.prefault();
    }

    /// A slot, for reading.
    pub fn slot(&self, slot: SlotId) -> &[f32] {
        // SAFETY: a slot is `slot_floats` initialised floats (zeros at first); a caller that writes through
        // `slot_ptr` promises that no other holds this.
        unsafe { std::slice::from_raw_parts(self.slot_ptr(slot), self.slot_floats) }
    }

    /// A slot, for writing.
    pub fn slot_mut(&mut self, slot: SlotId) -> &mut [f32] {
        // SAFETY: as in `slot`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.slot_ptr(slot), self.slot_floats) }
    }

    /// Copies a slot.
    pub fn copy(&mut self, from: SlotId, to: SlotId) {
        let (from, to) = (self.slot_ptr(from), self.slot_ptr(to));
        // SAFETY: both are slots of this arena (or the same one); `&mut self` excludes every other access.
        unsafe { std::ptr::copy(from, to, self.slot_floats) }
    }

    /// The first float of a slot, for the compute threads of one step. Valid for `slot_floats` floats as long as
    /// the arena lives; a caller that writes through it makes sure that no other thread reads or writes the same floats
    /// meanwhile, and that no slice of this slot is held.
    pub fn slot_ptr(&self, slot: SlotId) -> *mut f32 {
        assert!((slot.0 as usize) < self.slot_count);
        // SAFETY: the slot is in range, so the offset is inside the mapping.
        unsafe { self.base.add(slot.0 as usize * (self.slot_bytes() / size_of::<f32>())) }
    }
}

impl std::fmt::Debug for RecurrentArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecurrentArena")
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
