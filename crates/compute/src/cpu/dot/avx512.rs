//! AVX-512 with VNNI: one `vpdpbusd` multiplies 64 codes with one byte plane of the activations.
//!
//! A chunk is 512 columns. The two planes give two integers per lane that are joined by a shift and
//! an add; a transposing reduction then turns the partial sums of 16 blocks into 16 lanes. About 13
//! vector operations per 64 bytes of 4-bit codes, twice what memory can feed on the machines measured.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{
    Codes, FP4_CODES, FP4_ZERO, Padded, Row, Rows, ScaleKind, Target, chunk, packing, unpack_codes,
};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantise::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// How far ahead of the read position codes are fetched (measured best of 4, 8 and 16 KiB).
const PREFETCH_BYTES: usize = 8192;
/// The same for scales, of which a row has an eighth as many bytes.
const SCALE_PREFETCH_BYTES: usize = 1024;

/// Activation rows that a pass over the weights serves at most: each has a sum in a register.
const FEW: usize = 8;

/// How codes are packed, as a constant: the kernels below are compiled for each.
const NIBBLES: u8 = 0;
const FP4: u8 = 1;
const BYTES: u8 = 2;
const STREAM: u8 = 3;

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
            Codes::Fp4 => kernel::<FP4, 3, 32>(w, range, x, rows, out),
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
    if CODES == NIBBLES && w.cols.is_multiple_of(CHUNK) {
        // SAFETY: the caller's promise, passed on.
        unsafe { whole_chunks::<KIND, GROUP>(w, range, x, rows, out) };
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

/// Affine nibbles in whole chunks: one row as it is decoded, several in shares of about the same size.
///
/// # Safety
/// As [`kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn whole_chunks<const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let shares = rows.inputs.len().div_ceil(FEW);
    let mut done = 0;
    for share in 1..=shares {
        let end = rows.inputs.len() * share / shares;
        let some = Rows { inputs: &rows.inputs[done..end], outputs: &rows.outputs[done..end] };
        let range = range.clone();
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match end - done {
                0 => {}
                1 => decode::<KIND, GROUP>(w, range, x, some, out),
                2 => few::<2, KIND, GROUP>(w, range, x, some, out),
                3 => few::<3, KIND, GROUP>(w, range, x, some, out),
                4 => few::<4, KIND, GROUP>(w, range, x, some, out),
                5 => few::<5, KIND, GROUP>(w, range, x, some, out),
                6 => few::<6, KIND, GROUP>(w, range, x, some, out),
                7 => few::<7, KIND, GROUP>(w, range, x, some, out),
                _ => few::<FEW, KIND, GROUP>(w, range, x, some, out),
            }
        }
        done = end;
    }
}

