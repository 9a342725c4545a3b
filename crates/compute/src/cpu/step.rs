//! The CPU backend: operations run at once, on the pool, over one activation arena.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use machine::cpu::Isa;

use super::arena::Arena;
use super::matmul::{self, SharedMut};
use super::moe::{self, RoutingTable, Shared};
use super::pool::Pool;
use super::rope::Turns;
use super::routing::top_k;
use super::selection::SelectedBlocks;
use super::{activation, dense, mixer, norm, rope};
use crate::bank::{Expert, ExpertBank, Trial};
use crate::kept::DeltaInputs;
use crate::memory::{KvArena, PageMemory, RecurrentArena, Rows, SlotMemory};
use crate::step::{
    Activation, AttentionShape, DeltaLayer, Fence, HeadRows, KvRun, Linear, Mark, RouterShape,
    Routing, RowFailure, RowLogits, RowSource, Selection, SharedExpert, StateRun, Step, Tensor,
};
use crate::{Features, Matrix, Norm, Result, Rope, Tape, Vector, Weight};

thread_local! {
    /// A row on its way from its source.
    static ROW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ROW_VALUES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// A CPU: its threads, its instruction set, and memory for the activations of one step.
pub struct CpuBackend {
    isa: Isa,
    pool: Pool,
    arena: Arena,
    matmul: matmul::Scratch,
    moe: moe::Scratch,
    routing: RoutingTable,
    selected: SelectedBlocks,
    failures: Vec<RowFailure>,
    partials: Vec<f32>,
    turns: Turns,
}

impl CpuBackend {
    /// `arena_floats` bounds the activations of one step; asking for more later is a bug of the plan.
    pub fn new(isa: Isa, threads: usize, arena_floats: usize) -> Result<CpuBackend> {
        Ok(CpuBackend {
            isa,
            pool: Pool::new(threads),
            arena: Arena::new(arena_floats)?,
            matmul: matmul::Scratch::default(),
            moe: moe::Scratch::default(),
            routing: RoutingTable::default(),
            selected: SelectedBlocks::default(),
            failures: Vec::new(),
            partials: Vec::new(),
            turns: Turns::default(),
        })
    }

    /// Moves to the threads and the instruction set of another, whose model takes turns with this one's.
    pub(crate) fn share_threads(&mut self, other: &CpuBackend) {
        self.isa = other.isa;
        self.pool = other.pool.clone();
    }

    /// Starts a step; the tensors of the step before are gone.
    pub fn begin(&mut self) -> CpuStep<'_> {
        self.arena.stack.clear();
        self.failures.clear();
        self.moe.depths.clear();
        CpuStep { backend: self }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.thread_count()
    }
}

/// What a recording backend needs of the CPU that runs its queue.
#[cfg(feature = "recording")]
impl CpuBackend {
    /// Goes on with the step that was begun last.
    pub(crate) fn resume(&mut self) -> CpuStep<'_> {
        CpuStep { backend: self }
    }

    /// Floats of the arena.
    pub(crate) fn arena_floats(&self) -> usize {
        self.arena.capacity()
    }

    /// The values of a tensor.
    pub(crate) fn values(&mut self, x: Tensor) -> &[f32] {
        self.resume().view(x).read()
    }
}

/// A step on the CPU.
pub struct CpuStep<'a> {
    backend: &'a mut CpuBackend,
}

/// A tensor's values. Tensors of a step do not overlap, so one may be written while others are read.
#[derive(Clone, Copy)]
struct View<'a> {
    start: *mut f32,
    len: usize,
    arena: PhantomData<&'a [f32]>,
}

impl<'a> View<'a> {
    fn read(self) -> &'a [f32] {
        // SAFETY: inside the arena (checked when the tensor was made), which outlives the step; the
        // operation that holds this writes other tensors only.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    #[allow(clippy::mut_from_ref, reason = "the tensor is not borrowed elsewhere in the operation")]
    fn write(self) -> &'a mut [f32] {
        // SAFETY: as in `read`, and each operation takes one such slice of a tensor.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl CpuStep<'_> {
    fn new_tensor(&mut self, rows: usize, cols: usize) -> Tensor {
        Tensor { start: self.backend.arena.stack.take(rows * cols), rows, cols }
    }

