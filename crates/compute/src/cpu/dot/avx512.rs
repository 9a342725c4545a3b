//! AVX-512 with VNNI: one `vpdpbusd` multiplies 64 codes with one byte plane of the activations.
//!
//! A chunk is 512 columns. The two planes give two integers per lane that are joined by a shift and
//! an add; a transposing reduction then turns the partial sums of 16 blocks into 16 lanes. About 13
//! vector operations per 64 bytes of 4-bit codes, twice what memory can feed on the machines measured.

use std::arch::x86_64::*;

use super::{Codes, FP4_CODES, FP4_ZERO, Padded, Row, ScaleKind, chunk, unpack_codes};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantise::{Activations, BLOCK, CHUNK, LANE_BLOCKS};

/// How far ahead of the read position codes are fetched (measured best of 4, 8 and 16 KiB).
const PREFETCH_BYTES: usize = 8192;

/// Products of one weight row with `N` activation rows.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL, DQ and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn dot<const N: usize>(
    row: &Row<'_>,
    x: &Activations,
    inputs: &[u32],
    out: &mut [f32; 4],
) {
    let inputs: [usize; N] = std::array::from_fn(|n| inputs[n] as usize);
    let mut acc = [_mm512_setzero_ps(); N];
    for c in 0..x.blocks / LANE_BLOCKS {
        let mut padded;
        let (codes, scales, biases) = if (c + 1) * CHUNK <= row.cols {
            let scale_bytes = row.chunk_scales() * row.scale_size();
            let codes = &row.codes[c * row.chunk_bytes()..][..row.chunk_bytes()];
            let scales = &row.scales[c * scale_bytes..][..scale_bytes];
            let biases =
                if row.biases.is_empty() { &[] } else { &row.biases[c * scale_bytes..][..scale_bytes] };
            (codes, scales, biases)
        } else {
            padded = Padded::new();
            chunk(row, c, &mut padded)
        };
        // Byte planes of chunk `c` of activation row `inputs[n]`: two bytes per value.
        let plane = |planes: &[i8], n: usize| -> *const i8 {
            let at = (inputs[n] * x.blocks * BLOCK + c * CHUNK) * 2;
            planes[at..][..2 * CHUNK].as_ptr()
        };
        // SAFETY: every pointer below comes from a slice checked to hold a whole chunk.
        let integers: [__m512i; N] = unsafe {
            match row.packing {
                Codes::Nibbles => nibbles::<N, false>(
                    codes.as_ptr(),
                    std::array::from_fn(|n| plane(&x.paired, n)),
                ),
                Codes::Fp4 => {
                    let mut d = nibbles::<N, true>(
                        codes.as_ptr(),
                        std::array::from_fn(|n| plane(&x.paired, n)),
                    );
                    for (n, d) in d.iter_mut().enumerate() {
                        let sums = &x.row_integer_sum(inputs[n])[c * LANE_BLOCKS..][..LANE_BLOCKS];
                        let sums = _mm512_loadu_si512(sums.as_ptr().cast());
                        let zero = _mm512_mullo_epi32(sums, _mm512_set1_epi32(FP4_ZERO));
                        *d = _mm512_sub_epi32(*d, zero);
                    }
                    d
                }
                Codes::Bytes => {
                    bytes::<N>(codes.as_ptr(), std::array::from_fn(|n| plane(&x.planes, n)))
                }
                Codes::Stream(_) => {
                    let mut unpacked = [0u8; CHUNK];
                    unpack_codes(row.packing, codes, &mut unpacked);
                    bytes::<N>(unpacked.as_ptr(), std::array::from_fn(|n| plane(&x.planes, n)))
                }
            }
        };
        let scale = expand(row.kind, row.group, scales);
        for n in 0..N {
            let at = inputs[n] * x.blocks + c * LANE_BLOCKS;
            let x_scale = load(&x.scale[at..]);
            acc[n] = _mm512_fmadd_ps(
                _mm512_cvtepi32_ps(integers[n]),
                _mm512_mul_ps(scale, x_scale),
                acc[n],
            );
        }
        if !biases.is_empty() {
            let bias = expand(row.kind, row.group, biases);
            for n in 0..N {
                let at = inputs[n] * x.blocks + c * LANE_BLOCKS;
                acc[n] = _mm512_fmadd_ps(bias, load(&x.sum[at..]), acc[n]);
            }
        }
    }
    for n in 0..N {
        let mut lanes = [0.0f32; LANE_BLOCKS];
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), acc[n]) };
        out[n] = sum_lanes(lanes);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &[f32]) -> __m512 {
    let from = &from[..LANE_BLOCKS];
    // SAFETY: sixteen floats.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

/// Integer sums of the 16 blocks of a chunk of nibbles.
///
/// # Safety
/// `codes` points to 256 bytes, each of `x` to 1,024 bytes of paired planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn nibbles<const N: usize, const FP4: bool>(
    codes: *const u8,
    x: [*const i8; N],
) -> [__m512i; N] {
    let mask = _mm512_set1_epi8(15);
    // SAFETY: sixteen bytes of a constant.
    let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(FP4_CODES.as_ptr().cast())) };
    let mut d = [[_mm512_setzero_si512(); 4]; N];
    for part in 0..4 {
        // SAFETY: 4 · 64 bytes of codes and 4 · 256 of planes, as the caller promised; a prefetch
        // of any address is harmless.
        unsafe {
            let at = codes.add(part * 64);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
            let packed = _mm512_loadu_si512(at.cast());
            let mut even = _mm512_and_si512(packed, mask);
            let mut odd = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
            if FP4 {
                even = _mm512_shuffle_epi8(table, even);
                odd = _mm512_shuffle_epi8(table, odd);
            }
            for n in 0..N {
                let x = x[n].add(part * 256);
                let plane = |i: usize| _mm512_loadu_si512(x.add(i * 64).cast());
                let zero = _mm512_setzero_si512();
                let high = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, even, plane(0)), odd, plane(1));
                let high = _mm512_slli_epi32::<8>(high);
                d[n][part] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(high, even, plane(2)), odd, plane(3));
            }
        }
    }
    // Part p, 128-bit lane b is block 4p + b: after the transposing sum it sits at 4b + p.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    std::array::from_fn(|n| _mm512_permutexvar_epi32(order, transpose_sum(d[n])))
}

