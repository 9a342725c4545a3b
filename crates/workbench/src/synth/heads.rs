//! Draft heads with random weights: they cost what real ones of the shape cost, and are next to never right.
//! That is the case that speculation must not lose time on.
//!
//! An MTP head joins a model that is there: a file of its own, and its names in the index, whatever the size of the
//! rest. A DFlash draft is a folder of its own, in the format of z-lab.

use std::fs;

use checkpoint::Checkpoint;
use serde_json::{Value, json};

use super::mlx::{self, INDEX, MTP, Shard};
use super::shape::{self, Dflash, Family, Shape};
use super::tensors::{self, Tensor};
use super::{Error, Format, Progress, Request};

/// What drafts for a model, from its hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Mtp,
    Dflash(Dflash),
}

impl Head {
    /// The MTP head of a shape.
    pub(crate) fn mtp(shape: &Shape) -> Result<Head, Error> {
        match shape.family == Family::Qwen35 {
            true => Ok(Head::Mtp),
            false => Err(Error::NoHead { name: shape.name, head: "MTP head" }),
        }
    }

    /// The DFlash draft of a shape.
    pub(crate) fn dflash(shape: &Shape) -> Result<Head, Error> {
        let draft = shape::dflash(shape).map(Head::Dflash);
        draft.ok_or(Error::NoHead { name: shape.name, head: "DFlash draft" })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Head::Mtp => "an MTP head",
            Head::Dflash(_) => "a DFlash draft",
        }
    }

    /// What it consists of.
    pub(super) fn tensors(self, request: &Request) -> Vec<Tensor> {
        match self {
            Head::Mtp => tensors::mtp(&request.shape, request.values),
            Head::Dflash(draft) => tensors::dflash(&request.shape, &draft, request.layers),
        }
    }

    /// Refuses early what cannot succeed.
    pub(super) fn check(self, request: &Request) -> Result<(), Error> {
        if request.format == Format::Gguf {
            return Err(Error::NoGguf { name: self.name() });
        }
        match self {
            Head::Mtp => check_model(request),
            Head::Dflash(_) => super::refuse_existing(request),
        }
    }

    /// Writes it.
    pub(super) fn write(self, request: &Request, progress: Progress<'_>) -> Result<(), Error> {
        let tensors = self.tensors(request);
        match self {
            Head::Mtp => write_mtp(request, &tensors, progress),
            Head::Dflash(draft) => write_dflash(request, &draft, &tensors, progress),
        }
    }
}

/// An MTP head can join a model of the shape only.
fn check_model(request: &Request) -> Result<(), Error> {
    let path = &request.out;
    let other =
        |got: String| Error::OtherModel { path: path.clone(), name: request.shape.name, got };
    let checkpoint = Checkpoint::open(path).map_err(|source| other(source.to_string()))?;
    let spec = model::arch::spec(&checkpoint).map_err(|error| other(error.to_string()))?;
    let (shape, hidden, vocab) = (&request.shape, spec.hidden, spec.vocab);
    if (hidden, vocab) != (shape.hidden, shape.vocab) || !spec.model_type.starts_with("qwen3_5") {
        let kind = &spec.model_type;
        return Err(other(format!("{kind}, {hidden} wide, with {vocab} tokens")));
    }
    let file = path.join(MTP);
    match file.exists() && !request.force {
        true => Err(Error::Exists { path: file }),
        false => Ok(()),
    }
}

fn write_mtp(request: &Request, tensors: &[Tensor], progress: Progress<'_>) -> Result<(), Error> {
    let index = request.out.join(INDEX);
    let text = fs::read_to_string(&index).map_err(|source| Error::io(&index, source))?;
    let mut content: Value =
        serde_json::from_str(&text).map_err(|source| Error::io(&index, source.into()))?;
    let names = write_weights(request, tensors, MTP, progress)?;
    if let Some(map) = content["weight_map"].as_object_mut() {
        map.retain(|_, file| file != MTP);
        map.extend(names.into_iter().map(|name| (name, json!(MTP))));
        map.sort_keys();
    }
    let changed = request.out.join(format!("{INDEX}.new"));
    fs::write(&changed, mlx::pretty(&content)).map_err(|source| Error::io(&changed, source))?;
    fs::rename(&changed, &index).map_err(|source| Error::io(&index, source))
}

fn write_dflash(
    request: &Request,
    draft: &Dflash,
    tensors: &[Tensor],
    progress: Progress<'_>,
) -> Result<(), Error> {
    mlx::fill(&request.out, || {
        write_weights(request, tensors, "model.safetensors", progress)?;
        let path = request.out.join("config.json");
        let config = mlx::pretty(&dflash_config(&request.shape, draft, request.layers));
        fs::write(&path, config).map_err(|source| Error::io(&path, source))
    })
}

/// One file of weights, which appears when it is whole; the names that are in it.
fn write_weights(
    request: &Request,
    tensors: &[Tensor],
    name: &str,
    progress: Progress<'_>,
) -> Result<Vec<String>, Error> {
    let path = request.out.join(name);
    let unfinished = path.with_extension("unfinished");
    let mut shard = Shard::default();
    tensors.iter().for_each(|tensor| shard.push(tensor, request.values));
    let mut done = 0;
    let written = mlx::write_shard(&unfinished, &shard, request.threads, |bytes| {
        done += bytes;
        progress(done, shard.bytes)
    });
    if written.is_err() {
        // What went wrong matters more than what cannot be tidied up.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    fs::rename(&unfinished, &path).map_err(|source| Error::io(&path, source))?;
    Ok(shard.names().map(str::to_owned).collect())
}

/// config.json as z-lab writes it.
pub(super) fn dflash_config(shape: &Shape, draft: &Dflash, layers: usize) -> Value {
    let kind = |layer| match draft.window.is_some() && layer + 1 < draft.layers {
        true => "sliding_attention",
        false => "full_attention",
    };
    json!({
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": draft.width,
        "num_hidden_layers": draft.layers,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.kv_heads,
        "head_dim": draft.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": f64::from(shape.eps),
        "rope_theta": shape.rope_theta,
        "rope_scaling": null,
        "max_position_embeddings": shape.context,
        "attention_bias": false,
        "tie_word_embeddings": shape.tied,
        "layer_types": (0..draft.layers).map(kind).collect::<Vec<_>>(),
        "sliding_window": draft.window,
        "use_sliding_window": draft.window.is_some(),
        "num_target_layers": layers,
        "block_size": Dflash::BLOCK_SIZE,
        "dflash_config": { "target_layer_ids": Dflash::taps(layers), "mask_token_id": draft.mask },
        "synthetic": { "like": shape.name, "layers_of": shape.layers },
    })
}