/// Verification's case: affine nibbles, `N` activation rows, whole chunks. A weight row's chunk is unpacked once
/// and stays in registers for all of them.
///
/// # Safety
/// As [`kernel`]; there are `N` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn few<const N: usize, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let row_bytes = w.encoding.row_bytes(w.cols);
    let scale_bytes = w.encoding.scale_bytes(w.cols);
    let chunks = w.cols / CHUNK;
    // Everything that is read below is checked here.
    let planes: [*const i8; N] = std::array::from_fn(|n| {
        let start = rows.inputs[n] as usize * x.blocks * BLOCK * 2;
        x.paired[start..][..chunks * 2 * CHUNK].as_ptr()
    });
    let x_scale: [*const f32; N] =
        std::array::from_fn(|n| x.row_scale(rows.inputs[n] as usize).as_ptr());
    let x_sum: [*const f32; N] =
        std::array::from_fn(|n| x.row_sum(rows.inputs[n] as usize).as_ptr());
    assert!(range.end <= w.rows && w.codes.len() == w.rows * row_bytes);
    assert!(w.scales.len() == w.rows * scale_bytes && w.biases.len() == w.scales.len());
    let chunk_scales = scale_bytes / chunks;
    let mask = _mm512_set1_epi8(15);
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for index in range.clone() {
        let mut acc = [_mm512_setzero_ps(); N];
        // SAFETY: whole chunks of a row inside the weight and of the activations' padded rows; prefetching is
        // harmless.
        unsafe {
            let codes = w.codes.as_ptr().add(index * row_bytes);
            let scales = w.scales.as_ptr().add(index * scale_bytes);
            let biases = w.biases.as_ptr().add(index * scale_bytes);
            for line in (0..scale_bytes).step_by(64) {
                let ahead = SCALE_PREFETCH_BYTES + line;
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(ahead).cast());
                _mm_prefetch::<_MM_HINT_T0>(biases.wrapping_add(ahead).cast());
            }
            for c in 0..chunks {
                let mut even = [_mm512_setzero_si512(); 4];
                let mut odd = [_mm512_setzero_si512(); 4];
                for part in 0..4 {
                    let at = codes.add(c * CHUNK / 2 + part * 64);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
                    let packed = _mm512_loadu_si512(at.cast());
                    even[part] = _mm512_and_si512(packed, mask);
                    odd[part] = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                }
                let scale = expand::<KIND, GROUP>(scales.add(c * chunk_scales));
                let bias = expand::<KIND, GROUP>(biases.add(c * chunk_scales));
                for n in 0..N {
                    let x = planes[n].add(c * 2 * CHUNK);
                    let mut d = [_mm512_setzero_si512(); 4];
                    for part in 0..4 {
                        let plane =
                            |i: usize| _mm512_loadu_si512(x.add(part * 256 + i * 64).cast());
                        let zero = _mm512_setzero_si512();
                        let high = _mm512_dpbusd_epi32(zero, even[part], plane(0));
                        let high = _mm512_dpbusd_epi32(high, odd[part], plane(1));
                        let high = _mm512_slli_epi32::<8>(high);
                        let both = _mm512_dpbusd_epi32(high, even[part], plane(2));
                        d[part] = _mm512_dpbusd_epi32(both, odd[part], plane(3));
                    }
                    let integers = _mm512_permutexvar_epi32(order, transpose_sum(d));
                    let product =
                        _mm512_mul_ps(scale, _mm512_loadu_ps(x_scale[n].add(c * LANE_BLOCKS)));
                    let x_sum = _mm512_loadu_ps(x_sum[n].add(c * LANE_BLOCKS));
                    acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), product, acc[n]);
                    acc[n] = _mm512_fmadd_ps(bias, x_sum, acc[n]);
                }
            }
            for n in 0..N {
                out.put(rows.outputs[n], index - range.start, halves_sum(acc[n]));
            }
        }
    }
}

