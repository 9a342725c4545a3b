//! The shapes of published models, by name, and a few tiny ones for tests.
//!
//! Sizes come from the models' own config.json. A shape says nothing about values or files.

use super::Error;

/// The sizes of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) eps: f32,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope_theta: f64,
    /// Llama 3's stretched rotation.
    pub(crate) rope_scaling: Option<RopeScaling>,
    pub(crate) feed_forward: FeedForward,
    /// Gated delta net on three of four layers.
    pub(crate) delta: Option<Delta>,
    /// What only Gemma has.
    pub(crate) gemma: Option<Gemma>,
    /// Whether the embedding table is the output head too.
    pub(crate) tied: bool,
}

/// Whose names and config keys a model uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Qwen35,
    Qwen3,
    Llama,
    GptOss,
    Gemma4,
}

/// The second half of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedForward {
    Dense { width: usize },
    Experts { count: usize, used: usize, width: usize, shared: Option<usize> },
}

/// Gated delta net heads; keys and values have heads of the same size in all published models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) head_dim: usize,
}

impl Delta {
    /// Taps of the convolution.
    pub(crate) const TAPS: usize = 4;

    pub(crate) fn key_width(self) -> usize {
        self.key_heads * self.head_dim
    }

    pub(crate) fn value_width(self) -> usize {
        self.value_heads * self.head_dim
    }

    /// Queries, keys and values side by side.
    pub(crate) fn channels(self) -> usize {
        2 * self.key_width() + self.value_width()
    }
}

/// Sliding layers with a global one after every five, and a dense layer parallel to the experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gemma {
    pub(crate) window: usize,
    pub(crate) global_kv_heads: usize,
    pub(crate) global_head_dim: usize,
    pub(crate) global_rope_theta: f64,
    pub(crate) dense_width: usize,
}

impl Gemma {
    /// Whether a layer of so many has no window: every sixth, and always the last.
    pub(crate) fn is_global(self, layer: usize, layers: usize) -> bool {
        (layer + 1).is_multiple_of(6) || layer + 1 == layers
    }
}

/// `rope_type: llama3`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RopeScaling {
    pub(crate) factor: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) original_context: usize,
}

impl Shape {
    /// Every fourth layer has full attention where there is a delta net, else all of them.
    pub(crate) const FULL_ATTENTION_INTERVAL: usize = 4;

    /// Share of a head that rotates.
    pub(crate) fn partial_rotary(&self) -> f64 {
        if self.family == Family::Qwen35 { 0.25 } else { 1.0 }
    }

    pub(crate) fn rotary_dim(&self) -> usize {
        (self.head_dim as f64 * self.partial_rotary()) as usize
    }

    /// How many rotating pairs follow time, height and width; equal for text. Real models with
    /// 32 pairs have 11, 11 and 10.
    pub(crate) fn rope_sections(&self) -> [usize; 3] {
        let pairs = self.rotary_dim() / 2;
        let first = pairs.div_ceil(3);
        [first, first, pairs - 2 * first]
    }

    pub(crate) fn is_full_attention(&self, layer: usize) -> bool {
        self.delta.is_none() || (layer + 1).is_multiple_of(Self::FULL_ATTENTION_INTERVAL)
    }

    /// Whether a layer of gpt-oss sees its window only: every other one, from the first on.
    pub(crate) fn is_sliding(&self, layer: usize) -> bool {
        self.family == Family::GptOss && layer.is_multiple_of(2)
    }

    /// Whether the text model is inside a multimodal one, in config.json and in names.
    pub(crate) fn is_nested(&self) -> bool {
        matches!(self.family, Family::Qwen35 | Family::Gemma4)
    }

    pub(crate) fn has_experts(&self) -> bool {
        matches!(self.feed_forward, FeedForward::Experts { .. })
    }
}

/// The sizes of a published DFlash draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dflash {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) width: usize,
    /// The token that stands for one to be guessed.
    pub(crate) mask: u32,
    /// Layers that see no more than so many positions, all but the last.
    pub(crate) window: Option<usize>,
}

impl Dflash {
    /// Rows of a block.
    pub(crate) const BLOCK_SIZE: usize = 16;

    /// The target's layers that it looks at: five, spread as in the published drafts of 32, 40 and 64 layers.
    pub(crate) fn taps(layers: usize) -> Vec<usize> {
        let tap = |index: usize| (1 + index * layers.saturating_sub(4) / 4).min(layers - 1);
        let mut taps: Vec<usize> = (0..5).map(tap).collect();
        taps.dedup();
        taps
    }
}

