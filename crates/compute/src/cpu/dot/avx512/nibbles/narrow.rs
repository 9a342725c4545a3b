//! Weight rows of one or two parts in all. Alone they would leave most lanes idle, so several of them share the lanes, each
//! with the same activations, which repeat themselves where a wider row would go on.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Layout, Planes, SCALE_PREFETCH_BYTES, block_sums, expand, load, transpose, unpack};
use crate::cpu::dot::{Padded, Rows, Target};
use crate::cpu::quantise::{Activations, CHUNK};
use crate::weight::Matrix;

/// Activation rows that a pass over the weights serves at most: their sums are added up together.
pub(super) const MOST: usize = 8;

/// Whether several rows of the weight fit in the lanes of one chunk.
pub(super) fn shares_lanes<const TAIL: usize>(w: &Matrix<'_>) -> bool {
    w.cols < CHUNK && (TAIL == 1 || TAIL == 2)
}

/// The kernel for as many rows as there are, [`MOST`] at most.
///
/// # Safety
/// As [`whole_parts`](super::whole_parts).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn narrow_rows<const TAIL: usize, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match rows.inputs.len() {
            0 => {}
            1 => narrow::<1, TAIL, KIND, GROUP>(w, range, x, rows, out),
            2 => narrow::<2, TAIL, KIND, GROUP>(w, range, x, rows, out),
            3 => narrow::<3, TAIL, KIND, GROUP>(w, range, x, rows, out),
            4 => narrow::<4, TAIL, KIND, GROUP>(w, range, x, rows, out),
            5 => narrow::<5, TAIL, KIND, GROUP>(w, range, x, rows, out),
            6 => narrow::<6, TAIL, KIND, GROUP>(w, range, x, rows, out),
            7 => narrow::<7, TAIL, KIND, GROUP>(w, range, x, rows, out),
            _ => narrow::<MOST, TAIL, KIND, GROUP>(w, range, x, rows, out),
        }
    }
}

/// Weight rows of `TAIL` parts, one or two, with `N` transposed activation rows: four or two weight rows at a time, each in
/// its share of the lanes.
///
/// # Safety
/// As [`whole_parts`](super::whole_parts); there are `N` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn narrow<const N: usize, const TAIL: usize, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let Layout { row_bytes, scale_bytes, .. } = Layout::check(w, &range, GROUP);
    let x: [Planes; N] = std::array::from_fn(|n| Planes::of(x, rows.inputs[n] as usize));
    let together = 4 / TAIL;
    let whole = range.len() / together * together;
    // SAFETY: whole vectors of rows inside the weight, or of their copies, and of the activations' padded rows.
    unsafe {
        let to: [*mut f32; N] = std::array::from_fn(|n| out.place(rows.outputs[n], 0));
        for first in (0..whole).step_by(together) {
            let row = range.start + first;
            let codes = w.codes.as_ptr().add(row * row_bytes);
            let scales = w.scales.as_ptr().add(row * scale_bytes);
            let biases = w.biases.as_ptr().add(row * scale_bytes);
            let sums = products::<N, TAIL, KIND, GROUP>(codes, scales, biases, &x);
            for n in 0..N {
                for r in 0..together {
                    to[n].add(first + r).write(sums[n * together + r]);
                }
            }
        }
        if whole < range.len() {
            // A copy that has zeros where the next rows would be.
            let mut padded = Padded::new();
            let start = range.start + whole;
            let copy = |to: &mut [u8], from: &[u8], bytes: usize| {
                let from = &from[start * bytes..range.end * bytes];
                to[..from.len()].copy_from_slice(from);
            };
            copy(&mut padded.codes, w.codes, row_bytes);
            copy(&mut padded.scales, w.scales, scale_bytes);
            copy(&mut padded.biases, w.biases, scale_bytes);
            let [codes, scales, biases] =
                [&padded.codes[..], &padded.scales, &padded.biases].map(<[u8]>::as_ptr);
            let sums = products::<N, TAIL, KIND, GROUP>(codes, scales, biases, &x);
            for n in 0..N {
                for r in 0..range.len() - whole {
                    to[n].add(whole + r).write(sums[n * together + r]);
                }
            }
        }
    }
}

