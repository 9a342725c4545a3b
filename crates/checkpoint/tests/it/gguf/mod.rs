//! GGUF: what is written, what is read, what is refused.

mod hostile;
mod parts;
mod python;
mod read;
mod tensors;
mod write;

use checkpoint::gguf::{Declaration, GgufWriter, Value};
use checkpoint::{Checkpoint, Result};
use format::{BlockFormat, Dtype};

use crate::support::{files, xorshift};

pub(crate) const Q4_0: Dtype = Dtype::Block(BlockFormat::Q4_0);
pub(crate) const Q4_K: Dtype = Dtype::Block(BlockFormat::Q4K);

/// Widths of the small models here.
pub(crate) const HIDDEN: u64 = 256;
pub(crate) const HEADS: u64 = 4;
pub(crate) const HEAD_DIM: u64 = 64;

pub(crate) fn declare(name: &str, dtype: Dtype, dimensions: &[u64]) -> Declaration {
    Declaration { name: name.to_owned(), dtype, dimensions: dimensions.to_vec() }
}

pub(crate) fn field(key: &str, value: Value) -> (String, Value) {
    (key.to_owned(), value)
}

/// The metadata of a small model.
pub(crate) fn fields(architecture: &str) -> Vec<(String, Value)> {
    let of = |key: &str, value| field(&format!("{architecture}.{key}"), value);
    vec![
        field("general.architecture", Value::String(architecture.to_owned())),
        of("block_count", Value::U32(1)),
        of("context_length", Value::U32(512)),
        of("embedding_length", Value::U64(HIDDEN)),
        of("feed_forward_length", Value::I32(512)),
        of("attention.head_count", Value::U16(HEADS as u16)),
        of("attention.head_count_kv", Value::U8(2)),
        of("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        of("rope.freq_base", Value::F32(500_000.0)),
    ]
}

/// The tensors of a small model with heads of [`HEAD_DIM`].
pub(crate) fn tensors() -> Vec<Declaration> {
    let kv = 2 * HEAD_DIM;
    vec![
        declare("token_embd.weight", Q4_K, &[HIDDEN, 8]),
        declare("output_norm.weight", Dtype::F32, &[HIDDEN]),
        declare("blk.0.attn_norm.weight", Dtype::F32, &[HIDDEN]),
        declare("blk.0.attn_q.weight", Q4_0, &[HIDDEN, HEADS * HEAD_DIM]),
        declare("blk.0.attn_k.weight", Q4_0, &[HIDDEN, kv]),
        declare("blk.0.attn_v.weight", Dtype::BF16, &[HIDDEN, kv]),
        declare("blk.0.attn_output.weight", Q4_K, &[HEADS * HEAD_DIM, HIDDEN]),
        declare("blk.0.ffn_norm.weight", Dtype::F32, &[HIDDEN]),
        declare("blk.0.ffn_gate.weight", Q4_K, &[HIDDEN, 512]),
        declare("blk.0.ffn_up.weight", Q4_K, &[HIDDEN, 512]),
        declare("blk.0.ffn_down.weight", Q4_K, &[512, HIDDEN]),
    ]
}

/// A file whose bytes are from a running counter, so that no two places look alike.
pub(crate) fn written(fields: &[(String, Value)], tensors: &[Declaration]) -> Vec<u8> {
    let mut writer = GgufWriter::new(Vec::new(), fields, tensors).unwrap();
    let mut state = 1_u64;
    for tensor in tensors {
        let shape: Vec<usize> = tensor.dimensions.iter().rev().map(|&d| d as usize).collect();
        let len = tensor.dtype.tensor_bytes(&shape).unwrap();
        let bytes: Vec<u8> = (0..len).map(|_| xorshift(&mut state) as u8).collect();
        writer.write(&tensor.name, &bytes).unwrap();
    }
    writer.finish().unwrap()
}

/// A model of an architecture with as little as makes it one, a few kilobytes in all.
pub(crate) fn small(architecture: &str) -> Vec<u8> {
    let mut all = vec![field("general.architecture", Value::String(architecture.to_owned()))];
    let mut of = |key: &str, value| all.push(field(&format!("{architecture}.{key}"), value));
    for (key, value) in [
        ("block_count", 2),
        ("nextn_predict_layers", 1),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
        ("attention.key_length", 16),
        ("rope.dimension_count", 16),
        ("attention.sliding_window", 8),
        ("expert_count", 2),
        ("expert_used_count", 1),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 8),
        ("ssm.group_count", 1),
        ("ssm.time_step_rank", 2),
        ("ssm.inner_size", 16),
    ] {
        of(key, Value::U32(value));
    }
    of("attention.head_count_kv", Value::I32s(vec![1]));
    of("attention.sliding_window_pattern", Value::Bools(vec![true]));
    of("rope.freq_base", Value::F32(1e4));
    all.push(field("tokenizer.ggml.tokens", Value::Strings(vec!["a".to_owned(), "b".to_owned()])));
    all.push(field("tokenizer.ggml.eos_token_ids", Value::U32s(vec![1])));
    let is_hybrid = ["qwen35", "qwen35moe", "qwen3next"].contains(&architecture);
    let mut list = vec![
        declare("token_embd.weight", Q4_0, &[32, 2]),
        declare("rope_freqs.weight", Dtype::F32, &[8]),
        declare("v.x", Dtype::F16, &[3]),
        declare("blk.0.unknown", Dtype::I32, &[1]),
        declare("blk.0.attn_q.scale", Dtype::F32, &[1]),
        declare("blk.0.ffn_gate_inp.weight", Dtype::F32, &[32, 2]),
        declare("blk.0.ffn_gate_up_exps.weight", Q4_0, &[32, 64, 2]),
        declare("blk.0.ffn_down_exps.weight", Q4_0, &[32, 32, 2]),
        declare("blk.1.nextn.enorm.weight", Dtype::F32, &[32]),
        declare("blk.1.attn_qkv.weight", Q4_0, &[32, if is_hybrid { 96 } else { 64 }]),
    ];
    if is_hybrid {
        list.push(declare("blk.0.ssm_conv1d.weight", Dtype::F32, &[4, 32]));
        list.push(declare("blk.0.attn_qkv.weight", Q4_0, &[32, 32]));
    }
    written(&all, &list)
}

