//! Attention against softmax in f64 straight from the definition, and every tiling against every other, to the bit.

use half::f16;

use super::super::activation::testing::{Random, assert_close, assert_same_bits, isas};
use super::*;
use crate::memory::{ArenaShape, KvFormat, PageId, PageMemory};

/// A sequence of `context` keys, every page at a shuffled place.
struct Sequence {
    arena: PageMemory,
    pages: Vec<PageId>,
    k: Vec<f32>,
    v: Vec<f32>,
    context: usize,
}

impl Sequence {
    fn new(format: KvFormat, shape: &AttentionShape, context: usize) -> Sequence {
        let mut random = Random::new(context as u64);
        let blocks = context.div_ceil(BLOCK);
        let mut arena = PageMemory::new(&ArenaShape::of(shape.pages(format)), blocks + 2).unwrap();
        let pages: Vec<PageId> = (0..blocks as u32).rev().map(|i| PageId(i + 1)).collect();
        let (heads, k_dim, v_dim) = (shape.kv_heads, shape.k_dim, shape.v_dim);
        let (k_row, v_row) = (heads * k_dim, heads * v_dim);
        let (mut k, mut v) = (random.normals(context * k_row), random.normals(context * v_row));
        if shape.values_in_keys {
            v = k.chunks(k_dim).flat_map(|k| &k[..v_dim]).copied().collect();
        }
        let planes = arena.shaped(0).plane_count();
        // What an earlier owner left in the pages.
        let (k_left, v_left) = (vec![f32::NAN; k_row], vec![f32::NAN; v_row]);
        for &page in &pages {
            for slot in 0..BLOCK {
                arena.shaped_mut(0).write(page, slot, &[&k_left[..], &v_left][..planes]);
            }
        }
        for t in 0..context {
            let (k, v) = (&k[t * k_row..][..k_row], &v[t * v_row..][..v_row]);
            arena.shaped_mut(0).write(pages[t / BLOCK], t % BLOCK, &[k, v][..planes]);
        }
        if format == KvFormat::F16 {
            for x in k.iter_mut().chain(&mut v) {
                *x = f16::from_f32(*x).to_f32();
            }
        }
        Sequence { arena, pages, k, v, context }
    }

    fn keys(&self, kv_head: usize) -> Keys<'_> {
        Keys { kv_head, pages: self.pages_from(0), recent: None, selected: None, then: &[] }
    }

    /// The pages from a block on.
    fn pages_from(&self, first_block: usize) -> KeyPages<'_> {
        let pages = &self.pages[first_block..];
        let table = PageTable { arena: 0, shape: 0, pages, first_block };
        KeyPages { memory: self.arena.shaped(0), table }
    }

    /// Softmax attention of one row and kv head in f64, straight from the definition.
    fn reference(
        &self,
        shape: &AttentionShape,
        kv_head: usize,
        q: &[f32],
        position: usize,
        end: Option<usize>,
        sinks: Option<&[f32]>,
        selected: Option<&[u32]>,
    ) -> Vec<f64> {
        let (k_dim, v_dim) = (shape.k_dim, shape.v_dim);
        let mut out = Vec::new();
        for (g, q) in q.chunks(k_dim).enumerate() {
            let first = shape.window.map_or(0, |w| (position + 1).saturating_sub(w));
            let selects = |t: usize| selected.is_none_or(|b| b.contains(&((t / BLOCK) as u32)));
            let keys: Vec<usize> =
                (first..end.unwrap_or(position + 1)).filter(|&t| selects(t)).collect();
            let score = |&t: &usize| {
                let k = &self.k[(t * shape.kv_heads + kv_head) * k_dim..][..k_dim];
                let s: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                s * f64::from(shape.scale)
            };
            let mut scores: Vec<f64> = keys.iter().map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut total: f64 = sinks.map_or(0.0, |s| (f64::from(s[g]) - max).exp());
            for s in &mut scores {
                *s = (*s - max).exp();
                total += *s;
            }
            for d in 0..v_dim {
                let value = |t: usize| self.v[(t * shape.kv_heads + kv_head) * v_dim + d];
                let weighted = scores.iter().zip(&keys).map(|(p, &t)| p * f64::from(value(t)));
                out.push(weighted.sum::<f64>() / total);
            }
        }
        out
    }
}

