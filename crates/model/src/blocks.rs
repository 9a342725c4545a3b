//! Pieces that architectures share: each finds its tensors below a path and returns a part of a spec.

pub(crate) mod gemma;

use std::sync::Arc;

use compute::{Activation, AttentionShape, DeltaShape, Rope, RouterShape};
use serde_json::Value;

use crate::spec::{
    AttentionSpec, DecoderSpec, DeltaSpec, DenseSpec, FeedForwardSpec, KeyValueSpec, LayerSpec,
    LinearSpec, MixerSpec, MoeSpec, SharedSpec, VectorSpec,
};
use crate::{Error, Result, Tensors, rope};

/// What every decoder has.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) vocab: usize,
    pub(crate) eps: f32,
    pub(crate) context: usize,
    pub(crate) tied: bool,
    /// Added to norm weights: 1 where they are stored minus one.
    pub(crate) norm_plus: f32,
}

impl Frame {
    pub(crate) fn from_config(tensors: &Tensors<'_>) -> Result<Frame> {
        let config = tensors.checkpoint().config();
        Ok(Frame {
            hidden: tensors.count("hidden_size")?,
            layers: tensors.count("num_hidden_layers")?,
            vocab: tensors.count("vocab_size")?,
            eps: config.f64("rms_norm_eps").unwrap_or(1e-6) as f32,
            context: config.usize("max_position_embeddings").unwrap_or(4096),
            tied: config.bool("tie_word_embeddings").unwrap_or(false),
            norm_plus: 0.0,
        })
    }

    /// Gemma's: the embedding table is the output head too, and published configs leave out what is usual.
    pub(crate) fn gemma(tensors: &Tensors<'_>, default_vocab: usize) -> Result<Frame> {
        let config = tensors.checkpoint().config();
        // Encoders are bidirectional; `vision` is about the tokens of images.
        let key = "use_bidirectional_attention";
        if config.bool(key) == Some(true) || config.str(key) == Some("all") {
            let (expected, got) = ("a model that looks back only".into(), "all".into());
            return Err(Error::Config { key, expected, got });
        }
        Ok(Frame {
            hidden: tensors.count("hidden_size")?,
            layers: tensors.count("num_hidden_layers")?,
            vocab: config.usize("vocab_size").unwrap_or(default_vocab),
            eps: config.f64("rms_norm_eps").unwrap_or(1e-6) as f32,
            context: config.usize("max_position_embeddings").unwrap_or(131_072),
            tied: config.bool("tie_word_embeddings").unwrap_or(true),
            norm_plus: 0.0,
        })
    }

    pub(crate) fn norm(&self, tensors: &Tensors<'_>, path: &str) -> Result<VectorSpec> {
        let vector = tensors.vector(path, &[self.hidden])?;
        Ok(VectorSpec { plus: self.norm_offset(tensors), ..vector })
    }

    /// What is added to norms as they are stored: converters may have done it already.
    fn norm_offset(&self, tensors: &Tensors<'_>) -> f32 {
        let is_added = tensors.checkpoint().conversion().norms_are_multipliers;
        if is_added { 0.0 } else { self.norm_plus }
    }
}

/// A decoder of pre-norm layers; `layer` gives the mixer and the feed-forward of each.
pub(crate) fn frame(
    tensors: &Tensors<'_>,
    f: &Frame,
    mut layer: impl FnMut(usize, &str) -> Result<(MixerSpec, FeedForwardSpec)>,
) -> Result<DecoderSpec> {
    let mut layers = Vec::with_capacity(f.layers.min(1024));
    for index in 0..f.layers {
        let path = format!("layers.{index}");
        let (mixer, feed_forward) = layer(index, &path)?;
        layers.push(LayerSpec {
            input_norm: f.norm(tensors, &format!("{path}.input_layernorm.weight"))?,
            mixer,
            post_norm: f.norm(tensors, &format!("{path}.post_attention_layernorm.weight"))?,
            feed_forward,
            output_norms: None,
            per_layer: None,
            scalar: None,
        });
    }
    decoder(tensors, f, layers)
}