/// Decode's case: affine nibbles, one activation row, whole chunks. Two weight rows go together, so
/// that activations are loaded once for both and more of the memory's latency overlaps.
///
/// # Safety
/// As [`kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn decode<const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let (input, output) = (rows.inputs[0] as usize, rows.outputs[0]);
    let row_bytes = w.encoding.row_bytes(w.cols);
    let scale_bytes = w.encoding.scale_bytes(w.cols);
    let chunks = w.cols / CHUNK;
    // Everything that is read below is checked here.
    let planes = x.paired[input * x.blocks * BLOCK * 2..][..chunks * 2 * CHUNK].as_ptr();
    let (x_scale, x_sum) = (x.row_scale(input).as_ptr(), x.row_sum(input).as_ptr());
    assert!(range.end <= w.rows && w.codes.len() == w.rows * row_bytes);
    assert!(w.scales.len() == w.rows * scale_bytes && w.biases.len() == w.scales.len());
    let chunk_scales = scale_bytes / chunks;
    let mut index = range.start;
    while index < range.end {
        // An odd row at the end is computed twice and stored once.
        let pair = [index, (index + 1).min(range.end - 1)];
        let mut acc = [_mm512_setzero_ps(); 2];
        // SAFETY: whole chunks of rows inside the weight and of the activations' padded rows.
        unsafe {
            let codes = pair.map(|row| w.codes.as_ptr().add(row * row_bytes));
            let scales = pair.map(|row| w.scales.as_ptr().add(row * scale_bytes));
            let biases = pair.map(|row| w.biases.as_ptr().add(row * scale_bytes));
            for line in (0..2 * scale_bytes).step_by(64) {
                let ahead = SCALE_PREFETCH_BYTES + line;
                _mm_prefetch::<_MM_HINT_T0>(scales[0].wrapping_add(ahead).cast());
                _mm_prefetch::<_MM_HINT_T0>(biases[0].wrapping_add(ahead).cast());
            }
            for c in 0..chunks {
                let chunk_codes = codes.map(|codes| codes.add(c * CHUNK / 2));
                let integers = nibble_pair(chunk_codes, planes.add(c * 2 * CHUNK));
                let x_scale = _mm512_loadu_ps(x_scale.add(c * LANE_BLOCKS));
                let x_sum = _mm512_loadu_ps(x_sum.add(c * LANE_BLOCKS));
                for r in 0..2 {
                    let scale = expand::<KIND, GROUP>(scales[r].add(c * chunk_scales));
                    let bias = expand::<KIND, GROUP>(biases[r].add(c * chunk_scales));
                    let product = _mm512_mul_ps(scale, x_scale);
                    acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[r]), product, acc[r]);
                    acc[r] = _mm512_fmadd_ps(bias, x_sum, acc[r]);
                }
            }
            out.put(output, index - range.start, halves_sum(acc[0]));
            out.put(output, pair[1] - range.start, halves_sum(acc[1]));
        }
        index += 2;
    }
}

