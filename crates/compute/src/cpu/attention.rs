//! Grouped-query attention over KV pages, in absolute blocks and spans.
//!
//! The arithmetic of one (row, head) is fixed by its position alone, and by where the run ends if attention is
//! bidirectional within it. For each block of [`BLOCK`] keys:
//! scores in order of dimension, the block's own maximum, `p = e^(s - max)`, their lane sum, and `p V`
//! in order of key. Blocks are merged in order inside a span of [`SPAN_BLOCKS`] blocks, spans in order into the
//! result, both by [`merge`]. A block without a visible key is no operation at all.
//!
//! So [`attend_tile`] over many rows and all spans (prefill) and [`attend_span`] per span followed by
//! [`merge_spans`] (decode over a long context, one task a span) give the same bits. A tile is
//! all query heads of one kv head times some rows: each page is widened from f16 once for all of them.

#[cfg(target_arch = "x86_64")]
mod halves;
mod multiply;
mod visible;

use std::ops::Range;

use machine::cpu::Isa;

use multiply::{lines, multiply, multiply_narrow};
pub(crate) use visible::{Queries, visible_spans};
use visible::{Seen, visible_blocks, within_block};

use super::lanes::{LANES, exp, join_lanes, larger, sum, versions};
use super::selection::SelectedBlocks;
use crate::memory::{BLOCK, PANEL, PlaneBlock, RowsMut, ShapedPages, panel_width};
use crate::step::{AttentionShape, PageTable};

/// Blocks that are merged before they are merged into the result: 1024 keys.
pub(crate) const SPAN_BLOCKS: usize = 16;

/// Queries whose accumulators stay in registers together.
const TOGETHER: usize = 4;

/// Planes of a page.
const KEYS: usize = 0;
const VALUES: usize = 1;

/// A widened panel of K (`[64 dimensions][BLOCK]`) or V (`[BLOCK][PANEL]`).
const TILE_FLOATS: usize = BLOCK * PANEL;

/// The most (row, head) pairs of one tile.
pub(crate) const MAX_QUERIES: usize = 512;

/// The keys and values of one sequence and kv head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    /// Which head of them.
    pub(crate) kv_head: usize,
    /// Every page that some row sees.
    pub(crate) pages: KeyPages<'a>,
    /// Those of the newest keys, and how many keys a row finds there at least.
    pub(crate) recent: Option<(KeyPages<'a>, usize)>,
    /// The blocks that rows look at; all that they may see if `None`.
    pub(crate) selected: Option<&'a SelectedBlocks>,
    /// What will be read after the last page.
    pub(crate) then: &'a [u8],
}

/// Pages of one sequence and where they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPages<'a> {
    pub(crate) memory: &'a ShapedPages,
    pub(crate) table: PageTable<'a>,
}

/// Which of a sequence's pages are looked at: of a block that some rows find among the newest pages, others may want the
/// page that keeps it for good.
#[derive(Clone, Copy)]
struct Part<'a> {
    pages: KeyPages<'a>,
    /// Keys of the newest pages, and whether these are they.
    recent: Option<(usize, bool)>,
}

impl Part<'_> {
    /// Whether a row at `position` looks here for the keys of a block.
    #[inline(always)]
    fn serves(&self, position: usize, block: usize) -> bool {
        let Some((positions, is_recent)) = self.recent else { return true };
        (block >= (position + 1).saturating_sub(positions) / BLOCK) == is_recent
    }
}

impl<'a> Keys<'a> {
    /// The keys in the first page that a row at `position` sees.
    pub(crate) fn first_page(&self, shape: &AttentionShape, position: usize) -> &'a [u8] {
        let start = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let KeyPages { memory, table } = self.pages;
        let page = table.page((start / BLOCK).max(table.first_block));
        page.map_or(&[], |page| memory.block(page, KEYS, self.kv_head).bytes())
    }

    /// Whether a row of the batch may look at a block.
    #[inline(always)]
    fn includes(&self, row: usize, block: usize) -> bool {
        self.selected.is_none_or(|selected| selected.includes(row, self.kv_head, block))
    }
}