/// A decoder of these layers, with the tables and the norm that are around them.
pub(crate) fn decoder(
    tensors: &Tensors<'_>,
    f: &Frame,
    layers: Vec<LayerSpec>,
) -> Result<DecoderSpec> {
    let head = tensors.head(f.vocab, f.hidden)?;
    if head.is_none() && !f.tied {
        tensors.checkpoint().linear("lm_head", None, f.vocab, f.hidden)?;
    }
    Ok(DecoderSpec {
        model_type: tensors.checkpoint().config().model_type().to_string(),
        hidden: f.hidden,
        vocab: f.vocab,
        eps: f.eps,
        context: f.context,
        embed: tensors.linear("embed_tokens", f.vocab, f.hidden)?,
        embed_scale: 1.0,
        per_layer: None,
        layers,
        norm: f.norm(tensors, "norm.weight")?,
        head: head.filter(|_| !f.tied),
        softcap: None,
    })
}

/// What attention layers of one model have in common.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) shape: AttentionShape,
    pub(crate) qk_norm: bool,
    pub(crate) gated: bool,
    pub(crate) sinks: bool,
    pub(crate) rope: Arc<Rope>,
    pub(crate) values: Values,
    /// Whether value heads are normed, without weights.
    pub(crate) norms_values: bool,
    /// The earlier layer whose keys and values serve.
    pub(crate) shared: Option<usize>,
}

/// What values are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// A projection of their own.
    Projected,
    /// The projection of the keys.
    Keys,
}

impl Attention {
    pub(crate) fn from_config(tensors: &Tensors<'_>, default_theta: f64) -> Result<Attention> {
        let config = tensors.checkpoint().config();
        let heads = tensors.count("num_attention_heads")?;
        let kv_heads = config.usize("num_key_value_heads").unwrap_or(heads);
        let head_dim = match config.usize("head_dim") {
            Some(head_dim) => head_dim,
            None => tensors.count("hidden_size")? / heads,
        };
        check_heads(heads, kv_heads, head_dim)?;
        let rope = rope::rope(config, head_dim, default_theta)?;
        Ok(Attention::new(heads, kv_heads, head_dim, rope))
    }

    /// Plain attention with the usual scale.
    pub(crate) fn new(
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        rope: Arc<Rope>,
    ) -> Attention {
        Attention {
            shape: AttentionShape::new(heads, kv_heads, head_dim, head_dim),
            qk_norm: false,
            gated: false,
            sinks: false,
            rope,
            values: Values::Projected,
            norms_values: false,
            shared: None,
        }
    }

    /// Gives the layer its window, if the config slides there.
    pub(crate) fn sliding(mut self, tensors: &Tensors<'_>, layer: usize) -> Attention {
        let config = tensors.checkpoint().config();
        let slides = match config.str_list("layer_types") {
            Some(types) => types.get(layer).copied() == Some("sliding_attention"),
            None => {
                config.bool("use_sliding_window").unwrap_or(false)
                    && layer >= config.usize("max_window_layers").unwrap_or(0)
            }
        };
        self.shape.window = config.usize("sliding_window").filter(|_| slides);
        self
    }
}

/// Refuses heads that cannot be: keys serve a whole number of queries, and halves of a head turn together.
pub(crate) fn check_heads(heads: usize, kv_heads: usize, head_dim: usize) -> Result<()> {
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(Error::Config {
            key: "num_key_value_heads",
            expected: format!("a divisor of num_attention_heads = {heads}"),
            got: kv_heads.to_string(),
        });
    }
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(Error::Config {
            key: "head_dim",
            expected: "an even number".into(),
            got: head_dim.to_string(),
        });
    }
    Ok(())
}

