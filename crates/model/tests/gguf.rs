//! GGUF files of every architecture become the model that they hold: tensors are found by llama.cpp's names, and
//! numbers by its keys.
//!
//! The files are as small as they can be, with tensors of the names and shapes that converters write.

#![allow(
    clippy::unwrap_used,
    reason = "these are tests; clippy.toml covers only the test functions"
)]

use std::fmt::Write;

use checkpoint::Checkpoint;
use checkpoint::gguf::{Declaration, GgufWriter, HeadOrder, Rate, RotaryPairs, Value};
use compute::RopePairs;
use format::{BlockFormat, Dtype};
use model::{DecoderSpec, FeedForwardSpec, HeadSpec, KeyValueSpec, MixerSpec};

const HIDDEN: u64 = 64;
const VOCAB: u64 = 8;
const Q8_0: Dtype = Dtype::Block(BlockFormat::Q8_0);
const MXFP4: Dtype = Dtype::Block(BlockFormat::Mxfp4);

struct File {
    architecture: &'static str,
    fields: Vec<(String, Value)>,
    tensors: Vec<Declaration>,
}

impl File {
    fn new(architecture: &'static str, layers: u32) -> File {
        let name = Value::String(architecture.to_owned());
        let mut file = File {
            architecture,
            fields: vec![("general.architecture".to_owned(), name)],
            tensors: Vec::new(),
        };
        file.set("block_count", Value::U32(layers));
        file.set("context_length", Value::U32(1024));
        file.set("embedding_length", Value::U32(HIDDEN as u32));
        file.set("feed_forward_length", Value::U32(96));
        file.set("attention.head_count", Value::U32(4));
        file.set("attention.head_count_kv", Value::U32(2));
        file.set("attention.key_length", Value::U32(32));
        file.set("attention.value_length", Value::U32(32));
        file.set("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
        file.add("token_embd.weight", Q8_0, &[HIDDEN, VOCAB]);
        file.add("output_norm.weight", Dtype::F32, &[HIDDEN]);
        file
    }

    fn set(&mut self, key: &str, value: Value) {
        let key = format!("{}.{key}", self.architecture);
        self.fields.retain(|(other, _)| *other != key);
        self.fields.push((key, value));
    }

    fn add(&mut self, name: &str, dtype: Dtype, dimensions: &[u64]) {
        let dimensions = dimensions.to_vec();
        self.tensors.push(Declaration { name: name.to_owned(), dtype, dimensions });
    }

    fn norm(&mut self, layer: u32, name: &str, width: u64) {
        self.add(&format!("blk.{layer}.{name}.weight"), Dtype::F32, &[width]);
    }

    fn matrix(&mut self, layer: u32, name: &str, inputs: u64, outputs: u64) {
        self.add(&format!("blk.{layer}.{name}.weight"), Q8_0, &[inputs, outputs]);
    }

    fn stack(&mut self, layer: u32, name: &str, dtype: Dtype, shape: [u64; 3]) {
        self.add(&format!("blk.{layer}.{name}.weight"), dtype, &shape);
    }

    /// Norm and projections; `gates` as many rows again for queries.
    fn attention(&mut self, layer: u32, kv_heads: u64, head_dim: u64, gates: bool) {
        self.norm(layer, "attn_norm", HIDDEN);
        let rows = 4 * head_dim * if gates { 2 } else { 1 };
        self.matrix(layer, "attn_q", HIDDEN, rows);
        self.matrix(layer, "attn_k", HIDDEN, kv_heads * head_dim);
        self.matrix(layer, "attn_v", HIDDEN, kv_heads * head_dim);
        self.matrix(layer, "attn_output", 4 * head_dim, HIDDEN);
    }

    fn head_norms(&mut self, layer: u32, head_dim: u64) {
        self.norm(layer, "attn_q_norm", head_dim);
        self.norm(layer, "attn_k_norm", head_dim);
    }

    fn dense(&mut self, layer: u32, width: u64) {
        self.matrix(layer, "ffn_gate", HIDDEN, width);
        self.matrix(layer, "ffn_up", HIDDEN, width);
        self.matrix(layer, "ffn_down", width, HIDDEN);
    }

    fn experts(&mut self, layer: u32, dtype: Dtype) {
        self.set("expert_count", Value::U32(8));
        self.set("expert_used_count", Value::U32(2));
        self.set("expert_feed_forward_length", Value::U32(32));
        self.add(&format!("blk.{layer}.ffn_gate_inp.weight"), Dtype::F32, &[HIDDEN, 8]);
        self.stack(layer, "ffn_gate_exps", dtype, [HIDDEN, 32, 8]);
        self.stack(layer, "ffn_up_exps", dtype, [HIDDEN, 32, 8]);
        self.stack(layer, "ffn_down_exps", dtype, [32, HIDDEN, 8]);
    }

    fn shared_expert(&mut self, layer: u32) {
        self.norm(layer, "ffn_gate_inp_shexp", HIDDEN);
        self.matrix(layer, "ffn_gate_shexp", HIDDEN, 64);
        self.matrix(layer, "ffn_up_shexp", HIDDEN, 64);
        self.matrix(layer, "ffn_down_shexp", 64, HIDDEN);
    }

    /// Two key heads and four value heads of 32.
    fn delta(&mut self, layer: u32) {
        for (key, value) in [
            ("conv_kernel", 4),
            ("state_size", 32),
            ("group_count", 2),
            ("time_step_rank", 4),
            ("inner_size", 128),
        ] {
            self.set(&format!("ssm.{key}"), Value::U32(value));
        }
        self.norm(layer, "attn_norm", HIDDEN);
        self.matrix(layer, "attn_qkv", HIDDEN, 256);
        self.matrix(layer, "attn_gate", HIDDEN, 128);
        self.add(&format!("blk.{layer}.ssm_conv1d.weight"), Dtype::F32, &[4, 256]);
        self.add(&format!("blk.{layer}.ssm_a"), Dtype::F32, &[4]);
        self.add(&format!("blk.{layer}.ssm_dt.bias"), Dtype::F32, &[4]);
        self.norm(layer, "ssm_norm", 32);
        self.matrix(layer, "ssm_out", 128, HIDDEN);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new(Vec::new(), &self.fields, &self.tensors).expect("a file");
        for tensor in &self.tensors {
            let shape: Vec<usize> = tensor.dimensions.iter().rev().map(|&d| d as usize).collect();
            let bytes = tensor.dtype.tensor_bytes(&shape).expect("a size");
            let values = match tensor.name.as_str() {
                "rope_freqs.weight" => 1f32.to_le_bytes().repeat(bytes as usize / 4),
                _ => vec![0; bytes as usize],
            };
            writer.write(&tensor.name, &values).expect("bytes");
        }
        writer.finish().expect("a file")
    }

    #[track_caller]
    fn check(&self, expect: &str) -> (Checkpoint, DecoderSpec) {
        let checkpoint = open(self.bytes()).expect("opens");
        let warnings: Vec<String> = checkpoint.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings, <[String; 0]>::default());
        let spec = model::arch::spec(&checkpoint).expect("a model");
        assert_eq!(described(&spec), expect);
        acts_on_the_conversion(&checkpoint, &spec);
        (checkpoint, spec)
    }
}

