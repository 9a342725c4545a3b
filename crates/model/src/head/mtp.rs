//! Multi-token prediction: the `mtp.*` tensors of Qwen3.5 checkpoints.
//!
//! One full-attention layer of the target's kind sees pairs: a token's embedding and the target's hidden state of
//! the token before it. From (token, hidden state) it guesses the next token and, with its own output in place of
//! the hidden state, the one after. The pair of the token at position t is stored at t; the first token's
//! hidden state, or one that is not known, is zero.

use checkpoint::Checkpoint;
use compute::{Features, Tensor};

use super::{Anchor, Head, HeadKind, HeadSegment, HeadSpec, MtpSpec, Parts, Proposal};
use crate::arch::qwen3_5::unconverted_norm_offset;
use crate::blocks::{Attention, Frame, Moe, attention, dense, moe};
use crate::pass::Pass;
use crate::residual::Residual;
use crate::spec::{DecoderSpec, LayerSpec};
use crate::{Decoder, Error, Result, Tensors};

/// Where files put the head: HF and MLX, with and without the names that wrap a text model.
const PREFIXES: [&str; 5] = [
    "mtp.",
    "language_model.mtp.",
    "model.mtp.",
    "model.language_model.mtp.",
    "language_model.model.mtp.",
];

/// Models whose heads are made like this.
const MODEL_TYPES: [&str; 3] = ["qwen3_5", "qwen3_5_moe", "qwen3_next"];

impl HeadSpec {
    /// The MTP head of a checkpoint, `None` if it has none.
    pub fn mtp(checkpoint: &Checkpoint, target: &DecoderSpec) -> Result<Option<HeadSpec>> {
        let prefix = PREFIXES.iter().find(|p| checkpoint.has_linear(&format!("{p}fc")));
        let Some(prefix) = prefix.filter(|_| MODEL_TYPES.contains(&target.model_type.as_str()))
        else {
            return Ok(None);
        };
        let tensors = Tensors::below(checkpoint, prefix);
        let config = checkpoint.config();
        let layers = config.usize("mtp_num_hidden_layers").unwrap_or(1);
        if layers != 1 || tensors.has("layers.1.self_attn.q_proj") {
            return Err(Error::Config {
                key: "mtp_num_hidden_layers",
                expected: "1".into(),
                got: layers.to_string(),
            });
        }
        if config.bool("mtp_use_dedicated_embeddings") == Some(true) {
            return Err(Error::Config {
                key: "mtp_use_dedicated_embeddings",
                expected: "false".into(),
                got: "true".into(),
            });
        }
        let mut frame = Frame::from_config(&tensors)?;
        frame.norm_plus = norm_offset(&tensors)?;
        let mut heads = Attention::from_config(&tensors, 10_000_000.0)?;
        (heads.qk_norm, heads.gated) = (true, true);
        let feed_forward = match tensors.has("layers.0.mlp.gate_proj") {
            true => {
                let gate = tensors.name("layers.0.mlp.gate_proj.weight");
                let width = checkpoint.tensor(&gate).and_then(|gate| gate.shape.first().copied());
                dense(&tensors, "layers.0.mlp", frame.hidden, width.unwrap_or(0))?
            }
            false => {
                let of = Moe::qwen(&tensors, target.model_type == "qwen3_5_moe")?;
                moe(&tensors, "layers.0.mlp", frame.hidden, &of)?
            }
        };
        let layer = LayerSpec {
            input_norm: frame.norm(&tensors, "layers.0.input_layernorm.weight")?,
            mixer: attention(&tensors, "layers.0.self_attn", &frame, &heads)?,
            post_norm: frame.norm(&tensors, "layers.0.post_attention_layernorm.weight")?,
            feed_forward,
            output_norms: None,
            per_layer: None,
            scalar: None,
        };
        Ok(Some(HeadSpec {
            kind: HeadKind::Mtp(MtpSpec {
                embedding_norm: frame.norm(&tensors, "pre_fc_norm_embedding.weight")?,
                hidden_norm: frame.norm(&tensors, "pre_fc_norm_hidden.weight")?,
            }),
            hidden: target.hidden,
            eps: target.eps,
            first_layer: target.layers.len(),
            fc: tensors.linear("fc", target.hidden, 2 * target.hidden)?,
            stack: vec![layer],
            norm: frame.norm(&tensors, "norm.weight")?,
        }))
    }
}

