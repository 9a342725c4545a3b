//! Mistral: Llama with a sliding window on every layer, where the config has one.

use crate::blocks::{Attention, Frame, attention, dense, frame};
use crate::{DecoderSpec, Result, Tensors};

/// The model a Mistral config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let frame_of = Frame::from_config(tensors)?;
    let mut attention_of = Attention::from_config(tensors, 10_000.0)?;
    attention_of.shape.window = tensors.checkpoint().config().usize("sliding_window");
    let intermediate = tensors.count("intermediate_size")?;
    frame(tensors, &frame_of, |_, path| {
        Ok((
            attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?,
            dense(tensors, &format!("{path}.mlp"), frame_of.hidden, intermediate)?,
        ))
    })
}
