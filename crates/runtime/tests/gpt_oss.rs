//! gpt-oss: tests that are known to bite. A checkpoint or a config is changed as a wrong program would
//! understand it, and the golden logits must then be missed by far; unchanged they must be met.

use std::path::PathBuf;

use checkpoint::Checkpoint;
use compute::memory::KvFormat;
use model::Logits;
use runtime::{Options, Runner};
use serde_json::{Value, json};

/// The layout of the released files, and MLX's.
const PUBLISHED: &str = "gpt_oss-published";
const MLX: &str = "gpt_oss-mxfp4-q8";

/// A wrong program misses by at least so many tolerances.
const BITE: f64 = 20.0;

fn folder(model: &str) -> PathBuf {
    golden::model(model)
}

/// A model whose files can be changed before it is loaded.
struct Model {
    name: &'static str,
    config: Value,
    /// The safetensors header, and the bytes after it.
    header: Value,
    data: Vec<u8>,
}

impl Model {
    fn open(name: &'static str) -> Model {
        let read = |file: &str| std::fs::read(folder(name).join(file)).expect("a file of the test");
        let config = serde_json::from_slice(&read("config.json")).expect("config.json");
        let bytes = read("model.safetensors");
        let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header = serde_json::from_slice(header).expect("a header");
        Model { name, config, header, data: data.to_vec() }
    }

    /// The names that end so; at least one.
    fn names(&self, ending: &str) -> Vec<String> {
        let tensors = self.header.as_object().expect("an object").keys();
        let names: Vec<String> = tensors.filter(|name| name.ends_with(ending)).cloned().collect();
        assert!(!names.is_empty(), "{}: nothing ends in {ending}", self.name);
        names
    }

    /// Changes the bytes of all tensors whose names end so; the change also gets their shape.
    fn change(mut self, ending: &str, change: impl Fn(&mut [u8], &[usize])) -> Model {
        for name in self.names(ending) {
            let entry = &self.header[&name];
            let at = |index: usize| entry["data_offsets"][index].as_u64().expect("offset") as usize;
            let shape = entry["shape"].as_array().expect("shape").iter();
            let shape: Vec<usize> = shape.map(|n| n.as_u64().expect("a size") as usize).collect();
            change(&mut self.data[at(0)..at(1)], &shape);
        }
        self
    }

    /// Sets all values of bf16 tensors.
    fn set(self, ending: &str, value: f32) -> Model {
        assert!(self.names(ending).iter().all(|name| self.header[name]["dtype"] == "BF16"));
        let half = ((value.to_bits() >> 16) as u16).to_le_bytes();
        self.change(ending, |bytes, _| {
            bytes.as_chunks_mut().0.iter_mut().for_each(|value| *value = half);
        })
    }

    /// Exchanges what two endings name.
    fn swap(mut self, first: &str, second: &str) -> Model {
        for name in self.names(first) {
            let other = name.replace(first, second);
            let header = self.header.as_object_mut().expect("an object");
            let (a, b) = (header[&name].clone(), header[&other].clone());
            header.insert(name, b);
            header.insert(other, a);
        }
        self
    }

    fn configure(mut self, key: &str, value: Value) -> Model {
        assert!(self.config.get(key).is_some(), "no {key} to change");
        self.config[key] = value;
        self
    }

    fn configure_rope(mut self, key: &str, value: Value) -> Model {
        self.config["rope_scaling"][key] = value;
        self
    }

    fn checkpoint(&self) -> Checkpoint {
        let header = self.header.to_string().into_bytes();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(&self.data);
        let config = self.config.to_string().into_bytes();
        let files = vec![("config.json".into(), config), ("model.safetensors".into(), file)];
        Checkpoint::from_owned(files).expect("checkpoint")
    }

    /// The worst logit's error, in tolerances.
    fn error(&self) -> f64 {
        let golden = std::fs::read(folder(self.name).join("golden.safetensors")).expect("golden");
        let files = vec![
            ("config.json".into(), b"{\"model_type\":\"none\"}".to_vec()),
            ("model.safetensors".into(), golden),
        ];
        let golden = Checkpoint::from_owned(files).expect("golden");
        let integers = |name: &str| -> Vec<u32> {
            let tensor = golden.tensor(name).expect(name);
            let mut bytes = vec![0; tensor.len_bytes as usize];
            golden.read(tensor, 0, &mut bytes).expect(name);
            bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
        };
        let number = |key: &str| golden.metadata(key).expect(key).parse::<f64>().expect(key);
        let (prompt, positions) = (integers("prompt"), integers("positions"));
        let want = golden.read_f32(golden.tensor("logits").expect("logits")).expect("logits");

        let options = Options { kv: KvFormat::F32, context: 256, threads: 2, ..Options::default() };
        let mut runner =
            Runner::load(&self.checkpoint(), &options, &|_, _| {}).expect("a model that loads");
        let mut sequence = runner.sequence().expect("sequence");
        let mut worst = 0.0f64;
        runner
            .feed(&mut sequence, &prompt, Logits::All, |row, values| {
                let Some(index) = positions.iter().position(|&p| p as usize == row) else { return };
                for (a, b) in values.iter().zip(&want[index * values.len()..]) {
                    worst = worst.max((f64::from(*a) - f64::from(*b)).abs());
                }
            })
            .expect("prefill");
        worst / number("std") / number("tolerance")
    }