/// Whether the head's norms are stored minus one. In files MLX has not converted they are, as the target's. In
/// converted ones it depends on which converter kept the head, and only the values tell: around one, or around zero.
fn norm_offset(tensors: &Tensors<'_>) -> Result<f32> {
    let unconverted = unconverted_norm_offset(tensors);
    if unconverted != 0.0 {
        return Ok(unconverted);
    }
    let names = [
        "pre_fc_norm_embedding.weight",
        "pre_fc_norm_hidden.weight",
        "norm.weight",
        "layers.0.input_layernorm.weight",
        "layers.0.post_attention_layernorm.weight",
        "layers.0.self_attn.q_norm.weight",
        "layers.0.self_attn.k_norm.weight",
    ];
    let checkpoint = tensors.checkpoint();
    let mut means = Vec::new();
    for tensor in names.iter().filter_map(|name| checkpoint.tensor(&tensors.name(name))) {
        let values = checkpoint.read_f32(tensor)?;
        means.push(values.iter().sum::<f32>() / values.len().max(1) as f32);
    }
    let mean = means.iter().sum::<f32>() / means.len().max(1) as f32;
    Ok(if mean < 0.5 { 1.0 } else { 0.0 })
}

impl Head {
    /// The stream of pairs: `fc [norm(embedding), norm(hidden)]`.
    fn pairs(&self, pass: &mut Pass<'_>, decoder: &Decoder, hidden: &Features) -> Tensor {
        let Parts::Mtp { embedding_norm, hidden_norm } = &self.parts else {
            unreachable!("an MTP head")
        };
        let step = &mut *pass.step;
        let embedded = decoder.embed(step, &pass.batch.tokens);
        let embedded = step.norm(embedded, embedding_norm);
        let hidden = step.bring(hidden);
        let hidden = step.norm(hidden, hidden_norm);
        let both = step.concat(&[embedded, hidden]);
        step.matmul(both, &[&self.fc]).remove(0)
    }

    pub(super) fn mtp_take_in(
        &self,
        pass: &mut Pass<'_>,
        decoder: &Decoder,
        segments: &[HeadSegment<'_>],
    ) {
        let width = self.spec.hidden;
        // What the target thought of the token before each.
        let mut hidden = Features::default();
        for segment in segments.iter().filter(|segment| !segment.tokens.is_empty()) {
            append_or_zero(&mut hidden, &segment.before, width);
            hidden.append(&segment.features.slice(0..segment.tokens.len() - 1));
        }
        let x = self.pairs(pass, decoder, &hidden);
        // The outputs of these rows are not used, so keys and values are all there is to it.
        let layer = &self.layers[0];
        let x = pass.step.norm(x, &layer.input_norm);
        layer.attention.store(pass, x, self.spec.first_layer);
    }

    pub(super) fn mtp_propose(
        &self,
        pass: &mut Pass<'_>,
        decoder: &Decoder,
        anchors: &[Anchor],
    ) -> Proposal {
        let mut hidden = Features::default();
        for anchor in anchors {
            append_or_zero(&mut hidden, &anchor.feature, self.spec.hidden);
        }
        let h = Residual::start(self.pairs(pass, decoder, &hidden));
        self.layer(pass, h, 0);
        let hidden = h.end(pass.step, &self.norm);
        Proposal { logits: decoder.logits(pass.step, hidden), hidden: Some(hidden) }
    }
}

fn append_or_zero(rows: &mut Features, row: &Features, width: usize) {
    assert!(row.is_empty() || row.width() == width, "features of {} values", row.width());
    match row.is_empty() {
        true => rows.append(&Features::zeros(1, width)),
        false => rows.append(row),
    }
}
