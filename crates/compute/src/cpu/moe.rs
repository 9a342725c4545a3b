//! Grouped expert feed-forward: rows are gathered by expert, outputs kept by (row, rank) and summed
//! in rank order, so the result does not depend on which experts arrived first.
//!
//! Few rows (decode): all ready experts' gate and up rows are one parallel region, their down rows
//! another. Many rows (prefill): a thread takes one after another, whole. Either way
//! experts that are in memory come first, and those on their way as they land.

mod expert;
#[cfg(test)]
mod reference_tests;

pub(crate) use expert::glu;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use machine::cpu::Isa;

use self::expert::{down_in_task, gate_up_in_task, whole_expert};
use super::activation;
use super::dot::{self, Rows, Target};
use super::lanes::sigmoid;
use super::matmul::{SharedMut, quantize};
use super::pool::Pool;
use super::quantize::{Activations, Forms};
use super::tasks::{self, Piece};
use crate::Error;
use crate::bank::{Expert, ExpertBank, Trial, Turn, Visit};
use crate::step::{Activation, RowFailure};

/// Row–expert pairs up to which the work is cut by weight rows rather than by expert.
const SMALL_PAIRS: usize = 64;

/// Rows of the shared expert that are one task of a large call.
const SHARED_PIECE: usize = 128;

/// Rows of a routed expert that are computed at once: bounds a thread's buffers.
const ROUTED_PIECE: usize = 512;

/// Hidden rows up to which one thread quantizes them, and how many are a task where there are more.
const FEW_SLOTS: usize = 24;
const SLOTS_PIECE: usize = 8;

/// The experts of each row: ids and weights, [rows, k], in rank order.
#[derive(Default)]
pub(crate) struct RoutingTable {
    pub(crate) ids: Vec<u32>,
    pub(crate) weights: Vec<f32>,
}

/// Buffers of the op; they grow to the largest call and are kept.
#[derive(Default)]
pub(crate) struct Scratch {
    activations: Activations,
    hidden_activations: Activations,
    /// `[pairs, intermediate]`
    hidden: Vec<f32>,
    /// Pairs sorted by expert: pair index = row · k + rank.
    pairs: Vec<u32>,
    /// Where each expert's pairs begin in `pairs`, and where the last one's end.
    starts: Vec<u32>,
    /// Experts that have pairs.
    wanted: Vec<u32>,
    /// By row of the step: 0 if it is certain, else how deep it was drafted; empty if none was.
    pub(crate) depths: Vec<u8>,
    /// By wanted expert: which rows want it, if rows were drafted.
    trials: Vec<Trial>,
    /// Rows that failed in an earlier layer; empty if none did.
    lost: Vec<bool>,
}

impl Scratch {
    /// The (row, rank) pairs of an expert.
    fn pairs_of(&self, id: u32) -> &[u32] {
        let id = id as usize;
        &self.pairs[self.starts[id] as usize..self.starts[id + 1] as usize]
    }

    /// Which rows want an expert, where rows were drafted.
    fn trial_of(&self, id: u32, k: usize) -> Trial {
        let mut trial = Trial { rows: 0, depth: u8::MAX };
        for &pair in self.pairs_of(id) {
            let row = pair as usize / k;
            trial.rows |= 1 << row;
            trial.depth = trial.depth.min(self.depths[row]);
        }
        if trial.depth == 0 { Trial::default() } else { trial }
    }

    fn is_lost(&self, row: usize) -> bool {
        self.lost.get(row).copied().unwrap_or(false)
    }

    fn job<'a>(&self, id: u32, expert: Expert<'a>, k: usize) -> Job<'a> {
        let slots = self.pairs_of(id).to_vec();
        Job { expert, rows: slots.iter().map(|pair| pair / k as u32).collect(), slots }
    }
}

