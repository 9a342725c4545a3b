//! Where a layer's experts come from: the one thing a mixture-of-experts op asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use format::Float;

use crate::store::{Region, Slab};
use crate::{Error, Matrix, MatrixPlace, Tally};

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

/// Where an expert lies in its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertPlace {
    /// Gate, up, down.
    pub projections: [MatrixPlace; 3],
    /// Their biases, where they have one.
    pub biases: [Option<BiasPlace>; 3],
    /// As [`Expert::is_interleaved`].
    pub is_interleaved: bool,
}

/// Where a bias lies in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasPlace {
    /// First byte.
    pub start: usize,
    /// Type of its values, one for each row of the weight.
    pub float: Float,
}

impl ExpertPlace {
    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        let parts = self.projections.iter().zip(&self.biases);
        let bytes = |(matrix, bias): (&MatrixPlace, &Option<BiasPlace>)| {
            matrix.bytes() + bias.map_or(0, |bias| matrix.rows * bias.float.bytes())
        };
        parts.map(bytes).sum()
    }

    /// The expert as kernels see it.
    pub fn view<'a>(&self, memory: &'a [u8]) -> Expert<'a> {
        let [gate, up, down] = self.projections.each_ref().map(|matrix| matrix.view(memory));
        let bias = |part: usize| {
            let BiasPlace { start, float } = self.biases[part]?;
            let len_bytes = self.projections[part].rows * float.bytes();
            Some(Bias { bytes: &memory[start..start + len_bytes], float })
        };
        let biases = [bias(0), bias(1), bias(2)];
        Expert { gate, up, down, biases, is_interleaved: self.is_interleaved }
    }
}

/// Which rows of a step with drafted rows want an expert.
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
    /// says which rows want each of them where the step has drafted rows, and is empty where it has none.
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

    /// Counts of its experts, to be watched.
    fn tally(&self) -> &Tally;

    /// Whether [`ExpertBank::expect`] is worth calling.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// The next visit will be to this layer, and will probably want these experts.
    fn expect(&self, _layer: usize, _likely: &[u32]) {}

    /// Where its experts lie, for backends that compute them there; `None` if they can only be visited.
    fn residency(&self) -> Option<&dyn Residency> {
        None
    }
}

/// Where experts lie, for backends that compute them in their own memory or read the host's in place.
pub trait Residency: Send + Sync {
    /// All experts of a layer, if they are there for good: then the host is not asked at every step.
    fn resident(&self, layer: usize) -> Option<Arc<[ResidentExpert]>>;

    /// The routing of a layer that is not complete has come back. Decides which experts are computed where they lie and
    /// which by the host; reads of the others are under way when it returns. Arguments as for [`ExpertBank::visit`].
    fn settle_layer<'a>(
        &'a self,
        layer: usize,
        wanted: &'a [u32],
        rows: usize,
        trials: &'a [Trial],
    ) -> Box<dyn Parting + 'a>;
}

/// Experts of one visit, divided between device and host. Those of the device stay where they are as long as this lives.
pub trait Parting: Sync {
    /// Experts that lie in a slab which the backend reads.
    fn on_device(&self) -> Vec<SlabExpert<'_>>;

    /// The others, for the host to compute as they come.
    fn on_host(&self) -> &dyn Visit;
}

/// An expert in a slab.
#[derive(Clone, Copy, Debug)]
pub struct SlabExpert<'a> {
    /// Its index in the layer.
    pub id: u32,
    /// The slab and the first byte of its slot.
    pub slot: (&'a Slab, usize),
    /// The bytes of the slot, as the host sees them.
    pub bytes: &'a [u8],
    /// Where its parts are in the slot.
    pub place: &'a ExpertPlace,
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

/// An expert that stays in a backend's memory.
#[derive(Clone, Debug)]
pub struct ResidentExpert {
    /// Shared with the layer's others.
    pub region: Region,
    /// Where it is in the region.
    pub place: ExpertPlace,
}

impl ResidentExpert {
    pub(crate) fn view(&self) -> Expert<'_> {
        self.place.view(self.region.bytes())
    }
}

/// A bank whose experts are all in memory.
#[derive(Debug)]
pub struct ResidentBank {
    /// By layer (empty for layers without experts), then expert.
    layers: Vec<Arc<[ResidentExpert]>>,
    tally: Tally,
}

impl ResidentBank {
    /// A bank over weights that are already loaded.
    pub fn new(layers: Vec<Vec<ResidentExpert>>) -> Self {
        let tally = Tally::new(layers.iter().map(Vec::len));
        ResidentBank { layers: layers.into_iter().map(Arc::from).collect(), tally }
    }

    /// Bytes of all experts.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flat_map(|layer| layer.iter()).map(|e| e.place.bytes()).sum()
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
        Box::new(ResidentVisit::new(&self.layers[layer], wanted))
    }

    fn residency(&self) -> Option<&dyn Residency> {
        Some(self)
    }
}

impl Residency for ResidentBank {
    fn resident(&self, layer: usize) -> Option<Arc<[ResidentExpert]>> {
        Some(Arc::clone(&self.layers[layer]))
    }

    fn settle_layer<'a>(
        &'a self,
        layer: usize,
        _wanted: &'a [u32],
        _rows: usize,
        _trials: &'a [Trial],
    ) -> Box<dyn Parting + 'a> {
        unreachable!("layer {layer} is complete")
    }
}

pub(crate) struct ResidentVisit<'a> {
    experts: &'a [ResidentExpert],
    wanted: &'a [u32],
    handed: AtomicUsize,
}

impl<'a> ResidentVisit<'a> {
    pub(crate) fn new(experts: &'a [ResidentExpert], wanted: &'a [u32]) -> ResidentVisit<'a> {
        ResidentVisit { experts, wanted, handed: AtomicUsize::new(0) }
    }
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
