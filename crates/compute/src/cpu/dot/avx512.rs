//! AVX-512 with VNNI: one `vpdpbusd` multiplies 64 codes with one byte plane of the activations.
//!
//! A chunk is 512 columns, 16 blocks, one for each lane. The two planes give two integers per lane that are
//! joined by a shift and an add. A transposing reduction then turns partial sums into those of the 16 blocks, or codes were
//! transposed before, which is less work from the second activation row on.

mod fp4;
mod narrow_bytes;
mod nibbles;

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Codes, Padded, Row, Rows, ScaleKind, Target, chunk, packing, unpack_codes};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// How far ahead of the read position codes are fetched (measured best of 1, 2, 3, 4, 8 and 16 KiB).
pub(super) const PREFETCH_BYTES: usize = 3072;
/// The same for scales, of which a row has an eighth as many bytes.
const SCALE_PREFETCH_BYTES: usize = 1024;

/// Columns of one vector of nibbles; a chunk has four.
const PART: usize = 128;

/// How codes are packed, as a constant: the kernels below are compiled for each.
const NIBBLES: u8 = 0;
const BYTES: u8 = 1;
const STREAM: u8 = 2;

/// Products of weight rows `range` with some activation rows.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL, DQ and VNNI. `out` must have room for every output row and
/// column; no other thread may touch the elements written meanwhile.
pub(super) unsafe fn multiply_rows(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let (packing, kind, group) = packing(w.encoding);
    // One kernel for each packing, scale type and group: nothing is decided inside the loops.
    macro_rules! by_group {
        ($codes:expr, $kind:expr) => {
            match group {
                32 => kernel::<$codes, $kind, 32>(w, range, x, rows, out),
                64 => kernel::<$codes, $kind, 64>(w, range, x, rows, out),
                _ => kernel::<$codes, $kind, 128>(w, range, x, rows, out),
            }
        };
    }
    macro_rules! by_kind {
        ($codes:expr) => {
            match kind {
                ScaleKind::F32 => by_group!($codes, 0),
                ScaleKind::F16 => by_group!($codes, 1),
                _ => by_group!($codes, 2),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match packing {
            Codes::Nibbles => by_kind!(NIBBLES),
            Codes::Fp4 => fp4::multiply(w, range, x, rows, out),
            Codes::Bytes => by_kind!(BYTES),
            Codes::Stream(_) => by_kind!(STREAM),
        }
    }
}

/// # Safety
/// As [`multiply_rows`]; the constants must be those of the weight.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn kernel<const CODES: u8, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    if CODES == NIBBLES && w.cols.is_multiple_of(PART) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match w.cols % CHUNK / PART {
                0 => nibbles::whole_parts::<0, KIND, GROUP>(w, range, x, rows, out),
                1 => nibbles::whole_parts::<1, KIND, GROUP>(w, range, x, rows, out),
                2 => nibbles::whole_parts::<2, KIND, GROUP>(w, range, x, rows, out),
                _ => nibbles::whole_parts::<3, KIND, GROUP>(w, range, x, rows, out),
            }
        }
        return;
    }
    if CODES == BYTES && w.cols <= narrow_bytes::MOST_COLS {
        // SAFETY: the caller's promise, passed on.
        unsafe { narrow_bytes::narrow_bytes::<KIND, GROUP>(w, range, x, rows, out) };
        return;
    }
    for (i, index) in range.enumerate() {
        let row = Row::new(w, index);
        let mut done = 0;
        while done < rows.inputs.len() {
            // SAFETY: the caller's promise, passed on; inputs and outputs have the same length.
            unsafe {
                if rows.inputs.len() - done >= 4 {
                    let results = dot::<4, CODES, KIND, GROUP>(&row, x, &rows.inputs[done..]);
                    for (n, result) in results.into_iter().enumerate() {
                        out.put(rows.outputs[done + n], i, result);
                    }
                    done += 4;
                } else {
                    let [result] = dot::<1, CODES, KIND, GROUP>(&row, x, &rows.inputs[done..]);
                    out.put(rows.outputs[done], i, result);
                    done += 1;
                }
            }
        }
    }
}