/// Floats of scratch that [`attend_tile`] and [`attend_span`] need for `rows` rows.
pub(crate) fn scratch_floats(shape: &AttentionShape, rows: usize) -> usize {
    let queries = rows * shape.group();
    LANES + TILE_FLOATS + queries * (shape.k_dim + shape.v_dim + BLOCK + 6)
}

/// Floats of one query's partial result: its sums over V, then the maximum and the denominator.
pub(crate) fn partial_floats(v_dim: usize) -> usize {
    v_dim + 2
}

/// Attention of a tile of rows over everything they see.
///
/// `sinks` has one logit per head of the group, which joins the denominator only. `out` has a row of
/// `group * v_dim` for each row.
pub(crate) fn attend_tile(
    isa: Isa,
    shape: &AttentionShape,
    keys: Keys<'_>,
    queries: Queries<'_>,
    sinks: Option<&[f32]>,
    scratch: &mut [f32],
    out: &mut RowsMut<'_>,
) {
    let mut tile = Tile::new(isa, shape, queries, scratch);
    let (group, v_dim) = (shape.group(), shape.v_dim);
    for r in 0..queries.positions.len() {
        out.row(r).fill(0.0);
    }
    for query in 0..tile.m.len() {
        (tile.total_m[query], tile.total_l[query]) = (f32::NEG_INFINITY, 0.0);
    }
    for span in visible_spans(shape, queries) {
        span_kernel(isa, isa, shape, keys, queries, span, &mut tile);
        for (query, o) in tile.o.chunks_exact(v_dim).enumerate() {
            let total = &mut out.row(query / group)[query % group * v_dim..][..v_dim];
            let (m, l) = (&mut tile.total_m[query], &mut tile.total_l[query]);
            merge_kernel(isa, m, l, total, tile.m[query], tile.l[query], o);
        }
    }
    for query in 0..tile.m.len() {
        let g = query % group;
        let total = &mut out.row(query / group)[g * v_dim..][..v_dim];
        let sink = sinks.map(|sinks| sinks[g]);
        finish_kernel(isa, tile.total_m[query], tile.total_l[query], sink, total);
    }
}

/// Partial results of a tile of rows over one span: `[rows * group]` of [`partial_floats`].
pub(crate) fn attend_span(
    isa: Isa,
    shape: &AttentionShape,
    keys: Keys<'_>,
    queries: Queries<'_>,
    span: usize,
    scratch: &mut [f32],
    partials: &mut [f32],
) {
    let mut tile = Tile::new(isa, shape, queries, scratch);
    let size = partial_floats(shape.v_dim);
    assert_eq!(partials.len(), tile.m.len() * size);
    span_kernel(isa, isa, shape, keys, queries, span, &mut tile);
    for (query, partial) in partials.chunks_exact_mut(size).enumerate() {
        let (o, ml) = partial.split_at_mut(shape.v_dim);
        o.copy_from_slice(&tile.o[query * shape.v_dim..][..shape.v_dim]);
        ml.copy_from_slice(&[tile.m[query], tile.l[query]]);
    }
}

/// The result of one query from its partial results, in span order.
///
/// `partials` starts at the query's first partial; the next span's is `stride` floats on.
pub(crate) fn merge_spans(
    isa: Isa,
    partials: &[f32],
    stride: usize,
    span_count: usize,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let (mut m, mut l) = (f32::NEG_INFINITY, 0.0);
    out.fill(0.0);
    for span in 0..span_count {
        let partial = &partials[span * stride..][..partial_floats(out.len())];
        let (o, ml) = partial.split_at(out.len());
        merge_kernel(isa, &mut m, &mut l, out, ml[0], ml[1], o);
    }
    finish_kernel(isa, m, l, sink, out);
}