    fn view<'v>(&self, x: Tensor) -> View<'v> {
        // The arena is never moved while a step lives; writing through it is exclusive because the step holds the backend
        // mutably.
        let len = x.rows * x.cols;
        View { start: self.backend.arena.at(x.start, len), len, arena: PhantomData }
    }

    /// Rows `[qkv, a, b]` through the delta rule, results to `out`.
    fn run_delta(
        &mut self,
        [qkv, a, b]: [&[f32]; 3],
        layer: &DeltaLayer,
        arena: &SlotMemory,
        runs: &[StateRun],
        out: &mut [f32],
    ) {
        let mark = self.mark();
        let shape = &layer.shape;
        let rows = qkv.len() / shape.channels();
        let convolved = self.new_tensor(rows, shape.channels());
        let alpha = self.new_tensor(rows, shape.value_heads);
        let beta = self.new_tensor(rows, shape.value_heads);
        let mut buffers = mixer::DeltaBuffers {
            convolved: self.view(convolved).write(),
            alpha: self.view(alpha).write(),
            beta: self.view(beta).write(),
        };
        let CpuBackend { isa, pool, .. } = &mut *self.backend;
        mixer::delta(*isa, pool, qkv, a, b, layer, arena, runs, &mut buffers, out);
        self.release(mark);
    }

    /// Runs `f` for each row, on all threads if there are many.
    fn each_row(&mut self, rows: usize, f: impl Fn(usize) + Sync) {
        if rows < 8 {
            (0..rows).for_each(f);
        } else {
            let tasks = rows.div_ceil(4);
            self.backend.pool.run_near(tasks, &|task| {
                (task * 4..rows.min(task * 4 + 4)).for_each(&f);
            });
        }
    }

    /// A new [rows, cols] tensor whose rows `f` fills.
    fn fill_rows(
        &mut self,
        rows: usize,
        cols: usize,
        f: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Tensor {
        let out = self.new_tensor(rows, cols);
        self.update_rows(out, f);
        out
    }

    /// Lets `f` change each row of a tensor.
    fn update_rows(&mut self, x: Tensor, f: impl Fn(usize, &mut [f32]) + Sync) {
        let start = SharedMut(self.view(x).start);
        self.each_row(x.rows, |row| {
            // SAFETY: each row is given to one task.
            f(row, unsafe { std::slice::from_raw_parts_mut(start.at(row * x.cols), x.cols) });
        });
    }
}

impl Step for CpuStep<'_> {
    fn mark(&self) -> Mark {
        Mark(self.backend.arena.stack.mark())
    }

    fn release(&mut self, mark: Mark) {
        self.backend.arena.stack.release(mark.0);
    }

    fn set_trials(&mut self, depths: &[u8]) {
        let most = Trial::MOST_ROWS;
        assert!(depths.len() <= most, "{} rows with drafted ones, of {most}", depths.len());
        self.backend.moe.depths.clear();
        // Certain rows alone are a plain step.
        if depths.iter().any(|&depth| depth > 0) {
            self.backend.moe.depths.extend_from_slice(depths);
        }
    }

    fn embed(&mut self, table: &Weight, tokens: &[u32], scale: f32) -> Tensor {
        let (isa, view) = (self.backend.isa, table.view());
        self.fill_rows(tokens.len(), view.cols, |row, out| {
            dense::dequantize_row(isa, &view, tokens[row] as usize, out);
            let scale = scale * view.factor;
            if scale != 1.0 {
                activation::scale_assign(isa, out, scale);
            }
        })
    }

