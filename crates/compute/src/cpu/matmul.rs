//! Products of activations with several weights at once: quantize, cut into tasks, run.
//!
//! Tasks are ranges of weight rows, so each element is computed by one thread in one order. Which kernel
//! runs (tiles or rows) is a matter of speed only: they agree to the bit.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use machine::cpu::Isa;

use super::activation;
use super::dense;
use super::dot::{self, Rows, Target};
use super::pool::Pool;
use super::quantize::{Activations, CHUNK, Forms};
use super::tasks::{self, Piece};
use crate::weight::Matrix;
use crate::{Linear, Vector};

#[cfg(target_arch = "x86_64")]
use super::tiles::{self, Order, Tile, Unit};

/// Rows from which the tile unit is worth packing for. Measured on a 2-core Xeon (Sapphire Rapids
/// class), 15 Nov 2026.
const TILE_ROWS: usize = 24;

/// Work of a task at most, of what tiles multiply; it does not count how many rows there are.
const TILE_TASK_WORK: usize = 96 << 10;

/// Activation rows of a thread from which narrow weights are multiplied by each thread with rows of its own.
const LEAST_SHARE: usize = 4;

/// Activation rows from which tasks are large and even. A chunk of four rows took 34 ns instead of 38 then, one of six 41 instead
/// of 50 at best (2,048 columns from memory, two threads, six turns, 2026-11-16).
const EVEN_ROWS: usize = 3;

/// What products need besides their inputs; grows to the largest call and is kept.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) activations: Activations,
    /// Those of each thread, where threads have rows of their own.
    shares: Vec<RwLock<Activations>>,
    tasks: Vec<(usize, Range<usize>)>,
    all_rows: Vec<u32>,
    #[cfg(target_arch = "x86_64")]
    pub(crate) tiles: TileSets,
}

/// Packed activations, in each of the two column orders that some weight of the call needs.
#[cfg(target_arch = "x86_64")]
#[derive(Default)]
pub(crate) struct TileSets {
    paired: Vec<Tile>,
    natural: Vec<Tile>,
    used: usize,
}

