//! Qwen3 MoE (30B-A3B, 235B-A22B, Coder): Qwen3's attention, routed experts, no shared one.

use crate::blocks::{Attention, Frame, Moe, attention, dense, frame, moe};
use crate::{DecoderSpec, Result, Tensors};

/// The model a Qwen3-MoE config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let frame_of = Frame::from_config(tensors)?;
    let mut attention_of = Attention::from_config(tensors, 1_000_000.0)?;
    attention_of.qk_norm = true;
    let moe_of = Moe::qwen(tensors, false)?;
    frame(tensors, &frame_of, |layer, path| {
        let attention_of = attention_of.clone().sliding(tensors, layer);
        let feed_forward = if Moe::is_sparse(tensors, layer) {
            moe(tensors, &format!("{path}.mlp"), frame_of.hidden, &moe_of)?
        } else {
            let intermediate = tensors.count("intermediate_size")?;
            dense(tensors, &format!("{path}.mlp"), frame_of.hidden, intermediate)?
        };
        let mixer = attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?;
        Ok((mixer, feed_forward))
    })
}
