//! How the numbers of one weight matrix are coded.

use std::fmt;

use crate::Dtype;

/// Number type of dense values and of quantisation scales.
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

/// How the values of a weight are coded: as codes, with scales and biases in planes of their own where there are any.
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
}

impl Encoding {
    /// Bits of one code.
    pub fn bits(self) -> u32 {
        match self {
            Encoding::Dense(float) => 8 * float.bytes() as u32,
            Encoding::Affine { bits, .. } => u32::from(bits),
            Encoding::Mxfp8 => 8,
            Encoding::Mxfp4 | Encoding::Nvfp4 => 4,
        }
    }

    /// Values per scale; `None` where there are no scales.
    pub fn group(self) -> Option<usize> {
        match self {
            Encoding::Dense(_) => None,
            Encoding::Affine { group, .. } => Some(group),
            Encoding::Mxfp4 | Encoding::Mxfp8 => Some(32),
            Encoding::Nvfp4 => Some(16),
        }
    }

    /// Whether values are codes with scales.
    pub fn is_quantized(self) -> bool {
        self.group().is_some()
    }

    /// Whether products of codes are integers, so that a dot product of them is exact.
    pub fn is_integer(self) -> bool {
        matches!(self, Encoding::Affine { .. } | Encoding::Mxfp4)
    }

    /// The type of the scales; `None` where there are none. U8 in the floating modes.
    pub fn scale_dtype(self) -> Option<Dtype> {
        match self {
            Encoding::Dense(_) => None,
            Encoding::Affine { scale, .. } => Some(scale.dtype()),
            Encoding::Mxfp4 | Encoding::Mxfp8 | Encoding::Nvfp4 => Some(Dtype::U8),
        }
    }

    /// Bytes of the codes of one row of `cols` values.
    pub fn row_bytes(self, cols: usize) -> usize {
        cols * self.bits() as usize / 8
    }

    /// Bytes of the scales of one row.
    pub fn scale_bytes(self, cols: usize) -> usize {
        let (Some(group), Some(dtype)) = (self.group(), self.scale_dtype()) else { return 0 };
        cols / group * dtype.bits() as usize / 8
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
        }
    }
}
