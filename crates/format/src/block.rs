//! The block formats of GGUF: a few dozen or a few hundred weights with their scales and minima between them.
//!
//! A row is a whole number of blocks, which begin at any byte. The numbers of the types are ggml's. What the bytes
//! of a block mean is the kernels' business.

use std::fmt;

macro_rules! blocks {
    ($($variant:ident $name:literal $id:literal $weights:literal $bytes:literal $group:literal,)*) => {
        /// How the weights of a block are coded, by GGUF's names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum BlockFormat { $($variant,)* }

        impl BlockFormat {
            /// Every format.
            pub const ALL: &[BlockFormat] = &[$(BlockFormat::$variant,)*];

            /// Its name, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(BlockFormat::$variant => $name,)* }
            }

            /// The number of the type in a file.
            pub const fn id(self) -> u32 {
                match self { $(BlockFormat::$variant => $id,)* }
            }

            /// Weights of a block.
            pub const fn weights(self) -> usize {
                match self { $(BlockFormat::$variant => $weights,)* }
            }

            /// Bytes of a block.
            pub const fn bytes(self) -> usize {
                match self { $(BlockFormat::$variant => $bytes,)* }
            }

            /// Weights that share a scale.
            pub const fn group(self) -> usize {
                match self { $(BlockFormat::$variant => $group,)* }
            }
        }
    };
}

// Variant, name, number, weights and bytes of a block, weights of a group. ggml's `ggml.h` and `ggml-common.h`.
blocks! {
    Q4_0 "Q4_0" 2 32 18 32,
    Q4_1 "Q4_1" 3 32 20 32,
    Q5_0 "Q5_0" 6 32 22 32,
    Q5_1 "Q5_1" 7 32 24 32,
    Q8_0 "Q8_0" 8 32 34 32,
    Q2K "Q2_K" 10 256 84 16,
    Q3K "Q3_K" 11 256 110 16,
    Q4K "Q4_K" 12 256 144 32,
    Q5K "Q5_K" 13 256 176 32,
    Q6K "Q6_K" 14 256 210 16,
    Iq2Xxs "IQ2_XXS" 16 256 66 32,
    Iq2Xs "IQ2_XS" 17 256 74 16,
    Iq3Xxs "IQ3_XXS" 18 256 98 32,
    Iq1S "IQ1_S" 19 256 50 32,
    Iq4Nl "IQ4_NL" 20 32 18 32,
    Iq3S "IQ3_S" 21 256 110 32,
    Iq2S "IQ2_S" 22 256 82 16,
    Iq4Xs "IQ4_XS" 23 256 136 32,
    Iq1M "IQ1_M" 29 256 56 16,
    Tq1_0 "TQ1_0" 34 256 54 256,
    Tq2_0 "TQ2_0" 35 256 66 256,
    Mxfp4 "MXFP4" 39 32 17 32,
    Nvfp4 "NVFP4" 40 64 36 16,
    Q1_0 "Q1_0" 41 128 18 128,
    Q2_0 "Q2_0" 42 64 18 64,
}

impl BlockFormat {
    /// The format of that number.
    pub fn from_id(id: u32) -> Option<BlockFormat> {
        BlockFormat::ALL.iter().copied().find(|format| format.id() == id)
    }

    /// Bytes of a row of `cols` weights, which must be whole blocks.
    pub const fn row_bytes(self, cols: usize) -> usize {
        cols / self.weights() * self.bytes()
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
