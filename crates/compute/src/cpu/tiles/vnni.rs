//! The same tile products on AVX-512 VNNI: a zmm register is 16 tokens, four columns at a time.
//!
//! On machines whose tile unit is slow (virtual machines that share it, for one) this is the faster of
//! the two, and it is what a machine without AMX uses. The integers are exact either way.

use std::arch::x86_64::*;

use super::{Panel, ROWS, TOKENS, Tile};
use crate::cpu::quantize::BLOCK;

/// Weight rows whose sums take turns: each product waits for the one before it, so one or two rows alone would mostly wait.
const TOGETHER: usize = 8;

/// Multiplies one block of 32 rows with 16 tokens and adds it, scaled, to the sums (or begins them).
///
/// # Safety
/// AVX-512 with VNNI; `visit` is that of a block of both the panel and the tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
pub(super) unsafe fn block<const FIRST: bool>(
    panel: &Panel,
    tile: &Tile,
    visit: usize,
    sums: &mut [[f32; TOKENS]; ROWS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (panel.zero != 0, panel.biased) {
            (false, true) if panel.halved => halves::<FIRST, true>(panel, tile, visit, sums),
            (_, _) if panel.halved => halves::<FIRST, false>(panel, tile, visit, sums),
            (false, true) => block_of::<FIRST, false, true>(panel, tile, visit, sums),
            (false, false) => block_of::<FIRST, false, false>(panel, tile, visit, sums),
            (true, true) => block_of::<FIRST, true, true>(panel, tile, visit, sums),
            (true, false) => block_of::<FIRST, true, false>(panel, tile, visit, sums),
        }
    }
}

/// The same of a panel of one kind: a branch between the products of rows would take their turns apart.
///
/// # Safety
/// As [`block`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn block_of<const FIRST: bool, const ZERO: bool, const BIASED: bool>(
    panel: &Panel,
    tile: &Tile,
    visit: usize,
    sums: &mut [[f32; TOKENS]; ROWS],
) {
    // SAFETY: the buffers were sized by pack and unpack for every visit.
    unsafe {
        let planes = tile.planes.as_ptr().add(visit * 1024);
        let x_scale = _mm512_loadu_ps(tile.scale.as_ptr().add(visit * TOKENS));
        let x_sum = _mm512_loadu_ps(tile.sum.as_ptr().add(visit * TOKENS));
        let integer_sum = _mm512_loadu_si512(tile.integer_sum.as_ptr().add(visit * TOKENS).cast());
        let zero = _mm512_mullo_epi32(integer_sum, _mm512_set1_epi32(panel.zero));
        for first in (0..ROWS).step_by(TOGETHER) {
            let at = visit * ROWS + first;
            let codes = panel.codes.as_ptr().add(at * BLOCK).cast::<i32>();
            let mut above = [_mm512_setzero_si512(); TOGETHER];
            let mut below = above;
            for quad in 0..BLOCK / 4 {
                let high = _mm512_loadu_si512(planes.add(quad * 64).cast());
                let low = _mm512_loadu_si512(planes.add(512 + quad * 64).cast());
                for r in 0..TOGETHER {
                    let code = codes.add(r * BLOCK / 4 + quad).read_unaligned();
                    let code = _mm512_set1_epi32(code);
                    above[r] = _mm512_dpbusd_epi32(above[r], code, high);
                    below[r] = _mm512_dpbusd_epi32(below[r], code, low);
                }
            }
            for r in 0..TOGETHER {
                let mut joined = _mm512_add_epi32(_mm512_slli_epi32::<8>(above[r]), below[r]);
                if ZERO {
                    joined = _mm512_sub_epi32(joined, zero);
                }
                let scale = _mm512_set1_ps(*panel.scales.as_ptr().add(at + r));
                let sums = sums[first + r].as_mut_ptr();
                let mut sum = if FIRST { _mm512_setzero_ps() } else { _mm512_load_ps(sums) };
                let product = _mm512_mul_ps(scale, x_scale);
                sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(joined), product, sum);
                if BIASED {
                    let bias = _mm512_set1_ps(*panel.biases.as_ptr().add(at + r));
                    sum = _mm512_fmadd_ps(bias, x_sum, sum);
                }
                _mm512_store_ps(sums, sum);
            }
        }
    }
}

/// The same of a panel whose blocks have two scales.
///
/// # Safety
/// As [`block`], and the tile must have the sums of halves.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn halves<const FIRST: bool, const BIASED: bool>(
    panel: &Panel,
    tile: &Tile,
    visit: usize,
    sums: &mut [[f32; TOKENS]; ROWS],
) {
    // SAFETY: the buffers were sized by pack and unpack for every visit.
    unsafe {
        let planes = tile.planes.as_ptr().add(visit * 1024);
        let x_scale = _mm512_loadu_ps(tile.scale.as_ptr().add(visit * TOKENS));
        let all = _mm512_loadu_si512(tile.integer_sum.as_ptr().add(visit * TOKENS).cast());
        let first_sum = _mm512_loadu_si512(tile.first_sum.as_ptr().add(visit * TOKENS).cast());
        let x_sums = [first_sum, _mm512_sub_epi32(all, first_sum)];
        let zeros = x_sums.map(|sum| _mm512_mullo_epi32(sum, _mm512_set1_epi32(panel.zero)));
        let scales = [panel.scales.as_ptr(), panel.second_scales.as_ptr()];
        let biases = [panel.biases.as_ptr(), panel.second_biases.as_ptr()];
        for first in (0..ROWS).step_by(TOGETHER) {
            let at = visit * ROWS + first;
            let codes = panel.codes.as_ptr().add(at * BLOCK).cast::<i32>();
            let mut joined = [[_mm512_setzero_si512(); TOGETHER]; 2];
            for (half, joined) in joined.iter_mut().enumerate() {
                let mut above = [_mm512_setzero_si512(); TOGETHER];
                let mut below = above;
                for quad in half * BLOCK / 8..(half + 1) * BLOCK / 8 {
                    let high = _mm512_loadu_si512(planes.add(quad * 64).cast());
                    let low = _mm512_loadu_si512(planes.add(512 + quad * 64).cast());
                    for r in 0..TOGETHER {
                        let code = codes.add(r * BLOCK / 4 + quad).read_unaligned();
                        let code = _mm512_set1_epi32(code);
                        above[r] = _mm512_dpbusd_epi32(above[r], code, high);
                        below[r] = _mm512_dpbusd_epi32(below[r], code, low);
                    }
                }
                for r in 0..TOGETHER {
                    let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(above[r]), below[r]);
                    joined[r] = _mm512_sub_epi32(sum, zeros[half]);
                }
            }
            for r in 0..TOGETHER {
                let sums = sums[first + r].as_mut_ptr();
                let mut sum = if FIRST { _mm512_setzero_ps() } else { _mm512_load_ps(sums) };
                for half in 0..2 {
                    let scale = _mm512_set1_ps(*scales[half].add(at + r));
                    let product = _mm512_mul_ps(scale, x_scale);
                    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(joined[half][r]), product, sum);
                }
                if BIASED {
                    for half in 0..2 {
                        let bias = _mm512_set1_ps(*biases[half].add(at + r));
                        let x_sum = _mm512_mul_ps(_mm512_cvtepi32_ps(x_sums[half]), x_scale);
                        sum = _mm512_fmadd_ps(bias, x_sum, sum);
                    }
                }
                _mm512_store_ps(sums, sum);
            }
        }
    }
}
