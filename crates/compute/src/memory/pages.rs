//! Pages of what attention remembers: planes of vectors, for [`BLOCK`] positions each.
//!
//! A layer has a list of planes: keys, values, and whatever else a family keeps for each position. A page holds
//! all planes of one layer, one after another, each head by head.

use half::f16;
use machine::Result;
use machine::cpu::Isa;
use machine::pages::Pages;

use crate::cpu::{half_float, prefetch};

/// Positions in a page: the one granularity of pages, attention blocks and prefix-cache keys.
pub const BLOCK: usize = 64;

/// Columns of a vector that lie together in [`PlaneOrder::Panels`]; the last panel may be narrower.
pub(crate) const PANEL: usize = 64;

/// The most pages of the largest shape in a chunk.
const CHUNK_PAGES: usize = 8;

/// The most pages of any shape in a chunk: one bit each in a word.
pub const MOST_CHUNK_PAGES: usize = 64;

/// Panels are rounded up to so many columns.
const LANES: usize = 16;

/// The largest finite f16: what is written to an f16 plane saturates here.
const F16_MAX: f32 = 65504.0;

/// A page of a [`KvArena`](super::KvArena), among those of its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// How the values of a plane are stored.
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

/// How a layer keeps the keys and values of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCode {
    /// Those of every position.
    pub all: KvFormat,
    /// The newest of them once more: how many positions, and how. `None` if once is enough.
    pub recent: Option<(usize, KvFormat)>,
}

impl KvCode {
    /// All of them once.
    pub fn plain(all: KvFormat) -> KvCode {
        KvCode { all, recent: None }
    }
}

/// In which order the values of a head lie in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaneOrder {
    /// `[width][BLOCK]`: products with a vector are computed for sixteen positions at once. Keys.
    Columns,
    /// `[width / PANEL][BLOCK][PANEL]`: weighted sums are computed for a panel of columns at once. Values. The last
    /// panel is as wide as needed, rounded up to sixteen columns.
    Panels,
}

/// Vectors that a layer keeps for each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plane {
    /// Vectors of a position.
    pub heads: usize,
    /// Values of a vector.
    pub width: usize,
    /// Where they lie in a page.
    pub order: PlaneOrder,
    /// How they are stored.
    pub format: KvFormat,
}

/// The planes of a layer. Keys come first, then values unless they are a part of the keys, then the rest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageShape(Vec<Plane>);

/// What the pages of an arena may hold. Pages of several shapes share the arena's bytes chunk by chunk: the pages of one
/// chunk are all of one shape, and a chunk may change its shape whenever none of its pages is in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArenaShape {
    shapes: Vec<PageShape>,
    chunk_bytes: usize,
}

impl Plane {
    /// Values of one head in a page.
    fn head_values(&self) -> usize {
        // Divides first: a bad config may ask for any size, and only the mapping refuses it.
        let columns = match self.order {
            PlaneOrder::Columns => self.width,
            PlaneOrder::Panels => self.width.div_ceil(LANES).saturating_mul(LANES),
        };
        columns.saturating_mul(BLOCK)
    }

    fn head_bytes(&self) -> usize {
        self.head_values().saturating_mul(self.format.value_bytes())
    }

    /// Bytes of the plane in a page.
    fn bytes(&self) -> usize {
        self.head_bytes().saturating_mul(self.heads)
    }

    /// Index of a value within its head.
    #[inline(always)]
    fn at(&self, slot: usize, column: usize) -> usize {
        match self.order {
            PlaneOrder::Columns => column * BLOCK + slot,
            PlaneOrder::Panels => {
                let panel = column / PANEL * PANEL;
                panel * BLOCK + slot * panel_width(self.width, panel) + column - panel
            }
        }
    }
}

impl PageShape {
    /// Pages of these planes.
    pub fn new(planes: Vec<Plane>) -> PageShape {
        PageShape(planes)
    }

    /// The planes, in order.
    pub fn planes(&self) -> &[Plane] {
        &self.0
    }