/// Every layer has what its converter changed.
#[track_caller]
fn acts_on_the_conversion(checkpoint: &Checkpoint, spec: &DecoderSpec) {
    let conversion = checkpoint.conversion();
    assert!(conversion.norms_are_multipliers);
    let pairs = match conversion.rotary_pairs {
        RotaryPairs::Halves => RopePairs::Halves,
        RotaryPairs::Neighbours => RopePairs::Interleaved,
    };
    for layer in &spec.layers {
        assert_eq!((layer.input_norm.plus, layer.post_norm.plus), (0.0, 0.0));
        match &layer.mixer {
            MixerSpec::Attention(attention) => assert_eq!(attention.rope.pairs, pairs),
            MixerSpec::Delta(delta) => {
                assert_eq!(delta.shape.is_tiled, conversion.value_heads == HeadOrder::Tiled);
                assert_eq!(delta.holds_rate, conversion.rate == Rate::Negative);
            }
        }
    }
}

fn open(file: Vec<u8>) -> checkpoint::Result<Checkpoint> {
    Checkpoint::from_owned(vec![("model.gguf".to_owned(), file)])
}

/// A line for the model and one for each layer.
fn described(spec: &DecoderSpec) -> String {
    let mut text = spec.model_type.clone();
    if spec.head.is_some() {
        text += ", head";
    }
    if let Some(per_layer) = &spec.per_layer {
        write!(text, ", {} a layer", per_layer.width).unwrap();
    }
    for layer in &spec.layers {
        match &layer.mixer {
            MixerSpec::Attention(a) => {
                let s = &a.shape;
                let turning = a.rope.rotary_dim;
                write!(text, "\n{}/{} of {}, {turning} turn", s.heads, s.kv_heads, s.k_dim)
                    .unwrap();
                if let Some(window) = s.window {
                    write!(text, ", window {window}").unwrap();
                }
                let parts = [
                    (a.gated, "gated"),
                    (a.q_norm.is_some(), "norms"),
                    (a.sinks.is_some(), "sinks"),
                    (a.q.bias.is_some(), "bias"),
                    (matches!(a.kv, KeyValueSpec::Own { v: None, .. }), "keys are values"),
                    (matches!(a.kv, KeyValueSpec::Shared { .. }), "shared"),
                ];
                for (_, part) in parts.iter().filter(|(there, _)| *there) {
                    write!(text, ", {part}").unwrap();
                }
            }
            MixerSpec::Delta(d) => {
                write!(
                    text,
                    "\ndelta {}/{} of {}",
                    d.shape.key_heads, d.shape.value_heads, d.shape.key_dim
                )
                .unwrap();
            }
        }
        match &layer.feed_forward {
            FeedForwardSpec::Dense(dense) => write!(text, "; {}", dense.gate.rows()).unwrap(),
            FeedForwardSpec::Moe(moe) => {
                let (form, used) = (moe.experts.form(), moe.experts_per_token());
                let count = moe.experts.experts();
                write!(text, "; {used} of {count} {form:?}, {} wide", moe.intermediate).unwrap();
                if moe.shared.is_some() {
                    text += ", shared";
                }
                if moe.parallel_dense.is_some() {
                    text += ", parallel";
                }
            }
        }
    }
    text
}

