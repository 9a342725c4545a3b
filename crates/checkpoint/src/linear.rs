//! One weight matrix and where its parts lie: `[stack?, out, in]`, row-major, outermost first.
//!
//! A module is quantized exactly when `path.scales` exists. `path.biases` belong to the
//! quantization; `path.bias` is the ordinary bias of a linear layer and a different tensor.
//! The experts of gpt-oss as published are `path_blocks` (bytes, `[stack, out, in / 32, 16]`) with
//! `path_scales` and `path_bias`; the codes in them lie as MLX packs them.

use crate::{Checkpoint, Error, Result, Scheme, Span, Tensor, Warning, packed};
use format::{Dtype, Encoding, Float};

/// What follows the path of weights in published mxfp4.
pub(crate) const BLOCKS: &str = "_blocks";

/// Bytes of such a block: 32 codes of four bits.
const BLOCK_BYTES: usize = 16;

/// A weight matrix, or a stack of them, found by [`Checkpoint::linear`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear {
    /// The module path: the tensor's name without `.weight`.
    pub path: String,
    /// How the weights are stored.
    pub encoding: Encoding,
    /// The number of matrices, where there is a leading dimension.
    pub stack: Option<usize>,
    /// Rows.
    pub out_features: usize,
    /// Columns, before packing.
    pub in_features: usize,
    /// The weights: `[stack?, out, in]`, in floats or blocks, or `[stack?, out, in · bits / 32]` U32 when quantized, or
    /// `[stack?, out, in / 32, 16]` U8 in published mxfp4.
    pub weight: Tensor,
    /// `[stack?, out, in / group]` when quantized.
    pub scales: Option<Tensor>,
    /// Like the scales, in affine mode only.
    pub biases: Option<Tensor>,
    /// The ordinary bias, `[stack?, out]`.
    pub bias: Option<Tensor>,
}

/// One matrix of a [`Linear`], or some of its rows, as byte ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearSlice {
    /// How the weights are stored.
    pub encoding: Encoding,
    /// Rows.
    pub out_features: usize,
    /// Columns, before packing.
    pub in_features: usize,
    /// The weights.
    pub weight: Span,
    /// The scales, when quantized.
    pub scales: Option<Span>,
    /// The quantization's biases, in affine mode.
    pub biases: Option<Span>,
    /// The ordinary bias.
    pub bias: Option<Span>,
    /// The type of the ordinary bias.
    pub bias_float: Option<Float>,
}

impl Linear {
    /// Bytes of all its parts.
    pub fn bytes(&self) -> u64 {
        let parts = [Some(&self.weight), self.scales.as_ref(), self.biases.as_ref()];
        parts.into_iter().flatten().chain(&self.bias).map(|tensor| tensor.len_bytes).sum()
    }

    /// The byte ranges of matrix `stack_index`; of the only one when there is no stack.
    ///
    /// # Panics
    /// When `stack_index` is not below the stack's size.
    pub fn slice(&self, stack_index: usize) -> LinearSlice {
        let count = self.stack.unwrap_or(1);
        let part = |tensor: &Tensor| tensor.span().part(stack_index, count);
        LinearSlice {
            encoding: self.encoding,
            out_features: self.out_features,
            in_features: self.in_features,
            weight: part(&self.weight),
            scales: self.scales.as_ref().map(part),
            biases: self.biases.as_ref().map(part),
            bias: self.bias.as_ref().map(part),
            bias_float: self.bias.as_ref().and_then(|bias| Float::of(bias.dtype)),
        }
    }
}

impl LinearSlice {
    /// The byte ranges of rows `first..first + rows`.
    ///
    /// # Panics
    /// When there are not that many rows.
    pub fn rows(&self, first: usize, rows: usize) -> LinearSlice {
        let part = |span: Span| span.rows(first, rows, self.out_features);
        LinearSlice {
            out_features: rows,
            weight: part(self.weight),
            scales: self.scales.map(part),
            biases: self.biases.map(part),
            bias: self.bias.map(part),
            ..*self
        }
    }

    /// Its ranges, in the order weight, scales, biases, bias.
    pub fn spans(&self) -> impl Iterator<Item = Span> + use<> {
        [Some(self.weight), self.scales, self.biases, self.bias].into_iter().flatten()
    }

    /// Bytes of all its parts.
    pub fn bytes(&self) -> u64 {
        self.spans().map(|span| span.len_bytes).sum()
    }
}

