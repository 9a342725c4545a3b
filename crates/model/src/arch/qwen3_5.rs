//! Qwen3.5 and 3.6 dense: three gated delta net layers to each gated full-attention layer.

use compute::DeltaShape;

use crate::blocks::{Attention, Frame, attention, delta, delta_shape, dense, frame};
use crate::{DecoderSpec, MixerSpec, Result, Tensors};

/// The model a Qwen3.5 config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let hybrid = Hybrid::from_config(tensors)?;
    let intermediate = tensors.count("intermediate_size")?;
    frame(tensors, &hybrid.frame, |layer, path| {
        let feed_forward =
            dense(tensors, &format!("{path}.mlp"), hybrid.frame.hidden, intermediate)?;
        Ok((hybrid.mixer(tensors, layer, path)?, feed_forward))
    })
}

/// The mixers of the hybrid family, shared with its mixture-of-experts sibling.
pub(super) struct Hybrid {
    pub(super) frame: Frame,
    attention: Attention,
    delta: DeltaShape,
}

impl Hybrid {
    pub(super) fn from_config(tensors: &Tensors<'_>) -> Result<Hybrid> {
        let mut frame = Frame::from_config(tensors)?;
        frame.norm_plus = unconverted_norm_offset(tensors);
        let mut attention = Attention::from_config(tensors, 10_000_000.0)?;
        (attention.qk_norm, attention.gated) = (true, true);
        Ok(Hybrid { frame, attention, delta: delta_shape(tensors)? })
    }

    pub(super) fn mixer(
        &self,
        tensors: &Tensors<'_>,
        layer: usize,
        path: &str,
    ) -> Result<MixerSpec> {
        if is_full_attention(tensors, layer) {
            attention(tensors, &format!("{path}.self_attn"), &self.frame, &self.attention)
        } else {
            delta(tensors, &format!("{path}.linear_attn"), self.frame.hidden, &self.delta)
        }
    }
}

/// `layer_types`, or every `full_attention_interval`-th layer.
pub(super) fn is_full_attention(tensors: &Tensors<'_>, layer: usize) -> bool {
    let config = tensors.checkpoint().config();
    match config.str_list("layer_types") {
        Some(types) => types.get(layer).copied() == Some("full_attention"),
        None => (layer + 1).is_multiple_of(config.usize("full_attention_interval").unwrap_or(4)),
    }
}

/// Norms are stored minus one in files that MLX has not converted, and these alone have a
/// convolution weight whose last axis is not one.
pub(crate) fn unconverted_norm_offset(tensors: &Tensors<'_>) -> f32 {
    let unconverted = tensors
        .checkpoint()
        .tensors()
        .any(|t| t.name.ends_with("conv1d.weight") && t.shape.last() != Some(&1));
    if unconverted { 1.0 } else { 0.0 }
}
