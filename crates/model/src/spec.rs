//! What a model is made of, as data: found from the config and the tensor headers, nothing read.
//!
//! The planner adds up a spec's bytes; the loader turns it into a [`crate::Decoder`]. Where a file
//! stores rows in another order than the block wants them, the spec lists the ranges to gather.

use std::sync::Arc;

use checkpoint::{ExpertLayout, LinearSlice, Projection, Tensor};
use compute::memory::{KvCode, KvFormat};
use compute::{Activation, AttentionShape, DeltaShape, Rope, RouterShape};
use state::{LayerKind, LayerPages, Layout, PageGroup};

use crate::{Result, residual};

use format::Encoding;

/// A whole decoder.
#[derive(Clone, Debug)]
pub struct DecoderSpec {
    /// The `model_type` it was made from.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Epsilon of every RMS norm.
    pub eps: f32,
    /// Longest context the model was made for.
    pub context: usize,
    /// `[vocab, hidden]`
    pub embed: LinearSpec,
    /// What embeddings are multiplied with.
    pub embed_scale: f32,
    /// A second embedding that every layer gets a part of.
    pub per_layer: Option<PerLayerSpec>,
    /// In order.
    pub layers: Vec<LayerSpec>,
    /// The last norm.
    pub norm: VectorSpec,
    /// The output head; the embedding table if `None`.
    pub head: Option<LinearSpec>,
    /// Logits are `cap · tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

/// Norm, mixer, norm, feed-forward, with a residual around each half. What follows is there in some families.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Before the mixer.
    pub input_norm: VectorSpec,
    /// What mixes positions.
    pub mixer: MixerSpec,
    /// Before the feed-forward.
    pub post_norm: VectorSpec,
    /// What works on each position alone.
    pub feed_forward: FeedForwardSpec,
    /// Of what mixer and feed-forward give, before it joins the stream.
    pub output_norms: Option<OutputNorms>,
    /// How its part of the per-layer embedding joins the stream.
    pub per_layer: Option<PerLayerInputSpec>,
    /// `[1]`: multiplies the stream after the layer.
    pub scalar: Option<VectorSpec>,
}

/// Norms of what a layer's halves add to the stream.
#[derive(Clone, Debug)]
pub struct OutputNorms {
    /// Of the mixer's output.
    pub mixer: VectorSpec,
    /// Of the feed-forward's output.
    pub feed_forward: VectorSpec,
}

/// Per-layer embeddings: a row of `width` values a layer for every token, from a table and from its embedding.
#[derive(Clone, Debug)]
pub struct PerLayerSpec {
    /// Values a layer.
    pub width: usize,
    /// `[tokens, layers · width]`: stays on the disk, a row is read when its token comes.
    pub table: LinearSpec,
    /// What rows of the table are multiplied with.
    pub table_scale: f32,
    /// `[layers · width, hidden]`: of the scaled embedding.
    pub projection: LinearSpec,
    /// What the projection is multiplied with before its norm.
    pub projection_scale: f32,
    /// `[width]`: of each layer's part of the projection.
    pub norm: VectorSpec,
}

/// `stream += norm(projection · (gelu(gate · stream) ⊙ part))`
#[derive(Clone, Debug)]
pub struct PerLayerInputSpec {
    /// `[width, hidden]`
    pub gate: LinearSpec,
    /// `[hidden, width]`
    pub projection: LinearSpec,
    /// `[hidden]`
    pub norm: VectorSpec,
}

/// How a layer mixes positions.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a layer; a box would only obscure it")]
pub enum MixerSpec {
    /// Softmax attention.
    Attention(AttentionSpec),
    /// Gated delta net.
    Delta(DeltaSpec),
}

/// Softmax attention.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// Heads, their sizes, and what they look at.
    pub shape: AttentionShape,
    /// Queries; twice as many rows if `gated`: query and gate alternate head by head.
    pub q: LinearSpec,
    /// Keys and values.
    pub kv: KeyValueSpec,
    /// Output projection.
    pub o: LinearSpec,
    /// A logit for each head that takes part in the softmax and adds nothing.
    pub sinks: Option<VectorSpec>,
    /// Norm of each query head.
    pub q_norm: Option<VectorSpec>,
    /// Whether the output is multiplied with `sigmoid(gate)`.
    pub gated: bool,
    /// Rotation of queries and keys.
    pub rope: Arc<Rope>,
}

