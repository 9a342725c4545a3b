//! Operations of draft heads, through the step as a model calls them.

use super::super::activation::testing::{Random, assert_close, assert_same_bits};
use super::super::dot::tests::{encodings, random_weight, value};
use super::*;
use crate::memory::{ArenaShape, KvFormat, PageId};
use crate::{Error, HostStore, PageTable, Store};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 16;
const WIDTH: usize = KV_HEADS * DIM;

fn backend() -> CpuBackend {
    CpuBackend::new(machine::cpu::isa(), 2, 1 << 20).unwrap()
}

fn shape(is_bidirectional: bool, window: Option<usize>) -> AttentionShape {
    AttentionShape { window, is_bidirectional, ..AttentionShape::new(HEADS, KV_HEADS, DIM, DIM) }
}

/// Attention of the rows after `context` stored ones, in f64, straight from the definition.
fn reference(q: &[f32], k: &[f32], v: &[f32], context: usize, shape: &AttentionShape) -> Vec<f64> {
    let (end, mut out) = (k.len() / WIDTH, Vec::new());
    for (index, q) in q.chunks(DIM).enumerate() {
        let (position, kv_head) = (context + index / HEADS, index % HEADS / (HEADS / KV_HEADS));
        let sees = |key: usize| {
            (shape.is_bidirectional || key <= position)
                && shape.window.is_none_or(|window| key + window > position)
        };
        let part = |x: &[f32], key: usize| -> Vec<f64> {
            x[key * WIDTH + kv_head * DIM..][..DIM].iter().map(|&x| f64::from(x)).collect()
        };
        let weight = |key: usize| -> f64 {
            let k = part(k, key);
            let dot: f64 = q.iter().zip(&k).map(|(&q, k)| f64::from(q) * k).sum();
            (dot * f64::from(shape.scale)).exp()
        };
        let keys: Vec<usize> = (0..end).filter(|&key| sees(key)).collect();
        let sum: f64 = keys.iter().map(|&key| weight(key)).sum();
        out.extend(
            (0..DIM)
                .map(|d| keys.iter().map(|&key| weight(key) / sum * part(v, key)[d]).sum::<f64>()),
        );
    }
    out
}

/// A context that is stored, then a block of rows that attends; with a second sequence in the same step.
#[track_caller]
fn check(context: usize, count: usize, is_bidirectional: bool, window: Option<usize>) {
    let mut random = Random::new((context * 100 + count) as u64);
    let shape = shape(is_bidirectional, window);
    let mut arenas = [KvArena::new(ArenaShape::of(shape.pages(KvFormat::F32)), 16).unwrap()];
    let tables: [Vec<PageId>; 2] =
        [(0..8).map(PageId).collect(), (8..16).rev().map(PageId).collect()];
    let run = |row: usize, count: usize, position: usize, sequence: usize| KvRun {
        row,
        count,
        position,
        pages: PageTable { arena: 0, shape: 0, pages: &tables[sequence], first_block: 0 },
        recent: None,
    };
    // The second sequence is one row shorter, in both its context and its block.
    let (contexts, counts) = ([context, context - 1], [count, count - 1]);
    let k: [Vec<f32>; 2] = [0, 1].map(|s| random.normals((contexts[s] + counts[s]) * WIDTH));
    let v: [Vec<f32>; 2] = [0, 1].map(|s| random.normals((contexts[s] + counts[s]) * WIDTH));
    let q: [Vec<f32>; 2] = [0, 1].map(|s| random.normals(counts[s] * HEADS * DIM));
    let both = |x: &[Vec<f32>; 2], stored: bool| -> Vec<f32> {
        let part = |s: usize| {
            let at = contexts[s] * WIDTH;
            if stored { &x[s][..at] } else { &x[s][at..] }
        };
        [part(0), part(1)].concat()
    };
    let mut backend = backend();
    let mut step = backend.begin();
    let (keys, values) = (step.upload(&both(&k, true), WIDTH), step.upload(&both(&v, true), WIDTH));
    let runs = [run(0, context, 0, 0), run(context, context - 1, 0, 1)];
    step.store(&[keys, values], &mut arenas, &runs);
    let (keys, values) =
        (step.upload(&both(&k, false), WIDTH), step.upload(&both(&v, false), WIDTH));
    let queries = step.upload(&q.concat(), HEADS * DIM);
    let runs = [run(0, count, context, 0), run(count, count - 1, context - 1, 1)];
    step.store(&[keys, values], &mut arenas, &runs);
    let out = step.attend(queries, &mut arenas, &runs, &shape, None, None);
    // A layer that shares these keys and values writes nothing and sees the same.
    let again = step.attend(queries, &mut arenas, &runs, &shape, None, None);
    let fence = step.submit();
    let want: Vec<f64> =
        (0..2).flat_map(|s| reference(&q[s], &k[s], &v[s], contexts[s], &shape)).collect();
    let got = step.read(&fence, out).to_vec();
    assert_close(&got, &want, 3e-6);
    assert_same_bits(step.read(&fence, again), &got);
}