/// Where the header of a file ends, about: before its first tensor.
pub(crate) fn header_bytes(file: &[u8]) -> usize {
    let first = open(file).map(|checkpoint| checkpoint.tensors().map(|tensor| tensor.offset).min());
    first.ok().flatten().map_or(file.len(), |offset| offset as usize)
}

/// A model in one file.
pub(crate) fn open(file: &[u8]) -> Result<Checkpoint> {
    Checkpoint::from_owned(files(&[("model.gguf", file)]))
}

/// A file by its parts as they stand in it, for what no writer would write.
pub(crate) struct Raw {
    pub(crate) version: u32,
    /// What the file says of the number of fields and of tensors, if it is not true.
    pub(crate) field_count: Option<u64>,
    pub(crate) tensor_count: Option<u64>,
    fields: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
}

pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

impl Raw {
    /// With what a model needs to be opened, and no tensors.
    pub(crate) fn new() -> Raw {
        let mut raw = Raw {
            version: 3,
            field_count: None,
            tensor_count: None,
            fields: Vec::new(),
            tensors: Vec::new(),
        };
        raw.field("general.architecture", 8, &string(b"llama"));
        for (key, value) in
            [("block_count", 1), ("embedding_length", 4), ("attention.head_count", 1)]
        {
            raw.field(&format!("llama.{key}"), 4, &u32::to_le_bytes(value));
        }
        raw
    }

    pub(crate) fn field(&mut self, key: &str, type_id: u32, value: &[u8]) {
        self.bytes_of_field([&string(key.as_bytes()), &type_id.to_le_bytes()[..], value].concat());
    }

    pub(crate) fn bytes_of_field(&mut self, bytes: Vec<u8>) {
        self.fields.push(bytes);
    }

    pub(crate) fn tensor(&mut self, name: &str, dimensions: &[u64], type_id: u32, offset: u64) {
        let mut entry = string(name.as_bytes());
        entry.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|dimension| entry.extend(dimension.to_le_bytes()));
        entry.extend(type_id.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
    }

    /// The file with so many bytes of data behind the next multiple of `alignment`.
    pub(crate) fn file(&self, alignment: u64, data_bytes: usize) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        file.extend(self.field_count.unwrap_or(self.fields.len() as u64).to_le_bytes());
        file.extend(self.fields.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(alignment as usize) + data_bytes, 0);
        file
    }
}
