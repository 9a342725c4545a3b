//! The frame of a forward pass: what every layer works with.

use compute::memory::KvArena;
use compute::{ExpertBank, KvRun, StateRun, Step, Tape};
use state::{Memory, Sequence};

use crate::batch::{Batch, Segment};

/// One forward pass of a batch. The sequences' memory must have been prepared for their rows; advancing them
/// afterwards is the caller's.
pub struct Pass<'a> {
    /// Runs the operations.
    pub step: &'a mut dyn Step,
    /// The rows.
    pub batch: &'a Batch,
    /// Where sequences keep what they remember.
    pub memory: &'a mut Memory,
    /// What the segments of the batch refer to.
    pub sequences: &'a [&'a Sequence],
    /// The routed experts, if the model has such.
    pub bank: Option<&'a dyn ExpertBank>,
    /// Takes the inputs of recurrent layers where rows are verified; a model without such layers needs none.
    pub tape: Option<&'a mut Tape>,
}

impl<'a> Pass<'a> {
    /// The step, the pages, and those of each segment's sequence in an attention layer.
    pub(crate) fn pages(
        &mut self,
        layer: usize,
    ) -> (&mut dyn Step, &mut [KvArena], Vec<KvRun<'a>>) {
        let (batch, sequences) = (self.batch, self.sequences);
        let run = |segment: &Segment| KvRun {
            row: segment.row,
            count: segment.count,
            position: batch.positions[segment.row] as usize,
            pages: sequences[segment.sequence].kv(layer),
            recent: sequences[segment.sequence].recent(layer),
        };
        let runs = batch.segments.iter().map(run).collect();
        (self.step, self.memory.kv_mut(), runs)
    }

    /// Index of the arena of a recurrent layer, and the slots of each segment's sequence.
    pub(crate) fn slots(&self, layer: usize) -> (usize, Vec<StateRun>) {
        slots(layer, self.sequences, self.batch.segments.iter().map(|s| (s, s.count)))
    }
}

/// Arena and runs of some segments in a recurrent layer, each with the rows to run.
pub(crate) fn slots<'s>(
    layer: usize,
    sequences: &[&Sequence],
    segments: impl Iterator<Item = (&'s Segment, usize)>,
) -> (usize, Vec<StateRun>) {
    let mut arena = 0;
    let run = |(segment, count): (&Segment, usize)| {
        let (index, slot) = sequences[segment.sequence].recurrent(layer);
        arena = index;
        StateRun { row: segment.row, count, slot, is_trial: segment.is_trial() }
    };
    let runs = segments.map(run).collect();
    (arena, runs)
}