#[test]
fn stored_contexts_are_attended_to() {
    for is_bidirectional in [false, true] {
        for window in [None, Some(20)] {
            check(2, 3, is_bidirectional, window);
            check(60, 16, is_bidirectional, window);
            check(130, 9, is_bidirectional, window);
        }
    }
}

#[test]
fn what_a_window_has_left_behind_is_not_stored() {
    let pages = shape(false, None).pages(KvFormat::F32);
    let mut arenas = [KvArena::new(ArenaShape::of(pages), 2).unwrap()];
    let values = Random::new(3).normals(100 * WIDTH);
    let mut backend = backend();
    let mut step = backend.begin();
    let x = step.upload(&values, WIDTH);
    // Positions 50 to 149, of which blocks 1 and 2 are still there.
    let pages = [PageId(1), PageId(0)];
    let table = PageTable { arena: 0, shape: 0, pages: &pages, first_block: 1 };
    let run = KvRun { row: 0, count: 100, position: 50, pages: table, recent: None };
    step.store(&[x, x], &mut arenas, &[run]);
    for position in 64..150 {
        let (page, row) = (pages[position / 64 - 1], position - 50);
        let [k, v] = [0, 1].map(|plane| arenas[0].read(0, page, position % 64, plane, 1));
        let want = &values[row * WIDTH + DIM..][..DIM];
        assert!(k == want && v == want, "position {position}");
    }
}

#[test]
fn rows_are_put_side_by_side() {
    let mut backend = backend();
    let mut step = backend.begin();
    let a = step.upload(&[1.0, 2.0, 3.0, 4.0], 2);
    let b = step.upload(&[5.0, 6.0], 1);
    let c = step.concat(&[b, a]);
    assert_eq!((c.rows(), c.cols()), (2, 3));
    let fence = step.submit();
    assert_eq!(step.read(&fence, c), [5.0, 1.0, 2.0, 6.0, 3.0, 4.0]);
}

#[test]
fn embeddings_are_scaled_and_ready_ones_are_not() {
    let mut backend = backend();
    let bytes: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let encoding = format::Encoding::Dense(format::Float::F32);
    let matrix = crate::Matrix::new(4, 2, encoding, &bytes, &[], &[]).unwrap();
    let table = Weight::from_parts(matrix, &HostStore).unwrap();
    let mut step = backend.begin();
    let x = step.embed(&table, &[3, 0, 1], 3.0);
    let y = step.select(x, &[0, 2]);
    step.scale(y, -0.5);
    let fence = step.submit();
    assert_eq!(step.read(&fence, x), [18.0, 21.0, 0.0, 3.0, 6.0, 9.0]);
    assert_eq!(step.read(&fence, y), [-9.0, -10.5, -3.0, -4.5]);
}

#[test]
fn factors_of_weights_come_before_biases() {
    let mut backend = backend();
    let bytes: Vec<u8> = (1..5).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let encoding = format::Encoding::Dense(format::Float::F32);
    let matrix = Matrix::new(2, 2, encoding, &bytes, &[], &[]).unwrap();
    let matrix = Matrix { factor: 0.5, ..matrix };
    let weight = Weight::from_parts(matrix, &HostStore).unwrap();
    let plain = Linear { weight: weight.clone(), bias: None };
    let biased = Linear { weight, bias: Some(HostStore.vector(vec![100.0, 200.0])) };
    let mut step = backend.begin();
    let x = step.upload(&[1.0, 10.0, 2.0, 0.0], 2);
    let out = step.matmul(x, &[&plain, &biased]);
    let row = step.embed(&plain.weight, &[1], 3.0);
    let fence = step.submit();
    assert_eq!(step.read(&fence, out[0]), [10.5, 21.5, 1.0, 3.0]);
    assert_eq!(step.read(&fence, out[1]), [110.5, 221.5, 101.0, 203.0]);
    assert_eq!(step.read(&fence, row), [4.5, 6.0]);
}

