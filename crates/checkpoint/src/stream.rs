//! Tensors written one after the other into any sink, held to what was declared.
//!
//! Shared by the safetensors and the GGUF writer: both put all sizes into a header first, so a
//! byte too many or a tensor out of order would corrupt everything after it. Both are errors here.

use std::io::Write;

use crate::{Error, Result};

/// One declared tensor: its name, its bytes, and the padding that follows it.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) name: String,
    pub(crate) len_bytes: u64,
    pub(crate) padding_bytes: u64,
}

/// The data section of a file being written.
#[derive(Debug)]
pub(crate) struct Stream<W> {
    sink: W,
    pieces: Vec<Piece>,
    /// The piece being written, and how much of it has been.
    current: usize,
    written: u64,
}

impl<W: Write> Stream<W> {
    /// Starts after the header has been written to `sink`.
    pub(crate) fn new(sink: W, pieces: Vec<Piece>) -> Result<Stream<W>> {
        let mut stream = Stream { sink, pieces, current: 0, written: 0 };
        stream.advance()?;
        Ok(stream)
    }

    /// Appends bytes to tensor `name`, which must be the next incomplete one.
    pub(crate) fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        // Empty tensors are complete before they are written; writing them anyway is no mistake.
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(piece) = self.pieces.get(self.current) else {
            let expected = "the end".to_owned();
            return Err(Error::WriteOrder { expected, got: name.to_owned() });
        };
        if piece.name != name {
            return Err(Error::WriteOrder { expected: piece.name.clone(), got: name.to_owned() });
        }
        let written = self.written + bytes.len() as u64;
        if written > piece.len_bytes {
            let (tensor, expected) = (name.to_owned(), piece.len_bytes);
            return Err(Error::WriteLength { tensor, expected, got: written });
        }
        self.sink.write_all(bytes).map_err(Error::Write)?;
        self.written = written;
        self.advance()
    }

    /// Flushes and hands the sink back; an error when a tensor is still incomplete.
    pub(crate) fn finish(mut self) -> Result<W> {
        if let Some(piece) = self.pieces.get(self.current) {
            let (tensor, expected) = (piece.name.clone(), piece.len_bytes);
            return Err(Error::WriteLength { tensor, expected, got: self.written });
        }
        self.sink.flush().map_err(Error::Write)?;
        Ok(self.sink)
    }

    /// Pads and passes every complete piece; empty tensors are complete from the start.
    fn advance(&mut self) -> Result<()> {
        while let Some(piece) = self.pieces.get(self.current)
            && self.written == piece.len_bytes
        {
            pad(&mut self.sink, piece.padding_bytes, 0)?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }
}

/// Writes `count` times `byte`.
pub(crate) fn pad(sink: &mut impl Write, count: u64, byte: u8) -> Result<()> {
    let block = [byte; 64];
    let mut left = count;
    while left > 0 {
        let len = left.min(block.len() as u64);
        sink.write_all(&block[..len as usize]).map_err(Error::Write)?;
        left -= len;
    }
    Ok(())
}

/// The bytes from `len` to the next multiple of `alignment`.
pub(crate) fn padding(len: u64, alignment: u64) -> u64 {
    len.wrapping_neg() % alignment
}
