//! An MLX folder: safetensors of at most 5 GB with an index, config, tokenizer and chat template.
//!
//! config.json comes last, so a folder that was left half written does not pass for a model.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::write::{Declaration, SafetensorsWriter};
use serde_json::{Map, Value, json};

use super::draw::BLOCK;
use super::parts::{Part, Progress, mlx_parts, stream};
use super::shape::{Delta, Family, FeedForward, Gemma, Shape};
use super::tensors::{Content, Tensor, tensors};
use super::vocabulary::{CHAT_TEMPLATE, END_OF_TEXT, END_OF_TURN, TOKENIZER, TOKENIZER_CONFIG};
use super::{BITS, Error, Request, Values};

use format::Dtype;

/// The size at which mlx-lm starts a new file.
const SHARD_BYTES: u64 = 5 << 30;

/// Where the weights of a file begin: at a multiple of this.
const ALIGNMENT: u64 = 8;

pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Marks a folder that is being written.
pub(super) const UNFINISHED: &str = "synth.unfinished";

/// Where an MTP head lies. mlx-lm reads files whose names begin with `model` and never sees it.
pub(super) const MTP: &str = "mtp.safetensors";

/// One weight file: what its header declares and what fills it.
#[derive(Default)]
pub(super) struct Shard {
    declarations: Vec<Declaration>,
    parts: Vec<Part>,
    pub(super) bytes: u64,
}

impl Shard {
    pub(super) fn push(&mut self, tensor: &Tensor, values: Values) {
        for (part, (dtype, shape)) in
            mlx_parts(tensor, values).into_iter().zip(stored(tensor, values.group))
        {
            self.bytes += part.bytes();
            self.declarations.push(Declaration::new(part.name.clone(), dtype, &shape));
            self.parts.push(part);
        }
    }

    /// Everything before the weights.
    pub(super) fn header(&self) -> Result<Vec<u8>, checkpoint::Error> {
        checkpoint::write::header(&self.declarations, &metadata(), ALIGNMENT)
    }

    /// What fills it.
    pub(super) fn into_parts(self) -> Vec<Part> {
        self.parts
    }

    /// The tensors in it, by their names in the file.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.declarations.iter().map(|declaration| declaration.name.as_str())
    }
}

/// Bytes of all weights.
pub(crate) fn weight_bytes(tensors: &[Tensor], values: Values) -> u64 {
    tensors.iter().flat_map(|tensor| mlx_parts(tensor, values)).map(|part| part.bytes()).sum()
}

/// Writes the folder, whose weights are `tensors`.
pub(crate) fn write(
    request: &Request,
    tensors: &[Tensor],
    progress: Progress<'_>,
) -> Result<(), Error> {
    fill(&request.out, || write_files(request, tensors, progress))
}

/// Writes a folder that is marked as unfinished meanwhile. Of what fails nothing is left; of what is killed the mark
/// is, so that the next attempt may replace it.
pub(super) fn fill(folder: &Path, write: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::io(folder, source))?;
    let mark = folder.join(UNFINISHED);
    let failed = |source| Error::io(&mark, source);
    fs::write(&mark, "").map_err(failed)?;
    remove_weights(folder)?;
    let outcome = write().and_then(|()| fs::remove_file(&mark).map_err(failed));
    if outcome.is_err() {
        // What went wrong matters more than what cannot be tidied up.
        let _ = remove_weights(folder);
        if fs::read_dir(folder).is_ok_and(|left| left.count() == 1) {
            let _ = fs::remove_dir_all(folder);
        }
    }
    outcome
}

fn write_files(request: &Request, tensors: &[Tensor], progress: Progress<'_>) -> Result<(), Error> {
    let shards = shards(tensors, request.values);
    let total: u64 = shards.iter().map(|(_, shard)| shard.bytes).sum();
    let mut done = 0;
    for (name, shard) in &shards {
        write_shard(&request.out.join(name), shard, request.threads, |bytes| {
            done += bytes;
            progress(done, total)
        })?;
    }
    for (name, text) in side_files(request, &shards) {
        let path = request.out.join(name);
        fs::write(&path, text).map_err(|source| Error::io(&path, source))?;
    }
    Ok(())
}

