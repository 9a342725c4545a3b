//! Qwen3 dense: norms on each query and key head, no biases.

use crate::blocks::{Attention, Frame, attention, dense, frame};
use crate::{DecoderSpec, Result, Tensors};

/// The model a Qwen3 config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let frame_of = Frame::from_config(tensors)?;
    let mut attention_of = Attention::from_config(tensors, 1_000_000.0)?;
    attention_of.qk_norm = true;
    let intermediate = tensors.count("intermediate_size")?;
    frame(tensors, &frame_of, |layer, path| {
        let attention_of = attention_of.clone().sliding(tensors, layer);
        Ok((
            attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?,
            dense(tensors, &format!("{path}.mlp"), frame_of.hidden, intermediate)?,
        ))
    })
}
