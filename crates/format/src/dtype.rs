//! The element types a safetensors header can name, and the blocks of GGUF.
//!
//! All of them are known, so that a checkpoint with an exotic side tensor still opens; which of
//! them can hold a weight is decided where weights are found.

use std::fmt;

use crate::BlockFormat;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal,)*) => {
        /// The type of one element by its safetensors name, or of the blocks that elements come in.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Dtype {
            $($variant,)*
            /// Blocks, each a part of a row: in GGUF files only.
            Block(BlockFormat),
        }

        impl Dtype {
            /// Every dtype that a safetensors header can name.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant,)*];

            /// The name in a safetensors header, such as `BF16`; GGUF's for blocks.
            pub fn name(self) -> &'static str {
                match self {
                    $(Dtype::$variant => $name,)*
                    Dtype::Block(format) => format.name(),
                }
            }

            /// The dtype a safetensors header calls `name`.
            pub fn from_name(name: &str) -> Option<Dtype> {
                match name { $($name => Some(Dtype::$variant),)* _ => None }
            }

            /// The fewest elements that take whole bytes, and these bytes: one element for most.
            pub fn unit(self) -> (usize, usize) {
                match self {
                    // A multiple of eight, or one of the packed floats of four and six bits.
                    $(Dtype::$variant => match $bits {
                        4 => (2, 1),
                        6 => (4, 3),
                        bits => (1, bits / 8),
                    },)*
                    Dtype::Block(format) => (format.weights(), format.bytes()),
                }
            }
        }
    };
}

// The names of safetensors 0.8, `src/tensor.rs`.
dtypes! {
    F32 "F32" 32,
    F16 "F16" 16,
    BF16 "BF16" 16,
    U8 "U8" 8,
    I8 "I8" 8,
    U16 "U16" 16,
    I16 "I16" 16,
    U32 "U32" 32,
    I32 "I32" 32,
    U64 "U64" 64,
    I64 "I64" 64,
    F64 "F64" 64,
    Bool "BOOL" 8,
    F8E4M3 "F8_E4M3" 8,
    F8E5M2 "F8_E5M2" 8,
    F8E8M0 "F8_E8M0" 8,
    F8E4M3Fnuz "F8_E4M3FNUZ" 8,
    F8E5M2Fnuz "F8_E5M2FNUZ" 8,
    F6E2M3 "F6_E2M3" 6,
    F6E3M2 "F6_E3M2" 6,
    F4 "F4" 4,
    C64 "C64" 64,
}

impl Dtype {
    /// Bytes of a tensor of this dtype and shape; `None` when that overflows or is not whole. A row of blocks must
    /// be whole.
    pub fn tensor_bytes(self, shape: &[usize]) -> Option<u64> {
        // A zero anywhere means an empty tensor, however absurd the other dimensions are.
        if shape.contains(&0) {
            return Some(0);
        }
        let mut elements = 1_u64;
        for &dimension in shape {
            elements = elements.checked_mul(u64::try_from(dimension).ok()?)?;
        }
        let (unit, bytes) = self.unit();
        let whole = match self {
            Dtype::Block(_) => shape.last().is_some_and(|cols| cols.is_multiple_of(unit)),
            _ => elements.is_multiple_of(unit as u64),
        };
        if !whole {
            return None;
        }
        (elements / unit as u64).checked_mul(bytes as u64)
    }

    /// Whether elements are F32, F16 or BF16: what weights, norms and scales may be stored as.
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
