//! Softmax attention: queries, keys and values from their projections, what the pages hold, the output.

use std::sync::Arc;

use compute::{AttentionShape, Features, Linear, Norm, Rope, Step, Tensor, Vector};

use crate::Result;
use crate::batch::Batch;
use crate::load::Loader;
use crate::pass::Pass;
use crate::spec::{AttentionSpec, KeyValueSpec};

#[derive(Debug)]
pub(crate) struct Attention {
    shape: AttentionShape,
    q: Linear,
    /// An earlier layer's serve if `None`.
    kv: Option<KeyValue>,
    o: Linear,
    sinks: Option<Vector>,
    q_norm: Option<Norm>,
    gated: bool,
    rope: Arc<Rope>,
}

#[derive(Debug)]
struct KeyValue {
    k: Linear,
    /// Raw keys serve if `None`.
    v: Option<Linear>,
    k_norm: Option<Norm>,
    /// Of ones: the norm of values has no weights.
    v_norm: Option<Norm>,
}

impl Attention {
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, x: Tensor, layer: usize) -> Tensor {
        // Queries (each head followed by its gate, if gated), keys, values.
        let mut linears = vec![&self.q];
        linears.extend(self.kv.iter().flat_map(KeyValue::linears));
        let projected = pass.step.matmul(x, &linears);
        let mut q = projected[0];
        let mut gate = None;
        let k_dim = self.shape.k_dim;
        if self.gated {
            gate = Some(pass.step.columns(q, k_dim, k_dim, 2 * k_dim));
            q = pass.step.columns(q, 0, k_dim, 2 * k_dim);
        }
        if let Some(q_norm) = &self.q_norm {
            pass.step.head_norm(q, q_norm);
        }
        pass.step.rope(q, k_dim, &self.rope, &pass.batch.positions);
        // Keys and values join the sequences' pages; every row looks at what it may see.
        if let Some(kv) = &self.kv {
            self.append(pass, kv, &projected[1..], layer);
        }
        let (step, arenas, runs) = pass.pages(layer);
        let mut o = step.attend(q, arenas, &runs, &self.shape, None, self.sinks.as_ref());
        if let Some(gate) = gate {
            o = step.sigmoid_gate(o, gate);
        }
        step.matmul(o, &[&self.o]).remove(0)
    }

    /// What the rows `x` leave in the layer's pages, and nothing else.
    pub(crate) fn store(&self, pass: &mut Pass<'_>, x: Tensor, layer: usize) {
        let Some(kv) = &self.kv else { return };
        let linears: Vec<&Linear> = kv.linears().collect();
        let projected = pass.step.matmul(x, &linears);
        self.append(pass, kv, &projected, layer);
    }

    /// Norms and rotates what the projections gave, and appends it to the pages.
    fn append(&self, pass: &mut Pass<'_>, kv: &KeyValue, projected: &[Tensor], layer: usize) {
        let planes = self.planes(pass.step, kv, projected, pass.batch);
        let (step, arenas, runs) = pass.pages(layer);
        step.store(&planes, arenas, &runs);
    }

    /// A tensor for each plane of the layer's pages.
    fn planes(
        &self,
        step: &mut dyn Step,
        kv: &KeyValue,
        projected: &[Tensor],
        batch: &Batch,
    ) -> Vec<Tensor> {
        let k = projected[0];
        let k_dim = self.shape.k_dim;
        let mut planes = vec![k];
        if !self.shape.values_in_keys {
            let v = match projected.get(1) {
                Some(&v) => v,
                // A copy, before the keys are normed and rotated.
                None => step.columns(k, 0, k_dim, k_dim),
            };
            if let Some(v_norm) = &kv.v_norm {
                step.head_norm(v, v_norm);
            }
            planes.push(v);
        }
        if let Some(k_norm) = &kv.k_norm {
            step.head_norm(k, k_norm);
        }
        step.rope(k, k_dim, &self.rope, &batch.positions);
        planes
    }

    /// Keys and values that say nothing: every score is zero, and so is what it adds.
    pub(crate) fn store_nothing(&self, pass: &mut Pass<'_>, layer: usize) {
        let rows = pass.batch.positions.len();
        let AttentionShape { kv_heads, .. } = self.shape;
        let zeros = |width: usize| pass.step.bring(&Features::zeros(rows, kv_heads * width));
        let planes: Vec<Tensor> = self.shape.plane_widths().map(zeros).collect();
        let (step, arenas, runs) = pass.pages(layer);
        step.store(&planes, arenas, &runs);
    }

    pub(crate) fn load(loader: &Loader<'_>, a: &AttentionSpec) -> Result<Attention> {
        let norm = |spec| loader.norm(spec);
        let kv = match &a.kv {
            KeyValueSpec::Own { k, v, k_norm, norms_values } => Some(KeyValue {
                k: loader.linear(k)?,
                v: v.as_ref().map(|v| loader.linear(v)).transpose()?,
                k_norm: k_norm.as_ref().map(norm).transpose()?,
                v_norm: norms_values.then(|| loader.plain_norm(a.shape.v_dim)),
            }),
            KeyValueSpec::Shared { .. } => None,
        };
        Ok(Attention {
            shape: a.shape,
            q: loader.linear(&a.q)?,
            kv,
            o: loader.linear(&a.o)?,
            sinks: a.sinks.as_ref().map(|sinks| loader.vector(sinks)).transpose()?,
            q_norm: a.q_norm.as_ref().map(norm).transpose()?,
            gated: a.gated,
            rope: Arc::clone(&a.rope),
        })
    }
}

impl KeyValue {
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        std::iter::once(&self.k).chain(&self.v)
    }
}
