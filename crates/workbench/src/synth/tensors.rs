//! The tensors of a shape: their names in both formats, their sizes, and what fills them.
//!
//! Rows and columns are in the order of the MLX file. llama.cpp wants some of them in another
//! order; [`Order`] says which row or column of ours lies where in its file.
//!
//! Sizes of values: with RMS norms of about one, a matrix with deviation 1/√inputs keeps
//! activations near one. What goes back into the residual stream is scaled down by the number of
//! layers of the whole shape, so that the stream ends about half token and half context whatever
//! the depth: it neither explodes nor forgets its token, and tokens keep choosing different experts.

mod gemma;
mod heads;

use super::draw::{Fill, Flat, Key};
use super::router::{self, Router};
use super::shape::{Delta, Family, FeedForward, RopeScaling, Shape};
use super::{BITS, Values};

pub(crate) use heads::{dflash, mtp};

/// Deviation of the router's logits: the best of a few hundred experts gets some twenty percent.
const ROUTER_STD: f32 = 1.5;

/// Deviation of the output logits.
const LOGIT_STD: f32 = 3.0;

/// Deviation of biases, where a family has them.
const BIAS_STD: f32 = 0.1;

/// One tensor of the model.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    /// The MLX name, without `.weight` if it is quantized; `None` for what only GGUF stores.
    pub(crate) mlx: Option<String>,
    /// The MLX dimensions, outermost first, before packing.
    pub(crate) shape: Vec<usize>,
    /// The GGUF name.
    pub(crate) gguf: String,
    /// The GGUF dimensions, innermost first.
    pub(crate) dimensions: Vec<u64>,
    /// Rows, through all experts of a stack.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) content: Content,
    pub(crate) row_order: Order,
    pub(crate) col_order: Order,
}

impl Tensor {
    fn flatten(&mut self, where_to: Flat) {
        if let Content::Affine { flat, .. } = &mut self.content {
            *flat = where_to;
        }
    }
}

/// What a tensor holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    /// Codes of four or eight bits with a scale and a bias for each group.
    Affine { std: f32, flat: Flat, bits: usize },
    /// 4-bit floats with a power of two for each 32. MLX only.
    Mxfp4 { std: f32, flat: Flat },
    /// f32 values.
    Plain(Fill),
    /// bf16 values. MLX only.
    Half(Fill),
    /// f32 values that GGUF stores as −exp(value).
    NegativeExp(Fill),
    /// A tuned router: f32 values around zero, and in the first `columns` the same value, which
    /// makes the row's expert more or less popular.
    Router { std: f32, columns: usize, popularity: Vec<f32> },
    /// f32 values that are not random.
    Fixed(Vec<f32>),
}

/// Which of our rows (or columns) lies at an index of the GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// From `first` on, value heads of `width`: ours lie grouped by key head, llama.cpp's tiled
    /// (`conversion/qwen.py`: head v of key head k at v · key_heads + k).
    Tiled {
        first: usize,
        key_heads: usize,
        ratio: usize,
        width: usize,
    },
    /// llama.cpp's Llama rotates neighbours, all others element i with i + head_dim / 2.
    Pairs {
        head_dim: usize,
    },
}

impl Order {
    pub(crate) fn source(self, index: usize) -> usize {
        match self {
            Order::Same => index,
            Order::Tiled { first, .. } if index < first => index,
            Order::Tiled { first, key_heads, ratio, width } => {
                let (head, within) = ((index - first) / width, (index - first) % width);
                let (value, key) = (head / key_heads, head % key_heads);
                first + (key * ratio + value) * width + within
            }
            Order::Pairs { head_dim } => {
                let (head, within) = (index / head_dim, index % head_dim);
                head * head_dim + (within % 2) * (head_dim / 2) + within / 2
            }
        }
    }
}

/// All tensors of the first `layers` layers of a shape, in the order they are written.
pub(crate) fn tensors(shape: &Shape, layers: usize, values: Values) -> Vec<Tensor> {
    let mut list = List { shape, values, tensors: Vec::new() };
    list.embedding();
    for layer in 0..layers {
        match shape.gemma {
            Some(gemma) => list.gemma_layer(&gemma, layer, layers),
            None => list.layer(layer),
        }
    }
    list.output();
    list.tensors
}

struct List<'a> {
    shape: &'a Shape,
    values: Values,
    tensors: Vec<Tensor>,
}