#[test]
fn retained_rows_come_back_in_any_order() {
    let mut backend = backend();
    let mut step = backend.begin();
    let (a, b) =
        (step.upload(&[1.0, 2.0, 3.0], 1), step.upload(&[4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 2));
    let mut kept = step.retain(&[a, b], &[0..1, 1..3]);
    let _fence = step.submit();
    let mut rows = kept.remove(1);
    rows.append(&Features::zeros(1, 3));
    rows.append(&kept[0]);
    let mut step = backend.begin();
    let x = step.bring(&rows);
    let fence = step.submit();
    assert_eq!((x.rows(), x.cols()), (4, 3));
    let want = [2.0, 6.0, 7.0, 3.0, 8.0, 9.0, 0.0, 0.0, 0.0, 1.0, 4.0, 5.0];
    assert_eq!(step.read(&fence, x), want);
}

#[test]
fn weights_are_multiplied_with_their_experts_scale() {
    let mut backend = backend();
    let mut step = backend.begin();
    let logits = step.upload(&[0.0, 2.0, 1.0, 2.0, 5.0, 2.0, 5.0, 2.0], 4);
    let scales = HostStore.vector(vec![1.0, 2.0, 3.0, 4.0]);
    step.route(logits, &RouterShape::softmax_of_chosen(2), None, Some(&scales));
    assert_eq!(backend.routing.ids, [1, 3, 0, 2]);
    assert_eq!(backend.routing.weights, [1.0, 2.0, 0.5, 1.5]);
}

/// Two values a row, its number and twice that; row 5 is broken.
#[derive(Debug)]
struct Counted;

impl RowSource for Counted {
    fn rows(&self) -> usize {
        100
    }

    fn cols(&self) -> usize {
        2
    }

    fn encoding(&self) -> format::Encoding {
        format::Encoding::Dense(format::Float::F32)
    }

    fn read(&self, row: usize, out: &mut [u8]) -> Result<()> {
        if row == 5 {
            return Err(Error::Row { row, source: "gone".into() });
        }
        out[..4].copy_from_slice(&(row as f32).to_le_bytes());
        out[4..].copy_from_slice(&(2.0 * row as f32).to_le_bytes());
        Ok(())
    }
}

#[test]
fn rows_are_fetched_and_a_broken_one_fails_its_row_alone() {
    let mut backend = backend();
    let mut step = backend.begin();
    let rows: Vec<usize> = (0..40).map(|i| (i * 7) % 19).collect();
    let x = step.fetch(&Counted, &rows, 0.5);
    let fence = step.submit();
    let failures = step.failures(&fence);
    let broken: Vec<usize> = (0..40).filter(|&i| rows[i] == 5).collect();
    assert_eq!(failures.iter().map(|failure| failure.row).collect::<Vec<_>>(), broken);
    for (values, row) in step.read(&fence, x).chunks_exact(2).zip(rows) {
        let row = if row == 5 { 0.0 } else { row as f32 };
        assert_eq!(values, [row / 2.0, row]);
    }
}

#[test]
fn heads_multiply_with_their_rows_transposed() {
    let heads = HeadRows { heads: 3, stride: 10, first: 6, count: 4 };
    let mut random = Random::new(8);
    let x = random.normals(5 * 12);
    for encoding in encodings() {
        let weight = random_weight(30, 128, encoding, 3);
        let view = weight.view();
        let mut want = Vec::new();
        for x in x.chunks_exact(12) {
            for (head, x) in x.chunks_exact(4).enumerate() {
                let sum = |col: usize| -> f64 {
                    let rows = head * 10 + 6..head * 10 + 10;
                    rows.zip(x).map(|(row, &x)| f64::from(x) * value(&view, row, col)).sum()
                };
                want.extend((0..128).map(sum));
            }
        }
        let mut backend = backend();
        let mut product = |x: &[f32]| {
            let mut step = backend.begin();
            let x = step.upload(x, 12);
            let out = step.matmul_transposed(x, &weight, &heads);
            let fence = step.submit();
            step.read(&fence, out).to_vec()
        };
        let got = product(&x);
        assert_close(&got, &want, 1e-6);
        // A row's result is the same alone.
        assert_same_bits(&product(&x[24..36]), &got[2 * 3 * 128..][..3 * 128]);
    }
}
