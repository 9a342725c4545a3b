//! Architectures: from a checkpoint's config and tensor names to a forward pass.
//!
//! `arch/` has one file per `model_type`; each turns a config into a [`DecoderSpec`], plain data that
//! says which weights there are and how the blocks are put together. [`Decoder`] loads a spec and
//! runs it. Nothing here reads quantised bytes or knows whether an expert is in memory or on a disk.

#![forbid(unsafe_code)]

pub mod arch;
mod batch;
mod blocks;
mod decoder;
mod error;
mod head;
mod limits;
mod load;
mod pass;
mod residual;
mod rope;
mod spec;
mod tensors;

pub use batch::{Batch, Logits, Segment, SegmentKind};
pub use decoder::{Decoder, Output};
pub use error::{Error, Result};
pub use head::{
    Anchor, DflashSpec, FeatureSpec, Head, HeadKind, HeadSegment, HeadSpec, MtpSpec, Proposal,
};
pub use load::{Caching, Progress, resident_bank};
pub use pass::Pass;
pub use spec::{
    AttentionSpec, DecoderSpec, DeltaSpec, DenseSpec, FeedForwardSpec, KeyValueSpec, LayerSpec,
    LinearSpec, MixerSpec, MoeSpec, OutputNorms, ParallelDenseSpec, PerLayerInputSpec,
    PerLayerSpec, SharedSpec, VectorSpec, in_format,
};
pub use tensors::Tensors;
