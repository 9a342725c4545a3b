//! Experts in every arrangement: the same weights must come out of each of them.

use std::collections::BTreeMap;

use checkpoint::write::{Declaration, SafetensorsWriter};
use checkpoint::{Checkpoint, ExpertForm, ExpertLayout, Projection};
use format::{Dtype, Float};

use crate::support::{CONFIG, declare, files, open};

const EXPERTS: usize = 3;
const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 32;

/// The bytes of one projection of one expert in BF16, telling experts and projections apart.
fn matrix(expert: usize, projection: usize) -> Vec<u8> {
    let byte = |index: usize| (expert * 83 + projection * 31 + index * 7) as u8;
    (0..HIDDEN * INTERMEDIATE * 2).map(byte).collect()
}

fn write(tensors: &[(String, Vec<usize>, Vec<u8>)]) -> Checkpoint {
    let declarations: Vec<Declaration> =
        tensors.iter().map(|(name, shape, _)| declare(name, Dtype::BF16, shape)).collect();
    let mut writer = SafetensorsWriter::new(Vec::new(), &declarations, &BTreeMap::new()).unwrap();
    tensors.iter().for_each(|(name, _, bytes)| writer.write(name, bytes).unwrap());
    let model = writer.finish().unwrap();
    let list = files(&[("config.json", CONFIG.as_bytes()), ("model.safetensors", &model)]);
    Checkpoint::from_owned(list).unwrap()
}

fn shape(projection: usize) -> [usize; 2] {
    if projection == 2 { [HIDDEN, INTERMEDIATE] } else { [INTERMEDIATE, HIDDEN] }
}

fn stacked(path: &str) -> Checkpoint {
    let mut tensors = Vec::new();
    for (projection, name) in ["gate_proj", "up_proj", "down_proj"].iter().enumerate() {
        let [rows, columns] = shape(projection);
        let bytes = (0..EXPERTS).flat_map(|expert| matrix(expert, projection)).collect();
        tensors.push((format!("{path}.{name}.weight"), vec![EXPERTS, rows, columns], bytes));
    }
    write(&tensors)
}

fn fused(path: &str) -> Checkpoint {
    let both = (0..EXPERTS).flat_map(|expert| [matrix(expert, 0), matrix(expert, 1)].concat());
    let down = (0..EXPERTS).flat_map(|expert| matrix(expert, 2)).collect();
    let gate_up = vec![EXPERTS, 2 * INTERMEDIATE, HIDDEN];
    write(&[
        (format!("{path}.down_proj"), vec![EXPERTS, HIDDEN, INTERMEDIATE], down),
        (format!("{path}.gate_up_proj"), gate_up, both.collect()),
    ])
}

fn separate(path: &str, names: [&str; 3]) -> Checkpoint {
    let mut tensors = Vec::new();
    for expert in (0..EXPERTS).rev() {
        for (projection, name) in names.iter().enumerate() {
            let name = format!("{path}.{expert}.{name}.weight");
            tensors.push((name, shape(projection).to_vec(), matrix(expert, projection)));
        }
    }
    write(&tensors)
}

#[track_caller]
fn check(checkpoint: &Checkpoint, prefix: &str, form: ExpertForm) {
    let layout = ExpertLayout::find(checkpoint, prefix, EXPERTS, HIDDEN, INTERMEDIATE).unwrap();
    assert_eq!(layout.form(), form);
    for expert in 0..EXPERTS {
        for (index, projection) in Projection::ALL.into_iter().enumerate() {
            let slice = layout.slice(expert, projection);
            assert_eq!([slice.out_features, slice.in_features], shape(index));
            let mut bytes = vec![0; slice.weight.len_bytes as usize];
            checkpoint.read_span(slice.weight, &mut bytes).unwrap();
            assert!(bytes == matrix(expert, index), "expert {expert}, {projection}");
        }
    }
    assert_eq!(layout.bytes_per_expert(), 3 * (HIDDEN * INTERMEDIATE * 2) as u64);
}

#[test]
fn every_arrangement_gives_the_same_experts() {
    for path in ["a.mlp.switch_mlp", "a.block_sparse_moe.switch_mlp", "a.mlp.experts"] {
        check(&stacked(path), "a", ExpertForm::Stacked);
    }
    check(&stacked("a.experts.switch_glu"), "a", ExpertForm::Stacked);
    check(&stacked("a.mlp.switch_mlp"), "a.mlp", ExpertForm::Stacked);
    check(&fused("a.mlp.experts"), "a.mlp", ExpertForm::Fused);
    check(&fused("a.experts"), "a", ExpertForm::Fused);
    let names = ["gate_proj", "up_proj", "down_proj"];
    check(&separate("a.mlp.experts", names), "a.mlp", ExpertForm::Separate);
    let mixtral = separate("a.block_sparse_moe.experts", ["w1", "w3", "w2"]);
    check(&mixtral, "a.block_sparse_moe", ExpertForm::Separate);
    check(&mixtral, "a", ExpertForm::Separate);
}

