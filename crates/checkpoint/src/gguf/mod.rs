//! GGUF: llama.cpp's files, written for `synth` and read as checkpoints.
//!
//! [`write`](GgufWriter) makes files. Reading goes in steps, a file each: `input` takes numbers and strings off a file,
//! `metadata` keeps keys and values, `header` is one file's table of tensors, `parts` the files of one model,
//! `outline` is what metadata and shapes together say of the model, `names` and `tensors` give tensors
//! the names and shapes that architectures look for, `config` and `rope` write the config.json that all this amounts to, and [`Conversion`] says what was changed besides. Layout and limits
//! as in llama.cpp's `ggml/src/gguf.cpp`, laxer only where nothing depends on it.

mod architecture;
mod config;
mod conversion;
mod header;
mod input;
mod metadata;
mod names;
mod outline;
mod parts;
mod rope;
mod tensors;
mod write;

pub use conversion::{Conversion, FactorLayers, FrequencyFactors, HeadOrder, Rate, RotaryPairs};
pub use metadata::{Field, Metadata, Numbers, Texts};
pub(crate) use parts::{first_parts, open};
pub use write::{Declaration, GgufWriter, Value};

/// What a file begins with.
const MAGIC: &[u8; 4] = b"GGUF";

/// The alignment of tensors where a file says none.
pub const ALIGNMENT_BYTES: u64 = 32;

/// The most dimensions of a tensor (`GGML_MAX_DIMS`).
const DIMENSION_LIMIT: usize = 4;
