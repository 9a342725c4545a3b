//! Which keys the rows of a tile see: spans, blocks of a span, keys of a block.

use std::ops::Range;

use super::SPAN_BLOCKS;
use crate::memory::BLOCK;
use crate::step::AttentionShape;

/// Rows of queries: row `r`, head `g` of the group starts at `r * stride + g * k_dim`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries<'a> {
    /// Starts at the group's first head in the first row.
    pub(crate) data: &'a [f32],
    /// From one row to the next.
    pub(crate) stride: usize,
    /// Index of the first row in its batch.
    pub(crate) row: usize,
    /// The position of each row.
    pub(crate) positions: &'a [usize],
    /// Every row sees the keys before this one, later ones than its own included; up to its own if `None`.
    pub(crate) end: Option<usize>,
}

impl Queries<'_> {
    /// The keys that a row at `position` sees.
    #[inline(always)]
    pub(super) fn visible(&self, window: Option<usize>, position: usize) -> Range<usize> {
        let start = window.map_or(0, |window| (position + 1).saturating_sub(window));
        start..self.end.unwrap_or(position + 1)
    }
}

/// The spans that hold keys visible to these rows.
pub(crate) fn visible_spans(shape: &AttentionShape, queries: Queries<'_>) -> Range<usize> {
    const SPAN: usize = SPAN_BLOCKS * BLOCK;
    let visible = queries.positions.iter().map(|&p| queries.visible(shape.window, p));
    let first = visible.clone().map(|keys| keys.start / SPAN).min();
    let end = visible.map(|keys| keys.end.div_ceil(SPAN)).max();
    first.unwrap_or(0)..end.unwrap_or(0)
}

/// The blocks of a span that hold keys visible to these rows.
#[inline(always)]
pub(super) fn visible_blocks(
    shape: &AttentionShape,
    queries: Queries<'_>,
    span: usize,
) -> Range<usize> {
    let visible = queries.positions.iter().map(|&p| queries.visible(shape.window, p));
    let first = visible.clone().map(|keys| keys.start / BLOCK).min().unwrap_or(0);
    let end = visible.map(|keys| keys.end.div_ceil(BLOCK)).max().unwrap_or(0);
    first.max(span * SPAN_BLOCKS)..end.min((span + 1) * SPAN_BLOCKS)
}

/// Keys of one block, counted from its start.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    start: u8,
    end: u8,
}

impl Seen {
    pub(super) const NOTHING: Seen = Seen { start: BLOCK as u8, end: 0 };

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.start >= self.end
    }

    #[inline(always)]
    pub(super) fn range(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }

    #[inline(always)]
    pub(super) fn hull(self, other: Seen) -> Seen {
        Seen { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// `keys` cut to one block.
#[inline(always)]
pub(super) fn within_block(keys: &Range<usize>, block: usize) -> Seen {
    let offset = |key: usize| key.saturating_sub(block * BLOCK).min(BLOCK) as u8;
    let (start, end) = (offset(keys.start), offset(keys.end));
    if start < end { Seen { start, end } } else { Seen::NOTHING }
}
