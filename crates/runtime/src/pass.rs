//! One pass of a batch through the model: rows in, logits and failures out.

use std::ops::Range;

use compute::{CpuBackend, ExpertBank, RowFailure, Step, Tape};
use model::{Batch, Decoder, Head, Segment};
use state::{Memory, Sequence};

use crate::heads;

/// How the rows of logits that a batch asks for are read.
pub enum Reader<'a> {
    /// One after another: the row and its values.
    InOrder(&'a mut dyn FnMut(usize, &[f32])),
    /// Those of different segments in parallel, on all threads: the segment, the row and its values.
    AtOnce(&'a (dyn Fn(usize, usize, &[f32]) + Sync)),
}

/// What a batch goes through.
pub(crate) struct Pass<'a> {
    pub(crate) decoder: &'a Decoder,
    pub(crate) bank: Option<&'a dyn ExpertBank>,
    /// Reads features of each row besides its logits.
    pub(crate) head: Option<&'a Head>,
}

/// What came of it, besides logits.
#[derive(Default)]
pub(crate) struct Passed {
    /// What the head wanted to know, by segment.
    pub(crate) features: Vec<Vec<f32>>,
    pub(crate) failures: Vec<RowFailure>,
}

impl Pass<'_> {
    /// Runs a batch as one step.
    pub(crate) fn run(
        &self,
        backend: &mut CpuBackend,
        batch: &Batch,
        memory: &mut Memory,
        sequences: &[&Sequence],
        tape: &mut Tape,
        reader: Reader<'_>,
    ) -> Passed {
        let mut step = backend.begin();
        if batch.keeps {
            step.set_trials(&batch.depths());
        }
        let output = self.decoder.forward(&mut step, batch, self.bank, memory, sequences, tape);
        let fence = step.submit();
        let failures = step.failures();
        if let Some(logits) = output.logits {
            // The rows of each segment that was computed.
            let mut end = 0;
            let wanted = batch.segments.iter().map(|segment| {
                let first = end;
                end += segment.logit_rows().len();
                if failure_of(&failures, segment).is_some() { end..end } else { first..end }
            });
            let wanted: Vec<Range<usize>> = wanted.collect();
            let row_of = |row: usize| row * logits.cols()..(row + 1) * logits.cols();
            match reader {
                Reader::InOrder(read) => {
                    let values = step.read(&fence, logits);
                    wanted.into_iter().flatten().for_each(|row| read(row, &values[row_of(row)]));
                }
                Reader::AtOnce(read) => {
                    step.read_on_all(&fence, logits, wanted.len(), &|segment, values| {
                        let rows = wanted[segment].clone();
                        rows.for_each(|row| read(segment, row, &values[row_of(row)]));
                    });
                }
            }
        }
        let features = match self.head {
            Some(head) => heads::features(head, batch, &output, &mut step, &fence),
            None => Vec::new(),
        };
        Passed { features, failures }
    }
}

/// Why a segment could not be computed, if so.
pub(crate) fn failure_of<'a>(
    failures: &'a [RowFailure],
    segment: &Segment,
) -> Option<&'a RowFailure> {
    let rows = segment.row..segment.row + segment.count;
    rows.into_iter().find_map(|row| failures.iter().find(|failure| failure.row == row))
}
