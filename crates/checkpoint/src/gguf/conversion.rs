//! What a converter changed on the way from the published weights to a file.
//!
//! What can be undone by names, shapes and ranges of bytes is undone where tensors are placed. The rest is here, as
//! facts that architectures act on: a checkpoint's tensors mean what their names say only together with these.
//! The default is what safetensors files hold: nothing was changed.

use crate::Tensor;

/// What differs from the weights as they were published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversion {
    /// Which dimensions of a query or key head turn together.
    pub rotary_pairs: RotaryPairs,
    /// Whether norms are plain multipliers whatever the family: one was added to those that are published without it.
    pub norms_are_multipliers: bool,
    /// How the value heads of gated delta net layers are ordered.
    pub value_heads: HeadOrder,
    /// What `A_log` tensors hold.
    pub rate: Rate,
    /// What frequencies of the rotation are divided by.
    pub frequency_factors: Option<FrequencyFactors>,
    /// Tensors that multiply the output of a matrix, one value for it or one for each matrix of a stack. The matrix
    /// `PATH.weight` has its own at `PATH.output_scale`.
    pub output_scales: Vec<Tensor>,
}

/// Which dimensions of a head turn together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `i` and `i + d / 2`, as transformers has it.
    #[default]
    Halves,
    /// `2i` and `2i + 1`: rows of `q_proj` and `k_proj`, and their biases, were reordered within each head. Row `2i + s`
    /// of a head is the published row `s · d / 2 + i`.
    Neighbours,
}

/// How value heads are ordered that share a key head, `r` to each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadOrder {
    /// The `r` heads of a key head follow each other: head `j` has key head `j / r`.
    #[default]
    Grouped,
    /// Head `j` has key head `j mod key heads`. It holds for the value rows of `in_proj_qkv`, the value channels of
    /// `conv1d`, the rows of `in_proj_z`, `in_proj_b` and `in_proj_a`, `A_log`, `dt_bias` and the columns of `out_proj`.
    Tiled,
}

/// What a tensor called `A_log` holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// The logarithm of the rate.
    #[default]
    Logarithm,
    /// The rate with a minus: `-exp(A_log)`.
    Negative,
}

/// Divisors of the rotation's frequencies, one for each pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrequencyFactors {
    /// The divisors, `[pairs]`.
    pub tensor: Tensor,
    /// Where they hold.
    pub layers: FactorLayers,
}

/// The layers whose rotation is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorLayers {
    /// All that rotate.
    All,
    /// Those without a window.
    Full,
}