    fn fetch(&mut self, source: &dyn RowSource, rows: &[usize], scale: f32) -> Tensor {
        let isa = self.backend.isa;
        let (cols, encoding) = (source.cols(), source.encoding());
        let failed = Mutex::new(Vec::new());
        let out = self.fill_rows(rows.len(), cols, |index, out| {
            ROW.with_borrow_mut(|bytes| {
                bytes.resize(encoding.matrix_bytes(1, cols), 0);
                if let Err(error) = source.read(rows[index], bytes) {
                    out.fill(0.0);
                    let failure = RowFailure { row: index, error: Arc::new(error) };
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                    return;
                }
                let (codes, rest) = bytes.split_at(encoding.row_bytes(cols));
                let (scales, biases) = rest.split_at(encoding.scale_bytes(cols));
                let row = Matrix { rows: 1, cols, encoding, factor: 1.0, codes, scales, biases };
                dense::dequantize_row(isa, &row, 0, out);
                activation::scale_assign(isa, out, scale);
            });
        });
        let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.sort_by_key(|failure| failure.row);
        self.backend.failures.extend(failed);
        out
    }

    fn upload(&mut self, values: &[f32], cols: usize) -> Tensor {
        assert!(values.len().is_multiple_of(cols), "{} values in rows of {cols}", values.len());
        let out = self.new_tensor(values.len() / cols, cols);
        self.view(out).write().copy_from_slice(values);
        out
    }

    fn bring(&mut self, rows: &Features) -> Tensor {
        let out = self.new_tensor(rows.rows(), rows.width());
        rows.copy_to(self.view(out).write());
        out
    }

    fn retain(&mut self, parts: &[Tensor], rows: &[Range<usize>]) -> Vec<Features> {
        let width = parts.iter().map(|part| part.cols).sum();
        let keep = |rows: &Range<usize>| {
            let mut values = Vec::with_capacity(rows.len() * width);
            for row in rows.clone() {
                for &part in parts {
                    values
                        .extend_from_slice(&self.view(part).read()[row * part.cols..][..part.cols]);
                }
            }
            Features::from_values(values, width)
        };
        rows.iter().map(keep).collect()
    }

    fn concat(&mut self, parts: &[Tensor]) -> Tensor {
        let rows = parts.first().map_or(0, |part| part.rows);
        assert!(parts.iter().all(|part| part.rows == rows), "tensors of different rows");
        let views: Vec<(&[f32], usize)> =
            parts.iter().map(|&part| (self.view(part).read(), part.cols)).collect();
        self.fill_rows(rows, parts.iter().map(|part| part.cols).sum(), |row, out| {
            let mut at = 0;
            for &(from, cols) in &views {
                out[at..at + cols].copy_from_slice(&from[row * cols..][..cols]);
                at += cols;
            }
        })
    }

    fn norm(&mut self, x: Tensor, norm: &Norm) -> Tensor {
        let (isa, from) = (self.backend.isa, self.view(x).read());
        let (weight, eps) = (norm.weight.values(), norm.eps);
        self.fill_rows(x.rows, x.cols, |row, out| {
            norm::rms_norm(isa, &from[row * x.cols..][..x.cols], weight, eps, out);
        })
    }

    fn head_norm(&mut self, x: Tensor, norm: &Norm) {
        let isa = self.backend.isa;
        let (weight, eps) = (norm.weight.values(), norm.eps);
        self.update_rows(x, |_, row| norm::rms_norm_in_place(isa, row, weight, eps));
    }

    fn rope(&mut self, x: Tensor, head_dim: usize, rope: &Rope, positions: &[u32]) {
        let isa = self.backend.isa;
        let mut turns = std::mem::take(&mut self.backend.turns);
        let table = turns.of(rope, positions);
        self.update_rows(x, |row, values| {
            let table = &table[row * rope.rotary_dim..][..rope.rotary_dim];
            rope::rotate(isa, values, head_dim, rope, table);
        });
        self.backend.turns = turns;
    }

    fn matmul(&mut self, x: Tensor, weights: &[&Linear]) -> Vec<Tensor> {
        let out: Vec<Tensor> =
            weights.iter().map(|w| self.new_tensor(x.rows, w.weight.rows())).collect();
        let starts: Vec<*mut f32> = out.iter().map(|&t| self.view(t).start).collect();
        let from = self.view(x).read();
        let backend = &mut *self.backend;
        matmul::multiply(
            backend.isa,
            &mut backend.pool,
            &mut backend.matmul,
            from,
            x.rows,
            weights,
            &starts,
        );
        out
    }