/// The draft that z-lab published for a shape, or a tiny one.
pub(crate) fn dflash(shape: &Shape) -> Option<Dflash> {
    let published = |layers, kv_heads, width| Dflash {
        layers,
        heads: 32,
        kv_heads,
        head_dim: 128,
        width,
        mask: 248_070,
        window: None,
    };
    match shape.name {
        "qwen3.5-4b" => Some(published(5, 8, 9728)),
        "qwen3.5-27b" => Some(Dflash { window: Some(2048), ..published(5, 8, 17_408) }),
        "qwen3.5-35b-a3b" => Some(published(8, 4, 6144)),
        "tiny-qwen3.5-moe" => Some(Dflash {
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            width: 512,
            mask: 4089,
            window: Some(48),
        }),
        _ => None,
    }
}

/// The shape called `name`, in any case.
pub(crate) fn find(name: &str) -> Result<Shape, Error> {
    SHAPES
        .iter()
        .find(|shape| shape.name.eq_ignore_ascii_case(name))
        .copied()
        .ok_or_else(|| Error::UnknownShape { name: name.to_owned() })
}

/// All names, for hints.
pub(crate) fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
}

const fn qwen35(
    name: &'static str,
    [hidden, layers]: [usize; 2],
    [heads, kv_heads]: [usize; 2],
    value_heads: usize,
    feed_forward: FeedForward,
    tied: bool,
) -> Shape {
    Shape {
        name,
        family: Family::Qwen35,
        hidden,
        layers,
        vocab: 248_320,
        context: 262_144,
        eps: 1e-6,
        heads,
        kv_heads,
        head_dim: 256,
        rope_theta: 1e7,
        rope_scaling: None,
        feed_forward,
        delta: Some(Delta { key_heads: 16, value_heads, head_dim: 128 }),
        gemma: None,
        tied,
    }
}

const fn qwen3(
    name: &'static str,
    [hidden, layers]: [usize; 2],
    [heads, kv_heads]: [usize; 2],
    feed_forward: FeedForward,
    tied: bool,
) -> Shape {
    Shape {
        name,
        family: Family::Qwen3,
        hidden,
        layers,
        vocab: 151_936,
        context: 40_960,
        eps: 1e-6,
        heads,
        kv_heads,
        head_dim: 128,
        rope_theta: 1e6,
        rope_scaling: None,
        feed_forward,
        delta: None,
        gemma: None,
        tied,
    }
}

const fn llama(
    name: &'static str,
    [hidden, layers]: [usize; 2],
    [heads, kv_heads]: [usize; 2],
    head_dim: usize,
    width: usize,
    factor: f64,
    tied: bool,
) -> Shape {
    Shape {
        name,
        family: Family::Llama,
        hidden,
        layers,
        vocab: 128_256,
        context: 131_072,
        eps: 1e-5,
        heads,
        kv_heads,
        head_dim,
        rope_theta: 5e5,
        rope_scaling: Some(RopeScaling { factor, low: 1.0, high: 4.0, original_context: 8192 }),
        feed_forward: dense(width),
        delta: None,
        gemma: None,
        tied,
    }
}

const fn gpt_oss(name: &'static str, layers: usize, experts_count: usize) -> Shape {
    Shape {
        name,
        family: Family::GptOss,
        hidden: 2880,
        layers,
        vocab: 201_088,
        context: 131_072,
        eps: 1e-5,
        heads: 64,
        kv_heads: 8,
        head_dim: 64,
        rope_theta: 150_000.0,
        rope_scaling: None,
        feed_forward: experts(experts_count, 4, 2880, None),
        delta: None,
        gemma: None,
        tied: false,
    }
}

const fn dense(width: usize) -> FeedForward {
    FeedForward::Dense { width }
}

const fn experts(count: usize, used: usize, width: usize, shared: Option<usize>) -> FeedForward {
    FeedForward::Experts { count, used, width, shared }
}

const GEMMA4_26B_A4B: Shape = Shape {
    name: "gemma-4-26b-a4b",
    family: Family::Gemma4,
    hidden: 2816,
    layers: 30,
    vocab: 262_144,
    context: 262_144,
    eps: 1e-6,
    heads: 16,
    kv_heads: 8,
    head_dim: 256,
    rope_theta: 1e4,
    rope_scaling: None,
    feed_forward: experts(128, 8, 704, None),
    delta: None,
    gemma: Some(Gemma {
        window: 1024,
        global_kv_heads: 2,
        global_head_dim: 512,
        global_rope_theta: 1e6,
        dense_width: 2112,
    }),
    tied: true,
};