/// An expert and the pairs it serves: `rows` of the input, `slots` of the output.
struct Job<'a> {
    expert: Expert<'a>,
    rows: Vec<u32>,
    slots: Vec<u32>,
}

impl<'a> Job<'a> {
    /// All of it, on one thread.
    fn run(&self, call: &Call<'_>, activations: &Activations) {
        let pairs = Rows { inputs: &self.rows, outputs: &self.slots };
        whole_expert(call, &self.expert, pairs, activations);
    }

    fn is_integer(&self) -> bool {
        let Expert { gate, up, down, .. } = self.expert;
        [gate, up, down].iter().all(|w| w.encoding.is_integer())
    }

    /// The same for at most `rows` rows each.
    fn pieces(&self, rows: usize) -> impl Iterator<Item = Job<'a>> {
        let parts = self.rows.chunks(rows).zip(self.slots.chunks(rows));
        parts.map(|(rows, slots)| Job {
            expert: self.expert,
            rows: rows.to_vec(),
            slots: slots.to_vec(),
        })
    }
}

/// A shared expert: weights, and the logit of its gate for each row.
pub(crate) struct Shared<'a> {
    pub(crate) expert: Expert<'a>,
    pub(crate) gate: Option<&'a [f32]>,
}

/// Computes `out` [rows, hidden]. `slots` has room for [rows · k + rows, hidden]: the outputs by
/// (row, rank), then the shared expert's. Returns the rows that an expert could not be brought for; rows
/// that failed `before` ask for none: a disk that is gone is waited for once, not in every layer.
pub(crate) fn run(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    layer: usize,
    x: &[f32],
    rows: usize,
    routing: &RoutingTable,
    activation: Activation,
    before: &[RowFailure],
    bank: &dyn ExpertBank,
    shared: Option<&Shared<'_>>,
    slots: &mut [f32],
    out: &mut [f32],
) -> Vec<RowFailure> {
    let hidden = x.len() / rows.max(1);
    let k = routing.ids.len() / rows.max(1);
    mark_lost(scratch, before, rows);
    group_by_demand(scratch, &routing.ids, k);
    for row in (0..rows).filter(|&row| scratch.is_lost(row)) {
        slots[row * k * hidden..][..k * hidden].fill(0.0);
    }
    if scratch.wanted.is_empty() {
        out.fill(0.0);
        return Vec::new();
    }
    let wanted = std::mem::take(&mut scratch.wanted);
    let mut trials = std::mem::take(&mut scratch.trials);
    trials.clear();
    if !scratch.depths.is_empty() {
        assert_eq!(scratch.depths.len(), rows, "rows that are not the step's");
        trials.extend(wanted.iter().map(|&id| scratch.trial_of(id, k)));
    }
    // Reads are on their way while the rows are quantized.
    let visit = bank.visit(layer, &wanted, rows, &trials);
    let tally = bank.tally();
    if tally.is_watched() {
        wanted.iter().for_each(|&id| tally.count_use(layer, id, scratch.pairs_of(id).len()));
    }
    // Planes are for row kernels; a large call uses tiles where it can and rows where an expert has few.
    quantize(isa, pool, &mut scratch.activations, x, rows, hidden, Forms::ALL);
    let call = Call {
        isa,
        activation,
        x,
        rows,
        k,
        target: Target { start: slots.as_mut_ptr(), stride: hidden, column: 0 },
    };
    let shared_job = shared.map(|shared| Job {
        expert: shared.expert,
        rows: (0..rows as u32).collect(),
        slots: (0..rows as u32).map(|row| (rows * k) as u32 + row).collect(),
    });
    if rows * k <= SMALL_PAIRS && shared_job.as_ref().is_none_or(Job::is_integer) {
        run_small(&call, pool, scratch, &*visit, shared_job, wanted.len());
    } else {
        run_large(&call, pool, scratch, &*visit, shared_job.as_ref());
    }
    let failures = forget_failed(visit.failures(), scratch, k, hidden, slots);
    drop(visit);
    (scratch.wanted, scratch.trials) = (wanted, trials);

    let slots = &*slots;
    let out_rows = SharedMut(out.as_mut_ptr());
    let sum = |row: usize| {
        // SAFETY: each row is summed by one task.
        let out = unsafe { std::slice::from_raw_parts_mut(out_rows.at(row * hidden), hidden) };
        let shared = shared.map(|shared| (shared, &slots[(rows * k + row) * hidden..][..hidden]));
        sum_row(isa, row, k, slots, &routing.weights, shared, out);
    };
    if rows < 8 {
        (0..rows).for_each(sum);
    } else {
        pool.run_near(rows.div_ceil(4), &|task| {
            (task * 4..rows.min(task * 4 + 4)).for_each(sum);
        });
    }
    failures
}

