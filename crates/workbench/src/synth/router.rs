//! The tuned router: some experts are used far more than others, as in real models.
//!
//! These architectures give a router no bias, so the weights have to bring one. The first group of
//! columns of the residual stream stays still: every embedding has the same value there and no
//! layer writes to it. A router's weights in those columns then add a constant to the logits of
//! each expert, its popularity; its other weights see a random stream and add normal noise. Both
//! formats hold this as plain weights, and any engine routes alike whatever the tokens.
//!
//! Popularity has three levels: a few hot experts, about half warm ones, the rest cold. It was
//! fitted by hand over a grid to what is published for Qwen3.6-35B: 8, 11 and 16 % of the experts in
//! one least-recently-used cache give 52, 56 and 61 to 65 % hits, 35 % of a token's experts were the
//! previous token's, and 277 tokens touch half of a layer's experts. A simulation (top 8 of 256, 12
//! layers, 2026-11) gives 51, 57 and 62 %, 33 % and 51 %. The normal and Weibull distributions that
//! were tried rise far more steeply with the cache. The levels are not claimed to be how real
//! routers work, and there are no topics: the popular experts never change, so a cache that counts
//! uses looks better here than on text.

use super::draw::{Key, shuffled};
use super::shape::{Family, Shape};

/// How evenly tokens choose among the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// All alike: a cache hits as often as it is large.
    Uniform,
    /// Hits as published for real models.
    Tuned,
}

impl Router {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Router::Uniform => "uniform",
            Router::Tuned => "tuned",
        }
    }
}

/// Hot experts, for each that a token uses.
const HOT_SHARE: f32 = 0.75;

/// Popularity of a hot expert above a warm one, in deviations of the noise: some 64 % of
/// tokens choose it.
const HOT: f32 = 2.2;

/// Warm experts, for each there is.
const WARM_SHARE: f32 = 0.48;

/// Popularity of all others: hardly ever chosen.
const COLD: f32 = -2.0;

/// What all layers of a shape add to the residual stream's variance, which begins at one. By
/// mlx-lm on random tokens: 0.0225 a layer in 12 of 40 layers of qwen3.5-35b-a3b, 0.0087 in 6 of 48
/// of qwen3-30b-a3b, where attention averages random values away (2026-11).
fn variance_growth(family: Family) -> f32 {
    match family {
        // What Gemma's layers add is normed to be so.
        Family::Qwen35 | Family::Gemma4 => 1.0,
        Family::Qwen3 | Family::Llama | Family::GptOss => 0.4,
    }
}

/// Popularity of each expert of a layer, in deviations of the noise.
pub(crate) fn popularity(key: Key, experts: usize, used: usize) -> Vec<f32> {
    let share = |share: f32, of: usize| (share * of as f32).round() as usize;
    let hot = share(HOT_SHARE, used);
    let warm = share(WARM_SHARE, experts);
    let mut popularity = vec![COLD; experts];
    for (rank, expert) in shuffled(key, experts).into_iter().take(hot + warm).enumerate() {
        popularity[expert] = if rank < hot { HOT } else { 0.0 };
    }
    popularity
}

/// How much larger the moving columns of the stream are at a layer's router than at the start.
pub(crate) fn stream_growth(shape: &Shape, layer: usize) -> f32 {
    let depth = (layer as f32 + 0.5) / shape.layers as f32;
    (1.0 + variance_growth(shape.family) * depth).sqrt()
}
