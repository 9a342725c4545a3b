//! How numbers are stored, from the file to the kernel.
//!
//! [`Dtype`] is the element type of a tensor in a file, [`BlockFormat`] the blocks that GGUF has in its place, and
//! [`Encoding`] how a weight matrix is coded: a matrix keeps its encoding and its bytes from the checkpoint to the dot
//! product. Nothing here reads a file or computes with a weight.

#![forbid(unsafe_code)]

mod block;
mod dtype;
mod encoding;
mod gguf;

pub use block::BlockFormat;
pub use dtype::Dtype;
pub use encoding::{Encoding, Float};
pub use gguf::UnreadType;
