//! What metadata and tensors together say of a model: layers, heads, kinds of layers.
//!
//! Where both say something, the tensors count: their shapes cannot be mislabelled. Numbers are held to what
//! loops here can bear; what models bear is looked at where the config is read.

use super::architecture::{Architecture, Family};
use super::metadata::Metadata;
use super::names;
use crate::{Error, Result, Tensor};

/// The most layers. Published models have up to 126.
const LAYER_LIMIT: u64 = 4096;

/// A model as a file describes it.
pub(super) struct Outline<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a Architecture,
    /// By GGUF's names, sorted.
    pub(super) tensors: &'a [Tensor],
    /// Layers of the model itself.
    pub(super) layers: usize,
    /// Layers of MTP heads, which come after those.
    pub(super) head_layers: usize,
    /// Of each layer, heads of the draft head last.
    pub(super) attention: Vec<Attention>,
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attention {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// Whether it has a window.
    pub(super) slides: bool,
}

impl<'a> Outline<'a> {
    pub(super) fn new(
        metadata: &'a Metadata,
        architecture: &'static Architecture,
        tensors: &'a [Tensor],
    ) -> Result<Outline<'a>> {
        let mut outline = Outline {
            metadata,
            architecture,
            tensors,
            layers: 0,
            head_layers: 0,
            attention: Vec::new(),
        };
        let blocks = outline.require("block_count")?;
        let heads = outline.u64("nextn_predict_layers")?.unwrap_or(0);
        if blocks == 0 || blocks > LAYER_LIMIT {
            return Err(outline.refuse("block_count", "a number of layers from 1 to 4096"));
        }
        if heads >= blocks {
            return Err(outline.refuse("nextn_predict_layers", "fewer than `block_count`"));
        }
        (outline.layers, outline.head_layers) = ((blocks - heads) as usize, heads as usize);
        outline.attention = outline.find_attention()?;
        Ok(outline)
    }

    pub(super) fn family(&self) -> Family {
        self.architecture.family
    }

    /// A key below the architecture's name.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    pub(super) fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.metadata.u64(&self.key(key))
    }

    pub(super) fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.f64(&self.key(key))
    }

    pub(super) fn str(&self, key: &str) -> Option<&str> {
        self.metadata.str(&self.key(key))
    }

    /// A number that the model cannot be without.
    pub(super) fn require(&self, key: &str) -> Result<u64> {
        self.u64(key)?.ok_or_else(|| self.refuse(key, "a whole number"))
    }

    /// The width of the stream.
    pub(super) fn hidden(&self) -> Result<usize> {
        Ok(usize::try_from(self.require("embedding_length")?).unwrap_or(usize::MAX))
    }

    pub(super) fn per_layer(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.metadata.per_layer(&self.key(key), self.layers)
    }

    /// The error about what stands at a key.
    pub(super) fn refuse(&self, key: &str, expected: &'static str) -> Error {
        self.metadata.refuse(&self.key(key), expected)
    }

    /// The tensor of a GGUF name.
    pub(super) fn tensor(&self, name: &str) -> Option<&'a Tensor> {
        let found = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name));
        found.ok().map(|index| &self.tensors[index])
    }

    /// Whether a layer has a weight.
    pub(super) fn has(&self, layer: usize, module: &str) -> bool {
        self.tensor(&format!("blk.{layer}.{module}.weight")).is_some()
    }

    /// The shape of the first weight of that module in any layer.
    pub(super) fn shape(&self, module: &str) -> Option<&'a [usize]> {
        let wanted = |tensor: &&Tensor| {
            names::layer(&tensor.name)
                .and_then(|(_, rest)| rest.strip_suffix(".weight"))
                .is_some_and(|rest| rest == module)
        };
        self.tensors.iter().find(wanted).map(|tensor| tensor.shape.as_slice())
    }

    /// Whether a layer is a gated delta net.
    pub(super) fn is_delta(&self, layer: usize) -> bool {
        self.has(layer, "ssm_conv1d")
    }

    /// Whether queries come with gates, which take as many rows again.
    pub(super) fn is_gated(&self) -> bool {
        matches!(self.family(), Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
    }

    /// Whether there are routed experts.
    pub(super) fn has_experts(&self) -> Result<bool> {
        Ok(self.u64("expert_count")?.is_some_and(|count| count > 0))
    }

    fn find_attention(&self) -> Result<Vec<Attention>> {
        let hidden = self.require("embedding_length")?;
        let heads = self.per_layer("attention.head_count")?;
        let heads = heads.ok_or_else(|| self.refuse("attention.head_count", "a whole number"))?;
        let kv_heads = self.per_layer("attention.head_count_kv")?;
        let slides = self.slides()?;
        let first = heads.iter().copied().find(|&count| count > 0).unwrap_or(1);
        let full = self.u64("attention.key_length")?.unwrap_or(hidden / first);
        let sliding = self.u64("attention.key_length_swa")?.unwrap_or(full);
        for (key, keys) in
            [("attention.value_length", full), ("attention.value_length_swa", sliding)]
        {
            if self.u64(key)?.is_some_and(|values| values != keys) {
                return Err(self.refuse(key, "as many dimensions as keys have"));
            }
        }
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let of = |layer: usize| {
            let head_dim = if slides[layer] { sliding } else { full };
            // Zero where a recurrent layer has none.
            let kv_heads = kv_heads.as_ref().map_or(heads[layer], |counts| counts[layer]);
            Attention {
                heads: size(heads[layer]),
                kv_heads: size(kv_heads),
                head_dim: size(head_dim),
                slides: slides[layer],
            }
        };
        let mut layers: Vec<Attention> = (0..self.layers).map(of).collect();
        // The layer of a draft head is like the last one that attends.
        let like = layers.iter().rev().find(|layer| layer.heads > 0 && layer.kv_heads > 0);
        if let Some(&like) = like.or(layers.last()) {
            layers.extend(std::iter::repeat_n(like, self.head_layers));
        }
        Ok(layers)
    }

    /// Which layers have a window: those the pattern says, or all but every one at the end of a period.
    fn slides(&self) -> Result<Vec<bool>> {
        let usual = match self.family() {
            Family::Gemma3 | Family::Gemma4 => 6,
            Family::GptOss => 2,
            _ => return Ok(vec![false; self.layers]),
        };
        let key = "attention.sliding_window_pattern";
        if let Some(pattern) = self.metadata.bools_per_layer(&self.key(key), self.layers)? {
            return Ok(pattern);
        }
        let period = self.u64(key)?.unwrap_or(usual).max(1);
        Ok((1..=self.layers as u64).map(|count| !count.is_multiple_of(period)).collect())
    }

    /// The number that all layers which have one share.
    pub(super) fn shared(&self, key: &str, number: impl Fn(&Attention) -> usize) -> Result<usize> {
        let mut numbers = self.attention.iter().map(number).filter(|&number| number > 0);
        let first = numbers.next().unwrap_or(0);
        if numbers.any(|number| number != first) {
            return Err(self.refuse(key, "the same in every layer"));
        }
        Ok(first)
    }
}
