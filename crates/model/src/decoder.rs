//! The forward pass. Reads top to bottom like the papers: norm, mixer, norm, feed-forward.

mod attention;
mod feed_forward;
mod per_layer;

use checkpoint::Checkpoint;
use compute::{DeltaShape, ExpertBank, Input, Linear, StateRun, Step, Tape, Tensor};
use state::{Memory, Sequence};

use crate::Result;
use crate::batch::Batch;
use crate::load::{Caching, Loader, Progress};
use crate::spec::{DecoderSpec, LayerSpec, MixerSpec};

pub(crate) use attention::Attention;
pub(crate) use feed_forward::FeedForward;
use per_layer::{PerLayer, PerLayerInput};

/// A loaded model, its routed experts excepted: those come from an [`ExpertBank`].
#[derive(Debug)]
pub struct Decoder {
    eps: f32,
    embed: Linear,
    embed_scale: f32,
    per_layer: Option<PerLayer>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// The embedding table serves if `None`.
    head: Option<Linear>,
    softcap: Option<f32>,
}

/// Tensors a forward pass leaves in the step.
#[derive(Debug)]
pub struct Output {
    /// `[rows asked for, vocab]`
    pub logits: Option<Tensor>,
    /// Hidden states after each tapped layer, in the order of layers: [rows, hidden].
    pub taps: Vec<Tensor>,
    /// Hidden states of all rows after the last norm, [rows, hidden], if the batch asks for them.
    pub hidden: Option<Tensor>,
}

#[derive(Debug)]
struct Layer {
    input_norm: Vec<f32>,
    mixer: Mixer,
    post_norm: Vec<f32>,
    feed_forward: FeedForward,
    /// Of what the mixer gives, and of what the feed-forward gives.
    output_norms: Option<[Vec<f32>; 2]>,
    per_layer: Option<PerLayerInput>,
    scalar: Option<f32>,
}

#[derive(Debug)]
enum Mixer {
    Attention(Box<Attention>),
    Delta(Box<DeltaNet>),
}

#[derive(Debug)]
struct DeltaNet {
    qkv: Linear,
    z: Linear,
    b: Linear,
    a: Linear,
    out: Linear,
    shape: DeltaShape,
    norm: Vec<f32>,
}

impl Decoder {
    /// Loads everything but the routed experts.
    pub fn load(
        checkpoint: &Checkpoint,
        spec: &DecoderSpec,
        caching: Caching,
        progress: Progress<'_>,
    ) -> Result<Decoder> {
        let loader = Loader::new(checkpoint, spec.resident_bytes(), progress, caching);
        Ok(Decoder {
            eps: spec.eps,
            embed: loader.linear(&spec.embed)?,
            embed_scale: spec.embed_scale,
            per_layer: spec.per_layer.as_ref().map(|p| PerLayer::load(&loader, p)).transpose()?,
            layers: spec.layers.iter().map(|l| Layer::load(&loader, l)).collect::<Result<_>>()?,
            norm: loader.vector(&spec.norm)?,
            head: spec.head.as_ref().map(|head| loader.linear(head)).transpose()?,
            softcap: spec.softcap,
        })
    }

    /// One step of every segment of the batch. The sequences' memory must have been prepared for
    /// their rows; advancing them afterwards is the caller's. Rows that are to be verified leave recurrent
    /// states as they were, and a trace on the tape for [`Decoder::replay`].
    pub fn forward(
        &self,
        step: &mut dyn Step,
        batch: &Batch,
        bank: Option<&dyn ExpertBank>,
        memory: &mut Memory,
        sequences: &[&Sequence],
        tape: &mut Tape,
    ) -> Output {
        let mut taps = Vec::new();
        let h = self.embed(step, &batch.rows);
        let per_layer = self.per_layer.as_ref();
        let per_layer = per_layer.map(|p| p.rows(step, &batch.rows, h, self.eps));
        for (index, layer) in self.layers.iter().enumerate() {
            if let (Some(bank), FeedForward::Moe(moe)) = (bank, &layer.feed_forward)
                && bank.looks_ahead()
            {
                moe.look_ahead(step, h, &layer.post_norm, self.eps, index, bank);
            }
            let mark = step.mark();
            // What happened before, in attention or recurrent state.
            let x = step.norm(h, &layer.input_norm, self.eps);
            let y = match &layer.mixer {
                Mixer::Attention(a) => {
                    a.forward(step, x, self.eps, index, batch, memory, sequences)
                }
                Mixer::Delta(d) => {
                    d.forward(step, x, self.eps, index, batch, memory, sequences, tape)
                }
            };
            if let Some([norm, _]) = &layer.output_norms {
                step.head_norm(y, norm, self.eps);
            }
            step.add(h, y);
            step.release(mark);
            // What each token makes of it.
            let mark = step.mark();
            let x = step.norm(h, &layer.post_norm, self.eps);
            let y = layer.feed_forward.forward(step, h, x, self.eps, index, bank);
            if let Some([_, norm]) = &layer.output_norms {
                step.head_norm(y, norm, self.eps);
            }
            step.add(h, y);
            step.release(mark);
            // What the token itself has to say to this layer.
            if let (Some(input), Some(rows)) = (&layer.per_layer, per_layer) {
                let mark = step.mark();
                let y = input.forward(step, h, rows, index, self.eps);
                step.add(h, y);
                step.release(mark);
            }
            if let Some(scalar) = layer.scalar {
                step.scale(h, scalar);
            }
            if batch.taps.contains(&index) {
                let rows: Vec<usize> = (0..batch.rows.len()).collect();
                taps.push(step.select(h, &rows));
            }
        }
        let hidden = batch.hidden.then(|| step.norm(h, &self.norm, self.eps));
        let rows = batch.logit_rows();
        if rows.is_empty() {
            return Output { logits: None, taps, hidden };
        }
        let h = match hidden {
            Some(hidden) => step.select(hidden, &rows),
            None => {
                let h = step.select(h, &rows);
                step.norm(h, &self.norm, self.eps)
            }
        };
        Output { logits: Some(self.logits(step, h)), taps, hidden }
    }