/// What the experts of a row came to, weighted and in rank order, then the shared one's, if there is one.
fn sum_row(
    isa: Isa,
    row: usize,
    k: usize,
    slots: &[f32],
    weights: &[f32],
    shared: Option<(&Shared<'_>, &[f32])>,
    out: &mut [f32],
) {
    let hidden = out.len();
    out.fill(0.0);
    for pair in row * k..(row + 1) * k {
        activation::scale_add(isa, out, &slots[pair * hidden..][..hidden], weights[pair]);
    }
    if let Some((shared, own)) = shared {
        let weight = shared.gate.map_or(1.0, |gate| sigmoid(gate[row]));
        activation::scale_add(isa, out, own, weight);
    }
}

/// What does not change from expert to expert.
struct Call<'a> {
    isa: Isa,
    activation: Activation,
    x: &'a [f32],
    rows: usize,
    k: usize,
    target: Target,
}

/// Decode: what is in memory is one region together with the shared expert; then each expert as it lands.
fn run_small(
    call: &Call<'_>,
    pool: &mut Pool,
    scratch: &mut Scratch,
    visit: &dyn Visit,
    mut shared: Option<Job<'_>>,
    mut awaited: usize,
) {
    let mut wait = false;
    loop {
        let turn = visit.next(usize::MAX, wait, &mut |ready| {
            awaited = awaited.saturating_sub(ready.len());
            let mut jobs: Vec<Job<'_>> =
                ready.iter().map(|&(id, expert)| scratch.job(id, expert, call.k)).collect();
            jobs.extend(shared.take());
            if jobs.iter().all(Job::is_integer) {
                small_call(call, pool, scratch, &jobs);
            } else {
                let activations = &scratch.activations;
                pool.run(jobs.len(), &|job| jobs[job].run(call, activations));
            }
        });
        if let Some(job) = shared.take() {
            small_call(call, pool, scratch, &[job]);
        }
        if turn == Turn::Finished {
            return;
        }
        wait = true;
        if awaited > 0 {
            // Only reads are outstanding: the cores are better used by the threads that make them.
            pool.rest();
        }
    }
}

