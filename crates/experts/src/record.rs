//! Where an expert's bytes lie, in the files and in its slot.
//!
//! In a published file an expert is up to twelve ranges at any byte. Each is read as the aligned blocks
//! that cover it, so it lands in the slot with the offset within a block that it has in the file; the
//! kernels load from any address. Ranges that touch or share blocks are one region: a repacked expert
//! is a single one.

use checkpoint::{ExpertLayout, FileIndex, LinearSlice, Projection, Span};
use compute::{BiasPlace, ExpertPlace, MatrixPlace};

use crate::device::ALIGNMENT;

/// A longer region is read in pieces of about this, so that the disk works on them side by side.
const PIECE_BYTES: usize = 1 << 20;

/// The routed experts of one layer.
#[derive(Clone, Debug)]
pub struct LayerExperts {
    /// Where they lie.
    pub layout: ExpertLayout,
    /// Experts each token uses.
    pub experts_per_token: usize,
}

/// Blocks of a file and where they go in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The file.
    pub file: FileIndex,
    /// A multiple of [`ALIGNMENT`].
    pub offset: u64,
    /// A multiple of [`ALIGNMENT`].
    pub slot_offset: usize,
    /// A multiple of [`ALIGNMENT`]; the last block may lie past the end of the file.
    pub len: usize,
    /// Bytes from the start that must come.
    pub needed: usize,
}

/// Where one expert's bytes are in the files, and its parts in its slot.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) regions: Vec<Region>,
    pub(crate) place: ExpertPlace,
}

impl Record {
    pub(crate) fn new(layer: &LayerExperts, expert: usize) -> Record {
        // Every range with the projection and the part it is.
        let mut spans: Vec<(Span, usize, usize)> = Vec::with_capacity(12);
        let slices = Projection::ALL.map(|projection| layer.layout.slice(expert, projection));
        for (projection, slice) in slices.iter().enumerate() {
            let parts = [Some(slice.weight), slice.scales, slice.biases, slice.bias];
            let tagged = parts.into_iter().enumerate();
            spans.extend(tagged.filter_map(|(i, span)| Some((span?, projection, i))));
        }
        spans.sort_unstable_by_key(|(span, ..)| (span.file.0, span.offset));
        let mut regions: Vec<Region> = Vec::with_capacity(spans.len());
        // By projection: codes, scales, biases and the ordinary bias.
        let mut starts = [[0; 4]; 3];
        let mut slot_bytes = 0;
        for (span, projection, part) in spans {
            let start = span.offset / ALIGNMENT as u64 * ALIGNMENT as u64;
            let end = span.offset + span.len_bytes;
            let touches = |region: &Region| {
                region.file == span.file && start <= region.offset + region.len as u64
            };
            match regions.last_mut().filter(|region| touches(region)) {
                Some(region) => {
                    region.needed = region.needed.max((end - region.offset) as usize);
                    let len = region.needed.next_multiple_of(ALIGNMENT);
                    slot_bytes += len - region.len;
                    region.len = len;
                }
                None => {
                    let needed = (end - start) as usize;
                    let len = needed.next_multiple_of(ALIGNMENT);
                    let (file, slot_offset) = (span.file, slot_bytes);
                    regions.push(Region { file, offset: start, slot_offset, len, needed });
                    slot_bytes += len;
                }
            }
            let region = regions[regions.len() - 1];
            starts[projection][part] = region.slot_offset + (span.offset - region.offset) as usize;
        }
        let projection = |index: usize| {
            let LinearSlice { out_features: rows, in_features: cols, encoding, .. } = slices[index];
            let [codes, scales, biases, _] = starts[index];
            MatrixPlace { rows, cols, encoding, factor: 1.0, codes, scales, biases }
        };
        let bias = |index: usize| {
            let (start, float) = (starts[index][3], slices[index].bias_float?);
            Some(BiasPlace { start, float })
        };
        let place = ExpertPlace {
            projections: [0, 1, 2].map(projection),
            biases: [0, 1, 2].map(bias),
            is_interleaved: layer.layout.is_interleaved(),
        };
        Record { regions, place }
    }

    /// Bytes of the slot it takes.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.regions.iter().map(|region| region.len).sum()
    }

    /// Its regions as reads of at most about a megabyte.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Region> {
        self.regions.iter().flat_map(|region| {
            let count = region.len.div_ceil(PIECE_BYTES);
            let piece = region.len.div_ceil(count).next_multiple_of(ALIGNMENT);
            (0..region.len).step_by(piece).map(move |start| Region {
                file: region.file,
                offset: region.offset + start as u64,
                slot_offset: region.slot_offset + start,
                len: piece.min(region.len - start),
                needed: region.needed.saturating_sub(start).min(piece),
            })
        })
    }
}

/// The reads that would bring an expert, for a probe of the disk.
pub fn reads_of(layer: &LayerExperts, expert: usize) -> Vec<Region> {
    Record::new(layer, expert).pieces().collect()
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
