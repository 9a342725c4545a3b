//! The header of a GGUF file as a stream of numbers and strings, each held to what the file can still have.
//!
//! Nothing is allocated on the word of a count: what a count asks for is compared with the bytes that are left, and
//! the header as a whole has a limit.

use crate::folder::OpenFile;
use crate::{Error, Result};

/// The longest header read. Large vocabularies make 20 MB.
const HEADER_LIMIT_BYTES: u64 = 1 << 30;

/// Bytes that are read at once.
const CHUNK_BYTES: u64 = 256 << 10;

/// A file from its beginning on.
pub(super) struct Input<'a> {
    file: &'a OpenFile,
    /// What was read ahead, and how much of it has been taken.
    chunk: Vec<u8>,
    taken: usize,
    /// Where the chunk ends in the file.
    chunk_end: u64,
    /// Where the header must have ended.
    limit: u64,
}

/// What was wrong, for a caller that knows of which part of the header.
#[derive(Debug)]
pub(super) enum Fault {
    /// The bytes cannot be meant like this.
    Malformed { offset: u64, detail: String },
    /// The file cannot be read.
    Failed(Error),
}

impl Fault {
    /// The error about `part` of a file.
    pub(super) fn of(self, file: &OpenFile, part: impl Into<String>) -> Error {
        match self {
            Fault::Malformed { offset, detail } => {
                Error::GgufHeader { path: file.path.clone(), offset, part: part.into(), detail }
            }
            Fault::Failed(error) => error,
        }
    }
}

impl<'a> Input<'a> {
    pub(super) fn new(file: &'a OpenFile) -> Input<'a> {
        let limit = file.len_bytes.min(HEADER_LIMIT_BYTES);
        Input { file, chunk: Vec::new(), taken: 0, chunk_end: 0, limit }
    }

    /// The offset of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.chunk_end - (self.chunk.len() - self.taken) as u64
    }

    /// Bytes there may still be.
    fn left(&self) -> u64 {
        self.limit - self.position()
    }

    /// What is wrong with the bytes from `offset` on.
    pub(super) fn fault(offset: u64, detail: impl Into<String>) -> Fault {
        Fault::Malformed { offset, detail: detail.into() }
    }

    /// Checks that `count` items of at least `least` bytes each can follow, and that there are no more than `most`.
    pub(super) fn expect(
        &self,
        count: u64,
        least: u64,
        most: u64,
        items: &str,
    ) -> Result<(), Fault> {
        let offset = self.position();
        if count > most {
            let detail = format!("{count} {items}, expected at most {most}");
            return Err(Input::fault(offset, detail));
        }
        // The count has a limit, so this cannot overflow.
        if count * least > self.left() {
            let left = self.left();
            let detail = format!("{count} {items}, and only {left} bytes follow (truncated?)");
            return Err(Input::fault(offset, detail));
        }
        Ok(())
    }

    /// Appends the next `count` bytes, which the caller has compared with what is left.
    pub(super) fn append(&mut self, count: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        self.expect(count, 1, HEADER_LIMIT_BYTES, "bytes")?;
        let mut wanted = count as usize;
        out.reserve(wanted);
        while wanted > 0 {
            if self.taken == self.chunk.len() {
                self.next_chunk()?;
            }
            let rest = &self.chunk[self.taken..];
            let rest = &rest[..rest.len().min(wanted)];
            out.extend_from_slice(rest);
            self.taken += rest.len();
            wanted -= rest.len();
        }
        Ok(())
    }

    /// The next chunk, of which there is at least one byte.
    fn next_chunk(&mut self) -> Result<(), Fault> {
        let len = CHUNK_BYTES.min(self.left());
        self.chunk.resize(len as usize, 0);
        self.taken = self.chunk.len();
        self.file.read_at(self.chunk_end, &mut self.chunk).map_err(Fault::Failed)?;
        self.chunk_end += len;
        self.taken = 0;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.expect(N as u64, 1, N as u64, "bytes")?;
        let mut out = [0; N];
        if let Some(bytes) = self.chunk[self.taken..].first_chunk() {
            self.taken += N;
            return Ok(*bytes);
        }
        let mut bytes = Vec::new();
        self.append(N as u64, &mut bytes)?;
        out.copy_from_slice(&bytes);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    /// Appends a string of at most `most` bytes.
    pub(super) fn append_string(&mut self, most: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        let len = self.u64()?;
        self.expect(len, 1, most, "bytes in a string")?;
        self.append(len, out)
    }

    /// A name of at most `most` bytes.
    pub(super) fn name(&mut self, most: u64) -> Result<String, Fault> {
        let offset = self.position();
        let mut bytes = Vec::new();
        self.append_string(most, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| Input::fault(offset, "a name that is not UTF-8"))
    }
}
