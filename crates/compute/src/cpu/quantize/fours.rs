//! Four blocks at a time in AVX-512: their largest magnitudes and their sums are those of vectors that were transposed, so
//! nothing waits for the lanes of one vector, and one division serves four scales.

use std::arch::x86_64::*;

use super::super::dot::transpose_sum;
use super::{BLOCK, LANE_BLOCKS, LARGEST, MAGIC, MOST};

/// Blocks that go together.
const FOUR: usize = 4;

/// Quantizes as many blocks as are whole fours, as [`quantize_block`](super::quantize_block) does to the bit. How many.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn quantize_fours(
    x: &[f32],
    values: &mut [i16],
    scale: &mut [f32],
    sum: &mut [f32],
    integer_sum: &mut [i32],
) -> usize {
    let x = x.as_chunks::<{ FOUR * BLOCK }>().0;
    let values = values.as_chunks_mut::<{ FOUR * BLOCK }>().0.iter_mut();
    let scales = scale.as_chunks_mut::<FOUR>().0.iter_mut();
    let sums = sum.as_chunks_mut::<FOUR>().0.iter_mut();
    let integer_sums = integer_sum.as_chunks_mut::<FOUR>().0.iter_mut();
    let outputs = values.zip(scales.zip(sums.zip(integer_sums)));
    let mut blocks = 0;
    for (x, (values, (scale, (sum, integer_sum)))) in x.iter().zip(outputs) {
        let numbers = four(x, values);
        // SAFETY: four numbers each.
        unsafe {
            _mm_storeu_ps(scale.as_mut_ptr(), numbers.scale);
            _mm_storeu_ps(sum.as_mut_ptr(), numbers.sum);
            _mm_storeu_si128(integer_sum.as_mut_ptr().cast(), numbers.integer_sum);
        }
        blocks += FOUR;
    }
    blocks
}

/// Says that a row of one chunk has no more blocks: they have no scale and no sum. Their values stay as they are.
#[target_feature(enable = "avx512f")]
pub(super) fn end_after(
    blocks: usize,
    scale: &mut [f32; LANE_BLOCKS],
    sum: &mut [f32; LANE_BLOCKS],
    integer_sum: &mut [i32; LANE_BLOCKS],
) {
    let rest = (u32::from(u16::MAX) << blocks) as u16;
    // SAFETY: sixteen numbers each.
    unsafe {
        _mm512_mask_storeu_ps(scale.as_mut_ptr(), rest, _mm512_setzero_ps());
        _mm512_mask_storeu_ps(sum.as_mut_ptr(), rest, _mm512_setzero_ps());
        _mm512_mask_storeu_epi32(integer_sum.as_mut_ptr(), rest, _mm512_setzero_si512());
    }
}

/// What four blocks are described by.
struct Numbers {
    scale: __m128,
    sum: __m128,
    integer_sum: __m128i,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn four(x: &[f32; FOUR * BLOCK], values: &mut [i16; FOUR * BLOCK]) -> Numbers {
    let mut halves = [[_mm512_setzero_ps(); 2]; FOUR];
    let mut largest = [_mm512_setzero_ps(); FOUR];
    for block in 0..FOUR {
        for half in 0..2 {
            // SAFETY: half a block.
            let x = unsafe { _mm512_loadu_ps(x.as_ptr().add(block * BLOCK + half * 16)) };
            halves[block][half] = x;
            // A NaN gives way to the second.
            largest[block] = _mm512_max_ps(_mm512_abs_ps(x), largest[block]);
        }
    }
    let largest = largest_of_each(largest);
    let all = _mm_set1_ps(LARGEST);
    let some = _mm_cmp_ps_mask::<_CMP_GT_OQ>(largest, _mm_setzero_ps());
    let inverses = _mm512_broadcast_f32x4(_mm_maskz_div_ps(some, all, largest));
    let inverses = [
        _mm512_permute_ps::<0b00_00_00_00>(inverses),
        _mm512_permute_ps::<0b01_01_01_01>(inverses),
        _mm512_permute_ps::<0b10_10_10_10>(inverses),
        _mm512_permute_ps::<0b11_11_11_11>(inverses),
    ];
    let magic = _mm512_set1_ps(MAGIC);
    let (least, most) = (_mm512_set1_epi32(-MOST), _mm512_set1_epi32(MOST));
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    let mut totals = [_mm512_setzero_si512(); FOUR];
    for block in 0..FOUR {
        let mut integers = [_mm512_setzero_si512(); 2];
        for half in 0..2 {
            let x = _mm512_add_ps(_mm512_mul_ps(halves[block][half], inverses[block]), magic);
            let integer = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_castps_si512(magic));
            integers[half] = _mm512_min_epi32(_mm512_max_epi32(integer, least), most);
        }
        totals[block] = _mm512_add_epi32(integers[0], integers[1]);
        // Lanes of 128 bits have four of the first half and four of the second.
        let words = _mm512_packs_epi32(integers[0], integers[1]);
        let words = _mm512_permutexvar_epi64(order, words);
        // SAFETY: a block.
        unsafe { _mm512_storeu_si512(values.as_mut_ptr().add(block * BLOCK).cast(), words) };
    }
    let scale = _mm_div_ps(largest, all);
    let integer_sum = sum_of_each(totals);
    Numbers { scale, sum: _mm_mul_ps(_mm_cvtepi32_ps(integer_sum), scale), integer_sum }
}

/// The largest number of each vector; none is a NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn largest_of_each([a, b, c, d]: [__m512; FOUR]) -> __m128 {
    let ab = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
    let fours = _mm512_max_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    let twos = _mm512_max_ps(fours, _mm512_shuffle_f32x4::<0b01_00_11_10>(fours, fours));
    let ones = _mm512_max_ps(twos, _mm512_shuffle_f32x4::<0b10_11_00_01>(twos, twos));
    _mm512_castps512_ps128(ones)
}

/// The sum of each vector.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn sum_of_each(vectors: [__m512i; FOUR]) -> __m128i {
    let fours = transpose_sum(vectors);
    let twos = _mm512_add_epi32(fours, _mm512_shuffle_i32x4::<0b01_00_11_10>(fours, fours));
    let ones = _mm512_add_epi32(twos, _mm512_shuffle_i32x4::<0b10_11_00_01>(twos, twos));
    _mm512_castsi512_si128(ones)
}
