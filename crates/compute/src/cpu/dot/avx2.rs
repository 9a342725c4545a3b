//! AVX2: codes widened to 16 bits and multiplied with `vpmaddwd`, which is exact for every width.
//!
//! (`vpmaddubsw` would be twice as fast and saturates with 8-bit codes.)

use std::arch::x86_64::*;

use half::bf16;

use super::{
    Codes, FP4_CODES, FP4_ZERO, Padded, Row, ScaleKind, accumulate, chunk, scalar, unpack_codes,
};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};

/// Products of one weight row with up to four activation rows.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dot(row: &Row<'_>, x: &Activations, inputs: &[u32], out: &mut [f32; 4]) {
    let mut acc = [[0.0f32; LANE_BLOCKS]; 4];
    for c in 0..x.blocks / LANE_BLOCKS {
        let mut padded;
        let mut unpacked;
        let (mut codes, scales, biases) = if (c + 1) * CHUNK <= row.cols {
            let scale_bytes = row.chunk_scales() * row.scale_size();
            let biases = if row.biases.is_empty() {
                &[]
            } else {
                &row.biases[c * scale_bytes..][..scale_bytes]
            };
            (
                &row.codes[c * row.chunk_bytes()..][..row.chunk_bytes()],
                &row.scales[c * scale_bytes..][..scale_bytes],
                biases,
            )
        } else {
            padded = Padded::new();
            chunk(row, c, &mut padded)
        };
        if let Codes::Stream(_) = row.packing {
            unpacked = [0u8; CHUNK];
            unpack_codes(row.packing, codes, &mut unpacked);
            codes = &unpacked;
        }
        let scale = expand(row, scales);
        let bias = (!biases.is_empty()).then(|| expand(row, biases));
        for (n, &input) in inputs.iter().enumerate() {
            let input = input as usize;
            let values = &x.row_values(input)[c * CHUNK..][..CHUNK];
            // SAFETY: `codes` and `values` hold a whole chunk.
            let mut integers = unsafe { block_sums(row.packing, codes, values) };
            if row.packing == Codes::Fp4 {
                let sums = &x.row_integer_sum(input)[c * LANE_BLOCKS..][..LANE_BLOCKS];
                for l in 0..LANE_BLOCKS {
                    integers[l] -= FP4_ZERO * sums[l];
                }
            }
            let lane = |all: &[f32]| -> [f32; LANE_BLOCKS] {
                all[c * LANE_BLOCKS..][..LANE_BLOCKS].try_into().expect("a whole round of lanes")
            };
            let (x_scale, x_sum) = (lane(x.row_scale(input)), lane(x.row_sum(input)));
            accumulate(&mut acc[n], &integers, &scale, bias.as_ref(), &x_scale, &x_sum);
        }
    }
    for (result, acc) in out.iter_mut().zip(acc) {
        *result = sum_lanes(acc);
    }
}

/// # Safety
/// `codes` holds a chunk of nibbles or bytes, `values` 512 integers.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block_sums(packing: Codes, codes: &[u8], values: &[i16]) -> [i32; LANE_BLOCKS] {
    let mut out = [0i32; LANE_BLOCKS];
    // Loops, not closures: a closure is a function without these instructions to whatever calls it.
    for half in 0..2 {
        let mut sums = [_mm256_setzero_si256(); 8];
        for i in 0..8 {
            let block = half * 8 + i;
            // SAFETY: 16 blocks of 16 bytes (nibbles) or 32 bytes, and of 32 integers.
            unsafe {
                let (low, high) = codes_of(packing, codes.as_ptr(), block);
                let at = values.as_ptr().add(block * BLOCK);
                let a = _mm256_madd_epi16(low, _mm256_loadu_si256(at.cast()));
                let b = _mm256_madd_epi16(high, _mm256_loadu_si256(at.add(16).cast()));
                sums[i] = _mm256_add_epi32(a, b);
            }
        }
        let a = _mm256_hadd_epi32(
            _mm256_hadd_epi32(sums[0], sums[1]),
            _mm256_hadd_epi32(sums[2], sums[3]),
        );
        let b = _mm256_hadd_epi32(
            _mm256_hadd_epi32(sums[4], sums[5]),
            _mm256_hadd_epi32(sums[6], sums[7]),
        );
        let total = _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(a, b),
            _mm256_permute2x128_si256::<0x31>(a, b),
        );
        // SAFETY: eight integers.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(half * 8).cast(), total) };
    }
    out
}

/// The 32 codes of a block as 16-bit integers, in order.
///
/// # Safety
/// `codes` points to a chunk of nibbles or bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn codes_of(packing: Codes, codes: *const u8, block: usize) -> (__m256i, __m256i) {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = if matches!(packing, Codes::Nibbles | Codes::Fp4) {
            let mask = _mm_set1_epi8(15);
            let packed = _mm_loadu_si128(codes.add(block * 16).cast());
            let mut even = _mm_and_si128(packed, mask);
            let mut odd = _mm_and_si128(_mm_srli_epi16::<4>(packed), mask);
            if packing == Codes::Fp4 {
                let table = _mm_loadu_si128(FP4_CODES.as_ptr().cast());
                even = _mm_shuffle_epi8(table, even);
                odd = _mm_shuffle_epi8(table, odd);
            }
            (_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd))
        } else {
            let at = codes.add(block * 32);
            (_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(16).cast()))
        };
        (_mm256_cvtepu8_epi16(low), _mm256_cvtepu8_epi16(high))
    }
}

/// The scale of each block of a chunk: what [`scalar::expand`] gives, each scale converted once.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn expand(row: &Row<'_>, bytes: &[u8]) -> [f32; LANE_BLOCKS] {
    let count = row.chunk_scales();
    let mut wide = [0.0f32; LANE_BLOCKS];
    let pairs = || bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match row.kind {
        ScaleKind::F16 => {
            let mut halves = [0u16; LANE_BLOCKS];
            for (half, bits) in halves.iter_mut().zip(pairs()).take(count) {
                *half = bits;
            }
            for i in 0..2 {
                // SAFETY: eight halves in, eight floats out.
                unsafe {
                    let h = _mm_loadu_si128(halves.as_ptr().add(8 * i).cast());
                    _mm256_storeu_ps(wide.as_mut_ptr().add(8 * i), _mm256_cvtph_ps(h));
                }
            }
        }
        ScaleKind::Bf16 => {
            for (wide, bits) in wide.iter_mut().zip(pairs()).take(count) {
                *wide = bf16::from_bits(bits).to_f32();
            }
        }
        ScaleKind::F32 | ScaleKind::HalvedExponent => return scalar::expand(row, bytes),
    }
    // Groups are whole blocks, in powers of two.
    let shift = (row.group / BLOCK).trailing_zeros();
    let mut scales = [0.0; LANE_BLOCKS];
    for (block, scale) in scales.iter_mut().enumerate() {
        *scale = wide[block >> shift];
    }
    scales
}
