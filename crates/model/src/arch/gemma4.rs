//! Gemma 4: sliding and global layers with heads of different sizes; on global layers keys may serve as values.
//!
//! The 26B-A4B has routed experts parallel to a dense layer; the 31B is dense. In the E models the last layers read the
//! keys and values of earlier ones, and every layer gets a row of a second embedding table for each token.

use compute::{AttentionShape, RouterShape};

use crate::blocks::gemma::{FULL, Kinds, SLIDING, activation, embed_scale, layer, logit_softcap};
use crate::blocks::{Attention, Frame, Values, attention, check_heads, decoder, gated};
use crate::rope::rope_of_kind;
use crate::spec::{
    FeedForwardSpec, MixerSpec, MoeSpec, ParallelDenseSpec, PerLayerInputSpec, PerLayerSpec,
    VectorSpec,
};
use crate::{DecoderSpec, Error, Result, Tensors};

/// The model a Gemma 4 config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let config = tensors.checkpoint().config();
    let frame_of = Frame::gemma(tensors, 262_144)?;
    let kinds = Kinds::from_config(tensors, 6);
    // The reference makes the last layer a global one, whatever the config says.
    let slides = |layer: usize| kinds.slides(layer) && layer + 1 < frame_of.layers;
    // The last layers read the keys and values of the last layer of their kind before them.
    let shared = config.usize("num_kv_shared_layers").unwrap_or(0);
    let own = frame_of.layers.saturating_sub(shared);
    let width = config.usize("hidden_size_per_layer_input").unwrap_or(0);
    let wide = config.bool("use_double_wide_mlp").unwrap_or(false);
    let intermediate = tensors.count("intermediate_size")?;
    let mut layers = Vec::with_capacity(frame_of.layers.min(1024));
    for index in 0..frame_of.layers {
        let path = format!("layers.{index}");
        let mut attention_of = heads(tensors, index, slides(index))?;
        if index >= own {
            let source = (0..own).rev().find(|&layer| slides(layer) == slides(index));
            attention_of.shared = Some(source.ok_or_else(|| Error::Config {
                key: "num_kv_shared_layers",
                expected: format!("a layer like layer {index} among those that have keys"),
                got: shared.to_string(),
            })?);
        }
        let mixer = attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?;
        let twice = if wide && index >= own && own > 0 { 2 } else { 1 };
        let feed_forward = feed_forward(tensors, &path, &frame_of, twice * intermediate)?;
        let mut layer = layer(tensors, &path, &frame_of, mixer, feed_forward)?;
        if width > 0 {
            layer.per_layer = Some(PerLayerInputSpec {
                gate: tensors.linear(
                    &format!("{path}.per_layer_input_gate"),
                    width,
                    frame_of.hidden,
                )?,
                projection: tensors.linear(
                    &format!("{path}.per_layer_projection"),
                    frame_of.hidden,
                    width,
                )?,
                norm: frame_of
                    .norm(tensors, &format!("{path}.post_per_layer_input_norm.weight"))?,
            });
        }
        let scalar = format!("{path}.layer_scalar");
        if tensors.has_tensor(&scalar) {
            layer.scalar = Some(tensors.vector(&scalar, &[1])?);
        }
        check_shared(&layers, &attention_of, &layer.mixer)?;
        layers.push(layer);
    }
    Ok(DecoderSpec {
        embed_scale: embed_scale(tensors, frame_of.hidden),
        per_layer: per_layer(tensors, &frame_of, width)?,
        softcap: logit_softcap(tensors)?,
        ..decoder(tensors, &frame_of, layers)?
    })
}

/// The attention of a layer. What is special about it stands in `per_layer_config` (transformers 5.22) or in keys
/// for all global layers.
fn heads(tensors: &Tensors<'_>, index: usize, slides: bool) -> Result<Attention> {
    let config = tensors.checkpoint().config();
    let keys_are_values = !slides && config.bool("attention_k_eq_v").unwrap_or(false);
    let special = |key: &str| config.usize(&format!("per_layer_config.{index}.{key}"));
    let global = |key: &str| config.usize(key).filter(|_| !slides);
    let heads = tensors.count("num_attention_heads")?;
    let kv_heads = special("num_key_value_heads")
        .or_else(|| global("num_global_key_value_heads").filter(|_| keys_are_values))
        .or_else(|| config.usize("num_key_value_heads"))
        .unwrap_or(heads);
    let head_dim = special("head_dim").or_else(|| global("global_head_dim"));
    let head_dim = head_dim.or_else(|| config.usize("head_dim")).unwrap_or(256);
    check_heads(heads, kv_heads, head_dim)?;
    let (kind, theta) = if slides { (SLIDING, 10_000.0) } else { (FULL, 1_000_000.0) };
    let rope = match rope_of_kind(config, kind, head_dim, theta)? {
        Some(rope) => rope,
        None if slides => compute::Rope::default_theta(head_dim, theta).into(),
        None => compute::Rope::proportional(head_dim, theta, 0.25, 1.0).into(),
    };
    let window = config.usize("sliding_window").unwrap_or(512);
    let plain = Attention::new(heads, kv_heads, head_dim, rope);
    let window = slides.then_some(window);
    Ok(Attention {
        shape: AttentionShape { window, scale: 1.0, ..plain.shape },
        qk_norm: true,
        values: if keys_are_values { Values::Keys } else { Values::Projected },
        norms_values: true,
        ..plain
    })
}