/// An attention layer below `path`.
pub(crate) fn attention(
    tensors: &Tensors<'_>,
    path: &str,
    f: &Frame,
    a: &Attention,
) -> Result<MixerSpec> {
    let AttentionShape { heads, kv_heads, k_dim, v_dim, .. } = a.shape;
    let q_rows = heads * k_dim;
    let q_outputs = if a.gated { 2 * q_rows } else { q_rows };
    let head_norm = |name: &str| -> Result<Option<VectorSpec>> {
        if !a.qk_norm {
            return Ok(None);
        }
        let vector = tensors.vector(&format!("{path}.{name}.weight"), &[k_dim])?;
        Ok(Some(VectorSpec { plus: f.norm_offset(tensors), ..vector }))
    };
    let kv = match a.shared {
        Some(layer) => KeyValueSpec::Shared { layer },
        None => KeyValueSpec::Own {
            k: tensors.linear(&format!("{path}.k_proj"), kv_heads * k_dim, f.hidden)?,
            v: match a.values {
                Values::Projected => {
                    Some(tensors.linear(&format!("{path}.v_proj"), kv_heads * v_dim, f.hidden)?)
                }
                Values::Keys => None,
            },
            k_norm: head_norm("k_norm")?,
            norms_values: a.norms_values,
        },
    };
    Ok(MixerSpec::Attention(AttentionSpec {
        shape: a.shape,
        q: tensors.linear(&format!("{path}.q_proj"), q_outputs, f.hidden)?,
        kv,
        o: tensors.linear(&format!("{path}.o_proj"), f.hidden, heads * v_dim)?,
        sinks: match a.sinks {
            true => Some(tensors.vector(&format!("{path}.sinks"), &[heads])?),
            false => None,
        },
        q_norm: head_norm("q_norm")?,
        gated: a.gated,
        rope: Arc::clone(&a.rope),
    }))
}

/// The numbers that gated delta net layers of one model have in common.
pub(crate) fn delta_shape(tensors: &Tensors<'_>) -> Result<DeltaShape> {
    let config = tensors.checkpoint().config();
    let d = DeltaShape {
        key_heads: config.usize("linear_num_key_heads").unwrap_or(16),
        value_heads: tensors.count("linear_num_value_heads")?,
        key_dim: config.usize("linear_key_head_dim").unwrap_or(128),
        value_dim: config.usize("linear_value_head_dim").unwrap_or(128),
        taps: config.usize("linear_conv_kernel_dim").unwrap_or(4),
        is_tiled: false,
    };
    if d.key_heads == 0 || !d.value_heads.is_multiple_of(d.key_heads) {
        return Err(Error::Config {
            key: "linear_num_value_heads",
            expected: format!("a multiple of linear_num_key_heads = {}", d.key_heads),
            got: d.value_heads.to_string(),
        });
    }
    if d.taps < 2 || d.key_dim == 0 || d.value_dim == 0 {
        return Err(Error::Config {
            key: "linear_conv_kernel_dim",
            expected: "at least 2, with head dimensions above 0".into(),
            got: d.taps.to_string(),
        });
    }
    Ok(d)
}

/// A gated delta net layer with separate projections below `path`.
pub(crate) fn delta(
    tensors: &Tensors<'_>,
    path: &str,
    hidden: usize,
    d: &DeltaShape,
) -> Result<MixerSpec> {
    let linear = |name: &str, rows: usize| tensors.linear(&format!("{path}.{name}"), rows, hidden);
    let inputs = [
        linear("in_proj_qkv", d.channels())?,
        linear("in_proj_z", d.value_heads * d.value_dim)?,
        linear("in_proj_b", d.value_heads)?,
        linear("in_proj_a", d.value_heads)?,
    ];
    delta_parts(tensors, path, hidden, d, inputs)
}

/// A gated delta net layer whose input projections (qkv, z, b, a) are given.
pub(crate) fn delta_parts(
    tensors: &Tensors<'_>,
    path: &str,
    hidden: usize,
    d: &DeltaShape,
    [qkv, z, b, a]: [LinearSpec; 4],
) -> Result<MixerSpec> {
    let conv_shapes: [&[usize]; 2] = [&[d.channels(), 1, d.taps], &[d.channels(), d.taps, 1]];
    Ok(MixerSpec::Delta(DeltaSpec {
        shape: *d,
        qkv,
        z,
        b,
        a,
        out: tensors.linear(&format!("{path}.out_proj"), hidden, d.value_heads * d.value_dim)?,
        conv: tensors.vector_of(&format!("{path}.conv1d.weight"), &conv_shapes)?,
        a_log: tensors.vector(&format!("{path}.A_log"), &[d.value_heads])?,
        holds_rate: false,
        dt_bias: tensors.vector(&format!("{path}.dt_bias"), &[d.value_heads])?,
        norm: tensors.vector(&format!("{path}.norm.weight"), &[d.value_dim])?,
    }))
}

/// A dense feed-forward below `path`.
pub(crate) fn dense(
    tensors: &Tensors<'_>,
    path: &str,
    hidden: usize,
    intermediate: usize,
) -> Result<FeedForwardSpec> {
    Ok(FeedForwardSpec::Dense(gated(tensors, path, hidden, intermediate, Activation::SwiGlu)?))
}

