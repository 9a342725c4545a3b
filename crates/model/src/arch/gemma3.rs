//! Gemma 3: sliding layers and every sixth one without a window, each kind with a rotation of its own; norms on
//! both sides of each half, stored minus one; scaled embeddings that are the output head too.

use crate::blocks::gemma::{FULL, Kinds, SLIDING, activation, embed_scale, layer, logit_softcap};
use crate::blocks::{Attention, Frame, attention, check_heads, decoder, gated};
use crate::rope::{rope, rope_of_kind};
use crate::spec::FeedForwardSpec;
use crate::{DecoderSpec, Result, Tensors};

/// The model a Gemma 3 config describes. Published configs leave out what is as in transformers.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let config = tensors.checkpoint().config();
    let mut frame_of = Frame::gemma(tensors, 262_208)?;
    frame_of.norm_plus = 1.0;
    let heads = config.usize("num_attention_heads").unwrap_or(8);
    let kv_heads = config.usize("num_key_value_heads").unwrap_or(4);
    let head_dim = config.usize("head_dim").unwrap_or(256);
    check_heads(heads, kv_heads, head_dim)?;
    // transformers 5 has a table for each kind of layer; before, the local base stood next to the global one.
    let local = config.f64("rope_local_base_freq").unwrap_or(10_000.0);
    let sliding = match rope_of_kind(config, SLIDING, head_dim, local)? {
        Some(rope) => rope,
        None => compute::Rope::default_theta(head_dim, local).into(),
    };
    let full = match rope_of_kind(config, FULL, head_dim, 1_000_000.0)? {
        Some(rope) => rope,
        None => rope(config, head_dim, 1_000_000.0)?,
    };
    let mut attention_of = Attention::new(heads, kv_heads, head_dim, full);
    attention_of.qk_norm = true;
    let scalar = config.f64("query_pre_attn_scalar").unwrap_or(256.0);
    attention_of.shape.scale = scalar.powf(-0.5) as f32;
    let window = config.usize("sliding_window").unwrap_or(4096);
    let intermediate = tensors.count("intermediate_size")?;
    let activation = activation(tensors)?;
    let kinds = Kinds::from_config(tensors, 6);
    let layer = |index: usize| {
        let path = format!("layers.{index}");
        let mut attention_of = attention_of.clone();
        if kinds.slides(index) {
            attention_of.rope = sliding.clone();
            attention_of.shape.window = Some(window);
        }
        let mixer = attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?;
        let mlp = format!("{path}.mlp");
        let dense = gated(tensors, &mlp, frame_of.hidden, intermediate, activation)?;
        layer(tensors, &path, &frame_of, mixer, FeedForwardSpec::Dense(dense))
    };
    let layers = (0..frame_of.layers).map(layer).collect::<Result<_>>()?;
    Ok(DecoderSpec {
        embed_scale: embed_scale(tensors, frame_of.hidden),
        softcap: logit_softcap(tensors)?,
        ..decoder(tensors, &frame_of, layers)?
    })
}