impl Checkpoint {
    /// Whether there is a weight at `path` (`path.weight`, `path` itself, or `path_blocks`).
    pub fn has_linear(&self, path: &str) -> bool {
        self.weight_tensor(path).is_some()
    }

    /// The weight matrix at `path`, with its encoding found from the shapes.
    ///
    /// The weights are `path.weight` or, as in HF's fused experts, `path` itself, or `path_blocks`.
    /// Where config.json says another quantization, [`Checkpoint::warnings`] will tell.
    pub fn linear(
        &self,
        path: &str,
        stack: Option<usize>,
        out_features: usize,
        in_features: usize,
    ) -> Result<Linear> {
        let Some(weight) = self.weight_tensor(path) else {
            return Err(self.missing_tensor(&format!("{path}.weight")));
        };
        let sibling = |suffix: &str| {
            let dotted = self.tensor(&format!("{path}.{suffix}"));
            dotted.or_else(|| self.tensor(&format!("{path}_{suffix}")))
        };
        let (scales, biases, bias) = (sibling("scales"), sibling("biases"), sibling("bias"));
        let rows = |last: Option<usize>| -> Vec<usize> {
            stack.into_iter().chain([out_features]).chain(last).collect()
        };

        let shape = rows(Some(in_features));
        if shape.contains(&0) {
            let (folder, tensor) = (self.folder(), weight.name.clone());
            return Err(Error::EmptyWeight { folder, tensor, shape });
        }

        let encoding = match scales {
            None => {
                self.expect_shape(weight, &shape)?;
                Encoding::of(weight.dtype)
                    .ok_or_else(|| self.wrong_dtype(weight, "F32, F16 or BF16 weights"))?
            }
            Some(scales) => {
                // Only the last dimension says something; the others must be as expected.
                let last = |tensor: &Tensor| tensor.shape.last().copied().unwrap_or(0);
                self.expect_shape(scales, &rows(Some(last(scales))))?;
                let groups = last(scales);
                let packed = if weight.name.ends_with(BLOCKS) {
                    let mut blocks = rows(Some(groups));
                    blocks.push(BLOCK_BYTES);
                    self.expect_shape(weight, &blocks)?;
                    if weight.dtype != Dtype::U8 {
                        return Err(self.wrong_dtype(weight, "U8 blocks alongside scales"));
                    }
                    groups * BLOCK_BYTES / 4
                } else {
                    self.expect_shape(weight, &rows(Some(last(weight))))?;
                    if weight.dtype != Dtype::U32 {
                        return Err(self.wrong_dtype(weight, "U32 weights alongside scales"));
                    }
                    last(weight)
                };
                if let Some(biases) = biases {
                    self.expect_shape(biases, &scales.shape)?;
                    if biases.dtype != scales.dtype {
                        return Err(self.wrong_dtype(biases, "biases of the scales' type"));
                    }
                }
                packed::find(packed, scales, biases.is_some(), in_features).map_err(|detail| {
                    Error::Quantization {
                        path: self.path_of(weight.file),
                        tensor: weight.name.clone(),
                        in_features,
                        packed,
                        groups,
                        detail,
                    }
                })?
            }
        };
        if let Some(bias) = bias {
            self.expect_shape(bias, &rows(None))?;
            if !bias.dtype.is_float() {
                return Err(self.wrong_dtype(bias, "an F32, F16 or BF16 bias"));
            }
        }
        self.compare_with_config(path, weight, encoding);
        Ok(Linear {
            path: path.to_owned(),
            encoding,
            stack,
            out_features,
            in_features,
            weight: weight.clone(),
            scales: scales.cloned(),
            // Stray biases next to an unquantized weight mean nothing.
            biases: scales.and(biases).cloned(),
            bias: bias.cloned(),
        })
    }

    fn weight_tensor(&self, path: &str) -> Option<&Tensor> {
        self.tensor(&format!("{path}.weight"))
            .or_else(|| self.tensor(path))
            .or_else(|| self.tensor(&format!("{path}{BLOCKS}")))
    }

    fn compare_with_config(&self, path: &str, weight: &Tensor, found: Encoding) {
        let table = self.config().quantization();
        let configured = match (table, found.is_quantized()) {
            (Some(table), true) => table.scheme(path),
            // A module the default does not reach (odd width, norm) is left alone in silence.
            (Some(table), false) => table.exception(path).flatten(),
            (None, _) => None,
        };
        if configured != Scheme::of(found) {
            let tensor = weight.name.clone();
            self.warn(path, Warning::Quantization { tensor, configured, found });
        }
    }
}
