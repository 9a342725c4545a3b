//! DFlash: a draft that guesses a whole block in one pass (z-lab, arXiv 2602.06036).
//!
//! Hidden states of several target layers, projected to the stream, are every draft layer's keys and values for the
//! tokens that are known. The block is the last known token and masks; its rows see the context and, in full
//! layers, each other. The block's own keys and values lie after the sequence's end and are never counted.

use checkpoint::{Checkpoint, Config};
use compute::{AttentionShape, Features, Norm};

use super::{DflashSpec, Head, HeadKind, HeadSegment, HeadSpec, Proposal};
use crate::blocks::{Attention, Frame, attention, dense};
use crate::pass::Pass;
use crate::residual::Residual;
use crate::spec::{DecoderSpec, LayerSpec, MixerSpec};
use crate::{Decoder, Error, Result, Tensors, limits};

/// Rows of a block: beyond them a window's pages would not hold the draft.
const LONGEST_BLOCK: usize = compute::memory::BLOCK;

/// Tensors of relatives that draft in another way, and their names.
const RELATIVES: [(&str, &str); 5] = [
    ("candidate_selector.", "DFlash 2"),
    ("attention_conv.", "DFlash 2"),
    ("mlp_conv.", "DFlash 2"),
    ("markov_head.", "DSpark"),
    ("confidence_head.", "DSpark"),
];

/// Keys of drafts that scale embeddings or logits in a way of their own, which is not done here.
const SCALES: [&str; 3] = ["input_embedding_scale", "output_multiplier", "final_logit_softcapping"];

impl HeadSpec {
    /// The DFlash draft in a checkpoint of its own, if it was made for this target.
    pub fn dflash(checkpoint: &Checkpoint, target: &DecoderSpec) -> Result<HeadSpec> {
        for tensor in checkpoint.tensors() {
            if let Some((_, kind)) = RELATIVES.iter().find(|(name, _)| tensor.name.contains(name)) {
                return Err(Error::DraftKind { tensor: tensor.name.clone(), kind });
            }
        }
        let config = checkpoint.config();
        limits::check(config)?;
        for key in SCALES {
            if let Some(got) = config.f64(key).filter(|&scale| scale != 1.0) {
                let expected = "1 or nothing".into();
                return Err(Error::Config { key, expected, got: got.to_string() });
            }
        }
        let prefix = if checkpoint.has_linear("model.fc") { "model." } else { "" };
        let tensors = Tensors::below(checkpoint, prefix);
        let frame = Frame::from_config(&tensors)?;
        same("hidden_size", frame.hidden, target.hidden)?;
        same("vocab_size", frame.vocab, target.vocab)?;
        if let Some(layers) = number(config, "num_target_layers") {
            same("num_target_layers", layers, target.layers.len())?;
        }
        let taps = taps(config, target)?;
        let mut heads = Attention::from_config(&tensors, 1_000_000.0)?;
        heads.qk_norm = true;
        let intermediate = tensors.count("intermediate_size")?;
        let layer = |index: usize| -> Result<LayerSpec> {
            let path = format!("layers.{index}");
            let window = window(config, index)?;
            let mut mixer = attention(
                &tensors,
                &format!("{path}.self_attn"),
                &frame,
                &Attention { shape: AttentionShape { window, ..heads.shape }, ..heads.clone() },
            )?;
            if let MixerSpec::Attention(a) = &mut mixer {
                // As in the newest reference (z-lab/dflash, August 2026): unless the config says how, sliding
                // layers are causal inside the block and full ones are not.
                let causal = config.bool("dflash_config.is_causal");
                let causal = causal.or_else(|| config.bool("dflash_config.causal"));
                let causal = causal.or_else(|| config.bool("is_causal"));
                a.shape.is_bidirectional = !causal.unwrap_or(window.is_some());
            }
            Ok(LayerSpec {
                input_norm: frame.norm(&tensors, &format!("{path}.input_layernorm.weight"))?,
                mixer,
                post_norm: frame
                    .norm(&tensors, &format!("{path}.post_attention_layernorm.weight"))?,
                feed_forward: dense(&tensors, &format!("{path}.mlp"), frame.hidden, intermediate)?,
                output_norms: None,
                per_layer: None,
                scalar: None,
            })
        };
        Ok(HeadSpec {
            hidden: frame.hidden,
            eps: frame.eps,
            first_layer: target.layers.len(),
            fc: tensors.linear("fc", frame.hidden, taps.len() * frame.hidden)?,
            stack: (0..frame.layers).map(layer).collect::<Result<_>>()?,
            norm: frame.norm(&tensors, "norm.weight")?,
            kind: HeadKind::Dflash(DflashSpec {
                context_norm: frame.norm(&tensors, "hidden_norm.weight")?,
                taps,
                mask: mask(config, target)?,
                block_size: block_size(config)?,
            }),
        })
    }
}

