//! The element types a safetensors header can name.
//!
//! All of them are known, so that a checkpoint with an exotic side tensor still opens; which of
//! them can hold a weight is decided where weights are found.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal,)*) => {
        /// The type of one element, by its safetensors name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Dtype { $($variant,)* }

        impl Dtype {
            /// Every dtype.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant,)*];

            /// The name in a safetensors header, such as `BF16`.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name,)* }
            }

            /// The dtype a safetensors header calls `name`.
            pub fn from_name(name: &str) -> Option<Dtype> {
                match name { $($name => Some(Dtype::$variant),)* _ => None }
            }

            /// Bits of one element; below 8 for the packed floats.
            pub fn bits(self) -> u32 {
                match self { $(Dtype::$variant => $bits,)* }
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
    /// Bytes of a tensor of this dtype and shape; `None` when that overflows or is not whole.
    pub fn tensor_bytes(self, shape: &[usize]) -> Option<u64> {
        // A zero anywhere means an empty tensor, however absurd the other dimensions are.
        if shape.contains(&0) {
            return Some(0);
        }
        let mut elements = 1_u64;
        for &dimension in shape {
            elements = elements.checked_mul(u64::try_from(dimension).ok()?)?;
        }
        let bits = u128::from(elements) * u128::from(self.bits());
        if bits % 8 != 0 {
            return None;
        }
        u64::try_from(bits / 8).ok()
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
