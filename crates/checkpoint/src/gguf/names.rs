//! Names of tensors: llama.cpp's to those that architectures look for.
//!
//! A tensor of a layer is `blk.N.MODULE.SUFFIX`. Tables give each module the path below its layer and the form that
//! its weight has; what ends otherwise than `weight` and `bias` has an entry of its own. A table is data: which
//! tables an architecture has is in `architecture`.

/// The dimensions that a weight has for us, whatever the file left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is.
    Plain,
    /// `[out, in]`.
    Matrix,
    /// `[experts, out, in]`.
    Stack,
    /// `[channels, taps, 1]`, MLX's order, which says as well that nothing is to be added to norms.
    Kernel,
    /// `[out, in]`, whose rows are those of queries, then keys, then values.
    QueryKeyValue,
}

/// Module or whole name after the layer's prefix, path below the layer, form.
pub(super) type Name = (&'static str, &'static str, Form);

/// A table of names.
pub(super) type Names = &'static [Name];

use Form::{Kernel, Matrix, Plain, QueryKeyValue, Stack};

pub(super) const ATTENTION: Names = &[
    ("attn_norm", "input_layernorm", Plain),
    ("attn_q", "self_attn.q_proj", Matrix),
    ("attn_k", "self_attn.k_proj", Matrix),
    ("attn_v", "self_attn.v_proj", Matrix),
    ("attn_qkv", "self_attn", QueryKeyValue),
    ("attn_output", "self_attn.o_proj", Matrix),
    ("attn_q_norm", "self_attn.q_norm", Plain),
    ("attn_k_norm", "self_attn.k_norm", Plain),
];

/// What most families call the norm before the feed-forward.
pub(super) const POST_FFN_NORM: Names = &[("ffn_norm", "post_attention_layernorm", Plain)];

/// What the others call it.
pub(super) const POST_ATTENTION_NORM: Names =
    &[("post_attention_norm", "post_attention_layernorm", Plain)];

pub(super) const DENSE: Names = &[
    ("ffn_gate", "mlp.gate_proj", Matrix),
    ("ffn_up", "mlp.up_proj", Matrix),
    ("ffn_down", "mlp.down_proj", Matrix),
];

pub(super) const EXPERTS: Names = &[
    ("ffn_gate_inp", "mlp.gate", Matrix),
    ("ffn_gate_exps", "mlp.experts.gate_proj", Stack),
    ("ffn_up_exps", "mlp.experts.up_proj", Stack),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj", Stack),
    ("ffn_down_exps", "mlp.experts.down_proj", Stack),
];

pub(super) const SHARED_EXPERT: Names = &[
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Matrix),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj", Matrix),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj", Matrix),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj", Matrix),
];

/// Gated delta net layers. Where a layer is one, `attn_qkv` is their input.
pub(super) const DELTA: Names = &[
    ("attn_gate", "linear_attn.in_proj_z", Matrix),
    ("ssm_in", "linear_attn.in_proj_qkvz", Matrix),
    ("ssm_ba", "linear_attn.in_proj_ba", Matrix),
    ("ssm_beta", "linear_attn.in_proj_b", Matrix),
    ("ssm_alpha", "linear_attn.in_proj_a", Matrix),
    ("ssm_conv1d", "linear_attn.conv1d", Kernel),
    ("ssm_norm", "linear_attn.norm", Plain),
    ("ssm_out", "linear_attn.out_proj", Matrix),
    ("ssm_a", "linear_attn.A_log", Plain),
    ("ssm_dt.bias", "linear_attn.dt_bias", Plain),
    // Ollama's.
    ("ssm_dt", "linear_attn.dt_bias", Plain),
];

/// Where the input of a gated delta net layer goes.
pub(super) const DELTA_INPUT: Name = ("attn_qkv", "linear_attn.in_proj_qkv", Matrix);

pub(super) const GPT_OSS: Names =
    &[("ffn_gate_inp", "mlp.router", Matrix), ("attn_sinks.weight", "self_attn.sinks", Plain)];

pub(super) const GEMMA3: Names = &[
    ("post_attention_norm", "post_attention_layernorm", Plain),
    ("ffn_norm", "pre_feedforward_layernorm", Plain),
    ("post_ffw_norm", "post_feedforward_layernorm", Plain),
];

