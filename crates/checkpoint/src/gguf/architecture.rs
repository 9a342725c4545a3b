//! Which architectures are read, and what else a GGUF file may be.
//!
//! An architecture is its GGUF name and the tables that give its tensors other names. What their numbers become is in
//! `config`.

use std::path::Path;

use super::metadata::Metadata;
use super::names::{
    ATTENTION, DELTA, DENSE, EXPERTS, GEMMA3, GEMMA4, GPT_OSS, Names, POST_ATTENTION_NORM,
    POST_FFN_NORM, SHARED_EXPERT,
};
use crate::{Error, Result, Tensor};

/// The architectures that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Gemma3,
    Gemma4,
    GptOss,
    /// Llama, Mistral and Mixtral.
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    /// Qwen3.5 and 3.6, dense.
    Qwen35,
    Qwen35Moe,
}

/// What is known of an architecture.
#[derive(Debug)]
pub(super) struct Architecture {
    /// Its name in `general.architecture`, which its keys begin with too.
    pub(super) name: &'static str,
    pub(super) family: Family,
    /// Names of the tensors of a layer; the first table that has one counts.
    pub(super) names: &'static [Names],
}

const ARCHITECTURES: [Architecture; 10] = [
    Architecture { name: "gemma3", family: Family::Gemma3, names: &[GEMMA3, ATTENTION, DENSE] },
    Architecture { name: "gemma4", family: Family::Gemma4, names: &[GEMMA4, ATTENTION, DENSE] },
    Architecture {
        name: "gpt-oss",
        family: Family::GptOss,
        names: &[GPT_OSS, ATTENTION, POST_ATTENTION_NORM, EXPERTS],
    },
    Architecture {
        name: "llama",
        family: Family::Llama,
        names: &[ATTENTION, POST_FFN_NORM, DENSE, EXPERTS],
    },
    Architecture {
        name: "qwen2",
        family: Family::Qwen2,
        names: &[ATTENTION, POST_FFN_NORM, DENSE],
    },
    Architecture {
        name: "qwen3",
        family: Family::Qwen3,
        names: &[ATTENTION, POST_FFN_NORM, DENSE],
    },
    Architecture {
        name: "qwen35",
        family: Family::Qwen35,
        names: &[ATTENTION, POST_ATTENTION_NORM, DENSE, DELTA],
    },
    Architecture {
        name: "qwen35moe",
        family: Family::Qwen35Moe,
        names: &[ATTENTION, POST_ATTENTION_NORM, EXPERTS, SHARED_EXPERT, DELTA],
    },
    Architecture {
        name: "qwen3moe",
        family: Family::Qwen3Moe,
        names: &[ATTENTION, POST_FFN_NORM, DENSE, EXPERTS],
    },
    Architecture {
        name: "qwen3next",
        family: Family::Qwen3Next,
        names: &[ATTENTION, POST_ATTENTION_NORM, DENSE, EXPERTS, SHARED_EXPERT, DELTA],
    },
];

/// What files are that hold no model: by `general.type`, or by architecture.
const OTHERS: [(&str, &str); 8] = [
    ("mmproj", "the part of a model that reads images"),
    ("clip", "the part of a model that reads images"),
    ("adapter", "an adapter of a model"),
    ("vocab", "a vocabulary"),
    ("imatrix", "statistics for quantizing a model"),
    ("eagle3", "an EAGLE-3 draft head"),
    ("dflash", "a DFlash draft head"),
    ("gemma4-assistant", "a draft model of Gemma 4"),
];

const KEY: &str = "general.architecture";

impl Architecture {
    /// The architecture of a file with this metadata and these tensors, sorted by GGUF's names.
    pub(super) fn of(metadata: &Metadata, tensors: &[Tensor]) -> Result<&'static Architecture> {
        let path = metadata.path();
        let name = metadata.str(KEY).ok_or_else(|| metadata.refuse(KEY, "a name"))?;
        let other = |word: &str| OTHERS.iter().find(|(other, _)| *other == word);
        let kind = metadata.str("general.type").filter(|kind| *kind != "model");
        if let Some((_, what)) = kind.and_then(other).or_else(|| other(name)) {
            return Err(no_model(path, what));
        }
        if let Some(kind) = kind {
            return Err(no_model(path, &format!("a file of type {kind:?}")));
        }
        let found = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
        let found = found.ok_or_else(|| {
            let names = ARCHITECTURES.iter().map(|architecture| architecture.name);
            let supported = names.collect::<Vec<_>>().join(", ");
            Error::GgufArchitecture { path: path.to_owned(), got: name.to_owned(), supported }
        })?;
        // A head alone: its layer comes after those of the model, which are elsewhere.
        let has = |part: &str| tensors.iter().any(|tensor| tensor.name.contains(part));
        if has(".nextn.") && !has("blk.0.") {
            return Err(no_model(path, "an MTP draft head"));
        }
        Ok(found)
    }
}

fn no_model(path: &Path, what: &str) -> Error {
    Error::NotAModel { path: path.to_owned(), what: what.to_owned() }
}