/// Integer sums of the 16 blocks of a chunk of bytes.
///
/// # Safety
/// `codes` points to 512 bytes, each of `x` to 1,024 bytes of planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn bytes<const N: usize>(codes: *const u8, x: [*const i8; N]) -> [__m512i; N] {
    let mut d = [[_mm512_setzero_si512(); 8]; N];
    for part in 0..8 {
        // SAFETY: 8 · 64 bytes of codes and 8 · 128 of planes; prefetching is harmless.
        unsafe {
            let at = codes.add(part * 64);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
            let code = _mm512_loadu_si512(at.cast());
            for n in 0..N {
                let x = x[n].add(part * 128);
                let high =
                    _mm512_dpbusd_epi32(_mm512_setzero_si512(), code, _mm512_loadu_si512(x.cast()));
                let low = _mm512_loadu_si512(x.add(64).cast());
                d[n][part] = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(high), code, low);
            }
        }
    }
    // Part p holds blocks 2p (128-bit lanes 0 and 1) and 2p + 1 (lanes 2 and 3).
    let first = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    let second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
    std::array::from_fn(|n| {
        let low = transpose_sum([d[n][0], d[n][1], d[n][2], d[n][3]]);
        let high = transpose_sum([d[n][4], d[n][5], d[n][6], d[n][7]]);
        _mm512_add_epi32(
            _mm512_permutex2var_epi32(low, first, high),
            _mm512_permutex2var_epi32(low, second, high),
        )
    })
}

/// Sums of the four values in each 128-bit lane: lane b of part p ends at position 4b + p.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_sum(d: [__m512i; 4]) -> __m512i {
    let a = _mm512_add_epi32(_mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
    let b = _mm512_add_epi32(_mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

/// The scale of each of the 16 blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(crate) fn expand(kind: ScaleKind, group: usize, bytes: &[u8]) -> __m512 {
    let at: *const u8 = bytes.as_ptr();
    let count = LANE_BLOCKS * BLOCK / group;
    let spread = match group {
        32 => _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        64 => _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
        _ => _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
    };
    let mask = ((1u32 << count) - 1) as u16;
    // SAFETY: masked loads touch only `count` scales, which the slice holds.
    let compact = unsafe {
        match kind {
            ScaleKind::F32 => {
                assert!(bytes.len() >= 4 * count);
                _mm512_maskz_loadu_ps(mask, at.cast())
            }
            ScaleKind::F16 => {
                assert!(bytes.len() >= 2 * count);
                _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at.cast()))
            }
            ScaleKind::Bf16 => {
                assert!(bytes.len() >= 2 * count);
                let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            ScaleKind::HalvedExponent => {
                assert!(bytes.len() >= count);
                let e = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, at.cast()));
                let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
                // Exponents 0 and 1 are subnormal: 2^21 and 2^22 as bits.
                let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), e);
                let is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
                _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny))
            }
        }
    };
    if group == 32 { compact } else { _mm512_permutexvar_ps(spread, compact) }
}
