//! The seam between models and backends: the list of operations.
//!
//! A model's forward pass calls these on a step, top to bottom; tensors are handles into the
//! backend's activation arena. On the CPU an operation runs at once; another backend may queue it and run all
//! of a step in one submit. Model code never sees a pointer, an expert id or a thread.

use std::ops::Range;
use std::sync::Arc;

use format::Encoding;

use crate::memory::{
    KvArena, KvFormat, PageId, PageShape, Plane, PlaneOrder, RecurrentArena, SlotId,
};
use crate::{Error, ExpertBank, Features, Norm, Result, Rope, Tape, Vector, Weight};

/// A matrix of f32 activations, [rows, cols], in the arena of the step that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Tensor {
    /// Rows: one for each token of the batch, unless rows were selected.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn cols(self) -> usize {
        self.cols
    }
}

/// A place in the arena to go back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark(pub(crate) usize);

/// The experts chosen for each row. Model code hands it on and cannot look inside.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    pub(crate) experts_per_row: usize,
}

/// The blocks chosen for each row and head of keys. Model code hands it on and cannot look inside.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    pub(crate) rows: usize,
    pub(crate) kv_heads: usize,
}

/// A weight with its optional bias.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`
    pub weight: Weight,
    /// `[out]`
    pub bias: Option<Vector>,
}

impl Linear {
    /// Bytes read when it is applied once.
    pub fn bytes(&self) -> usize {
        self.weight.bytes() + self.bias.as_ref().map_or(0, Vector::bytes)
    }
}

/// Rows of a weight that belong to heads: those of head `h` are `count` from row `h * stride + first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRows {
    /// How many heads there are.
    pub heads: usize,
    /// From the rows of one head to those of the next.
    pub stride: usize,
    /// The first row of a head.
    pub first: usize,
    /// Rows of a head.
    pub count: usize,
}

/// A table whose rows are brought when they are wanted.
pub trait RowSource: Send + Sync + std::fmt::Debug {
    /// How many there are.
    fn rows(&self) -> usize;
    /// Values in each.
    fn cols(&self) -> usize;
    /// How they are coded.
    fn encoding(&self) -> Encoding;
    /// Codes, scales and biases of a row, one after another.
    fn read(&self, row: usize, out: &mut [u8]) -> Result<()>;
}

/// Rows of one sequence in a batch and the pages that hold (or will hold) its keys and values.
#[derive(Clone, Copy, Debug)]
pub struct KvRun<'a> {
    /// First row of the run in the batch.
    pub row: usize,
    /// Rows in the run; their positions are consecutive.
    pub count: usize,
    /// Position of the first row.
    pub position: usize,
    /// Where its keys and values are.
    pub pages: PageTable<'a>,
    /// Where the newest of them are once more.
    pub recent: Option<RecentPages<'a>>,
}

/// Pages with the newest positions of a sequence, which it keeps in other pages too: there perhaps compressed.
///
/// A row looks here for the blocks that hold any of the last `positions` keys it sees, and to the other pages for earlier
/// ones. So what a row looks at follows from its own position alone.
#[derive(Clone, Copy, Debug)]
pub struct RecentPages<'a> {
    /// Where they are.
    pub pages: PageTable<'a>,
    /// Keys that a row finds here at least, its own included.
    pub positions: usize,
}

/// Pages of one sequence in one layer.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    /// Index of the arena that they are in.
    pub arena: usize,
    /// Which of the arena's shapes they have.
    pub shape: usize,
    /// Page `i` holds block `first_block + i` of 64 positions.
    pub pages: &'a [PageId],
    /// Not zero where a window has left the oldest pages behind.
    pub first_block: usize,
}

impl PageTable<'_> {
    /// The page of a block, if it is still there.
    #[inline(always)]
    pub fn page(&self, block: usize) -> Option<PageId> {
        self.pages.get(block.checked_sub(self.first_block)?).copied()
    }
}

/// Rows of one sequence in a batch and the slot of its recurrent state.
#[derive(Clone, Copy, Debug)]
pub struct StateRun {
    /// First row of the run in the batch.
    pub row: usize,
    /// Rows in the run.
    pub count: usize,
    /// Read, and updated in place unless the run is a trial.
    pub slot: SlotId,
    /// The rows may turn out to be wrong: the state stays as it is, until [`Step::replay`].
    pub is_trial: bool,
}