fn llama() -> File {
    let mut file = File::new("llama", 1);
    file.set("rope.dimension_count", Value::U32(16));
    file.attention(0, 2, 32, false);
    file.norm(0, "ffn_norm", HIDDEN);
    file
}

fn mixtral() -> File {
    let mut file = llama();
    file.experts(0, Q8_0);
    file
}

#[test]
fn llama_mistral_and_mixtral() {
    let mut file = llama();
    file.dense(0, 96);
    file.add("output.weight", Q8_0, &[HIDDEN, VOCAB]);
    file.check("llama, head\n4/2 of 32, 16 turn; 96");
    file.set("attention.sliding_window", Value::U32(128));
    file.check("mistral, head\n4/2 of 32, 16 turn, window 128; 96");
    mixtral().check("mixtral\n4/2 of 32, 16 turn; 2 of 8 Stacked, 32 wide");
}

#[test]
fn qwen2_and_qwen3() {
    for (architecture, expect) in [
        ("qwen2", "qwen2\n4/2 of 32, 32 turn, bias; 96"),
        ("qwen3", "qwen3\n4/2 of 32, 32 turn, norms; 96"),
        ("qwen3moe", "qwen3_moe\n4/2 of 32, 32 turn, norms; 2 of 8 Stacked, 32 wide"),
    ] {
        let mut file = File::new(architecture, 1);
        file.attention(0, 2, 32, false);
        file.norm(0, "ffn_norm", HIDDEN);
        if architecture == "qwen2" {
            for (name, rows) in [("q", 128), ("k", 64), ("v", 64)] {
                file.add(&format!("blk.0.attn_{name}.bias"), Dtype::F32, &[rows]);
            }
        } else {
            file.head_norms(0, 32);
        }
        if architecture == "qwen3moe" {
            file.experts(0, Q8_0);
        } else {
            file.dense(0, 96);
        }
        file.check(expect);
    }
}