impl List<'_> {
    /// Deviation of the residual stream. A tied table must serve as output head too.
    fn stream_std(&self) -> f32 {
        if self.shape.tied { LOGIT_STD / (self.shape.hidden as f32).sqrt() } else { 1.0 }
    }

    /// The gain of matrices that write to the residual stream.
    fn output_gain(&self) -> f32 {
        self.stream_std() * 2.0 / (2.0 * self.shape.layers as f32).sqrt()
    }

    /// How many of the stream's first columns stay as the embedding made them.
    fn still_columns(&self) -> usize {
        match self.values.router {
            Router::Uniform => 0,
            // Whatever shares a scale.
            Router::Tuned => self.values.group,
        }
    }

    fn embedding(&mut self) {
        let (vocab, hidden) = (self.shape.vocab, self.shape.hidden);
        let gain = self.stream_std() * (hidden as f32).sqrt();
        let name = self.model("embed_tokens");
        let flat = Flat::Columns { count: self.still_columns(), value: self.stream_std() };
        self.linear(name, "token_embd.weight".into(), [vocab, hidden], gain).flatten(flat);
        if let Some(scaling) = self.shape.rope_scaling {
            self.rope_factors(&scaling);
        }
    }

    fn output(&mut self) {
        let (vocab, hidden) = (self.shape.vocab, self.shape.hidden);
        let name = self.model("norm.weight");
        self.vector(name, "output_norm.weight".into(), hidden, Fill::NearOne);
        if !self.shape.tied {
            let name = match self.shape.family {
                Family::Qwen35 | Family::Gemma4 => "language_model.lm_head",
                Family::Qwen3 | Family::Llama | Family::GptOss => "lm_head",
            };
            self.linear(name.into(), "output.weight".into(), [vocab, hidden], LOGIT_STD);
        }
    }

    fn layer(&mut self, layer: usize) {
        let shape = self.shape;
        let path = self.model(&format!("layers.{layer}"));
        let block = format!("blk.{layer}");
        let norm = format!("{path}.input_layernorm.weight");
        self.vector(norm, format!("{block}.attn_norm.weight"), shape.hidden, Fill::NearOne);
        match shape.delta.filter(|_| !shape.is_full_attention(layer)) {
            Some(delta) => self.delta(&format!("{path}.linear_attn"), &block, delta),
            None => self.attention(&format!("{path}.self_attn"), &block),
        }
        let name = match shape.family {
            Family::Qwen35 | Family::Gemma4 => "post_attention_norm",
            Family::Qwen3 | Family::Llama | Family::GptOss => "ffn_norm",
        };
        let norm = format!("{path}.post_attention_layernorm.weight");
        self.vector(norm, format!("{block}.{name}.weight"), shape.hidden, Fill::NearOne);
        self.feed_forward(&format!("{path}.mlp"), &block, layer);
    }

    fn attention(&mut self, path: &str, block: &str) {
        let shape = self.shape;
        let (hidden, head_dim) = (shape.hidden, shape.head_dim);
        let (query, key) = (shape.heads * head_dim, shape.kv_heads * head_dim);
        // Qwen3.5 has a gate for each query.
        let query_rows = if shape.family == Family::Qwen35 { 2 * query } else { query };
        let order = match shape.family {
            Family::Llama => Order::Pairs { head_dim },
            Family::Qwen35 | Family::Qwen3 | Family::Gemma4 | Family::GptOss => Order::Same,
        };
        for (ours, theirs, rows, order) in [
            ("q_proj", "attn_q", query_rows, order),
            ("k_proj", "attn_k", key, order),
            ("v_proj", "attn_v", key, Order::Same),
        ] {
            let gguf = format!("{block}.{theirs}.weight");
            self.linear(format!("{path}.{ours}"), gguf, [rows, hidden], 1.0).row_order = order;
        }
        let gguf = format!("{block}.attn_output.weight");
        self.output_linear(format!("{path}.o_proj"), gguf, query);
        if shape.family == Family::GptOss {
            for (ours, rows) in [("q_proj", query), ("k_proj", key), ("v_proj", key)] {
                self.halves(format!("{path}.{ours}.bias"), &[rows], BIAS_STD);
            }
            // Nothing may be added to the columns that stay still.
            self.halves(format!("{path}.o_proj.bias"), &[hidden], 0.0);
            self.halves(format!("{path}.sinks"), &[shape.heads], 1.0);
        } else if shape.family != Family::Llama {
            for (ours, theirs) in [("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm")] {
                let gguf = format!("{block}.{theirs}.weight");
                self.vector(format!("{path}.{ours}.weight"), gguf, head_dim, Fill::NearOne);
            }
        }
    }

    fn delta(&mut self, path: &str, block: &str, delta: Delta) {
        let hidden = self.shape.hidden;
        let (key_heads, heads) = (delta.key_heads, delta.value_heads);
        let ratio = heads / key_heads;
        let tiled = |first, width| Order::Tiled { first, key_heads, ratio, width };
        let values = tiled(0, delta.head_dim);
        let after_keys = tiled(2 * delta.key_width(), delta.head_dim);
        for (ours, theirs, rows, order) in [
            ("in_proj_qkv", "attn_qkv", delta.channels(), after_keys),
            ("in_proj_z", "attn_gate", delta.value_width(), values),
            ("in_proj_b", "ssm_beta", heads, tiled(0, 1)),
            ("in_proj_a", "ssm_alpha", heads, tiled(0, 1)),
        ] {
            let gguf = format!("{block}.{theirs}.weight");
            self.linear(format!("{path}.{ours}"), gguf, [rows, hidden], 1.0).row_order = order;
        }
        let out = format!("{path}.out_proj");
        let gguf = format!("{block}.ssm_out.weight");
        self.output_linear(out, gguf, delta.value_width()).col_order = values;

        let std = 1.0 / (Delta::TAPS as f32).sqrt();
        self.push(Tensor {
            mlx: Some(format!("{path}.conv1d.weight")),
            shape: vec![delta.channels(), Delta::TAPS, 1],
            gguf: format!("{block}.ssm_conv1d.weight"),
            dimensions: vec![Delta::TAPS as u64, delta.channels() as u64],
            rows: delta.channels(),
            cols: Delta::TAPS,
            content: Content::Plain(Fill::Normal { std }),
            row_order: after_keys,
            col_order: Order::Same,
        });
        for (ours, theirs, content) in [
            ("A_log", "ssm_a", Content::NegativeExp(Fill::DecayLog)),
            ("dt_bias", "ssm_dt.bias", Content::Plain(Fill::TimeStep)),
        ] {
            let gguf = format!("{block}.{theirs}");
            let vector = self.vector(format!("{path}.{ours}"), gguf, heads, Fill::NearOne);
            vector.content = content;
            vector.col_order = tiled(0, 1);
        }
        let norm = format!("{path}.norm.weight");
        self.vector(norm, format!("{block}.ssm_norm.weight"), delta.head_dim, Fill::NearOne);
    }

    fn feed_forward(&mut self, path: &str, block: &str, layer: usize) {
        match self.shape.feed_forward {
            FeedForward::Dense { width } => self.swiglu(path, block, "", None, width),
            FeedForward::Experts { count, used, width, shared } => {
                let hidden = self.shape.hidden;
                let is_gpt_oss = self.shape.family == Family::GptOss;
                let name = if is_gpt_oss { "router" } else { "gate" };
                let router = format!("{path}.{name}.weight");
                let content = self.router(&router, [count, used], layer);
                let gguf = format!("{block}.ffn_gate_inp.weight");
                self.matrix(router, gguf, [count, hidden], Fill::NearOne).content = content;
                if is_gpt_oss {
                    self.halves(format!("{path}.router.bias"), &[count], 0.0);
                    self.gpt_oss_experts(&format!("{path}.experts"), block, count, width);
                    return;
                }
                self.swiglu(&format!("{path}.switch_mlp"), block, "_exps", Some(count), width);
                if let Some(width) = shared {
                    let gate = format!("{path}.shared_expert_gate.weight");
                    let std = 1.0 / (hidden as f32).sqrt();
                    let gguf = format!("{block}.ffn_gate_inp_shexp.weight");
                    let gate = self.matrix(gate, gguf, [1, hidden], Fill::Normal { std });
                    gate.dimensions = vec![hidden as u64];
                    self.swiglu(&format!("{path}.shared_expert"), block, "_shexp", None, width);
                }
            }
        }
    }

    fn router(&self, name: &str, [experts, used]: [usize; 2], layer: usize) -> Content {
        let (hidden, columns) = (self.shape.hidden, self.still_columns());
        let root = |count: usize| (count as f32).sqrt();
        // Gemma divides what its router reads by the root of its width.
        let width = if self.shape.gemma.is_some() { 1 } else { hidden };
        let std = ROUTER_STD / root(width);
        match self.values.router {
            Router::Uniform => Content::Plain(Fill::Normal { std }),
            Router::Tuned => {
                // Before the norm, which divides both alike: noise from the columns that move, and
                // popularity from those that keep the size they began with.
                let growth = router::stream_growth(self.shape, layer);
                let noise = std * root(hidden - columns) * growth;
                let key = Key::new(self.values.seed, name);
                let mut popularity = router::popularity(key, experts, used);
                popularity.iter_mut().for_each(|value| *value *= noise / columns as f32);
                Content::Router { std, columns, popularity }
            }
        }
    }

    /// Gate, up and down; a stack of them for experts.
    fn swiglu(&mut self, path: &str, block: &str, kind: &str, stack: Option<usize>, width: usize) {
        let hidden = self.shape.hidden;
        for (ours, theirs) in
            [("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down")]
        {
            let (name, gguf) = (format!("{path}.{ours}"), format!("{block}.{theirs}{kind}.weight"));
            let linear = match ours {
                "down_proj" => self.output_linear(name, gguf, width),
                _ => self.linear(name, gguf, [width, hidden], 1.0),
            };
            if let Some(count) = stack {
                linear.shape.insert(0, count);
                linear.dimensions.push(count as u64);
                linear.rows *= count;
            }
        }
    }

    /// Experts in mxfp4, with biases.
    fn gpt_oss_experts(&mut self, path: &str, block: &str, count: usize, width: usize) {
        let first = self.tensors.len();
        self.swiglu(path, block, "_exps", Some(count), width);
        for tensor in &mut self.tensors[first..] {
            if let Content::Affine { std, flat, .. } = tensor.content {
                tensor.content = Content::Mxfp4 { std, flat };
            }
        }
        let hidden = self.shape.hidden;
        for (name, rows, std) in [
            ("gate_proj", width, BIAS_STD),
            ("up_proj", width, BIAS_STD),
            ("down_proj", hidden, 0.0),
        ] {
            self.halves(format!("{path}.{name}.bias"), &[count, rows], std);
        }
    }

    /// Values in 16 bits; only MLX files have them.
    fn halves(&mut self, name: String, shape: &[usize], std: f32) {
        let (rows, cols) = (shape[..shape.len() - 1].iter().product(), shape[shape.len() - 1]);
        let tensor = self.matrix(name, String::new(), [rows, cols], Fill::NearOne);
        tensor.shape = shape.to_vec();
        tensor.content = Content::Half(Fill::Normal { std });
    }

    /// Llama 3 stretches slow rotations; GGUF has the divisors as a tensor
    /// (`conversion/llama.py`), MLX computes them from the config.
    fn rope_factors(&mut self, scaling: &RopeScaling) {
        let dim = self.shape.head_dim;
        let original = scaling.original_context as f64;
        let (long, short) = (original / scaling.low, original / scaling.high);
        let factor = |pair: usize| {
            let frequency = self.shape.rope_theta.powf(-(2.0 * pair as f64) / dim as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < short {
                return 1.0;
            }
            if wavelength > long {
                return scaling.factor;
            }
            let smooth = (original / wavelength - scaling.low) / (scaling.high - scaling.low);
            1.0 / ((1.0 - smooth) / scaling.factor + smooth)
        };
        let factors = (0..dim / 2).map(|pair| factor(pair) as f32).collect();
        let tensor = self.vector(String::new(), "rope_freqs.weight".into(), dim / 2, Fill::NearOne);
        tensor.mlx = None;
        tensor.content = Content::Fixed(factors);
    }

    /// The MLX name of something in the decoder.
    fn model(&self, name: &str) -> String {
        match self.shape.family {
            Family::Qwen35 | Family::Gemma4 => format!("language_model.model.{name}"),
            Family::Qwen3 | Family::Llama | Family::GptOss => format!("model.{name}"),
        }
    }

    fn linear(
        &mut self,
        mlx: String,
        gguf: String,
        [rows, cols]: [usize; 2],
        gain: f32,
    ) -> &mut Tensor {
        let tensor = self.matrix(mlx, gguf, [rows, cols], Fill::NearOne);
        tensor.content =
            Content::Affine { std: gain / (cols as f32).sqrt(), flat: Flat::Nowhere, bits: BITS };
        tensor
    }

    /// A matrix that writes to the residual stream, but not to what stays still there.
    fn output_linear(&mut self, mlx: String, gguf: String, cols: usize) -> &mut Tensor {
        let (hidden, gain) = (self.shape.hidden, self.output_gain());
        let flat = Flat::Rows { of: hidden, count: self.still_columns() };
        let tensor = self.linear(mlx, gguf, [hidden, cols], gain);
        tensor.flatten(flat);
        tensor
    }

    fn matrix(
        &mut self,
        mlx: String,
        gguf: String,
        [rows, cols]: [usize; 2],
        fill: Fill,
    ) -> &mut Tensor {
        self.push(Tensor {
            mlx: Some(mlx),
            shape: vec![rows, cols],
            gguf,
            dimensions: vec![cols as u64, rows as u64],
            rows,
            cols,
            content: Content::Plain(fill),
            row_order: Order::Same,
            col_order: Order::Same,
        })
    }

    fn vector(&mut self, mlx: String, gguf: String, len: usize, fill: Fill) -> &mut Tensor {
        let tensor = self.matrix(mlx, gguf, [1, len], fill);
        tensor.shape = vec![len];
        tensor.dimensions = vec![len as u64];
        tensor
    }

    fn push(&mut self, tensor: Tensor) -> &mut Tensor {
        self.tensors.push(tensor);
        let last = self.tensors.len() - 1;
        &mut self.tensors[last]
    }
}
