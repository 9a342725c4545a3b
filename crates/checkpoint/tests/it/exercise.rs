//! Everything the reader can be asked about untrusted bytes. Shared with `fuzz/`.
//!
//! Nothing here checks a result: whatever the bytes, the answer may be `Ok` or `Err`, and the only
//! wrong one is a panic.

use std::path::Path;

use checkpoint::gguf::Field;
use checkpoint::safetensors::parse_header;
use checkpoint::{Checkpoint, Config, ExpertLayout, FileIndex, Projection};

/// The files of one input, in this order.
pub(crate) const NAMES: [&str; 5] = [
    "config.json",
    "model.safetensors.index.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

/// A header on its own.
pub(crate) fn header(json: &[u8]) {
    for file_bytes in [0, json.len() as u64 + 8, 1 << 20, u64::MAX] {
        let _ = parse_header(json, Path::new("fuzz"), FileIndex(0), file_bytes);
    }
}

/// A config.json on its own.
pub(crate) fn config(json: &[u8]) {
    let Ok(config) = Config::parse(json, Path::new("config.json")) else { return };
    for key in ["hidden_size", "rope_parameters.rope_theta", "layer_types", "", ".", "a.b.c"] {
        let _ = (config.usize(key), config.f64(key), config.bool(key), config.str(key));
        let _ = (config.list(key), config.usize_list(key), config.str_list(key));
        let _ = (config.require_usize(key), config.require_f64(key), config.require_str(key));
    }
    let _ = (config.model_type(), config.text_model_type(), config.eos_token_ids());
    if let Some(quantization) = config.quantization() {
        for path in ["lm_head", "model.layers.0.mlp.gate", "", "...", "model."] {
            let _ = (quantization.scheme(path), quantization.exception(path));
        }
    }
}

/// An index next to a good configuration and one good shard.
pub(crate) fn index(json: &[u8]) {
    let header: &[u8] = br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let mut shard = (header.len() as u64).to_le_bytes().to_vec();
    shard.extend(header);
    shard.extend([0; 8]);
    files(vec![
        ("config.json".to_owned(), br#"{"model_type":"tiny"}"#.to_vec()),
        ("model.safetensors.index.json".to_owned(), json.to_vec()),
        ("model-00001-of-00002.safetensors".to_owned(), shard),
    ]);
}

/// Several files in one input: each but the last behind its length in two bytes.
pub(crate) fn open(input: &[u8]) {
    files(split(input));
}

/// A GGUF file on its own.
pub(crate) fn gguf(file: &[u8]) {
    files(vec![("model.gguf".to_owned(), file.to_vec())]);
}

/// The files of one input for [`open`]; an empty one is left out.
pub(crate) fn split(input: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut rest = input;
    let mut files = Vec::new();
    for (place, name) in NAMES.iter().enumerate() {
        let mut len = rest.len();
        if place + 1 < NAMES.len() {
            let Some((prefix, after)) = rest.split_first_chunk() else { break };
            (len, rest) = (usize::from(u16::from_le_bytes(*prefix)).min(after.len()), after);
        }
        let (bytes, after) = rest.split_at(len);
        rest = after;
        if !bytes.is_empty() {
            files.push(((*name).to_owned(), bytes.to_vec()));
        }
    }
    files
}

/// The inverse of [`split`].
pub(crate) fn join(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut input = Vec::new();
    for (place, name) in NAMES.iter().enumerate() {
        let found = files.iter().find(|(other, _)| other == name);
        let bytes = found.map_or(&[][..], |(_, bytes)| bytes);
        if place + 1 < NAMES.len() {
            input.extend(u16::try_from(bytes.len()).expect("a small file").to_le_bytes());
        }
        input.extend(bytes);
    }
    input
}

/// Opens the files and asks for everything.
pub(crate) fn files(files: Vec<(String, Vec<u8>)>) {
    match Checkpoint::from_owned(files) {
        Ok(checkpoint) => ask(&checkpoint),
        Err(error) => drop(error.to_string()),
    }
}

fn ask(checkpoint: &Checkpoint) {
    let _ = (checkpoint.total_bytes(), checkpoint.eos_token_ids(), checkpoint.metadata("format"));
    let _ = (checkpoint.read_file("tokenizer.json"), checkpoint.read_file("../config.json"));
    for tensor in checkpoint.tensors() {
        let _ = checkpoint.read_f32(tensor);
        let mut byte = [0];
        let _ = checkpoint.read(tensor, tensor.len_bytes, &mut byte);
        let _ = checkpoint.require(&tensor.name, &[1, 2]).map_err(|error| error.to_string());
        let path = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        ask_linear(checkpoint, path, &tensor.shape);
        let _ = checkpoint.linear(path, None, usize::MAX, usize::MAX);
    }
    if let Some(metadata) = checkpoint.gguf() {
        for (key, field) in metadata.fields() {
            let _ = (field.as_u64(), field.as_f64(), field.as_bool(), field.as_str());
            let _ = (metadata.per_layer(key, 3), metadata.bools_per_layer(key, 3));
            match field {
                Field::Numbers(numbers) => assert_eq!(numbers.iter().count(), numbers.len()),
                Field::Texts(texts) => assert_eq!(texts.iter().count(), texts.len()),
                _ => {}
            }
        }
        drop(format!("{:?}", checkpoint.conversion()));
    }
    let _ = checkpoint.require("missing", &[]).map_err(|error| error.to_string());
    for prefix in ["model.layers.0.mlp", "model.layers.0", ""] {
        for [experts, hidden, intermediate] in
            [[4, 64, 32], [2, 64, 32], [0, 0, 0], [usize::MAX; 3]]
        {
            let found = ExpertLayout::find(checkpoint, prefix, experts, hidden, intermediate);
            if let Ok(layout) = found {
                read_experts(checkpoint, &layout);
            }
        }
    }
    checkpoint.warnings().iter().for_each(|warning| drop(warning.to_string()));
}

fn ask_linear(checkpoint: &Checkpoint, path: &str, shape: &[usize]) {
    let (stack, out_features, columns) = match *shape {
        [rows, columns] => (None, rows, columns),
        [stack, rows, columns] => (Some(stack), rows, columns),
        _ => return,
    };
    for bits in [1, 2, 4, 8, 32] {
        let in_features = columns.saturating_mul(32) / bits;
        if let Ok(linear) = checkpoint.linear(path, stack, out_features, in_features) {
            let slice = linear.slice(stack.unwrap_or(1) - 1);
            let [weight, scales, biases] = linear.encoding.part_bytes(out_features, in_features);
            let bias = slice.bias.map_or(0, |span| span.len_bytes);
            assert_eq!(slice.bytes(), weight + scales + biases + bias, "{path}");
        }
    }
}

fn read_experts(checkpoint: &Checkpoint, layout: &ExpertLayout) {
    for expert in [0, layout.experts() - 1] {
        let spans = layout.spans(expert);
        let total: u64 = spans.iter().map(|span| span.len_bytes).sum();
        assert_eq!(total, layout.bytes_per_expert());
        for span in spans {
            let mut bytes = vec![0; usize::try_from(span.len_bytes).expect("inside a small file")];
            checkpoint.read_span(span, &mut bytes).expect("inside the file");
        }
        Projection::ALL.iter().for_each(|&part| drop(layout.encoding(part).to_string()));
    }
}
