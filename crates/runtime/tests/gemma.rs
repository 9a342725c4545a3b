//! Bugs that ports of Gemma 4 have had, each made again by changing a checkpoint or its config: the golden values
//! must then be missed. So these tests bite, and the golden ones would have found every one of them.

mod reference;

use std::collections::BTreeMap;

use checkpoint::write::{Declaration, SafetensorsWriter};
use checkpoint::{Checkpoint, Warning};
use compute::memory::KvFormat;
use model::{DecoderSpec, KeyValueSpec, Logits, MixerSpec};
use runtime::{Error, Options, Runner};
use serde_json::{Value, json};

use format::Dtype;
use reference::{golden, models, run};

/// By how many tolerances a bug must be seen.
const BITE: f64 = 3.0;

/// A tiny checkpoint that can be changed.
struct Model {
    case: &'static str,
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Model {
    fn open(case: &'static str) -> Model {
        let folder = models().join(case);
        let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
        let config = std::fs::read(folder.join("config.json")).expect("config.json");
        let tensor = |tensor: &checkpoint::Tensor| {
            let mut bytes = vec![0; tensor.len_bytes as usize];
            checkpoint.read(tensor, 0, &mut bytes).expect("bytes");
            (tensor.name.clone(), (tensor.dtype, tensor.shape.clone(), bytes))
        };
        let tensors = checkpoint.tensors().map(tensor).collect();
        Model { case, config: serde_json::from_slice(&config).expect("JSON"), tensors }
    }

    /// The text model's own config.
    fn text(&mut self) -> &mut Value {
        match self.config.get("text_config").is_some() {
            true => &mut self.config["text_config"],
            false => &mut self.config,
        }
    }

    fn names(&self, ending: &str) -> Vec<String> {
        let names: Vec<String> =
            self.tensors.keys().filter(|name| name.ends_with(ending)).cloned().collect();
        assert!(!names.is_empty(), "no tensor ends in {ending}");
        names
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let (dtype, _, bytes) = &self.tensors[name];
        assert_eq!(*dtype, Dtype::F32, "{name}");
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn set(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensors.insert(name.to_owned(), (Dtype::F32, shape.to_vec(), bytes));
    }

    /// Changes every value of the f32 tensors with this ending.
    fn change(&mut self, ending: &str, f: impl Fn(f32) -> f32) {
        for name in self.names(ending) {
            let values: Vec<f32> = self.values(&name).into_iter().map(&f).collect();
            let shape = self.tensors[&name].1.clone();
            self.set(&name, &shape, &values);
        }
    }

    fn checkpoint(&self) -> Checkpoint {
        let declarations: Vec<Declaration> = self
            .tensors
            .iter()
            .map(|(name, (dtype, shape, _))| Declaration::new(name, *dtype, shape))
            .collect();
        let mut writer =
            SafetensorsWriter::new(Vec::new(), &declarations, &BTreeMap::new()).expect("a header");
        for (name, (_, _, bytes)) in &self.tensors {
            writer.write(name, bytes).expect("a tensor");
        }
        let weights = writer.finish().expect("a file");
        let files = vec![
            ("config.json".to_owned(), self.config.to_string().into_bytes()),
            ("model.safetensors".to_owned(), weights),
        ];
        Checkpoint::from_owned(files).expect("checkpoint")
    }

    /// The error against the golden values of the case, in units of its tolerance.
    fn error(&self) -> f64 {
        self.error_with(|_| {})
    }

    /// The same with a change of what the program makes of the checkpoint.
    fn error_with(&self, change: impl Fn(&mut DecoderSpec)) -> f64 {
        let golden = golden(&models().join(self.case));
        let options = Options { kv: KvFormat::F32, context: 256, threads: 2, ..Options::default() };
        let checkpoint = self.checkpoint();
        let mut spec = model::arch::spec(&checkpoint).expect("spec");
        change(&mut spec);
        let (error, tokens) = run(&checkpoint, spec, &golden, &options);
        if error <= golden.tolerance {
            assert_eq!(tokens, golden.greedy, "{}", self.case);
        }
        error / golden.tolerance
    }
}

/// The case passes, and fails with the bug.
#[track_caller]
fn check(case: &'static str, bug: impl Fn(&mut Model)) {
    let mut model = Model::open(case);
    let right = model.error();
    bug(&mut model);
    judge(case, right, model.error());
}

/// The same for a bug that no checkpoint has: in what is made of it.
#[track_caller]
fn check_spec(case: &'static str, bug: impl Fn(&mut DecoderSpec)) {
    let model = Model::open(case);
    judge(case, model.error(), model.error_with(bug));
}

#[track_caller]
fn judge(case: &str, right: f64, wrong: f64) {
    println!("{case}: {right:.3} tolerances, with the bug {wrong:.1}");
    assert!(right <= 1.0, "{case} is off by {right:.2} tolerances as it is");
    assert!(wrong > BITE, "{case} is off by only {wrong:.2} tolerances with the bug");
}

/// The case passes with a change that means the same.
#[track_caller]
fn check_same(case: &'static str, change: impl Fn(&mut Model)) {
    let mut model = Model::open(case);
    change(&mut model);
    let error = model.error();
    assert!(error <= 1.0, "{case}: {error} tolerances");
}

fn root(width: usize) -> f32 {
    (width as f32).sqrt()
}

#[test]
fn embeddings_without_their_scale() {
    for case in ["gemma4-f32", "gemma3-f32"] {
        check(case, |model| {
            let hidden = model.text()["hidden_size"].as_u64().expect("a width") as usize;
            // The table is the output head too: there the last norm makes up for it.
            model.change("embed_tokens.weight", |value| value / root(hidden));
            let plus = if case == "gemma3-f32" { 1.0 } else { 0.0 };
            model.change("model.norm.weight", |value| (value + plus) * root(hidden) - plus);
        });
    }
}

#[test]
fn silu_where_gelu_belongs() {
    for case in ["gemma4-f32", "gemma4_dense-f32", "gemma3-f32"] {
        check(case, |model| model.text()["hidden_activation"] = json!("silu"));
    }
}

#[test]
fn scores_divided_by_the_root_of_the_head() {
    check("gemma4-f32", |model| {
        for name in model.names("q_norm.weight") {
            let width = model.tensors[&name].1[0];
            let values: Vec<f32> =
                model.values(&name).iter().map(|value| value / root(width)).collect();
            model.set(&name, &[width], &values);
        }
    });
    check("gemma3-f32", |model| model.text()["query_pre_attn_scalar"] = json!(32));
}

#[test]
fn ordinary_partial_rotation_on_global_layers() {
    for case in ["gemma4-f32", "gemma4_e-f32"] {
        check(case, |model| {
            model.text()["rope_parameters"]["full_attention"]["rope_type"] = json!("default");
        });
    }
}

#[test]
fn one_rotation_for_all_layers() {
    check("gemma3-f32", |model| {
        model.text()["rope_parameters"]["sliding_attention"] =
            json!({ "rope_type": "default", "rope_theta": 1e6 });
    });
    check("gemma3-f32", |model| {
        model.text()["rope_parameters"]["full_attention"]["factor"] = json!(1.0);
    });
}

#[test]
fn the_smallest_experts_instead_of_the_largest() {
    check("gemma4-f32", |model| model.change("router.proj.weight", |value| -value));
}

#[test]
fn a_router_that_reads_what_the_dense_layer_reads() {
    check("gemma4-f32", |model| {
        for name in model.names("router.scale") {
            let norm = name.replace("router.scale", "pre_feedforward_layernorm.weight");
            let both = model.values(&name).into_iter().zip(model.values(&norm));
            let values: Vec<f32> = both.map(|(scale, norm)| scale * norm).collect();
            model.set(&name, &[values.len()], &values);
        }
    });
}

#[test]
fn experts_without_their_scale() {
    check("gemma4-f32", |model| model.change("router.per_expert_scale", |_| 1.0));
}

#[test]
fn logits_without_their_cap() {
    for cap in [Value::Null, json!(1e6)] {
        check("gemma4-f32", |model| model.text()["final_logit_softcapping"] = cap.clone());
    }
}

#[test]
fn a_cap_of_nothing_is_refused() {
    for (case, cap) in
        [("gemma4-f32", json!(0)), ("gemma4-f32", json!(-5.0)), ("gemma3-f32", json!(0.0))]
    {
        let mut model = Model::open(case);
        model.text()["final_logit_softcapping"] = cap;
        let error =
            model::arch::spec(&model.checkpoint()).expect_err("a cap of nothing").to_string();
        assert!(error.contains("`final_logit_softcapping` is "), "{error}");
    }
}

#[test]
fn one_added_to_norms() {
    for ending in ["layernorm.weight", "layernorm_1.weight", "layernorm_2.weight", "q_norm.weight"]
    {
        check("gemma4-f32", |model| model.change(ending, |value| value + 1.0));
    }
    check("gemma3-f32", |model| model.change("layernorm.weight", |value| value - 1.0));
}

#[test]
fn layers_without_their_scalar() {
    check("gemma4-f32", |model| model.change("layer_scalar", |_| 1.0));
}

#[test]
fn windows_that_never_close() {
    for case in ["gemma4-f32", "gemma4_e-f32", "gemma3-f32"] {
        check(case, |model| model.text()["sliding_window"] = json!(4096));
        check(case, |model| model.text()["sliding_window"] = json!(39));
    }
}

#[test]
fn layers_without_their_embeddings() {
    check("gemma4_e-f32", |model| model.change("embed_tokens_per_layer.weight", |_| 0.0));
    check("gemma4_e-f32", |model| model.change("per_layer_projection_norm.weight", |_| 0.0));
}

/// Gives the global layers a projection of values: that of the keys, with each head's rows multiplied by `factor`.
fn project_values(model: &mut Model, factor: impl Fn(f32) -> f32) {
    model.text()["attention_k_eq_v"] = json!(false);
    for name in model.names("self_attn.k_proj.weight") {
        let values = name.replace("k_proj", "v_proj");
        if model.tensors.contains_key(&values) {
            continue;
        }
        let shape = model.tensors[&name].1.clone();
        let norm = model.values(&name.replace("k_proj", "k_norm"));
        let mut matrix = model.values(&name);
        for (row, values) in matrix.chunks_exact_mut(shape[1]).enumerate() {
            values.iter_mut().for_each(|value| *value *= factor(norm[row % norm.len()]));
        }
        model.set(&values, &shape, &matrix);
    }
}

#[test]
fn values_taken_after_the_norm_of_the_keys() {
    for case in ["gemma4-f32", "gemma4_dense-f32"] {
        check(case, |model| project_values(model, |norm| norm));
        check_same(case, |model| project_values(model, |_| 1.0));
    }
}

#[test]
fn values_without_their_norm() {
    // Each layer that makes values: forgotten in one, it is seen.
    for (case, layers) in [("gemma4-f32", 2), ("gemma4_dense-f32", 3), ("gemma4_e-f32", 3)] {
        for layer in 0..layers {
            check_spec(case, |spec| match kv(spec, layer) {
                KeyValueSpec::Own { norms_values, .. } => *norms_values = false,
                KeyValueSpec::Shared { .. } => panic!("{case}: layer {layer} makes no values"),
            });
        }
    }
}

/// Where a layer's keys and values come from.
fn kv(spec: &mut DecoderSpec, layer: usize) -> &mut KeyValueSpec {
    let MixerSpec::Attention(attention) = &mut spec.layers[layer].mixer else {
        panic!("layer {layer} is no attention")
    };
    &mut attention.kv
}

/// Sliding, global, sliding; then a sliding and a global layer that read the keys and values of the last of their kind.
const SHARES: &str = "gemma4_e-f32";

#[test]
fn keys_and_values_of_the_wrong_layer() {
    // The first of its kind instead of the last.
    check_spec(SHARES, |spec| {
        let found = std::mem::replace(kv(spec, 3), KeyValueSpec::Shared { layer: 0 });
        assert!(matches!(found, KeyValueSpec::Shared { layer: 2 }), "{found:?}");
    });
}

#[test]
fn keys_and_values_that_are_not_shared() {
    // With the projections of the source, and the layer's own stream.
    for (layer, source) in [(3, 2), (4, 1)] {
        check_spec(SHARES, |spec| *kv(spec, layer) = kv(spec, source).clone());
    }
}

#[test]
fn a_loader_that_trusts_the_global_bits() {
    // As such a loader reads 8-bit codes: half of each row, as twice as many codes of four bits.
    check("gemma4-mixed", |model| {
        for name in model.names("mlp.gate_proj.weight") {
            let (_, shape, bytes) = model.tensors.get_mut(&name).expect("a tensor");
            let row = 4 * shape[1];
            *bytes =
                bytes.chunks_exact(row).flat_map(|row_of| row_of[..row / 2].to_vec()).collect();
            shape[1] /= 2;
        }
    });
}

#[test]
fn a_config_that_lies_about_bits_is_not_believed() {
    let mut model = Model::open("gemma4-mixed");
    let named = model.config["quantization"].as_object().expect("a table").len();
    assert!(named > 3, "8-bit layers are listed by name");
    assert_eq!(warnings(&model), [], "a right config is not complained about");
    for key in ["quantization", "quantization_config"] {
        model.config[key] = json!({ "group_size": 64, "bits": 4 });
    }
    let warnings = warnings(&model);
    // Three matrices and a router in each of two layers.
    assert_eq!(warnings.len(), 8, "{warnings:?}");
    let text = warnings[0].to_string();
    assert!(text.contains("affine 8-bit group 64"), "{text}");
    assert!(text.contains("config.json says affine 4-bit group 64"), "{text}");
    assert!(model.error() <= 1.0);
}

fn warnings(model: &Model) -> Vec<Warning> {
    let checkpoint = model.checkpoint();
    model::arch::spec(&checkpoint).expect("spec");
    checkpoint.warnings()
}

#[test]
fn names_of_exceptions_may_lack_the_prefix_of_the_tensors() {
    let mut model = Model::open("gemma4-mixed");
    let table = model.config["quantization"].as_object().expect("a table").clone();
    let short = table.into_iter().map(|(key, value)| {
        let key = key.strip_prefix("language_model.").map_or(key.clone(), str::to_owned);
        (key, value)
    });
    model.config["quantization"] = short.collect();
    assert_eq!(warnings(&model), []);
}

#[test]
fn global_layers_are_described_in_two_ways() {
    for case in ["gemma4-f32", "gemma4_dense-f32"] {
        check_same(case, |model| {
            let text = model.text().as_object_mut().expect("a table");
            text.remove("per_layer_config").expect("what transformers writes");
            text.insert("global_head_dim".to_owned(), json!(64));
            text.insert("num_global_key_value_heads".to_owned(), json!(1));
        });
    }
}

#[test]
fn towers_are_left_out_and_named() {
    let checkpoint = Checkpoint::open(&models().join("gemma4-vl-bf16")).expect("checkpoint");
    model::arch::spec(&checkpoint).expect("spec");
    let warnings = checkpoint.warnings();
    let texts: Vec<String> = warnings.iter().map(Warning::to_string).collect();
    assert_eq!(texts, ["the vision part is left out: 4 tensors, 11.3 kB"]);
}

#[test]
fn a_row_that_cannot_be_read_ends_its_sequence() {
    let home = tempfile::tempdir().expect("a folder");
    let from = models().join("gemma4_e-4bit");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), home.path().join(file)).expect("a copy");
    }
    let checkpoint = Checkpoint::open(home.path()).expect("checkpoint");
    let options = Options { context: 64, threads: 2, ..Options::default() };
    let mut runner = Runner::load(&checkpoint, &options, &|_, _| {}).expect("model");
    drop(checkpoint);
    let mut feed = |tokens: &[u32]| {
        let mut sequence = runner.sequence().expect("sequence");
        runner.feed(&mut sequence, tokens, Logits::Last, |_, _| {})
    };
    feed(&[1, 2, 3]).expect("rows are read from the file");
    let file = std::fs::File::options().write(true).open(home.path().join("model.safetensors"));
    file.expect("a file").set_len(8).expect("a cut");
    let error = feed(&[1, 2, 3]).expect_err("the rows are gone");
    let Error::Expert(source) = &error else { panic!("{error:?}") };
    assert!(matches!(**source, compute::Error::Row { row: 1, .. }), "{source:?}");
}
