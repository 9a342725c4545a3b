//! One file per `model_type`. Each has `spec(tensors) -> DecoderSpec` and little else.

pub mod gemma3;
pub mod gemma4;
pub mod gpt_oss;
pub mod llama;
pub mod mistral;
pub mod mixtral;
pub mod qwen2;
pub mod qwen3;
pub mod qwen3_5;
pub mod qwen3_5_moe;
pub mod qwen3_moe;
pub mod qwen3_next;

use checkpoint::Checkpoint;

use crate::{DecoderSpec, Error, Result, Tensors, conversion, limits};

type SpecOf = fn(&Tensors<'_>) -> Result<DecoderSpec>;

/// The architectures there are.
pub const ARCHITECTURES: &[(&str, SpecOf)] = &[
    ("gemma3", gemma3::spec),
    ("gemma4", gemma4::spec),
    ("gpt_oss", gpt_oss::spec),
    ("llama", llama::spec),
    ("mistral", mistral::spec),
    ("mixtral", mixtral::spec),
    ("qwen2", qwen2::spec),
    ("qwen3", qwen3::spec),
    ("qwen3_5", qwen3_5::spec),
    ("qwen3_5_moe", qwen3_5_moe::spec),
    ("qwen3_moe", qwen3_moe::spec),
    ("qwen3_next", qwen3_next::spec),
];

/// What multimodal checkpoints have in addition to the decoder, and what its tensors are called.
const PARTS: [(&str, &[&str]); 2] = [
    (
        "vision",
        &[
            "vision_tower.",
            "visual.",
            "embed_vision.",
            "vision_embedder.",
            "multi_modal_projector.",
        ],
    ),
    ("audio", &["audio_tower.", "embed_audio."]),
];

/// What the model in a checkpoint is made of. Parts that read images or sound are left out, with a warning.
pub fn spec(checkpoint: &Checkpoint) -> Result<DecoderSpec> {
    if checkpoint.config().value("dflash_config").is_some() {
        return Err(Error::DraftAlone);
    }
    let model_type = checkpoint.config().model_type();
    let Some((_, spec)) = ARCHITECTURES.iter().find(|(name, _)| *name == model_type) else {
        let names: Vec<&str> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
        return Err(Error::UnknownArchitecture {
            path: checkpoint.folder().join("config.json"),
            model_type: model_type.into(),
            supported: names.join(", "),
        });
    };
    limits::check(checkpoint.config())?;
    for (part, names) in PARTS {
        checkpoint.skip(part, names);
    }
    let mut spec = spec(&Tensors::new(checkpoint)?)?;
    conversion::apply(checkpoint, &mut spec.layers)?;
    Ok(spec)
}