/// A layer can only read keys of the shape that its queries have.
fn check_shared(
    layers: &[crate::LayerSpec],
    attention: &Attention,
    mixer: &MixerSpec,
) -> Result<()> {
    let shape = |mixer: &MixerSpec| match mixer {
        MixerSpec::Attention(a) => (a.shape.kv_heads, a.shape.k_dim),
        MixerSpec::Delta(_) => (0, 0),
    };
    let Some(source) = attention.shared else { return Ok(()) };
    let (own, other) = (shape(mixer), shape(&layers[source].mixer));
    if own == other {
        return Ok(());
    }
    Err(Error::Config {
        key: "num_kv_shared_layers",
        expected: format!("layers with the heads of layer {source}, {other:?}"),
        got: format!("{own:?}"),
    })
}

/// A dense layer, and experts parallel to it where the model has such.
fn feed_forward(
    tensors: &Tensors<'_>,
    path: &str,
    f: &Frame,
    intermediate: usize,
) -> Result<FeedForwardSpec> {
    let config = tensors.checkpoint().config();
    let activation = activation(tensors)?;
    let dense = gated(tensors, &format!("{path}.mlp"), f.hidden, intermediate, activation)?;
    if !config.bool("enable_moe_block").unwrap_or(false) {
        return Ok(FeedForwardSpec::Dense(dense));
    }
    let experts = tensors.count("num_experts")?;
    let experts_per_token = tensors.count("top_k_experts")?;
    if experts_per_token > experts {
        return Err(Error::Config {
            key: "top_k_experts",
            expected: format!("at most {experts} experts"),
            got: experts_per_token.to_string(),
        });
    }
    let intermediate = tensors.count("moe_intermediate_size")?;
    let norm = |name: &str| f.norm(tensors, &format!("{path}.{name}.weight"));
    let router_norm = tensors.vector(&format!("{path}.router.scale"), &[f.hidden])?;
    let scale = tensors.vector(&format!("{path}.router.per_expert_scale"), &[experts])?;
    Ok(FeedForwardSpec::Moe(MoeSpec {
        router: tensors.linear(&format!("{path}.router.proj"), experts, f.hidden)?,
        experts: tensors.experts(path, experts, f.hidden, intermediate)?,
        intermediate,
        routing: RouterShape::softmax_of_chosen(experts_per_token),
        choice_bias: None,
        activation,
        expert_scale: Some(scale),
        shared: None,
        parallel_dense: Some(ParallelDenseSpec {
            dense,
            dense_norm: norm("post_feedforward_layernorm_1")?,
            router_norm: VectorSpec { times: (f.hidden as f32).sqrt().recip(), ..router_norm },
            expert_input_norm: norm("pre_feedforward_layernorm_2")?,
            expert_norm: norm("post_feedforward_layernorm_2")?,
        }),
    }))
}

/// The second embedding, with `width` values a layer; none if that is 0.
fn per_layer(tensors: &Tensors<'_>, f: &Frame, width: usize) -> Result<Option<PerLayerSpec>> {
    if width == 0 {
        return Ok(None);
    }
    let config = tensors.checkpoint().config();
    let tokens = config.usize("vocab_size_per_layer_input").unwrap_or(f.vocab);
    // Saturating: an absurd size from the configuration then fails as a wrong shape.
    let all = f.layers.saturating_mul(width);
    Ok(Some(PerLayerSpec {
        width,
        table: tensors.linear("embed_tokens_per_layer", tokens, all)?,
        table_scale: embed_scale(tensors, width),
        projection: tensors.linear("per_layer_model_projection", all, f.hidden)?,
        projection_scale: (f.hidden as f32).sqrt().recip(),
        norm: tensors.vector("per_layer_projection_norm.weight", &[width])?,
    }))
}
