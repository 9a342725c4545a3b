//! Qwen3.5 and 3.6 MoE (35B-A3B, 122B-A10B, 397B-A17B), and Pebble.

use super::qwen3_5::Hybrid;
use crate::blocks::{Moe, frame, moe};
use crate::{DecoderSpec, Result, Tensors};

/// The model a Qwen3.5-MoE config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let hybrid = Hybrid::from_config(tensors)?;
    // The router's weights are always renormalized, whatever `norm_topk_prob` says.
    let moe_of = Moe::qwen(tensors, true)?;
    frame(tensors, &hybrid.frame, |layer, path| {
        let feed_forward = moe(tensors, &format!("{path}.mlp"), hybrid.frame.hidden, &moe_of)?;
        Ok((hybrid.mixer(tensors, layer, path)?, feed_forward))
    })
}