/// What varies between attention layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Dimensions of a query and of a key.
    pub k_dim: usize,
    /// Dimensions of a value, and of what a head gives.
    pub v_dim: usize,
    /// Whether a value is the first part of its key, and not kept besides.
    pub values_in_keys: bool,
    /// What scores are multiplied with.
    pub scale: f32,
    /// Keys a row looks at, its own included; all if `None`.
    pub window: Option<usize>,
    /// Whether every row of a run sees all keys of the run, those after its own included: a block that is
    /// drafted at once. The result of such a row depends on how long its run is, of any other row it does not.
    pub is_bidirectional: bool,
}

impl AttentionShape {
    /// Causal attention over everything, with the usual scale.
    pub fn new(heads: usize, kv_heads: usize, k_dim: usize, v_dim: usize) -> AttentionShape {
        AttentionShape {
            heads,
            kv_heads,
            k_dim,
            v_dim,
            values_in_keys: false,
            scale: 1.0 / (k_dim as f32).sqrt(),
            window: None,
            is_bidirectional: false,
        }
    }

    /// Query heads that a key head serves.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Dimensions of a head in each plane of the layer's pages: keys, then values unless they are in the keys.
    pub fn plane_widths(&self) -> impl Iterator<Item = usize> {
        let values = (!self.values_in_keys).then_some(self.v_dim);
        std::iter::once(self.k_dim).chain(values)
    }

    /// What a page of the layer holds.
    pub fn pages(&self, format: KvFormat) -> PageShape {
        let orders = [PlaneOrder::Columns, PlaneOrder::Panels];
        let planes = self.plane_widths().zip(orders);
        let plane = |(width, order)| Plane { heads: self.kv_heads, width, order, format };
        PageShape::new(planes.map(plane).collect())
    }
}

/// The numbers of a gated delta net layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; each key head serves `value_heads / key_heads` of them.
    pub value_heads: usize,
    /// Dimensions of a key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub taps: usize,
    /// Whether value head `j` has key head `j mod key_heads`, and not `j / (value_heads / key_heads)`.
    pub is_tiled: bool,
}

/// What a gated delta net layer is made of, besides its projections.
#[derive(Clone, Debug)]
pub struct DeltaLayer {
    /// Its numbers.
    pub shape: DeltaShape,
    /// `[taps, channels]`
    pub conv_weight: Vector,
    /// `[value_heads]`: `-exp(A_log)`.
    pub decay: Vector,
    /// `[value_heads]`
    pub dt_bias: Vector,
}

impl DeltaShape {
    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// The key head of a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.is_tiled {
            true => value_head % self.key_heads,
            false => value_head / (self.value_heads / self.key_heads),
        }
    }

    /// Values of a row of the output.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Floats of the matrix state, [value_heads, key_dim, value_dim].
    pub fn matrix_floats(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Floats of everything a sequence remembers in this layer: the matrices, then the raw
    /// inputs of the last `taps - 1` rows.
    pub fn state_floats(&self) -> usize {
        self.matrix_floats() + (self.taps - 1) * self.channels()
    }
}

/// How a router's logits become a choice of experts and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterShape {
    /// Experts chosen for each row.
    pub experts_per_row: usize,
    /// What a logit says of its expert.
    pub score: Score,
    /// Only experts of the best groups are chosen, if there are groups.
    pub groups: Option<ExpertGroups>,
    /// Whether weights are divided by their sum, and what is added to it.
    pub renormalize: Option<f32>,
    /// What weights are multiplied with.
    pub scale: f32,
}

/// What a logit says of its expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Its share in a softmax over all experts.
    Softmax,
    /// `sigmoid(logit)`
    Sigmoid,
    /// `sqrt(softplus(logit))`
    SqrtSoftplus,
}

/// Equal groups of consecutive experts. A group is as good as its two best experts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many there are.
    pub count: usize,
    /// From how many of them experts are chosen.
    pub chosen: usize,
}

impl RouterShape {
    /// A softmax over the logits of the chosen.
    pub fn softmax_of_chosen(experts_per_row: usize) -> RouterShape {
        let renormalize = Some(0.0);
        RouterShape {
            experts_per_row,
            score: Score::Softmax,
            groups: None,
            renormalize,
            scale: 1.0,
        }
    }
}

