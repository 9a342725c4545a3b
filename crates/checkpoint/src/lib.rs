//! Bytes on disk to named tensors: which file, which offset, which dtype, which shape.
//!
//! Files are safetensors, plain or quantized by MLX, or [`gguf`]; both open as the same thing.
//! [`Checkpoint::open`] reads headers only, so a 200 GB model opens in milliseconds; weights are
//! fetched later with positioned reads. [`Checkpoint::linear`] finds how one matrix is encoded
//! (plain, MLX affine, mxfp4, mxfp8, nvfp4, blocks) and [`ExpertLayout::find`] where each expert's bytes lie.
//! What a file's converter changed and names cannot say is in [`Checkpoint::conversion`].
//!
//! Invariants: every file is untrusted, so whatever does not add up is an [`Error`] and never a
//! panic; and nothing here computes with a weight or holds a whole file in memory.

#![forbid(unsafe_code)]

mod checkpoint;
mod config;
mod error;
mod experts;
mod folder;
pub mod gguf;
mod layout;
mod linear;
mod packed;
mod quantization;
mod rows;
pub mod safetensors;
mod shards;
mod stream;
mod tensor;
mod warning;
pub mod write;

pub use checkpoint::Checkpoint;
pub use config::Config;
pub use error::{Error, Result};
pub use experts::{ExpertForm, ExpertLayout, Projection};
pub use folder::{Bytes, Made, Source};
pub use linear::{Linear, LinearSlice};
pub use quantization::{Mode, Quantization, Scheme};
pub use rows::Rows;
pub use tensor::{FileIndex, Span, Tensor};
pub use warning::Warning;
