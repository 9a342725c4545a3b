//! Names, shapes and forms of tensors, and what is said of them besides.

use checkpoint::gguf::{Declaration, FactorLayers, HeadOrder, Rate, RotaryPairs, Value};
use checkpoint::{Checkpoint, ExpertForm, ExpertLayout, Projection};
use format::{BlockFormat, Dtype, Encoding};

use super::{HEAD_DIM, HEADS, HIDDEN, Q4_0, Q4_K, declare, field, fields, open, tensors, written};

fn model(
    architecture: &str,
    more: &[(&str, Value)],
    tensors: &[Declaration],
) -> checkpoint::Result<Checkpoint> {
    let mut all = fields(architecture);
    for (key, value) in more {
        all.push(field(&format!("{architecture}.{key}"), value.clone()));
    }
    open(&written(&all, tensors))
}

fn without(start: &str) -> Vec<Declaration> {
    tensors().into_iter().filter(|tensor| !tensor.name.starts_with(start)).collect()
}

const KV: u64 = 2 * HEAD_DIM;
const Q_ROWS: u64 = HEADS * HEAD_DIM;

#[test]
fn queries_keys_and_values_of_one_tensor() {
    let mut list: Vec<Declaration> = without("blk.0.attn_");
    list.push(declare("blk.0.attn_norm.weight", Dtype::F32, &[HIDDEN]));
    list.push(declare("blk.0.attn_output.weight", Q4_K, &[Q_ROWS, HIDDEN]));
    list.push(declare("blk.0.attn_qkv.weight", Q4_0, &[HIDDEN, Q_ROWS + 2 * KV]));
    list.push(declare("blk.0.attn_qkv.bias", Dtype::F32, &[Q_ROWS + 2 * KV]));
    let checkpoint = model("qwen2", &[], &list).unwrap();
    let mut end = None;
    for (name, rows) in [("q_proj", Q_ROWS), ("k_proj", KV), ("v_proj", KV)] {
        let path = format!("model.layers.0.self_attn.{name}");
        let linear = checkpoint.linear(&path, None, rows as usize, 256).unwrap();
        assert_eq!(linear.weight.len_bytes, rows * 8 * 18);
        assert_eq!(linear.bias.unwrap().len_bytes, rows * 4);
        assert!(end.is_none_or(|end| end == linear.weight.offset), "{name}");
        end = Some(linear.weight.offset + linear.weight.len_bytes);
    }
    let check = |suffix: &str, dtype: Dtype, dimensions: &[u64], expect: &str| {
        let mut list: Vec<Declaration> = list.clone();
        list.retain(|tensor| !tensor.name.contains("qkv"));
        list.push(declare(&format!("blk.0.attn_qkv.{suffix}"), dtype, dimensions));
        let error = model("qwen2", &[], &list).unwrap_err().to_string();
        assert!(error.ends_with(expect), "{error}");
    };
    let rows = Q_ROWS + 2 * KV;
    check("weight", Q4_0, &[HIDDEN, rows - 1], "expected shape [512, 256], got [511, 256]");
    check("weight", Q4_0, &[rows], "expected shape [512, 256], got [512]");
    check("weight", Q4_0, &[32, rows, 2], "expected shape [512, 512], got [2, 512, 32]");
    check("bias", Q4_0, &[rows], "expected an F32, F16 or BF16 bias, got Q4_0");
}

/// A layer of experts in three stacks, or in two.
fn experts(architecture: &str, is_fused: bool) -> Checkpoint {
    let mut list = without("blk.0.ffn_");
    list.push(declare("blk.0.ffn_norm.weight", Dtype::F32, &[HIDDEN]));
    list.push(declare("blk.0.ffn_gate_inp.weight", Dtype::F32, &[HIDDEN, 4]));
    if is_fused {
        list.push(declare("blk.0.ffn_gate_up_exps.weight", Q4_K, &[HIDDEN, 128, 4]));
    } else {
        list.push(declare("blk.0.ffn_gate_exps.weight", Q4_K, &[HIDDEN, 64, 4]));
        list.push(declare("blk.0.ffn_up_exps.weight", Q4_K, &[HIDDEN, 64, 4]));
    }
    list.push(declare("blk.0.ffn_down_exps.weight", Q4_0, &[64, HIDDEN, 4]));
    let more = [("expert_count", Value::U32(4)), ("expert_used_count", Value::U32(2))];
    model(architecture, &more, &list).unwrap()
}

