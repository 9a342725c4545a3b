//! The forward pass. Reads top to bottom like the papers: norm, mixer, norm, feed-forward.

use compute::{
    Activation, AttentionShape, DeltaShape, ExpertBank, Input, KvRun, Linear, Rope, RoutingScheme,
    SharedExpert, StateRun, Step, Tape, Tensor,
};
use state::{Memory, Sequence};
use std::sync::Arc;

use checkpoint::Checkpoint;

use crate::Result;
use crate::batch::{Batch, Segment};
use crate::load::{Caching, Loader, Progress};
use crate::spec::{AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, MixerSpec};

/// Rows that a guess of a layer's routing is made from.
const GUESSED_ROWS: usize = 64;

/// A loaded model, its routed experts excepted: those come from an [`ExpertBank`].
#[derive(Debug)]
pub struct Decoder {
    eps: f32,
    embed: Linear,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// The embedding table serves if `None`.
    head: Option<Linear>,
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
}

#[derive(Debug)]
enum Mixer {
    Attention(Box<Attention>),
    Delta(Box<DeltaNet>),
}

#[derive(Debug)]
pub(crate) struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    sinks: Option<Vec<f32>>,
    qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    gated: bool,
    rope: Arc<Rope>,
    window: Option<usize>,
    scale: f32,
    both_ways: bool,
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

#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Box<Dense>),
    Moe(Box<Moe>),
}

#[derive(Debug)]
pub(crate) struct Dense {
    gate: Linear,
    up: Linear,
    down: Linear,
}

#[derive(Debug)]
pub(crate) struct Moe {
    router: Linear,
    experts_per_token: usize,
    scheme: RoutingScheme,
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    gate: Linear,
    up: Linear,
    down: Linear,
    router: Option<Linear>,
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
            layers: spec.layers.iter().map(|l| Layer::load(&loader, l)).collect::<Result<_>>()?,
            norm: loader.vector(&spec.norm)?,
            head: spec.head.as_ref().map(|head| loader.linear(head)).transpose()?,
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
        for (index, layer) in self.layers.iter().enumerate() {
            if let (Some(bank), FeedForward::Moe(moe)) = (bank, &layer.feed_forward)
                && bank.looks_ahead()
            {
                self.look_ahead(step, h, index, layer, moe, bank);
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
            step.add(h, y);
            step.release(mark);
            // What each token makes of it.
            let mark = step.mark();
            let x = step.norm(h, &layer.post_norm, self.eps);
            let y = layer.feed_forward.forward(step, x, index, bank);
            step.add(h, y);
            step.release(mark);
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
        step.embed(&self.embed.weight, inputs)
    }

    /// Logits of hidden states that are normed already.
    pub(crate) fn logits(&self, step: &mut dyn Step, hidden: Tensor) -> Tensor {
        let head = self.head.as_ref().unwrap_or(&self.embed);
        step.matmul(hidden, &[head]).remove(0)
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

    /// Asks a layer's router before its mixer has run: it mostly wants the same, and a bank that reads
    /// from a disk can begin.
    fn look_ahead(
        &self,
        step: &mut dyn Step,
        h: Tensor,
        index: usize,
        layer: &Layer,
        moe: &Moe,
        bank: &dyn ExpertBank,
    ) {
        let mark = step.mark();
        // Some rows of a prompt tell which experts it will surely want.
        let stride = h.rows().div_ceil(GUESSED_ROWS);
        let rows: Vec<usize> = (0..h.rows()).step_by(stride).collect();
        let some = if stride > 1 { step.select(h, &rows) } else { h };
        let x = step.norm(some, &layer.post_norm, self.eps);
        let logits = step.matmul(x, &[&moe.router]).remove(0);
        let routing = step.route(logits, moe.experts_per_token, moe.scheme);
        step.expect(index, routing, bank);
        step.release(mark);
    }
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
        let projected = step.matmul(x, &[&self.q, &self.k, &self.v]);
        let (mut q, k, v) = (projected[0], projected[1], projected[2]);
        let mut gate = None;
        if self.gated {
            let both = 2 * self.head_dim;
            gate = Some(step.columns(q, self.head_dim, self.head_dim, both));
            q = step.columns(q, 0, self.head_dim, both);
        }
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            step.head_norm(q, q_norm, eps);
            step.head_norm(k, k_norm, eps);
        }
        step.rope(q, self.head_dim, &self.rope, &batch.positions);
        step.rope(k, self.head_dim, &self.rope, &batch.positions);
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
        let mut o = step.attention(q, k, v, memory.kv_mut(arena), &runs, &shape);
        if let Some(gate) = gate {
            o = step.sigmoid_gate(o, gate);
        }
        step.matmul(o, &[&self.o]).remove(0)
    }
}

