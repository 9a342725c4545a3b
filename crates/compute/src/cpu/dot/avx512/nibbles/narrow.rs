//! Weight rows of one or two parts in all. Alone they would leave most lanes idle, so several of them share the lanes, each
//! with the same activations.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Layout, Planes, expand, transpose, unpack};
use crate::cpu::dot::{Rows, Target};
use crate::cpu::quantise::{Activations, CHUNK};
use crate::weight::Matrix;

/// Whether several rows of the weight fit in the lanes of one chunk.
pub(super) fn shares_lanes<const TAIL: usize>(w: &Matrix<'_>) -> bool {
    w.cols < CHUNK && (TAIL == 1 || TAIL == 2)
}

/// Weight rows of `TAIL` parts, one or two, with `N` transposed activation rows: four or two weight rows at a time, each in
/// its share of the lanes, and the activations repeated for each.
///
/// # Safety
/// As [`whole_parts`](super::whole_parts); there are `N` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn narrow<
    const N: usize,
    const TAIL: usize,
    const KIND: u8,
    const GROUP: usize,
>(
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let Layout { row_bytes, scale_bytes, .. } = Layout::check(w, &range, GROUP);
    let x: [Planes; N] = std::array::from_fn(|n| Planes::of(x, rows.inputs[n] as usize));
    let together = 4 / TAIL;
    for first in range.clone().step_by(together) {
        let mut packed = [_mm512_setzero_si512(); 4];
        let (mut scale, mut bias) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        // SAFETY: whole vectors of rows inside the weight and of the activations' padded rows.
        unsafe {
            for r in 0..together {
                // Where there are fewer, the last row is computed again.
                let row = (first + r).min(range.end - 1);
                let codes = w.codes.as_ptr().add(row * row_bytes);
                for part in 0..TAIL {
                    packed[r * TAIL + part] = _mm512_loadu_si512(codes.add(part * 64).cast());
                }
                let scales = expand::<KIND, GROUP, TAIL>(w.scales.as_ptr().add(row * scale_bytes));
                let biases = expand::<KIND, GROUP, TAIL>(w.biases.as_ptr().add(row * scale_bytes));
                scale = _mm512_or_ps(scale, to_share::<TAIL>(scales, r));
                bias = _mm512_or_ps(bias, to_share::<TAIL>(biases, r));
            }
            let (even, odd) = unpack::<false>(transpose(packed));
            for n in 0..N {
                let integers = shared_block_sums::<TAIL>(&even, &odd, x[n].planes);
                let x_scale = _mm512_castsi512_ps(repeat::<TAIL>(x[n].scale.cast()));
                let x_sum = _mm512_castsi512_ps(repeat::<TAIL>(x[n].sum.cast()));
                let product = _mm512_mul_ps(scale, x_scale);
                let zero = _mm512_setzero_ps();
                let acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), product, zero);
                let acc = _mm512_fmadd_ps(bias, x_sum, acc);
                let sums = share_sums::<TAIL>(acc);
                for r in 0..together.min(range.end - first) {
                    out.put(rows.outputs[n], first + r - range.start, sums[r]);
                }
            }
        }
    }
}

/// The first `PARTS` · 16 bytes, repeated.
///
/// # Safety
/// There are so many.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn repeat<const PARTS: usize>(at: *const i8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        if PARTS == 1 {
            _mm512_broadcast_i32x4(_mm_loadu_si128(at.cast()))
        } else {
            _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast()))
        }
    }
}

/// Moves the lanes of `PARTS` parts, of which the others are zero, to share `r` of the lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn to_share<const PARTS: usize>(lanes: __m512, r: usize) -> __m512 {
    match 4 * PARTS * r {
        0 => lanes,
        4 => _mm512_shuffle_f32x4::<0b11_11_00_11>(lanes, lanes),
        8 => _mm512_shuffle_f32x4::<0b01_00_11_11>(lanes, lanes),
        _ => _mm512_shuffle_f32x4::<0b00_11_11_11>(lanes, lanes),
    }
}

/// [`block_sums`](super::block_sums) of codes of several rows, each with the same blocks of the activations.
///
/// # Safety
/// `x` points to 1,024 bytes of transposed planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn shared_block_sums<const PARTS: usize>(
    even: &[__m512i; 4],
    odd: &[__m512i; 4],
    x: *const i8,
) -> __m512i {
    let mut high = _mm512_setzero_si512();
    let mut low = high;
    for k in 0..4 {
        // SAFETY: the caller's promise.
        unsafe {
            let at = x.add(k * 256);
            high = _mm512_dpbusd_epi32(high, even[k], repeat::<PARTS>(at));
            low = _mm512_dpbusd_epi32(low, even[k], repeat::<PARTS>(at.add(128)));
            high = _mm512_dpbusd_epi32(high, odd[k], repeat::<PARTS>(at.add(64)));
            low = _mm512_dpbusd_epi32(low, odd[k], repeat::<PARTS>(at.add(192)));
        }
    }
    _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
}

/// The lanes of each share added in the order of [`halves_sum`](super::halves_sum), as if the others were zero.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn share_sums<const PARTS: usize>(lanes: __m512) -> [f32; 4] {
    let mut sums = _mm512_add_ps(lanes, _mm512_setzero_ps());
    if PARTS == 2 {
        sums = _mm512_add_ps(sums, _mm512_shuffle_f32x4::<0b10_11_00_01>(sums, sums));
    }
    sums = _mm512_add_ps(sums, _mm512_permute_ps::<0b01_00_11_10>(sums));
    sums = _mm512_add_ps(sums, _mm512_permute_ps::<0b10_11_00_01>(sums));
    let starts = if PARTS == 1 { [0, 4, 8, 12] } else { [0, 8, 0, 8] };
    let order = _mm512_setr_epi32(
        starts[0], starts[1], starts[2], starts[3], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    );
    let mut each = [0.0; 4];
    let sums = _mm512_castps512_ps128(_mm512_permutexvar_ps(order, sums));
    // SAFETY: four floats.
    unsafe { _mm_storeu_ps(each.as_mut_ptr(), sums) };
    each
}
