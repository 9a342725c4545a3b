//! Weight rows of one or two parts in all. Alone they would leave most lanes idle, so they go in fours: a vector has the
//! four blocks of a part for each of four rows, and meets the activations of those blocks four times. Sixteen rows make a
//! vector of results.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::{Layout, Planes, SCALE_PREFETCH_BYTES, expand, load_scales, transpose, unpack};
use crate::cpu::dot::avx512::PART;
use crate::cpu::dot::{Rows, Target};
use crate::cpu::quantize::{Activations, BLOCK, CHUNK};
use crate::weight::Matrix;

/// Weight rows that are computed together.
const TOGETHER: usize = 16;
/// Fours of them.
const FOURS: usize = TOGETHER / 4;
/// Activation rows that codes are unpacked for at most.
const MOST: usize = 16;
/// How far ahead codes are fetched. Farther would drive activations out of a first-level cache of 32 KiB.
const CODES_AHEAD: usize = 4096;
/// Bytes of a weight up to which the next one is fetched while it is multiplied. It begins where this one ends: that is so
/// of an expert's matrices, and of experts that come in order.
const SMALL_WEIGHT: usize = 32 << 10;

/// How far ahead codes and scales are fetched.
#[derive(Clone, Copy)]
struct Ahead {
    codes: usize,
    scales: usize,
}

impl Ahead {
    /// From a place in the codes.
    fn of(w: &Matrix<'_>, at: usize) -> Ahead {
        let bytes = w.bytes();
        if bytes > SMALL_WEIGHT {
            return Ahead { codes: CODES_AHEAD, scales: SCALE_PREFETCH_BYTES };
        }
        let is_past_codes = at + CODES_AHEAD >= w.codes.len();
        let others = if is_past_codes { bytes - w.codes.len() } else { 0 };
        Ahead { codes: CODES_AHEAD + others, scales: bytes }
    }
}

/// Whether rows of the weight are of one or two parts.
pub(super) fn is_narrow<const TAIL: usize>(w: &Matrix<'_>) -> bool {
    w.cols < CHUNK && (TAIL == 1 || TAIL == 2)
}

/// Products of weight rows of `PARTS` parts, one or two, with transposed activation rows.
///
/// # Safety
/// As [`whole_parts`](super::whole_parts).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn narrow_rows<const PARTS: usize, const KIND: u8, const GROUP: usize>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let Layout { row_bytes, scale_bytes, .. } = Layout::check(w, &range, GROUP);
    for (inputs, outputs) in rows.inputs.chunks(MOST).zip(rows.outputs.chunks(MOST)) {
        let mut planes = [Planes::of(x, inputs[0] as usize); MOST];
        for (planes, &input) in planes.iter_mut().zip(inputs) {
            *planes = Planes::of(x, input as usize);
        }
        let x = &planes[..inputs.len()];
        let mut sums = [const { MaybeUninit::<[__m512; FOURS]>::uninit() }; MOST];
        let sums = &mut sums[..inputs.len()];
        // SAFETY: sixteen rows of the weight or of a copy, all of whose sums are written; the outputs are the caller's promise.
        unsafe {
            let whole = range.len() / TOGETHER * TOGETHER;
            for first in (0..whole).step_by(TOGETHER) {
                let row = range.start + first;
                let from = [(w.codes, row_bytes), (w.scales, scale_bytes), (w.biases, scale_bytes)]
                    .map(|(bytes, of_row)| bytes.as_ptr().add(row * of_row));
                let ahead = Ahead::of(w, row * row_bytes);
                sixteen::<PARTS, KIND, GROUP>(from, ahead, x, sums);
                for (sums, &output) in sums.iter().zip(outputs) {
                    let sums = sums_of_fours(sums.assume_init());
                    _mm512_storeu_ps(out.place(output, first), sums);
                }
            }
            if whole < range.len() {
                // A copy that has zeros where the next rows would be.
                let mut copies = [[0u8; TOGETHER * PART]; 3];
                let streams =
                    [(w.codes, row_bytes), (w.scales, scale_bytes), (w.biases, scale_bytes)];
                for (copy, (bytes, of_row)) in copies.iter_mut().zip(streams) {
                    let from = &bytes[(range.start + whole) * of_row..range.end * of_row];
                    copy[..from.len()].copy_from_slice(from);
                }
                let [codes, scales, biases] = &copies;
                let from = [codes.as_ptr(), scales.as_ptr(), biases.as_ptr()];
                let ahead = Ahead::of(w, (range.start + whole) * row_bytes);
                sixteen::<PARTS, KIND, GROUP>(from, ahead, x, sums);
                let mask = ((1u32 << (range.len() - whole)) - 1) as u16;
                for (sums, &output) in sums.iter().zip(outputs) {
                    let to = out.place(output, whole);
                    _mm512_mask_storeu_ps(to, mask, sums_of_fours(sums.assume_init()));
                }
            }
        }
    }
}