#[test]
fn stacks_of_experts() {
    for (architecture, prefix, is_fused) in [
        ("qwen3moe", "model.layers.0.mlp", false),
        ("qwen3moe", "model.layers.0.mlp", true),
        ("llama", "model.layers.0.mlp", false),
        ("gemma4", "model.layers.0", true),
        ("gemma4", "model.layers.0", false),
        ("gpt-oss", "model.layers.0.mlp", false),
    ] {
        let checkpoint = experts(architecture, is_fused);
        let layout = ExpertLayout::find(&checkpoint, prefix, 4, 256, 64).unwrap();
        let form = if is_fused { ExpertForm::Fused } else { ExpertForm::Stacked };
        assert_eq!((layout.form(), layout.is_interleaved()), (form, false), "{architecture}");
        assert_eq!(layout.encoding(Projection::Up), Encoding::Block(BlockFormat::Q4K));
        assert_eq!(layout.encoding(Projection::Down), Encoding::Block(BlockFormat::Q4_0));
        assert_eq!(layout.bytes_per_expert(), 2 * 64 * 144 + 256 * 2 * 18);
        // Of three stacks or two, each expert is three ranges, and expert follows expert.
        let [first, second] = [0, 1].map(|expert| layout.slice(expert, Projection::Down).weight);
        assert_eq!(first.offset + first.len_bytes, second.offset);
        let (gate, up) = (layout.slice(3, Projection::Gate), layout.slice(3, Projection::Up));
        let is_next = gate.weight.offset + gate.weight.len_bytes == up.weight.offset;
        assert_eq!((layout.spans(3).len(), is_next), (3, is_fused));
    }
    let config = experts("llama", false).config().clone();
    assert_eq!((config.model_type(), config.usize("intermediate_size")), ("mixtral", Some(64)));
}

/// Tensors of a gated delta net layer with one key head and two value heads of 64.
fn delta() -> Vec<Declaration> {
    let mut list = without("blk.0.attn_");
    list.retain(|tensor| tensor.name != "blk.0.ffn_norm.weight");
    list.extend([
        declare("blk.0.attn_norm.weight", Dtype::F32, &[HIDDEN]),
        declare("blk.0.post_attention_norm.weight", Dtype::F32, &[HIDDEN]),
        declare("blk.0.attn_qkv.weight", Q4_K, &[HIDDEN, 256]),
        declare("blk.0.attn_gate.weight", Q4_K, &[HIDDEN, 128]),
        declare("blk.0.ssm_beta.weight", Dtype::F32, &[HIDDEN, 2]),
        declare("blk.0.ssm_alpha.weight", Dtype::F32, &[HIDDEN, 2]),
        declare("blk.0.ssm_conv1d.weight", Dtype::F32, &[4, 256]),
        declare("blk.0.ssm_norm.weight", Dtype::F32, &[64]),
        declare("blk.0.ssm_a", Dtype::F32, &[2]),
        declare("blk.0.ssm_dt.bias", Dtype::F32, &[2]),
        declare("blk.0.ssm_out.weight", Q4_0, &[128, HIDDEN]),
    ]);
    list
}

const SSM: [(&str, Value); 5] = [
    ("ssm.conv_kernel", Value::U32(4)),
    ("ssm.state_size", Value::U32(64)),
    ("ssm.group_count", Value::U32(1)),
    ("ssm.time_step_rank", Value::U32(2)),
    ("ssm.inner_size", Value::U32(128)),
];

#[test]
fn delta_nets() {
    let checkpoint = model("qwen35", &SSM, &delta()).unwrap();
    let path = "model.layers.0.linear_attn";
    let shape = |name: &str| checkpoint.tensor(&format!("{path}.{name}")).unwrap().shape.clone();
    assert_eq!(shape("in_proj_qkv.weight"), [256, 256]);
    assert_eq!(shape("in_proj_z.weight"), [128, 256]);
    assert_eq!(shape("in_proj_b.weight"), [2, 256]);
    assert_eq!(shape("conv1d.weight"), [256, 4, 1]);
    assert_eq!((shape("A_log"), shape("dt_bias")), (vec![2], vec![2]));
    assert_eq!(shape("out_proj.weight"), [256, 128]);
    let config = checkpoint.config();
    assert_eq!(config.str_list("layer_types").unwrap(), ["linear_attention"]);
    assert_eq!(config.usize("linear_value_head_dim"), Some(64));
    let conversion = checkpoint.conversion();
    assert_eq!(conversion.value_heads, HeadOrder::Tiled);
    assert_eq!(conversion.rate, Rate::Negative);
    assert_eq!(conversion.rotary_pairs, RotaryPairs::Halves);
    assert_eq!(checkpoint.warnings(), []);
}

#[test]
fn the_order_of_value_heads() {
    let order = |architecture: &str, more: &[(&str, Value)], list: &[Declaration]| {
        let all: Vec<_> = SSM.iter().chain(more).cloned().collect();
        model(architecture, &all, list).unwrap().conversion().value_heads
    };
    let mut ollama = delta();
    ollama.iter_mut().for_each(|tensor| tensor.name = tensor.name.replace("ssm_dt.bias", "ssm_dt"));
    let said = |value| [("ssm.v_head_reordered", Value::Bool(value))];
    assert_eq!(order("qwen35", &[], &delta()), HeadOrder::Tiled);
    assert_eq!(order("qwen3next", &[], &delta()), HeadOrder::Grouped);
    assert_eq!(order("qwen35", &[], &ollama), HeadOrder::Grouped);
    assert_eq!(order("qwen35", &said(true), &ollama), HeadOrder::Tiled);
    assert_eq!(order("qwen35", &said(false), &delta()), HeadOrder::Grouped);
}

