//! What can be wrong with a checkpoint, as facts: file, tensor, expected, got.
//!
//! Names that come out of a file are printed with `{:?}`, so that control characters in an
//! untrusted header cannot reach the terminal.

use std::io;
use std::path::PathBuf;

use crate::Projection;
use format::{BlockFormat, Dtype, UnreadType};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a folder and a tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message of each variant says what its fields are")]
pub enum Error {
    // === Files ===
    /// The operating system refused.
    #[error("{}: cannot {operation}", path.display())]
    Io { path: PathBuf, operation: &'static str, source: io::Error },

    /// A file every checkpoint needs is not there.
    #[error("{}: not found", path.display())]
    MissingFile { path: PathBuf },

    /// Something else than a plain file (a folder, a pipe, a device) stands where a file should.
    #[error("{}: not a plain file", path.display())]
    NotAFile { path: PathBuf },

    /// The folder holds no weights.
    #[error("{}: no *.safetensors file{}", folder.display(), missing_shards(missing))]
    NoWeights { folder: PathBuf, missing: Vec<String> },

    /// A side file is larger than anything of its kind should be.
    #[error("{}: more than {limit} bytes, which is the limit for such a file", path.display())]
    TooLarge { path: PathBuf, limit: u64 },

    /// The index names a file that is not a plain name inside the folder.
    #[error("{}: names {name:?}, which is not a file name inside the folder", path.display())]
    FileName { path: PathBuf, name: String },

    /// The file ended before the bytes that were asked for.
    #[error("{}: wanted {expected} bytes at offset {offset}, got {got}", path.display())]
    ShortRead { path: PathBuf, offset: u64, expected: u64, got: u64 },

    /// More memory than the system will give.
    #[error("{}: cannot allocate {bytes} bytes for {purpose}", path.display())]
    Allocation { path: PathBuf, bytes: u64, purpose: &'static str },

    // === Headers ===
    /// The safetensors header cannot be as long as the file says.
    #[error("{}: header of {got} bytes, at most {limit} are possible", path.display())]
    HeaderLength { path: PathBuf, limit: u64, got: u64 },

    /// Not the JSON that was expected.
    #[error("{}: {detail}", path.display())]
    Json { path: PathBuf, detail: String },

    /// A dtype this reader has never heard of.
    #[error("{}: tensor {tensor:?}: unknown dtype {got:?}", path.display())]
    UnknownDtype { path: PathBuf, tensor: String, got: String },

    /// The shape needs more bytes than a 64-bit number can say, or a fraction of one.
    #[error("{}: tensor {tensor:?}: {dtype} {shape:?} is not a whole 64-bit number of bytes", path.display())]
    ShapeOverflow { path: PathBuf, tensor: String, dtype: Dtype, shape: Vec<usize> },

    /// Offsets and shape disagree.
    #[error("{}: tensor {tensor:?}: {dtype} {shape:?} needs {expected} bytes, the header gives it {got}", path.display())]
    TensorLength {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
        shape: Vec<usize>,
        expected: u64,
        got: u64,
    },

    /// The end of a tensor lies before its beginning.
    #[error("{}: tensor {tensor:?}: ends at {end}, before it begins at {begin}", path.display())]
    Reversed { path: PathBuf, tensor: String, begin: u64, end: u64 },

    /// A tensor reaches past the end of the file: a truncated download, or a forged header.
    #[error("{}: tensor {tensor:?}: ends at data byte {end}, the file has {data_bytes} (truncated?)", path.display())]
    OutOfRange { path: PathBuf, tensor: String, end: u64, data_bytes: u64 },

    /// Two tensors claim the same bytes.
    #[error("{}: tensors {tensor:?} and {other:?} both claim data byte {offset}", path.display())]
    Overlap { path: PathBuf, tensor: String, other: String, offset: u64 },

    /// One header names a tensor twice.
    #[error("{}: tensor {tensor:?} is named twice", path.display())]
    Duplicate { path: PathBuf, tensor: String },

    /// Two shards hold a tensor of the same name.
    #[error("tensor {tensor:?} is in two files: {} and {}", first.display(), second.display())]
    InTwoFiles { tensor: String, first: PathBuf, second: PathBuf },

    // === GGUF ===
    /// Another file than a GGUF.
    #[error("{}: not a GGUF file: begins with {got:?}, expected \"GGUF\"", path.display())]
    NotGguf { path: PathBuf, got: String },

    /// A GGUF file of a version or byte order that is not read.
    #[error("{}: GGUF version {got}: {detail}", path.display())]
    GgufVersion { path: PathBuf, got: u32, detail: &'static str },

    /// A part of a GGUF header that cannot be.
    #[error("{}: byte {offset}: {part}: {detail}", path.display())]
    GgufHeader { path: PathBuf, offset: u64, part: String, detail: String },

    /// A type that is known not to be read, or not known.
    #[error("{}: tensor {tensor:?}: {unread}", path.display())]
    UnreadType { path: PathBuf, tensor: String, unread: UnreadType },

    /// A row that ends within a block.
    #[error("{}: tensor {tensor:?}: rows of {row} weights are no whole number of {format} blocks, which have {}", path.display(), format.weights())]
    RaggedBlocks { path: PathBuf, tensor: String, format: BlockFormat, row: u64 },

    /// A tensor that does not begin where the file says that tensors do.
    #[error("{}: tensor {tensor:?}: begins at data byte {offset}, expected a multiple of {alignment}", path.display())]
    Misaligned { path: PathBuf, tensor: String, offset: u64, alignment: u64 },

    /// Files that do not make one model.
    #[error("{}: {detail}; all parts of a model must be in one folder, under the names they were published with", path.display())]
    GgufParts { path: PathBuf, detail: String },

    /// A file that is read, and holds no model.
    #[error("{}: {what}, not a model; name the file of the model itself", path.display())]
    NotAModel { path: PathBuf, what: String },

    /// An architecture that is not read.
    #[error("{}: architecture {got:?} is not read; these are: {supported}", path.display())]
    GgufArchitecture { path: PathBuf, got: String, supported: String },

    /// A folder with several models.
    #[error("{}: several GGUF models; name one of the files: {}", folder.display(), names.join(", "))]
    SeveralModels { folder: PathBuf, names: Vec<String> },

    // === Tensors ===
    /// The model needs a tensor that is not there.
    #[error("{}: no tensor {tensor:?}{}{}", folder.display(), near_names(near), missing_shards(missing))]
    MissingTensor { folder: PathBuf, tensor: String, near: Vec<String>, missing: Vec<String> },

    /// The tensor has another shape than the configuration implies.
    #[error("{}: tensor {tensor:?}: expected shape {expected:?}, got {got:?}", path.display())]
    Shape { path: PathBuf, tensor: String, expected: Vec<usize>, got: Vec<usize> },

    /// The configuration asks for a weight matrix with nothing in it.
    #[error("{}: {tensor:?}: a weight of shape {shape:?} is empty", folder.display())]
    EmptyWeight { folder: PathBuf, tensor: String, shape: Vec<usize> },

    /// The tensor has a dtype that cannot be used in its place.
    #[error("{}: tensor {tensor:?}: expected {expected}, got {got}", path.display())]
    WrongDtype { path: PathBuf, tensor: String, expected: &'static str, got: Dtype },

    /// A read that does not lie inside its tensor.
    #[error("{}: tensor {tensor:?}: {len} bytes at {offset} do not lie within its {tensor_bytes}", path.display())]
    ReadRange { path: PathBuf, tensor: String, offset: u64, len: u64, tensor_bytes: u64 },

    /// Packed weights and scales that make no known quantization.
    #[error(
        "{}: tensor {tensor:?}: {packed} words and {groups} scales per row of {in_features} inputs: {detail}",
        path.display()
    )]
    Quantization {
        path: PathBuf,
        tensor: String,
        in_features: usize,
        packed: usize,
        groups: usize,
        detail: String,
    },

    // === Experts ===
    /// None of the known expert layouts is under this prefix.
    #[error("{}: no experts under {prefix:?}; looked for {}", folder.display(), tried.join(", "))]
    NoExperts { folder: PathBuf, prefix: String, tried: Vec<String> },

    /// The experts of one projection are not encoded alike.
    #[error("{}: {prefix:?}: {projection} of expert {expert} is {got}, expert 0 is {expected}", folder.display())]
    MixedExperts {
        folder: PathBuf,
        prefix: String,
        projection: Projection,
        expert: usize,
        expected: String,
        got: String,
    },

    // === Configuration ===
    /// A configuration key is missing or is not what it should be.
    #[error("{}: {key:?}: expected {expected}, got {got}", path.display())]
    Config { path: PathBuf, key: String, expected: &'static str, got: String },

    // === Writing ===
    /// The writer was given a declaration it cannot write.
    #[error("cannot write {name:?}: {detail}")]
    Declaration { name: String, detail: String },

    /// Bytes came for another tensor than the one that is next.
    #[error("bytes for tensor {got:?} while {expected:?} is next")]
    WriteOrder { expected: String, got: String },

    /// A tensor got more or fewer bytes than it was declared with.
    #[error("tensor {tensor:?}: declared {expected} bytes, given {got}")]
    WriteLength { tensor: String, expected: u64, got: u64 },

    /// The sink of a writer failed.
    #[error("cannot write")]
    Write(#[source] io::Error),
}

fn near_names(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; near: {}", near.join(", ")) }
}

fn missing_shards(missing: &[String]) -> String {
    if missing.is_empty() {
        String::new()
    } else {
        format!("; the index lists files that are not there: {}", missing.join(", "))
    }
}