#[cfg(target_arch = "x86_64")]
impl TileSets {
    /// Packs `rows` of `x` for the given weights. Serial: for calls inside a task.
    pub(crate) fn pack(&mut self, x: &Activations, rows: &[u32], weights: &[Matrix<'_>]) {
        self.used = rows.len().div_ceil(tiles::TOKENS);
        let halves = dot::forms(weights.iter().map(|w| w.encoding)).halves;
        for (order, set) in self.needed(weights) {
            for (tile, rows) in set.iter_mut().zip(rows.chunks(tiles::TOKENS)) {
                tile.pack(x, rows, order, halves);
            }
        }
    }

    fn pack_on(&mut self, pool: &mut Pool, x: &Activations, rows: &[u32], weights: &[Matrix<'_>]) {
        self.used = rows.len().div_ceil(tiles::TOKENS);
        let used = self.used;
        let halves = dot::forms(weights.iter().map(|w| w.encoding)).halves;
        for (order, set) in self.needed(weights) {
            let tiles = SharedMut(set.as_mut_ptr());
            pool.run(used, &|i| {
                let rows = &rows[i * tiles::TOKENS..rows.len().min((i + 1) * tiles::TOKENS)];
                // SAFETY: each task has a tile of its own, and there are `used` of them.
                unsafe { (*tiles.at(i)).pack(x, rows, order, halves) };
            });
        }
    }

    fn needed(&mut self, weights: &[Matrix<'_>]) -> impl Iterator<Item = (Order, &mut Vec<Tile>)> {
        let wanted = |order| {
            let mut encodings = weights.iter().map(|w| w.encoding).filter(|e| e.is_integer());
            encodings.any(|encoding| Order::of(encoding) == order)
        };
        let (paired, natural) = (wanted(Order::Paired), wanted(Order::Natural));
        let used = self.used;
        [(Order::Paired, &mut self.paired, paired), (Order::Natural, &mut self.natural, natural)]
            .into_iter()
            .filter(|(_, _, wanted)| *wanted)
            .map(move |(order, set, _)| {
                if set.len() < used {
                    set.resize_with(used, Tile::default);
                }
                (order, set)
            })
    }

    fn of(&self, w: &Matrix<'_>) -> &[Tile] {
        match Order::of(w.encoding) {
            Order::Paired => &self.paired[..self.used],
            Order::Natural => &self.natural[..self.used],
        }
    }
}

/// A mutable slice whose elements different tasks may use at once.
pub(crate) struct SharedMut<T>(pub(crate) *mut T);

impl<T> Clone for SharedMut<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<T> {}

// SAFETY: which thread may touch which element is the contract of `at`'s callers.
unsafe impl<T> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// # Safety
    /// `index` is inside the allocation the pointer came from.
    pub(crate) unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }
}

/// Whether a call with so many rows of so many columns is packed into tiles. Narrow rows are not, however many: what tiles
/// save in unpacking weights they lose in packing and scaling. 32 answers of Pebble at once took 11.0 ms a step in tiles and
/// 6.7 ms in rows, 256 of them 101 and 54 (2-core Xeon, 2026-11-16).
pub(crate) fn uses_tiles(isa: Isa, rows: usize, cols: usize) -> bool {
    let has_tiles = cfg!(target_arch = "x86_64") && matches!(isa, Isa::Avx512 | Isa::Amx);
    has_tiles && rows >= TILE_ROWS && cols >= CHUNK
}

/// `out[i] = x · weights[i]ᵀ + bias`, [rows, weights[i].rows] each.
pub(crate) fn multiply(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    x: &[f32],
    rows: usize,
    weights: &[&Linear],
    out: &[*mut f32],
) {
    let cols = x.len() / rows.max(1);
    let views: Vec<Matrix<'_>> = weights.iter().map(|w| w.weight.view()).collect();
    let tiles = uses_tiles(isa, rows, cols);
    scratch.all_rows.clear();
    scratch.all_rows.extend(0..rows as u32);
    // Narrow weights stay in the caches, so it is the rows that are shared out: each stays with its core.
    let threads = pool.thread_count();
    let shares = if cols < CHUNK && rows >= LEAST_SHARE * threads { threads } else { 1 };
    let integers = views.iter().any(|w| w.encoding.is_integer());
    if integers && shares == 1 {
        let encodings = views.iter().map(|w| w.encoding);
        let forms = if tiles { Forms::VALUES } else { dot::forms(encodings) };
        quantize(isa, pool, &mut scratch.activations, x, rows, cols, forms);
        #[cfg(target_arch = "x86_64")]
        if tiles {
            let (x, rows) = (&scratch.activations, &scratch.all_rows);
            scratch.tiles.pack_on(pool, x, rows, &views);
        }
    }
    scratch.shares.resize_with(shares.max(scratch.shares.len()), RwLock::default);
    scratch.tasks.clear();
    let pieces: Vec<Piece> = views.iter().map(|w| piece(w, rows / shares, tiles)).collect();
    // Where products take longer than reading, threads are equally fast, and a thread that goes on where it was reads ahead.
    let even = !tiles && shares == 1 && rows >= EVEN_ROWS;
    if even {
        tasks::cut_evenly(&pieces, threads, &mut scratch.tasks);
    } else {
        let largest = if tiles { TILE_TASK_WORK } else { tasks::LARGEST };
        tasks::cut(&pieces, threads / shares, largest, &mut scratch.tasks);
    }
    let targets: Vec<Target> = out
        .iter()
        .zip(&views)
        .map(|(&start, w)| Target { start, stride: w.rows, column: 0 })
        .collect();
    let scratch = &*scratch;
    let multiply = |activations: &Activations, inputs: &[u32], rows: Range<usize>, task: usize| {
        let outputs = &scratch.all_rows[rows.clone()];
        let (i, ref range) = scratch.tasks[task];
        let (w, target) = (&views[i], targets[i].shifted(range.start));
        // SAFETY: the targets have room for [rows, w.rows], and ranges of tasks do not overlap.
        unsafe {
            if !w.encoding.is_integer() {
                let x = &x[rows.start * cols..rows.end * cols];
                dense::multiply_rows(isa, w, range.clone(), x, outputs, target);
            } else if tiles {
                #[cfg(target_arch = "x86_64")]
                {
                    let tiles = scratch.tiles.of(w);
                    tiles::multiply_rows(Unit::of(isa), w, range.clone(), tiles, outputs, target);
                }
            } else {
                let rows = Rows { inputs, outputs };
                dot::multiply_rows(isa, w, range.clone(), activations, rows, target);
            }
        }
    };
    if shares == 1 {
        let (x, all) = (&scratch.activations, &scratch.all_rows);
        let multiply = |task: usize| multiply(x, all, 0..rows, task);
        if even {
            pool.run_near(scratch.tasks.len(), &multiply);
        } else {
            pool.run(scratch.tasks.len(), &multiply);
        }
    } else {
        let forms = integers.then(|| dot::forms(views.iter().map(|w| w.encoding)));
        multiply_shares(isa, pool, scratch, x, rows, forms, multiply);
    }
    for ((w, view), &start) in weights.iter().zip(&views).zip(out) {
        let bias = w.bias.as_ref().map(Vector::values);
        if bias.is_none() && view.factor == 1.0 {
            continue;
        }
        for row in 0..rows {
            // SAFETY: the output has `rows` rows of the weight's outputs, and no task runs now.
            let out =
                unsafe { std::slice::from_raw_parts_mut(start.add(row * view.rows), view.rows) };
            if view.factor != 1.0 {
                activation::scale_assign(isa, out, view.factor);
            }
            if let Some(bias) = bias {
                activation::add_assign(isa, out, bias);
            }
        }
    }
}

/// Each thread quantizes rows of its own and multiplies them, without waiting for others; a thread that is done helps with what is left.
fn multiply_shares(
    isa: Isa,
    pool: &mut Pool,
    scratch: &Scratch,
    x: &[f32],
    rows: usize,
    forms: Option<Forms>,
    multiply: impl Fn(&Activations, &[u32], Range<usize>, usize) + Sync,
) {
    let (shares, cols) = (pool.thread_count(), x.len() / rows);
    // The first task of a share is to quantize it.
    let tasks = scratch.tasks.len() + 1;
    let ready: Vec<AtomicBool> = (0..shares).map(|_| AtomicBool::new(forms.is_none())).collect();
    pool.run_near(shares * tasks, &|task| {
        let (share, task) = (task / tasks, task % tasks);
        let some = rows * share / shares..rows * (share + 1) / shares;
        let (ready, activations) = (&ready[share], &scratch.shares[share]);
        if let Some(task) = task.checked_sub(1) {
            while !ready.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let activations = activations.read().unwrap_or_else(PoisonError::into_inner);
            multiply(&activations, &scratch.all_rows[..some.len()], some, task);
        } else if let Some(forms) = forms {
            let _ready = SetAtEnd(ready);
            let mut activations = activations.write().unwrap_or_else(PoisonError::into_inner);
            activations.resize(isa, some.len(), cols, forms);
            for (index, x) in x[some.start * cols..some.end * cols].chunks_exact(cols).enumerate() {
                activations.fill(isa, index, x);
            }
        }
    });
}

/// Sets a flag when it is dropped: a thread that waits for it goes on even if this one panics.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Quantizes all rows, on all threads if there are many.
pub(crate) fn quantize(
    isa: Isa,
    pool: &mut Pool,
    activations: &mut Activations,
    x: &[f32],
    rows: usize,
    cols: usize,
    forms: Forms,
) {
    activations.resize(isa, rows, cols, forms);
    if rows < 8 {
        for row in 0..rows {
            activations.fill(isa, row, &x[row * cols..][..cols]);
        }
        return;
    }
    let writer = activations.writer();
    pool.run_near(rows.div_ceil(4), &|task| {
        for row in task * 4..rows.min(task * 4 + 4) {
            // SAFETY: tasks fill different rows.
            unsafe { writer.fill(isa, row, &x[row * cols..][..cols]) };
        }
    });
}

/// Products of one weight with some rows inside a task: no pool. `x` and `rows.inputs` are for
/// row kernels and must be packed into `tiles` by the caller where [`uses_tiles`] says so.
///
/// # Safety
/// As [`dot::multiply_rows`].
pub(crate) unsafe fn multiply_in_task(
    isa: Isa,
    w: &Matrix<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    #[cfg(target_arch = "x86_64")] tiles: Option<&TileSets>,
    out: Target,
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(tiles) = tiles {
        // SAFETY: the caller's promise.
        unsafe { tiles::multiply_rows(Unit::of(isa), w, range, tiles.of(w), rows.outputs, out) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { dot::multiply_rows(isa, w, range, x, rows, out) };
}

/// A weight as it is cut into tasks: whole panels where tiles are used.
fn piece(w: &Matrix<'_>, rows: usize, tiles: bool) -> Piece {
    #[cfg(target_arch = "x86_64")]
    if tiles {
        return Piece::new(w.rows, w.bytes(), 1).in_units(tiles::ROWS);
    }
    debug_assert!(!tiles);
    Piece::new(w.rows, w.bytes(), rows)
}