/// Where the keys and values of an attention layer come from.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a layer; a box would only obscure it")]
pub enum KeyValueSpec {
    /// From projections of the layer's own.
    Own {
        /// Keys.
        k: LinearSpec,
        /// Values; if `None`, they are what the keys are before their norm and rotation.
        v: Option<LinearSpec>,
        /// Norm of each key head.
        k_norm: Option<VectorSpec>,
        /// Whether each value head is normed, without weights.
        norms_values: bool,
    },
    /// An earlier layer's.
    Shared {
        /// Which.
        layer: usize,
    },
}

/// Gated delta net.
#[derive(Clone, Debug)]
pub struct DeltaSpec {
    /// Its numbers.
    pub shape: DeltaShape,
    /// All queries, all keys, all values.
    pub qkv: LinearSpec,
    /// The output gate.
    pub z: LinearSpec,
    /// Writing strength.
    pub b: LinearSpec,
    /// Decay.
    pub a: LinearSpec,
    /// Output projection.
    pub out: LinearSpec,
    /// `[channels, taps]`, with an axis of one somewhere.
    pub conv: VectorSpec,
    /// `[value_heads]`
    pub a_log: VectorSpec,
    /// Whether `a_log` holds `-exp(A_log)` itself.
    pub holds_rate: bool,
    /// `[value_heads]`
    pub dt_bias: VectorSpec,
    /// `[value_dim]`
    pub norm: VectorSpec,
}

/// What works on each position alone.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a layer; a box would only obscure it")]
pub enum FeedForwardSpec {
    /// One gated layer for all tokens.
    Dense(DenseSpec),
    /// Routed experts.
    Moe(MoeSpec),
}

/// One gated layer.
#[derive(Clone, Debug)]
pub struct DenseSpec {
    /// `[intermediate, hidden]`
    pub gate: LinearSpec,
    /// `[intermediate, hidden]`
    pub up: LinearSpec,
    /// `[hidden, intermediate]`
    pub down: LinearSpec,
    /// How gate and up meet.
    pub activation: Activation,
}

/// Routed experts, perhaps with a shared one.
#[derive(Clone, Debug)]
pub struct MoeSpec {
    /// `[experts, hidden]`
    pub router: LinearSpec,
    /// Where the experts lie.
    pub experts: ExpertLayout,
    /// Width of an expert's hidden layer.
    pub intermediate: usize,
    /// How logits become a choice of experts and their weights.
    pub routing: RouterShape,
    /// `[experts]`: is added to scores for the choice alone.
    pub choice_bias: Option<VectorSpec>,
    /// How gate and up meet.
    pub activation: Activation,
    /// `[experts]`: multiplies the weights of chosen experts.
    pub expert_scale: Option<VectorSpec>,
    /// An expert every token uses.
    pub shared: Option<SharedSpec>,
    /// A dense layer parallel to the experts.
    pub parallel_dense: Option<ParallelDenseSpec>,
}

/// A dense layer parallel to routed experts. Each side has norms of its own, and the router reads the stream itself.
#[derive(Clone, Debug)]
pub struct ParallelDenseSpec {
    /// Reads what the layer's norm gives.
    pub dense: DenseSpec,
    /// Of the dense layer's output.
    pub dense_norm: VectorSpec,
    /// Of the stream, for the router.
    pub router_norm: VectorSpec,
    /// Of the stream, for the experts.
    pub expert_input_norm: VectorSpec,
    /// Of the experts' output.
    pub expert_norm: VectorSpec,
}

/// The expert every token uses.
#[derive(Clone, Debug)]
pub struct SharedSpec {
    /// `[intermediate, hidden]`
    pub gate: LinearSpec,
    /// `[intermediate, hidden]`
    pub up: LinearSpec,
    /// `[hidden, intermediate]`
    pub down: LinearSpec,
    /// `[1, hidden]`: scales its output by `sigmoid`.
    pub router: Option<LinearSpec>,
}

/// A weight matrix: rows gathered from one or more ranges of a stored one.
#[derive(Clone, Debug)]
pub struct LinearSpec {
    /// All with the same encoding and columns.
    pub slices: Vec<LinearSlice>,
    /// The ordinary bias of the stored matrix.
    pub bias: Option<Tensor>,
    /// The rows the slices are: (first, count) each.
    pub ranges: Vec<(usize, usize)>,
}