    /// A program with this bug would not pass.
    #[track_caller]
    fn bites(self, bug: &str) {
        let error = self.error();
        println!("{} with {bug}: {error:.1} tolerances", self.name);
        assert!(error > BITE, "{} with {bug}: {error:.2} tolerances only", self.name);
    }
}

#[test]
fn unchanged_files_pass() {
    for name in [PUBLISHED, MLX] {
        let error = Model::open(name).error();
        assert!(error <= 1.0, "{name}: {error}");
    }
}

#[test]
fn sinks_take_part() {
    for name in [PUBLISHED, MLX] {
        Model::open(name).set("self_attn.sinks", 0.0).bites("sinks of zero");
        Model::open(name).set("self_attn.sinks", -1e30).bites("no sinks");
    }
}

#[test]
fn every_bias_counts() {
    for part in ["q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias", "router.bias"] {
        Model::open(PUBLISHED).set(part, 0.0).bites(&format!("no {part}"));
    }
    for part in ["gate_up_proj_bias", "down_proj_bias"] {
        Model::open(PUBLISHED).set(part, 0.0).bites(&format!("no {part}"));
    }
    for part in ["gate_proj.bias", "up_proj.bias", "experts.down_proj.bias"] {
        Model::open(MLX).set(part, 0.0).bites(&format!("no {part}"));
    }
}

/// Rows of each expert, all even ones first: what a program wants that takes halves for gate and up.
fn into_halves(bytes: &mut [u8], shape: &[usize]) {
    let expert_bytes = bytes.len() / shape[0];
    let row_bytes = expert_bytes / shape[1];
    for expert in bytes.chunks_exact_mut(expert_bytes) {
        let rows: Vec<Vec<u8>> = expert.chunks_exact(row_bytes).map(<[u8]>::to_vec).collect();
        let order = rows.iter().step_by(2).chain(rows.iter().skip(1).step_by(2));
        for (to, from) in expert.chunks_exact_mut(row_bytes).zip(order) {
            to.copy_from_slice(from);
        }
    }
}

#[test]
fn rows_of_gate_and_up_alternate() {
    let parts = ["gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias"];
    let halves = |part: &&str| Model::open(PUBLISHED).change(part, into_halves);
    for part in &parts {
        halves(part).bites(&format!("halves for gate and up in {part}"));
    }
    let all = parts.iter().fold(Model::open(PUBLISHED), |m, part| m.change(part, into_halves));
    all.bites("halves for gate and up");
    let swapped = ["weight", "scales", "bias"].iter().fold(Model::open(MLX), |model, part| {
        model.swap(&format!("gate_proj.{part}"), &format!("up_proj.{part}"))
    });
    swapped.bites("gate and up exchanged");
}

/// The same model with gate and up apart, as MLX stores them.
fn apart(mut model: Model) -> Model {
    let endings =
        [("_blocks", ".weight", "U32"), ("_scales", ".scales", "U8"), ("_bias", ".bias", "BF16")];
    for (ending, part, dtype) in endings {
        for name in model.names(&format!("gate_up_proj{ending}")) {
            model = model.change(&name, into_halves);
            let header = model.header.as_object_mut().expect("an object");
            let entry = header.remove(&name).expect("the tensor");
            let shape: Vec<u64> = serde_json::from_value(entry["shape"].clone()).expect("shape");
            let (experts, rows) = (shape[0], shape[1]);
            let (start, end) = (&entry["data_offsets"][0], &entry["data_offsets"][1]);
            let (start, end) = (start.as_u64().expect("offset"), end.as_u64().expect("offset"));
            // All gates of all experts, then all ups.
            let range = start as usize..end as usize;
            let half = range.len() / experts as usize / 2;
            let halves: Vec<Vec<u8>> =
                model.data[range.clone()].chunks_exact(half).map(<[u8]>::to_vec).collect();
            let order = halves.iter().step_by(2).chain(halves.iter().skip(1).step_by(2));
            for (to, from) in model.data[range].chunks_exact_mut(half).zip(order) {
                to.copy_from_slice(from);
            }
            let mut shape = vec![experts, rows / 2];
            match dtype {
                "U32" => shape.push((end - start) / experts / rows / 4),
                "U8" => shape.push((end - start) / experts / rows),
                _ => {}
            }
            let middle = start.midpoint(end);
            for (projection, offsets) in [("gate", [start, middle]), ("up", [middle, end])] {
                let ours = name
                    .replace(&format!("gate_up_proj{ending}"), &format!("{projection}_proj{part}"));
                let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
                header.insert(ours, entry);
            }
        }
        for name in model.names(&format!("experts.down_proj{ending}")) {
            let header = model.header.as_object_mut().expect("an object");
            let mut entry = header.remove(&name).expect("the tensor");
            if dtype == "U32" {
                let shape: Vec<u64> =
                    serde_json::from_value(entry["shape"].clone()).expect("shape");
                entry["shape"] = json!([shape[0], shape[1], shape[2] * 4]);
                entry["dtype"] = json!(dtype);
            }
            header.insert(name.replace(ending, part), entry);
        }
    }
    model
}