/// The scratch of one tile, divided. A query is one (row, head); they are ordered by row.
struct Tile<'a> {
    /// One widened panel.
    panel: &'a mut [f32; TILE_FLOATS],
    /// `[queries][k_dim]`, scaled.
    q: &'a [f32],
    /// `[queries]`: scores, then `p`.
    scores: &'a mut [[f32; BLOCK]],
    /// `[queries][v_dim]`: the span's sums over V.
    o: &'a mut [f32],
    /// The span's maximum and denominator.
    m: &'a mut [f32],
    l: &'a mut [f32],
    /// Factors of the sums so far and of the current block.
    keep: &'a mut [f32],
    add: &'a mut [f32],
    /// Maximum and denominator over the spans before.
    total_m: &'a mut [f32],
    total_l: &'a mut [f32],
}

impl<'a> Tile<'a> {
    fn new(
        isa: Isa,
        shape: &AttentionShape,
        queries: Queries<'_>,
        scratch: &'a mut [f32],
    ) -> Tile<'a> {
        let rows = queries.positions.len();
        let count = rows * shape.group();
        assert!(count <= MAX_QUERIES);
        // Vectors that straddle a cache line cost twice: start on one.
        let skip = scratch.as_ptr().align_offset(64).min(LANES);
        let scratch = &mut scratch[skip..];
        let (panel, scratch) = scratch.split_first_chunk_mut().expect("scratch_floats()");
        let (scores, scratch) = scratch.split_at_mut(count * BLOCK);
        let (q, scratch) = scratch.split_at_mut(count * shape.k_dim);
        let (o, scratch) = scratch.split_at_mut(count * shape.v_dim);
        let (m, scratch) = scratch.split_at_mut(count);
        let (l, scratch) = scratch.split_at_mut(count);
        let (keep, scratch) = scratch.split_at_mut(count);
        let (add, scratch) = scratch.split_at_mut(count);
        let (total_m, scratch) = scratch.split_at_mut(count);
        let total_l = &mut scratch[..count];
        let row_floats = shape.group() * shape.k_dim;
        for (r, row) in q.chunks_exact_mut(row_floats).enumerate() {
            row.copy_from_slice(&queries.data[r * queries.stride..][..row_floats]);
        }
        super::activation::scale_assign(isa, q, shape.scale);
        let scores = scores.as_chunks_mut().0;
        Tile { panel, q, scores, o, m, l, keep, add, total_m, total_l }
    }
}

versions! {
    /// The span's (m, l, o) of every query of the tile. `isa` is passed on to the f16 conversion.
    fn span_kernel(
        isa_inside: Isa,
        shape: &AttentionShape,
        keys: Keys<'_>,
        queries: Queries<'_>,
        span: usize,
        tile: &mut Tile<'_>,
    ) = span_body
}

#[inline(always)]
fn span_body(
    isa: Isa,
    shape: &AttentionShape,
    keys: Keys<'_>,
    queries: Queries<'_>,
    span: usize,
    tile: &mut Tile<'_>,
) {
    tile.m.fill(f32::NEG_INFINITY);
    tile.l.fill(0.0);
    tile.o.fill(0.0);
    let mut seen = [Seen::NOTHING; MAX_QUERIES];
    let group = shape.group();
    let older = Part { pages: keys.pages, recent: keys.recent.map(|(_, count)| (count, false)) };
    let recent = keys.recent.map(|(pages, count)| Part { pages, recent: Some((count, true)) });
    let blocks = visible_blocks(shape, queries, span);
    let parts =
        blocks.flat_map(|block| std::iter::once(older).chain(recent).map(move |p| (block, p)));
    for (block, part) in parts {
        let mut all = Seen::NOTHING;
        let rows = queries.positions.iter().zip(seen.chunks_exact_mut(group));
        for (row, (&position, heads)) in rows.enumerate() {
            let mut visible = within_block(&queries.visible(shape.window, position), block);
            if !part.serves(position, block) || !keys.includes(queries.row + row, block) {
                visible = Seen::NOTHING;
            }
            heads.fill(visible);
            all = all.hull(visible);
        }
        if all.is_empty() {
            continue;
        }
        let KeyPages { memory, table } = part.pages;
        let at = block - table.first_block;
        let plane = |page, plane| memory.block(page, plane, keys.kv_head);
        let page = table.pages[at];
        let k = plane(page, KEYS);
        let next = table.pages.get(at + 1);
        let view = BlockView {
            isa,
            shape,
            k,
            v: if shape.values_in_keys { k } else { plane(page, VALUES) },
            seen: &seen[..tile.m.len()],
            all,
            next_page: next.map_or(keys.then, |&page| plane(page, KEYS).bytes()),
        };
        scores(&view, tile);
        softmax(&view, tile);
        values(&view, tile);
    }
}

