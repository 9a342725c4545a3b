//! One file's header: metadata, then a table of tensors.
//!
//! Checked here, so that callers need not: counts fit the file, each tensor's type is one that is read, its rows are
//! whole blocks, its bytes lie at the file's alignment inside the file and overlap no other tensor's. Tensors need not
//! follow each other without holes, as llama.cpp demands; padding after the last may be missing.

use std::path::Path;

use super::input::{Fault, Input};
use super::metadata::Metadata;
use super::{ALIGNMENT_BYTES, DIMENSION_LIMIT, MAGIC};
use crate::folder::OpenFile;
use crate::{Error, FileIndex, Result, Tensor, layout};
use format::Dtype;

/// The most metadata fields. Published files have less than a hundred.
const FIELD_LIMIT: u64 = 1 << 16;

/// The most tensors. The largest published models have less than 2,000.
const TENSOR_LIMIT: u64 = 1_000_000;

/// The longest tensor name. ggml's own have less than 64 bytes.
const NAME_LIMIT_BYTES: u64 = 1024;

/// The bytes of the shortest field: a key's length, a letter, a type, a value.
const FIELD_BYTES: u64 = 8 + 1 + 4 + 1;

/// The bytes of the shortest entry of the table: a name's length, dimensions' count, type, offset.
const ENTRY_BYTES: u64 = 8 + 4 + 4 + 8;

/// What one file says.
pub(super) struct Header {
    pub(super) metadata: Metadata,
    /// By GGUF's names, in the order of their bytes, with offsets from the beginning of the file.
    pub(super) tensors: Vec<Tensor>,
}

/// Reads and checks the header of an open file.
pub(super) fn read(file: &OpenFile, index: FileIndex) -> Result<Header> {
    let input = &mut Input::new(file);
    let of = |part: &'static str| move |fault: Fault| fault.of(file, part);
    check_version(input, file)?;
    let tensor_count = input.u64().map_err(of("the number of tensors"))?;
    let field_count = input.u64().map_err(of("the number of metadata fields"))?;
    input
        .expect(field_count, FIELD_BYTES, FIELD_LIMIT, "metadata fields")
        .map_err(of("metadata"))?;
    let mut metadata = Metadata::new(&file.path);
    for _ in 0..field_count {
        metadata.read_field(input).map_err(|(part, fault)| fault.of(file, part))?;
    }
    let alignment = alignment(&metadata)?;
    input.expect(tensor_count, ENTRY_BYTES, TENSOR_LIMIT, "tensors").map_err(of("tensors"))?;
    let mut tensors = Vec::with_capacity(tensor_count as usize);
    for number in 0..tensor_count {
        let entry = Entry::read(input, number).map_err(|(part, fault)| fault.of(file, part))?;
        tensors.push(entry);
    }
    let data_start = input.position().next_multiple_of(alignment);
    let place = Place {
        path: &file.path,
        file: index,
        alignment,
        data_start,
        data_bytes: file.len_bytes.saturating_sub(data_start),
    };
    let mut tensors: Vec<Tensor> =
        tensors.into_iter().map(|entry| place.tensor(entry)).collect::<Result<_>>()?;
    layout::check_overlap(&mut tensors, &file.path, data_start)?;
    layout::check_names(&tensors, &file.path)?;
    Ok(Header { metadata, tensors })
}

