//! Where a layer's experts come from: the one thing a mixture-of-experts op asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use machine::pages::Pages;

use crate::{Error, Matrix, Tally, Weight};
use format::Float;

/// One expert's weights, in memory for as long as the borrow lasts.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// `[intermediate, hidden]`
    pub gate: Matrix<'a>,
    /// `[intermediate, hidden]`
    pub up: Matrix<'a>,
    /// `[hidden, intermediate]`
    pub down: Matrix<'a>,
    /// What is added to the products with gate, up and down.
    pub biases: [Option<Bias<'a>>; 3],
    /// Whether rows of gate and up alternate: `gate` is then the first half of these rows and `up` the
    /// second. Their number is even.
    pub is_interleaved: bool,
}

impl<'a> Expert<'a> {
    /// An expert without biases.
    pub fn new(gate: Matrix<'a>, up: Matrix<'a>, down: Matrix<'a>) -> Expert<'a> {
        Expert { gate, up, down, biases: [None; 3], is_interleaved: false }
    }
}

/// A borrowed vector that is added to a product, as the checkpoint stores it.
#[derive(Clone, Copy, Debug)]
pub struct Bias<'a> {
    /// A value for each row of the weight, at any alignment.
    pub bytes: &'a [u8],
    /// Their type.
    pub float: Float,
}

/// Who of a step with drafted rows wants an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// Bit `i`: row `i` wants it. None if a row that is certain wants it too.
    pub rows: u64,
    /// The least depth of the rows that want it: 0 for one that is certain, else how many drafted rows
    /// of its sequence come before it, itself counted.
    pub depth: u8,
}

impl Trial {
    /// Rows that a step with drafted ones may have.
    pub const MOST_ROWS: usize = u64::BITS as usize;

    /// Whether none but drafted rows want it.
    pub fn is_drafted(self) -> bool {
        self.rows != 0
    }
}

/// Uses experts while they are in memory, each with its index in the layer.
pub type Take<'a> = &'a mut dyn FnMut(&[(u32, Expert<'_>)]);

/// The experts of all layers of a model.
///
/// A bank may hold them in memory or bring them from a disk; model code cannot tell which.
pub trait ExpertBank: Send + Sync {
    /// Starts to bring the `wanted` experts of a layer, the most used first, for `rows` rows. `trials`
    /// says who wants each of them where the step has drafted rows, and is empty where it has none.
    fn visit<'a>(
        &'a self,
        layer: usize,
        wanted: &'a [u32],
        rows: usize,
        trials: &'a [Trial],
    ) -> Box<dyn Visit + 'a>;

    /// Which drafted rows of the step that ended were right: bit `i` for row `i`. To be called after
    /// every step with drafted rows; a step that begins without it finds all of them wrong.
    fn settle(&self, _accepted: u64) {}

    /// Counts of its experts, for who looks on.
    fn tally(&self) -> &Tally;

    /// Whether [`ExpertBank::expect`] is worth calling.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// The next visit will be to this layer, and will probably want these experts.
    fn expect(&self, _layer: usize, _likely: &[u32]) {}
}

/// Experts on their way. Threads may share it; each expert is handed over once.
pub trait Visit: Sync {
    /// Hands up to `most` experts that are in memory to `take`; they may leave when it returns.
    /// Their order is the bank's, and results may not depend on it. If none is there but some will
    /// be, waits for one if `wait` says so.
    fn next(&self, most: usize, wait: bool, take: Take<'_>) -> Turn;

    /// The experts that could not be brought. Complete once `next` has said [`Turn::Finished`].
    fn failures(&self) -> Vec<(u32, Error)> {
        Vec::new()
    }
}

/// What a call of [`Visit::next`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Experts were handed over.
    Served,
    /// None is in memory now.
    Empty,
    /// All were handed over before, or cannot be brought.
    Finished,
}

/// A bias that owns a share of a memory region.
#[derive(Clone, Debug)]
pub struct BiasWeight {
    memory: Arc<Pages>,
    start: usize,
    len_bytes: usize,
    float: Float,
}

impl BiasWeight {
    /// The `count` values at `offset` of `memory`.
    pub fn new(memory: Arc<Pages>, offset: usize, count: usize, float: Float) -> BiasWeight {
        let len_bytes = count * float.bytes();
        assert!(offset + len_bytes <= memory.len(), "a bias outside its region");
        BiasWeight { memory, start: offset, len_bytes, float }
    }

    fn view(&self) -> Bias<'_> {
        let bytes = &self.memory[self.start..self.start + self.len_bytes];
        Bias { bytes, float: self.float }
    }
}

/// The weights of an expert that stays in memory.
#[derive(Clone, Debug)]
pub struct ResidentExpert {
    /// Gate, up, down.
    pub projections: [Weight; 3],
    /// Theirs, where they have one.
    pub biases: [Option<BiasWeight>; 3],
    /// As [`Expert::is_interleaved`].
    pub is_interleaved: bool,
}

impl ResidentExpert {
    fn bytes(&self) -> usize {
        let biases = self.biases.iter().flatten().map(|bias| bias.len_bytes);
        self.projections.iter().map(Weight::bytes).chain(biases).sum()
    }

    fn view(&self) -> Expert<'_> {
        let [gate, up, down] = &self.projections;
        Expert {
            gate: gate.view(),
            up: up.view(),
            down: down.view(),
            biases: self.biases.each_ref().map(|bias| bias.as_ref().map(BiasWeight::view)),
            is_interleaved: self.is_interleaved,
        }
    }
}

/// A bank whose experts are all in memory.
#[derive(Debug)]
pub struct ResidentBank {
    /// By layer (empty for layers without experts), then expert.
    layers: Vec<Vec<ResidentExpert>>,
    tally: Tally,
}

impl ResidentBank {
    /// A bank over weights that are already loaded.
    pub fn new(layers: Vec<Vec<ResidentExpert>>) -> Self {
        let tally = Tally::new(layers.iter().map(Vec::len));
        ResidentBank { layers, tally }
    }

    /// Bytes of all experts.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(ResidentExpert::bytes).sum()
    }
}

impl ExpertBank for ResidentBank {
    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn visit<'a>(
        &'a self,
        layer: usize,
        wanted: &'a [u32],
        rows: usize,
        _trials: &'a [Trial],
    ) -> Box<dyn Visit + 'a> {
        self.tally.count_union(rows, wanted.len());
        Box::new(ResidentVisit {
            experts: &self.layers[layer],
            wanted,
            handed: AtomicUsize::new(0),
        })
    }
}

struct ResidentVisit<'a> {
    experts: &'a [ResidentExpert],
    wanted: &'a [u32],
    handed: AtomicUsize,
}

impl Visit for ResidentVisit<'_> {
    fn next(&self, most: usize, _wait: bool, take: Take<'_>) -> Turn {
        let count = most.min(self.wanted.len());
        let first = self.handed.fetch_add(count, Ordering::Relaxed);
        if first >= self.wanted.len() {
            return Turn::Finished;
        }
        let view = |&id: &u32| (id, self.experts[id as usize].view());
        match &self.wanted[first..(first + count).min(self.wanted.len())] {
            [one] => take(&[view(one)]),
            several => take(&several.iter().map(view).collect::<Vec<_>>()),
        }
        Turn::Served
    }
}
