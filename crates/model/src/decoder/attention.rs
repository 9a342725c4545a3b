//! Softmax attention: queries, keys and values from their projections, what the pages hold, the output.

use std::sync::Arc;

use compute::{AttentionShape, KvRun, Linear, Rope, Step, Tensor};
use state::{Memory, Sequence};

use crate::Result;
use crate::batch::{Batch, Segment};
use crate::load::Loader;
use crate::spec::{AttentionSpec, KeyValueSpec};

#[derive(Debug)]
pub(crate) struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    q: Linear,
    /// An earlier layer's serve if `None`.
    kv: Option<KeyValue>,
    o: Linear,
    sinks: Option<Vec<f32>>,
    q_norm: Option<Vec<f32>>,
    gated: bool,
    rope: Arc<Rope>,
    window: Option<usize>,
    scale: f32,
    both_ways: bool,
}

#[derive(Debug)]
struct KeyValue {
    k: Linear,
    /// Raw keys serve if `None`.
    v: Option<Linear>,
    k_norm: Option<Vec<f32>>,
    /// Ones: the norm of values has no weights.
    v_norm: Option<Vec<f32>>,
}

impl Attention {
    pub(crate) fn forward(
        &self,
        step: &mut dyn Step,
        x: Tensor,
        eps: f32,
        layer: usize,
        batch: &Batch,
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) -> Tensor {
        // Queries (each head followed by its gate, if gated), keys, values.
        let mut linears = vec![&self.q];
        linears.extend(self.kv.iter().flat_map(KeyValue::linears));
        let projected = step.matmul(x, &linears);
        let mut q = projected[0];
        let mut gate = None;
        if self.gated {
            let both = 2 * self.head_dim;
            gate = Some(step.columns(q, self.head_dim, self.head_dim, both));
            q = step.columns(q, 0, self.head_dim, both);
        }
        if let Some(q_norm) = &self.q_norm {
            step.head_norm(q, q_norm, eps);
        }
        step.rope(q, self.head_dim, &self.rope, &batch.positions);
        // Keys and values join the sequences' pages; every row looks at what it may see.
        let (arena, runs) = kv_runs(layer, batch, sequences);
        let shape = AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale,
            window: self.window,
            softcap: None,
            sinks: self.sinks.as_deref(),
            both_ways: self.both_ways,
        };
        let arena = memory.kv_mut(arena);
        let mut o = match &self.kv {
            Some(kv) => {
                let (k, v) = self.keys_and_values(step, kv, &projected[1..], eps, batch);
                step.attention(q, k, v, arena, &runs, &shape)
            }
            None => step.attend(q, arena, &runs, &shape),
        };
        if let Some(gate) = gate {
            o = step.sigmoid_gate(o, gate);
        }
        step.matmul(o, &[&self.o]).remove(0)
    }

    /// What the rows `x` leave in the layer's pages, and nothing else.
    pub(crate) fn store(
        &self,
        step: &mut dyn Step,
        x: Tensor,
        eps: f32,
        layer: usize,
        batch: &Batch,
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) {
        let Some(kv) = &self.kv else { return };
        let linears: Vec<&Linear> = kv.linears().collect();
        let projected = step.matmul(x, &linears);
        let (k, v) = self.keys_and_values(step, kv, &projected, eps, batch);
        let (arena, runs) = kv_runs(layer, batch, sequences);
        step.store(k, v, memory.kv_mut(arena), &runs);
    }

    /// Norms and rotates what the projections gave.
    fn keys_and_values(
        &self,
        step: &mut dyn Step,
        kv: &KeyValue,
        projected: &[Tensor],
        eps: f32,
        batch: &Batch,
    ) -> (Tensor, Tensor) {
        let k = projected[0];
        let v = match projected.get(1) {
            Some(&v) => v,
            // A copy, before the keys are normed and rotated.
            None => step.columns(k, 0, self.head_dim, self.head_dim),
        };
        if let Some(v_norm) = &kv.v_norm {
            step.head_norm(v, v_norm, eps);
        }
        if let Some(k_norm) = &kv.k_norm {
            step.head_norm(k, k_norm, eps);
        }
        step.rope(k, self.head_dim, &self.rope, &batch.positions);
        (k, v)
    }

    /// Keys and values that say nothing: every score is zero, and so is what it adds.
    pub(crate) fn store_nothing(
        &self,
        step: &mut dyn Step,
        layer: usize,
        batch: &Batch,
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) {
        let width = self.kv_heads * self.head_dim;
        let zeros = step.upload(&vec![0.0; batch.positions.len() * width], width);
        let (arena, runs) = kv_runs(layer, batch, sequences);
        step.store(zeros, zeros, memory.kv_mut(arena), &runs);
    }

    pub(crate) fn load(loader: &Loader<'_>, a: &AttentionSpec) -> Result<Attention> {
        let vector = |spec| loader.vector(spec);
        let kv = match &a.kv {
            KeyValueSpec::Own { k, v, k_norm, norms_values } => Some(KeyValue {
                k: loader.linear(k)?,
                v: v.as_ref().map(|v| loader.linear(v)).transpose()?,
                k_norm: k_norm.as_ref().map(vector).transpose()?,
                v_norm: norms_values.then(|| vec![1.0; a.head_dim]),
            }),
            KeyValueSpec::Shared { .. } => None,
        };
        Ok(Attention {
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            q: loader.linear(&a.q)?,
            kv,
            o: loader.linear(&a.o)?,
            sinks: a.sinks.as_ref().map(vector).transpose()?,
            q_norm: a.q_norm.as_ref().map(vector).transpose()?,
            gated: a.gated,
            rope: Arc::clone(&a.rope),
            window: a.window,
            scale: a.scale,
            both_ways: a.both_ways,
        })
    }
}

impl KeyValue {
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        std::iter::once(&self.k).chain(&self.v)
    }
}

/// The arena of a layer, and the pages of each segment's sequence there.
fn kv_runs<'a>(layer: usize, batch: &Batch, sequences: &[&'a Sequence]) -> (usize, Vec<KvRun<'a>>) {
    let mut arena = 0;
    let run = |segment: &Segment| {
        let table = sequences[segment.sequence].kv(layer);
        arena = table.arena;
        KvRun {
            row: segment.row,
            count: segment.count,
            position: batch.positions[segment.row] as usize,
            pages: table.pages,
            first_block: table.first_block,
        }
    };
    let runs = batch.segments.iter().map(run).collect();
    (arena, runs)
}