/// A recurrent layer, one that attends, and the layer of a draft head where the family has one.
fn hybrid(architecture: &'static str, layers: u32) -> File {
    let mut file = File::new(architecture, layers);
    file.set("rope.dimension_count", Value::U32(8));
    file.delta(0);
    for layer in 0..layers {
        file.norm(layer, "post_attention_norm", HIDDEN);
        if layer > 0 {
            file.attention(layer, 2, 32, true);
            file.head_norms(layer, 32);
        }
        if architecture == "qwen35" {
            file.dense(layer, 96);
        } else {
            file.experts(layer, Q8_0);
            file.shared_expert(layer);
        }
    }
    if architecture == "qwen3next" {
        file.matrix(0, "ssm_ba", HIDDEN, 8);
    } else {
        file.matrix(0, "ssm_beta", HIDDEN, 4);
        file.matrix(0, "ssm_alpha", HIDDEN, 4);
    }
    file
}

#[test]
fn hybrids() {
    let attention = "4/2 of 32, 8 turn, gated, norms";
    let experts = "2 of 8 Stacked, 32 wide, shared";
    hybrid("qwen35", 2).check(&format!("qwen3_5\ndelta 2/4 of 32; 96\n{attention}; 96"));
    hybrid("qwen35moe", 2)
        .check(&format!("qwen3_5_moe\ndelta 2/4 of 32; {experts}\n{attention}; {experts}"));
    hybrid("qwen3next", 2)
        .check(&format!("qwen3_next\ndelta 2/4 of 32; {experts}\n{attention}; {experts}"));
}

#[test]
fn the_last_layer_may_be_a_draft_head() {
    let mut file = hybrid("qwen35moe", 3);
    file.set("nextn_predict_layers", Value::U32(1));
    file.matrix(2, "nextn.eh_proj", 2 * HIDDEN, HIDDEN);
    for name in ["enorm", "hnorm", "shared_head_norm"] {
        file.norm(2, &format!("nextn.{name}"), HIDDEN);
    }
    let experts = "2 of 8 Stacked, 32 wide, shared";
    let (checkpoint, spec) = file.check(&format!(
        "qwen3_5_moe\ndelta 2/4 of 32; {experts}\n4/2 of 32, 8 turn, gated, norms; {experts}"
    ));
    let head = HeadSpec::mtp(&checkpoint, &spec).expect("a head").expect("there is one");
    assert_eq!((head.first_layer, head.stack.len()), (2, 1));
}

/// Norms that Gemma has around both halves.
fn gemma_norms(file: &mut File, layer: u32) {
    for name in ["post_attention_norm", "ffn_norm", "post_ffw_norm"] {
        file.norm(layer, name, HIDDEN);
    }
}

#[test]
fn gemma3() {
    let mut file = File::new("gemma3", 2);
    file.set("attention.sliding_window", Value::U32(64));
    file.set("attention.sliding_window_pattern", Value::U32(2));
    file.set("rope.freq_base", Value::F32(1e6));
    file.set("rope.scaling.type", Value::String("linear".to_owned()));
    file.set("rope.scaling.factor", Value::F32(8.0));
    for layer in 0..2 {
        file.attention(layer, 2, 32, false);
        file.head_norms(layer, 32);
        gemma_norms(&mut file, layer);
        file.dense(layer, 96);
    }
    let (_, spec) = file
        .check("gemma3\n4/2 of 32, 32 turn, window 64, norms; 96\n4/2 of 32, 32 turn, norms; 96");
    assert_eq!(spec.embed_scale, 8.0);
    // The angle of the second pair at position 1: a base of its own for each kind, and the factor for the full one.
    let angles = spec.layers.iter().map(|layer| {
        let MixerSpec::Attention(attention) = &layer.mixer else { panic!("attention") };
        assert_eq!(attention.shape.scale, 32_f32.powf(-0.5));
        let (mut cos, mut sin) = ([0.0; 16], [0.0; 16]);
        attention.rope.table(1, &mut cos, &mut sin);
        sin[1].atan2(cos[1])
    });
    let expect = [10_000_f32.powf(-1.0 / 16.0), 1e6_f32.powf(-1.0 / 16.0) / 8.0];
    for (angle, expect) in angles.zip(expect) {
        assert!((angle - expect).abs() < 1e-6, "{angle} instead of {expect}");
    }
}

