//! The product of expanded chunks with AVX2: codes widened to 16 bits and multiplied with `vpmaddwd`.

use std::arch::x86_64::*;

use super::{Inputs, Lanes, Plain, Shape, scale};
use crate::cpu::quantize::{Activations, BLOCK, LANE_BLOCKS};

/// Adds the products of one chunk to the sums of each activation row.
///
/// # Safety
/// The machine must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add(
    shape: Shape,
    plain: &Plain,
    x: &Activations,
    inputs: &[u32],
    chunk: usize,
    sums: &mut [Lanes],
) {
    for (&input, sums) in inputs.iter().zip(sums) {
        let x = Inputs::new(x, input, chunk, shape);
        let halves = half_sums(shape.is_halved, plain, &x);
        scale(shape, plain, &x, &halves, sums);
    }
}

/// Σ code · value of the first half of each block and of the second; if halves do not count, all of it in the first.
#[inline]
#[target_feature(enable = "avx2")]
fn half_sums(is_halved: bool, plain: &Plain, x: &Inputs<'_>) -> [[i32; LANE_BLOCKS]; 2] {
    let mut out = [[0; LANE_BLOCKS]; 2];
    for eight in 0..2 {
        let zero = _mm256_setzero_si256();
        let (mut first, mut second) = ([zero; 8], [zero; 8]);
        for i in 0..8 {
            let at = (8 * eight + i) * BLOCK;
            // SAFETY: a block of codes and one of values.
            unsafe {
                first[i] = products(plain.codes.as_ptr().add(at), x.values.as_ptr().add(at));
                let at = at + BLOCK / 2;
                second[i] = products(plain.codes.as_ptr().add(at), x.values.as_ptr().add(at));
            }
        }
        if !is_halved {
            for i in 0..8 {
                first[i] = _mm256_add_epi32(first[i], second[i]);
            }
        }
        // SAFETY: eight integers each.
        unsafe {
            let to = out[0].as_mut_ptr().add(8 * eight);
            _mm256_storeu_si256(to.cast(), add_lanes(first));
            if is_halved {
                let to = out[1].as_mut_ptr().add(8 * eight);
                _mm256_storeu_si256(to.cast(), add_lanes(second));
            }
        }
    }
    out
}

/// # Safety
/// There are sixteen codes and sixteen values.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn products(codes: *const u8, values: *const i16) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.cast()));
        _mm256_madd_epi16(codes, _mm256_loadu_si256(values.cast()))
    }
}

/// The sum of each vector.
#[inline]
#[target_feature(enable = "avx2")]
fn add_lanes(v: [__m256i; 8]) -> __m256i {
    let a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(a, b),
        _mm256_permute2x128_si256::<0x31>(a, b),
    )
}
