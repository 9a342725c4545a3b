//! Mixtral: Mistral's attention, experts chosen by a softmax over the two largest logits.

use compute::{Activation, RouterShape};

use crate::blocks::{Attention, Frame, Moe, attention, frame, moe};
use crate::{DecoderSpec, Result, Tensors};

/// The model a Mixtral config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let frame_of = Frame::from_config(tensors)?;
    let mut attention_of = Attention::from_config(tensors, 1_000_000.0)?;
    attention_of.shape.window = tensors.checkpoint().config().usize("sliding_window");
    let moe_of = Moe {
        experts: tensors.count("num_local_experts")?,
        intermediate: tensors.count("intermediate_size")?,
        routing: RouterShape::softmax_of_chosen(tensors.count("num_experts_per_tok")?),
        activation: Activation::SwiGlu,
        router: "gate",
        shared: None,
    };
    frame(tensors, &frame_of, |_, path| {
        // transformers 5 calls the module `mlp`; published files and mlx-lm `block_sparse_moe`.
        let block = format!("{path}.block_sparse_moe");
        let block =
            if tensors.has(&format!("{block}.gate")) { block } else { format!("{path}.mlp") };
        Ok((
            attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?,
            moe(tensors, &block, frame_of.hidden, &moe_of)?,
        ))
    })
}