impl Attention {
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
        let projected = step.matmul(x, &[&self.k, &self.v]);
        let (k, v) = (projected[0], projected[1]);
        if let Some((_, k_norm)) = &self.qk_norm {
            step.head_norm(k, k_norm, eps);
        }
        step.rope(k, self.head_dim, &self.rope, &batch.positions);
        let (arena, runs) = kv_runs(layer, batch, sequences);
        step.store(k, v, memory.kv_mut(arena), &runs);
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
        Ok(Attention {
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            q: loader.linear(&a.q)?,
            k: loader.linear(&a.k)?,
            v: loader.linear(&a.v)?,
            o: loader.linear(&a.o)?,
            sinks: a.sinks.as_ref().map(|sinks| loader.vector(sinks)).transpose()?,
            qk_norm: match &a.qk_norm {
                Some((q, k)) => Some((loader.vector(q)?, loader.vector(k)?)),
                None => None,
            },
            gated: a.gated,
            rope: Arc::clone(&a.rope),
            window: a.window,
            scale: a.scale,
            both_ways: a.both_ways,
        })
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
        if batch.segments.iter().any(Segment::is_trial) {
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

impl FeedForward {
    pub(crate) fn forward(
        &self,
        step: &mut dyn Step,
        x: Tensor,
        layer: usize,
        bank: Option<&dyn ExpertBank>,
    ) -> Tensor {
        let moe = match self {
            FeedForward::Dense(dense) => {
                let projected = step.matmul(x, &[&dense.gate, &dense.up]);
                let hidden = step.glu(projected[0], projected[1], Activation::SwiGlu);
                return step.matmul(hidden, &[&dense.down]).remove(0);
            }
            FeedForward::Moe(moe) => moe,
        };
        // The router's logits, and that of the shared expert's gate.
        let shared_router = moe.shared.as_ref().and_then(|shared| shared.router.as_ref());
        let linears: Vec<&Linear> = std::iter::once(&moe.router).chain(shared_router).collect();
        let logits = step.matmul(x, &linears);
        let routing = step.route(logits[0], moe.experts_per_token, moe.scheme);
        let shared = moe.shared.as_ref().map(|shared| SharedExpert {
            gate_proj: &shared.gate.weight,
            up_proj: &shared.up.weight,
            down_proj: &shared.down.weight,
            gate: logits.get(1).copied(),
        });
        let bank = bank.expect("a model with experts is given a bank");
        step.moe(layer, x, routing, bank, shared)
    }
}

impl Layer {
    fn load(loader: &Loader<'_>, spec: &LayerSpec) -> Result<Layer> {
        Ok(Layer {
            input_norm: loader.vector(&spec.input_norm)?,
            mixer: Mixer::load(loader, &spec.mixer)?,
            post_norm: loader.vector(&spec.post_norm)?,
            feed_forward: FeedForward::load(loader, &spec.feed_forward)?,
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

impl FeedForward {
    pub(crate) fn load(loader: &Loader<'_>, spec: &FeedForwardSpec) -> Result<FeedForward> {
        match spec {
            FeedForwardSpec::Dense { gate, up, down } => Ok(FeedForward::Dense(Box::new(Dense {
                gate: loader.linear(gate)?,
                up: loader.linear(up)?,
                down: loader.linear(down)?,
            }))),
            FeedForwardSpec::Moe(moe) => Ok(FeedForward::Moe(Box::new(Moe {
                router: loader.linear(&moe.router)?,
                experts_per_token: moe.experts_per_token,
                scheme: moe.scheme,
                shared: match &moe.shared {
                    Some(shared) => Some(Shared {
                        gate: loader.linear(&shared.gate)?,
                        up: loader.linear(&shared.up)?,
                        down: loader.linear(&shared.down)?,
                        router: shared.router.as_ref().map(|r| loader.linear(r)).transpose()?,
                    }),
                    None => None,
                },
            }))),
        }
    }
}
