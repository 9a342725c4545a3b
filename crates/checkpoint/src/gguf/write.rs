//! A streaming GGUF v3 writer, for handing our models to llama.cpp. Little-endian.
//!
//! Like [`crate::write`]: metadata and tensor list first, then the bytes in order. Dimensions are in GGUF's
//! order, innermost (inputs) first. Layout: llama.cpp `ggml/include/gguf.h`.

use std::collections::BTreeSet;
use std::io::Write;

use crate::stream::{Piece, Stream, pad, padding};
use crate::{Error, Result};
use format::Dtype;

use super::{ALIGNMENT_BYTES, DIMENSION_LIMIT, MAGIC};

const VERSION: u32 = 3;

/// ggml refuses longer names (`GGML_MAX_NAME` with its NUL).
const NAME_LIMIT_BYTES: usize = 63;

/// A metadata value to write, with the width that llama.cpp asks for.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    U64(u64),
    I64(i64),
    F64(f64),
    Strings(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    U32s(Vec<u32>),
    Bools(Vec<bool>),
}

/// The type number that precedes an array's element type.
const ARRAY_ID: u32 = 9;

impl Value {
    /// The `gguf_type` number, of the elements where this is an array.
    fn id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) | Value::U32s(_) => 4,
            Value::I32(_) | Value::I32s(_) => 5,
            Value::F32(_) | Value::F32s(_) => 6,
            Value::Bool(_) | Value::Bools(_) => 7,
            Value::String(_) | Value::Strings(_) => 8,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let array = |out: &mut Vec<u8>, len: usize| {
            out.extend(ARRAY_ID.to_le_bytes());
            out.extend(self.id().to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        let scalar = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend(self.id().to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Value::U8(value) => scalar(out, &value.to_le_bytes()),
            Value::I8(value) => scalar(out, &value.to_le_bytes()),
            Value::U16(value) => scalar(out, &value.to_le_bytes()),
            Value::I16(value) => scalar(out, &value.to_le_bytes()),
            Value::U32(value) => scalar(out, &value.to_le_bytes()),
            Value::I32(value) => scalar(out, &value.to_le_bytes()),
            Value::F32(value) => scalar(out, &value.to_le_bytes()),
            Value::Bool(value) => scalar(out, &[u8::from(*value)]),
            Value::U64(value) => scalar(out, &value.to_le_bytes()),
            Value::I64(value) => scalar(out, &value.to_le_bytes()),
            Value::F64(value) => scalar(out, &value.to_le_bytes()),
            Value::String(value) => {
                scalar(out, &[]);
                encode_string(value, out);
            }
            Value::Strings(values) => {
                array(out, values.len());
                values.iter().for_each(|value| encode_string(value, out));
            }
            Value::F32s(values) => {
                array(out, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            Value::I32s(values) => {
                array(out, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            Value::U32s(values) => {
                array(out, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            Value::Bools(values) => {
                array(out, values.len());
                values.iter().for_each(|value| out.push(u8::from(*value)));
            }
        }
    }
}

fn encode_string(value: &str, out: &mut Vec<u8>) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its name, at most 63 bytes.
    pub name: String,
    /// How it is stored: elements or blocks that GGUF has a number for.
    pub dtype: Dtype,
    /// Its dimensions, innermost first; one to four.
    pub dimensions: Vec<u64>,
}

/// A GGUF file being written.
#[derive(Debug)]
pub struct GgufWriter<W> {
    stream: Stream<W>,
}

impl<W: Write> GgufWriter<W> {
    /// Writes metadata and tensor list. `general.architecture` is the caller's to give.
    pub fn new(
        mut sink: W,
        metadata: &[(String, Value)],
        tensors: &[Declaration],
    ) -> Result<GgufWriter<W>> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        let mut keys = BTreeSet::new();
        for (key, value) in metadata {
            if !keys.insert(key) {
                return Err(refuse(key, "the key is taken"));
            }
            encode_string(key, &mut header);
            value.encode(&mut header);
        }
        let pieces = encode_tensors(tensors, &mut header)?;
        sink.write_all(&header).map_err(Error::Write)?;
        pad(&mut sink, padding(header.len() as u64, ALIGNMENT_BYTES), 0)?;
        Ok(GgufWriter { stream: Stream::new(sink, pieces)? })
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

fn encode_tensors(tensors: &[Declaration], header: &mut Vec<u8>) -> Result<Vec<Piece>> {
    let mut names = BTreeSet::new();
    let mut pieces = Vec::with_capacity(tensors.len());
    let mut offset = 0_u64;
    for Declaration { name, dtype, dimensions } in tensors {
        if !names.insert(name) {
            return Err(refuse(name, "the name is taken"));
        }
        if name.len() > NAME_LIMIT_BYTES {
            return Err(refuse(name, "the name is longer than 63 bytes"));
        }
        if dimensions.is_empty() || dimensions.len() > DIMENSION_LIMIT {
            return Err(refuse(name, "one to four dimensions are possible"));
        }
        let id = dtype.gguf_id().ok_or_else(|| refuse(name, "GGUF has no such type"))?;
        let len_bytes = tensor_bytes(*dtype, dimensions)
            .ok_or_else(|| refuse(name, "a row is no whole number of blocks, or it is too long"))?;
        encode_string(name, header);
        header.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|dimension| header.extend(dimension.to_le_bytes()));
        header.extend(id.to_le_bytes());
        header.extend(offset.to_le_bytes());
        let padding_bytes = padding(len_bytes, ALIGNMENT_BYTES);
        offset = len_bytes
            .checked_add(padding_bytes)
            .and_then(|padded| padded.checked_add(offset))
            .ok_or_else(|| refuse(name, "the file is too long"))?;
        pieces.push(Piece { name: name.clone(), len_bytes, padding_bytes });
    }
    Ok(pieces)
}

/// Bytes of a tensor of these dimensions, innermost first.
fn tensor_bytes(dtype: Dtype, dimensions: &[u64]) -> Option<u64> {
    let shape: Option<Vec<usize>> =
        dimensions.iter().rev().map(|&dimension| usize::try_from(dimension).ok()).collect();
    dtype.tensor_bytes(&shape?)
}

fn refuse(name: &str, detail: &str) -> Error {
    Error::Declaration { name: name.to_owned(), detail: detail.to_owned() }
}
