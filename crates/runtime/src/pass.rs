//! One pass of a batch through the model: rows in, logits and failures out.

use std::ops::Range;

use compute::{Features, RowFailure, RowLogits};
use model::{Decoder, Head, Pass, Segment};

use crate::features;

/// How the rows of logits that a batch requests are read.
pub enum LogitsReader<'a> {
    /// One after another: the row and its values.
    InOrder(&'a mut dyn FnMut(usize, &[f32])),
    /// Those of different segments in parallel, on all threads: the segment, the row and its values.
    AtOnce(&'a (dyn Fn(usize, usize, RowLogits<'_>) + Sync)),
}

/// The output of a pass other than logits.
#[derive(Default)]
pub(crate) struct PassOutput {
    /// What the head needs, by segment.
    pub(crate) features: Vec<Features>,
    pub(crate) failures: Vec<RowFailure>,
}

/// Runs a batch as one step. A head reads features of each row in addition to its logits.
pub(crate) fn run(
    decoder: &Decoder,
    head: Option<&Head>,
    mut pass: Pass<'_>,
    reader: LogitsReader<'_>,
) -> PassOutput {
    let batch = pass.batch;
    if batch.keeps {
        pass.step.set_trials(&batch.depths());
    }
    let output = decoder.forward(&mut pass);
    let step = pass.step;
    let features =
        head.map_or_else(Vec::new, |head| features::of_segments(head, batch, &output, step));
    let fence = step.submit();
    let failures = step.failures(&fence);
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
            LogitsReader::InOrder(read) => {
                let values = step.read(&fence, logits);
                wanted.into_iter().flatten().for_each(|row| read(row, &values[row_of(row)]));
            }
            LogitsReader::AtOnce(read) => step.read_logits(&fence, logits, &wanted, read),
        }
    }
    PassOutput { features, failures }
}

/// Why a segment could not be computed, if so.
pub(crate) fn failure_of<'a>(
    failures: &'a [RowFailure],
    segment: &Segment,
) -> Option<&'a RowFailure> {
    let rows = segment.row..segment.row + segment.count;
    rows.into_iter().find_map(|row| failures.iter().find(|failure| failure.row == row))
}