pub(super) const GEMMA4: Names = &[
    ("post_attention_norm", "post_attention_layernorm", Plain),
    ("ffn_norm", "pre_feedforward_layernorm", Plain),
    ("post_ffw_norm", "post_feedforward_layernorm", Plain),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1", Plain),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2", Plain),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2", Plain),
    ("ffn_gate_inp", "router.proj", Matrix),
    ("ffn_gate_inp.scale", "router.scale", Plain),
    ("ffn_down_exps.scale", "router.per_expert_scale", Plain),
    // Ollama's.
    ("ffn_gate_inp.per_expert_scale", "router.per_expert_scale", Plain),
    ("ffn_gate_exps", "experts.gate_proj", Stack),
    ("ffn_up_exps", "experts.up_proj", Stack),
    ("ffn_gate_up_exps", "experts.gate_up_proj", Stack),
    ("ffn_down_exps", "experts.down_proj", Stack),
    ("layer_output_scale.weight", "layer_scalar", Plain),
    ("inp_gate", "per_layer_input_gate", Matrix),
    ("proj", "per_layer_projection", Matrix),
    ("post_norm", "post_per_layer_input_norm", Plain),
];

/// What an MTP head has besides a layer, below `mtp.`.
pub(super) const HEAD: Names = &[
    ("nextn.eh_proj", "fc", Matrix),
    ("nextn.enorm", "pre_fc_norm_embedding", Plain),
    ("nextn.hnorm", "pre_fc_norm_hidden", Plain),
    ("nextn.shared_head_norm", "norm", Plain),
    ("nextn.embed_tokens", "embed_tokens", Matrix),
    ("nextn.shared_head_head", "lm_head", Matrix),
];

/// What is there once, by its whole path.
pub(super) const GLOBAL: Names = &[
    ("token_embd", "model.embed_tokens", Matrix),
    ("output_norm", "model.norm", Plain),
    ("output", "lm_head", Matrix),
    ("per_layer_token_embd", "model.embed_tokens_per_layer", Matrix),
    ("per_layer_model_proj", "model.per_layer_model_projection", Matrix),
    ("per_layer_proj_norm", "model.per_layer_projection_norm", Plain),
];

/// What tensors are called that are no part of the text model, and what they are for.
pub(super) const PARTS: [(&str, &str); 4] =
    [("v.", "vision"), ("mm.", "vision"), ("a.", "audio"), ("mtp.", "draft head")];

/// How a name ends that a module has in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suffix {
    /// The table has the whole name.
    None,
    Weight,
    Bias,
    /// Multiplies what the module puts out.
    Scale,
}

impl Suffix {
    /// How a name ends for us.
    pub(super) fn ending(self) -> &'static str {
        match self {
            Suffix::None => "",
            Suffix::Weight => ".weight",
            Suffix::Bias => ".bias",
            Suffix::Scale => ".output_scale",
        }
    }
}

/// The entry of a name, by the first table that has it.
pub(super) fn find(tables: &[Names], name: &str) -> Option<(Name, Suffix)> {
    let entry = |name: &str| {
        let tables = tables.iter().copied().flatten();
        tables.copied().find(|(module, ..)| *module == name)
    };
    if let Some(entry) = entry(name) {
        return Some((entry, Suffix::None));
    }
    let (module, suffix) = name.rsplit_once('.')?;
    let suffix = match suffix {
        "weight" => Suffix::Weight,
        "bias" => Suffix::Bias,
        "scale" => Suffix::Scale,
        _ => return None,
    };
    entry(module).map(|entry| (entry, suffix))
}

/// The number of a layer and the rest of a name such as `blk.3.attn_q.weight`.
pub(super) fn layer(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_number)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tables: &[Names], name: &str, expect: Option<(&str, Suffix)>) {
        let found = find(tables, name).map(|((_, path, _), suffix)| (path, suffix));
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn modules_and_whole_names() {
        let gemma: &[Names] = &[GEMMA4, ATTENTION, DENSE];
        check(gemma, "attn_q.weight", Some(("self_attn.q_proj", Suffix::Weight)));
        check(gemma, "attn_q.scale", Some(("self_attn.q_proj", Suffix::Scale)));
        check(gemma, "ffn_gate_inp.scale", Some(("router.scale", Suffix::None)));
        check(gemma, "ffn_gate_inp.weight", Some(("router.proj", Suffix::Weight)));
        check(gemma, "attn_q", Some(("self_attn.q_proj", Suffix::None)));
        check(gemma, "ssm_a", None);
        check(&[DELTA], "ssm_dt.bias", Some(("linear_attn.dt_bias", Suffix::None)));
        check(&[DELTA], "ssm_dt.weight", Some(("linear_attn.dt_bias", Suffix::Weight)));
        check(&[DELTA], "ssm_conv1d.weight", Some(("linear_attn.conv1d", Suffix::Weight)));
        assert_eq!(layer("blk.12.attn_q.weight"), Some((12, "attn_q.weight")));
        assert_eq!(layer("blk.+1.attn_q.weight"), None);
        assert_eq!(layer("blk..attn_q.weight"), None);
        assert_eq!(layer("output.weight"), None);
    }
}