/// What the three steps over one block have in common.
struct BlockView<'a> {
    isa: Isa,
    shape: &'a AttentionShape,
    k: PlaneBlock<'a>,
    /// The same as `k` if values are a part of the keys.
    v: PlaneBlock<'a>,
    /// The keys that each query sees.
    seen: &'a [Seen],
    /// The keys that some query sees.
    all: Seen,
    /// What will be read after this page.
    next_page: &'a [u8],
}

impl BlockView<'_> {
    /// The keys that some of `N` queries sees.
    #[inline(always)]
    fn seen_by<const N: usize>(&self, query: usize) -> Seen {
        self.seen[query..query + N].iter().fold(Seen::NOTHING, |all, &seen| all.hull(seen))
    }
}

/// Runs `$call` over the queries, [`TOGETHER`] at a time and the rest one by one, with `$n` their number.
macro_rules! in_groups {
    ($count:expr, |$start:ident, $n:ident| $call:expr) => {{
        let mut $start = 0;
        while $start + TOGETHER <= $count {
            const $n: usize = TOGETHER;
            $call;
            $start += $n;
        }
        while $start < $count {
            const $n: usize = 1;
            $call;
            $start += $n;
        }
    }};
}

/// `scores[query][t] = Σ_d q[d] k[d][t]`, in order of d.
#[inline(always)]
fn scores(view: &BlockView<'_>, tile: &mut Tile<'_>) {
    let k_dim = view.shape.k_dim;
    let query_count = tile.scores.len();
    #[cfg(target_arch = "x86_64")]
    if let PlaneBlock::F16(k) = view.k
        && halves::are_few(view.isa, query_count)
    {
        tile.scores.fill([0.0; BLOCK]);
        let (k, columns) = (k.as_chunks().0, view.all.range().end);
        halves::multiply(tile.q, k_dim, k, columns, tile.scores, view.v.bytes());
        return;
    }
    for start_d in (0..k_dim).step_by(PANEL) {
        let d = start_d..(start_d + PANEL).min(k_dim);
        let k = view.k.widened(view.isa, d.start * BLOCK..d.end * BLOCK, tile.panel);
        let k = k.as_chunks::<BLOCK>().0;
        // K's panels follow one another, then V's.
        let ahead = view.k.bytes().get(d.end * view.k.row_bytes()..).filter(|k| !k.is_empty());
        let ahead = ahead.unwrap_or(view.v.bytes());
        in_groups!(query_count, |query, N| {
            if !view.seen_by::<N>(query).is_empty() {
                let q: [&[f32]; N] =
                    std::array::from_fn(|n| &tile.q[(query + n) * k_dim..][d.clone()]);
                let s: &mut [[f32; BLOCK]; N] =
                    (&mut tile.scores[query..query + N]).try_into().expect("N queries");
                if start_d == 0 {
                    *s = [[0.0; BLOCK]; N];
                }
                multiply(view.isa, q, k, s, lines(ahead, query / TOGETHER));
            }
        });
    }
}

