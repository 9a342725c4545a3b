//! Real tensor lists as sparse files: every encoding is found, and no warning is given.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

use checkpoint::write::{Declaration, SafetensorsWriter};
use checkpoint::{Checkpoint, ExpertForm, ExpertLayout, Projection};
use format::Dtype;

use crate::support::declare;

/// Opens a list as a folder of one zero-filled file that occupies no disk.
fn open_sparse(config: &str, tensors: &[Declaration]) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config).unwrap();
    let header = {
        // The header of the full list is a prefix that only the writer knows how to make.
        let mut bytes = Vec::new();
        drop(SafetensorsWriter::new(&mut bytes, tensors, &Default::default()).unwrap());
        bytes
    };
    let data: u64 = tensors.iter().map(|t| t.dtype.tensor_bytes(&t.shape).unwrap()).sum();
    let mut file = fs::File::create(folder.path().join("model.safetensors")).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(header.len() as u64 + data).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.total_bytes(), data);
    (folder, checkpoint)
}

fn parse_shape(text: &str) -> Vec<usize> {
    serde_json::from_str(text).unwrap()
}

#[track_caller]
fn check(list: &str) -> (tempfile::TempDir, Checkpoint) {
    let mut config = "";
    let mut tensors = Vec::new();
    let mut expected = Vec::new();
    for line in list.lines() {
        if let Some(json) = line.strip_prefix("config ") {
            config = json;
        } else if let Some(line) = line.strip_prefix("= ") {
            expected.push(line.splitn(5, ' ').collect::<Vec<_>>());
        } else {
            let parts: Vec<_> = line.split(' ').collect();
            let dtype = Dtype::from_name(parts[1]).unwrap();
            tensors.push(declare(parts[0], dtype, &parse_shape(parts[2])));
        }
    }
    let (folder, checkpoint) = open_sparse(config, &tensors);

    let mut quantized = BTreeSet::new();
    for line in &expected {
        let (path, number) = (line[0], |text: &str| text.parse::<usize>().unwrap());
        let stack = (line[1] != "-").then(|| number(line[1]));
        let linear = checkpoint.linear(path, stack, number(line[2]), number(line[3])).unwrap();
        assert_eq!(linear.encoding.to_string(), line[4], "{path}");
        assert_eq!(linear.scales.is_some(), linear.encoding.is_quantized(), "{path}");
        let [weight, scales, biases] =
            linear.encoding.part_bytes(number(line[2]) * stack.unwrap_or(1), number(line[3]));
        assert_eq!(linear.bytes(), weight + scales + biases, "{path}");
        if linear.scales.is_some() {
            quantized.insert(path);
        }
    }
    let scaled = tensors.iter().filter_map(|tensor| tensor.name.strip_suffix(".scales"));
    assert_eq!(quantized, scaled.collect(), "every quantized module is checked");
    assert_eq!(checkpoint.warnings(), []);
    (folder, checkpoint)
}

#[track_caller]
fn check_experts(checkpoint: &Checkpoint, prefix: &str, form: ExpertForm, bytes: u64) {
    let layout = ExpertLayout::find(checkpoint, prefix, 8, 128, 64).unwrap();
    assert_eq!((layout.form(), layout.experts()), (form, 8));
    assert_eq!(layout.bytes_per_expert(), bytes);
}

#[test]
fn qwen_moe_in_mixed_four_and_six_bits() {
    let (_folder, checkpoint) =
        check(include_str!("../layouts/mlxmixed46_qwen3_5_moe_vl_fused.txt"));
    let prefix = "language_model.model.layers.3.mlp";
    let layout = ExpertLayout::find(&checkpoint, prefix, 8, 128, 64).unwrap();
    assert_eq!(layout.path(), "language_model.model.layers.3.mlp.switch_mlp");
    assert_eq!(layout.encoding(Projection::Gate).bits(), Some(4));
    assert_eq!(layout.encoding(Projection::Down).bits(), Some(6));
    // Gate and up 64·128 at 4 bits, down at 6; two F32 for each group of 64.
    assert_eq!(layout.bytes_per_expert(), 2 * 4096 + 6144 + 3 * 128 * 8);
    check_experts(
        &checkpoint,
        "language_model.model.layers.0",
        ExpertForm::Stacked,
        3 * (4096 + 1024),
    );
}

#[test]
fn qwen_moe_in_mxfp4_with_affine_routers() {
    let (_folder, checkpoint) = check(include_str!("../layouts/mlx_mxfp4_qwen3_moe.txt"));
    check_experts(&checkpoint, "model.layers.0.mlp", ExpertForm::Stacked, 3 * (4096 + 256));
}

#[test]
fn gemma_moe_in_eight_bits() {
    let (_folder, checkpoint) = check(include_str!("../layouts/mlx8bit_g32_gemma4_moe_text.txt"));
    check_experts(&checkpoint, "model.layers.0", ExpertForm::Stacked, 3 * (8192 + 2 * 1024));
}