/// Products of as many weight rows as share the lanes, which lie one after the other like the parts of a chunk, with `N`
/// activation rows: those of the first activation row, then those of the next.
///
/// # Safety
/// The pointers are those of so many rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn products<const N: usize, const PARTS: usize, const KIND: u8, const GROUP: usize>(
    codes: *const u8,
    scales: *const u8,
    biases: *const u8,
    x: &[Planes; N],
) -> [f32; 4 * MOST] {
    let zero = _mm512_setzero_ps();
    let mut lanes = [zero; MOST];
    // SAFETY: the caller's promise; prefetching is harmless.
    unsafe {
        for stream in [scales, biases] {
            let ahead = stream.wrapping_add(SCALE_PREFETCH_BYTES);
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
        }
        let (even, odd) = unpack::<false>(transpose(load::<4>(codes)));
        let scale = expand::<KIND, GROUP, 4>(scales);
        let bias = expand::<KIND, GROUP, 4>(biases);
        for n in 0..N {
            let integers = block_sums(&even, &odd, x[n].planes);
            let product = _mm512_mul_ps(scale, repeat::<PARTS>(x[n].scale));
            let acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), product, zero);
            lanes[n] = _mm512_fmadd_ps(bias, repeat::<PARTS>(x[n].sum), acc);
        }
    }
    share_sums::<PARTS>(lanes, N)
}

/// The first `PARTS` · 4 numbers, repeated.
///
/// # Safety
/// There are so many.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn repeat<const PARTS: usize>(at: *const f32) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        if PARTS == 1 {
            _mm512_broadcast_f32x4(_mm_loadu_ps(at))
        } else {
            _mm512_broadcast_f32x8(_mm256_loadu_ps(at))
        }
    }
}

/// The lanes of each share of several vectors, `count` of them, added in the order of
/// [`halves_sum`](super::halves_sum), as if the other shares were zero: the sums of the first vector, then those of the next.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn share_sums<const PARTS: usize>(mut lanes: [__m512; MOST], count: usize) -> [f32; 4 * MOST] {
    let zero = _mm512_setzero_ps();
    let mut sums = [0.0; 4 * MOST];
    for n in 0..count {
        lanes[n] = _mm512_add_ps(lanes[n], zero);
    }
    if PARTS == 1 {
        // Lane n of block r is the sum of share r of vector n, and four vectors are one.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        for four in 0..count.div_ceil(4) {
            let (a, b, c, d) =
                (lanes[four * 4], lanes[four * 4 + 1], lanes[four * 4 + 2], lanes[four * 4 + 3]);
            let each = _mm512_permutexvar_ps(order, pairs(twos(a, b), twos(c, d)));
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(four * 16), each) };
        }
        return sums;
    }
    let mut fours = [zero; MOST / 2];
    for pair in 0..count.div_ceil(2) {
        let (a, b) = (lanes[2 * pair], lanes[2 * pair + 1]);
        let front = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        let back = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
        fours[pair] = _mm512_add_ps(front, back);
    }
    let [a, b, c, d] = fours;
    // Vector 2 j + h has its first share in lane j of block 2 h, and its second in the next block.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let each = _mm512_permutexvar_ps(order, pairs(twos(a, b), twos(c, d)));
    // SAFETY: sixteen floats.
    unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), each) };
    sums
}

/// In each block of four lanes: the first two and the last two of `a` added, then those of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn twos(a: __m512, b: __m512) -> __m512 {
    let (first, last) =
        (_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
    _mm512_add_ps(first, last)
}

/// In each block of four lanes: neighbours of `a` added, then those of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(a: __m512, b: __m512) -> __m512 {
    let (even, odd) =
        (_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
    _mm512_add_ps(even, odd)
}