    fn matmul_transposed(&mut self, x: Tensor, weight: &Weight, heads: &HeadRows) -> Tensor {
        let view = weight.view();
        assert_eq!(x.cols, heads.heads * heads.count, "values of other heads");
        assert!((heads.heads - 1) * heads.stride + heads.first + heads.count <= view.rows);
        let out = self.new_tensor(x.rows, heads.heads * view.cols);
        let (isa, cols, from) = (self.backend.isa, view.cols, self.view(x).read());
        let to = SharedMut(self.view(out).start);
        let head = |head: usize| {
            // SAFETY: a task has columns of its own in each row.
            let sum_of = |row: usize| unsafe {
                let start = to.at(row * out.cols + head * cols);
                std::slice::from_raw_parts_mut(start, cols)
            };
            (0..x.rows).for_each(|row| sum_of(row).fill(0.0));
            ROW_VALUES.with_borrow_mut(|values| {
                values.resize(cols, 0.0);
                for i in 0..heads.count {
                    let row = head * heads.stride + heads.first + i;
                    dense::dequantize_row(isa, &view, row, values);
                    for row in 0..x.rows {
                        let factor = from[row * x.cols + head * heads.count + i] * view.factor;
                        activation::scale_add(isa, sum_of(row), values, factor);
                    }
                }
            });
        };
        self.backend.pool.run(heads.heads, &head);
        out
    }

    fn add(&mut self, into: Tensor, x: Tensor) {
        let (isa, from) = (self.backend.isa, self.view(x).read());
        self.update_rows(into, |row, out| {
            activation::add_assign(isa, out, &from[row * x.cols..][..x.cols]);
        });
    }

    fn scale(&mut self, x: Tensor, factor: f32) {
        let isa = self.backend.isa;
        self.update_rows(x, |_, row| activation::scale_assign(isa, row, factor));
    }

    fn softcap(&mut self, x: Tensor, cap: f32) {
        let isa = self.backend.isa;
        self.update_rows(x, |_, row| activation::softcap_assign(isa, row, cap));
    }

    fn columns(&mut self, x: Tensor, start: usize, width: usize, stride: usize) -> Tensor {
        let from = self.view(x).read();
        self.fill_rows(x.rows, x.cols / stride * width, |row, out| {
            let from = &from[row * x.cols..][..x.cols];
            for (out, head) in out.chunks_exact_mut(width).zip(from.chunks_exact(stride)) {
                out.copy_from_slice(&head[start..start + width]);
            }
        })
    }

    fn glu(&mut self, gate: Tensor, up: Tensor, kind: Activation) -> Tensor {
        let isa = self.backend.isa;
        let (g, u) = (self.view(gate).read(), self.view(up).read());
        self.fill_rows(gate.rows, gate.cols, |row, out| {
            let at = row * gate.cols..(row + 1) * gate.cols;
            moe::glu(isa, kind, &g[at.clone()], &u[at], out);
        })
    }

    fn sigmoid_gate(&mut self, x: Tensor, gate: Tensor) -> Tensor {
        let isa = self.backend.isa;
        let (from, gates) = (self.view(x).read(), self.view(gate).read());
        self.fill_rows(x.rows, x.cols, |row, out| {
            let at = row * x.cols..(row + 1) * x.cols;
            activation::sigmoid_mul(isa, &from[at.clone()], &gates[at], out);
        })
    }

