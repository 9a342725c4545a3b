//! Products of blocks with AVX-512 VNNI: 64 codes and a byte plane of the activations at a time.
//!
//! One kernel for each format: nothing is decided inside the loops. The transposing reduction gives the sums of 16 codes,
//! which formats with two scales a block take as they are.

mod expand;

use std::arch::x86_64::*;
use std::ops::Range;

use format::BlockFormat;

pub(super) use self::expand::expand;
use self::expand::{LOOPS, expand_one};
use super::{Lanes, MOST_BYTES, Plain, TOGETHER, shape};
use crate::cpu::dot::{Rows, Target, transpose_sum};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// Products of weight rows `range` with some activation rows.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL, DQ and VNNI. `out` must have room for every output row and column; no other
/// thread may touch the elements written meanwhile.
pub(super) unsafe fn multiply_rows(
    w: &Matrix<'_>,
    format: BlockFormat,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    debug_assert!(x.forms.natural);
    let is_halved = shape(format).is_halved;
    macro_rules! by_format {
        ($($variant:ident)*) => {
            match format {
                $(BlockFormat::$variant => kernel::<
                    { BlockFormat::$variant.id() },
                    { shape(BlockFormat::$variant).is_halved },
                    { shape(BlockFormat::$variant).is_biased },
                    { BlockFormat::$variant.row_bytes(CHUNK) },
                >(w, format, range, x, rows, out),)*
                // Of the others none has offsets.
                _ if is_halved => kernel::<LOOPS, true, false, 0>(w, format, range, x, rows, out),
                _ => kernel::<LOOPS, false, false, 0>(w, format, range, x, rows, out),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { by_format!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4) }
}

/// Where a row of quantized activations lies.
#[derive(Clone, Copy)]
struct Input {
    planes: *const i8,
    scale: *const f32,
    sum: *const f32,
    integer_sum: *const i32,
    /// As `integer_sum` where halves do not count.
    first_sum: *const i32,
}

impl Input {
    fn new(x: &Activations, row: usize, is_halved: bool) -> Input {
        let bytes = x.blocks * BLOCK * 2;
        let integer_sum = x.row_integer_sum(row);
        Input {
            planes: x.planes[row * bytes..][..bytes].as_ptr(),
            scale: x.row_scale(row).as_ptr(),
            sum: x.row_sum(row).as_ptr(),
            integer_sum: integer_sum.as_ptr(),
            first_sum: if is_halved { x.row_first_sum(row) } else { integer_sum }.as_ptr(),
        }
    }
}

/// # Safety
/// As [`multiply_rows`]; the constants must be those of the format, with the bytes of a chunk, or 0 where loops expand it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn kernel<const ID: u32, const HALVED: bool, const BIASED: bool, const BYTES: usize>(
    w: &Matrix<'_>,
    format: BlockFormat,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    for (inputs, outputs) in rows.inputs.chunks(TOGETHER).zip(rows.outputs.chunks(TOGETHER)) {
        let rows = Rows { inputs, outputs };
        let range = range.clone();
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match inputs.len() {
                1 => decode::<ID, HALVED, BIASED, BYTES>(w, format, range, x, rows, out),
                _ => several::<ID, HALVED, BIASED, BYTES>(w, format, range, x, rows, out),
            }
        }
    }
}

/// What both kernels read of a weight.
struct Layout {
    row_bytes: usize,
    chunk_bytes: usize,
    /// Whole chunks of a row.
    whole: usize,
    zero: i32,
}

impl Layout {
    fn new(format: BlockFormat, chunk_bytes: usize, cols: usize) -> Layout {
        let chunk_bytes = if chunk_bytes == 0 { format.row_bytes(CHUNK) } else { chunk_bytes };
        let row_bytes = format.row_bytes(cols);
        Layout { row_bytes, chunk_bytes, whole: cols / CHUNK, zero: shape(format).zero }
    }

    /// The short last chunk of a row, as a whole one. The scales of zero bytes are zero, or times the zero of padded
    /// activations.
    fn tail(&self, row: &[u8]) -> Option<[u8; MOST_BYTES]> {
        let rest = &row[self.whole * self.chunk_bytes..];
        if rest.is_empty() {
            return None;
        }
        let mut padded = [0; MOST_BYTES];
        padded[..rest.len()].copy_from_slice(rest);
        Some(padded)
    }
}

