//! The same tile products on AVX-512 VNNI: a zmm register is 16 tokens, four columns at a time.
//!
//! On machines whose tile unit is slow (virtual machines that share it, for one) this is the faster of
//! the two, and it is what a machine without AMX uses. The integers are exact either way.

use std::arch::x86_64::*;

use super::super::dot::FP4_ZERO;
use super::{Panel, ROWS, TOKENS, Tile};
use crate::cpu::quantise::BLOCK;

/// Multiplies one block of 32 rows with 16 tokens and adds it, scaled, to the sums (or begins them).
///
/// # Safety
/// AVX-512 with VNNI; `visit` is that of a block of both the panel and the tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
pub(super) unsafe fn block<const FIRST: bool>(
    panel: &Panel,
    tile: &Tile,
    visit: usize,
    sums: &mut [[f32; TOKENS]; ROWS],
) {
    // SAFETY: the buffers were sized by pack and unpack for every visit.
    unsafe {
        let planes = tile.planes.as_ptr().add(visit * 1024);
        let high: [__m512i; 8] =
            std::array::from_fn(|quad| _mm512_loadu_si512(planes.add(quad * 64).cast()));
        let low: [__m512i; 8] =
            std::array::from_fn(|quad| _mm512_loadu_si512(planes.add(512 + quad * 64).cast()));
        let x_scale = _mm512_loadu_ps(tile.scale.as_ptr().add(visit * TOKENS));
        let x_sum = _mm512_loadu_ps(tile.sum.as_ptr().add(visit * TOKENS));
        let integer_sum = _mm512_loadu_si512(tile.integer_sum.as_ptr().add(visit * TOKENS).cast());
        let zero = _mm512_mullo_epi32(integer_sum, _mm512_set1_epi32(FP4_ZERO));
        for r in 0..ROWS {
            let codes = panel.codes.as_ptr().add((visit * ROWS + r) * BLOCK).cast::<i32>();
            let (mut above, mut below) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            for quad in 0..8 {
                let code = _mm512_set1_epi32(codes.add(quad).read_unaligned());
                above = _mm512_dpbusd_epi32(above, code, high[quad]);
                below = _mm512_dpbusd_epi32(below, code, low[quad]);
            }
            let mut joined = _mm512_add_epi32(_mm512_slli_epi32::<8>(above), below);
            if panel.fp4 {
                joined = _mm512_sub_epi32(joined, zero);
            }
            let at = visit * ROWS + r;
            let scale = _mm512_set1_ps(*panel.scales.as_ptr().add(at));
            let mut sum =
                if FIRST { _mm512_setzero_ps() } else { _mm512_load_ps(sums[r].as_ptr()) };
            sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(joined), _mm512_mul_ps(scale, x_scale), sum);
            if panel.biased {
                sum = _mm512_fmadd_ps(_mm512_set1_ps(*panel.biases.as_ptr().add(at)), x_sum, sum);
            }
            _mm512_store_ps(sums[r].as_mut_ptr(), sum);
        }
    }
}
