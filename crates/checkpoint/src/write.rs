//! A streaming safetensors writer: declare every tensor, then stream their bytes in that order.
//!
//! Nothing is buffered beyond what the sink buffers, so a file larger than memory can be written.
//! The result has no holes, as the reference library demands, and its data begins at a multiple
//! of eight.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::stream::{Piece, Stream, pad, padding};
use crate::{Error, Result};
use format::Dtype;

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl Declaration {
    /// A tensor of this name, dtype and shape.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[usize]) -> Declaration {
        Declaration { name: name.into(), dtype, shape: shape.to_vec() }
    }
}

/// A safetensors file being written.
#[derive(Debug)]
pub struct SafetensorsWriter<W> {
    stream: Stream<W>,
}

impl SafetensorsWriter<BufWriter<File>> {
    /// Creates or replaces the file at `path`.
    pub fn create(
        path: &Path,
        tensors: &[Declaration],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let file = File::create(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            operation: "create",
            source,
        })?;
        SafetensorsWriter::new(BufWriter::with_capacity(1 << 20, file), tensors, metadata)
    }
}

impl<W: Write> SafetensorsWriter<W> {
    /// Writes the header.
    pub fn new(
        mut sink: W,
        tensors: &[Declaration],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let pieces = pieces(tensors)?;
        let header = header(tensors, metadata, 8)?;
        sink.write_all(&header).map_err(Error::Write)?;
        Ok(SafetensorsWriter { stream: Stream::new(sink, pieces)? })
    }

    /// Appends bytes to tensor `name`, which must be the next incomplete one. A tensor may come in
    /// any number of pieces.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.stream.write(name, bytes)
    }

    /// Flushes and hands the sink back; an error when a tensor is still incomplete.
    pub fn finish(self) -> Result<W> {
        self.stream.finish()
    }
}

/// Everything before the data of a file with these tensors: the length, the JSON, and spaces so that the
/// data begins at a multiple of `alignment`. For callers that write the data without a [`SafetensorsWriter`].
pub fn header(
    tensors: &[Declaration],
    metadata: &BTreeMap<String, String>,
    alignment: u64,
) -> Result<Vec<u8>> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut begin = 0;
    for (Declaration { name, dtype, shape }, piece) in tensors.iter().zip(pieces(tensors)?) {
        let end = begin + piece.len_bytes;
        let entry = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), entry);
        begin = end;
    }
    let json = Value::Object(header).to_string();
    let spaces = padding(8 + json.len() as u64, alignment);
    let header_bytes = json.len() as u64 + spaces;
    let mut bytes = Vec::with_capacity(8 + header_bytes as usize);
    bytes.extend(header_bytes.to_le_bytes());
    bytes.extend(json.as_bytes());
    pad(&mut bytes, spaces, b' ')?;
    Ok(bytes)
}

/// The tensors as pieces of the data section, or what is wrong with one of them.
fn pieces(tensors: &[Declaration]) -> Result<Vec<Piece>> {
    let mut names = BTreeSet::from(["__metadata__"]);
    let mut pieces = Vec::with_capacity(tensors.len());
    let mut total = 0_u64;
    for Declaration { name, dtype, shape } in tensors {
        let refuse =
            |detail: &str| Error::Declaration { name: name.clone(), detail: detail.to_owned() };
        if !names.insert(name) {
            return Err(refuse("the name is taken"));
        }
        let len_bytes =
            dtype.tensor_bytes(shape).ok_or_else(|| refuse("no whole number of bytes"))?;
        total = total.checked_add(len_bytes).ok_or_else(|| refuse("the file is too long"))?;
        pieces.push(Piece { name: name.clone(), len_bytes, padding_bytes: 0 });
    }
    Ok(pieces)
}
