//! A model in no file: the checkpoint that `synth` would write, whose weights are made as they are read.
//!
//! Loading reads straight into place, so the only copy of a weight is the one that computes. Bytes are those of the
//! written files, headers included.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use checkpoint::{Checkpoint, Made};

use super::mlx::{self, Shard};
use super::parts::Part;
use super::{Error, Format, Request, Values};

/// From so many bytes on a read is shared by several threads.
const SHARED_BYTES: usize = 8 << 20;

/// The first `layers` layers of a shape with the values that `synth` gives it by default, and what it is in words.
pub fn made(like: &str, layers: Option<usize>) -> Result<(String, Checkpoint), Error> {
    let request = Request::new(like, layers, Values::default(), Format::Mlx, PathBuf::new())?;
    Ok((request.description(), checkpoint(&request)?))
}

/// The checkpoint that a request would write.
pub(super) fn checkpoint(request: &Request) -> Result<Checkpoint, Error> {
    let shards = mlx::shards(&request.tensors(), request.values);
    let files = mlx::side_files(request, &shards);
    let files = files.map(|(name, text)| (name.to_owned(), text.into_bytes()));
    let failed = |source| Error::Made { source: Box::new(source) };
    let weights = shards
        .into_iter()
        .map(|(name, shard)| Ok((name, Arc::new(Weights::new(shard)?) as Arc<dyn Made>)))
        .collect::<Result<_, checkpoint::Error>>()
        .map_err(failed)?;
    Checkpoint::from_made(files.into(), weights).map_err(failed)
}

/// One weight file.
struct Weights {
    header: Vec<u8>,
    /// Where each begins.
    parts: Vec<(u64, Part)>,
    len_bytes: u64,
}

impl Weights {
    fn new(shard: Shard) -> Result<Weights, checkpoint::Error> {
        let header = shard.header()?;
        let mut len_bytes = header.len() as u64;
        let mut parts = Vec::new();
        for part in shard.into_parts() {
            let begin = len_bytes;
            len_bytes += part.bytes();
            parts.push((begin, part));
        }
        Ok(Weights { header, parts, len_bytes })
    }

    fn fill_alone(&self, mut offset: u64, out: &mut [u8]) {
        let mut rest = out;
        if let Some(left) = self.header.get(offset as usize..) {
            let count = left.len().min(rest.len());
            let (head, after) = rest.split_at_mut(count);
            head.copy_from_slice(&left[..count]);
            (offset, rest) = (offset + count as u64, after);
        }
        let first = self.parts.partition_point(|(begin, part)| begin + part.bytes() <= offset);
        for (begin, part) in &self.parts[first..] {
            if rest.is_empty() {
                return;
            }
            let inside = offset - begin;
            let count = (part.bytes() - inside).min(rest.len() as u64);
            let (head, after) = rest.split_at_mut(count as usize);
            part.fill(inside, head);
            (offset, rest) = (offset + count, after);
        }
    }
}

impl Made for Weights {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn fill(&self, offset: u64, out: &mut [u8]) {
        if out.len() < SHARED_BYTES {
            return self.fill_alone(offset, out);
        }
        let share = out.len().div_ceil(machine::cpu::core_count().max(1));
        std::thread::scope(|scope| {
            for (index, out) in out.chunks_mut(share).enumerate() {
                scope.spawn(move || self.fill_alone(offset + (index * share) as u64, out));
            }
        });
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} made tensors in {} bytes", self.parts.len(), self.len_bytes)
    }
}