/// The rows at `positions`, in tiles of `tile_rows`.
fn attend(
    isa: Isa,
    shape: &AttentionShape,
    keys: Keys<'_>,
    q: &[f32],
    positions: &[usize],
    end: Option<usize>,
    sinks: Option<&[f32]>,
    tile_rows: usize,
) -> Vec<f32> {
    let (width, out_width) = (shape.group() * shape.k_dim, shape.group() * shape.v_dim);
    let mut out = vec![f32::NAN; positions.len() * out_width];
    for start in (0..positions.len()).step_by(tile_rows) {
        let rows = start..(start + tile_rows).min(positions.len());
        let queries = Queries {
            data: &q[rows.start * width..],
            stride: width,
            row: rows.start,
            positions: &positions[rows.clone()],
            end,
        };
        let mut scratch = vec![f32::NAN; scratch_floats(shape, rows.len())];
        let out = &mut out[rows.start * out_width..rows.end * out_width];
        let mut out = RowsMut::new(out, out_width, out_width);
        attend_tile(isa, shape, keys, queries, sinks, &mut scratch, &mut out);
    }
    out
}

/// The same by one partial result per span.
fn attend_by_span(
    isa: Isa,
    shape: &AttentionShape,
    keys: Keys<'_>,
    q: &[f32],
    positions: &[usize],
    end: Option<usize>,
    sinks: Option<&[f32]>,
) -> Vec<f32> {
    let queries = Queries { data: q, stride: shape.group() * shape.k_dim, row: 0, positions, end };
    let spans = visible_spans(shape, queries);
    let count = positions.len() * shape.group();
    let stride = count * partial_floats(shape.v_dim);
    let mut partials = vec![f32::NAN; spans.len() * stride];
    // Any order of tasks.
    for (i, span) in spans.clone().enumerate().rev() {
        let mut scratch = vec![f32::NAN; scratch_floats(shape, positions.len())];
        let partials = &mut partials[i * stride..][..stride];
        attend_span(isa, shape, keys, queries, span, &mut scratch, partials);
    }
    let mut out = vec![f32::NAN; count * shape.v_dim];
    for (query, out) in out.chunks_mut(shape.v_dim).enumerate() {
        let partials = &partials[query * partial_floats(shape.v_dim)..];
        let sink = sinks.map(|sinks| sinks[query % shape.group()]);
        merge_spans(isa, partials, stride, spans.len(), sink, out);
    }
    out
}

#[track_caller]
fn check(format: KvFormat, shape: AttentionShape, context: usize, rows: usize, with_sinks: bool) {
    check_rows(format, shape, context, rows, with_sinks, None);
}

/// The last `rows` positions; if attention is bidirectional, each sees the later ones too.
#[track_caller]
fn check_rows(
    format: KvFormat,
    shape: AttentionShape,
    context: usize,
    rows: usize,
    with_sinks: bool,
    selected: Option<&[u32]>,
) {
    let mut random = Random::new(17);
    let sequence = Sequence::new(format, &shape, context);
    let width = shape.group() * shape.k_dim;
    let end = shape.is_bidirectional.then_some(context);
    let positions: Vec<usize> = (context - rows..context).collect();
    let q: Vec<f32> = random.normals(rows * width);
    let sinks: Option<Vec<f32>> = with_sinks.then(|| random.normals(shape.group()));
    let sinks = sinks.as_deref();
    let kv_head = 1;
    let table = selected.map(|blocks| only(blocks, &positions, kv_head));
    let keys = Keys { selected: table.as_ref(), ..sequence.keys(kv_head) };
    let mut want = Vec::new();
    for (r, &position) in positions.iter().enumerate() {
        let q = &q[r * width..(r + 1) * width];
        want.extend(sequence.reference(&shape, kv_head, q, position, end, sinks, selected));
    }
    let mut first = None;
    for isa in isas() {
        let got = attend(isa, &shape, keys, &q, &positions, end, sinks, rows);
        assert_close(&got, &want, 3e-6);
        let first = &*first.get_or_insert(got.clone());
        assert_same_bits(&got, first);
        if isa != Isa::Scalar {
            for tile_rows in [1, 3, 8] {
                let got = attend(isa, &shape, keys, &q, &positions, end, sinks, tile_rows);
                assert_same_bits(&got, first);
            }
            let got = attend_by_span(isa, &shape, keys, &q, &positions, end, sinks);
            assert_same_bits(&got, first);
        }
    }
    assert_eq!(sequence.context, context);
}

