//! Rows of a matrix that stays in its file: its holder reads one at a time, for longer than the checkpoint lives.

use std::sync::Arc;

use crate::folder::OpenFile;
use crate::{Checkpoint, LinearSlice, Result, Span};

/// The rows of one matrix.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Weights, scales and biases, as far as there are such.
    parts: Vec<(Arc<OpenFile>, Span)>,
    count: usize,
}

impl Rows {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of one of them.
    pub fn row_bytes(&self) -> usize {
        let bytes = |(_, span): &(Arc<OpenFile>, Span)| span.len_bytes as usize / self.count;
        self.parts.iter().map(bytes).sum()
    }

    /// The weights of a row, then its scales, then its biases.
    ///
    /// # Panics
    /// When there is no such row, or `out` is not [`Rows::row_bytes`] long.
    pub fn read(&self, row: usize, out: &mut [u8]) -> Result<()> {
        assert_eq!(out.len(), self.row_bytes(), "room for a row");
        let mut rest = out;
        for (file, span) in &self.parts {
            let span = span.rows(row, 1, self.count);
            let (part, after) = rest.split_at_mut(span.len_bytes as usize);
            file.read_at(span.offset, part)?;
            rest = after;
        }
        Ok(())
    }
}

impl Checkpoint {
    /// The rows of a matrix, without its ordinary bias.
    pub fn rows(&self, matrix: &LinearSlice) -> Rows {
        let spans = [Some(matrix.weight), matrix.scales, matrix.biases];
        let parts = spans.into_iter().flatten().map(|span| (self.open_file(span.file), span));
        Rows { parts: parts.collect(), count: matrix.out_features }
    }
}
