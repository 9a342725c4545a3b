//! What outlives a step besides the memory of sequences: inputs of recurrent layers, to run some rows again, and hidden
//! states that a draft head wants to know of tokens. Both stay in the memory of the backend that made them.

use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "recording")]
use crate::recording::gate::DeviceMemory;

/// What the delta layers of a model were given in one step, so that rows which turned out to be right can
/// be run again, with the same kernel. Made by a [`Store`](crate::Store).
#[derive(Debug)]
pub struct Tape(TapeMemory);

#[derive(Debug)]
enum TapeMemory {
    Host(HostTape),
    #[cfg(feature = "recording")]
    Recorded(DeviceMemory<HostTape>),
}

/// By layer; empty for those that are not recurrent.
#[derive(Debug, Default)]
pub(crate) struct HostTape(Vec<DeltaInputs>);

/// Inputs of [`Step::delta`](crate::Step::delta), all rows of a step.
#[derive(Debug, Default)]
pub(crate) struct DeltaInputs {
    pub(crate) qkv: Vec<f32>,
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

impl HostTape {
    pub(crate) fn layer(&self, layer: usize) -> &DeltaInputs {
        &self.0[layer]
    }

    /// Room for a layer.
    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut DeltaInputs {
        if self.0.len() <= layer {
            self.0.resize_with(layer + 1, DeltaInputs::default);
        }
        &mut self.0[layer]
    }
}

impl Tape {
    /// An empty one in host memory.
    pub(crate) fn new() -> Tape {
        Tape(TapeMemory::Host(HostTape::default()))
    }

    /// What the CPU keeps.
    pub(crate) fn host(&self) -> &HostTape {
        match &self.0 {
            TapeMemory::Host(tape) => tape,
            #[cfg(feature = "recording")]
            TapeMemory::Recorded(_) => panic!("the CPU was given a tape of a recording backend"),
        }
    }

    /// The same, to be written.
    pub(crate) fn host_mut(&mut self) -> &mut HostTape {
        match &mut self.0 {
            TapeMemory::Host(tape) => tape,
            #[cfg(feature = "recording")]
            TapeMemory::Recorded(_) => panic!("the CPU was given a tape of a recording backend"),
        }
    }
}

#[cfg(feature = "recording")]
impl Tape {
    /// An empty one of a recording backend.
    pub(crate) fn recorded() -> Tape {
        Tape(TapeMemory::Recorded(DeviceMemory::new(HostTape::default())))
    }

    /// The same tape again, for an operation in a queue.
    pub(crate) fn record(&self) -> Tape {
        match &self.0 {
            TapeMemory::Recorded(shared) => Tape(TapeMemory::Recorded(shared.clone())),
            TapeMemory::Host(_) => panic!("a recording backend was given a tape of the CPU"),
        }
    }

    /// The tape in host memory, while `run` runs.
    pub(crate) fn lent(self, run: impl FnOnce(&mut Tape)) {
        let TapeMemory::Recorded(shared) = self.0 else { unreachable!("it was recorded") };
        let mut tape = Tape(TapeMemory::Host(shared.take()));
        run(&mut tape);
        if let TapeMemory::Host(host) = tape.0 {
            shared.put(host);
        }
    }
}

/// Rows of hidden states, in order: what a draft head wants to know of tokens. A share of them costs nothing, and keeps all
/// that were retained together.
#[derive(Clone, Debug, Default)]
pub struct Features {
    parts: Vec<FeaturePart>,
}

/// Consecutive rows of one origin.
#[derive(Clone, Debug)]
struct FeaturePart {
    width: usize,
    rows: Range<usize>,
    source: FeatureSource,
}

#[derive(Clone, Debug)]
enum FeatureSource {
    /// Rows that are not known.
    Zeros,
    Host(Arc<[f32]>),
    #[cfg(feature = "recording")]
    Recorded(DeviceMemory<Vec<f32>>),
}

impl Features {
    /// Rows that say nothing.
    pub fn zeros(rows: usize, width: usize) -> Features {
        Features::of(rows, width, FeatureSource::Zeros)
    }

    /// Rows of values, `[values.len() / width, width]`, of the CPU.
    pub fn from_values(values: Vec<f32>, width: usize) -> Features {
        assert!(values.len().is_multiple_of(width), "{} values in rows of {width}", values.len());
        Features::of(values.len() / width, width, FeatureSource::Host(values.into()))
    }