/// How the gate and the up projection meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`
    SwiGlu,
    /// `gelu_tanh(gate) · up`
    GeGlu,
    /// gpt-oss: both clamped, `gate · sigmoid(1.702 gate) · (up + 1)`.
    ClampedSwiGlu {
        /// The clamp, 7 in the published models.
        limit: f32,
    },
}

/// An expert that every token uses, scaled by `sigmoid(gate)` if there is one.
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert<'a> {
    /// `[intermediate, hidden]`
    pub gate_proj: &'a Weight,
    /// `[intermediate, hidden]`
    pub up_proj: &'a Weight,
    /// `[hidden, intermediate]`
    pub down_proj: &'a Weight,
    /// One logit a row.
    pub gate: Option<Tensor>,
}

/// The operations. Results are new tensors unless the name says otherwise.
pub trait Step {
    /// Where the arena stands.
    fn mark(&self) -> Mark;
    /// Gives back every tensor made since the mark.
    fn release(&mut self, mark: Mark);

    /// Says which rows are drafted and may turn out to be wrong: for each row of the batch 0 if it is
    /// certain, else its place among the drafted rows of its sequence, from 1; nothing if there are none.
    /// For the rest of the step, which may have 64 rows at most then. No value depends on it.
    fn set_trials(&mut self, depths: &[u8]);