/// Quantized tensors `path.{weight,scales,biases}`, four bits in groups of 32.
fn quantized(path: &str, leading: &[usize], [rows, columns]: [usize; 2]) -> Vec<Declaration> {
    let shape = |last| [leading, &[rows, last]].concat();
    vec![
        declare(&format!("{path}.weight"), Dtype::U32, &shape(columns / 8)),
        declare(&format!("{path}.scales"), Dtype::F16, &shape(columns / 32)),
        declare(&format!("{path}.biases"), Dtype::F16, &shape(columns / 32)),
    ]
}

#[test]
fn fused_experts_may_be_quantized() {
    let mut tensors = quantized("m.experts.gate_up_proj", &[EXPERTS], [2 * INTERMEDIATE, HIDDEN]);
    tensors.extend(quantized("m.experts.down_proj", &[EXPERTS], [HIDDEN, INTERMEDIATE]));
    let checkpoint = open(CONFIG, &tensors);
    let layout = ExpertLayout::find(&checkpoint, "m", EXPERTS, HIDDEN, INTERMEDIATE).unwrap();
    let (gate, up) = (layout.slice(1, Projection::Gate), layout.slice(1, Projection::Up));
    assert_eq!(
        gate.scales.unwrap().offset + gate.scales.unwrap().len_bytes,
        up.scales.unwrap().offset
    );
    assert_eq!(gate.bytes(), up.bytes());
    assert_eq!(layout.bytes(), checkpoint.total_bytes());
}

#[test]
fn expert_biases_stream_with_their_expert() {
    let mut tensors = Vec::new();
    for (name, [rows, columns]) in
        [("gate_proj", shape(0)), ("up_proj", shape(1)), ("down_proj", shape(2))]
    {
        let path = format!("m.mlp.experts.{name}");
        tensors.push(declare(&format!("{path}.bias"), Dtype::BF16, &[EXPERTS, rows]));
        tensors.push(declare(&format!("{path}.scales"), Dtype::U8, &[EXPERTS, rows, columns / 32]));
        tensors.push(declare(&format!("{path}.weight"), Dtype::U32, &[EXPERTS, rows, columns / 8]));
    }
    let checkpoint = open(CONFIG, &tensors);
    let layout = ExpertLayout::find(&checkpoint, "m.mlp", EXPERTS, HIDDEN, INTERMEDIATE).unwrap();
    assert_eq!(layout.encoding(Projection::Up).to_string(), "mxfp4");
    assert_eq!(layout.spans(2).len(), 9);
    assert_eq!(layout.bytes(), checkpoint.total_bytes());
}

/// The experts of gpt-oss as published: bytes in blocks, gate and up rows taking turns.
fn blocks(config: &str, intermediate: usize) -> Checkpoint {
    let mut tensors = Vec::new();
    for (name, rows, columns) in
        [("gate_up_proj", 2 * intermediate, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)]
    {
        let path = format!("m.mlp.experts.{name}");
        let groups = [EXPERTS, rows, columns / 32];
        tensors.push(declare(&format!("{path}_bias"), Dtype::BF16, &[EXPERTS, rows]));
        let block = [EXPERTS, rows, columns / 32, 16];
        tensors.push(declare(&format!("{path}_blocks"), Dtype::U8, &block));
        tensors.push(declare(&format!("{path}_scales"), Dtype::U8, &groups));
    }
    open(config, &tensors)
}

#[test]
fn published_blocks_are_two_halves_of_alternating_rows() {
    let config = r#"{"model_type": "any", "quantization_config": {"quant_method": "mxfp4"}}"#;
    let checkpoint = blocks(config, INTERMEDIATE);
    let layout = ExpertLayout::find(&checkpoint, "m.mlp", EXPERTS, HIDDEN, INTERMEDIATE).unwrap();
    assert_eq!(layout.form(), ExpertForm::Fused);
    assert!(layout.is_interleaved());
    assert_eq!(layout.encoding(Projection::Gate).to_string(), "mxfp4");
    assert_eq!(layout.bias_float(Projection::Down), Some(Float::Bf16));
    assert_eq!(layout.spans(0).len(), 9);
    assert_eq!(layout.bytes(), checkpoint.total_bytes());
    let (gate, up) = (layout.slice(2, Projection::Gate), layout.slice(2, Projection::Up));
    assert_eq!(gate.weight.offset + gate.weight.len_bytes, up.weight.offset);
    assert_eq!(gate.bias.unwrap().offset + gate.bias.unwrap().len_bytes, up.bias.unwrap().offset);
    assert_eq!(layout.separate_name(Projection::Up), "gate_up_upper_proj");
    assert_eq!(checkpoint.warnings(), []);
    // Nothing of the kind is said here.
    let plain = blocks(CONFIG, INTERMEDIATE);
    ExpertLayout::find(&plain, "m.mlp", EXPERTS, HIDDEN, INTERMEDIATE).unwrap();
    assert_eq!(plain.warnings().len(), 2);
}

