//! One pass of a batch through the model: on all threads together, or in parts, one a thread.
//!
//! Operations over wide weights are shared by all threads: a weight is read once. Over narrow ones there is little to share
//! and much waiting for each other; so where every thread can have answers of its own they go through the model in parts,
//! and threads meet for the experts only. No row's result depends on which of the two it is.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use compute::{CpuBackend, CpuStep, ExpertBank, PartOf, RowFailure, Step, Tape};
use model::{Batch, Decoder, Head, Segment};
use state::{Memory, MemoryPart, Sequence};

use crate::heads;

/// Bytes of the weights that every row needs, up to which every thread may read all of them: they stay in its cache.
const NARROW_BYTES: u64 = 4 << 20;
/// Rows of a batch in parts at most: with many, operations are large enough to be shared.
const MOST_ROWS: usize = 256;
/// Rows that a thread has at least on average.
const ROWS_EACH: usize = 2;

/// Who looks at the rows of logits that a batch asks for.
pub(crate) enum Reader<'a> {
    /// One after another: the row and its values.
    InOrder(&'a mut dyn FnMut(usize, &[f32])),
    /// Those of different segments at once, on all threads: the segment, the row and its values.
    AtOnce(&'a (dyn Fn(usize, usize, &[f32]) + Sync)),
}

/// What a batch goes through.
pub(crate) struct Pass<'a> {
    pub(crate) decoder: &'a Decoder,
    pub(crate) bank: Option<&'a dyn ExpertBank>,
    /// Who wants to know more of each row than its logits.
    pub(crate) head: Option<&'a Head>,
    pub(crate) activations: Activations,
}

/// Floats of activations that a step takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activations {
    pub(crate) row: usize,
    pub(crate) logit_row: usize,
    /// Between tensors, which begin on a cache line.
    pub(crate) rest: usize,
}

impl Activations {
    /// Those of a step with so many rows.
    pub(crate) fn of(&self, rows: usize, logit_rows: usize) -> usize {
        rows * self.row + logit_rows * self.logit_row + self.rest
    }
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
    pub(crate) fn whole(
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
        self.run(&mut step, batch, &mut memory.whole(), sequences, tape, reader)
    }

    /// Runs some segments of a batch on each thread.
    pub(crate) fn apart(
        &self,
        backend: &mut CpuBackend,
        batch: &Batch,
        parts: &[Range<usize>],
        memory: &mut Memory,
        sequences: &[&Sequence],
        tape: &mut Tape,
        read: &(dyn Fn(usize, usize, &[f32]) + Sync),
    ) -> Passed {
        let group = |part: &Range<usize>| {
            batch.segments[part.clone()].iter().map(|s| sequences[s.sequence]).collect()
        };
        let groups: Vec<Vec<&Sequence>> = parts.iter().map(group).collect();
        let mut first_logit = 0;
        let work = parts.iter().zip(memory.apart(&groups)).map(|(part, memory)| {
            let batch = batch.part(part.clone());
            let logit = first_logit;
            let logits = batch.segments.iter().map(|s| s.logit_rows().len()).sum::<usize>();
            first_logit += logits;
            let rows = batch.rows.len();
            let floats = self.activations.of(rows, logits);
            PartOf { what: (batch, part.start, logit, memory), rows, floats }
        });
        let work: Vec<PartOf<(Batch, usize, usize, MemoryPart<'_>)>> = work.collect();
        let passed: Vec<Mutex<(Passed, Tape)>> = work.iter().map(|_| Mutex::default()).collect();
        backend.apart(work, |index, (batch, first, logit, mut memory), step| {
            let read = |segment: usize, row: usize, values: &[f32]| {
                read(first + segment, logit + row, values);
            };
            let (mut tape, reader) = (Tape::default(), Reader::AtOnce(&read));
            let result = self.run(step, &batch, &mut memory, sequences, &mut tape, reader);
            *passed[index].lock().unwrap_or_else(PoisonError::into_inner) = (result, tape);
        });
        let mut all = Passed::default();
        if batch.keeps {
            *tape = Tape::default();
        }
        for (part, passed) in parts.iter().zip(passed) {
            let (Passed { features, failures }, rows) =
                passed.into_inner().unwrap_or_else(PoisonError::into_inner);
            tape.append(rows);
            let first = batch.segments[part.start].row;
            all.features.extend(features);
            let moved = failures.into_iter();
            all.failures.extend(moved.map(|f| RowFailure { row: first + f.row, ..f }));
        }
        all
    }

    fn run(
        &self,
        step: &mut CpuStep<'_>,
        batch: &Batch,
        memory: &mut MemoryPart<'_>,
        sequences: &[&Sequence],
        tape: &mut Tape,
        reader: Reader<'_>,
    ) -> Passed {
        let output = self.decoder.forward(step, batch, self.bank, memory, sequences, tape);
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
            Some(head) => heads::features(head, batch, &output, step, &fence),
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

/// Whether a model with so many bytes of weights for every row can go in parts.
pub(crate) fn is_narrow(weight_bytes: u64) -> bool {
    weight_bytes <= NARROW_BYTES
}

/// The segments of a batch that each thread takes through a narrow model; none if it is better run by all of them together.
pub(crate) fn parts(batch: &Batch, threads: usize) -> Option<Vec<Range<usize>>> {
    let rows = batch.rows.len();
    let count = threads.min(rows / ROWS_EACH).min(batch.segments.len());
    if count < 2 || rows > MOST_ROWS {
        return None;
    }
    let mut parts = Vec::with_capacity(count);
    let mut start = 0;
    for part in 1..=count {
        // Up to the segment whose end is closest to an even share.
        let share = rows * part / count;
        let ends = batch.segments.iter().map(|s| (s.row + s.count).abs_diff(share));
        let end = match part == count {
            true => batch.segments.len(),
            false => ends.enumerate().min_by_key(|end| end.1).map_or(0, |end| end.0 + 1),
        };
        parts.push(start..end.max(start));
        start = end.max(start);
    }
    let rows_of = |part: &Range<usize>| -> usize {
        batch.segments[part.clone()].iter().map(|segment| segment.count).sum()
    };
    // The others would wait for who has a long prompt.
    let is_even = |part: &Range<usize>| {
        let own = rows_of(part);
        own > 0 && (3 * count * own <= 4 * rows || own <= ROWS_EACH + 1)
    };
    parts.iter().all(is_even).then_some(parts)
}

#[cfg(test)]
#[path = "pass_tests.rs"]
mod tests;