/// Products of sixteen rows with all activation rows, by row and block; blocks that are a part apart are added.
///
/// # Safety
/// `from` are codes, scales and biases of sixteen rows; `x` has their width.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn sixteen<const PARTS: usize, const KIND: u8, const GROUP: usize>(
    [codes, scales, biases]: [*const u8; 3],
    ahead: Ahead,
    x: &[Planes],
    sums: &mut [MaybeUninit<[__m512; FOURS]>],
) {
    let row_bytes = PARTS * PART / 2;
    let scale_bytes = PARTS * PART / GROUP * if KIND == 0 { 4 } else { 2 };
    for half in 0..FOURS / 2 {
        let mut of_parts = [[(_mm512_setzero_ps(), _mm512_setzero_ps()); 2]; 2];
        // SAFETY: the caller's promise; prefetching is harmless.
        unsafe {
            for four in 0..2 {
                let at = (half * 2 + four) * 4 * scale_bytes;
                let (scales, biases) = (scales.add(at), biases.add(at));
                for stream in [scales, biases] {
                    _mm_prefetch::<_MM_HINT_T0>(stream.wrapping_add(ahead.scales).cast());
                }
                let scale = scales_of_four::<PARTS, KIND, GROUP>(scales);
                let bias = scales_of_four::<PARTS, KIND, GROUP>(biases);
                for part in 0..PARTS {
                    of_parts[part][four] = (scale[part], bias[part]);
                }
            }
            let codes = codes.add(half * 8 * row_bytes);
            if matches!(x.len(), 4 | 7 | 8 | 10..) {
                eight::<true, PARTS>(codes, ahead.codes, &of_parts, half, x, sums);
            } else {
                eight::<false, PARTS>(codes, ahead.codes, &of_parts, half, x, sums);
            }
        }
    }
}

/// Scales and biases of two fours of weight rows.
type Scales = [(__m512, __m512); 2];

/// The same of eight rows, whose scales are those of each part. Up to four activation rows at a time (`BY_FOUR`) or three: by
/// four, codes do not stay in registers, which costs one to three rows more than it gains.
///
/// Not inlined: scales that lie in memory leave their registers to sums. With fewer registers the compiler puts the products of
/// a sum one after another, where each waits for the one before it.
///
/// # Safety
/// `codes` are those of eight rows, and `x` has their width.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn eight<const BY_FOUR: bool, const PARTS: usize>(
    codes: *const u8,
    ahead: usize,
    scales: &[Scales; 2],
    half: usize,
    x: &[Planes],
    sums: &mut [MaybeUninit<[__m512; FOURS]>],
) {
    // SAFETY: the caller's promise.
    unsafe {
        part::<BY_FOUR, PARTS, 0>(codes, ahead, &scales[0], half, x, sums);
        if PARTS == 2 {
            part::<BY_FOUR, PARTS, 1>(codes, ahead, &scales[1], half, x, sums);
        }
    }
}

/// Part `AT` of them.
///
/// # Safety
/// As [`eight`]; the sums of the part before are there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn part<const BY_FOUR: bool, const PARTS: usize, const AT: usize>(
    codes: *const u8,
    ahead: usize,
    scales: &Scales,
    half: usize,
    x: &[Planes],
    sums: &mut [MaybeUninit<[__m512; FOURS]>],
) {
    let nothing = [_mm512_setzero_si512(); 4];
    let mut weights = [Weights { even: nothing, odd: nothing }; 2];
    // SAFETY: the caller's promise; prefetching is harmless.
    unsafe {
        for four in 0..2 {
            let mut packed = nothing;
            for row in 0..4 {
                let at = codes.add(((four * 4 + row) * PARTS + AT) * PART / 2);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(ahead).cast());
                packed[row] = _mm512_loadu_si512(at.cast());
            }
            let (even, odd) = unpack::<false>(transpose(packed));
            weights[four] = Weights { even, odd };
        }
        let mut n = 0;
        while n < x.len() {
            let to = &mut sums[n..];
            n += match x.len() - n {
                1 => put_all::<AT, 1>(room(to), half, products::<AT, 1>(&weights, scales, [x[n]])),
                4 | 7 | 8 | 10.. if BY_FOUR => {
                    let four = [x[n], x[n + 1], x[n + 2], x[n + 3]];
                    put_all::<AT, 4>(room(to), half, products::<AT, 4>(&weights, scales, four))
                }
                2 | 4 => {
                    let two = [x[n], x[n + 1]];
                    put_all::<AT, 2>(room(to), half, products::<AT, 2>(&weights, scales, two))
                }
                // With fewer, products wait for each other.
                _ => {
                    let three = [x[n], x[n + 1], x[n + 2]];
                    put_all::<AT, 3>(room(to), half, products::<AT, 3>(&weights, scales, three))
                }
            };
        }
    }
}

/// The first sums, taken before there are any: where a check lies between loading blocks and using them, the compiler repeats
/// them by shuffles, on a port that products need, instead of as it loads them.
#[inline]
fn room<const N: usize>(
    sums: &mut [MaybeUninit<[__m512; FOURS]>],
) -> &mut [MaybeUninit<[__m512; FOURS]>; N] {
    sums.first_chunk_mut().expect("there are sums for every row")
}

