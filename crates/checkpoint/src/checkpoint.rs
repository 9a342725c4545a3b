//! The checkpoint: a model's headers in memory, its weights still on disk.
//!
//! Opening reads config.json, the index and each file's header, or those of GGUF files: under a millisecond for a few
//! hundred tensors, 0.23 s for 90,000 in one file (2 cores of the test VM, release build).
//! It keeps the files open and caches no weight; a caller that reads bytes brings a buffer.
//! Invariant: a `Tensor` in here lies inside its file and overlaps no other.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::config::{CONFIG_LIMIT_BYTES, CONFIG_NAME, add_token_ids};
use crate::folder::{Bytes, Folder, Made, OpenFile, allocate};
use crate::gguf::{self, Conversion, Metadata};
use crate::{Config, Error, FileIndex, Result, Source, Span, Tensor, Warning, safetensors, shards};
use format::Dtype;

/// The most that is read of a side file. Each is larger than any published: tokenizers have up to 33 MB (Gemma),
/// tokenizer_config.json up to 1.2 MB, where it lists added tokens, and templates less than 30 KB.
const SIDE_FILE_LIMITS_BYTES: [(&str, u64); 5] = [
    ("tokenizer.json", 64 << 20),
    ("tokenizer_config.json", 8 << 20),
    ("generation_config.json", 1 << 20),
    ("chat_template.jinja", 4 << 20),
    ("chat_template.json", 4 << 20),
];

/// The same for side files that are copied and not understood.
const OTHER_FILE_LIMIT_BYTES: u64 = 256 << 20;

/// How much is read at a time when a tensor is converted.
const CONVERT_CHUNK_BYTES: usize = 1 << 20;

/// What is read before the page cache drops it.
const FORGET_BYTES: usize = 4 << 20;

/// The most similar names an error about a missing tensor mentions.
const NEAR_NAMES: usize = 3;

/// A folder with config.json and safetensors files, or a model in GGUF files. Cheap to open: headers only.
///
/// All methods take `&self`, and reads are positioned, so threads may share it.
#[derive(Debug)]
pub struct Checkpoint {
    folder: Folder,
    config: Config,
    files: Vec<Arc<OpenFile>>,
    /// Sorted by name.
    tensors: Vec<Tensor>,
    metadata: BTreeMap<String, String>,
    /// Of GGUF files.
    gguf: Option<Metadata>,
    conversion: Conversion,
    /// Files the index lists that are not there.
    missing: Vec<String>,
    /// By module path, so that asking twice warns once. Empty path: the checkpoint as a whole.
    warnings: Mutex<BTreeMap<String, Vec<Warning>>>,
}

