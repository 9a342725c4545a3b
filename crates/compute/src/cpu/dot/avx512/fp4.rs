//! mxfp4: the kernels of decoding and of verification, as for affine nibbles.
//!
//! One activation row is multiplied with two weight rows at a time, several with one whose chunk is unpacked once. The
//! last chunk of a row goes on into the next row: padding of activations has no scale, so
//! what stands there adds nothing. Only where there is no next row it is copied and padded.

use std::arch::x86_64::*;
use std::ops::Range;

use super::nibbles::{FEW, TOGETHER, sums};
use super::{SCALE_PREFETCH_BYTES, expand};
use crate::cpu::dot::{FP4_ZERO, Padded, Row, Rows, Target, chunk};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// Products of weight rows `range` with some activation rows: one as it is decoded, several in shares of about the
/// same size.
///
/// # Safety
/// As [`kernel`](super::kernel), for an mxfp4 weight.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn multiply(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let shares = rows.inputs.len().div_ceil(FEW);
    let mut done = 0;
    for share in 1..=shares {
        let end = rows.inputs.len() * share / shares;
        let some = Rows { inputs: &rows.inputs[done..end], outputs: &rows.outputs[done..end] };
        let range = range.clone();
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match end - done {
                0 => {}
                1 if x.transposed => decode::<true>(w, range, x, some, out),
                1 => decode::<false>(w, range, x, some, out),
                2 => few::<2>(w, range, x, some, out),
                3 => few::<3>(w, range, x, some, out),
                4 => few::<4>(w, range, x, some, out),
                5 => few::<5>(w, range, x, some, out),
                _ => few::<FEW>(w, range, x, some, out),
            }
        }
        done = end;
    }
}

/// A weight whose rows are read a chunk at a time.
struct Codes<'a> {
    w: &'a Matrix<'a>,
    row_bytes: usize,
    scale_bytes: usize,
    /// Whole chunks of a row.
    whole: usize,
    /// Chunks of a row.
    chunks: usize,
}

/// Where the codes of a chunk lie, and its scales.
#[derive(Clone, Copy)]
struct Chunk {
    codes: *const u8,
    scales: *const u8,
}

impl<'a> Codes<'a> {
    fn new(w: &'a Matrix<'a>, range: &Range<usize>, x: &Activations) -> Codes<'a> {
        let row_bytes = w.encoding.row_bytes(w.cols);
        let scale_bytes = w.encoding.scale_bytes(w.cols);
        assert!(range.end <= w.rows && w.codes.len() == w.rows * row_bytes);
        assert!(w.scales.len() == w.rows * scale_bytes);
        assert!(w.cols.is_multiple_of(BLOCK));
        let (whole, chunks) = (w.cols / CHUNK, x.blocks / LANE_BLOCKS);
        Codes { w, row_bytes, scale_bytes, whole, chunks }
    }

    /// The first chunk of a row; the others follow it.
    #[inline(always)]
    fn row(&self, index: usize) -> Chunk {
        let scales = self.w.scales[index * self.scale_bytes..].as_ptr();
        for line in (0..self.scale_bytes).step_by(64) {
            let ahead = scales.wrapping_add(SCALE_PREFETCH_BYTES + line);
            // SAFETY: prefetching is harmless.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
        }
        Chunk { codes: self.w.codes[index * self.row_bytes..].as_ptr(), scales }
    }

    /// A row's last chunk if it is not whole: where it lies, or a copy where the weight ends before it does.
    #[inline(always)]
    fn last(&self, index: usize, padded: &mut Option<Padded>) -> Chunk {
        let row = self.row(index);
        let codes_at = index * self.row_bytes + self.whole * CHUNK / 2;
        let scales_at = index * self.scale_bytes + self.whole * LANE_BLOCKS;
        let codes_end = codes_at + CHUNK / 2;
        if codes_end <= self.w.codes.len() && scales_at + LANE_BLOCKS <= self.w.scales.len() {
            return row.at(self.whole);
        }
        let (codes, scales, _) =
            chunk(&Row::new(self.w, index), self.whole, padded.insert(Padded::new()));
        Chunk { codes: codes.as_ptr(), scales: scales.as_ptr() }
    }
}

impl Chunk {
    /// The chunk that comes `count` later.
    #[inline(always)]
    fn at(self, count: usize) -> Chunk {
        Chunk {
            codes: self.codes.wrapping_add(count * CHUNK / 2),
            scales: self.scales.wrapping_add(count * LANE_BLOCKS),
        }
    }
}

/// Where a row of quantized activations lies.
#[derive(Clone, Copy)]
struct Planes {
    planes: *const i8,
    scale: *const f32,
    sum: *const i32,
}

impl Planes {
    fn of(x: &Activations, row: usize) -> Planes {
        debug_assert!(x.forms.paired);
        let bytes = x.blocks * BLOCK * 2;
        Planes {
            planes: x.paired[row * bytes..][..bytes].as_ptr(),
            scale: x.row_scale(row).as_ptr(),
            sum: x.row_integer_sum(row).as_ptr(),
        }
    }