    fn of(rows: usize, width: usize, source: FeatureSource) -> Features {
        let rows = 0..rows;
        if rows.is_empty() {
            return Features::default();
        }
        Features { parts: vec![FeaturePart { width, rows, source }] }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Some of the rows.
    pub fn slice(&self, rows: Range<usize>) -> Features {
        assert!(rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        let mut first = 0;
        let mut parts = Vec::new();
        for part in &self.parts {
            let start = rows.start.max(first) - first;
            let end = rows.end.min(first + part.rows.len()).saturating_sub(first);
            if start < end {
                let rows = part.rows.start + start..part.rows.start + end;
                parts.push(FeaturePart { rows, ..part.clone() });
            }
            first += part.rows.len();
        }
        Features { parts }
    }

    /// The last row; nothing if there is none.
    pub fn last(&self) -> Features {
        let rows = self.rows();
        self.slice(rows.saturating_sub(1)..rows)
    }

    /// Rows after these.
    pub fn append(&mut self, more: &Features) {
        self.parts.extend_from_slice(&more.parts);
    }

    /// The same rows, with nothing else kept because of them.
    pub fn alone(&self) -> Features {
        let alone = |part: &FeaturePart| match &part.source {
            FeatureSource::Host(values) if part.rows.len() * part.width < values.len() => {
                let FeaturePart { width, rows, .. } = part;
                let own = values[rows.start * width..rows.end * width].into();
                let source = FeatureSource::Host(own);
                FeaturePart { width: *width, rows: 0..rows.len(), source }
            }
            _ => part.clone(),
        };
        Features { parts: self.parts.iter().map(alone).collect() }
    }

    /// The values, row after row, where the host holds them: for the kernels of the CPU and for tests.
    pub fn copy_to(&self, out: &mut [f32]) {
        let mut at = 0;
        for FeaturePart { width, rows, source } in &self.parts {
            let out = &mut out[at..at + rows.len() * width];
            at += out.len();
            match source {
                FeatureSource::Zeros => out.fill(0.0),
                FeatureSource::Host(values) => {
                    out.copy_from_slice(&values[rows.start * width..rows.end * width]);
                }
                #[cfg(feature = "recording")]
                FeatureSource::Recorded(_) => panic!("the CPU was given rows of another backend"),
            }
        }
    }

    /// Values in a row; 0 if there is none.
    pub fn width(&self) -> usize {
        self.parts.first().map_or(0, |part| part.width)
    }

    /// All values, as [`Features::copy_to`].
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows() * self.width()];
        self.copy_to(&mut values);
        values
    }
}

#[cfg(feature = "recording")]
impl Features {
    /// Rows that an operation in a queue will write.
    pub(crate) fn recorded(memory: DeviceMemory<Vec<f32>>, rows: usize, width: usize) -> Features {
        Features::of(rows, width, FeatureSource::Recorded(memory))
    }

    /// The same in host memory, while the queue runs.
    pub(crate) fn lent(&self) -> Features {
        let lent = |part: &FeaturePart| match &part.source {
            FeatureSource::Recorded(memory) => {
                let values = memory.with(|values| Arc::from(&values[..]));
                FeaturePart { source: FeatureSource::Host(values), ..part.clone() }
            }
            FeatureSource::Host(_) | FeatureSource::Zeros => part.clone(),
        };
        Features { parts: self.parts.iter().map(lent).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_rows_are_the_rows() {
        let mut rows = Features::from_values((0..8).map(|x| x as f32).collect(), 2);
        rows.append(&Features::zeros(1, 2));
        rows.append(&Features::from_values(vec![8.0, 9.0], 2));
        assert_eq!((rows.rows(), rows.width()), (6, 2));
        assert_eq!(rows.slice(3..6).values(), [6.0, 7.0, 0.0, 0.0, 8.0, 9.0]);
        assert_eq!(rows.slice(1..2).alone().values(), [2.0, 3.0]);
        assert_eq!(rows.last().values(), [8.0, 9.0]);
        assert!(rows.slice(4..4).is_empty() && Features::default().last().is_empty());
    }
}