#[test]
fn alternating_rows_come_in_whole_pairs() {
    // As a repacked copy names them.
    let find = |intermediate: usize| {
        let mut tensors = Vec::new();
        for expert in 0..EXPERTS {
            for (name, shape) in [
                ("gate_up_lower_proj", [intermediate, HIDDEN]),
                ("gate_up_upper_proj", [intermediate, HIDDEN]),
                ("down_proj", [HIDDEN, intermediate]),
            ] {
                let name = format!("m.experts.{expert}.{name}.weight");
                tensors.push(declare(&name, Dtype::BF16, &shape));
            }
        }
        let checkpoint = open(CONFIG, &tensors);
        ExpertLayout::find(&checkpoint, "m", EXPERTS, HIDDEN, intermediate)
    };
    assert!(find(INTERMEDIATE).unwrap().is_interleaved());
    let error = find(INTERMEDIATE - 1).unwrap_err().to_string();
    assert!(error.contains("\"intermediate_size\": expected an even number"), "{error}");
}

#[track_caller]
fn check_error(tensors: &[Declaration], expected: &str) {
    let checkpoint = open(CONFIG, tensors);
    let found = ExpertLayout::find(&checkpoint, "m", EXPERTS, HIDDEN, INTERMEDIATE);
    assert_eq!(found.unwrap_err().to_string(), expected);
}

#[test]
fn what_is_no_expert_layout() {
    check_error(
        &[],
        "<memory>: no experts under \"m\"; looked for switch_mlp.gate_proj, \
         experts.switch_glu.gate_proj, experts.gate_up_proj, experts.gate_proj, \
         experts.0.gate_proj, experts.0.w1",
    );
    check_error(
        &[declare("m.switch_mlp.gate_proj.weight", Dtype::F16, &[4, INTERMEDIATE, HIDDEN])],
        "<memory>/model.safetensors: tensor \"m.switch_mlp.gate_proj.weight\": \
         expected shape [3, 32, 64], got [4, 32, 64]",
    );
    check_error(
        &[declare("m.switch_mlp.gate_proj.weight", Dtype::F16, &[3, INTERMEDIATE, HIDDEN])],
        "<memory>: no tensor \"m.switch_mlp.up_proj.weight\"; \
         near: \"m.switch_mlp.gate_proj.weight\"",
    );
    // Transposed, as Llama 4 has them.
    check_error(
        &[declare("m.experts.gate_up_proj", Dtype::F16, &[3, HIDDEN, 2 * INTERMEDIATE + 2])],
        "<memory>/model.safetensors: tensor \"m.experts.gate_up_proj\": \
         expected shape [3, 64, 64], got [3, 64, 66]",
    );
}

#[test]
fn experts_of_one_projection_must_be_encoded_alike() {
    let mut tensors = Vec::new();
    for expert in 0..EXPERTS {
        let dtype = if expert == 2 { Dtype::F32 } else { Dtype::BF16 };
        let name = format!("m.experts.{expert}.gate_proj.weight");
        tensors.push(declare(&name, dtype, &[INTERMEDIATE, HIDDEN]));
    }
    check_error(
        &tensors,
        "<memory>: \"m.experts.2.gate_proj\": gate of expert 2 is f32, expert 0 is bf16",
    );
    let mut tensors = quantized("m.experts.0.w1", &[], [INTERMEDIATE, HIDDEN]);
    tensors.extend(quantized("m.experts.1.w1", &[], [INTERMEDIATE, HIDDEN]));
    tensors.push(declare("m.experts.1.w1.bias", Dtype::F16, &[INTERMEDIATE]));
    check_error(
        &tensors,
        "<memory>: \"m.experts.1.w1\": gate of expert 1 is affine 4-bit group 32 (F16 scales) \
         with F16 bias, expert 0 is affine 4-bit group 32 (F16 scales)",
    );
}
