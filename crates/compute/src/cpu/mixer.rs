//! Drives attention and the gated delta rule over the runs of a batch: which thread computes which rows and heads.

use std::cell::RefCell;

use machine::cpu::Isa;

use super::attention::{
    KeyPages, Keys, Queries, attend_span, attend_tile, merge_spans, partial_floats, scratch_floats,
    visible_spans,
};
use super::conv::{advance_conv_state, conv_silu};
use super::delta::{DeltaRows, delta_gates, delta_rule};
use super::matmul::SharedMut;
use super::norm::l2_normalize;
use super::pool::Pool;
use super::prefetch;
use super::selection::SelectedBlocks;
use crate::memory::{BLOCK, PANEL, PageId, PageMemory, Rows, RowsMut, ShapedPages, SlotMemory};
use crate::step::{AttentionShape, DeltaLayer, KvRun, PageTable, StateRun};

/// Queries (rows times heads of a group) that share a widened page.
const TILE_QUERIES: usize = 64;
/// Channels of one convolution task.
const CONV_CHANNELS: usize = 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Appends rows to the pages of their runs: for each plane of the layer a matrix.
///
/// What lies before a run's first page is left out: a window that has moved on needs it no more.
pub(crate) fn store(
    pool: &mut Pool,
    planes: &[Rows<'_>],
    arenas: &[&PageMemory],
    runs: &[KvRun<'_>],
) {
    let write = |run: &KvRun<'_>, i: usize| {
        let (row, position) = (run.row + i, run.position + i);
        for table in tables(run) {
            let Some(page) = table.page(position / BLOCK) else { continue };
            let pages = shaped(arenas, &table);
            assert_eq!(pages.plane_count(), planes.len(), "a tensor for each plane");
            for (plane, rows) in planes.iter().enumerate() {
                // SAFETY: rows of a run have different slots, runs that may have pages in common are written one after
                // another, and no pages are read before the region ends.
                unsafe { pages.write_shared(page, position % BLOCK, plane, rows.row(row)) };
            }
        }
    };
    let is_short = |run: &KvRun<'_>| run.count < 16;
    // Keys of a position are in as many lines as they have dimensions, and those of another sequence are elsewhere.
    let fetch = |run: &KvRun<'_>| {
        for table in tables(run) {
            let page = table.page(run.position / BLOCK);
            page.inspect(|&page| shaped(arenas, &table).prefetch(page, run.position % BLOCK));
        }
    };
    let short = |index: usize| {
        runs.get(index + 1).into_iter().for_each(fetch);
        (0..runs[index].count).for_each(|row| write(&runs[index], row));
    };
    let apart = runs.len() >= 8 && runs.iter().all(is_short) && write_apart(runs);
    if apart {
        pool.run_near(runs.len(), &short);
        return;
    }
    for (index, run) in runs.iter().enumerate() {
        if is_short(run) {
            short(index);
        } else {
            // A page's slots share cache lines, so a task takes whole blocks.
            let first = run.position / BLOCK;
            let blocks = (run.position + run.count - 1) / BLOCK + 1 - first;
            pool.run(blocks, &|block| {
                let start = ((first + block) * BLOCK).max(run.position) - run.position;
                let end =
                    ((first + block + 1) * BLOCK).min(run.position + run.count) - run.position;
                (start..end).for_each(|i| write(run, i));
            });
        }
    }
}

/// Every table that has pages for the rows of a run.
fn tables<'a>(run: &KvRun<'a>) -> impl Iterator<Item = PageTable<'a>> + use<'a> {
    std::iter::once(run.pages).chain(run.recent.map(|recent| recent.pages))
}

/// The pages that a table is about.
fn shaped<'a>(arenas: &[&'a PageMemory], table: &PageTable<'_>) -> &'a ShapedPages {
    arenas[table.arena].shaped(table.shape)
}

fn key_pages<'a>(arenas: &[&'a PageMemory], table: PageTable<'a>) -> KeyPages<'a> {
    KeyPages { memory: shaped(arenas, &table), table }
}