fn small_gemma4() -> File {
    let mut file = File::new("gemma4", 2);
    file.set("attention.sliding_window", Value::U32(64));
    file.set("attention.sliding_window_pattern", Value::Bools(vec![true, false]));
    file.set("attention.head_count_kv", Value::I32s(vec![2, 1]));
    file.set("attention.key_length", Value::U32(64));
    file.set("attention.value_length", Value::U32(64));
    file.set("attention.key_length_swa", Value::U32(32));
    file.set("attention.value_length_swa", Value::U32(32));
    file.set("final_logit_softcapping", Value::F32(30.0));
    file.add("rope_freqs.weight", Dtype::F32, &[32]);
    for layer in 0..2 {
        let (kv_heads, head_dim) = if layer == 0 { (2, 32) } else { (1, 64) };
        file.attention(layer, kv_heads, head_dim, false);
        file.head_norms(layer, head_dim);
        gemma_norms(&mut file, layer);
        file.dense(layer, 96);
        for name in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
            file.norm(layer, name, HIDDEN);
        }
        file.experts(layer, Q8_0);
        file.add(&format!("blk.{layer}.ffn_gate_inp.scale"), Dtype::F32, &[HIDDEN]);
        file.add(&format!("blk.{layer}.ffn_down_exps.scale"), Dtype::F32, &[8]);
        file.norm(layer, "layer_output_scale", 1);
    }
    // Gate and up in one stack, and keys that serve as values.
    file.tensors.retain(|tensor| {
        let name = &tensor.name;
        !name.ends_with("0.ffn_gate_exps.weight")
            && !name.ends_with("0.ffn_up_exps.weight")
            && name != "blk.1.attn_v.weight"
    });
    file.stack(0, "ffn_gate_up_exps", Q8_0, [HIDDEN, 64, 8]);
    file
}

#[test]
fn gemma4_with_experts() {
    let (_, spec) = small_gemma4().check(
        "gemma4\n4/2 of 32, 32 turn, window 64, norms; 2 of 8 Fused, 32 wide, parallel\n\
         4/1 of 64, 64 turn, norms, keys are values; 2 of 8 Stacked, 32 wide, parallel",
    );
    assert_eq!(spec.softcap, Some(30.0));
    assert!(spec.layers.iter().all(|layer| layer.scalar.is_some()));
}

#[test]
fn gemma4_with_embeddings_for_each_layer() {
    let mut file = File::new("gemma4", 4);
    file.set("attention.sliding_window", Value::U32(64));
    let pattern = vec![true, false, true, false];
    file.set("attention.sliding_window_pattern", Value::Bools(pattern));
    file.set("attention.shared_kv_layers", Value::U32(2));
    file.set("feed_forward_length", Value::I32s(vec![96, 96, 192, 192]));
    file.set("embedding_length_per_layer_input", Value::U32(32));
    file.add("per_layer_token_embd.weight", Q8_0, &[4 * 32, VOCAB]);
    file.add("per_layer_model_proj.weight", Dtype::BF16, &[HIDDEN, 4 * 32]);
    file.add("per_layer_proj_norm.weight", Dtype::F32, &[32]);
    for layer in 0..4 {
        file.attention(layer, 2, 32, false);
        file.head_norms(layer, 32);
        gemma_norms(&mut file, layer);
        file.dense(layer, if layer < 2 { 96 } else { 192 });
        file.matrix(layer, "inp_gate", HIDDEN, 32);
        file.matrix(layer, "proj", 32, HIDDEN);
        file.norm(layer, "post_norm", HIDDEN);
    }
    file.check(
        "gemma4, 32 a layer\n4/2 of 32, 32 turn, window 64, norms; 96\n4/2 of 32, 32 turn, norms; 96\n\
         4/2 of 32, 32 turn, window 64, norms, shared; 192\n4/2 of 32, 32 turn, norms, shared; 192",
    );
}