    /// Bytes of a page.
    pub fn bytes(&self) -> usize {
        self.0.iter().fold(0, |sum, plane| sum.saturating_add(plane.bytes()))
    }
}

impl ArenaShape {
    /// Pages of one shape: a page is a chunk.
    pub fn of(shape: PageShape) -> ArenaShape {
        ArenaShape { chunk_bytes: shape.bytes(), shapes: vec![shape] }
    }

    /// Pages of any of these shapes, in chunks of so many of the largest that little is left over of any.
    pub fn mixed(shapes: Vec<PageShape>) -> ArenaShape {
        let largest = shapes.iter().map(PageShape::bytes).max().unwrap_or(0);
        let waste = |chunk: usize| {
            let left = shapes.iter().map(|shape| chunk % shape.bytes().max(1));
            left.max().unwrap_or(0) as f64 / chunk.max(1) as f64
        };
        let sizes = (1..=CHUNK_PAGES).map(|pages| largest.saturating_mul(pages));
        let chunk_bytes = sizes.min_by(|&a, &b| waste(a).total_cmp(&waste(b))).unwrap_or(0);
        ArenaShape { shapes, chunk_bytes }
    }

    /// The shapes, in order.
    pub fn shapes(&self) -> &[PageShape] {
        &self.shapes
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Pages of a shape that a chunk has room for.
    pub fn chunk_pages(&self, shape: usize) -> usize {
        (self.chunk_bytes / self.shapes[shape].bytes().max(1)).min(MOST_CHUNK_PAGES)
    }
}

/// Width in memory of the panel that starts at `column`.
#[inline(always)]
pub(crate) fn panel_width(width: usize, column: usize) -> usize {
    (width - column).min(PANEL).next_multiple_of(LANES)
}

/// Pages of an arena in host memory.
#[derive(Debug)]
pub(crate) struct PageMemory {
    /// For each shape the pages that there are if all chunks have it.
    shaped: Vec<ShapedPages>,
    memory: Pages,
}

/// The pages of one shape in host memory that belongs to a [`PageMemory`].
pub(crate) struct ShapedPages {
    shape: PageShape,
    /// Where each plane starts in a page.
    starts: Vec<usize>,
    page_bytes: usize,
    chunk_bytes: usize,
    chunk_pages: usize,
    page_count: usize,
    isa: Isa,
    base: *mut u8,
}

// SAFETY: `base` points into memory that lives as long; sharing it is governed by the contracts of the unsafe functions,
// and the safe ones follow Rust's borrowing.
unsafe impl Send for ShapedPages {}
// SAFETY: as above.
unsafe impl Sync for ShapedPages {}

/// One head of a plane in one page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlaneBlock<'a> {
    /// Bits of f16.
    F16(&'a [u16]),
    /// Plain f32, in the same order.
    F32(&'a [f32]),
}

impl<'a> PlaneBlock<'a> {
    /// Its bytes.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match *self {
            PlaneBlock::F16(values) => bytemuck::cast_slice(values),
            PlaneBlock::F32(values) => bytemuck::cast_slice(values),
        }
    }

    /// Bytes of [`BLOCK`] values.
    #[inline(always)]
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            PlaneBlock::F16(_) => BLOCK * size_of::<u16>(),
            PlaneBlock::F32(_) => BLOCK * size_of::<f32>(),
        }
    }

    /// Some of its values as f32, in `room` unless they are f32 already.
    #[inline(always)]
    pub(crate) fn widened<'b>(
        &self,
        isa: Isa,
        values: std::ops::Range<usize>,
        room: &'b mut [f32],
    ) -> &'b [f32]
    where
        'a: 'b,
    {
        match *self {
            PlaneBlock::F16(bits) => {
                let room = &mut room[..values.len()];
                half_float::f16_to_f32(isa, &bits[values], room);
                room
            }
            PlaneBlock::F32(floats) => &floats[values],
        }
    }
}