impl LinearSpec {
    /// Output features.
    pub fn rows(&self) -> usize {
        self.slices.iter().map(|slice| slice.out_features).sum()
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.slices.iter().map(LinearSlice::bytes).sum()
    }
}

/// A vector that is loaded as f32: each value is `(stored + plus) · times`.
#[derive(Clone, Debug)]
pub struct VectorSpec {
    /// Where it lies.
    pub tensor: Tensor,
    /// 1 for norms stored minus one.
    pub plus: f32,
    /// A factor that a family multiplies with.
    pub times: f32,
}

impl MoeSpec {
    /// Experts each token uses.
    pub fn experts_per_token(&self) -> usize {
        self.routing.experts_per_row
    }

    /// Gate, up and down of an expert: output features, input features, encoding.
    pub fn shapes(&self, hidden: usize) -> [(usize, usize, Encoding); 3] {
        Projection::ALL.map(|projection| {
            let encoding = self.experts.encoding(projection);
            match projection {
                Projection::Down => (hidden, self.intermediate, encoding),
                Projection::Gate | Projection::Up => (self.intermediate, hidden, encoding),
            }
        })
    }
}

impl DecoderSpec {
    /// Makes each token use at most this many experts of a layer. Changes what the model says.
    pub fn limit_experts_per_token(&mut self, most: usize) {
        for layer in &mut self.layers {
            if let FeedForwardSpec::Moe(moe) = &mut layer.feed_forward {
                let experts = &mut moe.routing.experts_per_row;
                *experts = (*experts).min(most.max(1));
            }
        }
    }

    /// What a sequence remembers, layer by layer. `codes` says of each layer how it keeps keys and values: one way for
    /// each code that sequences may have.
    pub fn layout(&self, codes: &dyn Fn(usize) -> Vec<KvCode>) -> Result<Layout> {
        let kind = |(index, layer): (usize, &LayerSpec)| match &layer.mixer {
            MixerSpec::Attention(a) => a.layer_kind(&codes(index)),
            MixerSpec::Delta(d) => LayerKind::recurrent(d.shape.state_floats()),
        };
        Ok(Layout::new(self.layers.iter().enumerate().map(kind).collect())?)
    }

    /// The layers with routed experts.
    pub fn moe_layers(&self) -> impl Iterator<Item = (usize, &MoeSpec)> {
        self.layers.iter().enumerate().filter_map(|(index, layer)| match &layer.feed_forward {
            FeedForwardSpec::Moe(moe) => Some((index, moe)),
            FeedForwardSpec::Dense(_) => None,
        })
    }

    /// Bytes of all routed experts.
    pub fn expert_bytes(&self) -> u64 {
        self.moe_layers().map(|(_, moe)| moe.experts.bytes()).sum()
    }

    /// Bytes of everything every token needs: all weights but the routed experts and the rows of per-layer embeddings.
    pub fn resident_bytes(&self) -> u64 {
        let own = self.embed.bytes() + vector(&self.norm);
        let per_layer = self.per_layer.as_ref().map_or(0, PerLayerSpec::every_token);
        own + per_layer
            + self.head.as_ref().map_or(0, LinearSpec::bytes)
            + self.layers.iter().map(LayerSpec::resident_bytes).sum::<u64>()
    }

    /// Bytes of weights one token's forward pass reads: all but unused experts and embedding rows.
    pub fn bytes_per_token(&self) -> u64 {
        let head = self.head.as_ref().unwrap_or(&self.embed).bytes();
        let row = self.embed.bytes() / self.vocab.max(1) as u64;
        let layers: u64 = self.layers.iter().map(LayerSpec::resident_bytes).sum();
        let per_layer = self.per_layer.as_ref().map_or(0, |p| p.row_bytes() + p.every_token());
        let experts: u64 = self
            .moe_layers()
            .map(|(_, moe)| moe.experts.bytes_per_expert() * moe.experts_per_token() as u64)
            .sum();
        head + row + vector(&self.norm) + per_layer + layers + experts
    }

