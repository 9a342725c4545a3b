//! Tensor names: the prefix a checkpoint puts before them, and lookups below it.

use checkpoint::{Checkpoint, ExpertLayout, Linear};

use crate::spec::{LinearSpec, VectorSpec};
use crate::{Error, Result};

/// Prefixes of the decoder in published files: HF multimodal, MLX, text only.
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "model.", ""];

/// A checkpoint seen from the decoder: names begin after its prefix.
#[derive(Clone, Copy, Debug)]
pub struct Tensors<'a> {
    checkpoint: &'a Checkpoint,
    prefix: &'static str,
}

impl<'a> Tensors<'a> {
    /// Finds the prefix by the embedding table.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Tensors<'a>> {
        for prefix in PREFIXES {
            if checkpoint.has_linear(&format!("{prefix}embed_tokens")) {
                return Ok(Tensors { checkpoint, prefix });
            }
        }
        // Says what is missing, in the checkpoint's words.
        checkpoint.linear("model.embed_tokens", None, 0, 0)?;
        Ok(Tensors { checkpoint, prefix: "model." })
    }

    /// Names that begin after another prefix: those of a draft head.
    pub(crate) fn below(checkpoint: &'a Checkpoint, prefix: &'static str) -> Tensors<'a> {
        Tensors { checkpoint, prefix }
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// The full name of something below the prefix.
    pub fn name(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Whether there is such a weight.
    pub fn has(&self, path: &str) -> bool {
        self.checkpoint.has_linear(&self.name(path))
    }

    /// A weight matrix [rows, cols].
    pub fn linear(&self, path: &str, rows: usize, cols: usize) -> Result<LinearSpec> {
        self.gathered(path, rows, cols, [(0, rows)])
    }

    /// A weight matrix whose rows are gathered: `ranges` of (first, count).
    pub fn gathered(
        &self,
        path: &str,
        rows: usize,
        cols: usize,
        ranges: impl IntoIterator<Item = (usize, usize)>,
    ) -> Result<LinearSpec> {
        let linear = self.checkpoint.linear(&self.name(path), None, rows, cols)?;
        Ok(gather(&linear, ranges))
    }

    /// The output head, wherever the file puts it; `None` if it is tied.
    pub fn head(&self, rows: usize, cols: usize) -> Result<Option<LinearSpec>> {
        for path in ["lm_head", "language_model.lm_head", "model.lm_head"] {
            if self.checkpoint.has_linear(path) {
                let linear = self.checkpoint.linear(path, None, rows, cols)?;
                return Ok(Some(gather(&linear, [(0, rows)])));
            }
        }
        Ok(None)
    }

    /// Whether there is such a tensor.
    pub fn has_tensor(&self, path: &str) -> bool {
        self.checkpoint.tensor(&self.name(path)).is_some()
    }

    /// A vector of the given shape.
    pub fn vector(&self, path: &str, shape: &[usize]) -> Result<VectorSpec> {
        let tensor = self.checkpoint.require(&self.name(path), shape)?.clone();
        Ok(VectorSpec { tensor, plus: 0.0, times: 1.0 })
    }

    /// A tensor of any of several shapes.
    pub fn vector_of(&self, path: &str, shapes: &[&[usize]]) -> Result<VectorSpec> {
        let found = self.checkpoint.tensor(&self.name(path)).map(|tensor| tensor.shape.clone());
        let shape = shapes.iter().find(|shape| Some(**shape) == found.as_deref());
        self.vector(path, shape.copied().unwrap_or(shapes[0]))
    }

    /// The routed experts of a layer.
    pub fn experts(
        &self,
        path: &str,
        experts: usize,
        hidden: usize,
        intermediate: usize,
    ) -> Result<ExpertLayout> {
        let path = self.name(path);
        Ok(ExpertLayout::find(self.checkpoint, &path, experts, hidden, intermediate)?)
    }

    /// A required count from the config that must not be zero.
    pub fn count(&self, key: &'static str) -> Result<usize> {
        let value = self.checkpoint.config().require_usize(key)?;
        if value == 0 {
            return Err(Error::Config {
                key,
                expected: "a positive number".into(),
                got: "0".into(),
            });
        }
        Ok(value)
    }
}

fn gather(linear: &Linear, ranges: impl IntoIterator<Item = (usize, usize)>) -> LinearSpec {
    let whole = linear.slice(0);
    let ranges: Vec<(usize, usize)> = ranges.into_iter().collect();
    let slices = ranges.iter().map(|&(first, count)| whole.rows(first, count)).collect();
    LinearSpec { slices, bias: linear.bias.clone(), ranges }
}
