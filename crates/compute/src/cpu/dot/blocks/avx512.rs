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
use crate::cpu::quantise::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
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
                >(w, format, range, x, rows, out),)*
                // Of the others none has offsets.
                _ if is_halved => kernel::<LOOPS, true, false>(w, format, range, x, rows, out),
                _ => kernel::<LOOPS, false, false>(w, format, range, x, rows, out),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { by_format!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4) }
}

/// Where a row of quantised activations lies.
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
/// As [`multiply_rows`]; the constants must be those of the format.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn kernel<const ID: u32, const HALVED: bool, const BIASED: bool>(
    w: &Matrix<'_>,
    format: BlockFormat,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let (row_bytes, chunk_bytes) = (format.row_bytes(w.cols), format.row_bytes(CHUNK));
    let (chunks, zero) = (x.blocks / LANE_BLOCKS, shape(format).zero);
    let mut plain = Plain::new();
    let mut padded = [0; MOST_BYTES];
    let mut sums: [Lanes; TOGETHER] = [[0.0; LANE_BLOCKS]; TOGETHER];
    for (inputs, outputs) in rows.inputs.chunks(TOGETHER).zip(rows.outputs.chunks(TOGETHER)) {
        let mut some = [Input::new(x, inputs[0] as usize, HALVED); TOGETHER];
        for (to, &row) in some.iter_mut().zip(inputs) {
            *to = Input::new(x, row as usize, HALVED);
        }
        let some = &some[..inputs.len()];
        for (i, index) in range.clone().enumerate() {
            let row = &w.codes[index * row_bytes..][..row_bytes];
            let mut acc = [_mm512_setzero_ps()];
            sums[..some.len()].fill([0.0; LANE_BLOCKS]);
            for chunk in 0..chunks {
                let at = chunk * chunk_bytes;
                let bytes = if let Some(bytes) = row.get(at..at + chunk_bytes) {
                    bytes
                } else {
                    // The scales of zero bytes are zero, or times the zero of padded activations.
                    let rest = &row[at..];
                    padded[..rest.len()].copy_from_slice(rest);
                    &padded[..chunk_bytes]
                };
                // SAFETY: a whole chunk of blocks; the inputs have as many chunks.
                unsafe {
                    expand_one::<ID>(format, bytes, &mut plain);
                    if let &[input] = some {
                        acc = add::<1, HALVED, BIASED>(zero, &plain, [input], chunk, acc);
                        continue;
                    }
                    let (fours, rest) = some.as_chunks::<4>();
                    for (n, &inputs) in fours.iter().enumerate() {
                        let sums = sums[4 * n..].first_chunk_mut().expect("four");
                        add_to::<4, HALVED, BIASED>(zero, &plain, inputs, chunk, sums);
                    }
                    let done = some.len() - rest.len();
                    for (&input, sums) in rest.iter().zip(&mut sums[done..]) {
                        let sums = std::array::from_mut(sums);
                        add_to::<1, HALVED, BIASED>(zero, &plain, [input], chunk, sums);
                    }
                }
            }
            if some.len() == 1 {
                // SAFETY: sixteen floats.
                unsafe { _mm512_storeu_ps(sums[0].as_mut_ptr(), acc[0]) };
            }
            for (&output, sums) in outputs.iter().zip(&sums) {
                // SAFETY: within the bounds the caller promised.
                unsafe { out.put(output, i, sum_lanes(*sums)) };
            }
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