    /// Parameters in all, and those one token uses.
    pub fn parameters(&self) -> (u64, u64) {
        let linear = |l: &LinearSpec| -> u64 {
            l.slices.iter().map(|s| (s.out_features * s.in_features) as u64).sum()
        };
        let (mut all, mut active) = (0, 0);
        all += linear(&self.embed) + self.head.as_ref().map_or(0, linear);
        active += linear(self.head.as_ref().unwrap_or(&self.embed));
        if let Some(per_layer) = &self.per_layer {
            // Of the table a token uses a row.
            all += linear(&per_layer.table) + linear(&per_layer.projection);
            active += linear(&per_layer.projection);
        }
        for layer in &self.layers {
            let dense: u64 = layer.linears().iter().map(|l| linear(l)).sum();
            all += dense;
            active += dense;
            if let FeedForwardSpec::Moe(moe) = &layer.feed_forward {
                let expert = 3 * (self.hidden * moe.intermediate) as u64;
                all += expert * moe.experts.experts() as u64;
                active += expert * moe.experts_per_token() as u64;
            }
        }
        (all, active)
    }

    /// Floats of activations one row needs at most, for the arena: the residual stream, and the tensors
    /// that live together in the widest half of a layer.
    pub fn activation_floats(&self) -> usize {
        let layer = |layer: &LayerSpec| layer.activation_floats(self.hidden);
        // The per-layer embedding is there throughout; while it is made, once more.
        let embedding = self.per_layer.as_ref().map_or(0, |p| p.projection.rows());
        let widest = self.layers.iter().map(layer).max().unwrap_or(0).max(embedding);
        // In addition: the stream itself, the normed input and the output; each tensor starts on a line.
        embedding + widest + residual::width(self.hidden) + 2 * self.hidden + 16 * 16
    }

    /// Bytes of quantized copies of the activations that one row needs at most.
    pub fn quantized_bytes(&self) -> usize {
        let per_layer = self.per_layer.iter().map(|per_layer| &per_layer.projection);
        let inputs = self.layers.iter().flat_map(LayerSpec::linears).chain(per_layer);
        let widest = inputs.map(|linear| linear.slices[0].in_features).max().unwrap_or(0);
        // Integers, two planes of bytes in two orders, scales and sums: six and a half bytes a value; tiles
        // take two and a half. One copy for projections, one for experts.
        9 * widest + 9 * self.hidden
    }
}

impl LayerSpec {
    /// Its weight matrices, routed experts excepted.
    pub fn linears(&self) -> Vec<&LinearSpec> {
        let mut all = match &self.mixer {
            MixerSpec::Attention(a) => {
                let (k, v) = a.kv.linears();
                [Some(&a.q), k, v, Some(&a.o)].into_iter().flatten().collect()
            }
            MixerSpec::Delta(d) => vec![&d.qkv, &d.z, &d.b, &d.a, &d.out],
        };
        match &self.feed_forward {
            FeedForwardSpec::Dense(dense) => all.extend(dense.linears()),
            FeedForwardSpec::Moe(moe) => {
                all.push(&moe.router);
                all.extend(moe.parallel_dense.iter().flat_map(|parallel| parallel.dense.linears()));
                if let Some(shared) = &moe.shared {
                    all.extend([&shared.gate, &shared.up, &shared.down]);
                    all.extend(&shared.router);
                }
            }
        }
        all.extend(self.per_layer.iter().flat_map(|p| [&p.gate, &p.projection]));
        all
    }

    /// Its vectors: norms, scales and the like.
    fn vectors(&self) -> Vec<&VectorSpec> {
        let mut all = vec![&self.input_norm, &self.post_norm];
        match &self.mixer {
            MixerSpec::Attention(a) => {
                all.extend(&a.q_norm);
                if let KeyValueSpec::Own { k_norm, .. } = &a.kv {
                    all.extend(k_norm);
                }
            }
            MixerSpec::Delta(d) => all.extend([&d.conv, &d.a_log, &d.dt_bias, &d.norm]),
        }
        if let FeedForwardSpec::Moe(moe) = &self.feed_forward {
            all.extend(&moe.expert_scale);
            all.extend(&moe.choice_bias);
            all.extend(moe.parallel_dense.iter().flat_map(|parallel| {
                let ParallelDenseSpec {
                    dense_norm,
                    router_norm,
                    expert_input_norm,
                    expert_norm,
                    ..
                } = parallel;
                [dense_norm, router_norm, expert_input_norm, expert_norm]
            }));
        }
        all.extend(self.output_norms.iter().flat_map(|norms| [&norms.mixer, &norms.feed_forward]));
        all.extend(self.per_layer.iter().map(|per_layer| &per_layer.norm));
        all.extend(&self.scalar);
        all
    }