#[test]
fn qwen_dense_in_four_bits() {
    check(include_str!("../layouts/mlx4bit_qwen3_5_dense_text.txt"));
}

#[test]
fn gemma_with_per_layer_embeddings_leaves_odd_widths_alone() {
    check(include_str!("../layouts/mlx4bit_gemma4_e_text.txt"));
}

#[test]
fn unquantized_mlx_files_are_stacked() {
    let (_folder, checkpoint) =
        check(include_str!("../layouts/mlxbf16_qwen3_5_moe_text_fused.txt"));
    let prefix = "language_model.model.layers.0.mlp";
    let bytes = checkpoint
        .tensors()
        .filter(|tensor| tensor.name.contains("layers.0.mlp.switch_mlp"))
        .map(|tensor| tensor.len_bytes / 8)
        .sum();
    check_experts(&checkpoint, prefix, ExpertForm::Stacked, bytes);
}

#[test]
fn huggingface_experts_are_separate_or_fused() {
    let (_folder, checkpoint) = check(include_str!("../layouts/hf_qwen3_5_moe_text.txt"));
    check_experts(&checkpoint, "model.layers.0.mlp", ExpertForm::Separate, 3 * 64 * 128 * 4);
    let (_folder, checkpoint) = check(include_str!("../layouts/hf_gemma4_moe_vl.txt"));
    let prefix = "model.language_model.layers.0";
    check_experts(&checkpoint, prefix, ExpertForm::Fused, 3 * 64 * 128 * 4);
}

/// The sizes the design counts with: published shapes, four bits in groups of 64.
#[test]
fn published_expert_sizes() {
    for (experts, hidden, intermediate, bytes) in
        [(256, 2048, 512, 1_769_472), (256, 3072, 1024, 5_308_416), (128, 2816, 704, 3_345_408)]
    {
        let mut tensors = Vec::new();
        for (name, rows, columns) in [
            ("gate_proj", intermediate, hidden),
            ("up_proj", intermediate, hidden),
            ("down_proj", hidden, intermediate),
        ] {
            let path = format!("model.layers.0.mlp.switch_mlp.{name}");
            let scales = [experts, rows, columns / 64];
            tensors.push(declare(
                &format!("{path}.weight"),
                Dtype::U32,
                &[experts, rows, columns / 8],
            ));
            tensors.push(declare(&format!("{path}.scales"), Dtype::BF16, &scales));
            tensors.push(declare(&format!("{path}.biases"), Dtype::BF16, &scales));
        }
        let config = r#"{"model_type":"x","quantization":{"bits":4,"group_size":64}}"#;
        let (_folder, checkpoint) = open_sparse(config, &tensors);
        let prefix = "model.layers.0.mlp";
        let layout =
            ExpertLayout::find(&checkpoint, prefix, experts, hidden, intermediate).unwrap();
        assert_eq!(layout.bytes_per_expert(), bytes);
        assert_eq!(layout.bytes(), checkpoint.total_bytes());
        assert_eq!(layout.spans(experts - 1).len(), 9);
        let last = layout.slice(experts - 1, Projection::Down).weight;
        let down = checkpoint.tensor(&format!("{prefix}.switch_mlp.down_proj.weight")).unwrap();
        assert_eq!(last.offset + last.len_bytes, down.offset + down.len_bytes);
        assert_eq!(checkpoint.warnings(), []);
    }
}

#[test]
fn the_built_in_model_opens_and_agrees_with_its_configuration() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pebble");
    let checkpoint = Checkpoint::open(folder.as_ref()).unwrap();
    let config = checkpoint.config();
    assert_eq!((config.model_type(), config.text_model_type()), ("qwen3_5_moe", "qwen3_5_moe"));
    let size = |key| config.require_usize(key).unwrap();
    let (hidden, experts) = (size("hidden_size"), size("num_experts"));
    for layer in 0..size("num_hidden_layers") {
        let prefix = format!("language_model.model.layers.{layer}.mlp");
        let intermediate = size("moe_intermediate_size");
        ExpertLayout::find(&checkpoint, &prefix, experts, hidden, intermediate).unwrap();
        let router = checkpoint.linear(&format!("{prefix}.gate"), None, experts, hidden).unwrap();
        assert_eq!(router.encoding.bits(), Some(8));
        let norm = format!("language_model.model.layers.{layer}.input_layernorm.weight");
        let norm = checkpoint.require(&norm, &[hidden]).unwrap();
        assert!(checkpoint.read_f32(norm).unwrap().iter().all(|value| value.is_finite()));
    }
    assert_eq!(checkpoint.warnings(), []);
    assert!(checkpoint.read_file("tokenizer.json").unwrap().is_some());
    assert!(checkpoint.eos_token_ids().unwrap().starts_with(&[4082]));
}