/// Every file but the weights: its name and its text. config.json comes last.
pub(super) fn side_files(
    request: &Request,
    shards: &[(String, Shard)],
) -> [(&'static str, String); 6] {
    let total: u64 = shards.iter().map(|(_, shard)| shard.bytes).sum();
    let mut weight_map = Map::new();
    for (name, shard) in shards {
        weight_map.extend(shard.names().map(|tensor| (tensor.to_owned(), json!(name))));
    }
    weight_map.sort_keys();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    let generation = json!({ "eos_token_id": [END_OF_TURN, END_OF_TEXT], "do_sample": false });
    [
        (INDEX, pretty(&index)),
        ("generation_config.json", pretty(&generation)),
        ("tokenizer.json", TOKENIZER.to_owned()),
        ("tokenizer_config.json", TOKENIZER_CONFIG.to_owned()),
        ("chat_template.jinja", CHAT_TEMPLATE.to_owned()),
        ("config.json", pretty(&config(&request.shape, request.layers, request.values))),
    ]
}

/// One weight file; `progress` receives every few bytes.
pub(super) fn write_shard(
    path: &Path,
    shard: &Shard,
    threads: usize,
    mut progress: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = |source| Error::weights(path, source);
    let mut writer =
        SafetensorsWriter::create(path, &shard.declarations, &metadata()).map_err(failed)?;
    stream(&shard.parts, threads, |tensor, bytes| {
        writer.write(tensor, bytes).map_err(failed)?;
        progress(bytes.len() as u64)
    })?;
    writer.finish().map_err(failed)?;
    Ok(())
}

fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("format".to_owned(), "mlx".to_owned())])
}

/// The weight files, by name.
pub(super) fn shards(tensors: &[Tensor], values: Values) -> Vec<(String, Shard)> {
    let mut shards = vec![Shard::default()];
    for tensor in tensors {
        let bytes = mlx_parts(tensor, values).iter().map(Part::bytes).sum::<u64>();
        if shards.last().is_some_and(|last| last.bytes > 0 && last.bytes + bytes > SHARD_BYTES) {
            shards.push(Shard::default());
        }
        if let Some(shard) = shards.last_mut() {
            shard.push(tensor, values);
        }
    }
    let count = shards.len();
    let name = |index: usize| match count {
        1 => "model.safetensors".to_owned(),
        count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    };
    shards.into_iter().enumerate().map(|(index, shard)| (name(index), shard)).collect()
}

/// Dtype and shape of each part, in the order of [`mlx_parts`].
fn stored(tensor: &Tensor, group: usize) -> Vec<(Dtype, Vec<usize>)> {
    let with_last = |last: usize| {
        let mut shape = tensor.shape.clone();
        if let Some(inputs) = shape.last_mut() {
            *inputs = last;
        }
        shape
    };
    match tensor.content {
        Content::Affine { bits, .. } => {
            let groups = with_last(tensor.cols / group);
            let codes = with_last(tensor.cols * bits / 32);
            vec![(Dtype::U32, codes), (Dtype::F16, groups.clone()), (Dtype::F16, groups)]
        }
        Content::Mxfp4 { .. } => {
            let codes = with_last(tensor.cols * BITS / 32);
            vec![(Dtype::U32, codes), (Dtype::U8, with_last(tensor.cols / BLOCK))]
        }
        Content::Half(_) => vec![(Dtype::BF16, tensor.shape.clone())],
        Content::Plain(_)
        | Content::NegativeExp(_)
        | Content::Router { .. }
        | Content::Fixed(_) => {
            vec![(Dtype::F32, tensor.shape.clone())]
        }
    }
}

/// Weights of an earlier model would be read together with the new ones.
fn remove_weights(folder: &Path) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(|source| Error::io(folder, source))?;
    let paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let weights = name.starts_with("model") && name.ends_with(".safetensors");
        if weights || name == MTP || name == INDEX || name == "config.json" {
            fs::remove_file(&path).map_err(|source| Error::io(&path, source))?;
        }
    }
    Ok(())
}