#[test]
fn the_layer_of_a_draft_head_is_not_one_of_the_model() {
    let mut list = delta();
    list.push(declare("blk.1.attn_norm.weight", Dtype::F32, &[HIDDEN]));
    list.push(declare("blk.1.attn_q.weight", Q4_K, &[HIDDEN, 2 * Q_ROWS]));
    list.push(declare("blk.1.nextn.eh_proj.weight", Q4_K, &[2 * HIDDEN, HIDDEN]));
    list.push(declare("blk.1.nextn.enorm.weight", Dtype::F32, &[HIDDEN]));
    list.push(declare("blk.1.nextn.shared_head_norm.weight", Dtype::F32, &[HIDDEN]));
    let mut all = fields("qwen35");
    all[1].1 = Value::U32(2);
    all.push(field("qwen35.nextn_predict_layers", Value::U32(1)));
    all.extend(SSM.map(|(key, value)| field(&format!("qwen35.{key}"), value)));
    let checkpoint = open(&written(&all, &list)).unwrap();
    let names: Vec<&str> = (checkpoint.tensors().map(|tensor| tensor.name.as_str()))
        .filter(|name| name.starts_with("mtp."))
        .collect();
    assert_eq!(
        names,
        [
            "mtp.fc.weight",
            "mtp.layers.0.input_layernorm.weight",
            "mtp.layers.0.self_attn.q_proj.weight",
            "mtp.norm.weight",
            "mtp.pre_fc_norm_embedding.weight",
        ]
    );
    let config = checkpoint.config();
    assert_eq!(config.usize("num_hidden_layers"), Some(1));
    assert_eq!(config.usize("mtp_num_hidden_layers"), Some(1));
    // The head alone, as some publish it.
    list.retain(|tensor| !tensor.name.starts_with("blk.0."));
    let error = open(&written(&all, &list)).unwrap_err().to_string();
    assert!(error.contains("an MTP draft head, not a model"), "{error}");
}

#[test]
fn pairs_that_turn_and_factors_of_frequencies() {
    let mut list = tensors();
    list.push(declare("rope_freqs.weight", Dtype::F32, &[32]));
    let checkpoint = model("llama", &[], &list).unwrap();
    let conversion = checkpoint.conversion();
    assert_eq!(conversion.rotary_pairs, RotaryPairs::Neighbours);
    let factors = conversion.frequency_factors.as_ref().unwrap();
    assert_eq!((factors.layers, &factors.tensor.shape[..]), (FactorLayers::All, &[32][..]));
    assert_eq!(checkpoint.tensor("rope_freqs.weight"), Some(&factors.tensor));
    let gemma = experts("gemma4", true);
    assert_eq!(gemma.conversion().frequency_factors, None);
}

#[test]
fn scales_of_outputs_are_kept() {
    let mut list = tensors();
    list.push(declare("blk.0.attn_q.scale", Dtype::F32, &[1]));
    list.push(declare("output.weight", Q4_K, &[HIDDEN, 8]));
    list.push(declare("output.scale", Dtype::F32, &[1]));
    let checkpoint = model("qwen3", &[], &list).unwrap();
    let scales = checkpoint.conversion().output_scales.iter().map(|tensor| tensor.name.as_str());
    let expect = ["model.layers.0.self_attn.q_proj.output_scale", "lm_head.output_scale"];
    assert_eq!(scales.collect::<Vec<_>>(), expect);
    assert_eq!(checkpoint.config().bool("tie_word_embeddings"), Some(false));
}

#[test]
fn dimensions_that_were_left_out_come_back() {
    let mut list = delta();
    list.retain(|tensor| !tensor.name.contains("ffn_"));
    list.push(declare("blk.0.ffn_gate_inp.weight", Dtype::F32, &[HIDDEN, 4]));
    list.push(declare("blk.0.ffn_gate_inp_shexp.weight", Dtype::F32, &[HIDDEN]));
    list.push(declare("blk.0.ffn_down_shexp.weight", Q4_0, &[96, HIDDEN]));
    let more = [("expert_count", Value::U32(4)), ("expert_used_count", Value::U32(2))];
    let all: Vec<_> = SSM.into_iter().chain(more).collect();
    let checkpoint = model("qwen35moe", &all, &list).unwrap();
    checkpoint.require("model.layers.0.mlp.shared_expert_gate.weight", &[1, 256]).unwrap();
    assert_eq!(checkpoint.config().usize("shared_expert_intermediate_size"), Some(96));
}