/// Scores to `p = e^(s - max)`, and the factors by which the block will join the span.
#[inline(always)]
fn softmax(view: &BlockView<'_>, tile: &mut Tile<'_>) {
    for (query, s) in tile.scores.iter_mut().enumerate() {
        let seen = view.seen[query];
        if seen.is_empty() {
            // Its neighbours in a group still multiply these by V.
            *s = [0.0; BLOCK];
            (tile.keep[query], tile.add[query]) = (f32::NEG_INFINITY, 0.0);
            continue;
        }
        if seen.range().len() < BLOCK {
            // A slot that was never written may hold anything: replace it, whatever it gave.
            s[..seen.range().start].fill(f32::NEG_INFINITY);
            s[seen.range().end..].fill(f32::NEG_INFINITY);
        }
        let m = largest(s);
        for s in s.iter_mut() {
            let p = exp(*s - m);
            // `exp` never gives zero, but a masked key weighs nothing.
            *s = if *s == f32::NEG_INFINITY { 0.0 } else { p };
        }
        (tile.keep[query], tile.add[query]) = (m, sum(s));
    }
    // The block's maximum and denominator become the factors of the span's sums and the block's.
    let count = tile.m.len();
    let (keep, add) = (&mut tile.keep[..count], &mut tile.add[..count]);
    let (running_m, running_l) = (&mut tile.m[..count], &mut tile.l[..count]);
    for i in 0..count {
        (keep[i], add[i]) = merge(&mut running_m[i], &mut running_l[i], keep[i], add[i]);
    }
}

#[inline(always)]
fn largest(s: &[f32; BLOCK]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in s.as_chunks::<LANES>().0 {
        for l in 0..LANES {
            lanes[l] = larger(lanes[l], chunk[l]);
        }
    }
    join_lanes(lanes, larger)
}

/// Adds (m, l) to the running maximum and denominator; returns the factors of the two sums over V.
///
/// Nothing yet on one side is a maximum of -∞ and a denominator of 0, and leaves the other as it is.
#[inline(always)]
fn merge(running_m: &mut f32, running_l: &mut f32, m: f32, l: f32) -> (f32, f32) {
    let max = larger(*running_m, m);
    let (keep, add) = (exp(*running_m - max), exp(m - max));
    // Selected after the fact, without branches, so that queries are merged sixteen at a time.
    let keep = if *running_m == f32::NEG_INFINITY { 0.0 } else { keep };
    let add = if m == f32::NEG_INFINITY { 0.0 } else { add };
    *running_m = max;
    *running_l = add.mul_add(l, keep * *running_l);
    (keep, add)
}

/// `o = keep * o + add * Σ_t p[t] v[t]`, in order of t.
#[inline(always)]
fn values(view: &BlockView<'_>, tile: &mut Tile<'_>) {
    let seen = view.all.range();
    let v_dim = view.shape.v_dim;
    for column in (0..v_dim).step_by(PANEL) {
        let width = panel_width(v_dim, column);
        let at = column * BLOCK + seen.start * width..column * BLOCK + seen.end * width;
        #[cfg(target_arch = "x86_64")]
        if let PlaneBlock::F16(v) = view.v
            && !view.shape.values_in_keys
            && width == PANEL
            && halves::are_few(view.isa, tile.scores.len())
        {
            let mut sums = [[0.0; PANEL]; TOGETHER];
            let sums = &mut sums[..tile.scores.len()];
            let p = &tile.scores.as_flattened()[seen.start..];
            // All of V came while K was read; so does the next K while V is, a share with each panel.
            let ahead = view.next_page.get(column * view.v.row_bytes()..).unwrap_or_default();
            halves::multiply(p, BLOCK, v[at].as_chunks().0, PANEL, sums, ahead);
            add_seen(view, (tile.keep, tile.add), 0, column, sums, tile.o);
            continue;
        }
        let end = (column + width) * view.v.row_bytes();
        let ahead = view.v.bytes().get(end..).filter(|v| !v.is_empty());
        let ahead = ahead.unwrap_or(view.next_page);
        let v = if view.shape.values_in_keys {
            turn(view, column..v_dim.min(column + PANEL), width, tile.panel);
            &tile.panel[..seen.len() * width]
        } else {
            view.v.widened(view.isa, at, tile.panel)
        };
        in_groups!(tile.scores.len(), |query, N| {
            let some = view.seen_by::<N>(query);
            if !some.is_empty() {
                let some = some.range();
                let v = &v[(some.start - seen.start) * width..(some.end - seen.start) * width];
                let p: [&[f32]; N] = std::array::from_fn(|n| &tile.scores[query + n][some.clone()]);
                let mut sums = [[0.0; PANEL]; N];
                if width == PANEL {
                    let ahead = lines(ahead, query / TOGETHER);
                    multiply(view.isa, p, v.as_chunks().0, &mut sums, ahead);
                } else {
                    multiply_narrow(view.isa, &p, v, width, &mut sums);
                }
                add_seen(view, (tile.keep, tile.add), query, column, &sums, tile.o);
            }
        });
    }
}