/// A table in which every row has chosen these blocks.
fn only(blocks: &[u32], positions: &[usize], kv_head: usize) -> SelectedBlocks {
    let columns = positions.iter().max().unwrap() / BLOCK + 1;
    let is_chosen =
        |at: usize| at / columns == kv_head && blocks.contains(&((at % columns) as u32));
    let row: Vec<f32> = (0..2 * columns).map(|at| f32::from(is_chosen(at))).collect();
    let positions: Vec<u32> = positions.iter().map(|&position| position as u32).collect();
    let mut table = SelectedBlocks::default();
    table.choose(&row.repeat(positions.len()), 2 * columns, &positions, 2, blocks.len());
    table
}

/// Two kv heads that serve `group` query heads each.
fn shape(head_dim: usize, group: usize) -> AttentionShape {
    AttentionShape::new(2 * group, 2, head_dim, head_dim)
}

#[test]
fn short_contexts_agree_with_f64_and_any_tiling_gives_the_same_bits() {
    check(KvFormat::F16, shape(64, 7), 150, 70, false);
    check(KvFormat::F32, shape(64, 4), 130, 66, false);
    check(KvFormat::F16, shape(256, 8), 65, 9, false);
}

#[test]
fn odd_head_sizes_and_groups_work() {
    for (head_dim, group) in [(8, 1), (16, 3), (40, 2), (80, 6), (96, 7), (112, 5), (512, 2)] {
        check(KvFormat::F16, shape(head_dim, group), 100, 37, false);
        check(KvFormat::F32, shape(head_dim, group), 70, 70, false);
    }
}

#[test]
fn several_spans_merge_to_the_same_bits_either_way() {
    check(KvFormat::F16, shape(32, 4), 3 * SPAN_BLOCKS * BLOCK + 100, 12, true);
}

#[test]
fn windows_and_sinks_agree_with_f64() {
    let windowed = AttentionShape { window: Some(128), ..shape(64, 8) };
    check(KvFormat::F16, windowed, 1500, 20, true);
    check(KvFormat::F16, AttentionShape { window: Some(1), ..shape(16, 2) }, 130, 66, false);
    check(KvFormat::F32, AttentionShape { window: Some(5), ..shape(16, 3) }, 130, 70, true);
}

#[test]
fn values_may_be_narrower_or_wider_than_keys() {
    for (k_dim, v_dim, group) in [(24, 40, 3), (192, 128, 4), (40, 8, 2), (64, 200, 1)] {
        let shape = AttentionShape { k_dim, v_dim, ..shape(k_dim, group) };
        check(KvFormat::F16, shape, 100, 37, true);
        check(KvFormat::F32, shape, 3 * BLOCK + 7, 70, false);
    }
    let shape = AttentionShape { k_dim: 32, v_dim: 80, ..shape(32, 4) };
    check(KvFormat::F16, shape, 3 * SPAN_BLOCKS * BLOCK + 100, 2, true);
}

#[test]
fn values_may_be_the_first_part_of_keys() {
    for (k_dim, v_dim, group) in [(72, 64, 3), (576, 512, 16), (48, 24, 1), (64, 64, 2)] {
        let shape = AttentionShape { k_dim, v_dim, values_in_keys: true, ..shape(k_dim, group) };
        check(KvFormat::F16, shape, 100, 7, false);
        check(KvFormat::F32, shape, 3 * BLOCK + 7, 5, true);
    }
    let shape = AttentionShape { v_dim: 32, values_in_keys: true, ..shape(40, 4) };
    check(KvFormat::F16, shape, 3 * SPAN_BLOCKS * BLOCK + 100, 2, true);
}

#[test]
fn rows_look_at_selected_blocks_only() {
    let blocks = [0, 3, SPAN_BLOCKS as u32 + 1, 3 * SPAN_BLOCKS as u32];
    let context = 3 * SPAN_BLOCKS * BLOCK + 40;
    check_rows(KvFormat::F16, shape(32, 4), context, 12, true, Some(&blocks));
    let windowed = AttentionShape { window: Some(150), ..shape(32, 2) };
    check_rows(KvFormat::F32, windowed, 4 * BLOCK, 3, false, Some(&[0, 2, 3]));
}

