//! Qwen2 and 2.5: Llama with biases on queries, keys and values, and windows on some layers.

use crate::blocks::{Attention, Frame, attention, dense, frame};
use crate::{DecoderSpec, Result, Tensors};

/// The model a Qwen2 config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let frame_of = Frame::from_config(tensors)?;
    let attention_of = Attention::from_config(tensors, 10_000.0)?;
    let intermediate = tensors.count("intermediate_size")?;
    frame(tensors, &frame_of, |layer, path| {
        let attention_of = attention_of.clone().sliding(tensors, layer);
        Ok((
            attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?,
            dense(tensors, &format!("{path}.mlp"), frame_of.hidden, intermediate)?,
        ))
    })
}
