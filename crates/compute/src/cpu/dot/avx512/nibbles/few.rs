//! Several activation rows: what verification and small batches multiply with. A vector of activations is loaded once for
//! [some](TOGETHER) weight rows, because loads, not products, are what this would wait for.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{
    Layout, Planes, TOGETHER, expand, halves_sum, load, prefetch_scales, together, transpose,
    unpack,
};
use crate::cpu::dot::{Rows, Target};
use crate::cpu::quantize::{Activations, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// Verification's case: weight rows with `N` transposed activation rows.
///
/// # Safety
/// As [`whole_parts`](super::whole_parts); there are `N` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn few<const N: usize, const TAIL: usize, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let Layout { row_bytes, scale_bytes, chunks, chunk_scales } = Layout::check(w, &range, GROUP);
    // Everything that is read below is checked here; activations are padded to whole chunks.
    let x: [Planes; N] = std::array::from_fn(|n| Planes::of(x, rows.inputs[n] as usize));
    let part = range.len().div_ceil(TOGETHER);
    for index in range.start..range.start + part {
        let some = together(&range, part, index);
        let mut acc = [[_mm512_setzero_ps(); TOGETHER]; N];
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
                add_chunk::<N, 4, KIND, GROUP>(codes, scales, biases, &x, c, &mut acc);
            }
            if TAIL > 0 {
                let at = chunks * chunk_scales;
                let codes = codes.map(|codes| codes.add(chunks * CHUNK / 2));
                let (scales, biases) = (scales.map(|s| s.add(at)), biases.map(|b| b.add(at)));
                add_chunk::<N, TAIL, KIND, GROUP>(codes, scales, biases, &x, chunks, &mut acc);
            }
            for n in 0..N {
                for r in 0..TOGETHER {
                    out.put(rows.outputs[n], some[r] - range.start, halves_sum(acc[n][r]));
                }
            }
        }
    }
}

/// Adds the products of a chunk of some weight rows, or of its first `PARTS` parts, with `N` activation rows.
///
/// # Safety
/// The pointers are those of a chunk with so many parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn add_chunk<const N: usize, const PARTS: usize, const KIND: u8, const GROUP: usize>(
    codes: [*const u8; TOGETHER],
    scales: [*const u8; TOGETHER],
    biases: [*const u8; TOGETHER],
    x: &[Planes; N],
    chunk: usize,
    acc: &mut [[__m512; TOGETHER]; N],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let integers = sums_of_rows::<N, PARTS>(codes, x, chunk);
        let mut scale = [_mm512_setzero_ps(); TOGETHER];
        let mut bias = scale;
        for r in 0..TOGETHER {
            scale[r] = expand::<KIND, GROUP, PARTS>(scales[r]);
            bias[r] = expand::<KIND, GROUP, PARTS>(biases[r]);
        }
        for n in 0..N {
            let x_scale = _mm512_loadu_ps(x[n].scale.add(chunk * LANE_BLOCKS));
            let x_sum = _mm512_loadu_ps(x[n].sum.add(chunk * LANE_BLOCKS));
            for r in 0..TOGETHER {
                let product = _mm512_mul_ps(scale[r], x_scale);
                let sum = _mm512_cvtepi32_ps(integers[n][r]);
                acc[n][r] = _mm512_fmadd_ps(sum, product, acc[n][r]);
                acc[n][r] = _mm512_fmadd_ps(bias[r], x_sum, acc[n][r]);
            }
        }
    }
}

/// Integer sums of the 16 blocks of a chunk, for some weight rows and several activation rows.
///
/// # Safety
/// Each of `codes` points to 64 bytes a part; `x` has that chunk, transposed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums_of_rows<const N: usize, const PARTS: usize>(
    codes: [*const u8; TOGETHER],
    x: &[Planes; N],
    chunk: usize,
) -> [[__m512i; TOGETHER]; N] {
    let mut even = [[_mm512_setzero_si512(); 4]; TOGETHER];
    let mut odd = even;
    for r in 0..TOGETHER {
        // SAFETY: the caller's promise.
        let packed = unsafe { load::<PARTS>(codes[r]) };
        (even[r], odd[r]) = unpack::<false>(transpose(packed));
    }
    let mut high = [[_mm512_setzero_si512(); TOGETHER]; N];
    // SAFETY: the caller's promise.
    unsafe {
        // Few sums would wait for themselves, many would not stay in registers.
        if N <= 3 {
            let mut low = high;
            for k in 0..4 {
                add_plane(&mut high, &even, &odd, x, chunk, k, 0);
                add_plane(&mut low, &even, &odd, x, chunk, k, 1);
            }
            for n in 0..N {
                for r in 0..TOGETHER {
                    low[n][r] = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[n][r]), low[n][r]);
                }
            }
            return low;
        }
        for k in 0..4 {
            add_plane(&mut high, &even, &odd, x, chunk, k, 0);
        }
        for n in 0..N {
            for r in 0..TOGETHER {
                high[n][r] = _mm512_slli_epi32::<8>(high[n][r]);
            }
        }
        for k in 0..4 {
            add_plane(&mut high, &even, &odd, x, chunk, k, 1);
        }
    }
    high
}

/// Adds the products of one vector of codes with the high or the low bytes.
///
/// # Safety
/// As [`sums_of_rows`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn add_plane<const N: usize>(
    sums: &mut [[__m512i; TOGETHER]; N],
    even: &[[__m512i; 4]; TOGETHER],
    odd: &[[__m512i; 4]; TOGETHER],
    x: &[Planes; N],
    chunk: usize,
    k: usize,
    plane: usize,
) {
    for n in 0..N {
        // SAFETY: the caller's promise.
        let (x_even, x_odd) = unsafe {
            let at = x[n].planes.add(chunk * 2 * CHUNK + k * 256 + plane * 128);
            (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast()))
        };
        for r in 0..TOGETHER {
            sums[n][r] = _mm512_dpbusd_epi32(sums[n][r], even[r][k], x_even);
        }
        for r in 0..TOGETHER {
            sums[n][r] = _mm512_dpbusd_epi32(sums[n][r], odd[r][k], x_odd);
        }
    }
}