/// The sixteen lanes added in halves: the order of [`sum_lanes`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn halves_sum(lanes: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// Integer sums of the 16 blocks of a chunk, for two weight rows.
///
/// # Safety
/// Each of `codes` points to 256 bytes, `x` to 1,024 bytes of paired planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn nibble_pair(codes: [*const u8; 2], x: *const i8) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(15);
    let mut d = [[_mm512_setzero_si512(); 4]; 2];
    for part in 0..4 {
        // SAFETY: 4 · 64 bytes of codes and 4 · 256 of planes; prefetching is harmless.
        unsafe {
            let plane = |i: usize| _mm512_loadu_si512(x.add(part * 256 + i * 64).cast());
            let (high_even, high_odd, low_even, low_odd) = (plane(0), plane(1), plane(2), plane(3));
            for r in 0..2 {
                let at = codes[r].add(part * 64);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
                let packed = _mm512_loadu_si512(at.cast());
                let even = _mm512_and_si512(packed, mask);
                let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, high_even);
                let high = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(high, odd, high_odd));
                d[r][part] =
                    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(high, even, low_even), odd, low_odd);
            }
        }
    }
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    d.map(|d| _mm512_permutexvar_epi32(order, transpose_sum(d)))
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
    let planes: &[i8] = if CODES == NIBBLES || CODES == FP4 { &x.paired } else { &x.planes };
    // Everything that is read below is checked here, once for each input row.
    let x_planes: [*const i8; N] =
        std::array::from_fn(|n| planes[bytes_of(n)..][..chunks * 2 * CHUNK].as_ptr());
    let x_scale: [*const f32; N] =
        std::array::from_fn(|n| x.row_scale(inputs[n] as usize).as_ptr());
    let x_sum: [*const f32; N] = std::array::from_fn(|n| x.row_sum(inputs[n] as usize).as_ptr());
    let x_integers: [*const i32; N] =
        std::array::from_fn(|n| x.row_integer_sum(inputs[n] as usize).as_ptr());
    let biased = !row.biases.is_empty();
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
                row.biases.as_ptr().wrapping_add(at),
            )
        } else {
            padded = Padded::new();
            let (codes, scales, biases) = chunk(row, c, &mut padded);
            (codes.as_ptr(), scales.as_ptr(), biases.as_ptr())
        };
        // SAFETY: a whole chunk of codes, scales and (if biased) biases lies behind each pointer;
        // activations are padded to whole chunks.
        unsafe {
            let x: [*const i8; N] = std::array::from_fn(|n| x_planes[n].add(c * 2 * CHUNK));
            let mut integers = match CODES {
                NIBBLES => nibbles::<N, false>(codes, x),
                FP4 => nibbles::<N, true>(codes, x),
                BYTES => bytes::<N>(codes, x),
                _ => {
                    let mut unpacked = [0u8; CHUNK];
                    let packed = std::slice::from_raw_parts(codes, chunk_bytes);
                    unpack_codes(row.packing, packed, &mut unpacked);
                    bytes::<N>(unpacked.as_ptr(), x)
                }
            };
            let scale = expand::<KIND, GROUP>(scales);
            for n in 0..N {
                if CODES == FP4 {
                    let sums = _mm512_loadu_si512(x_integers[n].add(c * LANE_BLOCKS).cast());
                    let zero = _mm512_mullo_epi32(sums, _mm512_set1_epi32(FP4_ZERO));
                    integers[n] = _mm512_sub_epi32(integers[n], zero);
                }
                let x_scale = _mm512_loadu_ps(x_scale[n].add(c * LANE_BLOCKS));
                let product = _mm512_mul_ps(scale, x_scale);
                acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[n]), product, acc[n]);
            }
            if biased {
                let bias = expand::<KIND, GROUP>(biases);
                for n in 0..N {
                    let x_sum = _mm512_loadu_ps(x_sum[n].add(c * LANE_BLOCKS));
                    acc[n] = _mm512_fmadd_ps(bias, x_sum, acc[n]);
                }
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

/// Integer sums of the 16 blocks of a chunk of nibbles.
///
/// # Safety
/// `codes` points to 256 bytes, each of `x` to 1,024 bytes of paired planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn nibbles<const N: usize, const IS_FP4: bool>(
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
            if IS_FP4 {
                even = _mm512_shuffle_epi8(table, even);
                odd = _mm512_shuffle_epi8(table, odd);
            }
            for n in 0..N {
                let x = x[n].add(part * 256);
                let plane = |i: usize| _mm512_loadu_si512(x.add(i * 64).cast());
                let zero = _mm512_setzero_si512();
                let high =
                    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, even, plane(0)), odd, plane(1));
                let high = _mm512_slli_epi32::<8>(high);
                d[n][part] =
                    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(high, even, plane(2)), odd, plane(3));
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

/// The scale of each of the 16 blocks. Kinds as in [`multiply_rows`]: f32, f16, bf16, exponent.
///
/// # Safety
/// `at` points to the scales of a whole chunk.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn expand<const KIND: u8, const GROUP: usize>(at: *const u8) -> __m512 {
    let mask = ((1u32 << (LANE_BLOCKS * BLOCK / GROUP)) - 1) as u16;
    // SAFETY: masked loads touch only the scales that are there.
    let compact = unsafe {
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
    };
    let spread = match GROUP {
        32 => return compact,
        64 => _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
        _ => _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
    };
    _mm512_permutexvar_ps(spread, compact)
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
            (ScaleKind::F32, 32) => expand::<0, 32>(at),
            (ScaleKind::F32, 64) => expand::<0, 64>(at),
            (ScaleKind::F32, _) => expand::<0, 128>(at),
            (ScaleKind::F16, 32) => expand::<1, 32>(at),
            (ScaleKind::F16, 64) => expand::<1, 64>(at),
            (ScaleKind::F16, _) => expand::<1, 128>(at),
            (ScaleKind::Bf16, 32) => expand::<2, 32>(at),
            (ScaleKind::Bf16, 64) => expand::<2, 64>(at),
            (ScaleKind::Bf16, _) => expand::<2, 128>(at),
            (ScaleKind::HalvedExponent, _) => expand::<3, 32>(at),
        }
    }
}