    /// Rows of the embedding table times `scale`.
    fn embed(&mut self, table: &Weight, tokens: &[u32], scale: f32) -> Tensor;
    /// Rows of a table that is not in memory, times `scale`. A row that could not be brought goes on with zeros;
    /// [`Step::failures`] tells.
    fn fetch(&mut self, source: &dyn RowSource, rows: &[usize], scale: f32) -> Tensor;
    /// Rows of values from outside, `[values.len() / cols, cols]`.
    fn upload(&mut self, values: &[f32], cols: usize) -> Tensor;
    /// Rows that an earlier step retained, all of one width.
    fn bring(&mut self, rows: &Features) -> Tensor;
    /// Keeps rows beyond the step, for each range of them on its own: the parts side by side.
    fn retain(&mut self, parts: &[Tensor], rows: &[Range<usize>]) -> Vec<Features>;
    /// Rows side by side, in order: `[rows, sum of cols]`.
    fn concat(&mut self, parts: &[Tensor]) -> Tensor;
    /// RMS norm of each row.
    fn norm(&mut self, x: Tensor, norm: &Norm) -> Tensor;
    /// RMS norm of each head, in place.
    fn head_norm(&mut self, x: Tensor, norm: &Norm);
    /// Rotates each head by its row's position, in place.
    fn rope(&mut self, x: Tensor, head_dim: usize, rope: &Rope, positions: &[u32]);
    /// `x · wᵀ + bias` for several weights at once.
    fn matmul(&mut self, x: Tensor, weights: &[&Linear]) -> Vec<Tensor>;
    /// For each head `x · w`, where `w` is the head's rows of the weight: [rows, heads · columns of the weight].
    fn matmul_transposed(&mut self, x: Tensor, weight: &Weight, heads: &HeadRows) -> Tensor;
    /// `into += x`
    fn add(&mut self, into: Tensor, x: Tensor);
    /// `x *= factor`
    fn scale(&mut self, x: Tensor, factor: f32);
    /// `x = cap · tanh(x / cap)`, in place.
    fn softcap(&mut self, x: Tensor, cap: f32);
    /// Some columns of every row, heads of `stride` apart: [rows, heads · width].
    fn columns(&mut self, x: Tensor, start: usize, width: usize, stride: usize) -> Tensor;
    /// The activation of a gated feed-forward layer.
    fn glu(&mut self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor;
    /// `x ⊙ sigmoid(gate)`
    fn sigmoid_gate(&mut self, x: Tensor, gate: Tensor) -> Tensor;
    /// Appends rows to the sequences' pages, a tensor for each plane of the layer, and looks at none of them. Positions
    /// before a table's first page are left out.
    fn store(&mut self, planes: &[Tensor], arenas: &mut [KvArena], runs: &[KvRun<'_>]);
    /// Chooses at most `most` blocks of 64 positions for each row and head of keys: those with the largest scores, of equal
    /// ones the earlier; the row's own block always. `scores` has, for each head, a column for each block from the first;
    /// a row chooses among the blocks up to its own.
    fn choose_blocks(
        &mut self,
        scores: Tensor,
        positions: &[u32],
        kv_heads: usize,
        most: usize,
    ) -> Selection;
    /// Attends over what is in the sequences' pages, the rows' own keys and values included: over all that a row sees, or
    /// of that the blocks of the last selection. `sinks` has a logit for each head that takes part in the softmax and adds
    /// nothing.
    fn attend(
        &mut self,
        q: Tensor,
        arenas: &mut [KvArena],
        runs: &[KvRun<'_>],
        shape: &AttentionShape,
        selection: Option<Selection>,
        sinks: Option<&Vector>,
    ) -> Tensor;
    /// Convolution, gates and the delta rule: `qkv` [rows, channels], `a` and `b` [rows, value heads].
    fn delta(
        &mut self,
        qkv: Tensor,
        a: Tensor,
        b: Tensor,
        layer: &DeltaLayer,
        arena: &mut RecurrentArena,
        runs: &[StateRun],
    ) -> Tensor;
    /// Keeps what [`Step::delta`] is given for a layer.
    fn keep(&mut self, layer: usize, qkv: Tensor, a: Tensor, b: Tensor, tape: &mut Tape);
    /// Runs rows of a tape through a layer's states, which are updated; nothing comes out.
    fn replay(
        &mut self,
        index: usize,
        tape: &Tape,
        layer: &DeltaLayer,
        arena: &mut RecurrentArena,
        runs: &[StateRun],
    );
    /// RMS norm of each head, as wide as the norm's weight, times `silu(gate)`.
    fn gated_norm(&mut self, x: Tensor, gate: Tensor, norm: &Norm) -> Tensor;
    /// Chooses experts for each row of router logits. `bias` (`[experts]`) is added to scores for the choice alone; a
    /// weight is multiplied with its expert's scale, if there are scales: `[experts]`.
    fn route(
        &mut self,
        logits: Tensor,
        router: &RouterShape,
        bias: Option<&Vector>,
        expert_scale: Option<&Vector>,
    ) -> Routing;
    /// The routed experts' outputs, weighted and summed in rank order, then the shared expert's; `activation` is how
    /// gate and up meet in all of them. A row whose expert could not be brought goes on without it; [`Step::failures`] tells.
    fn moe(
        &mut self,
        layer: usize,
        x: Tensor,
        routing: Routing,
        activation: Activation,
        bank: &dyn ExpertBank,
        shared: Option<SharedExpert<'_>>,
    ) -> Tensor;
    /// Tells the bank what a routing made too early would want of a layer.
    fn expect(&mut self, layer: usize, routing: Routing, bank: &dyn ExpertBank);
    /// Some rows.
    fn select(&mut self, x: Tensor, rows: &[usize]) -> Tensor;
    /// Runs what has not run yet. More operations may follow, and another submit.
    fn submit(&mut self) -> Fence;
    /// Rows of this step whose values are worthless, once for each reason. Other rows are as if these
    /// had not been there.
    fn failures(&mut self, fence: &Fence) -> Vec<RowFailure>;
    /// The values of a tensor, once the fence that covers it has passed.
    fn read(&mut self, fence: &Fence, x: Tensor) -> &[f32];
    /// Hands each row of logits of the tasks to `f`, with the task it is of. Rows of a task come in order, on one thread;
    /// tasks run on all threads.
    fn read_logits(
        &mut self,
        fence: &Fence,
        logits: Tensor,
        tasks: &[Range<usize>],
        f: &(dyn Fn(usize, usize, RowLogits<'_>) + Sync),
    );
}

/// One row of logits, as far as it was brought to the host.
#[derive(Clone, Copy, Debug)]
pub enum RowLogits<'a> {
    /// All of it.
    All(&'a [f32]),
}

impl<'a> RowLogits<'a> {
    /// All of it.
    pub fn all(&self) -> &'a [f32] {
        match self {
            RowLogits::All(logits) => logits,
        }
    }
}

/// A row that cannot go on.
#[derive(Clone, Debug)]
pub struct RowFailure {
    /// Which row of the batch.
    pub row: usize,
    /// Why.
    pub error: Arc<Error>,
}

/// Tells that a step has run. On the CPU it has when `submit` returns.
#[derive(Debug)]
#[must_use]
pub struct Fence(pub(crate) ());