/// Whether no two runs write to the same page. Forks may have pages in common.
fn write_apart(runs: &[KvRun<'_>]) -> bool {
    let mut written: Vec<(usize, usize, PageId)> = Vec::with_capacity(2 * runs.len());
    for run in runs {
        let blocks = run.position / BLOCK..=(run.position + run.count.max(1) - 1) / BLOCK;
        for table in tables(run) {
            let pages = blocks.clone().filter_map(|block| table.page(block));
            written.extend(pages.map(|page| (table.arena, table.shape, page)));
        }
    }
    let count = written.len();
    written.sort_unstable();
    written.dedup();
    written.len() == count
}

/// Attends over what the pages hold: `out` [rows, heads · v_dim].
pub(crate) fn attend(
    isa: Isa,
    pool: &mut Pool,
    partials: &mut Vec<f32>,
    q: &[f32],
    arenas: &[&PageMemory],
    runs: &[KvRun<'_>],
    shape: &AttentionShape,
    selected: Option<&SelectedBlocks>,
    sinks: Option<&[f32]>,
    out: &mut [f32],
) {
    let group = shape.group();
    let (stride, out_stride) = (shape.heads * shape.k_dim, shape.heads * shape.v_dim);
    let group_partials = group * partial_floats(shape.v_dim);
    let tile_rows = (TILE_QUERIES / group).max(1);
    let mut tasks: Vec<Task> = Vec::new();
    let mut merges: Vec<Merge> = Vec::new();
    let mut partial_count = 0;
    for (index, run) in runs.iter().enumerate() {
        let positions = &[run.position];
        let first = Queries { data: q, stride, row: run.row, positions, end: end(shape, run) };
        let spans = visible_spans(shape, first);
        for kv_head in 0..shape.kv_heads {
            if run.count == 1 && spans.len() > 1 {
                merges.push(Merge { run: index, kv_head, at: partial_count, spans: spans.len() });
                for span in spans.clone() {
                    let span = Some((span, partial_count));
                    tasks.push(Task { run: index, kv_head, rows: 0..1, span });
                    partial_count += group_partials;
                }
            } else {
                for start in (0..run.count).step_by(tile_rows) {
                    let rows = start..run.count.min(start + tile_rows);
                    tasks.push(Task { run: index, kv_head, rows, span: None });
                }
            }
        }
    }
    // Later rows of a prompt look at more keys: the longest tasks first.
    let has_prompt = runs.iter().any(|run| run.count > 1);
    if has_prompt {
        tasks.reverse();
    }
    partials.resize(partials.len().max(partial_count), 0.0);
    let (out_start, partial_start) =
        (SharedMut(out.as_mut_ptr()), SharedMut(partials.as_mut_ptr()));
    let keys_of = |task: &Task| {
        let run = &runs[task.run];
        let pages = key_pages(arenas, run.pages);
        let recent = run.recent.map(|r| (key_pages(arenas, r.pages), r.positions));
        Keys { kv_head: task.kv_head, pages, recent, selected, then: &[] }
    };
    // A logit for each head of the group.
    let sinks_of = |kv_head: usize| sinks.map(|sinks| &sinks[kv_head * group..][..group]);
    let attend = |i: usize| {
        let task = &tasks[i];
        let run = &runs[task.run];
        let then = tasks.get(i + 1).map_or(&[][..], |next| {
            keys_of(next).first_page(shape, runs[next.run].position + next.rows.start)
        });
        let keys = Keys { then, ..keys_of(task) };
        let positions: Vec<usize> = task.rows.clone().map(|r| run.position + r).collect();
        let (row, head) = (run.row + task.rows.start, task.kv_head * group);
        let data = &q[row * stride + head * shape.k_dim..];
        let queries = Queries { data, stride, row, positions: &positions, end: end(shape, run) };
        SCRATCH.with_borrow_mut(|scratch| {
            let floats = scratch_floats(shape, positions.len());
            scratch.resize(scratch.len().max(floats), 0.0);
            let scratch = &mut scratch[..floats];
            if let Some((span, at)) = task.span {
                // SAFETY: each task has a range of the partial results of its own.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(partial_start.at(at), group_partials) };
                attend_span(isa, shape, keys, queries, span, scratch, to);
            } else {
                // SAFETY: each task has rows and heads of the output of its own.
                let mut to = unsafe {
                    let start = out_start.at(row * out_stride + head * shape.v_dim);
                    RowsMut::from_raw(start, positions.len(), out_stride, group * shape.v_dim)
                };
                let sinks = sinks_of(task.kv_head);
                attend_tile(isa, shape, keys, queries, sinks, scratch, &mut to);
            }
        });
    };
    if has_prompt {
        pool.run(tasks.len(), &attend);
    } else {
        pool.run_near(tasks.len(), &attend);
    }
    for merge in merges {
        let size = partial_floats(shape.v_dim);
        let sinks = sinks_of(merge.kv_head);
        for g in 0..group {
            let head = merge.kv_head * group + g;
            let to = &mut out[runs[merge.run].row * out_stride + head * shape.v_dim..];
            let to = &mut to[..shape.v_dim];
            let from = &partials[merge.at + g * size..];
            merge_spans(isa, from, group_partials, merge.spans, sinks.map(|s| s[g]), to);
        }
    }
}

/// Where the keys end that every row of a run sees.
fn end(shape: &AttentionShape, run: &KvRun<'_>) -> Option<usize> {
    shape.is_bidirectional.then_some(run.position + run.count)
}

struct Task {
    run: usize,
    kv_head: usize,
    rows: std::ops::Range<usize>,
    /// One span only, and where its partial results go.
    span: Option<(usize, usize)>,
}

struct Merge {
    run: usize,
    kv_head: usize,
    at: usize,
    spans: usize,
}

/// Buffers of a delta layer, all given by the step: the convolved channels and the gates.
pub(crate) struct DeltaBuffers<'a> {
    /// `[rows, channels]`
    pub(crate) convolved: &'a mut [f32],
    /// `[rows, value_heads]`
    pub(crate) alpha: &'a mut [f32],
    /// `[rows, value_heads]`
    pub(crate) beta: &'a mut [f32],
}

/// Convolution, gates and recurrence: `out` [rows, value_heads · value_dim].
pub(crate) fn delta(
    isa: Isa,
    pool: &mut Pool,
    qkv: &[f32],
    a: &[f32],
    b: &[f32],
    layer: &DeltaLayer,
    arena: &SlotMemory,
    runs: &[StateRun],
    buffers: &mut DeltaBuffers<'_>,
    out: &mut [f32],
) {
    let shape = &layer.shape;
    let channels = shape.channels();
    let rows = qkv.len() / channels;
    convolve(isa, pool, qkv, layer, arena, runs, buffers.convolved);

    // Queries and keys are normalized head by head; gates are per value head.
    let keys = shape.key_heads * shape.key_dim;
    let heads = shape.value_heads;
    let convolved = SharedMut(buffers.convolved.as_mut_ptr());
    let (alpha, beta) =
        (SharedMut(buffers.alpha.as_mut_ptr()), SharedMut(buffers.beta.as_mut_ptr()));
    let (decay, dt_bias) = (layer.decay.values(), layer.dt_bias.values());
    let prepare = |row: usize| {
        // SAFETY: each row is prepared once.
        unsafe {
            let x = std::slice::from_raw_parts_mut(convolved.at(row * channels), 2 * keys);
            let (q, k) = x.split_at_mut(keys);
            l2_normalize(isa, q, shape.key_dim, 1.0 / (shape.key_dim as f32).sqrt());
            l2_normalize(isa, k, shape.key_dim, 1.0);
            let alpha = std::slice::from_raw_parts_mut(alpha.at(row * heads), heads);
            let beta = std::slice::from_raw_parts_mut(beta.at(row * heads), heads);
            let at = row * heads..(row + 1) * heads;
            delta_gates(isa, &a[at.clone()], &b[at], decay, dt_bias, alpha, beta);
        }
    };
    if rows < 8 {
        (0..rows).for_each(prepare);
    } else {
        pool.run_near(rows.div_ceil(4), &|task| {
            (task * 4..rows.min(task * 4 + 4)).for_each(prepare);
        });
    }

    let (convolved, alpha, beta) = (&*buffers.convolved, &*buffers.alpha, &*buffers.beta);
    let panels = shape.value_dim.div_ceil(PANEL);
    let values = shape.value_heads * shape.value_dim;
    let out_start = SharedMut(out.as_mut_ptr());
    let per_run = shape.value_heads * panels;
    let tasks = runs.len() * per_run;
    let panel_of = |task: usize| {
        let (head, column) = (task % per_run / panels, task % panels * PANEL);
        let at = shape.key_dim * (head * shape.value_dim + column);
        (head, column, arena.slot_ptr(runs[task / per_run].slot).wrapping_add(at))
    };
    pool.run_near(tasks, &|task| {
        let run = &runs[task / per_run];
        let (head, column, state) = panel_of(task);
        let (_, _, next) = panel_of((task + 1) % tasks);
        let key_head = shape.key_head(head);
        let width = (shape.value_dim - column).min(PANEL);
        let part = |offset: usize, width: usize| {
            Rows::new(&convolved[run.row * channels + offset..], channels, width)
        };
        let gates = run.row * heads + head;
        let rows = DeltaRows {
            q: part(key_head * shape.key_dim, shape.key_dim),
            k: part(keys + key_head * shape.key_dim, shape.key_dim),
            v: part(2 * keys + head * shape.value_dim + column, width),
            alpha: &alpha[gates..],
            beta: &beta[gates..],
            gate_stride: heads,
        };
        let floats = shape.key_dim * width;
        // SAFETY: each task has a panel of a slot and columns of the output of its own.
        unsafe {
            let start = out_start.at(run.row * values + head * shape.value_dim + column);
            let mut out = RowsMut::from_raw(start, run.count, values, width);
            if run.is_trial {
                let from = std::slice::from_raw_parts(state, floats);
                SCRATCH.with_borrow_mut(|scratch| {
                    scratch.resize(scratch.len().max(floats), 0.0);
                    delta_rule(isa, Some(from), &mut scratch[..floats], &rows, next, &mut out);
                });
            } else {
                let state = std::slice::from_raw_parts_mut(state, floats);
                delta_rule(isa, None, state, &rows, next, &mut out);
            }
        }
    });
}

fn convolve(
    isa: Isa,
    pool: &mut Pool,
    qkv: &[f32],
    layer: &DeltaLayer,
    arena: &SlotMemory,
    runs: &[StateRun],
    out: &mut [f32],
) {
    let shape = &layer.shape;
    let channels = shape.channels();
    let per_run = channels.div_ceil(CONV_CHANNELS);
    let out_start = SharedMut(out.as_mut_ptr());
    let weight = Rows::new(layer.conv_weight.values(), channels, channels);
    pool.run_near(runs.len() * per_run, &|task| {
        let run = &runs[task / per_run];
        let start = task % per_run * CONV_CHANNELS;
        let columns = start..channels.min(start + CONV_CHANNELS);
        let width = columns.len();
        if let Some(next) = runs.get(task / per_run + 1) {
            let state = arena.slot_ptr(next.slot).wrapping_add(shape.matrix_floats());
            for tap in 0..shape.taps - 1 {
                prefetch::lines(state.wrapping_add(tap * channels + columns.start), width);
            }
        }
        let inputs =
            Rows::new(&qkv[run.row * channels..], channels, channels).columns(columns.clone());
        // SAFETY: each task has channels of a run's state and of the output of its own; the shared
        // reads are of those channels only.
        unsafe {
            let state = arena.slot_ptr(run.slot).add(shape.matrix_floats());
            let all = (shape.taps - 1) * channels;
            let before = Rows::new(std::slice::from_raw_parts(state, all), channels, channels);
            let start = out_start.at(run.row * channels + columns.start);
            let mut to = RowsMut::from_raw(start, run.count, channels, width);
            let weight = weight.columns(columns.clone());
            conv_silu(isa, inputs, before.columns(columns.clone()), weight, shape.taps, &mut to);
            if run.is_trial {
                return;
            }
            let start = state.add(columns.start);
            let mut after = RowsMut::from_raw(start, shape.taps - 1, channels, width);
            advance_conv_state(None, inputs, run.count, &mut after);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_share_a_page_are_not_written_at_once() {
        let pages = |ids: &[u32]| ids.iter().map(|&id| PageId(id)).collect::<Vec<_>>();
        let (a, b, c) = (pages(&[1, 2]), pages(&[1, 3]), pages(&[4, 2]));
        let run = |pages, position| {
            let pages = PageTable { arena: 0, shape: 0, pages, first_block: 0 };
            KvRun { row: 0, count: 2, position, pages, recent: None }
        };
        let second = BLOCK + 3;
        assert!(write_apart(&[run(&a, second), run(&b, second)]));
        assert!(!write_apart(&[run(&a, second), run(&b, second), run(&c, second)]));
        // The first of these has a row in either page.
        assert!(!write_apart(&[run(&a, BLOCK - 1), run(&b, 5)]));
        assert!(write_apart(&[run(&a, BLOCK - 1), run(&b, second)]));
    }
}