/// Bits of the logits of a prompt and of single tokens after it.
fn bits(model: &Model) -> Vec<u32> {
    let options = Options { context: 256, threads: 2, ..Options::default() };
    let mut runner = Runner::load(&model.checkpoint(), &options, &|_, _| {}).expect("model");
    let mut sequence = runner.sequence().expect("sequence");
    let mut bits = Vec::new();
    let tokens: Vec<u32> = (0..140).map(|i| i * i * 7 % 256).collect();
    for part in std::iter::once(&tokens[..130]).chain(tokens[130..].chunks(1)) {
        runner
            .feed(&mut sequence, part, Logits::All, |_, values| {
                bits.extend(values.iter().map(|value| value.to_bits()));
            })
            .expect("feed");
    }
    bits
}

#[test]
fn alternating_rows_give_the_bits_of_rows_apart() {
    let layout = |model: &Model| {
        let spec = model::arch::spec(&model.checkpoint()).expect("spec");
        spec.moe_layers().next().expect("experts").1.experts.is_interleaved()
    };
    let (alternating, apart) = (Model::open(PUBLISHED), apart(Model::open(PUBLISHED)));
    assert!(layout(&alternating) && !layout(&apart));
    assert!(bits(&alternating) == bits(&apart));
}

#[test]
fn the_low_nibble_comes_first() {
    for part in ["gate_up_proj_blocks", "down_proj_blocks"] {
        let swap = |bytes: &mut [u8], _: &[usize]| {
            bytes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
        };
        Model::open(PUBLISHED).change(part, swap).bites(&format!("{part} from the high nibble on"));
    }
}

#[test]
fn the_activation_is_clamped_at_seven() {
    for limit in [6.0, 8.0, 1000.0] {
        let model = Model::open(PUBLISHED).configure("swiglu_limit", json!(limit));
        model.bites(&format!("a limit of {limit}"));
    }
}

#[test]
fn every_second_layer_slides() {
    let types = |kinds: [&str; 2]| Model::open(PUBLISHED).configure("layer_types", json!(kinds));
    types(["full_attention"; 2]).bites("no window");
    types(["sliding_attention"; 2]).bites("windows everywhere");
    types(["full_attention", "sliding_attention"]).bites("the windows on the other layers");
    for window in [39, 41] {
        let model = Model::open(PUBLISHED).configure("sliding_window", json!(window));
        model.bites(&format!("a window of {window}"));
    }
}

#[test]
fn without_layer_types_the_first_layer_slides() {
    let mut model = Model::open(PUBLISHED);
    model.config.as_object_mut().expect("an object").remove("layer_types");
    let error = model.error();
    assert!(error <= 1.0, "{error}");
}

#[test]
fn positions_are_stretched_as_yarn_says_without_rounding() {
    let rope = |key: &str, value| Model::open(PUBLISHED).configure_rope(key, value);
    rope("truncate", json!(true)).bites("YaRN's range rounded");
    rope("attention_factor", json!(1.0)).bites("no attention factor");
    rope("beta_slow", json!(2.0)).bites("another range");
    rope("rope_type", json!("default")).bites("no YaRN");
}

#[test]
fn the_head_is_its_own_and_k_experts_serve() {
    let tied = Model::open(PUBLISHED).configure("tie_word_embeddings", json!(true));
    tied.bites("a tied head");
    let one = Model::open(PUBLISHED).configure("num_experts_per_tok", json!(1));
    one.bites("one expert");
}

#[test]
fn what_is_not_supported_is_said() {
    #[track_caller]
    fn check(model: &Model, expected: &str) {
        let error = model::arch::spec(&model.checkpoint()).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    check(&Model::open(PUBLISHED).configure("swiglu_alpha", json!(1.0)), "swiglu_alpha");
    check(&Model::open(PUBLISHED).configure("swiglu_limit", json!(-1.0)), "swiglu_limit");
    check(&Model::open(PUBLISHED).configure("intermediate_size", json!(63)), "shape");
    // transformers saves unquantized experts so.
    let mut model = Model::open(MLX);
    let header = model.header.as_object_mut().expect("an object");
    let name = "model.layers.0.mlp.experts.gate_proj.bias";
    let tensor = header.remove(name).expect(name);
    header.insert(name.replace("gate_proj.bias", "gate_up_proj"), tensor);
    check(&model, "has its inputs first");
}
