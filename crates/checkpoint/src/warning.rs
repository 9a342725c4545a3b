//! What is odd about a checkpoint but does not stop it from being used.
//!
//! Nothing is printed here. Each warning names what was promised and what was found, and is given
//! once, however often the tensor is asked for.

use std::fmt;

use crate::Scheme;
use format::Encoding;

/// Something the user should hear about once, in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The shapes say another quantization than config.json. The shapes are believed.
    Quantization {
        /// The tensor, with its `.weight`.
        tensor: String,
        /// What config.json says; `None`: not quantized.
        configured: Option<Scheme>,
        /// What the shapes say.
        found: Encoding,
    },
    /// A part of a multimodal model that is not used.
    Skipped {
        /// What it is for: images, sound.
        part: &'static str,
        /// How many tensors it has.
        count: usize,
        /// What they take in the files.
        bytes: u64,
    },
    /// Tensors of a GGUF file whose names say nothing here; they are left out.
    UnknownTensors {
        /// How many.
        count: usize,
        /// What they take in the files.
        bytes: u64,
        /// The first of them by name.
        first: String,
    },
    /// The index lists files that are not in the folder; what is there was opened instead.
    MissingShards {
        /// Their names.
        files: Vec<String>,
    },
    /// The index lists tensors that no opened file holds.
    MissingTensors {
        /// How many.
        count: usize,
        /// The first of them by name.
        first: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Quantization { tensor, configured, found } => {
                write!(formatter, "tensor {tensor:?} is {found}, config.json says ")?;
                match configured {
                    Some(scheme) => write!(formatter, "{scheme}"),
                    None => formatter.write_str("not quantized"),
                }
            }
            Warning::Skipped { part, count, bytes } => {
                let size = machine::size::bytes(*bytes);
                write!(formatter, "the {part} part is left out: {count} tensors, {size}")
            }
            Warning::UnknownTensors { count, bytes, first } => {
                let size = machine::size::bytes(*bytes);
                write!(
                    formatter,
                    "{count} tensors of unknown names are left out, {size}: {first:?} …"
                )
            }
            Warning::MissingShards { files } => {
                write!(formatter, "the index lists files that are not there: {}", files.join(", "))
            }
            Warning::MissingTensors { count, first } => {
                write!(formatter, "the index lists {count} tensors that are not there: {first:?} …")
            }
        }
    }
}
