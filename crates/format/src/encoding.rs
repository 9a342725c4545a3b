//! How the numbers of one weight matrix are coded.

use std::fmt;

use crate::{BlockFormat, Dtype};

/// Number type of dense values and of quantization scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl Float {
    /// The number type of an element type, if kernels have it.
    pub const fn of(dtype: Dtype) -> Option<Float> {
        match dtype {
            Dtype::F32 => Some(Float::F32),
            Dtype::F16 => Some(Float::F16),
            Dtype::BF16 => Some(Float::Bf16),
            _ => None,
        }
    }

    /// Its element type in a file.
    pub const fn dtype(self) -> Dtype {
        match self {
            Float::F32 => Dtype::F32,
            Float::F16 => Dtype::F16,
            Float::Bf16 => Dtype::BF16,
        }
    }

    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }
}

/// How the values of a weight are coded: as codes, with scales and biases in planes of their own where there are any, or
/// as blocks that hold all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Plain floats.
    Dense(Float),
    /// MLX affine: unsigned codes of `bits`, little-endian bit stream, value = scale · code + bias.
    Affine {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Values that share a scale and a bias: 32, 64 or 128.
        group: usize,
        /// Type of scales and biases.
        scale: Float,
    },
    /// E2M1 codes, groups of 32 with an E8M0 scale.
    Mxfp4,
    /// E4M3 codes, groups of 32 with an E8M0 scale.
    Mxfp8,
    /// E2M1 codes, groups of 16 with an E4M3 scale.
    Nvfp4,
    /// Blocks of GGUF: one plane, with codes, scales and minima between each other.
    Block(BlockFormat),
}

impl Encoding {
    /// The encoding of a matrix of elements or blocks of that type, if it can be a weight.
    pub const fn of(dtype: Dtype) -> Option<Encoding> {
        match (dtype, Float::of(dtype)) {
            (Dtype::Block(format), _) => Some(Encoding::Block(format)),
            (_, Some(float)) => Some(Encoding::Dense(float)),
            (_, None) => None,
        }
    }

    /// Bits of one code where codes have a plane of their own; `None` in blocks.
    pub fn bits(self) -> Option<u32> {
        match self {
            Encoding::Dense(float) => Some(8 * float.bytes() as u32),
            Encoding::Affine { bits, .. } => Some(u32::from(bits)),
            Encoding::Mxfp8 => Some(8),
            Encoding::Mxfp4 | Encoding::Nvfp4 => Some(4),
            Encoding::Block(_) => None,
        }
    }

    /// Values per scale; `None` where there are no scales.
    pub fn group(self) -> Option<usize> {
        match self {
            Encoding::Dense(_) => None,
            Encoding::Affine { group, .. } => Some(group),
            Encoding::Mxfp4 | Encoding::Mxfp8 => Some(32),
            Encoding::Nvfp4 => Some(16),
            Encoding::Block(format) => Some(format.group()),
        }
    }

    /// Whether values are codes with scales.
    pub fn is_quantized(self) -> bool {
        self.group().is_some()
    }

    /// Whether products of codes are integers, so that a dot product of them is exact.
    pub fn is_integer(self) -> bool {
        matches!(self, Encoding::Affine { .. } | Encoding::Mxfp4 | Encoding::Block(_))
    }

    /// The type of the plane of scales; `None` where there is none. U8 in the floating modes.
    pub fn scale_dtype(self) -> Option<Dtype> {
        match self {
            Encoding::Dense(_) | Encoding::Block(_) => None,
            Encoding::Affine { scale, .. } => Some(scale.dtype()),
            Encoding::Mxfp4 | Encoding::Mxfp8 | Encoding::Nvfp4 => Some(Dtype::U8),
        }
    }

    /// Bytes of the codes, or of the blocks, of one row of `cols` values.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Encoding::Block(format) => format.row_bytes(cols),
            _ => self.bits().map_or(0, |bits| cols * bits as usize / 8),
        }
    }

    /// Bytes of the plane of scales of one row.
    pub fn scale_bytes(self, cols: usize) -> usize {
        let (Some(group), Some(dtype)) = (self.group(), self.scale_dtype()) else { return 0 };
        let (_, bytes) = dtype.unit();
        cols / group * bytes
    }

    /// Bytes of the biases of one row.
    pub fn bias_bytes(self, cols: usize) -> usize {
        match self {
            Encoding::Affine { .. } => self.scale_bytes(cols),
            _ => 0,
        }
    }

    /// Bytes of a whole [rows, cols] matrix.
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        rows * (self.row_bytes(cols) + self.scale_bytes(cols) + self.bias_bytes(cols))
    }

    /// Bytes of codes, of scales and of biases for `rows` rows of `cols` values.
    pub fn part_bytes(self, rows: usize, cols: usize) -> [u64; 3] {
        [self.row_bytes(cols), self.scale_bytes(cols), self.bias_bytes(cols)]
            .map(|bytes| rows as u64 * bytes as u64)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Dense(Float::F32) => formatter.write_str("f32"),
            Encoding::Dense(Float::F16) => formatter.write_str("f16"),
            Encoding::Dense(Float::Bf16) => formatter.write_str("bf16"),
            Encoding::Affine { bits, group, scale } => {
                let scale = scale.dtype();
                write!(formatter, "affine {bits}-bit group {group} ({scale} scales)")
            }
            Encoding::Mxfp4 => formatter.write_str("mxfp4"),
            Encoding::Mxfp8 => formatter.write_str("mxfp8"),
            Encoding::Nvfp4 => formatter.write_str("nvfp4"),
            // Upper case, as GGUF's users know them: MXFP4 is other bytes than mxfp4.
            Encoding::Block(format) => write!(formatter, "{format}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_one_plane() {
        for &format in BlockFormat::ALL {
            let encoding = Encoding::of(Dtype::Block(format)).expect("a weight");
            let row = 2 * format.bytes();
            let cols = 2 * format.weights();
            assert_eq!(encoding.part_bytes(3, cols), [3 * row as u64, 0, 0], "{format}");
            assert_eq!(encoding.matrix_bytes(3, cols), 3 * row, "{format}");
            assert_eq!(Dtype::Block(format).tensor_bytes(&[3, cols]), Some(3 * row as u64));
            assert_eq!(format.weights() % format.group(), 0, "{format}");
        }
        let ragged = Dtype::Block(BlockFormat::Q4_0);
        assert_eq!(ragged.tensor_bytes(&[2, 16]), None, "half a block a row");
        assert_eq!(ragged.tensor_bytes(&[]), None);
        assert_eq!(Encoding::of(Dtype::I32), None);
    }

    #[test]
    fn planes_have_their_bytes() {
        let affine = Encoding::Affine { bits: 4, group: 64, scale: Float::F16 };
        assert_eq!(affine.part_bytes(2, 128), [128, 8, 8]);
        assert_eq!(Encoding::Mxfp4.part_bytes(2, 64), [64, 4, 0]);
        assert_eq!(Encoding::Dense(Float::Bf16).part_bytes(2, 3), [12, 0, 0]);
    }
}
