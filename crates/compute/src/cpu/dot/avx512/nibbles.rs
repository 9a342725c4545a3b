//! Affine nibbles in whole vectors: the kernels of decoding and of verification.
//!
//! One activation row is multiplied with two weight rows at a time. For several, a weight row's chunk is unpacked and
//! transposed once: after that each lane's codes are those of one block, and nothing is left to shuffle. The last chunk of
//! a row may have fewer parts: those that are not there have no scale and add nothing, as padding would. Rows of one or two
//! parts in all are [narrow](mod@narrow).

mod few;
mod narrow;

use std::arch::x86_64::*;
use std::ops::Range;

use self::few::few;
use self::narrow::{is_narrow, narrow_rows};
use super::{PREFETCH_BYTES, SCALE_PREFETCH_BYTES, expand, load_scales, transpose_sum};
use crate::cpu::dot::{FP4_CODES, Rows, Target};
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// Activation rows that a pass over the weights serves at most: each has a sum in a register.
pub(super) const FEW: usize = 6;
/// Weight rows that one activation row is multiplied with at a time.
pub(super) const TOGETHER: usize = 2;

/// Affine nibbles in whole vectors, the last chunk of `TAIL` parts if that is not 0: one row as it is decoded,
/// several in shares of about the same size.
///
/// # Safety
/// As [`kernel`](super::kernel).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn whole_parts<const TAIL: usize, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    assert!(x.transposed || x.rows == 1, "several rows are transposed");
    if x.transposed && is_narrow::<TAIL>(w) {
        // SAFETY: the caller's promise, passed on.
        unsafe { narrow_rows::<TAIL, KIND, GROUP>(w, range, x, rows, out) };
        return;
    }
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
                1 if x.transposed => decode::<true, TAIL, KIND, GROUP>(w, range, x, some, out),
                1 => decode::<false, TAIL, KIND, GROUP>(w, range, x, some, out),
                2 => few::<2, TAIL, KIND, GROUP>(w, range, x, some, out),
                3 => few::<3, TAIL, KIND, GROUP>(w, range, x, some, out),
                4 => few::<4, TAIL, KIND, GROUP>(w, range, x, some, out),
                5 => few::<5, TAIL, KIND, GROUP>(w, range, x, some, out),
                _ => few::<FEW, TAIL, KIND, GROUP>(w, range, x, some, out),
            }
        }
        done = end;
    }
}

/// What the kernels for whole vectors read of a weight, checked once.
struct Layout {
    row_bytes: usize,
    scale_bytes: usize,
    /// Whole chunks of a row.
    chunks: usize,
    /// Bytes of a chunk's scales.
    chunk_scales: usize,
}

impl Layout {
    fn check(w: &Matrix<'_>, range: &Range<usize>, group: usize) -> Layout {
        let row_bytes = w.encoding.row_bytes(w.cols);
        let scale_bytes = w.encoding.scale_bytes(w.cols);
        assert!(range.end <= w.rows && w.codes.len() == w.rows * row_bytes);
        assert!(w.scales.len() == w.rows * scale_bytes && w.biases.len() == w.scales.len());
        let chunk_scales = CHUNK / group * scale_bytes / (w.cols / group);
        Layout { row_bytes, scale_bytes, chunks: w.cols / CHUNK, chunk_scales }
    }
}

/// The weight rows that go together with row `index` of the first part of a range. They come from as many parts of it: as
/// streams of their own they are fetched ahead better. Where parts are shorter, the last row is computed again.
#[inline]
fn together(range: &Range<usize>, part: usize, index: usize) -> [usize; TOGETHER] {
    std::array::from_fn(|r| (index + r * part).min(range.end - 1))
}

/// Where a row of quantized activations lies.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) planes: *const i8,
    pub(super) scale: *const f32,
    pub(super) sum: *const f32,
}

impl Planes {
    fn of(x: &Activations, row: usize) -> Planes {
        debug_assert!(x.forms.paired);
        Planes::among(&x.paired, x, row)
    }

    /// The row with its bytes in one of the orders of `x`.
    pub(super) fn among(planes: &[i8], x: &Activations, row: usize) -> Planes {
        let bytes = x.blocks * BLOCK * 2;
        Planes {
            planes: planes[row * bytes..][..bytes].as_ptr(),
            scale: x.row_scale(row).as_ptr(),
            sum: x.row_sum(row).as_ptr(),
        }
    }
}

/// Integer sums of the 16 blocks of a chunk, with each of several activation rows.
///
/// # Safety
/// `codes` points to 256 bytes, each of `x` to 1,024 bytes of paired planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn sums<const N: usize, const IS_FP4: bool>(
    codes: *const u8,
    x: [*const i8; N],
    transposed: bool,
) -> [__m512i; N] {
    // Loops, not closures: those are not compiled for the instruction set.
    let mut integers = [_mm512_setzero_si512(); N];
    // SAFETY: the caller's promise.
    unsafe {
        let packed = load::<4>(codes);
        if transposed {
            let (even, odd) = unpack::<IS_FP4>(transpose(packed));
            for n in 0..N {
                integers[n] = block_sums(&even, &odd, x[n]);
            }
        } else {
            let (even, odd) = unpack::<IS_FP4>(packed);
            for n in 0..N {
                integers[n] = block_sums_of_parts(&even, &odd, x[n]);
            }
        }
    }
    integers
}

