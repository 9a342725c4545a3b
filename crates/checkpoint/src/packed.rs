//! The encoding of packed words, found from the shapes of their parts.
//!
//! The architecture knows `in_features`, so `bits = 32 · packed columns / in` and
//! `group = in / scale columns` are unique. Without it they are not: eight packed words a scale
//! are 4 bits in groups of 64, 8 in groups of 32 or 2 in groups of 128.

use format::{Dtype, Encoding, Float};

use crate::Tensor;

/// The encoding of packed words with these scales, or why there is none.
pub(crate) fn find(
    packed: usize,
    scales: &Tensor,
    has_biases: bool,
    in_features: usize,
) -> Result<Encoding, String> {
    let groups = scales.shape.last().copied().unwrap_or(0);
    let packed_bits = packed as u128 * 32;
    let inputs = in_features as u128;
    if inputs == 0 || groups == 0 || packed == 0 {
        return Err("an empty row".to_owned());
    }
    if !packed_bits.is_multiple_of(inputs) || !in_features.is_multiple_of(groups) {
        return Err("no whole number of bits per weight and weights per scale".to_owned());
    }
    let (bits, group) = (packed_bits / inputs, in_features / groups);
    match (scales.dtype, has_biases, bits, group) {
        (Dtype::U8, false, 4, 32) => Ok(Encoding::Mxfp4),
        (Dtype::U8, false, 8, 32) => Ok(Encoding::Mxfp8),
        (Dtype::U8, false, 4, 16) => Ok(Encoding::Nvfp4),
        (scale, true, 2 | 3 | 4 | 5 | 6 | 8, 32 | 64 | 128) if scale.is_float() => {
            let scale = Float::of(scale).unwrap_or(Float::F32);
            Ok(Encoding::Affine { bits: bits as u8, group, scale })
        }
        (scale, ..) => {
            let biases = if has_biases { "with" } else { "without" };
            Err(format!(
                "{bits} bits in groups of {group} with {scale} scales, {biases} biases, \
                 is no known quantization"
            ))
        }
    }
}