    /// What codes have too much, for each block of a chunk: twelve times its sum.
    ///
    /// # Safety
    /// There is such a chunk.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn zero(&self, chunk: usize) -> __m512i {
        // SAFETY: the caller's promise.
        let sums = unsafe { _mm512_loadu_si512(self.sum.add(chunk * LANE_BLOCKS).cast()) };
        _mm512_mullo_epi32(sums, _mm512_set1_epi32(FP4_ZERO))
    }
}

/// Decode's case: one activation row. Some weight rows go together, so that activations are loaded once for them
/// and more of the latencies overlap.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn decode<const TRANSPOSED: bool>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let codes = Codes::new(w, &range, x);
    let (x, output) = (Planes::of(x, rows.inputs[0] as usize), rows.outputs[0]);
    // They come from as many parts of the range: as streams of their own they are fetched ahead better.
    let part = range.len().div_ceil(TOGETHER);
    for index in range.start..range.start + part {
        // Where parts are shorter, the last row is computed again.
        let some: [usize; TOGETHER] =
            std::array::from_fn(|r| (index + r * part).min(range.end - 1));
        let mut acc = [_mm512_setzero_ps(); TOGETHER];
        let first = some.map(|row| codes.row(row));
        // SAFETY: whole chunks of rows inside the weight or padded, and of the activations' padded rows.
        unsafe {
            for c in 0..codes.whole {
                add_together::<TRANSPOSED>(first.map(|row| row.at(c)), &x, c, &mut acc);
            }
            if codes.chunks > codes.whole {
                let (mut one, mut two) = (None, None);
                let last = [codes.last(some[0], &mut one), codes.last(some[1], &mut two)];
                add_together::<TRANSPOSED>(last, &x, codes.whole, &mut acc);
            }
            for r in 0..TOGETHER {
                out.put(output, some[r] - range.start, lanes_sum(acc[r]));
            }
        }
    }
}

/// Adds the products of a chunk of some weight rows with one activation row.
///
/// # Safety
/// There are such chunks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn add_together<const TRANSPOSED: bool>(
    w: [Chunk; TOGETHER],
    x: &Planes,
    chunk: usize,
    acc: &mut [__m512; TOGETHER],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let planes = x.planes.add(chunk * 2 * CHUNK);
        let zero = x.zero(chunk);
        let x_scale = _mm512_loadu_ps(x.scale.add(chunk * LANE_BLOCKS));
        for r in 0..TOGETHER {
            let [integers] = sums::<1, true>(w[r].codes, [planes], TRANSPOSED);
            let integers = _mm512_cvtepi32_ps(_mm512_sub_epi32(integers, zero));
            let product = _mm512_mul_ps(expand::<3, 32, 4>(w[r].scales), x_scale);
            acc[r] = _mm512_fmadd_ps(integers, product, acc[r]);
        }
    }
}

/// Verification's case: weight rows with `N` transposed activation rows.
///
/// # Safety
/// As [`multiply`]; there are `N` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn few<const N: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let codes = Codes::new(w, &range, x);
    let x: [Planes; N] = std::array::from_fn(|n| Planes::of(x, rows.inputs[n] as usize));
    for index in range.clone() {
        let mut acc = [_mm512_setzero_ps(); N];
        let row = codes.row(index);
        // SAFETY: whole chunks of a row inside the weight or padded, and of the activations' padded rows.
        unsafe {
            for c in 0..codes.whole {
                add_chunk::<N>(row.at(c), &x, c, &mut acc);
            }
            if codes.chunks > codes.whole {
                let mut padded = None;
                let last = codes.last(index, &mut padded);
                add_chunk::<N>(last, &x, codes.whole, &mut acc);
            }
            for n in 0..N {
                out.put(rows.outputs[n], index - range.start, lanes_sum(acc[n]));
            }
        }
    }
}

/// Adds the products of a chunk of one weight row with `N` activation rows.
///
/// # Safety
/// There is such a chunk.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn add_chunk<const N: usize>(
    w: Chunk,
    x: &[Planes; N],
    chunk: usize,
    acc: &mut [__m512; N],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let planes: [*const i8; N] = std::array::from_fn(|n| x[n].planes.add(chunk * 2 * CHUNK));
        let integers = sums::<N, true>(w.codes, planes, true);
        let scale = expand::<3, 32, 4>(w.scales);
        for n in 0..N {
            let x_scale = _mm512_loadu_ps(x[n].scale.add(chunk * LANE_BLOCKS));
            let integers = _mm512_sub_epi32(integers[n], x[n].zero(chunk));
            let product = _mm512_mul_ps(scale, x_scale);
            acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), product, acc[n]);
        }
    }
}

/// The sixteen lanes added in halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_sum(acc: __m512) -> f32 {
    let mut lanes = [0.0f32; LANE_BLOCKS];
    // SAFETY: sixteen floats.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), acc) };
    sum_lanes(lanes)
}