fn check_version(input: &mut Input<'_>, file: &OpenFile) -> Result<()> {
    let of = |part: &'static str| move |fault: Fault| fault.of(file, part);
    let magic: [u8; 4] = input.array().map_err(of("the first four bytes"))?;
    if magic != *MAGIC {
        let got = String::from_utf8_lossy(&magic).into_owned();
        return Err(Error::NotGguf { path: file.path.clone(), got });
    }
    let got = input.u32().map_err(of("the version"))?;
    let detail = match got {
        2 | 3 => return Ok(()),
        1 => "from before August 2023; the file needs to be converted again",
        // The bytes of a small number in the other order.
        got if got.trailing_zeros() >= 16 => {
            "big-endian; files are read in little-endian order only, as almost all are"
        }
        _ => "expected 2 or 3; the file may be newer than this program, or broken",
    };
    Err(Error::GgufVersion { path: file.path.clone(), got, detail })
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    let key = "general.alignment";
    let alignment = metadata.u64(key)?.unwrap_or(ALIGNMENT_BYTES);
    if !alignment.is_power_of_two() || alignment > u64::from(u32::MAX) {
        return Err(metadata.refuse(key, "a power of two that has 32 bits"));
    }
    Ok(alignment)
}

/// An entry of the table, as it stands.
struct Entry {
    name: String,
    /// Innermost first.
    dimensions: Vec<u64>,
    type_id: u32,
    offset: u64,
}

impl Entry {
    fn read(input: &mut Input<'_>, number: u64) -> Result<Entry, (String, Fault)> {
        let offset = input.position();
        let name =
            input.name(NAME_LIMIT_BYTES).map_err(|fault| (format!("tensor {number}"), fault))?;
        let described = format!("tensor {name:?}");
        if name.is_empty() {
            return Err((format!("tensor {number}"), Input::fault(offset, "an empty name")));
        }
        Entry::read_rest(input, name).map_err(|fault| (described, fault))
    }

    fn read_rest(input: &mut Input<'_>, name: String) -> Result<Entry, Fault> {
        let offset = input.position();
        let count = input.u32()? as usize;
        if count > DIMENSION_LIMIT {
            let detail = format!("{count} dimensions, expected at most {DIMENSION_LIMIT}");
            return Err(Input::fault(offset, detail));
        }
        let dimensions = (0..count).map(|_| input.u64()).collect::<Result<_, Fault>>()?;
        Ok(Entry { name, dimensions, type_id: input.u32()?, offset: input.u64()? })
    }
}

/// Where the tensors of a file may lie.
struct Place<'a> {
    path: &'a Path,
    file: FileIndex,
    alignment: u64,
    data_start: u64,
    data_bytes: u64,
}

impl Place<'_> {
    fn tensor(&self, entry: Entry) -> Result<Tensor> {
        let path = || self.path.to_owned();
        let Entry { name: tensor, dimensions, type_id, offset } = entry;
        let dtype = match Dtype::from_gguf(type_id) {
            Ok(dtype) => dtype,
            Err(unread) => return Err(Error::UnreadType { path: path(), tensor, unread }),
        };
        // The outermost dimension first, as everywhere else. What no address has cannot be in the file either.
        let outermost_first = dimensions.iter().rev();
        let shape: Vec<usize> = outermost_first
            .map(|&dimension| usize::try_from(dimension).unwrap_or(usize::MAX))
            .collect();
        if let Dtype::Block(format) = dtype
            && let row = dimensions.first().copied().unwrap_or(1)
            && !row.is_multiple_of(format.weights() as u64)
        {
            return Err(Error::RaggedBlocks { path: path(), tensor, format, row });
        }
        let Some(len_bytes) = dtype.tensor_bytes(&shape) else {
            return Err(Error::ShapeOverflow { path: path(), tensor, dtype, shape });
        };
        if !offset.is_multiple_of(self.alignment) {
            let alignment = self.alignment;
            return Err(Error::Misaligned { path: path(), tensor, offset, alignment });
        }
        let data_bytes = self.data_bytes;
        match offset.checked_add(len_bytes) {
            Some(end) if end <= data_bytes => {}
            end => {
                let end = end.unwrap_or(u64::MAX);
                return Err(Error::OutOfRange { path: path(), tensor, end, data_bytes });
            }
        }
        let offset = self.data_start + offset;
        Ok(Tensor { name: tensor, dtype, shape, file: self.file, offset, len_bytes })
    }
}
