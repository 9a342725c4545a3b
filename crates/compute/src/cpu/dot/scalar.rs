//! The plain form of the arithmetic: what every other instruction set must equal to the bit.

use half::{bf16, f16};

use super::{Codes, FP4_ZERO, Padded, Row, ScaleKind, accumulate, chunk, unpack_codes};
use crate::cpu::lanes::sum_lanes;
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};

/// Products of one weight row with up to four activation rows.
pub(super) fn dot(row: &Row<'_>, x: &Activations, inputs: &[u32], out: &mut [f32; 4]) {
    for (result, &input) in out.iter_mut().zip(inputs) {
        let input = input as usize;
        let values = x.row_values(input);
        let mut acc = [0.0f32; LANE_BLOCKS];
        for c in 0..x.blocks / LANE_BLOCKS {
            let mut padded = Padded::new();
            let (codes, scales, biases) = chunk(row, c, &mut padded);
            let mut bytes = [0u8; CHUNK];
            unpack_codes(row.packing, codes, &mut bytes);
            let lane = |all: &[f32]| -> [f32; LANE_BLOCKS] {
                all[c * LANE_BLOCKS..][..LANE_BLOCKS].try_into().expect("a whole round of lanes")
            };
            let mut integers = [0i32; LANE_BLOCKS];
            for (l, integer) in integers.iter_mut().enumerate() {
                for i in l * BLOCK..(l + 1) * BLOCK {
                    *integer += bytes[i] as i32 * values[c * CHUNK + i] as i32;
                }
                if row.packing == Codes::Fp4 {
                    *integer -= FP4_ZERO * x.row_integer_sum(input)[c * LANE_BLOCKS + l];
                }
            }
            let scale = expand(row, scales);
            let bias = (!biases.is_empty()).then(|| expand(row, biases));
            let (x_scale, x_sum) = (lane(x.row_scale(input)), lane(x.row_sum(input)));
            accumulate(&mut acc, &integers, &scale, bias.as_ref(), &x_scale, &x_sum);
        }
        *result = sum_lanes(acc);
    }
}

/// The scale of each block of a chunk, as f32.
pub(super) fn expand(row: &Row<'_>, bytes: &[u8]) -> [f32; LANE_BLOCKS] {
    std::array::from_fn(|block| {
        let index = block * BLOCK / row.group;
        let pair = || u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
        match row.kind {
            ScaleKind::F32 => {
                f32::from_le_bytes(bytes[4 * index..][..4].try_into().expect("four bytes"))
            }
            ScaleKind::F16 => f16::from_bits(pair()).to_f32(),
            ScaleKind::Bf16 => bf16::from_bits(pair()).to_f32(),
            ScaleKind::HalvedExponent => halved_exponent(bytes[index]),
        }
    })
}

/// 2^(e - 128): an E8M0 scale, halved because the codes are doubled.
pub(super) fn halved_exponent(e: u8) -> f32 {
    // The two smallest results are subnormal: shift the leading bit by hand.
    match e {
        0 => f32::from_bits(1 << 21),
        1 => f32::from_bits(1 << 22),
        e => f32::from_bits((e as u32 - 1) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_powers_of_two() {
        for e in 0..=254u8 {
            assert_eq!(halved_exponent(e) as f64, 2f64.powi(e as i32 - 128), "{e}");
        }
    }
}
