//! NEON: signed 8-bit codes, multiplied byte by byte where the processor has `sdot`, else widened.
//!
//! Codes 0..=127 are signed bytes as they are, fp4 codes once their zero is taken off. 8-bit codes
//! have 128 taken off, and `128 · Σ value` is added again. Every step is exact in 32 bits.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{Codes, FP4_CODES, FP4_ZERO, Padded, Row, accumulate, chunk, scalar, unpack_codes};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};

/// What is taken off an 8-bit code to make it a signed byte.
const BYTE_ZERO: i32 = 128;

/// Doubled E2M1 values, by nibble.
const FP4_VALUES: [i8; 16] = {
    let mut values = [0; 16];
    let mut i = 0;
    while i < values.len() {
        values[i] = FP4_CODES[i] as i8 - FP4_ZERO as i8;
        i += 1;
    }
    values
};

/// Products of one weight row with up to four activation rows.
pub(super) fn dot(row: &Row<'_>, x: &Activations, inputs: &[u32], out: &mut [f32; 4]) {
    // The standard library asks the processor once and remembers.
    let block_sums: BlockSums =
        if is_aarch64_feature_detected!("dotprod") { by_bytes } else { by_halves };
    // SAFETY: every 64-bit Arm has NEON, and `by_bytes` runs only where `sdot` was detected.
    unsafe { dot_with(block_sums, row, x, inputs, out) };
}

/// Σ signed code · value of each block of a chunk.
type BlockSums = unsafe fn(Codes, &[u8], &[i16; CHUNK]) -> [i32; LANE_BLOCKS];

/// # Safety
/// The machine must have the instructions of `block_sums`.
unsafe fn dot_with(
    block_sums: BlockSums,
    row: &Row<'_>,
    x: &Activations,
    inputs: &[u32],
    out: &mut [f32; 4],
) {
    let mut acc = [[0.0f32; LANE_BLOCKS]; 4];
    let mut padded = Padded::new();
    let mut unpacked = [0u8; CHUNK];
    for c in 0..x.blocks / LANE_BLOCKS {
        let (mut codes, scales, biases) = chunk(row, c, &mut padded);
        if let Codes::Stream(_) = row.packing {
            unpack_codes(row.packing, codes, &mut unpacked);
            codes = &unpacked;
        }
        let scale = scalar::expand(row, scales);
        let bias = (!biases.is_empty()).then(|| scalar::expand(row, biases));
        for (acc, &input) in acc.iter_mut().zip(inputs) {
            let input = input as usize;
            let values = x.row_values(input)[c * CHUNK..].first_chunk().expect("a whole chunk");
            // SAFETY: the caller's promise.
            let mut integers = unsafe { block_sums(row.packing, codes, values) };
            if row.packing == Codes::Bytes {
                let sums: &[i32; LANE_BLOCKS] = lane(x.row_integer_sum(input), c);
                for l in 0..LANE_BLOCKS {
                    integers[l] += BYTE_ZERO * sums[l];
                }
            }
            let (x_scale, x_sum) = (lane(x.row_scale(input), c), lane(x.row_sum(input), c));
            accumulate(acc, &integers, &scale, bias.as_ref(), x_scale, x_sum);
        }
    }
    for (result, acc) in out.iter_mut().zip(acc) {
        *result = sum_lanes(acc);
    }
}

/// What the blocks of chunk `c` have of `all`.
fn lane<T>(all: &[T], c: usize) -> &[T; LANE_BLOCKS] {
    all[c * LANE_BLOCKS..].first_chunk().expect("a whole round of lanes")
}

/// With `sdot`: the values as two planes of signed bytes, `256 · high + low`.
#[target_feature(enable = "neon,dotprod")]
fn by_bytes(packing: Codes, codes: &[u8], values: &[i16; CHUNK]) -> [i32; LANE_BLOCKS] {
    let mut sums = [vdupq_n_s32(0); LANE_BLOCKS];
    for (block, sum) in sums.iter_mut().enumerate() {
        let (codes, values) = (signed_codes(packing, codes, block), block_values(values, block));
        let mut high = vdupq_n_s32(0);
        for i in 0..2 {
            let a = vreinterpretq_s8_s16(values[2 * i]);
            let b = vreinterpretq_s8_s16(values[2 * i + 1]);
            let low_bytes = vuzp1q_s8(a, b);
            // A low byte read as negative is 256 too small: the high byte makes up for it.
            let high_bytes = vsubq_s8(vuzp2q_s8(a, b), vshrq_n_s8::<7>(low_bytes));
            *sum = sdot(*sum, codes[i], low_bytes);
            high = sdot(high, codes[i], high_bytes);
        }
        *sum = vaddq_s32(*sum, vshlq_n_s32::<8>(high));
    }
    add_lanes(&sums)
}

