//! A GGUF file with the metadata llama.cpp requires. Written next to its final name and then renamed.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::PathBuf;

use checkpoint::gguf::{Declaration, GgufWriter, Value};
use format::{BlockFormat, Dtype};

use super::parts::{Part, Progress, gguf_part, stream};
use super::shape::{Delta, Family, FeedForward, Shape};
use super::tensors::{Content, Tensor};
use super::vocabulary::{CHAT_TEMPLATE, END_OF_TEXT, END_OF_TURN, vocabulary};
use super::{Error, Request, Values};

/// `LLAMA_FTYPE_MOSTLY_Q4_1`.
const FILE_TYPE: u32 = 3;

/// `GGML_QNT_VERSION`.
const QUANTIZATION_VERSION: u32 = 2;

/// Bytes of all weights.
pub(crate) fn weight_bytes(tensors: &[Tensor], values: Values) -> u64 {
    tensors.iter().map(|tensor| gguf_part(tensor, values).bytes()).sum()
}

/// Writes the file, whose weights are `tensors`.
pub(crate) fn write(
    request: &Request,
    tensors: &[Tensor],
    progress: Progress<'_>,
) -> Result<(), Error> {
    let out = &request.out;
    if let Some(parent) = out.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(|source| Error::io(parent, source))?;
    }
    let mut partial = out.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let outcome = write_file(request, tensors, &partial, progress)
        .and_then(|()| fs::rename(&partial, out).map_err(|source| Error::io(out, source)));
    if outcome.is_err() {
        // What went wrong matters more than what cannot be tidied up.
        let _ = fs::remove_file(&partial);
    }
    outcome
}

fn write_file(
    request: &Request,
    tensors: &[Tensor],
    path: &PathBuf,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let parts: Vec<Part> = tensors.iter().map(|t| gguf_part(t, request.values)).collect();
    let declarations: Vec<Declaration> = tensors.iter().map(declaration).collect();
    let total: u64 = parts.iter().map(Part::bytes).sum();
    let metadata = metadata(&request.shape, request.layers);
    let file = File::create(path).map_err(|source| Error::io(path, source))?;
    let sink = BufWriter::with_capacity(1 << 20, file);
    let failed = |source| Error::weights(path, source);
    let mut writer = GgufWriter::new(sink, &metadata, &declarations).map_err(failed)?;
    let mut done = 0;
    stream(&parts, request.threads, |tensor, bytes| {
        writer.write(tensor, bytes).map_err(failed)?;
        done += bytes.len() as u64;
        progress(done, total)
    })?;
    writer.finish().map_err(failed)?;
    Ok(())
}

fn declaration(tensor: &Tensor) -> Declaration {
    let dtype = match tensor.content {
        Content::Affine { .. } => Dtype::Block(BlockFormat::Q4_1),
        Content::Plain(_)
        | Content::Mxfp4 { .. }
        | Content::Half(_)
        | Content::NegativeExp(_)
        | Content::Router { .. }
        | Content::Fixed(_) => Dtype::F32,
    };
    Declaration { name: tensor.gguf.clone(), dtype, dimensions: tensor.dimensions.clone() }
}

/// Everything before the tensors. Keys: llama.cpp `gguf-py/gguf/constants.py`.
fn metadata(shape: &Shape, layers: usize) -> Vec<(String, Value)> {
    let arch = match (shape.family, shape.has_experts()) {
        (Family::Qwen35, true) => "qwen35moe",
        (Family::Qwen35, false) => "qwen35",
        (Family::Qwen3, true) => "qwen3moe",
        (Family::Qwen3, false) => "qwen3",
        (Family::Llama, _) => "llama",
        // Refused before it comes to this.
        (Family::Gemma4, _) => "gemma4",
        (Family::GptOss, _) => "gpt-oss",
    };
    let number = |value: usize| Value::U32(value as u32);
    let mut list = vec![
        ("general.architecture".to_owned(), Value::String(arch.to_owned())),
        ("general.type".to_owned(), Value::String("model".to_owned())),
        ("general.name".to_owned(), Value::String(format!("synthetic {}", shape.name))),
        ("general.file_type".to_owned(), Value::U32(FILE_TYPE)),
        ("general.quantization_version".to_owned(), Value::U32(QUANTIZATION_VERSION)),
    ];
    let mut set = |key: &str, value: Value| list.push((format!("{arch}.{key}"), value));
    set("block_count", number(layers));
    set("context_length", number(shape.context));
    set("embedding_length", number(shape.hidden));
    set("vocab_size", number(shape.vocab));
    set("attention.head_count", number(shape.heads));
    set("attention.head_count_kv", number(shape.kv_heads));
    set("attention.key_length", number(shape.head_dim));
    set("attention.value_length", number(shape.head_dim));
    set("attention.layer_norm_rms_epsilon", Value::F32(shape.eps));
    set("rope.freq_base", Value::F32(shape.rope_theta as f32));
    set("rope.dimension_count", number(shape.rotary_dim()));
    match shape.feed_forward {
        FeedForward::Dense { width } => set("feed_forward_length", number(width)),
        FeedForward::Experts { count, used, width, shared } => {
            set("feed_forward_length", number(width));
            set("expert_count", number(count));
            set("expert_used_count", number(used));
            set("expert_feed_forward_length", number(width));
            if let Some(width) = shared {
                set("expert_shared_feed_forward_length", number(width));
            }
        }
    }
    if let Some(delta) = shape.delta {
        let [time, height, width] = shape.rope_sections().map(|section| section as i32);
        set("rope.dimension_sections", Value::I32s(vec![time, height, width, 0]));
        set("full_attention_interval", number(Shape::FULL_ATTENTION_INTERVAL));
        set("ssm.conv_kernel", number(Delta::TAPS));
        set("ssm.state_size", number(delta.head_dim));
        set("ssm.group_count", number(delta.key_heads));
        set("ssm.time_step_rank", number(delta.value_heads));
        set("ssm.inner_size", number(delta.value_width()));
    }
    list.extend(tokenizer(shape.vocab));
    list
}

fn tokenizer(size: usize) -> Vec<(String, Value)> {
    let vocabulary = vocabulary(size);
    [
        ("model", Value::String("gpt2".to_owned())),
        ("pre", Value::String("qwen2".to_owned())),
        ("tokens", Value::Strings(vocabulary.tokens)),
        ("token_type", Value::I32s(vocabulary.kinds)),
        ("merges", Value::Strings(vocabulary.merges)),
        ("eos_token_id", Value::U32(END_OF_TURN)),
        ("padding_token_id", Value::U32(END_OF_TEXT)),
        ("add_bos_token", Value::Bool(false)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .into_iter()
    .chain([("tokenizer.chat_template".to_owned(), Value::String(CHAT_TEMPLATE.to_owned()))])
    .collect()
}