    fn store(&mut self, planes: &[Tensor], arenas: &mut [KvArena], runs: &[KvRun<'_>]) {
        let rows = |plane: &Tensor| Rows::new(self.view(*plane).read(), plane.cols, plane.cols);
        let rows: Vec<Rows<'_>> = planes.iter().map(rows).collect();
        mixer::store(&mut self.backend.pool, &rows, &settled(arenas), runs);
    }

    fn choose_blocks(
        &mut self,
        scores: Tensor,
        positions: &[u32],
        kv_heads: usize,
        most: usize,
    ) -> Selection {
        assert_eq!(scores.rows, positions.len(), "a position for each row");
        let values = self.view(scores).read();
        self.backend.selected.choose(values, scores.cols, positions, kv_heads, most);
        Selection { rows: scores.rows, kv_heads }
    }

    fn attend(
        &mut self,
        q: Tensor,
        arenas: &mut [KvArena],
        runs: &[KvRun<'_>],
        shape: &AttentionShape,
        selection: Option<Selection>,
        sinks: Option<&Vector>,
    ) -> Tensor {
        assert_eq!(q.cols, shape.heads * shape.k_dim, "queries of another shape");
        let out = self.new_tensor(q.rows, shape.heads * shape.v_dim);
        let (q, to) = (self.view(q).read(), self.view(out).write());
        let backend = &mut *self.backend;
        let (partials, sinks) = (&mut backend.partials, sinks.map(Vector::values));
        let (isa, pool, pages) = (backend.isa, &mut backend.pool, settled(arenas));
        let selected = selection.map(|of| backend.selected.check(of.rows, of.kv_heads));
        mixer::attend(isa, pool, partials, q, &pages, runs, shape, selected, sinks, to);
        out
    }

    fn delta(
        &mut self,
        qkv: Tensor,
        a: Tensor,
        b: Tensor,
        layer: &DeltaLayer,
        arena: &mut RecurrentArena,
        runs: &[StateRun],
    ) -> Tensor {
        let out = self.new_tensor(qkv.rows, layer.shape.values());
        let inputs = [qkv, a, b].map(|x| self.view(x).read());
        let to = self.view(out).write();
        self.run_delta(inputs, layer, arena.settled(), runs, to);
        out
    }

    fn keep(&mut self, layer: usize, qkv: Tensor, a: Tensor, b: Tensor, tape: &mut Tape) {
        let inputs = tape.host_mut().layer_mut(layer);
        let parts = [(qkv, &mut inputs.qkv), (a, &mut inputs.a), (b, &mut inputs.b)];
        for (x, kept) in parts {
            kept.clear();
            kept.extend_from_slice(self.view(x).read());
        }
    }

    fn replay(
        &mut self,
        index: usize,
        tape: &Tape,
        layer: &DeltaLayer,
        arena: &mut RecurrentArena,
        runs: &[StateRun],
    ) {
        let DeltaInputs { qkv, a, b } = tape.host().layer(index);
        let rows = qkv.len() / layer.shape.channels();
        let mark = self.mark();
        let out = self.new_tensor(rows, layer.shape.values());
        let to = self.view(out).write();
        self.run_delta([qkv, a, b], layer, arena.settled(), runs, to);
        self.release(mark);
    }

    fn gated_norm(&mut self, x: Tensor, gate: Tensor, norm: &Norm) -> Tensor {
        let isa = self.backend.isa;
        let (weight, eps) = (norm.weight.values(), norm.eps);
        let (from, gates) = (self.view(x).read(), self.view(gate).read());
        let width = weight.len();
        self.fill_rows(x.rows, x.cols, |row, out| {
            let at = row * x.cols..(row + 1) * x.cols;
            let heads = from[at.clone()].chunks_exact(width).zip(gates[at].chunks_exact(width));
            for ((x, gate), out) in heads.zip(out.chunks_exact_mut(width)) {
                norm::rms_norm_gated(isa, x, gate, weight, eps, out);
            }
        })
    }

    fn route(
        &mut self,
        logits: Tensor,
        router: &RouterShape,
        bias: Option<&Vector>,
        expert_scale: Option<&Vector>,
    ) -> Routing {
        let experts_per_row = router.experts_per_row;
        let bias = bias.map(Vector::values);
        let expert_scale = expert_scale.map(Vector::values);
        let from = self.view(logits).read();
        let isa = self.backend.isa;
        let pairs = logits.rows * experts_per_row;
        let mut table = std::mem::take(&mut self.backend.routing);
        table.ids.resize(pairs, 0);
        table.weights.resize(pairs, 0.0);
        let (ids, weights) =
            (SharedMut(table.ids.as_mut_ptr()), SharedMut(table.weights.as_mut_ptr()));
        self.each_row(logits.rows, |row| {
            let at = row * experts_per_row;
            // SAFETY: each row has its own part of the table.
            let (ids, weights) = unsafe {
                (
                    std::slice::from_raw_parts_mut(ids.at(at), experts_per_row),
                    std::slice::from_raw_parts_mut(weights.at(at), experts_per_row),
                )
            };
            top_k(isa, &from[row * logits.cols..][..logits.cols], router, bias, ids, weights);
            if let Some(scale) = expert_scale {
                ids.iter().zip(weights).for_each(|(&id, weight)| *weight *= scale[id as usize]);
            }
        });
        self.backend.routing = table;
        Routing { experts_per_row }
    }

    fn moe(
        &mut self,
        layer: usize,
        x: Tensor,
        routing: Routing,
        activation: Activation,
        bank: &dyn ExpertBank,
        shared: Option<SharedExpert<'_>>,
    ) -> Tensor {
        let pairs = x.rows * routing.experts_per_row;
        assert_eq!(self.backend.routing.ids.len(), pairs, "a routing of other rows");
        let out = self.new_tensor(x.rows, x.cols);
        let mark = self.mark();
        let slots = self.new_tensor(x.rows * (routing.experts_per_row + 1), x.cols);
        let shared = shared.map(|s| Shared {
            expert: Expert::new(s.gate_proj.view(), s.up_proj.view(), s.down_proj.view()),
            gate: s.gate.map(|gate| self.view(gate).read()),
        });
        let (from, to, by_slot) =
            (self.view(x).read(), self.view(out).write(), self.view(slots).write());
        let backend = &mut *self.backend;
        let failures = moe::run(
            backend.isa,
            &mut backend.pool,
            &mut backend.moe,
            layer,
            from,
            x.rows,
            &backend.routing,
            activation,
            &backend.failures,
            bank,
            shared.as_ref(),
            by_slot,
            to,
        );
        backend.failures.extend(failures);
        self.release(mark);
        out
    }

    fn expect(&mut self, layer: usize, routing: Routing, bank: &dyn ExpertBank) {
        // Where reads fail, guesses are not worth a try.
        if self.backend.failures.is_empty() {
            let (scratch, table) = (&mut self.backend.moe, &self.backend.routing);
            bank.expect(layer, moe::most_wanted(scratch, table, routing.experts_per_row));
        }
    }

    fn select(&mut self, x: Tensor, rows: &[usize]) -> Tensor {
        let from = self.view(x).read();
        self.fill_rows(rows.len(), x.cols, |row, out| {
            out.copy_from_slice(&from[rows[row] * x.cols..][..x.cols]);
        })
    }

    fn submit(&mut self) -> Fence {
        Fence(())
    }

    fn failures(&mut self, _fence: &Fence) -> Vec<RowFailure> {
        std::mem::take(&mut self.backend.failures)
    }

    fn read(&mut self, _fence: &Fence, x: Tensor) -> &[f32] {
        self.view(x).read()
    }

    fn read_logits(
        &mut self,
        _fence: &Fence,
        logits: Tensor,
        tasks: &[Range<usize>],
        f: &(dyn Fn(usize, usize, RowLogits<'_>) + Sync),
    ) {
        let values = self.view(logits).read();
        self.backend.pool.run_near(tasks.len(), &|task| {
            for row in tasks[task].clone() {
                f(task, row, RowLogits::All(&values[row * logits.cols..][..logits.cols]));
            }
        });
    }
}

/// The pages of arenas, all copies made.
fn settled(arenas: &mut [KvArena]) -> Vec<&PageMemory> {
    arenas.iter_mut().map(|arena| &*arena.settled()).collect()
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