/// Without it: the codes as 16-bit integers, like the values.
#[target_feature(enable = "neon")]
fn by_halves(packing: Codes, codes: &[u8], values: &[i16; CHUNK]) -> [i32; LANE_BLOCKS] {
    let mut sums = [vdupq_n_s32(0); LANE_BLOCKS];
    for (block, sum) in sums.iter_mut().enumerate() {
        let (codes, values) = (signed_codes(packing, codes, block), block_values(values, block));
        for i in 0..2 {
            let (a, b) = (vmovl_s8(vget_low_s8(codes[i])), vmovl_high_s8(codes[i]));
            for (codes, values) in [(a, values[2 * i]), (b, values[2 * i + 1])] {
                *sum = vmlal_s16(*sum, vget_low_s16(codes), vget_low_s16(values));
                *sum = vmlal_high_s16(*sum, codes, values);
            }
        }
    }
    add_lanes(&sums)
}

/// The codes of one block in natural order, as signed bytes.
#[inline]
#[target_feature(enable = "neon")]
fn signed_codes(packing: Codes, codes: &[u8], block: usize) -> [int8x16_t; 2] {
    match packing {
        Codes::Nibbles | Codes::Fp4 => {
            let packed = load(&codes.as_chunks().0[block]);
            let (mut even, mut odd) = (vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed));
            if packing == Codes::Fp4 {
                let table = load(bytemuck::cast_ref(&FP4_VALUES));
                (even, odd) = (vqtbl1q_u8(table, even), vqtbl1q_u8(table, odd));
            }
            [vzip1q_u8(even, odd), vzip2q_u8(even, odd)].map(|codes| vreinterpretq_s8_u8(codes))
        }
        Codes::Bytes | Codes::Stream(_) => {
            // Taking 128 off a byte is turning its highest bit over.
            let zero = vdupq_n_u8(if packing == Codes::Bytes { BYTE_ZERO as u8 } else { 0 });
            let codes = &codes.as_chunks().0[2 * block..];
            [load(&codes[0]), load(&codes[1])]
                .map(|codes| vreinterpretq_s8_u8(veorq_u8(codes, zero)))
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: sixteen bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// The values of one block.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn block_values(values: &[i16; CHUNK], block: usize) -> [int16x8_t; BLOCK / 8] {
    let (values, _) = values[block * BLOCK..].as_chunks::<8>();
    // SAFETY: eight integers each.
    std::array::from_fn(|i| unsafe { vld1q_s16(values[i].as_ptr()) })
}

/// The sum of the four lanes of each vector.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn add_lanes(sums: &[int32x4_t; LANE_BLOCKS]) -> [i32; LANE_BLOCKS] {
    let mut out = [0; LANE_BLOCKS];
    for (out, s) in out.as_chunks_mut::<4>().0.iter_mut().zip(sums.as_chunks::<4>().0) {
        let total = vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
        // SAFETY: four integers.
        unsafe { vst1q_s32(out.as_mut_ptr(), total) };
    }
    out
}

/// `sum` plus, in each lane, the products of four signed bytes. (The intrinsic is not stable in Rust 1.95.)
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: works on registers alone; the function has the feature.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::tests::Random;
    use super::*;

    /// The block sums from their definition.
    fn expect(packing: Codes, codes: &[u8], values: &[i16; CHUNK]) -> [i32; LANE_BLOCKS] {
        let mut bytes = [0; CHUNK];
        match packing {
            Codes::Stream(_) => bytes.copy_from_slice(codes),
            _ => unpack_codes(packing, codes, &mut bytes),
        }
        let zero = match packing {
            Codes::Bytes => BYTE_ZERO,
            Codes::Fp4 => FP4_ZERO,
            _ => 0,
        };
        std::array::from_fn(|l| {
            let product = |i: usize| (i32::from(bytes[i]) - zero) * i32::from(values[i]);
            (l * BLOCK..(l + 1) * BLOCK).map(product).sum()
        })
    }

    #[track_caller]
    fn check(packing: Codes, codes: &[u8], values: &[i16; CHUNK]) {
        let want = expect(packing, codes, values);
        // SAFETY: NEON is in every 64-bit Arm.
        assert_eq!(unsafe { by_halves(packing, codes, values) }, want, "{packing:?} by halves");
        if is_aarch64_feature_detected!("dotprod") {
            // SAFETY: just detected.
            assert_eq!(unsafe { by_bytes(packing, codes, values) }, want, "{packing:?} by bytes");
        }
    }

    #[test]
    fn both_ways_are_exact_up_to_the_extremes() {
        let mut random = Random(3);
        let packings = [Codes::Nibbles, Codes::Fp4, Codes::Bytes, Codes::Stream(6)];
        for packing in packings {
            let mask = if packing == Codes::Stream(6) { 63 } else { 255 };
            let len =
                if matches!(packing, Codes::Nibbles | Codes::Fp4) { CHUNK / 2 } else { CHUNK };
            for _ in 0..50 {
                let codes: Vec<u8> = (0..len).map(|_| random.next() as u8 & mask).collect();
                let values = std::array::from_fn(|_| (32_512.0 * random.float()) as i16);
                check(packing, &codes, &values);
            }
            for code in [0, 0x80 & mask, 0x7f & mask, mask] {
                for value in [-32_512, -32_385, -129, -128, -1, 0, 127, 128, 32_383, 32_512] {
                    check(packing, &vec![code; len], &[value; CHUNK]);
                }
            }
        }
    }
}