/// `dflash_config` first, then the top level.
fn number(config: &Config, key: &str) -> Option<usize> {
    config.usize(&format!("dflash_config.{key}")).or_else(|| config.usize(key))
}

fn same(key: &'static str, head: usize, target: usize) -> Result<()> {
    if head == target {
        return Ok(());
    }
    Err(Error::OtherModel { key, head: head.to_string(), target: target.to_string() })
}

/// What stands at a key of `dflash_config` or the top level, for a message.
fn found(config: &Config, key: &str) -> String {
    let value = config.value(&format!("dflash_config.{key}")).or_else(|| config.value(key));
    value.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

/// The layers whose outputs are its features. Never guessed: other layers give drafts that look fine and fail.
fn taps(config: &Config, target: &DecoderSpec) -> Result<Vec<usize>> {
    let key = "target_layer_ids";
    let list = config.usize_list(&format!("dflash_config.{key}"));
    let taps = list.or_else(|| config.usize_list(key)).filter(|taps| !taps.is_empty());
    let layers = target.layers.len();
    match taps {
        Some(taps) if taps.iter().all(|&tap| tap < layers) => Ok(taps),
        Some(taps) => Err(Error::OtherModel {
            key,
            head: format!("{taps:?}"),
            target: format!("0 to {} at most", layers.saturating_sub(1)),
        }),
        None => Err(Error::Config {
            key,
            expected: "a list of layers of the model the draft was trained with".into(),
            got: found(config, key),
        }),
    }
}

fn mask(config: &Config, target: &DecoderSpec) -> Result<u32> {
    let key = "mask_token_id";
    let mask = number(config, key).filter(|&mask| mask < target.vocab);
    mask.and_then(|mask| u32::try_from(mask).ok()).ok_or_else(|| Error::Config {
        key,
        expected: format!("a token below {}", target.vocab),
        got: found(config, key),
    })
}

fn block_size(config: &Config) -> Result<usize> {
    let key = "block_size";
    match number(config, key) {
        Some(size @ 2..=LONGEST_BLOCK) => Ok(size),
        _ => Err(Error::Config {
            key,
            expected: format!("2 to {LONGEST_BLOCK}"),
            got: found(config, key),
        }),
    }
}

/// The window of a sliding layer.
fn window(config: &Config, layer: usize) -> Result<Option<usize>> {
    let types = config.str_list("layer_types").unwrap_or_default();
    if types.get(layer).copied() != Some("sliding_attention") {
        return Ok(None);
    }
    let key = "sliding_window";
    match number(config, key).filter(|&window| window > 0) {
        Some(window) => Ok(Some(window)),
        None => Err(Error::Config {
            key,
            expected: "the window of the sliding layers".into(),
            got: found(config, key),
        }),
    }
}

impl Head {
    pub(super) fn dflash_take_in(
        &self,
        pass: &mut Pass<'_>,
        context_norm: &Norm,
        segments: &[HeadSegment<'_>],
    ) {
        let mut features = Features::default();
        segments.iter().for_each(|segment| features.append(&segment.features));
        let features = pass.step.bring(&features);
        let context = pass.step.matmul(features, &[&self.fc]).remove(0);
        let context = pass.step.norm(context, context_norm);
        // The same for every layer, and none norms it again.
        for (layer, at) in self.layers.iter().zip(self.spec.first_layer..) {
            let mark = pass.step.mark();
            layer.attention.store(pass, context, at);
            pass.step.release(mark);
        }
    }

    pub(super) fn dflash_propose(&self, pass: &mut Pass<'_>, decoder: &Decoder) -> Proposal {
        let h = Residual::start(decoder.embed(pass.step, &pass.batch.tokens));
        for index in 0..self.layers.len() {
            self.layer(pass, h, index);
        }
        // A mask's row says what stands in its own place; the anchor's is not asked.
        let segments = pass.batch.segments.iter();
        let wanted: Vec<usize> =
            segments.flat_map(|segment| segment.row + 1..segment.row + segment.count).collect();
        let h = h.select(pass.step, &wanted);
        let h = h.end(pass.step, &self.norm);
        Proposal { logits: decoder.logits(pass.step, h), hidden: None }
    }
}