    /// Rows of the embedding table, for a draft head that shares it.
    pub(crate) fn embed(&self, step: &mut dyn Step, inputs: &[Input]) -> Tensor {
        step.embed(&self.embed.weight, inputs, self.embed_scale)
    }

    /// Logits of hidden states that are normed already.
    pub(crate) fn logits(&self, step: &mut dyn Step, hidden: Tensor) -> Tensor {
        let head = self.head.as_ref().unwrap_or(&self.embed);
        let logits = step.matmul(hidden, &[head]).remove(0);
        if let Some(cap) = self.softcap {
            step.softcap(logits, cap);
        }
        logits
    }
}

impl Decoder {
    /// Brings recurrent states up to the rows that turned out to be right: the first `counts[i]` of segment `i` of
    /// the batch that left its trace on the tape.
    pub fn replay(
        &self,
        step: &mut dyn Step,
        batch: &Batch,
        counts: &[usize],
        tape: &Tape,
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) {
        for (index, layer) in self.layers.iter().enumerate() {
            let Mixer::Delta(delta) = &layer.mixer else { continue };
            let mut arena = 0;
            let segments = batch.segments.iter().zip(counts);
            let trials = segments.filter(|(segment, count)| segment.is_trial() && **count > 0);
            let runs: Vec<StateRun> = trials
                .map(|(segment, &count)| {
                    let (index, slot) = sequences[segment.sequence].recurrent(index);
                    arena = index;
                    StateRun { row: segment.row, count, slot, is_trial: false }
                })
                .collect();
            if runs.is_empty() {
                continue;
            }
            step.replay(index, tape, &delta.shape, memory.recurrent_mut(arena), &runs);
        }
    }
}

impl DeltaNet {
    fn forward(
        &self,
        step: &mut dyn Step,
        x: Tensor,
        eps: f32,
        layer: usize,
        batch: &Batch,
        memory: &mut Memory,
        sequences: &[&Sequence],
        tape: &mut Tape,
    ) -> Tensor {
        let projected = step.matmul(x, &[&self.qkv, &self.z, &self.b, &self.a]);
        let (qkv, z, b, a) = (projected[0], projected[1], projected[2], projected[3]);
        if batch.keeps {
            step.keep(layer, qkv, a, b, tape);
        }
        // Short convolution, then S ← α S + β (v − S k) kᵀ and o = S q, row by row.
        let mut arena = 0;
        let runs: Vec<StateRun> = batch
            .segments
            .iter()
            .map(|segment| {
                let (index, slot) = sequences[segment.sequence].recurrent(layer);
                arena = index;
                let is_trial = segment.is_trial();
                StateRun { row: segment.row, count: segment.count, slot, is_trial }
            })
            .collect();
        let o = step.delta(qkv, a, b, &self.shape, memory.recurrent_mut(arena), &runs);
        let o = step.gated_norm(o, z, &self.norm, eps);
        step.matmul(o, &[&self.out]).remove(0)
    }
}

impl Layer {
    fn load(loader: &Loader<'_>, spec: &LayerSpec) -> Result<Layer> {
        let scalar = spec.scalar.as_ref().map(|scalar| loader.vector(scalar)).transpose()?;
        Ok(Layer {
            input_norm: loader.vector(&spec.input_norm)?,
            mixer: Mixer::load(loader, &spec.mixer)?,
            post_norm: loader.vector(&spec.post_norm)?,
            feed_forward: FeedForward::load(loader, &spec.feed_forward)?,
            output_norms: match &spec.output_norms {
                Some(norms) => {
                    Some([loader.vector(&norms.mixer)?, loader.vector(&norms.feed_forward)?])
                }
                None => None,
            },
            per_layer: match &spec.per_layer {
                Some(input) => Some(PerLayerInput::load(loader, input)?),
                None => None,
            },
            scalar: scalar.map(|values| values[0]),
        })
    }
}

impl Mixer {
    fn load(loader: &Loader<'_>, spec: &MixerSpec) -> Result<Mixer> {
        match spec {
            MixerSpec::Attention(a) => Ok(Mixer::Attention(Box::new(Attention::load(loader, a)?))),
            MixerSpec::Delta(d) => {
                let channels = d.channels();
                let stored = loader.vector(&d.conv)?; // [channels, taps]
                let mut conv_weight = vec![0.0; stored.len()]; // [taps, channels]
                for channel in 0..channels {
                    for tap in 0..d.taps {
                        conv_weight[tap * channels + channel] = stored[channel * d.taps + tap];
                    }
                }
                let decay = loader.vector(&d.a_log)?.iter().map(|a| -a.exp()).collect();
                Ok(Mixer::Delta(Box::new(DeltaNet {
                    qkv: loader.linear(&d.qkv)?,
                    z: loader.linear(&d.z)?,
                    b: loader.linear(&d.b)?,
                    a: loader.linear(&d.a)?,
                    out: loader.linear(&d.out)?,
                    shape: DeltaShape {
                        key_heads: d.key_heads,
                        value_heads: d.value_heads,
                        key_dim: d.key_dim,
                        value_dim: d.value_dim,
                        taps: d.taps,
                        conv_weight,
                        decay,
                        dt_bias: loader.vector(&d.dt_bias)?,
                    },
                    norm: loader.vector(&d.norm)?,
                })))
            }
        }
    }
}