impl PageMemory {
    /// Maps `chunk_count` chunks; nothing is resident until it is written.
    pub(crate) fn new(arena: &ArenaShape, chunk_count: usize) -> Result<PageMemory> {
        let mut memory = Pages::new(arena.chunk_bytes().saturating_mul(chunk_count))?;
        let (base, isa) = (memory.as_mut_ptr(), machine::cpu::isa());
        let shaped = |(index, shape): (usize, &PageShape)| {
            let starts = shape.planes().iter().scan(0, |end, plane| {
                let start = *end;
                *end += plane.bytes();
                Some(start)
            });
            let chunk_pages = arena.chunk_pages(index);
            ShapedPages {
                shape: shape.clone(),
                starts: starts.collect(),
                page_bytes: shape.bytes(),
                chunk_bytes: arena.chunk_bytes(),
                chunk_pages,
                page_count: chunk_pages * chunk_count,
                isa,
                base,
            }
        };
        Ok(PageMemory { shaped: arena.shapes().iter().enumerate().map(shaped).collect(), memory })
    }

    /// The pages of one of the arena's shapes.
    pub(crate) fn shaped(&self, shape: usize) -> &ShapedPages {
        &self.shaped[shape]
    }

    /// The same, for writing.
    pub(crate) fn shaped_mut(&mut self, shape: usize) -> &mut ShapedPages {
        &mut self.shaped[shape]
    }

    /// Makes the whole arena resident now.
    pub(crate) fn prefault(&mut self) {
        self.memory.prefault();
    }
}

impl ShapedPages {
    /// Planes of a page.
    pub(crate) fn plane_count(&self) -> usize {
        self.starts.len()
    }

    /// Stores one position: for each plane the vectors of all its heads, `[heads * width]`.
    pub(crate) fn write(&mut self, page: PageId, slot: usize, rows: &[&[f32]]) {
        assert_eq!(rows.len(), self.shape.planes().len(), "a row for each plane");
        for (plane, row) in rows.iter().enumerate() {
            // SAFETY: `&mut self` excludes every other access.
            unsafe { self.write_shared(page, slot, plane, row) }
        }
    }