/// One activation row.
///
/// # Safety
/// As [`kernel`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn decode<const ID: u32, const HALVED: bool, const BIASED: bool, const BYTES: usize>(
    w: &Matrix<'_>,
    format: BlockFormat,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let layout = Layout::new(format, BYTES, w.cols);
    let chunk_bytes = if BYTES == 0 { layout.chunk_bytes } else { BYTES };
    let input = [Input::new(x, rows.inputs[0] as usize, HALVED)];
    let (zero, whole) = (layout.zero, layout.whole);
    let mut plain = Plain::new();
    // Two weight rows at a time, from both halves of the range: two streams are fetched ahead better than one. Where the
    // second half is shorter, its last row is computed again.
    let part = range.len().div_ceil(2);
    for i in 0..part {
        let places = [i, (i + part).min(range.len() - 1)];
        let mut acc = [[_mm512_setzero_ps()]; 2];
        let bytes = layout.row_bytes;
        let first = &w.codes[(range.start + places[0]) * bytes..][..bytes];
        let second = &w.codes[(range.start + places[1]) * bytes..][..bytes];
        // SAFETY: whole chunks of blocks; the input has as many, and a padded one where rows have.
        unsafe {
            for chunk in 0..whole {
                let at = chunk * chunk_bytes;
                expand_one::<ID>(format, first.as_ptr().add(at), chunk_bytes, &mut plain);
                acc[0] = add::<1, HALVED, BIASED>(zero, &plain, input, chunk, acc[0]);
                expand_one::<ID>(format, second.as_ptr().add(at), chunk_bytes, &mut plain);
                acc[1] = add::<1, HALVED, BIASED>(zero, &plain, input, chunk, acc[1]);
            }
            for (row, acc) in [first, second].into_iter().zip(&mut acc) {
                if let Some(padded) = layout.tail(row) {
                    expand_one::<ID>(format, padded.as_ptr(), chunk_bytes, &mut plain);
                    *acc = add::<1, HALVED, BIASED>(zero, &plain, input, whole, *acc);
                }
            }
        }
        for (place, [acc]) in places.into_iter().zip(acc) {
            let mut lanes = [0.0; LANE_BLOCKS];
            // SAFETY: sixteen floats; the output has room for this one.
            unsafe {
                _mm512_storeu_ps(lanes.as_mut_ptr(), acc);
                out.put(rows.outputs[0], place, sum_lanes(lanes));
            }
        }
    }
}

/// Several activation rows, with sums in memory: a chunk is expanded once for all of them.
///
/// # Safety
/// As [`kernel`], with at most [`TOGETHER`] rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn several<const ID: u32, const HALVED: bool, const BIASED: bool, const BYTES: usize>(
    w: &Matrix<'_>,
    format: BlockFormat,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let layout = Layout::new(format, BYTES, w.cols);
    let chunk_bytes = if BYTES == 0 { layout.chunk_bytes } else { BYTES };
    let mut inputs = [Input::new(x, rows.inputs[0] as usize, HALVED); TOGETHER];
    for (input, &row) in inputs.iter_mut().zip(rows.inputs) {
        *input = Input::new(x, row as usize, HALVED);
    }
    let (fours, rest) = inputs[..rows.inputs.len()].as_chunks::<4>();
    let mut plain = Plain::new();
    let mut sums: [Lanes; TOGETHER] = [[0.0; LANE_BLOCKS]; TOGETHER];
    for (i, index) in range.enumerate() {
        let row = &w.codes[index * layout.row_bytes..][..layout.row_bytes];
        let (zero, tail) = (layout.zero, layout.tail(row));
        let sums = &mut sums[..rows.inputs.len()];
        sums.fill([0.0; LANE_BLOCKS]);
        for chunk in 0..layout.whole + usize::from(tail.is_some()) {
            let from = match &tail {
                Some(padded) if chunk == layout.whole => padded.as_ptr(),
                _ => row[chunk * chunk_bytes..][..chunk_bytes].as_ptr(),
            };
            let (sums_of_fours, sums_of_rest) = sums.as_chunks_mut::<4>();
            // SAFETY: whole chunks of blocks; the inputs have as many.
            unsafe {
                expand_one::<ID>(format, from, chunk_bytes, &mut plain);
                for (&inputs, sums) in fours.iter().zip(sums_of_fours) {
                    add_to::<4, HALVED, BIASED>(zero, &plain, inputs, chunk, sums);
                }
                for (&input, sums) in rest.iter().zip(sums_of_rest) {
                    let sums = std::array::from_mut(sums);
                    add_to::<1, HALVED, BIASED>(zero, &plain, [input], chunk, sums);
                }
            }
        }
        for (&output, sums) in rows.outputs.iter().zip(sums) {
            // SAFETY: within the bounds the caller promised.
            unsafe { out.put(output, i, sum_lanes(*sums)) };
        }
    }
}