    /// Floats of one row that live together in its wider half, without the stream, its norm and the output.
    pub(crate) fn activation_floats(&self, hidden: usize) -> usize {
        let mixer = match &self.mixer {
            MixerSpec::Attention(a) => {
                let (q, inner) = (a.q.rows(), a.shape.heads * a.shape.v_dim);
                // Queries and gates are split; heads come out, and again times their gates.
                let split = if a.gated { q + inner } else { 0 };
                let (k, v) = a.kv.linears();
                let k = k.map_or(0, LinearSpec::rows);
                q + k + v.map_or(k, LinearSpec::rows) + split + inner
            }
            MixerSpec::Delta(d) => {
                let projected = d.qkv.rows() + d.z.rows() + d.a.rows() + d.b.rows();
                // The output, the convolved input with the gates, the normed output.
                projected + 2 * d.z.rows() + d.qkv.rows() + 2 * d.shape.value_heads
            }
        };
        let feed_forward = match &self.feed_forward {
            FeedForwardSpec::Moe(moe) => {
                let own = moe.router.rows() + 1 + (moe.experts_per_token() + 1) * hidden;
                // The dense layer with its output, the router's input and the experts'.
                let parallel = |parallel: &ParallelDenseSpec| {
                    own + parallel.dense.activation_floats() + 3 * hidden
                };
                moe.parallel_dense.as_ref().map_or(own, parallel)
            }
            FeedForwardSpec::Dense(dense) => dense.activation_floats(),
        };
        let per_layer = self.per_layer.as_ref().map_or(0, |p| 3 * p.gate.rows());
        mixer.max(feed_forward).max(per_layer)
    }

    /// Bytes of all but the routed experts.
    pub fn resident_bytes(&self) -> u64 {
        let linears: u64 = self.linears().iter().map(|l| l.bytes()).sum();
        linears + self.vectors().into_iter().map(vector).sum::<u64>()
    }
}

impl AttentionSpec {
    /// What the layer keeps of a sequence.
    pub(crate) fn layer_kind(&self, codes: &[KvCode]) -> LayerKind {
        if let KeyValueSpec::Shared { layer } = self.kv {
            return LayerKind::Shared(layer);
        }
        let group = |format, window| PageGroup { pages: self.shape.pages(format), window, rate: 1 };
        let pages = codes.iter().map(|code| LayerPages {
            keys: group(code.all, self.shape.window),
            recent: code.recent.map(|(positions, format)| group(format, Some(positions))),
            others: Vec::new(),
        });
        LayerKind::Own { pages: pages.collect(), floats: 0 }
    }
}

impl KeyValueSpec {
    /// The projections of keys and of values, as far as there are such.
    pub fn linears(&self) -> (Option<&LinearSpec>, Option<&LinearSpec>) {
        match self {
            KeyValueSpec::Own { k, v, .. } => (Some(k), v.as_ref()),
            KeyValueSpec::Shared { .. } => (None, None),
        }
    }
}

impl DenseSpec {
    fn linears(&self) -> [&LinearSpec; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// Gate, up, and what they make.
    fn activation_floats(&self) -> usize {
        3 * self.gate.rows()
    }
}

impl PerLayerSpec {
    /// Bytes of the table's row of a token.
    pub fn row_bytes(&self) -> u64 {
        self.table.bytes() / self.table.rows().max(1) as u64
    }

    /// Bytes that every token reads, its row of the table excepted.
    fn every_token(&self) -> u64 {
        self.projection.bytes() + vector(&self.norm)
    }
}

/// Every layer keeps keys and values once, in this format.
pub fn in_format(format: KvFormat) -> impl Fn(usize) -> Vec<KvCode> {
    move |_| vec![KvCode::plain(format)]
}

/// Vectors are kept as f32.
pub(crate) fn vector(spec: &VectorSpec) -> u64 {
    spec.tensor.elements() as u64 * 4
}