    /// Stores one position of one plane, from one of several threads.
    ///
    /// # Safety
    /// Until this returns no other thread writes this slot of the page or holds a block of the page.
    pub(crate) unsafe fn write_shared(&self, page: PageId, slot: usize, index: usize, row: &[f32]) {
        let plane = self.shape.planes()[index];
        assert!(slot < BLOCK && row.len() == plane.heads * plane.width, "a row of another shape");
        for (head, values) in row.chunks_exact(plane.width).enumerate() {
            let start = self.head_ptr(page, index, head);
            // SAFETY: the head's values lie inside the page, `slot` is below BLOCK, values are aligned because every
            // offset is a multiple of the value size, and the caller excludes other accesses to the slot.
            unsafe {
                match plane.format {
                    KvFormat::F16 => self.write_head_f16(start.cast(), plane, slot, values),
                    KvFormat::F32 => {
                        for (panel, values) in values.chunks(PANEL).enumerate() {
                            write_columns(start.cast(), plane, slot, panel * PANEL, values);
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`write_columns`].
    unsafe fn write_head_f16(&self, start: *mut u16, plane: Plane, slot: usize, values: &[f32]) {
        let mut clamped = [0.0; PANEL];
        let mut bits = [0u16; PANEL];
        for (panel, values) in values.chunks(PANEL).enumerate() {
            let count = values.len();
            for (y, x) in clamped.iter_mut().zip(values) {
                *y = x.clamp(-F16_MAX, F16_MAX);
            }
            half_float::f32_to_f16(self.isa, &clamped[..count], &mut bits[..count]);
            // SAFETY: the caller's promise.
            unsafe { write_columns(start, plane, slot, panel * PANEL, &bits[..count]) }
        }
    }

    /// Asks for the memory of one position, before it is written.
    pub(crate) fn prefetch(&self, page: PageId, slot: usize) {
        for (index, plane) in self.shape.planes().iter().enumerate() {
            let value_bytes = plane.format.value_bytes();
            for head in 0..plane.heads {
                let start = self.head_ptr(page, index, head);
                let at = |column| start.wrapping_add(plane.at(slot, column) * value_bytes);
                match plane.order {
                    PlaneOrder::Columns => (0..plane.width).for_each(|d| prefetch::line(at(d))),
                    PlaneOrder::Panels => (0..plane.width).step_by(PANEL).for_each(|column| {
                        prefetch::lines(at(column), panel_width(plane.width, column) * value_bytes);
                    }),
                }
            }
        }
    }

    /// Copies a page.
    pub(crate) fn copy_page(&mut self, from: PageId, to: PageId) {
        let (from, to) = (self.page_ptr(from), self.page_ptr(to));
        // SAFETY: both are whole pages of this arena (or the same one); `&mut self` excludes every other access.
        unsafe { std::ptr::copy(from, to, self.page_bytes) }
    }

    /// A vector of one position, as f32: for checks. A step reads whole blocks.
    pub(crate) fn read(&self, page: PageId, slot: usize, plane: usize, head: usize) -> Vec<f32> {
        assert!(slot < BLOCK);
        let block = self.block(page, plane, head);
        let plane = self.shape.planes()[plane];
        let value = |column: usize| match block {
            PlaneBlock::F16(bits) => f16::from_bits(bits[plane.at(slot, column)]).to_f32(),
            PlaneBlock::F32(values) => values[plane.at(slot, column)],
        };
        (0..plane.width).map(value).collect()
    }

    /// One head of a plane. Slots that were never written hold zeros or another sequence's values.
    pub(crate) fn block(&self, page: PageId, plane: usize, head: usize) -> PlaneBlock<'_> {
        let start = self.head_ptr(page, plane, head);
        let plane = &self.shape.planes()[plane];
        let count = plane.head_values();
        // SAFETY: the slice lies inside the page, aligned, and is initialised since the memory began as zeros; a caller
        // that writes through `&self` promises that no block of the page is held.
        unsafe {
            match plane.format {
                KvFormat::F16 => PlaneBlock::F16(std::slice::from_raw_parts(start.cast(), count)),
                KvFormat::F32 => PlaneBlock::F32(std::slice::from_raw_parts(start.cast(), count)),
            }
        }
    }

    fn page_ptr(&self, page: PageId) -> *mut u8 {
        let index = page.0 as usize;
        assert!(index < self.page_count);
        let (chunk, index) = (index / self.chunk_pages, index % self.chunk_pages);
        // SAFETY: the page is in range, so the offset is inside the mapping.
        unsafe { self.base.add(chunk * self.chunk_bytes + index * self.page_bytes) }
    }

    fn head_ptr(&self, page: PageId, plane: usize, head: usize) -> *mut u8 {
        let start = self.starts[plane];
        let plane = &self.shape.planes()[plane];
        assert!(head < plane.heads);
        // SAFETY: plane and head are in range, so the offset is inside the page.
        unsafe { self.page_ptr(page).add(start + head * plane.head_bytes()) }
    }
}

impl std::fmt::Debug for ShapedPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShapedPages")
            .field("shape", &self.shape)
            .field("page_count", &self.page_count)
            .finish_non_exhaustive()
    }
}

/// Stores some columns of one position: at most a panel, starting at a multiple of [`PANEL`].
///
/// # Safety
/// `start` is a head of this plane in a page, `slot` is below [`BLOCK`], the columns are the plane's, and no other thread
/// accesses the slot.
#[inline]
unsafe fn write_columns<T: Copy>(
    start: *mut T,
    plane: Plane,
    slot: usize,
    column: usize,
    values: &[T],
) {
    let at = plane.at(slot, column);
    // SAFETY: `column + i` is below the width and `slot` below BLOCK, so a column stays inside its [width][BLOCK], and a
    // row of the panel that starts at `column` is at least as long as `values`.
    unsafe {
        match plane.order {
            PlaneOrder::Columns => {
                for (i, &value) in values.iter().enumerate() {
                    *start.add(at + i * BLOCK) = value;
                }
            }
            PlaneOrder::Panels => {
                std::ptr::copy_nonoverlapping(values.as_ptr(), start.add(at), values.len());
            }
        }
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
