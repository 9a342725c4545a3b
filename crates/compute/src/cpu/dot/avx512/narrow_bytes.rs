//! Rows of bytes that are half a chunk at most, such as those of a small model's router: a vector has the sums of all their
//! blocks, and nothing is padded.

use std::arch::x86_64::*;
use std::ops::Range;

use super::nibbles::Planes;
use super::{PREFETCH_BYTES, SCALE_PREFETCH_BYTES, load_scales, spread, transpose_sum};
use crate::cpu::dot::{Row, Rows, Target};
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// Columns at most.
pub(super) const MOST_COLS: usize = CHUNK / 2;
/// Vectors of that many codes.
const PIECES: usize = MOST_COLS / 64;
/// Blocks of that many columns.
const BLOCKS: usize = MOST_COLS / BLOCK;

/// Products of weight rows with activation rows.
///
/// # Safety
/// As [`kernel`](super::kernel); a row has [`MOST_COLS`] at most.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn narrow_bytes<const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    assert!(w.cols <= MOST_COLS && x.blocks == LANE_BLOCKS);
    debug_assert!(x.forms.natural);
    for (i, index) in range.enumerate() {
        let row = Row::new(w, index);
        // SAFETY: masks leave out what is not there; a row of activations is a whole chunk, just checked.
        unsafe {
            let weights = Weights::load::<KIND, GROUP>(&row);
            let mut done = 0;
            while done < rows.inputs.len() {
                let place = |n: usize| Planes::among(&x.planes, x, rows.inputs[done + n] as usize);
                if rows.inputs.len() - done >= 4 {
                    let results = products(&weights, [place(0), place(1), place(2), place(3)]);
                    for (n, result) in results.into_iter().enumerate() {
                        out.put(rows.outputs[done + n], i, result);
                    }
                    done += 4;
                } else {
                    let [result] = products(&weights, [place(0)]);
                    out.put(rows.outputs[done], i, result);
                    done += 1;
                }
            }
        }
    }
}

/// A weight row.
struct Weights {
    codes: [__m512i; PIECES],
    scale: __m256,
    bias: __m256,
}

impl Weights {
    /// # Safety
    /// The row has [`MOST_COLS`] at most.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    unsafe fn load<const KIND: u8, const GROUP: usize>(row: &Row<'_>) -> Weights {
        let groups = row.cols.div_ceil(GROUP);
        assert!(row.codes.len() >= row.cols && row.scales.len() >= groups * row.scale_size());
        assert!(row.biases.len() >= groups * row.scale_size());
        let mut codes = [_mm512_setzero_si512(); PIECES];
        for piece in 0..PIECES {
            let count = row.cols.saturating_sub(64 * piece).min(64);
            let mask = if count == 64 { !0 } else { (1 << count) - 1 };
            let at = row.codes.as_ptr().wrapping_add(64 * piece);
            // SAFETY: the mask leaves out what is not there; prefetching is harmless.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
                codes[piece] = _mm512_maskz_loadu_epi8(mask, at.cast());
            }
        }
        let mut scales = [_mm256_setzero_ps(); 2];
        for (to, from) in scales.iter_mut().zip([row.scales, row.biases]) {
            // SAFETY: so many scales are there; prefetching is harmless.
            unsafe {
                let ahead = from.as_ptr().wrapping_add(SCALE_PREFETCH_BYTES);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                let all = spread::<GROUP>(load_scales::<KIND>(from.as_ptr(), groups));
                *to = _mm512_castps512_ps256(all);
            }
        }
        Weights { codes, scale: scales[0], bias: scales[1] }
    }
}

/// Products of a weight row with `N` activation rows.
///
/// # Safety
/// Behind each of `x` is a chunk.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn products<const N: usize>(weights: &Weights, x: [Planes; N]) -> [f32; N] {
    let mut d = [[_mm512_setzero_si512(); PIECES]; N];
    let mut results = [0.0; N];
    // SAFETY: the caller's promise.
    unsafe {
        for n in 0..N {
            for piece in 0..PIECES {
                let at = x[n].planes.add(piece * 128);
                let (high, low) =
                    (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast()));
                let code = weights.codes[piece];
                let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), code, high);
                d[n][piece] = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(high), code, low);
            }
        }
        // Piece p has blocks 2p (128-bit lanes 0 and 1) and 2p + 1 (lanes 2 and 3): halves of block 2p are at p and 4 + p.
        let first = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 0, 0, 0, 0, 0, 0, 0, 0);
        let second = _mm512_setr_epi32(4, 12, 5, 13, 6, 14, 7, 15, 0, 0, 0, 0, 0, 0, 0, 0);
        for n in 0..N {
            let sums = transpose_sum(d[n]);
            let blocks = _mm512_add_epi32(
                _mm512_permutexvar_epi32(first, sums),
                _mm512_permutexvar_epi32(second, sums),
            );
            let integers = _mm256_cvtepi32_ps(_mm512_castsi512_si256(blocks));
            let scale = _mm256_mul_ps(weights.scale, _mm256_loadu_ps(x[n].scale));
            let product = _mm256_mul_ps(integers, scale);
            let acc = _mm256_fmadd_ps(weights.bias, _mm256_loadu_ps(x[n].sum), product);
            results[n] = sum_of_blocks(acc);
        }
    }
    results
}

/// The blocks added in the order of [`sum_lanes`](crate::cpu::lanes::sum_lanes), as if eight more were zero.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn sum_of_blocks(blocks: __m256) -> f32 {
    const { assert!(BLOCKS == 8) };
    let blocks = _mm256_add_ps(blocks, _mm256_setzero_ps());
    let fours = _mm_add_ps(_mm256_castps256_ps128(blocks), _mm256_extractf128_ps::<1>(blocks));
    let twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)))
}