/// Keeps the products of the first part, and adds those of the next. Of how many rows they are.
///
/// # Safety
/// Those of the first part are there when the next come.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn put_all<const AT: usize, const N: usize>(
    sums: &mut [MaybeUninit<[__m512; FOURS]>; N],
    half: usize,
    products: [[__m512; 2]; N],
) -> usize {
    for (sums, products) in sums.iter_mut().zip(products) {
        let sums: *mut __m512 = sums.as_mut_ptr().cast();
        for four in 0..2 {
            // SAFETY: one of the fours; the caller's promise.
            unsafe {
                let sum = sums.add(half * 2 + four);
                let all =
                    if AT == 0 { products[four] } else { _mm512_add_ps(*sum, products[four]) };
                sum.write(all);
            }
        }
    }
    N
}

/// A part of four weight rows: lanes are those of a row's four blocks, row after row.
#[derive(Clone, Copy)]
struct Weights {
    even: [__m512i; 4],
    odd: [__m512i; 4],
}

/// Products of part `AT` of two fours of weight rows with `N` activation rows, block by block.
///
/// # Safety
/// `x` has that part, transposed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn products<const AT: usize, const N: usize>(
    weights: &[Weights; 2],
    scales: &Scales,
    x: [Planes; N],
) -> [[__m512; 2]; N] {
    let mut high = [[_mm512_setzero_si512(); 2]; N];
    let mut low = high;
    let mut products = [[_mm512_setzero_ps(); 2]; N];
    // SAFETY: the caller's promise.
    unsafe {
        for k in 0..4 {
            // A sum gets its next product when all others have had theirs.
            for is_odd in [false, true] {
                for n in 0..N {
                    let at = x[n].planes.add(k * 256 + usize::from(is_odd) * 64 + AT * 16);
                    let x_high = _mm512_broadcast_i32x4(_mm_loadu_si128(at.cast()));
                    let x_low = _mm512_broadcast_i32x4(_mm_loadu_si128(at.add(128).cast()));
                    for four in 0..2 {
                        let Weights { even, odd } = &weights[four];
                        let codes = if is_odd { odd[k] } else { even[k] };
                        high[n][four] = _mm512_dpbusd_epi32(high[n][four], codes, x_high);
                        low[n][four] = _mm512_dpbusd_epi32(low[n][four], codes, x_low);
                    }
                }
            }
        }
        for n in 0..N {
            let blocks = AT * PART / BLOCK;
            let x_scale = _mm512_broadcast_f32x4(_mm_loadu_ps(x[n].scale.add(blocks)));
            let x_sum = _mm512_broadcast_f32x4(_mm_loadu_ps(x[n].sum.add(blocks)));
            for four in 0..2 {
                let integers =
                    _mm512_add_epi32(_mm512_slli_epi32::<8>(high[n][four]), low[n][four]);
                let (scale, bias) = scales[four];
                let scale = _mm512_mul_ps(scale, x_scale);
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(integers), scale);
                products[n][four] = _mm512_fmadd_ps(bias, x_sum, product);
            }
        }
    }
    products
}

/// Scales of four rows, for each of their parts, in the lanes of their blocks.
///
/// # Safety
/// There are the scales of four rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn scales_of_four<const PARTS: usize, const KIND: u8, const GROUP: usize>(
    at: *const u8,
) -> [__m512; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        if PARTS == 1 {
            return [expand::<KIND, GROUP, 4>(at), _mm512_setzero_ps()];
        }
        if GROUP == BLOCK {
            let (a, b) = (
                expand::<KIND, GROUP, 4>(at),
                expand::<KIND, GROUP, 4>(at.add(16 * if KIND == 0 { 4 } else { 2 })),
            );
            return [
                _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
            ];
        }
        let all = load_scales::<KIND>(at, 8 * PART / GROUP);
        let [first, second] = if GROUP == 64 {
            [
                _mm512_setr_epi32(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13),
                _mm512_setr_epi32(2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15),
            ]
        } else {
            [
                _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6),
                _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7),
            ]
        };
        [_mm512_permutexvar_ps(first, all), _mm512_permutexvar_ps(second, all)]
    }
}

/// The four blocks of each row added in the order of [`halves_sum`](super::halves_sum), as if the other lanes were zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_fours([a, b, c, d]: [__m512; FOURS]) -> __m512 {
    // Row r of four f is in lane f of block r.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let sums = _mm512_permutexvar_ps(order, pairs(twos(a, b), twos(c, d)));
    _mm512_add_ps(sums, _mm512_setzero_ps())
}

/// In each block of four lanes: the first two and the last two of `a` added, then those of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn twos(a: __m512, b: __m512) -> __m512 {
    let (first, last) =
        (_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
    _mm512_add_ps(first, last)
}

/// In each block of four lanes: neighbours of `a` added, then those of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(a: __m512, b: __m512) -> __m512 {
    let (even, odd) =
        (_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
    _mm512_add_ps(even, odd)
}
