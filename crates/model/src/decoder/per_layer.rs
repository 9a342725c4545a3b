//! Per-layer embeddings (Gemma's E models): besides its embedding a token has a row of values for each layer.

use compute::{Activation, Linear, Norm, RowSource, Step, Tensor};

use crate::Result;
use crate::load::{Loader, StoredRows};
use crate::residual::Residual;
use crate::spec::{PerLayerInputSpec, PerLayerSpec};

/// What makes the rows.
#[derive(Debug)]
pub(super) struct PerLayer {
    width: usize,
    /// Of many gigabytes a token wants a few kilobytes: it stays on the disk.
    table: StoredRows,
    table_scale: f32,
    projection: Linear,
    projection_scale: f32,
    norm: Norm,
}

/// How a layer uses its part of them.
#[derive(Debug)]
pub(super) struct PerLayerInput {
    gate: Linear,
    projection: Linear,
    norm: Norm,
}

/// The rows of a step: `values` is [rows, layers · width].
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    values: Tensor,
    width: usize,
}

impl PerLayer {
    /// The rows of `tokens`, whose scaled embeddings are `h`: `(norm(projection · h) + table) / √2`.
    pub(super) fn rows(&self, step: &mut dyn Step, tokens: &[u32], h: Tensor) -> Rows {
        let values = step.matmul(h, &[&self.projection]).remove(0);
        step.scale(values, self.projection_scale);
        step.head_norm(values, &self.norm);
        let mark = step.mark();
        // What is no token of the table counts as token 0, which pads.
        let count = self.table.rows();
        let row = |&token: &u32| Some(token as usize).filter(|&row| row < count).unwrap_or(0);
        let rows: Vec<usize> = tokens.iter().map(row).collect();
        let rows = step.fetch(&self.table, &rows, self.table_scale);
        step.add(values, rows);
        step.release(mark);
        step.scale(values, std::f32::consts::FRAC_1_SQRT_2);
        Rows { values, width: self.width }
    }

    pub(super) fn load(loader: &Loader<'_>, spec: &PerLayerSpec) -> Result<PerLayer> {
        Ok(PerLayer {
            width: spec.width,
            table: loader.rows(&spec.table),
            table_scale: spec.table_scale,
            projection: loader.linear(&spec.projection)?,
            projection_scale: spec.projection_scale,
            norm: loader.norm(&spec.norm)?,
        })
    }
}

impl PerLayerInput {
    /// What joins the stream `h` after layer `layer`.
    pub(super) fn forward(
        &self,
        step: &mut dyn Step,
        h: Residual,
        rows: Rows,
        layer: usize,
    ) -> Tensor {
        let gate = step.matmul(h.raw(), &[&self.gate]).remove(0);
        let Rows { values, width } = rows;
        let part = step.columns(values, layer * width, width, values.cols());
        let gated = step.glu(gate, part, Activation::GeGlu);
        let y = step.matmul(gated, &[&self.projection]).remove(0);
        step.head_norm(y, &self.norm);
        y
    }

    pub(super) fn load(loader: &Loader<'_>, spec: &PerLayerInputSpec) -> Result<PerLayerInput> {
        Ok(PerLayerInput {
            gate: loader.linear(&spec.gate)?,
            projection: loader.linear(&spec.projection)?,
            norm: loader.norm(&spec.norm)?,
        })
    }
}
