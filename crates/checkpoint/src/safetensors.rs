//! The safetensors header: an 8-byte little-endian length, that much JSON, then the data.
//!
//! Checked here, so that callers need not: the header fits the file, each tensor's bytes are
//! exactly what its dtype and shape need, lie inside the file and overlap no other tensor's.
//! Holes between tensors and bytes after the last are allowed; they harm nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::folder::{OpenFile, allocate};
use crate::{Error, FileIndex, Result, Tensor, layout};
use format::Dtype;

/// The longest header read: the same 100 MB as the safetensors library.
pub const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// The longest tensor name. Real ones stay below 150 bytes.
const NAME_LIMIT_BYTES: usize = 1024;

/// The most dimensions of a tensor. Real ones have at most five.
const DIMENSION_LIMIT: usize = 16;

/// The most entries of `__metadata__`. Real ones have a handful.
const METADATA_LIMIT: usize = 1 << 16;

/// What one header says.
#[derive(Debug, Default)]
pub struct Header {
    /// The tensors, sorted by name, with offsets from the beginning of the file.
    pub tensors: Vec<Tensor>,
    /// The `__metadata__` table.
    pub metadata: BTreeMap<String, String>,
}

/// Reads and checks the header of an open file.
pub(crate) fn read_header(file: &OpenFile, index: FileIndex) -> Result<Header> {
    let mut prefix = [0_u8; 8];
    file.read_at(0, &mut prefix)?;
    let header_bytes = u64::from_le_bytes(prefix);
    let limit = HEADER_LIMIT_BYTES.min(file.len_bytes.saturating_sub(8));
    if header_bytes > limit {
        return Err(Error::HeaderLength { path: file.path.clone(), limit, got: header_bytes });
    }
    let mut json = allocate(&file.path, header_bytes, "the header")?;
    file.read_at(8, &mut json)?;
    parse_header(&json, &file.path, index, file.len_bytes)
}

/// Checks the JSON of a header that belongs to a file of `file_bytes` bytes.
pub fn parse_header(json: &[u8], path: &Path, file: FileIndex, file_bytes: u64) -> Result<Header> {
    let raw: RawHeader = serde_json::from_slice(json)
        .map_err(|error| Error::Json { path: path.to_owned(), detail: error.to_string() })?;
    let data_start = 8 + json.len() as u64;
    let data_bytes = file_bytes.saturating_sub(data_start);

    let mut tensors = Vec::with_capacity(raw.tensors.len());
    for (name, entry) in raw.tensors {
        tensors.push(check_entry(name, entry, path, file, data_start, data_bytes)?);
    }
    layout::check_overlap(&mut tensors, path, data_start)?;
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let tensor = pair[0].name.clone();
        return Err(Error::Duplicate { path: path.to_owned(), tensor });
    }
    Ok(Header { tensors, metadata: raw.metadata })
}

fn check_entry(
    name: String,
    entry: RawEntry,
    path: &Path,
    file: FileIndex,
    data_start: u64,
    data_bytes: u64,
) -> Result<Tensor> {
    let path = || path.to_owned();
    let Shape(shape) = entry.shape;
    let Some(dtype) = Dtype::from_name(&entry.dtype) else {
        return Err(Error::UnknownDtype { path: path(), tensor: name, got: entry.dtype });
    };
    let Some(expected) = dtype.tensor_bytes(&shape) else {
        return Err(Error::ShapeOverflow { path: path(), tensor: name, dtype, shape });
    };
    let [begin, end] = entry.data_offsets;
    let Some(got) = end.checked_sub(begin) else {
        return Err(Error::Reversed { path: path(), tensor: name, begin, end });
    };
    if got != expected {
        let tensor = name;
        return Err(Error::TensorLength { path: path(), tensor, dtype, shape, expected, got });
    }
    if end > data_bytes {
        return Err(Error::OutOfRange { path: path(), tensor: name, end, data_bytes });
    }
    Ok(Tensor { name, dtype, shape, file, offset: data_start + begin, len_bytes: got })
}

// The JSON as it stands. A hand-written visitor, because a map type would silently keep only
// the last of two equal names.

#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(expecting = "dtype, shape and data_offsets")]
struct RawEntry {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

struct Shape(Vec<usize>);

struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a safetensors header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let Metadata(metadata) = map.next_value()?;
                header.metadata = metadata;
                continue;
            }
            if name.len() > NAME_LIMIT_BYTES {
                let got = name.len();
                return Err(de::Error::custom(format!(
                    "tensor name of {got} bytes, the limit is {NAME_LIMIT_BYTES}"
                )));
            }
            let entry = map
                .next_value()
                .map_err(|error| de::Error::custom(format!("tensor {name:?}: {error}")))?;
            header.tensors.push((name, entry));
        }
        Ok(header)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor)
    }
}

struct MetadataVisitor;

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of strings to strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            if metadata.len() == METADATA_LIMIT {
                let message = format!("more than {METADATA_LIMIT} entries of __metadata__");
                return Err(de::Error::custom(message));
            }
            metadata.insert(key, value);
        }
        Ok(Metadata(metadata))
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = list.next_element()? {
            if shape.len() == DIMENSION_LIMIT {
                let message = format!("more than {DIMENSION_LIMIT} dimensions");
                return Err(de::Error::custom(message));
            }
            shape.push(dimension);
        }
        Ok(Shape(shape))
    }
}