/// The first `PARTS` vectors of a chunk.
///
/// # Safety
/// `codes` points to so many.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const PARTS: usize>(codes: *const u8) -> [__m512i; 4] {
    let mut packed = [_mm512_setzero_si512(); 4];
    for part in 0..PARTS {
        // SAFETY: the caller's promise; prefetching is harmless.
        unsafe {
            let at = codes.add(part * 64);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
            packed[part] = _mm512_loadu_si512(at.cast());
        }
    }
    packed
}

/// A chunk's codes such that lane j of vector k has bytes 4k to 4k + 3 of block j.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // A vector is four blocks of four lanes. Of two vectors the first two lanes of each block, then the last two.
    let first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    let last = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    let front = [_mm512_permutex2var_epi32(a, first, b), _mm512_permutex2var_epi32(a, last, b)];
    let back = [_mm512_permutex2var_epi32(c, first, d), _mm512_permutex2var_epi32(c, last, d)];
    [
        _mm512_inserti64x4::<1>(front[0], _mm512_castsi512_si256(back[0])),
        _mm512_shuffle_i64x2::<0xee>(front[0], back[0]),
        _mm512_inserti64x4::<1>(front[1], _mm512_castsi512_si256(back[1])),
        _mm512_shuffle_i64x2::<0xee>(front[1], back[1]),
    ]
}

/// Low and high nibbles, or what they stand for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn unpack<const IS_FP4: bool>(packed: [__m512i; 4]) -> ([__m512i; 4], [__m512i; 4]) {
    let mask = _mm512_set1_epi8(15);
    // SAFETY: sixteen bytes of a constant.
    let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(FP4_CODES.as_ptr().cast())) };
    let mut even = [_mm512_setzero_si512(); 4];
    let mut odd = even;
    for part in 0..4 {
        even[part] = _mm512_and_si512(packed[part], mask);
        odd[part] = _mm512_and_si512(_mm512_srli_epi16::<4>(packed[part]), mask);
        if IS_FP4 {
            even[part] = _mm512_shuffle_epi8(table, even[part]);
            odd[part] = _mm512_shuffle_epi8(table, odd[part]);
        }
    }
    (even, odd)
}

/// Integer sums of the 16 blocks of a chunk, of transposed codes and activations.
///
/// # Safety
/// `x` points to 1,024 bytes of transposed planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn block_sums(even: &[__m512i; 4], odd: &[__m512i; 4], x: *const i8) -> __m512i {
    let mut high = _mm512_setzero_si512();
    let mut low = high;
    for k in 0..4 {
        // SAFETY: the caller's promise.
        let plane = |i: usize| unsafe { _mm512_loadu_si512(x.add(k * 256 + i * 64).cast()) };
        high = _mm512_dpbusd_epi32(high, even[k], plane(0));
        low = _mm512_dpbusd_epi32(low, even[k], plane(2));
        high = _mm512_dpbusd_epi32(high, odd[k], plane(1));
        low = _mm512_dpbusd_epi32(low, odd[k], plane(3));
    }
    _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
}

/// The same of codes and activations as they come.
///
/// # Safety
/// `x` points to 1,024 bytes of paired planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn block_sums_of_parts(even: &[__m512i; 4], odd: &[__m512i; 4], x: *const i8) -> __m512i {
    let mut d = [_mm512_setzero_si512(); 4];
    for (part, d) in d.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let plane = |i: usize| unsafe { _mm512_loadu_si512(x.add(part * 256 + i * 64).cast()) };
        let high = _mm512_dpbusd_epi32(*d, even[part], plane(0));
        let high = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(high, odd[part], plane(1)));
        let both = _mm512_dpbusd_epi32(high, even[part], plane(2));
        *d = _mm512_dpbusd_epi32(both, odd[part], plane(3));
    }
    sums_of_blocks(d)
}

/// Partial sums of the blocks added up: lane j has block j.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_blocks(d: [__m512i; 4]) -> __m512i {
    // Part p, 128-bit lane b is block 4p + b: after the transposing sum it sits at 4b + p.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, transpose_sum(d))
}

/// Scales and biases are streams of their own; a line of each serves a row or two.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch_scales(scales: *const u8, biases: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        let ahead = SCALE_PREFETCH_BYTES + line;
        _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(ahead).cast());
        _mm_prefetch::<_MM_HINT_T0>(biases.wrapping_add(ahead).cast());
    }
}