/// Prefill: each thread takes the next expert that is in memory and computes it whole. Pieces of the
/// shared expert fill the waits.
fn run_large(
    call: &Call<'_>,
    pool: &mut Pool,
    scratch: &Scratch,
    visit: &dyn Visit,
    shared: Option<&Job<'_>>,
) {
    let pieces: Vec<Job<'_>> =
        shared.into_iter().flat_map(|job| job.pieces(SHARED_PIECE)).collect();
    let next_piece = AtomicUsize::new(0);
    let activations = &scratch.activations;
    let threads = pool.thread_count();
    pool.run(threads, &|_| {
        let mut take = |ready: &[(u32, Expert<'_>)]| {
            for &(id, expert) in ready {
                for piece in scratch.job(id, expert, call.k).pieces(ROUTED_PIECE) {
                    piece.run(call, activations);
                }
            }
        };
        loop {
            if visit.next(1, false, &mut take) == Turn::Served {
                continue;
            }
            let piece = next_piece.fetch_add(1, Ordering::Relaxed);
            if let Some(piece) = pieces.get(piece) {
                piece.run(call, activations);
            } else if visit.next(1, true, &mut take) == Turn::Finished {
                return;
            }
        }
    });
}

/// Outputs of experts that did not come count as zero, and their rows as failed.
fn forget_failed(
    failed: Vec<(u32, Error)>,
    scratch: &Scratch,
    k: usize,
    hidden: usize,
    slots: &mut [f32],
) -> Vec<RowFailure> {
    let mut failures = Vec::new();
    for (id, error) in failed {
        let error = Arc::new(error);
        for &pair in scratch.pairs_of(id) {
            slots[pair as usize * hidden..][..hidden].fill(0.0);
            failures.push(RowFailure { row: pair as usize / k, error: Arc::clone(&error) });
        }
    }
    failures
}

/// Notes which rows failed in an earlier layer of the same step.
fn mark_lost(scratch: &mut Scratch, before: &[RowFailure], rows: usize) {
    scratch.lost.clear();
    if !before.is_empty() {
        scratch.lost.resize(rows, false);
        before.iter().for_each(|failure| scratch.lost[failure.row] = true);
    }
}

/// Sorts (row, rank) pairs by expert, rows ascending within one (a counting sort). Rows that are lost want none.
fn group(scratch: &mut Scratch, ids: &[u32], k: usize) {
    let Scratch { starts, pairs, wanted, lost, .. } = scratch;
    let experts = ids.iter().max().map_or(0, |&id| id as usize + 1);
    let wanted_pairs = || {
        let pairs = ids.iter().enumerate();
        pairs.filter(|(pair, _)| lost.is_empty() || !lost[pair / k])
    };
    // Counted two places on, so that after adding up one place on has where an expert's next pair goes; in the end that is
    // where those of the next expert begin.
    starts.clear();
    starts.resize(experts + 2, 0);
    wanted_pairs().for_each(|(_, &id)| starts[id as usize + 2] += 1);
    for expert in 0..experts {
        starts[expert + 2] += starts[expert + 1];
    }
    pairs.clear();
    pairs.resize(starts[experts + 1] as usize, 0);
    for (pair, &id) in wanted_pairs() {
        let next = &mut starts[id as usize + 1];
        pairs[*next as usize] = pair as u32;
        *next += 1;
    }
    wanted.clear();
    wanted.extend((0..experts as u32).filter(|&id| starts[id as usize] < starts[id as usize + 1]));
}

/// The same, with the experts that most rows want first.
fn group_by_demand(scratch: &mut Scratch, ids: &[u32], k: usize) {
    group(scratch, ids, k);
    let mut wanted = std::mem::take(&mut scratch.wanted);
    wanted.sort_by_key(|&id| std::cmp::Reverse(scratch.pairs_of(id).len()));
    scratch.wanted = wanted;
}

/// The experts of a routing, those that most rows want first; what none but drafted rows want comes after
/// what is certain, the shallow before the deep.
pub(crate) fn most_wanted<'a>(
    scratch: &'a mut Scratch,
    routing: &RoutingTable,
    k: usize,
) -> &'a [u32] {
    scratch.lost.clear();
    group_by_demand(scratch, &routing.ids, k);
    // A guess for some of the rows does not tell which.
    if !scratch.depths.is_empty() && routing.ids.len() == scratch.depths.len() * k {
        let mut wanted = std::mem::take(&mut scratch.wanted);
        wanted.sort_by_cached_key(|&id| scratch.trial_of(id, k).depth);
        scratch.wanted = wanted;
    }
    &scratch.wanted
}

