//! A step that is queued: each operation takes its place in the arena when it is queued, and runs at the next submit.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use format::Encoding;

use super::bank::{CompleteLayer, DividedLayers};
use super::{Operation, RecordingBackend, Shared};
use crate::memory::{KvArena, PageId, RecurrentArena};
use crate::step::{
    Activation, AttentionShape, DeltaShape, Fence, HeadRows, KvRun, Linear, Mark, PageTable,
    RecentPages, RouterShape, Routing, RowFailure, RowLogits, RowSource, Selection, SharedExpert,
    StateRun, Step, Tensor,
};
use crate::{CpuStep, ExpertBank, Features, Norm, Result, Rope, Tape, Vector, Weight};

/// A step of a recording backend.
pub(crate) struct RecordingStep<'a> {
    pub(super) backend: &'a mut RecordingBackend,
}

impl RecordingStep<'_> {
    fn queue(&mut self, operation: impl FnOnce(&mut CpuStep<'_>) + Send + 'static) {
        let operation: Operation = Box::new(operation);
        self.backend.queue.push(operation);
    }

    fn new_tensor(&mut self, rows: usize, cols: usize) -> Tensor {
        Tensor { start: self.backend.stack.take(rows * cols), rows, cols }
    }

    /// Queues an operation whose result is one new tensor.
    fn make(
        &mut self,
        rows: usize,
        cols: usize,
        operation: impl FnOnce(&mut CpuStep<'_>) -> Tensor + Send + 'static,
    ) -> Tensor {
        let out = self.new_tensor(rows, cols);
        self.queue(move |step| assert_eq!(operation(step), out, "a tensor that lies elsewhere"));
        out
    }

    /// Runs the queue, and then an operation that needs the host.
    fn run_now<R>(&mut self, operation: impl FnOnce(&mut CpuStep<'_>) -> R) -> R {
        self.backend.run_queue();
        let _open = self.backend.store.gate.open();
        operation(&mut self.backend.cpu.resume())
    }
}

impl Step for RecordingStep<'_> {
    fn mark(&self) -> Mark {
        Mark(self.backend.stack.mark())
    }

    fn release(&mut self, mark: Mark) {
        self.backend.stack.release(mark.0);
        self.queue(move |step| step.release(mark));
    }

    fn set_trials(&mut self, depths: &[u8]) {
        let depths = depths.to_vec();
        self.queue(move |step| step.set_trials(&depths));
    }

    fn embed(&mut self, table: &Weight, tokens: &[u32], scale: f32) -> Tensor {
        let (table, tokens) = (table.clone(), tokens.to_vec());
        let cols = table.cols();
        self.make(tokens.len(), cols, move |step| step.embed(&table, &tokens, scale))
    }

    fn fetch(&mut self, source: &dyn RowSource, rows: &[usize], scale: f32) -> Tensor {
        let (cols, encoding) = (source.cols(), source.encoding());
        let read = |&row: &usize| {
            let mut bytes = vec![0; encoding.matrix_bytes(1, cols)];
            Mutex::new(Some(source.read(row, &mut bytes).map(|()| bytes)))
        };
        let fetched = FetchedRows { rows: rows.iter().map(read).collect(), cols, encoding };
        self.make(rows.len(), cols, move |step| {
            let all: Vec<usize> = (0..fetched.rows.len()).collect();
            step.fetch(&fetched, &all, scale)
        })
    }

    fn upload(&mut self, values: &[f32], cols: usize) -> Tensor {
        let values = values.to_vec();
        self.make(values.len() / cols, cols, move |step| step.upload(&values, cols))
    }

    fn bring(&mut self, rows: &Features) -> Tensor {
        let rows = rows.clone();
        self.make(rows.rows(), rows.width(), move |step| step.bring(&rows.lent()))
    }

    fn retain(&mut self, parts: &[Tensor], rows: &[Range<usize>]) -> Vec<Features> {
        let width = parts.iter().map(|part| part.cols).sum();
        let memories: Vec<Shared<Vec<f32>>> =
            rows.iter().map(|_| Shared::new(Vec::new())).collect();
        let promised = memories.iter().zip(rows);
        let promised = promised
            .map(|(memory, rows)| Features::recorded(memory.clone(), rows.len(), width))
            .collect();
        let (parts, rows) = (parts.to_vec(), rows.to_vec());
        self.queue(move |step| {
            for (memory, kept) in memories.iter().zip(step.retain(&parts, &rows)) {
                memory.put(kept.values());
            }
        });
        promised
    }

    fn concat(&mut self, parts: &[Tensor]) -> Tensor {
        let rows = parts.first().map_or(0, |part| part.rows);
        let parts = parts.to_vec();
        let cols = parts.iter().map(|part| part.cols).sum();
        self.make(rows, cols, move |step| step.concat(&parts))
    }

    fn norm(&mut self, x: Tensor, norm: &Norm) -> Tensor {
        let norm = norm.clone();
        self.make(x.rows, x.cols, move |step| step.norm(x, &norm))
    }

    fn head_norm(&mut self, x: Tensor, norm: &Norm) {
        let norm = norm.clone();
        self.queue(move |step| step.head_norm(x, &norm));
    }

    fn rope(&mut self, x: Tensor, head_dim: usize, rope: &Rope, positions: &[u32]) {
        let (rope, positions) = (rope.clone(), positions.to_vec());
        self.queue(move |step| step.rope(x, head_dim, &rope, &positions));
    }

    fn matmul(&mut self, x: Tensor, weights: &[&Linear]) -> Vec<Tensor> {
        let weights: Vec<Linear> = weights.iter().copied().cloned().collect();
        let out: Vec<Tensor> =
            weights.iter().map(|w| self.new_tensor(x.rows, w.weight.rows())).collect();
        let expected = out.clone();
        self.queue(move |step| {
            let made = step.matmul(x, &weights.iter().collect::<Vec<_>>());
            assert_eq!(made, expected, "tensors that lie elsewhere");
        });
        out
    }

    fn matmul_transposed(&mut self, x: Tensor, weight: &Weight, heads: &HeadRows) -> Tensor {
        let (weight, heads) = (weight.clone(), *heads);
        self.make(x.rows, heads.heads * weight.cols(), move |step| {
            step.matmul_transposed(x, &weight, &heads)
        })
    }

    fn add(&mut self, into: Tensor, x: Tensor) {
        self.queue(move |step| step.add(into, x));
    }

    fn scale(&mut self, x: Tensor, factor: f32) {
        self.queue(move |step| step.scale(x, factor));
    }

    fn softcap(&mut self, x: Tensor, cap: f32) {
        self.queue(move |step| step.softcap(x, cap));
    }

    fn columns(&mut self, x: Tensor, start: usize, width: usize, stride: usize) -> Tensor {
        let cols = x.cols / stride * width;
        self.make(x.rows, cols, move |step| step.columns(x, start, width, stride))
    }

    fn glu(&mut self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor {
        self.make(gate.rows, gate.cols, move |step| step.glu(gate, up, activation))
    }

    fn sigmoid_gate(&mut self, x: Tensor, gate: Tensor) -> Tensor {
        self.make(x.rows, x.cols, move |step| step.sigmoid_gate(x, gate))
    }

    fn store(&mut self, planes: &[Tensor], arenas: &mut [KvArena], runs: &[KvRun<'_>]) {
        let (planes, runs) = (planes.to_vec(), RecordedRun::all(runs));
        let arenas: Vec<KvArena> = arenas.iter_mut().map(KvArena::record).collect();
        self.queue(move |step| {
            KvArena::lent(arenas, |arenas| step.store(&planes, arenas, &RecordedRun::views(&runs)));
        });
    }

    fn choose_blocks(
        &mut self,
        scores: Tensor,
        positions: &[u32],
        kv_heads: usize,
        most: usize,
    ) -> Selection {
        let positions = positions.to_vec();
        self.queue(move |step| {
            step.choose_blocks(scores, &positions, kv_heads, most);
        });
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
        let (runs, shape, sinks) = (RecordedRun::all(runs), *shape, sinks.cloned());
        let arenas: Vec<KvArena> = arenas.iter_mut().map(KvArena::record).collect();
        self.make(q.rows, shape.heads * shape.v_dim, move |step| {
            let mut out = None;
            KvArena::lent(arenas, |arenas| {
                let runs = RecordedRun::views(&runs);
                out = Some(step.attend(q, arenas, &runs, &shape, selection, sinks.as_ref()));
            });
            out.expect("it ran")
        })
    }

    fn delta(
        &mut self,
        qkv: Tensor,
        a: Tensor,
        b: Tensor,
        shape: &DeltaShape,
        arena: &mut RecurrentArena,
        runs: &[StateRun],
    ) -> Tensor {
        let (shape, arena, runs) = (shape.clone(), arena.record(), runs.to_vec());
        self.make(qkv.rows, shape.value_heads * shape.value_dim, move |step| {
            let mut out = None;
            arena.lent(|arena| out = Some(step.delta(qkv, a, b, &shape, arena, &runs)));
            out.expect("it ran")
        })
    }

    fn keep(&mut self, layer: usize, qkv: Tensor, a: Tensor, b: Tensor, tape: &mut Tape) {
        let tape = tape.record();
        self.queue(move |step| tape.lent(|tape| step.keep(layer, qkv, a, b, tape)));
    }

    fn replay(
        &mut self,
        layer: usize,
        tape: &Tape,
        shape: &DeltaShape,
        arena: &mut RecurrentArena,
        runs: &[StateRun],
    ) {
        let (tape, shape) = (tape.record(), shape.clone());
        let (arena, runs) = (arena.record(), runs.to_vec());
        self.queue(move |step| {
            tape.lent(|tape| arena.lent(|arena| step.replay(layer, tape, &shape, arena, &runs)));
        });
    }

    fn gated_norm(&mut self, x: Tensor, gate: Tensor, norm: &Norm) -> Tensor {
        let norm = norm.clone();
        self.make(x.rows, x.cols, move |step| step.gated_norm(x, gate, &norm))
    }

    fn route(
        &mut self,
        logits: Tensor,
        router: &RouterShape,
        bias: Option<&Vector>,
        expert_scale: Option<&Vector>,
    ) -> Routing {
        let router = *router;
        let (bias, expert_scale) = (bias.cloned(), expert_scale.cloned());
        self.queue(move |step| {
            step.route(logits, &router, bias.as_ref(), expert_scale.as_ref());
        });
        Routing { experts_per_row: router.experts_per_row }
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
        let residency = bank.residency().expect("a bank whose experts a device can find");
        if let Some(experts) = residency.resident(layer) {
            let bank = CompleteLayer::new(layer, experts);
            let shared = shared.map(|shared| {
                let projections = [shared.gate_proj, shared.up_proj, shared.down_proj];
                (projections.map(Weight::clone), shared.gate)
            });
            return self.make(x.rows, x.cols, move |step| {
                let shared = shared.as_ref().map(|([gate_proj, up_proj, down_proj], gate)| {
                    SharedExpert { gate_proj, up_proj, down_proj, gate: *gate }
                });
                step.moe(layer, x, routing, activation, &bank, shared)
            });
        }
        // The host has to know what was chosen: what comes before runs now, and so does this.
        let out = self.new_tensor(x.rows, x.cols);
        let bank = DividedLayers { bank, residency };
        let made = self.run_now(|step| step.moe(layer, x, routing, activation, &bank, shared));
        assert_eq!(made, out, "a tensor that lies elsewhere");
        out
    }

    fn expect(&mut self, layer: usize, routing: Routing, bank: &dyn ExpertBank) {
        self.run_now(|step| step.expect(layer, routing, bank));
    }

    fn select(&mut self, x: Tensor, rows: &[usize]) -> Tensor {
        let rows = rows.to_vec();
        self.make(rows.len(), x.cols, move |step| step.select(x, &rows))
    }

    fn submit(&mut self) -> Fence {
        self.backend.run_queue();
        Fence(())
    }

    fn failures(&mut self, fence: &Fence) -> Vec<RowFailure> {
        self.backend.cpu.resume().failures(fence)
    }

    fn read(&mut self, _fence: &Fence, x: Tensor) -> &[f32] {
        assert!(self.backend.queue.is_empty(), "read before it was submitted");
        self.backend.cpu.values(x)
    }

    fn read_logits(
        &mut self,
        fence: &Fence,
        logits: Tensor,
        tasks: &[Range<usize>],
        f: &(dyn Fn(usize, usize, RowLogits<'_>) + Sync),
    ) {
        assert!(self.backend.queue.is_empty(), "read before it was submitted");
        self.backend.cpu.resume().read_logits(fence, logits, tasks, f);
    }
}

/// A run that owns its tables.
struct RecordedRun {
    run: (usize, usize, usize),
    pages: RecordedTable,
    recent: Option<(RecordedTable, usize)>,
}

/// A table that owns its pages.
struct RecordedTable {
    arena: usize,
    shape: usize,
    pages: Vec<PageId>,
    first_block: usize,
}

impl RecordedRun {
    fn all(runs: &[KvRun<'_>]) -> Vec<RecordedRun> {
        let record = |run: &KvRun<'_>| RecordedRun {
            run: (run.row, run.count, run.position),
            pages: RecordedTable::of(&run.pages),
            recent: run.recent.map(|recent| (RecordedTable::of(&recent.pages), recent.positions)),
        };
        runs.iter().map(record).collect()
    }

    fn views(runs: &[RecordedRun]) -> Vec<KvRun<'_>> {
        runs.iter().map(RecordedRun::view).collect()
    }

    fn view(&self) -> KvRun<'_> {
        let (row, count, position) = self.run;
        let recent = self
            .recent
            .as_ref()
            .map(|(pages, positions)| RecentPages { pages: pages.view(), positions: *positions });
        KvRun { row, count, position, pages: self.pages.view(), recent }
    }
}

impl RecordedTable {
    fn of(table: &PageTable<'_>) -> RecordedTable {
        let PageTable { arena, shape, pages, first_block } = *table;
        RecordedTable { arena, shape, pages: pages.to_vec(), first_block }
    }

    fn view(&self) -> PageTable<'_> {
        let RecordedTable { arena, shape, first_block, .. } = *self;
        PageTable { arena, shape, pages: &self.pages, first_block }
    }
}

/// Rows that were read when they were asked for, each to be used once.
#[derive(Debug)]
struct FetchedRows {
    rows: Vec<Mutex<Option<Result<Vec<u8>>>>>,
    cols: usize,
    encoding: Encoding,
}

impl RowSource for FetchedRows {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn read(&self, row: usize, out: &mut [u8]) -> Result<()> {
        let mut fetched = self.rows[row].lock().unwrap_or_else(PoisonError::into_inner);
        out.copy_from_slice(&fetched.take().expect("a row is used once")?);
        Ok(())
    }
}
