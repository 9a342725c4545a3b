//! The residual stream: what layers read and add to.
//!
//! This is the only place that knows how wide it is and how a layer's halves take from it and give to it. A family whose
//! residual is several streams changes [`Residual::start`], [`Residual::enter`], [`Residual::join`] and [`Residual::end`],
//! and [`width`], and nothing else of a pass.

use compute::{Norm, Step, Tensor};

/// The stream of a step's rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residual(Tensor);

/// Floats of a row.
pub(crate) fn width(hidden: usize) -> usize {
    hidden
}

impl Residual {
    /// It begins as the rows' embeddings.
    pub(crate) fn start(embedded: Tensor) -> Residual {
        Residual(embedded)
    }

    /// How many rows it has.
    pub(crate) fn rows(self) -> usize {
        self.0.rows()
    }

    /// What half a layer reads.
    pub(crate) fn enter(self, step: &mut dyn Step, norm: &Norm) -> Tensor {
        step.norm(self.0, norm)
    }

    /// The same for what reads it without a norm.
    pub(crate) fn raw(self) -> Tensor {
        self.0
    }

    /// Adds what half a layer gives, normed if there is a norm for that.
    pub(crate) fn join(self, step: &mut dyn Step, y: Tensor, norm: Option<&Norm>) {
        if let Some(norm) = norm {
            step.head_norm(y, norm);
        }
        step.add(self.0, y);
    }

    /// Multiplies it.
    pub(crate) fn scale(self, step: &mut dyn Step, factor: f32) {
        step.scale(self.0, factor);
    }

    /// A copy of some rows.
    pub(crate) fn select(self, step: &mut dyn Step, rows: &[usize]) -> Residual {
        Residual(step.select(self.0, rows))
    }

    /// Hidden states, as the output head reads them.
    pub(crate) fn end(self, step: &mut dyn Step, norm: &Norm) -> Tensor {
        step.norm(self.0, norm)
    }
}