pub(super) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// config.json as mlx-lm writes it for the family.
pub(crate) fn config(shape: &Shape, layers: usize, values: Values) -> Value {
    let (base, class) = match (shape.family, shape.has_experts()) {
        (Family::Qwen35, true) => ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
        (Family::Qwen35, false) => ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        (Family::Qwen3, true) => ("qwen3_moe", "Qwen3MoeForCausalLM"),
        (Family::Qwen3, false) => ("qwen3", "Qwen3ForCausalLM"),
        (Family::Llama, _) => ("llama", "LlamaForCausalLM"),
        (Family::GptOss, _) => ("gpt_oss", "GptOssForCausalLM"),
        (Family::Gemma4, _) => ("gemma4", "Gemma4ForConditionalGeneration"),
    };
    let text = match shape.gemma {
        Some(gemma) => gemma4_config(shape, &gemma, layers),
        None => text_config(shape, layers),
    };
    let mut root = Map::new();
    root.insert("architectures".into(), json!([class]));
    root.insert("model_type".into(), json!(base));
    if shape.is_nested() {
        let mut text = text;
        text.insert("model_type".into(), json!(format!("{base}_text")));
        root.insert("text_config".into(), Value::Object(text));
    } else {
        root.extend(text);
    }
    let mut quantization = json!({ "group_size": values.group, "bits": BITS, "mode": "affine" });
    for tensor in tensors(shape, layers, values) {
        let Some(name) = tensor.mlx else { continue };
        match tensor.content {
            Content::Affine { bits, .. } if bits != BITS => {
                quantization[name] = json!({ "group_size": values.group, "bits": bits });
            }
            Content::Mxfp4 { .. } => {
                quantization[name] = json!({ "group_size": BLOCK, "bits": BITS, "mode": "mxfp4" });
            }
            _ => {}
        }
    }
    root.insert("tie_word_embeddings".into(), json!(shape.tied));
    root.insert("dtype".into(), json!("float16"));
    root.insert("eos_token_id".into(), json!([END_OF_TURN, END_OF_TEXT]));
    root.insert("pad_token_id".into(), json!(END_OF_TEXT));
    root.insert("quantization".into(), quantization.clone());
    root.insert("quantization_config".into(), quantization);
    let mut synthetic = json!({ "like": shape.name, "layers_of": shape.layers });
    if shape.has_experts() {
        synthetic["router"] = json!(values.router.name());
    }
    root.insert("synthetic".into(), synthetic);
    Value::Object(root)
}

