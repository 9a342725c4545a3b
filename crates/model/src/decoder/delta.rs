//! Gated delta net: projections, a short convolution, the delta rule over a recurrent state, a gated norm.

use compute::{DeltaLayer, Linear, Norm, Step, Tape, Tensor};
use state::{Memory, Sequence};

use crate::Result;
use crate::batch::Batch;
use crate::load::Loader;
use crate::pass::{Pass, slots};
use crate::spec::DeltaSpec;

#[derive(Debug)]
pub(super) struct DeltaNet {
    qkv: Linear,
    z: Linear,
    b: Linear,
    a: Linear,
    out: Linear,
    layer: DeltaLayer,
    norm: Norm,
}

impl DeltaNet {
    pub(super) fn forward(&self, pass: &mut Pass<'_>, x: Tensor, layer: usize) -> Tensor {
        let projected = pass.step.matmul(x, &[&self.qkv, &self.z, &self.b, &self.a]);
        let (qkv, z, b, a) = (projected[0], projected[1], projected[2], projected[3]);
        if let Some(tape) = pass.tape.as_deref_mut().filter(|_| pass.batch.keeps) {
            pass.step.keep(layer, qkv, a, b, tape);
        }
        // Short convolution, then S ← α S + β (v − S k) kᵀ and o = S q, row by row.
        let (arena, runs) = pass.slots(layer);
        let arena = pass.memory.recurrent_mut(arena);
        let o = pass.step.delta(qkv, a, b, &self.layer, arena, &runs);
        let o = pass.step.gated_norm(o, z, &self.norm);
        pass.step.matmul(o, &[&self.out]).remove(0)
    }

    /// Brings states up to the rows that turned out to be right: the first `counts[i]` of each segment `i` that was
    /// verified.
    pub(super) fn replay(
        &self,
        step: &mut dyn Step,
        layer: usize,
        batch: &Batch,
        counts: &[usize],
        tape: &Tape,
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) {
        let segments = batch.segments.iter().zip(counts.iter().copied());
        let right = segments.filter(|&(segment, count)| segment.is_trial() && count > 0);
        let (arena, mut runs) = slots(layer, sequences, right);
        if runs.is_empty() {
            return;
        }
        runs.iter_mut().for_each(|run| run.is_trial = false);
        step.replay(layer, tape, &self.layer, memory.recurrent_mut(arena), &runs);
    }

    pub(super) fn load(loader: &Loader<'_>, spec: &DeltaSpec) -> Result<DeltaNet> {
        let taps = spec.shape.taps;
        let channels = spec.shape.channels();
        let stored = loader.values(&spec.conv)?; // [channels, taps]
        let mut conv_weight = vec![0.0; stored.len()]; // [taps, channels]
        for channel in 0..channels {
            for tap in 0..taps {
                conv_weight[tap * channels + channel] = stored[channel * taps + tap];
            }
        }
        let mut decay = loader.values(&spec.a_log)?;
        if !spec.holds_rate {
            decay.iter_mut().for_each(|a| *a = -a.exp());
        }
        Ok(DeltaNet {
            qkv: loader.linear(&spec.qkv)?,
            z: loader.linear(&spec.z)?,
            b: loader.linear(&spec.b)?,
            a: loader.linear(&spec.a)?,
            out: loader.linear(&spec.out)?,
            layer: DeltaLayer {
                shape: spec.shape,
                conv_weight: loader.place(conv_weight),
                decay: loader.place(decay),
                dt_bias: loader.vector(&spec.dt_bias)?,
            },
            norm: loader.norm(&spec.norm)?,
        })
    }
}
