//! Random heads and the files that hold them.

use std::collections::BTreeMap;

/// Tensors by name.
pub(crate) type Weights = BTreeMap<String, Values>;

/// A tensor.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

/// How an MTP head's feed-forward is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experts {
    /// It is dense.
    None,
    /// A tensor for each expert.
    Separate,
    /// HF: gate and up in one stack.
    Fused,
    /// MLX: three stacks.
    Stacked,
}

/// What varies between the drafts of these tests.
#[derive(Clone, Debug)]
pub(crate) struct DflashShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) window: usize,
    pub(crate) sliding: Vec<bool>,
    pub(crate) taps: Vec<usize>,
    pub(crate) mask: u32,
    pub(crate) block_size: usize,
    pub(crate) causal: Option<bool>,
}

impl Default for DflashShape {
    fn default() -> DflashShape {
        DflashShape {
            hidden: 96,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            window: 24,
            sliding: vec![true, false, true],
            // Not in the order of layers.
            taps: vec![1, 0],
            mask: 255,
            block_size: 8,
            causal: None,
        }
    }
}

/// Theta of the drafts' rotation.
pub(crate) const THETA: f64 = 10_000.0;

struct Random(u64);

impl Random {
    /// Between -1 and 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Values {
        let scale = (3.0 / cols as f32).sqrt();
        let data = (0..rows * cols).map(|_| self.next() * scale).collect();
        Values { shape: vec![rows, cols], data }
    }

    /// Around one, in steps that adding or taking one keeps exactly.
    fn norm(&mut self, size: usize) -> Values {
        let data = (0..size).map(|_| 1.0 + (self.next() * 64.0).round() / 256.0).collect();
        Values { shape: vec![size], data }
    }
}

/// An MTP head for the tiny hybrid models: 2 gated heads of 64, one of keys. Its norms are plain factors.
pub(crate) fn mtp_weights(hidden: usize, experts: Experts) -> Weights {
    let mut random = Random(88_172_645_463_325_252);
    let mut weights = Weights::new();
    let mut put = |name: &str, values: Values| weights.insert(format!("mtp.{name}"), values);
    put("fc.weight", random.matrix(hidden, 2 * hidden));
    for name in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"] {
        put(&format!("{name}.weight"), random.norm(hidden));
    }
    for name in ["input_layernorm", "post_attention_layernorm"] {
        put(&format!("layers.0.{name}.weight"), random.norm(hidden));
    }
    for name in ["q_norm", "k_norm"] {
        put(&format!("layers.0.self_attn.{name}.weight"), random.norm(64));
    }
    for (name, rows, cols) in
        [("q", 256, hidden), ("k", 64, hidden), ("v", 64, hidden), ("o", hidden, 128)]
    {
        put(&format!("layers.0.self_attn.{name}_proj.weight"), random.matrix(rows, cols));
    }
    let width = if hidden == 96 { 32 } else { 64 };
    let mut expert = |path: &str| {
        for (name, rows, cols) in
            [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)]
        {
            put(&format!("layers.0.mlp.{path}{name}_proj.weight"), random.matrix(rows, cols));
        }
    };
    if experts == Experts::None {
        expert("");
        return weights;
    }
    expert("shared_expert.");
    (0..8).for_each(|index| expert(&format!("experts.{index}.")));
    put("layers.0.mlp.gate.weight", random.matrix(8, hidden));
    put("layers.0.mlp.shared_expert_gate.weight", random.matrix(1, hidden));
    stack(weights, experts)
}

/// The same experts in another form.
fn stack(mut weights: Weights, experts: Experts) -> Weights {
    let mut take = |name: &str| -> Vec<Values> {
        let path = |index| format!("mtp.layers.0.mlp.experts.{index}.{name}_proj.weight");
        (0..8).map(|index| weights.remove(&path(index)).expect("an expert")).collect()
    };
    let join = |parts: Vec<Values>| {
        let shape = [&[parts.len()], parts[0].shape.as_slice()].concat();
        Values { shape, data: parts.into_iter().flat_map(|part| part.data).collect() }
    };
    if experts == Experts::Separate {
        return weights;
    }
    let (gate, up, down) = (take("gate"), take("up"), take("down"));
    if experts == Experts::Stacked {
        for (name, parts) in [("gate", gate), ("up", up), ("down", down)] {
            weights.insert(format!("mtp.layers.0.mlp.switch_mlp.{name}_proj.weight"), join(parts));
        }
        return weights;
    }
    let both = gate.into_iter().zip(up).map(|(gate, up)| Values {
        shape: vec![2 * gate.shape[0], gate.shape[1]],
        data: [gate.data, up.data].concat(),
    });
    weights.insert("mtp.layers.0.mlp.experts.gate_up_proj".into(), join(both.collect()));
    weights.insert("mtp.layers.0.mlp.experts.down_proj".into(), join(down));
    weights
}

/// A DFlash draft.
pub(crate) fn dflash_weights(shape: &DflashShape) -> Weights {
    let mut random = Random(362_436_069_521_288_629);
    let hidden = shape.hidden;
    let mut weights = Weights::new();
    let mut put = |name: String, values: Values| weights.insert(name, values);
    put("fc.weight".into(), random.matrix(hidden, shape.taps.len() * hidden));
    put("hidden_norm.weight".into(), random.norm(hidden));
    put("norm.weight".into(), random.norm(hidden));
    for layer in 0..shape.sliding.len() {
        for name in ["input_layernorm", "post_attention_layernorm"] {
            put(format!("layers.{layer}.{name}.weight"), random.norm(hidden));
        }
        for name in ["q_norm", "k_norm"] {
            put(format!("layers.{layer}.self_attn.{name}.weight"), random.norm(shape.head_dim));
        }
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        for (name, rows, cols) in
            [("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)]
        {
            put(format!("layers.{layer}.self_attn.{name}_proj.weight"), random.matrix(rows, cols));
        }
        for (name, rows, cols) in
            [("gate", 160, hidden), ("up", 160, hidden), ("down", hidden, 160)]
        {
            put(format!("layers.{layer}.mlp.{name}_proj.weight"), random.matrix(rows, cols));
        }
    }
    weights
}

/// config.json of a draft.
pub(crate) fn dflash_config(shape: &DflashShape) -> serde_json::Value {
    let kind = |&sliding: &bool| if sliding { "sliding_attention" } else { "full_attention" };
    let mut config = serde_json::json!({
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.sliding.len(),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": 160,
        "rms_norm_eps": 1e-6,
        "rope_theta": THETA,
        "vocab_size": 256,
        "num_target_layers": 2,
        "block_size": shape.block_size,
        "layer_types": shape.sliding.iter().map(kind).collect::<Vec<_>>(),
        "sliding_window": shape.window,
        "dflash_config": { "target_layer_ids": shape.taps, "mask_token_id": shape.mask },
    });
    if let Some(causal) = shape.causal {
        config["is_causal"] = causal.into();
    }
    config
}

/// Norms as files that MLX has not converted store them.
pub(crate) fn minus_one(weights: &Weights) -> Weights {
    let mut weights = weights.clone();
    for (_, values) in weights.iter_mut().filter(|(name, _)| name.contains("norm")) {
        values.data.iter_mut().for_each(|value| *value -= 1.0);
    }
    weights
}

/// A safetensors file of f32.
pub(crate) fn file(weights: &Weights) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, values) in weights {
        let start = data.len();
        data.extend(values.data.iter().flat_map(|value| value.to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": values.shape, "data_offsets": [start, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::Value::from(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [(header.len() as u64).to_le_bytes().to_vec(), header, data].concat()
}