/// Some columns of the keys that are seen, as the rows of a panel of V of this width.
#[inline(always)]
fn turn(view: &BlockView<'_>, columns: Range<usize>, width: usize, panel: &mut [f32; TILE_FLOATS]) {
    let mut room = [0.0; TILE_FLOATS];
    let values = columns.start * BLOCK..columns.end * BLOCK;
    let k = view.k.widened(view.isa, values, &mut room).as_chunks::<BLOCK>().0;
    for (slot, row) in view.all.range().zip(panel.chunks_exact_mut(width)) {
        row.fill(0.0);
        for (to, k) in row.iter_mut().zip(k) {
            *to = k[slot];
        }
    }
}

/// Adds sums over a panel of V to the results of the queries from `first` on that see something of the block.
#[inline(always)]
fn add_seen(
    view: &BlockView<'_>,
    (keep, add): (&[f32], &[f32]),
    first: usize,
    column: usize,
    sums: &[[f32; PANEL]],
    o: &mut [f32],
) {
    let v_dim = view.shape.v_dim;
    for (query, sums) in (first..).zip(sums) {
        if !view.seen[query].is_empty() {
            let o = &mut o[query * v_dim..][column..v_dim];
            add_sums(sums, keep[query], add[query], o);
        }
    }
}

/// `o = keep * o + add * sums` over the columns that are there.
///
/// Keys that only a neighbour sees were multiplied by zero, which can turn -0 into +0 but change nothing else:
/// adding +0 makes every zero positive.
#[inline(always)]
fn add_sums(sums: &[f32; PANEL], keep: f32, add: f32, o: &mut [f32]) {
    if let Some(o) = o.first_chunk_mut::<PANEL>() {
        for i in 0..PANEL {
            o[i] = add.mul_add(sums[i] + 0.0, keep * o[i]);
        }
    } else {
        for (o, &sum) in o.iter_mut().zip(sums) {
            *o = add.mul_add(sum + 0.0, keep * *o);
        }
    }
}

versions! {
    /// Merges one span's result into the running one.
    fn merge_kernel(
        running_m: &mut f32,
        running_l: &mut f32,
        running_o: &mut [f32],
        m: f32,
        l: f32,
        o: &[f32],
    ) = merge_body
}

#[inline(always)]
fn merge_body(
    running_m: &mut f32,
    running_l: &mut f32,
    running_o: &mut [f32],
    m: f32,
    l: f32,
    o: &[f32],
) {
    if m == f32::NEG_INFINITY {
        return;
    }
    let (keep, add) = merge(running_m, running_l, m, l);
    for (running, &o) in running_o.iter_mut().zip(o) {
        *running = add.mul_add(o, keep * *running);
    }
}

versions! {
    /// Divides by the denominator, which a sink joins first.
    fn finish_kernel(m: f32, l: f32, sink: Option<f32>, o: &mut [f32]) = finish_body
}

#[inline(always)]
fn finish_body(m: f32, l: f32, sink: Option<f32>, o: &mut [f32]) {
    let (mut scale, mut l) = (1.0, l);
    if let Some(sink) = sink {
        let max = larger(m, sink);
        scale = exp(m - max);
        l = l.mul_add(scale, exp(sink - max));
    }
    // A row sees at least itself, so the denominator is not zero.
    scale /= l;
    for o in o {
        *o *= scale;
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
