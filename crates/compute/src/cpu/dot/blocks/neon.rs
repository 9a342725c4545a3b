//! The product of expanded chunks with NEON: codes less 128 are signed bytes, and zeros are 128 less as well.

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use super::{Inputs, Lanes, Plain, Shape, scale};
use crate::cpu::dot::neon::{add_lanes, block_values, load, sdot};
use crate::cpu::quantize::{Activations, LANE_BLOCKS};

/// Σ (code - 128) · value of the halves of each block.
type HalfSums = unsafe fn(&Plain, &Inputs<'_>) -> [[i32; LANE_BLOCKS]; 2];

/// Adds the products of one chunk to the sums of each activation row.
pub(super) fn add(
    shape: Shape,
    plain: &Plain,
    x: &Activations,
    inputs: &[u32],
    chunk: usize,
    sums: &mut [Lanes],
) {
    // The standard library asks the processor once and remembers.
    let half_sums: HalfSums =
        if is_aarch64_feature_detected!("dotprod") { by_bytes } else { by_halves };
    let shifted = Shape { zero: shape.zero - 128, ..shape };
    for (&input, sums) in inputs.iter().zip(sums) {
        let x = Inputs::new(x, input, chunk, shape);
        // SAFETY: every 64-bit Arm has NEON, and `by_bytes` runs only where `sdot` was detected.
        let integers = unsafe { half_sums(plain, &x) };
        scale(shifted, plain, &x, &integers, sums);
    }
}

/// Sixteen codes less 128.
#[inline]
#[target_feature(enable = "neon")]
fn signed_codes(plain: &Plain, half: usize) -> int8x16_t {
    let codes = load(&plain.codes.as_chunks().0[half]);
    vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128)))
}

/// With `sdot`: the values as two planes of signed bytes, `256 · high + low`.
#[target_feature(enable = "neon,dotprod")]
fn by_bytes(plain: &Plain, x: &Inputs<'_>) -> [[i32; LANE_BLOCKS]; 2] {
    let mut sums = [[vdupq_n_s32(0); LANE_BLOCKS]; 2];
    for block in 0..LANE_BLOCKS {
        let values = block_values(x.values, block);
        for half in 0..2 {
            let codes = signed_codes(plain, 2 * block + half);
            let a = vreinterpretq_s8_s16(values[2 * half]);
            let b = vreinterpretq_s8_s16(values[2 * half + 1]);
            let low_bytes = vuzp1q_s8(a, b);
            // A low byte read as negative is 256 too small: the high byte makes up for it.
            let high_bytes = vsubq_s8(vuzp2q_s8(a, b), vshrq_n_s8::<7>(low_bytes));
            let high = vshlq_n_s32::<8>(sdot(vdupq_n_s32(0), codes, high_bytes));
            sums[half][block] = sdot(high, codes, low_bytes);
        }
    }
    [add_lanes(&sums[0]), add_lanes(&sums[1])]
}

/// Without it: the codes as 16-bit integers, like the values.
#[target_feature(enable = "neon")]
fn by_halves(plain: &Plain, x: &Inputs<'_>) -> [[i32; LANE_BLOCKS]; 2] {
    let mut sums = [[vdupq_n_s32(0); LANE_BLOCKS]; 2];
    for block in 0..LANE_BLOCKS {
        let values = block_values(x.values, block);
        for half in 0..2 {
            let codes = signed_codes(plain, 2 * block + half);
            let wide = [vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)];
            let sum = &mut sums[half][block];
            for (codes, values) in wide.into_iter().zip(&values[2 * half..]) {
                *sum = vmlal_s16(*sum, vget_low_s16(codes), vget_low_s16(*values));
                *sum = vmlal_high_s16(*sum, codes, *values);
            }
        }
    }
    [add_lanes(&sums[0]), add_lanes(&sums[1])]
}

#[cfg(test)]
mod tests {
    use super::super::half_sums;
    use super::*;
    use crate::cpu::dot::tests::Random;
    use crate::cpu::quantize::{BLOCK, CHUNK};

    #[track_caller]
    fn check(codes: [u8; CHUNK], values: [i16; CHUNK]) {
        let zero = [0; LANE_BLOCKS];
        let floats = [0.0; LANE_BLOCKS];
        let (scale, sum) = (&floats, &floats);
        let x = Inputs { values: &values, scale, sum, integer_sum: &zero, first_sum: &zero };
        let mut plain = Plain::new();
        plain.codes = codes;
        let mut want = half_sums(&plain, &x);
        for (i, &value) in values.iter().enumerate() {
            want[i % BLOCK / (BLOCK / 2)][i / BLOCK] -= 128 * i32::from(value);
        }
        // SAFETY: NEON is in every 64-bit Arm.
        assert_eq!(unsafe { by_halves(&plain, &x) }, want, "by halves");
        if is_aarch64_feature_detected!("dotprod") {
            // SAFETY: just detected.
            assert_eq!(unsafe { by_bytes(&plain, &x) }, want, "by bytes");
        }
    }

    #[test]
    fn both_ways_are_exact_up_to_the_extremes() {
        let mut random = Random(3);
        for _ in 0..50 {
            let codes = std::array::from_fn(|_| random.next() as u8);
            let values = std::array::from_fn(|_| (32_512.0 * random.float()) as i16);
            check(codes, values);
        }
        for code in [0, 127, 128, 255] {
            for value in [-32_512, -129, -128, -1, 0, 127, 128, 32_383, 32_512] {
                check([code; CHUNK], [value; CHUNK]);
            }
        }
    }
}