/// The smallest vocabulary that holds Pebble's tokenizer, which every synthetic model carries.
const TINY_VOCAB: usize = 4096;

const TINY_QWEN35: Shape = Shape {
    vocab: TINY_VOCAB,
    context: 4096,
    head_dim: 64,
    delta: Some(Delta { key_heads: 2, value_heads: 4, head_dim: 64 }),
    ..qwen35("tiny-qwen3.5", [256, 4], [4, 2], 4, dense(512), false)
};

const TINY_QWEN3: Shape = Shape {
    vocab: TINY_VOCAB,
    context: 4096,
    head_dim: 64,
    ..qwen3("tiny-qwen3", [256, 4], [4, 2], dense(512), false)
};

const SHAPES: &[Shape] = &[
    qwen35("qwen3.5-0.8b", [1024, 24], [8, 2], 16, dense(3584), true),
    qwen35("qwen3.5-4b", [2560, 32], [16, 4], 32, dense(9216), true),
    qwen35("qwen3.5-9b", [4096, 32], [16, 4], 32, dense(12_288), false),
    qwen35("qwen3.5-27b", [5120, 64], [24, 4], 48, dense(17_408), false),
    qwen35("qwen3.5-35b-a3b", [2048, 40], [16, 2], 32, experts(256, 8, 512, Some(512)), false),
    qwen35("qwen3.5-122b-a10b", [3072, 48], [32, 2], 64, experts(256, 8, 1024, Some(1024)), false),
    qwen35("qwen3.5-397b-a17b", [4096, 60], [32, 2], 64, experts(512, 10, 1024, Some(1024)), false),
    qwen3("qwen3-0.6b", [1024, 28], [16, 8], dense(3072), true),
    qwen3("qwen3-4b", [2560, 36], [32, 8], dense(9728), true),
    qwen3("qwen3-8b", [4096, 36], [32, 8], dense(12_288), false),
    qwen3("qwen3-32b", [5120, 64], [64, 8], dense(25_600), false),
    qwen3("qwen3-30b-a3b", [2048, 48], [32, 4], experts(128, 8, 768, None), false),
    qwen3("qwen3-235b-a22b", [4096, 94], [64, 4], experts(128, 8, 1536, None), false),
    gpt_oss("gpt-oss-20b", 24, 32),
    gpt_oss("gpt-oss-120b", 36, 128),
    llama("llama-3.1-8b", [4096, 32], [32, 8], 128, 14_336, 8.0, false),
    llama("llama-3.1-70b", [8192, 80], [64, 8], 128, 28_672, 8.0, false),
    llama("llama-3.2-1b", [2048, 16], [32, 8], 64, 8192, 32.0, true),
    GEMMA4_26B_A4B,
    Shape {
        name: "tiny-gemma-4",
        hidden: 256,
        layers: 6,
        vocab: TINY_VOCAB,
        context: 4096,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        feed_forward: experts(16, 4, 128, None),
        gemma: Some(Gemma {
            window: 48,
            global_kv_heads: 1,
            global_head_dim: 128,
            global_rope_theta: 1e6,
            dense_width: 128,
        }),
        ..GEMMA4_26B_A4B
    },
    TINY_QWEN35,
    Shape { name: "tiny-qwen3.5-moe", feed_forward: experts(16, 4, 128, Some(128)), ..TINY_QWEN35 },
    Shape { name: "tiny-qwen3.5-tied", tied: true, ..TINY_QWEN35 },
    Shape {
        name: "tiny-pebble",
        layers: 8,
        context: 8192,
        head_dim: 128,
        feed_forward: experts(32, 4, 128, Some(128)),
        tied: true,
        ..TINY_QWEN35
    },
    TINY_QWEN3,
    Shape { name: "tiny-qwen3-moe", feed_forward: experts(16, 4, 128, None), ..TINY_QWEN3 },
    Shape {
        hidden: 192,
        vocab: TINY_VOCAB,
        context: 16_384,
        heads: 4,
        kv_heads: 2,
        feed_forward: experts(16, 4, 128, None),
        ..gpt_oss("tiny-gpt-oss", 4, 16)
    },
    Shape {
        vocab: TINY_VOCAB,
        context: 16_384,
        ..llama("tiny-llama", [256, 4], [4, 2], 64, 512, 8.0, false)
    },
];