/// Products of one weight row with `N` activation rows.
///
/// # Safety
/// As [`kernel`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn dot<const N: usize, const CODES: u8, const KIND: u8, const GROUP: usize>(
    row: &Row<'_>,
    x: &Activations,
    inputs: &[u32],
) -> [f32; N] {
    let chunks = x.blocks / LANE_BLOCKS;
    let (chunk_bytes, scale_bytes) = (row.chunk_bytes(), CHUNK / GROUP * row.scale_size());
    let bytes_of = |n: usize| inputs[n] as usize * x.blocks * BLOCK * 2;
    let transposed = x.transposed;
    debug_assert!(if CODES == NIBBLES { x.forms.paired } else { x.forms.natural });
    let planes: &[i8] = if CODES == NIBBLES { &x.paired } else { &x.planes };
    // Everything that is read below is checked here, once for each input row.
    let x_planes: [*const i8; N] =
        std::array::from_fn(|n| planes[bytes_of(n)..][..chunks * 2 * CHUNK].as_ptr());
    let x_scale: [*const f32; N] =
        std::array::from_fn(|n| x.row_scale(inputs[n] as usize).as_ptr());
    let x_sum: [*const f32; N] = std::array::from_fn(|n| x.row_sum(inputs[n] as usize).as_ptr());
    // Scales and biases are streams of their own; a line of each serves a row or two.
    for line in 0..row.scales.len().div_ceil(64) {
        for part in [row.scales, row.biases] {
            let ahead = part.as_ptr().wrapping_add(SCALE_PREFETCH_BYTES + 64 * line);
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
        }
    }
    let mut acc = [_mm512_setzero_ps(); N];
    let mut padded;
    for c in 0..chunks {
        let (codes, scales, biases) = if (c + 1) * CHUNK <= row.cols {
            let at = c * scale_bytes;
            (
                row.codes[c * chunk_bytes..].as_ptr(),
                row.scales[at..].as_ptr(),
                row.biases[at..].as_ptr(),
            )
        } else {
            padded = Padded::new();
            let (codes, scales, biases) = chunk(row, c, &mut padded);
            (codes.as_ptr(), scales.as_ptr(), biases.as_ptr())
        };
        // SAFETY: a whole chunk of codes, scales and biases lies behind each pointer;
        // activations are padded to whole chunks.
        unsafe {
            let x: [*const i8; N] = std::array::from_fn(|n| x_planes[n].add(c * 2 * CHUNK));
            let integers = match CODES {
                NIBBLES => nibbles::sums::<N, false>(codes, x, transposed),
                BYTES => bytes::<N>(codes, x),
                _ => {
                    let mut unpacked = [0u8; CHUNK];
                    let packed = std::slice::from_raw_parts(codes, chunk_bytes);
                    unpack_codes(row.packing, packed, &mut unpacked);
                    bytes::<N>(unpacked.as_ptr(), x)
                }
            };
            let scale = expand::<KIND, GROUP, 4>(scales);
            for n in 0..N {
                let x_scale = _mm512_loadu_ps(x_scale[n].add(c * LANE_BLOCKS));
                let product = _mm512_mul_ps(scale, x_scale);
                acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[n]), product, acc[n]);
            }
            let bias = expand::<KIND, GROUP, 4>(biases);
            for n in 0..N {
                let x_sum = _mm512_loadu_ps(x_sum[n].add(c * LANE_BLOCKS));
                acc[n] = _mm512_fmadd_ps(bias, x_sum, acc[n]);
            }
        }
    }
    std::array::from_fn(|n| {
        let mut lanes = [0.0f32; LANE_BLOCKS];
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), acc[n]) };
        sum_lanes(lanes)
    })
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
pub(crate) fn transpose_sum(d: [__m512i; 4]) -> __m512i {
    let a = _mm512_add_epi32(_mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
    let b = _mm512_add_epi32(_mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

/// The scale of each of the 16 blocks, 0 for those of parts that are not there. Kinds as in [`multiply_rows`]: f32, f16, bf16, exponent.
///
/// # Safety
/// `at` points to the scales of so many parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn expand<const KIND: u8, const GROUP: usize, const PARTS: usize>(at: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    spread::<GROUP>(unsafe { load_scales::<KIND>(at, PARTS * PART / GROUP) })
}

/// Scales of groups as those of their blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn spread<const GROUP: usize>(scales: __m512) -> __m512 {
    let blocks = match GROUP {
        32 => return scales,
        64 => _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
        _ => _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
    };
    _mm512_permutexvar_ps(blocks, scales)
}

/// The next scales as floats, up to sixteen of them.
///
/// # Safety
/// There are `count`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) unsafe fn load_scales<const KIND: u8>(at: *const u8, count: usize) -> __m512 {
    let mask = ((1u32 << count) - 1) as u16;
    // SAFETY: masked loads touch only the scales that are there.
    unsafe {
        match KIND {
            0 => _mm512_maskz_loadu_ps(mask, at.cast()),
            1 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at.cast())),
            2 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            _ => {
                let e = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, at.cast()));
                let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
                // Exponents 0 and 1 are subnormal: 2^21 and 2^22 as bits.
                let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), e);
                let is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
                _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny))
            }
        }
    }
}

/// The scales of a chunk by the weight's own kind and group, for code that is not compiled for each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(crate) fn expand_chunk(kind: ScaleKind, group: usize, bytes: &[u8]) -> __m512 {
    let size = match kind {
        ScaleKind::F32 => 4,
        ScaleKind::F16 | ScaleKind::Bf16 => 2,
        ScaleKind::HalvedExponent => 1,
    };
    assert!(bytes.len() >= CHUNK / group * size);
    let at = bytes.as_ptr();
    // SAFETY: the scales of a whole chunk, just checked.
    unsafe {
        match (kind, group) {
            (ScaleKind::F32, 32) => expand::<0, 32, 4>(at),
            (ScaleKind::F32, 64) => expand::<0, 64, 4>(at),
            (ScaleKind::F32, _) => expand::<0, 128, 4>(at),
            (ScaleKind::F16, 32) => expand::<1, 32, 4>(at),
            (ScaleKind::F16, 64) => expand::<1, 64, 4>(at),
            (ScaleKind::F16, _) => expand::<1, 128, 4>(at),
            (ScaleKind::Bf16, 32) => expand::<2, 32, 4>(at),
            (ScaleKind::Bf16, 64) => expand::<2, 64, 4>(at),
            (ScaleKind::Bf16, _) => expand::<2, 128, 4>(at),
            (ScaleKind::HalvedExponent, _) => expand::<3, 32, 4>(at),
        }
    }
}