/// Decode's case: one activation row. Some weight rows go together, so that activations are loaded once for them
/// and more of the latencies overlap.
///
/// # Safety
/// As [`kernel`](super::kernel).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn decode<const TRANSPOSED: bool, const TAIL: usize, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let Layout { row_bytes, scale_bytes, chunks, chunk_scales } = Layout::check(w, &range, GROUP);
    let (x, output) = (Planes::of(x, rows.inputs[0] as usize), rows.outputs[0]);
    let part = range.len().div_ceil(TOGETHER);
    for index in range.start..range.start + part {
        let some = together(&range, part, index);
        let mut acc = [_mm512_setzero_ps(); TOGETHER];
        // SAFETY: whole vectors of rows inside the weight and of the activations' padded rows.
        unsafe {
            let codes = some.map(|row| w.codes.as_ptr().add(row * row_bytes));
            let scales = some.map(|row| w.scales.as_ptr().add(row * scale_bytes));
            let biases = some.map(|row| w.biases.as_ptr().add(row * scale_bytes));
            for r in 0..TOGETHER {
                prefetch_scales(scales[r], biases[r], scale_bytes);
            }
            for c in 0..chunks {
                let (codes, at) = (codes.map(|codes| codes.add(c * CHUNK / 2)), c * chunk_scales);
                let (scales, biases) = (scales.map(|s| s.add(at)), biases.map(|b| b.add(at)));
                add_together::<TRANSPOSED, 4, KIND, GROUP>(codes, scales, biases, &x, c, &mut acc);
            }
            if TAIL > 0 {
                let at = chunks * chunk_scales;
                let codes = codes.map(|codes| codes.add(chunks * CHUNK / 2));
                let (scales, biases) = (scales.map(|s| s.add(at)), biases.map(|b| b.add(at)));
                add_together::<TRANSPOSED, TAIL, KIND, GROUP>(
                    codes, scales, biases, &x, chunks, &mut acc,
                );
            }
            for r in 0..TOGETHER {
                out.put(output, some[r] - range.start, halves_sum(acc[r]));
            }
        }
    }
}

/// Adds the products of a chunk of some weight rows, or of its first `PARTS` parts, with one activation row.
///
/// # Safety
/// The pointers are those of a chunk with so many parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn add_together<
    const TRANSPOSED: bool,
    const PARTS: usize,
    const KIND: u8,
    const GROUP: usize,
>(
    codes: [*const u8; TOGETHER],
    scales: [*const u8; TOGETHER],
    biases: [*const u8; TOGETHER],
    x: &Planes,
    chunk: usize,
    acc: &mut [__m512; TOGETHER],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let planes = x.planes.add(chunk * 2 * CHUNK);
        let mut integers = [_mm512_setzero_si512(); TOGETHER];
        if TRANSPOSED {
            for r in 0..TOGETHER {
                let (even, odd) = unpack::<false>(transpose(load::<PARTS>(codes[r])));
                integers[r] = block_sums(&even, &odd, planes);
            }
        } else {
            integers = sums_together::<PARTS>(codes, planes);
        }
        let x_scale = _mm512_loadu_ps(x.scale.add(chunk * LANE_BLOCKS));
        let x_sum = _mm512_loadu_ps(x.sum.add(chunk * LANE_BLOCKS));
        for r in 0..TOGETHER {
            let scale = expand::<KIND, GROUP, PARTS>(scales[r]);
            let bias = expand::<KIND, GROUP, PARTS>(biases[r]);
            let product = _mm512_mul_ps(scale, x_scale);
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[r]), product, acc[r]);
            acc[r] = _mm512_fmadd_ps(bias, x_sum, acc[r]);
        }
    }
}

/// Integer sums of the 16 blocks of a chunk, or of its first `PARTS` parts, for some weight rows.
///
/// # Safety
/// Each of `codes` points to 64 bytes a part, `x` to 1,024 bytes of paired planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums_together<const PARTS: usize>(
    codes: [*const u8; TOGETHER],
    x: *const i8,
) -> [__m512i; TOGETHER] {
    let mask = _mm512_set1_epi8(15);
    let mut d = [[_mm512_setzero_si512(); 4]; TOGETHER];
    for part in 0..PARTS {
        // SAFETY: 4 · 64 bytes of codes and 4 · 256 of planes; prefetching is harmless.
        unsafe {
            let plane = |i: usize| _mm512_loadu_si512(x.add(part * 256 + i * 64).cast());
            let (high_even, high_odd, low_even, low_odd) = (plane(0), plane(1), plane(2), plane(3));
            for r in 0..TOGETHER {
                let at = codes[r].add(part * 64);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
                let packed = _mm512_loadu_si512(at.cast());
                let even = _mm512_and_si512(packed, mask);
                let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, high_even);
                let high = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(high, odd, high_odd));
                d[r][part] =
                    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(high, even, low_even), odd, low_odd);
            }
        }
    }
    let mut sums = [_mm512_setzero_si512(); TOGETHER];
    for r in 0..TOGETHER {
        sums[r] = sums_of_blocks(d[r]);
    }
    sums
}

/// The sixteen lanes added in halves: the order of [`sum_lanes`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn halves_sum(lanes: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