impl Checkpoint {
    /// Opens a folder, or a GGUF file; any part of a model that is in several.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        if !path.is_file() {
            return Checkpoint::from_folder(Folder::Disk(path.to_owned()));
        }
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Checkpoint::from_gguf(&Folder::Disk(folder), &name)
    }

    /// The same from bytes compiled into the program.
    pub fn from_memory(files: &[(&'static str, &'static [u8])]) -> Result<Checkpoint> {
        let entry =
            |&(name, bytes): &(&str, &'static [u8])| (name.to_owned(), Bytes::Static(bytes));
        let files = files.iter().map(entry).collect();
        Checkpoint::from_folder(Folder::Memory { files, made: BTreeMap::new() })
    }

    /// The same from bytes made at run time.
    pub fn from_owned(files: Vec<(String, Vec<u8>)>) -> Result<Checkpoint> {
        Checkpoint::from_made(files, Vec::new())
    }

    /// The same with weight files whose bytes are made when they are read.
    pub fn from_made(
        files: Vec<(String, Vec<u8>)>,
        weights: Vec<(String, Arc<dyn Made>)>,
    ) -> Result<Checkpoint> {
        let entry = |(name, bytes): (String, Vec<u8>)| (name, Bytes::Shared(bytes.into()));
        let files = files.into_iter().map(entry).collect();
        Checkpoint::from_folder(Folder::Memory { files, made: weights.into_iter().collect() })
    }

    fn from_folder(folder: Folder) -> Result<Checkpoint> {
        let config_path = folder.path_of(CONFIG_NAME);
        let Some(json) = folder.read_small(CONFIG_NAME, CONFIG_LIMIT_BYTES)? else {
            return match *gguf::first_parts(&folder.names().unwrap_or_default()) {
                [] => Err(Error::MissingFile { path: config_path }),
                [name] => Checkpoint::from_gguf(&folder, name),
                ref several => {
                    let names = several.iter().map(|name| (*name).to_owned()).collect();
                    Err(Error::SeveralModels { folder: folder.path(), names })
                }
            };
        };
        let config = Config::parse(&json, &config_path)?;
        let shards = shards::find(&folder)?;

        let mut files = Vec::with_capacity(shards.files.len());
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut metadata = BTreeMap::new();
        for name in &shards.files {
            let Some(file) = folder.open(name)? else {
                return Err(Error::MissingFile { path: folder.path_of(name) });
            };
            let header = safetensors::read_header(&file, FileIndex(files.len() as u32))?;
            tensors.extend(header.tensors);
            metadata.extend(header.metadata);
            files.push(Arc::new(file));
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let path = |tensor: &Tensor| files[tensor.file.0 as usize].path.clone();
            let (first, second) = (path(&pair[0]), path(&pair[1]));
            return Err(Error::InTwoFiles { tensor: pair[0].name.clone(), first, second });
        }

        let missing = shards.missing;
        let warnings = Mutex::default();
        let (gguf, conversion) = (None, Conversion::default());
        let checkpoint = Checkpoint {
            folder,
            config,
            files,
            tensors,
            metadata,
            gguf,
            conversion,
            missing,
            warnings,
        };
        checkpoint.compare_with_index(&shards.listed);
        Ok(checkpoint)
    }

    /// The model that a GGUF file is, or is a part of.
    fn from_gguf(folder: &Folder, name: &str) -> Result<Checkpoint> {
        let model = gguf::open(folder, name)?;
        let checkpoint = Checkpoint {
            folder: Folder::File(folder.path_of(name)),
            config: model.config,
            files: model.files,
            tensors: model.tensors,
            metadata: BTreeMap::new(),
            gguf: Some(model.metadata),
            conversion: model.conversion,
            missing: Vec::new(),
            warnings: Mutex::default(),
        };
        model.warnings.into_iter().for_each(|warning| checkpoint.warn("", warning));
        Ok(checkpoint)
    }

    fn compare_with_index(&self, listed: &[String]) {
        if !self.missing.is_empty() {
            self.warn("", Warning::MissingShards { files: self.missing.clone() });
        }
        let mut absent = listed.iter().filter(|name| self.tensor(name).is_none());
        if let Some(first) = absent.next().cloned() {
            let count = 1 + absent.count();
            self.warn("", Warning::MissingTensors { count, first });
        }
    }

    /// config.json, or what the metadata of a GGUF file says in its words.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The folder or file, for messages; `<memory>` for a folder in memory.
    pub fn folder(&self) -> PathBuf {
        self.folder.path()
    }

    /// A side file (tokenizer.json, chat_template.jinja …) whole; `None` only when it is not there.
    pub fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let own = SIDE_FILE_LIMITS_BYTES.iter().find(|(file, _)| *file == name);
        let limit = match own {
            Some((_, limit)) => *limit,
            None if name == CONFIG_NAME => CONFIG_LIMIT_BYTES,
            None => OTHER_FILE_LIMIT_BYTES,
        };
        self.folder.read_small(name, limit)
    }

    /// The `__metadata__` of the weight files, such as `format`: `mlx` or `pt`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// The metadata of a GGUF file; `None` where the files are safetensors.
    pub fn gguf(&self) -> Option<&Metadata> {
        self.gguf.as_ref()
    }

    /// What a converter changed that tensors do not say of themselves. Code that computes with them must act on all of it.
    pub fn conversion(&self) -> &Conversion {
        &self.conversion
    }

    /// The tokens that end a text, from config.json and generation_config.json.
    pub fn eos_token_ids(&self) -> Result<Vec<u32>> {
        let mut ids = self.config.eos_token_ids();
        let generation = self.read_file("generation_config.json")?.unwrap_or_default();
        if let Ok(generation) = serde_json::from_slice::<Value>(&generation)
            && let Some(value) = generation.get("eos_token_id")
        {
            add_token_ids(&mut ids, value);
        }
        Ok(ids)
    }

    /// The number of weight files.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Where a weight file's bytes are.
    ///
    /// # Panics
    /// When the index is of another checkpoint and out of range here.
    pub fn source(&self, file: FileIndex) -> Source<'_> {
        self.files[file.0 as usize].source()
    }

    /// The weight file as it was opened for its header; `None` for one that is not on a disk. A caller
    /// that opens the path again can tell by it whether that is still the same file.
    ///
    /// # Panics
    /// As [`Checkpoint::source`].
    pub fn opened(&self, file: FileIndex) -> Option<&File> {
        self.files[file.0 as usize].opened()
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        let found = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name));
        found.ok().map(|index| &self.tensors[index])
    }

    /// The tensor called `name`, which must have this shape.
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let tensor = self.tensor(name).ok_or_else(|| self.missing_tensor(name))?;
        self.expect_shape(tensor, shape)?;
        Ok(tensor)
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len_bytes).sum()
    }

    /// Fills `out` from `offset` bytes into the tensor.
    pub fn read(&self, tensor: &Tensor, offset: u64, out: &mut [u8]) -> Result<()> {
        let len = out.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > tensor.len_bytes) {
            return Err(Error::ReadRange {
                path: self.path_of(tensor.file),
                tensor: tensor.name.clone(),
                offset,
                len,
                tensor_bytes: tensor.len_bytes,
            });
        }
        self.files[tensor.file.0 as usize].read_at(tensor.offset + offset, out)
    }

    /// Fills `out`, which must be as long as the span, from the span.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn read_span(&self, span: Span, out: &mut [u8]) -> Result<()> {
        assert_eq!(out.len() as u64, span.len_bytes, "buffer and span differ in length");
        self.files[span.file.0 as usize].read_at(span.offset, out)
    }

    /// The same, leaving next to nothing of it in the system's page cache.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn read_span_uncached(&self, span: Span, out: &mut [u8]) -> Result<()> {
        assert_eq!(out.len() as u64, span.len_bytes, "buffer and span differ in length");
        let file = &self.files[span.file.0 as usize];
        let mut offset = span.offset;
        for out in out.chunks_mut(FORGET_BYTES) {
            file.read_at(offset, out)?;
            offset += out.len() as u64;
            if let Some(file) = file.opened() {
                // Advice: where it is refused, the pages stay until the system wants them for others.
                let _ = machine::disk::forget_cached(file);
            }
        }
        Ok(())
    }

    /// The whole tensor, F32, F16 or BF16, as f32.
    pub fn read_f32(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        if !tensor.dtype.is_float() {
            return Err(self.wrong_dtype(tensor, "F32, F16 or BF16"));
        }
        let path = self.path_of(tensor.file);
        let elements = tensor.elements();
        let mut values = Vec::new();
        if values.try_reserve_exact(elements).is_err() {
            let bytes = tensor.len_bytes;
            return Err(Error::Allocation { path, bytes, purpose: "a tensor" });
        }
        let chunk_bytes = tensor.len_bytes.min(CONVERT_CHUNK_BYTES as u64);
        let mut chunk = allocate(&path, chunk_bytes, "a tensor")?;
        let mut offset = 0;
        while offset < tensor.len_bytes {
            let len = chunk_bytes.min(tensor.len_bytes - offset);
            let bytes = &mut chunk[..len as usize];
            self.read(tensor, offset, bytes)?;
            append_f32(&mut values, tensor.dtype, bytes);
            offset += len;
        }
        Ok(values)
    }

    /// What was found odd so far; [`Checkpoint::linear`] adds to it.
    pub fn warnings(&self) -> Vec<Warning> {
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.values().flatten().cloned().collect()
    }

    /// Says that tensors with one of these in their names are left out, if there are such.
    pub fn skip(&self, part: &'static str, names: &[&str]) {
        let is_part = |tensor: &&Tensor| names.iter().any(|name| tensor.name.contains(name));
        let (count, bytes) = self
            .tensors()
            .filter(is_part)
            .fold((0, 0), |(count, bytes), tensor| (count + 1, bytes + tensor.len_bytes));
        if count > 0 {
            self.warn("", Warning::Skipped { part, count, bytes });
        }
    }

    pub(crate) fn warn(&self, path: &str, warning: Warning) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let about = warnings.entry(path.to_owned()).or_default();
        if !about.contains(&warning) {
            about.push(warning);
        }
    }

    pub(crate) fn open_file(&self, file: FileIndex) -> Arc<OpenFile> {
        Arc::clone(&self.files[file.0 as usize])
    }

    pub(crate) fn path_of(&self, file: FileIndex) -> PathBuf {
        self.files[file.0 as usize].path.clone()
    }

    pub(crate) fn expect_shape(&self, tensor: &Tensor, expected: &[usize]) -> Result<()> {
        if tensor.shape == expected {
            return Ok(());
        }
        Err(Error::Shape {
            path: self.path_of(tensor.file),
            tensor: tensor.name.clone(),
            expected: expected.to_vec(),
            got: tensor.shape.clone(),
        })
    }

    pub(crate) fn wrong_dtype(&self, tensor: &Tensor, expected: &'static str) -> Error {
        let (path, got) = (self.path_of(tensor.file), tensor.dtype);
        Error::WrongDtype { path, tensor: tensor.name.clone(), expected, got }
    }

    pub(crate) fn missing_tensor(&self, name: &str) -> Error {
        Error::MissingTensor {
            folder: self.folder.path(),
            tensor: name.to_owned(),
            near: self.near_names(name),
            missing: self.missing.clone(),
        }
    }

    /// The names that share most of their beginning and end with `name`: another prefix, another
    /// layer, or one letter wrong.
    fn near_names(&self, name: &str) -> Vec<String> {
        let same = |(a, b): &(u8, u8)| a == b;
        let mut scored: Vec<(usize, &str)> = Vec::new();
        for tensor in &self.tensors {
            let (a, b) = (name.as_bytes(), tensor.name.as_bytes());
            let head = a.iter().copied().zip(b.iter().copied()).take_while(same).count();
            let tail = a.iter().rev().copied().zip(b.iter().rev().copied());
            let shared = (head + tail.take_while(same).count()).min(a.len().min(b.len()));
            if shared * 2 >= a.len() {
                scored.push((shared, &tensor.name));
            }
        }
        scored.sort_by(|a, b| (b.0, a.1).cmp(&(a.0, b.1)));
        scored.iter().take(NEAR_NAMES).map(|(_, name)| format!("{name:?}")).collect()
    }
}

fn append_f32(values: &mut Vec<f32>, dtype: Dtype, bytes: &[u8]) {
    if dtype == Dtype::F32 {
        values.extend(bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)));
        return;
    }
    let halves = bytes.as_chunks().0.iter().map(|&half| u16::from_le_bytes(half));
    if dtype == Dtype::F16 {
        values.extend(halves.map(|half| half::f16::from_bits(half).to_f32()));
    } else {
        values.extend(halves.map(|half| half::bf16::from_bits(half).to_f32()));
    }
}
