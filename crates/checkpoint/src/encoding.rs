//! How the numbers of one weight matrix are stored, found from the shapes of its parts.
//!
//! The architecture knows `in_features`, so `bits = 32 · packed columns / in` and
//! `group = in / scale columns` are unique. Without it they are not: eight packed words a scale
//! are 4 bits in groups of 64, 8 in groups of 32 or 2 in groups of 128.

use std::fmt;

use crate::{Dtype, Mode, Scheme, Tensor};

/// How one weight matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit brain floats.
    BF16,
    /// MLX affine: `w = scale · q + bias`, `q` a little-endian bit stream per row.
    Affine {
        /// Bits per weight: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Weights per scale: 32, 64 or 128.
        group: usize,
        /// The type of scales and biases: F16, BF16 or F32.
        scale: Dtype,
    },
    /// E2M1 codes in groups of 32 with E8M0 scales.
    Mxfp4,
    /// E4M3 codes in groups of 32 with E8M0 scales.
    Mxfp8,
    /// E2M1 codes in groups of 16 with E4M3 scales.
    Nvfp4,
}

impl Encoding {
    /// Bits of one weight, without its share of the scales.
    pub fn bits(self) -> u32 {
        match self {
            Encoding::F32 => 32,
            Encoding::F16 | Encoding::BF16 => 16,
            Encoding::Affine { bits, .. } => u32::from(bits),
            Encoding::Mxfp8 => 8,
            Encoding::Mxfp4 | Encoding::Nvfp4 => 4,
        }
    }

    /// Weights per scale; `None` where there are no scales.
    pub fn group(self) -> Option<usize> {
        match self {
            Encoding::F32 | Encoding::F16 | Encoding::BF16 => None,
            Encoding::Affine { group, .. } => Some(group),
            Encoding::Mxfp4 | Encoding::Mxfp8 => Some(32),
            Encoding::Nvfp4 => Some(16),
        }
    }

    /// Whether weights are codes with scales.
    pub fn is_quantized(self) -> bool {
        self.group().is_some()
    }

    /// The type of the scales; `None` where there are none. U8 in the floating modes.
    pub fn scale_dtype(self) -> Option<Dtype> {
        match self {
            Encoding::F32 | Encoding::F16 | Encoding::BF16 => None,
            Encoding::Affine { scale, .. } => Some(scale),
            Encoding::Mxfp4 | Encoding::Mxfp8 | Encoding::Nvfp4 => Some(Dtype::U8),
        }
    }

    /// The same in the words of config.json; `None` for plain floats.
    pub fn scheme(self) -> Option<Scheme> {
        let mode = match self {
            Encoding::F32 | Encoding::F16 | Encoding::BF16 => return None,
            Encoding::Affine { .. } => Mode::Affine,
            Encoding::Mxfp4 => Mode::Mxfp4,
            Encoding::Mxfp8 => Mode::Mxfp8,
            Encoding::Nvfp4 => Mode::Nvfp4,
        };
        let group = self.group()?;
        Some(Scheme { bits: self.bits() as u8, group, mode })
    }

    /// Bytes of weights, of scales and of biases for `rows` rows of `in_features` inputs.
    pub fn part_bytes(self, rows: usize, in_features: usize) -> [u64; 3] {
        let (rows, inputs) = (rows as u64, in_features as u64);
        let weight = rows * (inputs * u64::from(self.bits()) / 8);
        let (Some(group), Some(dtype)) = (self.group(), self.scale_dtype()) else {
            return [weight, 0, 0];
        };
        let scales = rows * (inputs / group as u64) * u64::from(dtype.bits() / 8);
        let biases = if matches!(self, Encoding::Affine { .. }) { scales } else { 0 };
        [weight, scales, biases]
    }

    /// The encoding of an unquantised weight.
    pub(crate) fn plain(dtype: Dtype) -> Option<Encoding> {
        match dtype {
            Dtype::F32 => Some(Encoding::F32),
            Dtype::F16 => Some(Encoding::F16),
            Dtype::BF16 => Some(Encoding::BF16),
            _ => None,
        }
    }

    /// The encoding of packed words with these scales, or why there is none.
    pub(crate) fn quantized(
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
                Ok(Encoding::Affine { bits: bits as u8, group, scale })
            }
            (scale, ..) => {
                let biases = if has_biases { "with" } else { "without" };
                Err(format!(
                    "{bits} bits in groups of {group} with {scale} scales, {biases} biases, \
                     is no known quantisation"
                ))
            }
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::F32 => formatter.write_str("f32"),
            Encoding::F16 => formatter.write_str("f16"),
            Encoding::BF16 => formatter.write_str("bf16"),
            Encoding::Affine { bits, group, scale } => {
                write!(formatter, "affine {bits}-bit group {group} ({scale} scales)")
            }
            Encoding::Mxfp4 => formatter.write_str("mxfp4"),
            Encoding::Mxfp8 => formatter.write_str("mxfp8"),
            Encoding::Nvfp4 => formatter.write_str("nvfp4"),
        }
    }
}
