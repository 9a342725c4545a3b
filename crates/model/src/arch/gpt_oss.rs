//! gpt-oss (20b, 120b): biases everywhere, attention with sinks that slides on every second layer, experts
//! with a clamped activation.
//!
//! Experts come as published (`gate_up_proj_blocks`, gate and up rows alternating) or as MLX splits them.
//! Unquantized ones, which transformers saves as `[experts, in, out]`, are refused.

use compute::{Activation, RouterShape};

use crate::blocks::{Attention, Frame, Moe, attention, frame, moe};
use crate::{DecoderSpec, Error, Result, Tensors};

/// The model a gpt-oss config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let config = tensors.checkpoint().config();
    let mut frame_of = Frame::from_config(tensors)?;
    frame_of.eps = config.f64("rms_norm_eps").unwrap_or(1e-5) as f32;
    let mut attention_of = Attention::from_config(tensors, 150_000.0)?;
    attention_of.sinks = true;
    let experts = match config.usize("num_local_experts") {
        Some(experts) => experts,
        None => tensors.count("num_experts")?,
    };
    let experts_per_token = match config.usize("num_experts_per_tok") {
        Some(experts) => experts,
        None => tensors.count("experts_per_token")?,
    };
    if let Some(alpha) = config.f64("swiglu_alpha").filter(|&alpha| alpha != 1.702) {
        return Err(Error::Config {
            key: "swiglu_alpha",
            expected: "1.702".into(),
            got: alpha.to_string(),
        });
    }
    let limit = config.f64("swiglu_limit").unwrap_or(7.0) as f32;
    if !(limit > 0.0 && limit.is_finite()) {
        return Err(Error::Config {
            key: "swiglu_limit",
            expected: "a positive number".into(),
            got: limit.to_string(),
        });
    }
    let moe_of = Moe {
        experts,
        intermediate: tensors.count("intermediate_size")?,
        routing: RouterShape::softmax_of_chosen(experts_per_token),
        activation: Activation::ClampedSwiGlu { limit },
        router: "router",
        shared: None,
    };
    frame(tensors, &frame_of, |layer, path| {
        refuse_transposed(tensors, path)?;
        let mut attention_of = attention_of.clone().sliding(tensors, layer);
        if config.value("layer_types").is_none() && layer.is_multiple_of(2) {
            attention_of.shape.window = config.usize("sliding_window");
        }
        Ok((
            attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?,
            moe(tensors, &format!("{path}.mlp"), frame_of.hidden, &moe_of)?,
        ))
    })
}

/// A plain `gate_up_proj` has its inputs first, and a square one could not be recognized by its shape.
fn refuse_transposed(tensors: &Tensors<'_>, path: &str) -> Result<()> {
    let name = tensors.name(&format!("{path}.mlp.experts.gate_up_proj"));
    if tensors.checkpoint().tensor(&name).is_none() {
        return Ok(());
    }
    Err(Error::TransposedExperts { tensor: name })
}
