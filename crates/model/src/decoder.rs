//! The forward pass. Reads top to bottom like the papers: norm, mixer, norm, feed-forward.

mod attention;
mod delta;
mod feed_forward;
mod per_layer;

use checkpoint::Checkpoint;
use compute::{Linear, Norm, Step, Store, Tape, Tensor};
use state::{Memory, Sequence};

use crate::Result;
use crate::batch::Batch;
use crate::load::{Caching, Loader, Progress};
use crate::pass::Pass;
use crate::spec::{DecoderSpec, LayerSpec, MixerSpec};

use crate::residual::Residual;
pub(crate) use attention::Attention;
use delta::DeltaNet;
pub(crate) use feed_forward::FeedForward;
use per_layer::{PerLayer, PerLayerInput, Rows};

/// A loaded model, its routed experts excepted: those come from an [`ExpertBank`](compute::ExpertBank).
#[derive(Debug)]
pub struct Decoder {
    embed: Linear,
    embed_scale: f32,
    per_layer: Option<PerLayer>,
    layers: Vec<Layer>,
    norm: Norm,
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
    input_norm: Norm,
    mixer: Mixer,
    post_norm: Norm,
    feed_forward: FeedForward,
    /// Of what the mixer gives, and of what the feed-forward gives.
    output_norms: Option<[Norm; 2]>,
    per_layer: Option<PerLayerInput>,
    scalar: Option<f32>,
}

#[derive(Debug)]
enum Mixer {
    Attention(Box<Attention>),
    Delta(Box<DeltaNet>),
}

impl Decoder {
    /// Loads everything but the routed experts into a backend's memory.
    pub fn load(
        checkpoint: &Checkpoint,
        spec: &DecoderSpec,
        store: &dyn Store,
        caching: Caching,
        progress: Progress<'_>,
    ) -> Result<Decoder> {
        let bytes = spec.resident_bytes();
        let loader = Loader::new(checkpoint, store, bytes, spec.eps, progress, caching);
        Ok(Decoder {
            embed: loader.linear(&spec.embed)?,
            embed_scale: spec.embed_scale,
            per_layer: spec.per_layer.as_ref().map(|p| PerLayer::load(&loader, p)).transpose()?,
            layers: spec.layers.iter().map(|l| Layer::load(&loader, l)).collect::<Result<_>>()?,
            norm: loader.norm(&spec.norm)?,
            head: spec.head.as_ref().map(|head| loader.linear(head)).transpose()?,
            softcap: spec.softcap,
        })
    }

    /// One step of every segment of the batch. Rows that are to be verified leave recurrent states as they were, and a
    /// trace on the tape for [`Decoder::replay`].
    pub fn forward(&self, pass: &mut Pass<'_>) -> Output {
        let batch = pass.batch;
        let mut taps = Vec::new();
        let embedded = self.embed(pass.step, &batch.tokens);
        let per_layer = self.per_layer.as_ref();
        let per_layer = per_layer.map(|p| p.rows(pass.step, &batch.tokens, embedded));
        let h = Residual::start(embedded);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(pass, h, index, per_layer);
            if batch.taps.contains(&index) {
                let rows: Vec<usize> = (0..batch.tokens.len()).collect();
                taps.push(h.select(pass.step, &rows).raw());
            }
        }
        let step = &mut *pass.step;
        let hidden = batch.hidden.then(|| h.end(step, &self.norm));
        let rows = batch.logit_rows();
        if rows.is_empty() {
            return Output { logits: None, taps, hidden };
        }
        let h = match hidden {
            Some(hidden) => step.select(hidden, &rows),
            None => {
                let h = h.select(step, &rows);
                h.end(step, &self.norm)
            }
        };
        Output { logits: Some(self.logits(step, h)), taps, hidden }
    }

    /// Rows of the embedding table, for a draft head that shares it.
    pub(crate) fn embed(&self, step: &mut dyn Step, tokens: &[u32]) -> Tensor {
        step.embed(&self.embed.weight, tokens, self.embed_scale)
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
            if let Mixer::Delta(delta) = &layer.mixer {
                delta.replay(step, index, batch, counts, tape, memory, sequences);
            }
        }
    }
}

impl Layer {
    /// The layer on the stream `h`; `rows` are those of the per-layer embeddings.
    fn forward(&self, pass: &mut Pass<'_>, h: Residual, index: usize, rows: Option<Rows>) {
        if let (Some(bank), FeedForward::Moe(moe)) = (pass.bank, &self.feed_forward)
            && bank.looks_ahead()
        {
            moe.look_ahead(pass.step, h, &self.post_norm, index, bank);
        }
        let [mixer_norm, feed_forward_norm] =
            self.output_norms.as_ref().map_or([None; 2], |norms| norms.each_ref().map(Some));
        // What happened before, in attention or recurrent state.
        let mark = pass.step.mark();
        let x = h.enter(pass.step, &self.input_norm);
        let y = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(pass, x, index),
            Mixer::Delta(delta) => delta.forward(pass, x, index),
        };
        h.join(pass.step, y, mixer_norm);
        pass.step.release(mark);
        // What each token makes of it.
        let mark = pass.step.mark();
        let x = h.enter(pass.step, &self.post_norm);
        let y = self.feed_forward.forward(pass, h, x, index);
        h.join(pass.step, y, feed_forward_norm);
        pass.step.release(mark);
        // What the token itself has to say to this layer.
        if let (Some(input), Some(rows)) = (&self.per_layer, rows) {
            let mark = pass.step.mark();
            let y = input.forward(pass.step, h, rows, index);
            h.join(pass.step, y, None);
            pass.step.release(mark);
        }
        if let Some(scalar) = self.scalar {
            h.scale(pass.step, scalar);
        }
    }

    fn load(loader: &Loader<'_>, spec: &LayerSpec) -> Result<Layer> {
        let scalar = spec.scalar.as_ref().map(|scalar| loader.values(scalar)).transpose()?;
        Ok(Layer {
            input_norm: loader.norm(&spec.input_norm)?,
            mixer: Mixer::load(loader, &spec.mixer)?,
            post_norm: loader.norm(&spec.post_norm)?,
            feed_forward: FeedForward::load(loader, &spec.feed_forward)?,
            output_norms: match &spec.output_norms {
                Some(norms) => {
                    Some([loader.norm(&norms.mixer)?, loader.norm(&norms.feed_forward)?])
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
            MixerSpec::Delta(d) => Ok(Mixer::Delta(Box::new(DeltaNet::load(loader, d)?))),
        }
    }
}