/// Few pairs: tasks are ranges of weight rows of any expert.
fn small_call(call: &Call<'_>, pool: &mut Pool, scratch: &mut Scratch, jobs: &[Job<'_>]) {
    let (isa, activation, out) = (call.isa, call.activation, call.target);
    let hidden_rows = call.rows * (call.k + 1);
    let intermediate = jobs.first().map_or(0, |job| job.expert.gate.rows);
    let widest = jobs.iter().map(|job| job.expert.gate.rows).max().unwrap_or(intermediate);
    // Hidden values by slot, each `widest` apart (a shared expert may be wider than the routed).
    scratch.hidden.resize(scratch.hidden.len().max(hidden_rows * widest), 0.0);
    let hidden = SharedMut(scratch.hidden.as_mut_ptr());
    let x = &scratch.activations;
    let tasks = cut(jobs.iter().map(gate_up_piece), pool.thread_count());
    pool.run(tasks.len(), &|task| {
        let (job, range) = (&jobs[tasks[task].0], tasks[task].1.clone());
        gate_up_in_task(isa, job, range, x, hidden, widest, activation);
    });
    // One set of activations for each width; widths differ only between shared and routed experts.
    let mut widths: Vec<usize> = jobs.iter().map(|job| job.expert.gate.rows).collect();
    widths.sort_unstable();
    widths.dedup();
    for width in widths {
        let jobs: Vec<&Job<'_>> = jobs.iter().filter(|job| job.expert.gate.rows == width).collect();
        let slots: Vec<u32> = jobs.iter().flat_map(|job| job.slots.iter().copied()).collect();
        let activations = &mut scratch.hidden_activations;
        let forms = dot::forms(jobs.iter().map(|job| job.expert.down.encoding));
        activations.resize(isa, slots.len(), width, forms);
        let (hidden, writer) = (&scratch.hidden, activations.writer());
        let fill = |i: usize| {
            // SAFETY: each index is filled by one task.
            unsafe { writer.fill(isa, i, &hidden[slots[i] as usize * widest..][..width]) };
        };
        if slots.len() < FEW_SLOTS {
            (0..slots.len()).for_each(fill);
        } else {
            let pieces = slots.len().div_ceil(SLOTS_PIECE);
            pool.run(pieces, &|piece| {
                let first = piece * SLOTS_PIECE;
                (first..slots.len().min(first + SLOTS_PIECE)).for_each(fill);
            });
        }
        let mut firsts = Vec::with_capacity(jobs.len());
        let mut first = 0u32;
        for job in &jobs {
            firsts.push(first);
            first += job.slots.len() as u32;
        }
        let tasks = cut(jobs.iter().map(|job| down_piece(job)), pool.thread_count());
        let activations = &scratch.hidden_activations;
        pool.run(tasks.len(), &|task| {
            let (index, range) = (tasks[task].0, tasks[task].1.clone());
            let job = jobs[index];
            let inputs: Vec<u32> =
                (firsts[index]..firsts[index] + job.slots.len() as u32).collect();
            let rows = Rows { inputs: &inputs, outputs: &job.slots };
            // SAFETY: slots and row ranges of tasks do not overlap.
            unsafe { down_in_task(isa, &job.expert, range, activations, rows, out) };
        });
    }
}

fn cut(pieces: impl Iterator<Item = Piece>, threads: usize) -> Vec<(usize, Range<usize>)> {
    let mut tasks = Vec::new();
    tasks::cut(&pieces.collect::<Vec<_>>(), threads, tasks::LARGEST, &mut tasks);
    tasks
}

/// Gate and up go together. Where their rows alternate, pairs stay together: tasks are cut at even rows.
fn gate_up_piece(job: &Job<'_>) -> Piece {
    let Expert { gate, up, .. } = job.expert;
    Piece::new(gate.rows, gate.bytes() + up.bytes(), job.rows.len())
}

fn down_piece(job: &Job<'_>) -> Piece {
    Piece::new(job.expert.down.rows, job.expert.down.bytes(), job.rows.len())
}

#[cfg(test)]
#[path = "moe_tests.rs"]
mod tests;
