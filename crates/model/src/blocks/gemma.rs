//! What Gemma 3 and 4 have in common: norms on both sides of each half, scaled embeddings, two kinds of layers.

use compute::Activation;
use format::Dtype;

use super::Frame;
use crate::spec::{FeedForwardSpec, LayerSpec, MixerSpec, OutputNorms};
use crate::{Error, Result, Tensors};

/// `config.json`'s word for a layer with a window.
pub(crate) const SLIDING: &str = "sliding_attention";
/// `config.json`'s word for a layer without one.
pub(crate) const FULL: &str = "full_attention";

/// Which layers slide: those `layer_types` says, or all but every `pattern`th.
#[derive(Clone, Debug)]
pub(crate) struct Kinds {
    types: Option<Vec<bool>>,
    pattern: usize,
}

impl Kinds {
    pub(crate) fn from_config(tensors: &Tensors<'_>, default_pattern: usize) -> Kinds {
        let config = tensors.checkpoint().config();
        let types = config.str_list("layer_types");
        Kinds {
            types: types.map(|types| types.iter().map(|kind| *kind == SLIDING).collect()),
            pattern: config.usize("sliding_window_pattern").unwrap_or(default_pattern).max(1),
        }
    }

    pub(crate) fn slides(&self, layer: usize) -> bool {
        match &self.types {
            Some(types) => types.get(layer).copied().unwrap_or(false),
            None => !(layer + 1).is_multiple_of(self.pattern),
        }
    }
}

/// `√width`, rounded to the type the model was trained in as the reference does: that of the last norm, which no
/// converter quantizes. In bf16 `√2816` is 53, not 53.07.
pub(crate) fn embed_scale(tensors: &Tensors<'_>, width: usize) -> f32 {
    let name = tensors.name("norm.weight");
    let dtype = tensors.checkpoint().tensor(&name).map(|norm| norm.dtype);
    let root = (width as f64).sqrt() as f32;
    match dtype {
        Some(Dtype::BF16) => half::bf16::from_f32(root).to_f32(),
        Some(Dtype::F16) => half::f16::from_f32(root).to_f32(),
        _ => root,
    }
}

/// The bound that logits are pressed into, if there is one. Zero is none: references divide by it, and every logit
/// becomes zero or no number.
pub(crate) fn logit_softcap(tensors: &Tensors<'_>) -> Result<Option<f32>> {
    let key = "final_logit_softcapping";
    match tensors.checkpoint().config().f64(key) {
        Some(cap) if !(cap > 0.0 && cap.is_finite()) => {
            let expected = "a number above zero, or null for logits without a cap".to_owned();
            Err(Error::Config { key, expected, got: cap.to_string() })
        }
        cap => Ok(cap.map(|cap| cap as f32)),
    }
}

/// The activation of the feed-forward layers: `hidden_activation`, which all published models have the same.
pub(crate) fn activation(tensors: &Tensors<'_>) -> Result<Activation> {
    let config = tensors.checkpoint().config();
    let name = config.str("hidden_activation").or_else(|| config.str("hidden_act"));
    match name.unwrap_or("gelu_pytorch_tanh") {
        "gelu_pytorch_tanh" => Ok(Activation::GeGlu),
        "silu" => Ok(Activation::SwiGlu),
        other => Err(Error::Config {
            key: "hidden_activation",
            expected: "gelu_pytorch_tanh or silu".into(),
            got: other.into(),
        }),
    }
}

/// A layer with a norm before and after each half.
pub(crate) fn layer(
    tensors: &Tensors<'_>,
    path: &str,
    f: &Frame,
    mixer: MixerSpec,
    feed_forward: FeedForwardSpec,
) -> Result<LayerSpec> {
    let norm = |name: &str| f.norm(tensors, &format!("{path}.{name}.weight"));
    Ok(LayerSpec {
        input_norm: norm("input_layernorm")?,
        mixer,
        post_norm: norm("pre_feedforward_layernorm")?,
        feed_forward,
        output_norms: Some(OutputNorms {
            mixer: norm("post_attention_layernorm")?,
            feed_forward: norm("post_feedforward_layernorm")?,
        }),
        per_layer: None,
        scalar: None,
    })
}