/// What every family calls the same.
fn common_config(shape: &Shape, layers: usize) -> Map<String, Value> {
    let keys = [
        ("hidden_size", json!(shape.hidden)),
        ("num_hidden_layers", json!(layers)),
        ("vocab_size", json!(shape.vocab)),
        ("max_position_embeddings", json!(shape.context)),
        ("rms_norm_eps", json!(f64::from(shape.eps))),
        ("num_attention_heads", json!(shape.heads)),
        ("num_key_value_heads", json!(shape.kv_heads)),
        ("head_dim", json!(shape.head_dim)),
        ("attention_bias", json!(shape.family == Family::GptOss)),
        ("tie_word_embeddings", json!(shape.tied)),
    ];
    keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn text_config(shape: &Shape, layers: usize) -> Map<String, Value> {
    let mut config = common_config(shape, layers);
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    set("hidden_act", json!("silu"));
    set("rope_theta", json!(shape.rope_theta));
    match (shape.family, shape.rope_scaling) {
        (Family::Qwen35, _) => {
            let rope = json!({
                "rope_type": "default",
                "rope_theta": shape.rope_theta,
                "partial_rotary_factor": shape.partial_rotary(),
                "mrope_section": shape.rope_sections(),
                "mrope_interleaved": true,
            });
            set("rope_parameters", rope);
        }
        (Family::GptOss, _) => {
            let scaling = json!({
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": false,
                "original_max_position_embeddings": shape.context / 32,
            });
            set("rope_scaling", scaling);
        }
        (_, Some(scaling)) => {
            let scaling = json!({
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low,
                "high_freq_factor": scaling.high,
                "original_max_position_embeddings": scaling.original_context,
            });
            set("rope_scaling", scaling);
        }
        (_, None) => {}
    }
    match shape.feed_forward {
        FeedForward::Dense { width } => {
            set("intermediate_size", json!(width));
        }
        FeedForward::Experts { count, used, width, .. } if shape.family == Family::GptOss => {
            let kind = |layer| match shape.is_sliding(layer) {
                true => "sliding_attention",
                false => "full_attention",
            };
            set("layer_types", json!((0..layers).map(kind).collect::<Vec<_>>()));
            set("sliding_window", json!(128));
            set("num_local_experts", json!(count));
            set("num_experts_per_tok", json!(used));
            set("intermediate_size", json!(width));
            set("swiglu_limit", json!(7.0));
        }
        FeedForward::Experts { count, used, width, shared } => {
            set("num_experts", json!(count));
            set("num_experts_per_tok", json!(used));
            set("moe_intermediate_size", json!(width));
            set("norm_topk_prob", json!(true));
            set("decoder_sparse_step", json!(1));
            set("mlp_only_layers", json!([]));
            match shared {
                Some(width) => set("shared_expert_intermediate_size", json!(width)),
                // mlx-lm wants the key, though no layer is dense.
                None => set("intermediate_size", json!(width)),
            };
        }
    }
    if let Some(delta) = shape.delta {
        let kind = |layer| match shape.is_full_attention(layer) {
            true => "full_attention",
            false => "linear_attention",
        };
        set("layer_types", json!((0..layers).map(kind).collect::<Vec<_>>()));
        set("full_attention_interval", json!(Shape::FULL_ATTENTION_INTERVAL));
        set("linear_num_key_heads", json!(delta.key_heads));
        set("linear_num_value_heads", json!(delta.value_heads));
        set("linear_key_head_dim", json!(delta.head_dim));
        set("linear_value_head_dim", json!(delta.head_dim));
        set("linear_conv_kernel_dim", json!(Delta::TAPS));
    }
    config
}

/// `text_config` of Gemma 4, which has names of its own for most things.
fn gemma4_config(shape: &Shape, gemma: &Gemma, layers: usize) -> Map<String, Value> {
    let kind = |layer| match gemma.is_global(layer, layers) {
        true => "full_attention",
        false => "sliding_attention",
    };
    let mut config = common_config(shape, layers);
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    set("num_global_key_value_heads", json!(gemma.global_kv_heads));
    set("global_head_dim", json!(gemma.global_head_dim));
    set("attention_k_eq_v", json!(true));
    set("layer_types", json!((0..layers).map(kind).collect::<Vec<_>>()));
    set("sliding_window", json!(gemma.window));
    let sliding = json!({ "rope_type": "default", "rope_theta": shape.rope_theta });
    let full = json!({
        "rope_type": "proportional",
        "rope_theta": gemma.global_rope_theta,
        "partial_rotary_factor": 0.25,
    });
    set("rope_parameters", json!({ "sliding_attention": sliding, "full_attention": full }));
    set("hidden_activation", json!("gelu_pytorch_tanh"));
    set("final_logit_softcapping", json!(30.0));
    set("intermediate_size", json!(gemma.dense_width));
    if let FeedForward::Experts { count, used, width, .. } = shape.feed_forward {
        set("enable_moe_block", json!(true));
        set("num_experts", json!(count));
        set("top_k_experts", json!(used));
        set("moe_intermediate_size", json!(width));
    }
    set("hidden_size_per_layer_input", json!(0));
    set("num_kv_shared_layers", json!(0));
    set("use_double_wide_mlp", json!(false));
    config
}

/// A folder whose weights are holes: headers and sizes are real, and it takes no space.
#[cfg(test)]
pub(crate) fn write_holes(folder: &Path, shape: &Shape, layers: usize, tensors: &[Tensor]) {
    let values = Values { seed: 0, group: 32, router: super::Router::Uniform };
    let mut declarations = Vec::new();
    for tensor in tensors {
        let parts = mlx_parts(tensor, values).into_iter().zip(stored(tensor, values.group));
        let declare = |(part, (dtype, shape)): (Part, (Dtype, Vec<usize>))| {
            Declaration::new(part.name, dtype, &shape)
        };
        declarations.extend(parts.map(declare));
    }
    let path = folder.join("model.safetensors");
    let file = fs::File::create(&path).expect("a file");
    SafetensorsWriter::new(&file, &declarations, &BTreeMap::new()).expect("a header");
    let header = file.metadata().expect("a file").len();
    file.set_len(header + weight_bytes(tensors, values)).expect("a sparse file");
    let config = pretty(&config(shape, layers, values));
    fs::write(folder.join("config.json"), config).expect("written");
}