fn small_gpt_oss() -> File {
    let mut file = File::new("gpt-oss", 2);
    file.set("attention.sliding_window", Value::U32(128));
    file.set("rope.freq_base", Value::F32(150_000.0));
    file.set("rope.scaling.type", Value::String("yarn".to_owned()));
    file.set("rope.scaling.factor", Value::F32(32.0));
    file.set("rope.scaling.original_context_length", Value::U32(4096));
    file.add("output.weight", Q8_0, &[HIDDEN, VOCAB]);
    for layer in 0..2 {
        file.attention(layer, 2, 32, false);
        file.norm(layer, "attn_sinks", 4);
        file.norm(layer, "post_attention_norm", HIDDEN);
        file.experts(layer, MXFP4);
        for (name, rows) in
            [("attn_q", 128), ("attn_k", 64), ("attn_v", 64), ("attn_output", HIDDEN)]
        {
            file.add(&format!("blk.{layer}.{name}.bias"), Dtype::F32, &[rows]);
        }
        file.add(&format!("blk.{layer}.ffn_gate_inp.bias"), Dtype::F32, &[8]);
        for (name, rows) in [("gate", 32), ("up", 32), ("down", HIDDEN)] {
            file.add(&format!("blk.{layer}.ffn_{name}_exps.bias"), Dtype::F32, &[rows, 8]);
        }
    }
    file
}

#[test]
fn gpt_oss() {
    let (checkpoint, spec) = small_gpt_oss().check(
        "gpt_oss, head\n4/2 of 32, 32 turn, window 128, sinks, bias; 2 of 8 Stacked, 32 wide\n\
         4/2 of 32, 32 turn, sinks, bias; 2 of 8 Stacked, 32 wide",
    );
    let (_, moe) = spec.moe_layers().next().expect("experts");
    assert!(!moe.experts.is_interleaved());
    assert_eq!(moe.experts.spans(7).len(), 6);
    assert_eq!(checkpoint.config().bool("rope_parameters.truncate"), Some(false));
}

/// Numbers that a file may claim, from nothing to what no machine has.
const CLAIMS: [u32; 9] = [0, 1, 2, 3, 255, 4097, 1 << 20, 1 << 31, u32::MAX];

#[test]
fn numbers_of_any_size_are_refused_or_make_a_model() {
    let files = [
        mixtral(),
        small_gemma4(),
        small_gpt_oss(),
        hybrid("qwen35moe", 2),
        hybrid("qwen3next", 2),
    ];
    let (mut models, mut attempts) = (0, 0);
    for file in files {
        for index in 1..file.fields.len() {
            for claim in CLAIMS {
                for value in
                    [Value::U32(claim), Value::F32(claim as f32), Value::U32s(vec![claim; 2])]
                {
                    let fields = file.fields.clone();
                    let mut mutant = File { fields, tensors: file.tensors.clone(), ..file };
                    mutant.fields[index].1 = value;
                    attempts += 1;
                    let Ok(checkpoint) = open(mutant.bytes()) else { continue };
                    let Ok(spec) = model::arch::spec(&checkpoint) else { continue };
                    models += 1;
                    assert!(spec.resident_bytes() < 1 << 30);
                }
            }
        }
    }
    assert!((attempts / 20..attempts).contains(&models), "{models} of {attempts}");
}