/// One gated layer below `path`.
pub(crate) fn gated(
    tensors: &Tensors<'_>,
    path: &str,
    hidden: usize,
    intermediate: usize,
    activation: Activation,
) -> Result<DenseSpec> {
    Ok(DenseSpec {
        gate: tensors.linear(&format!("{path}.gate_proj"), intermediate, hidden)?,
        up: tensors.linear(&format!("{path}.up_proj"), intermediate, hidden)?,
        down: tensors.linear(&format!("{path}.down_proj"), hidden, intermediate)?,
        activation,
    })
}

/// What mixture-of-experts layers of one model have in common.
#[derive(Clone, Debug)]
pub(crate) struct Moe {
    pub(crate) experts: usize,
    pub(crate) intermediate: usize,
    pub(crate) routing: RouterShape,
    pub(crate) activation: Activation,
    /// The router's module below the layer's.
    pub(crate) router: &'static str,
    /// Width of the shared expert.
    pub(crate) shared: Option<usize>,
}

impl Moe {
    /// The keys of the Qwen families. `always_renormalize` overrides `norm_topk_prob`.
    pub(crate) fn qwen(tensors: &Tensors<'_>, always_renormalize: bool) -> Result<Moe> {
        let config = tensors.checkpoint().config();
        let experts = match config.usize("num_experts") {
            Some(experts) => experts,
            None => tensors.count("num_local_experts")?,
        };
        let experts_per_token = tensors.count("num_experts_per_tok")?;
        let renormalize = always_renormalize || config.bool("norm_topk_prob").unwrap_or(true);
        Ok(Moe {
            experts,
            intermediate: tensors.count("moe_intermediate_size")?,
            routing: RouterShape {
                renormalize: renormalize.then_some(0.0),
                ..RouterShape::softmax_of_chosen(experts_per_token)
            },
            activation: Activation::SwiGlu,
            router: "gate",
            shared: config.usize("shared_expert_intermediate_size").filter(|&width| width > 0),
        })
    }

    /// Whether a layer has experts: `mlp_only_layers` and `decoder_sparse_step`.
    pub(crate) fn is_sparse(tensors: &Tensors<'_>, layer: usize) -> bool {
        let config = tensors.checkpoint().config();
        let dense_only = config
            .list("mlp_only_layers")
            .is_some_and(|layers| layers.iter().any(|l| l.as_u64() == Some(layer as u64)));
        let step = config.usize("decoder_sparse_step").unwrap_or(1).max(1);
        let some_experts = config.value("num_experts").is_none_or(|n| n != &Value::from(0));
        !dense_only && some_experts && (layer + 1).is_multiple_of(step)
    }
}

/// A mixture-of-experts layer below `path`.
pub(crate) fn moe(
    tensors: &Tensors<'_>,
    path: &str,
    hidden: usize,
    m: &Moe,
) -> Result<FeedForwardSpec> {
    let experts_per_token = m.routing.experts_per_row;
    if experts_per_token > m.experts {
        return Err(Error::Config {
            key: "num_experts_per_tok",
            expected: format!("at most {} experts", m.experts),
            got: experts_per_token.to_string(),
        });
    }
    let shared = |width: usize| -> Result<SharedSpec> {
        let expert = format!("{path}.shared_expert");
        Ok(SharedSpec {
            gate: tensors.linear(&format!("{expert}.gate_proj"), width, hidden)?,
            up: tensors.linear(&format!("{expert}.up_proj"), width, hidden)?,
            down: tensors.linear(&format!("{expert}.down_proj"), hidden, width)?,
            router: Some(tensors.linear(&format!("{path}.shared_expert_gate"), 1, hidden)?),
        })
    };
    Ok(FeedForwardSpec::Moe(MoeSpec {
        router: tensors.linear(&format!("{path}.{}", m.router), m.experts, hidden)?,
        experts: tensors.experts(path, m.experts, hidden, m.intermediate)?,
        intermediate: m.intermediate,
        routing: m.routing,
        choice_bias: None,
        activation: m.activation,
        expert_scale: None,
        parallel_dense: None,
        shared: m.shared.map(shared).transpose()?,
    }))
}