/// Rows of a run, each with its own share of keys in the newest pages: those in f32, the others in f16.
#[track_caller]
fn check_recent(shape: AttentionShape, context: usize, rows: usize, positions: usize) {
    let mut random = Random::new(23);
    let [coded, plain] = [KvFormat::F16, KvFormat::F32].map(|f| Sequence::new(f, &shape, context));
    let oldest = (context - rows + 1).saturating_sub(positions) / BLOCK;
    let kv_head = 1;
    let recent = Some((plain.pages_from(oldest), positions));
    let keys = Keys { recent, ..coded.keys(kv_head) };
    let width = shape.group() * shape.k_dim;
    let rows: Vec<usize> = (context - rows..context).collect();
    let q = random.normals(rows.len() * width);
    let mut want = Vec::new();
    for (&row, q) in rows.iter().zip(q.chunks_exact(width)) {
        // What this row sees: coded keys, from some block on plain ones.
        let mut seen = Sequence::new(KvFormat::F16, &shape, context);
        let from = (row + 1).saturating_sub(positions) / BLOCK * BLOCK * shape.kv_heads;
        seen.k[from * shape.k_dim..].copy_from_slice(&plain.k[from * shape.k_dim..]);
        seen.v[from * shape.v_dim..].copy_from_slice(&plain.v[from * shape.v_dim..]);
        want.extend(seen.reference(&shape, kv_head, q, row, None, None, None));
    }
    let mut first = None;
    for isa in isas() {
        for tile_rows in [rows.len(), 1, 3] {
            let got = attend(isa, &shape, keys, &q, &rows, None, None, tile_rows);
            assert_close(&got, &want, 3e-6);
            assert_same_bits(&got, first.get_or_insert(got.clone()));
        }
        let got = attend_by_span(isa, &shape, keys, &q, &rows, None, None);
        assert_same_bits(&got, first.as_ref().unwrap());
    }
}

#[test]
fn newest_keys_may_lie_in_pages_of_their_own() {
    check_recent(shape(32, 2), 5 * BLOCK + 9, 70, 100);
    check_recent(shape(64, 4), 2 * BLOCK, 2 * BLOCK, 1);
    check_recent(shape(16, 3), 150, 20, 1000);
    check_recent(AttentionShape { window: Some(90), ..shape(32, 2) }, 400, 12, 40);
    check_recent(shape(32, 1), SPAN_BLOCKS * BLOCK + 200, 3, BLOCK);
}

#[test]
fn bidirectional_rows_agree_with_f64() {
    #[track_caller]
    fn check_block(format: KvFormat, shape: AttentionShape, context: usize, rows: usize) {
        check(format, AttentionShape { is_bidirectional: true, ..shape }, context, rows, false);
    }
    check_block(KvFormat::F16, shape(64, 4), 16, 16);
    check_block(KvFormat::F32, shape(32, 2), 200, 16);
    // The run crosses a page, then a span.
    check_block(KvFormat::F32, shape(64, 3), 2 * BLOCK + 5, 16);
    check_block(KvFormat::F16, shape(32, 4), SPAN_BLOCKS * BLOCK + 7, 16);
    check_block(KvFormat::F32, AttentionShape { window: Some(20), ..shape(16, 2) }, 150, 40);
}

#[test]
fn released_pages_are_not_touched() {
    let shape = AttentionShape { window: Some(100), ..shape(32, 2) };
    let sequence = Sequence::new(KvFormat::F16, &shape, 1300);
    let positions = [1290, 1295, 1299];
    let q = Random::new(1).normals(3 * 64);
    for isa in isas() {
        let all = attend(isa, &shape, sequence.keys(0), &q, &positions, None, None, 3);
        // 1290 - 99 is in block 18.
        let keys = Keys { pages: sequence.pages_from(18), ..sequence.keys(0) };
        assert_same_bits(&attend(isa, &shape, keys, &q, &positions, None, None, 3), &all);
    }
}

#[test]
fn rows_in_any_order_with_gaps_give_the_same_bits() {
    let shape = shape(64, 3);
    let sequence = Sequence::new(KvFormat::F16, &shape, 400);
    let positions = [399, 0, 63, 64, 200, 127, 128, 5];
    let q = Random::new(2).normals(positions.len() * 192);
    for isa in isas() {
        let all = attend(isa, &shape, sequence.keys(0), &q, &positions, None, None, 8);
        let each = attend(isa, &shape, sequence.keys(0), &q, &positions, None, None, 1);
        assert_same_bits(&all, &each);
    }
}