/// [`add`] to sums in memory.
///
/// # Safety
/// As [`add`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add_to<const N: usize, const HALVED: bool, const BIASED: bool>(
    zero: i32,
    plain: &Plain,
    inputs: [Input; N],
    chunk: usize,
    sums: &mut [Lanes; N],
) {
    let mut acc = [_mm512_setzero_ps(); N];
    // SAFETY: sixteen floats each; the rest is the caller's promise.
    unsafe {
        for n in 0..N {
            acc[n] = _mm512_loadu_ps(sums[n].as_ptr());
        }
        acc = add::<N, HALVED, BIASED>(zero, plain, inputs, chunk, acc);
        for n in 0..N {
            _mm512_storeu_ps(sums[n].as_mut_ptr(), acc[n]);
        }
    }
}

/// Adds the products of one chunk to the sums of each activation row.
///
/// # Safety
/// The inputs must have that chunk.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add<const N: usize, const HALVED: bool, const BIASED: bool>(
    zero: i32,
    plain: &Plain,
    inputs: [Input; N],
    chunk: usize,
    mut acc: [__m512; N],
) -> [__m512; N] {
    let at = chunk * LANE_BLOCKS;
    let zeros = _mm512_set1_epi32(zero);
    // SAFETY: sixteen numbers each.
    unsafe {
        let scales = load_floats(&plain.scales);
        let biases = load_floats(&plain.biases);
        let integers = sums_of_halves(plain, inputs, chunk);
        for n in 0..N {
            let [mut a, mut b] = integers[n];
            let scale = _mm512_loadu_ps(inputs[n].scale.add(at));
            if HALVED {
                let first = _mm512_loadu_si512(inputs[n].first_sum.add(at).cast());
                let all = _mm512_loadu_si512(inputs[n].integer_sum.add(at).cast());
                let second = _mm512_sub_epi32(all, first);
                if !BIASED {
                    a = _mm512_sub_epi32(a, _mm512_mullo_epi32(first, zeros));
                    b = _mm512_sub_epi32(b, _mm512_mullo_epi32(second, zeros));
                }
                let product = _mm512_mul_ps(scales[0], scale);
                acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), product, acc[n]);
                let product = _mm512_mul_ps(scales[1], scale);
                acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), product, acc[n]);
                if BIASED {
                    let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(first), scale);
                    acc[n] = _mm512_fmadd_ps(biases[0], sum, acc[n]);
                    let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(second), scale);
                    acc[n] = _mm512_fmadd_ps(biases[1], sum, acc[n]);
                }
            } else {
                let mut integer = _mm512_add_epi32(a, b);
                if !BIASED {
                    let all = _mm512_loadu_si512(inputs[n].integer_sum.add(at).cast());
                    integer = _mm512_sub_epi32(integer, _mm512_mullo_epi32(all, zeros));
                }
                let product = _mm512_mul_ps(scales[0], scale);
                acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integer), product, acc[n]);
                if BIASED {
                    let sum = _mm512_loadu_ps(inputs[n].sum.add(at));
                    acc[n] = _mm512_fmadd_ps(biases[0], sum, acc[n]);
                }
            }
        }
    }
    acc
}

/// The numbers of blocks, or of their halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_floats(lanes: &[Lanes; 2]) -> [__m512; 2] {
    // SAFETY: sixteen floats each.
    unsafe { [_mm512_loadu_ps(lanes[0].as_ptr()), _mm512_loadu_ps(lanes[1].as_ptr())] }
}

/// Integer sums of the first halves of the 16 blocks and of the second halves.
///
/// # Safety
/// The inputs must have that chunk.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums_of_halves<const N: usize>(
    plain: &Plain,
    inputs: [Input; N],
    chunk: usize,
) -> [[__m512i; 2]; N] {
    let mut eights = [[_mm512_setzero_si512(); N]; 2];
    for (eight, sums) in eights.iter_mut().enumerate() {
        let mut d = [[_mm512_setzero_si512(); 4]; N];
        for i in 0..4 {
            let part = 4 * eight + i;
            // SAFETY: 8 · 64 codes and 8 · 128 bytes of planes.
            unsafe {
                let code = _mm512_load_si512(plain.codes.as_ptr().add(part * 64).cast());
                for n in 0..N {
                    let x = inputs[n].planes.add(chunk * 2 * CHUNK + part * 128);
                    let high = _mm512_loadu_si512(x.cast());
                    let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), code, high);
                    let low = _mm512_loadu_si512(x.add(64).cast());
                    d[n][i] = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(high), code, low);
                }
            }
        }
        for n in 0..N {
            sums[n] = transpose_sum(d[n]);
        }
    }
    // Part p holds blocks 2p (128-bit lanes 0 and 1) and 2p + 1 (lanes 2 and 3).
    let first = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    let second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
    let mut out = [[first; 2]; N];
    for n in 0..N {
        out[n][0] = _mm512_permutex2var_epi32(eights[0][n], first, eights[1][n]);
        out[n][1] = _mm512_permutex2var_epi32(eights[0][n], second, eights[1][n]);
    }
    out
}
