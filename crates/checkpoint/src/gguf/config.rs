//! Metadata to the config.json that the model would have.
//!
//! Architectures read one form of configuration, so nothing above knows where it came from. What a family computes
//! otherwise than it would for its config is refused here rather than left out.

use serde_json::{Map, Value, json};

use super::architecture::Family;
use super::metadata::Field;
use super::outline::Outline;
use super::rope;
use crate::{Config, Error, Result};

/// A configuration in the making.
struct Draft {
    root: Map<String, Value>,
}

impl Draft {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.root.insert(key.to_owned(), value.into());
    }

    fn set_some(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }
}

/// The configuration of the model.
pub(super) fn config(outline: &Outline<'_>) -> Result<Config> {
    let mut draft = Draft { root: Map::new() };
    draft.set("model_type", model_type(outline)?);
    common(outline, &mut draft)?;
    match outline.family() {
        Family::Llama => {
            draft.set_some("sliding_window", outline.u64("attention.sliding_window")?);
        }
        Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => {}
        Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => hybrid(outline, &mut draft)?,
        Family::Gemma3 => gemma3(outline, &mut draft)?,
        Family::Gemma4 => gemma4(outline, &mut draft)?,
        Family::GptOss => window(outline, &mut draft)?,
    }
    if outline.has_experts()? {
        experts(outline, &mut draft)?;
    }
    Config::from_root(draft.root, outline.metadata.path())
}

/// The family's name in a config.json.
fn model_type(outline: &Outline<'_>) -> Result<&'static str> {
    Ok(match outline.family() {
        Family::Gemma3 => "gemma3",
        Family::Gemma4 => "gemma4",
        Family::GptOss => "gpt_oss",
        Family::Llama if outline.has_experts()? => "mixtral",
        // llama.cpp has one name for both, and the window is all that tells them apart.
        Family::Llama if outline.u64("attention.sliding_window")?.is_some() => "mistral",
        Family::Llama => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
        Family::Qwen3Moe => "qwen3_moe",
        Family::Qwen3Next => "qwen3_next",
        Family::Qwen35 => "qwen3_5",
        Family::Qwen35Moe => "qwen3_5_moe",
    })
}

/// What every model has.
fn common(outline: &Outline<'_>, draft: &mut Draft) -> Result<()> {
    let name = "token_embd.weight";
    let Some(embedding) = outline.tensor(name) else {
        return Err(Error::MissingTensor {
            folder: outline.metadata.path().to_owned(),
            tensor: name.to_owned(),
            near: Vec::new(),
            missing: Vec::new(),
        });
    };
    draft.set("num_hidden_layers", outline.layers);
    draft.set("hidden_size", outline.require("embedding_length")?);
    // The key for it is often missing, and tools have written more tokens than there are rows.
    draft.set("vocab_size", embedding.shape.first().copied().unwrap_or(0));
    let key = "attention.head_count_kv";
    draft.set("num_attention_heads", outline.shared("attention.head_count", |a| a.heads)?);
    if outline.family() != Family::Gemma4 {
        draft.set("num_key_value_heads", outline.shared(key, |a| a.kv_heads)?);
        draft.set("head_dim", outline.shared("attention.key_length", |a| a.head_dim)?);
    }
    draft.set_some("rms_norm_eps", outline.f64("attention.layer_norm_rms_epsilon")?);
    draft.set_some("max_position_embeddings", outline.u64("context_length")?);
    draft.set("tie_word_embeddings", outline.tensor("output.weight").is_none());
    if let Some(widths) = outline.per_layer("feed_forward_length")? {
        // Where layers differ, the wider ones are another matter.
        let narrowest = widths.iter().copied().filter(|&width| width > 0).min();
        draft.set_some("intermediate_size", narrowest);
        let is_wide = |&width: &u64| narrowest.is_some_and(|least| width > least);
        match widths.iter().find(|width| is_wide(width)) {
            Some(&wide) if outline.family() == Family::Gemma4 && Some(wide / 2) == narrowest => {
                draft.set("use_double_wide_mlp", true);
            }
            Some(_) => return Err(outline.refuse("feed_forward_length", "the same in every layer")),
            None => {}
        }
    }
    draft.set("rope_parameters", rope::parameters(outline)?);
    if outline.head_layers > 0 {
        draft.set("mtp_num_hidden_layers", outline.head_layers);
        let own = format!("blk.{}.nextn.embed_tokens.weight", outline.layers);
        draft.set("mtp_use_dedicated_embeddings", outline.tensor(&own).is_some());
    }
    tokens(outline, draft)
}

/// The tokens that begin and end texts.
fn tokens(outline: &Outline<'_>, draft: &mut Draft) -> Result<()> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    draft.set_some("bos_token_id", outline.metadata.u64(&key("bos_token_id"))?);
    let mut ends = Vec::new();
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends.extend(outline.metadata.u64(&key(name))?);
    }
    // Ollama's.
    if let Some(Field::Numbers(ids)) = outline.metadata.get(&key("eos_token_ids")) {
        ends.extend(ids.iter().filter_map(|id| id.as_u64()));
    }
    let mut unique: Vec<u64> = Vec::new();
    for end in ends {
        // A list of a million is no list of ends.
        if unique.len() < 64 && !unique.contains(&end) {
            unique.push(end);
        }
    }
    if !unique.is_empty() {
        draft.set("eos_token_id", unique);
    }
    Ok(())
}

/// What mixtures of experts have.
fn experts(outline: &Outline<'_>, draft: &mut Draft) -> Result<()> {
    let count = outline.require("expert_count")?;
    let used = outline.require("expert_used_count")?;
    // `[experts, hidden, intermediate]`.
    let width = outline.u64("expert_feed_forward_length")?;
    let width = width.or(outline.shape("ffn_down_exps").and_then(last));
    match outline.family() {
        Family::Llama | Family::GptOss => {
            draft.set("num_local_experts", count);
            draft.set("num_experts_per_tok", used);
            draft.set_some("intermediate_size", width);
        }
        Family::Gemma4 => {
            draft.set("enable_moe_block", true);
            draft.set("num_experts", count);
            draft.set("top_k_experts", used);
            draft.set_some("moe_intermediate_size", width);
        }
        _ => {
            draft.set("num_experts", count);
            draft.set("num_experts_per_tok", used);
            draft.set_some("moe_intermediate_size", width);
            draft.set("norm_topk_prob", true);
            let dense = (0..outline.layers).filter(|&layer| !outline.has(layer, "ffn_gate_inp"));
            draft.set("mlp_only_layers", dense.collect::<Vec<_>>());
        }
    }
    if let Some(shape) = outline.shape("ffn_down_shexp") {
        let width = outline.u64("expert_shared_feed_forward_length")?.or(last(shape));
        draft.set_some("shared_expert_intermediate_size", width);
    }
    // Softmax before or after the choice is the same, since what is chosen is brought to a sum of one.
    if !matches!(outline.u64("expert_gating_func")?, None | Some(0 | 1 | 3)) {
        return Err(outline.refuse("expert_gating_func", "1 or 3 (softmax) for this architecture"));
    }
    let scale = outline.f64("expert_weights_scale")?;
    if scale.is_some_and(|scale| scale != 0.0 && scale != 1.0) {
        return Err(outline.refuse("expert_weights_scale", "1 for this architecture"));
    }
    Ok(())
}

fn last(shape: &[usize]) -> Option<u64> {
    shape.last().map(|&last| last as u64)
}

/// Gated delta net layers between those that attend.
fn hybrid(outline: &Outline<'_>, draft: &mut Draft) -> Result<()> {
    let value_heads = outline.require("ssm.time_step_rank")?;
    let inner = outline.require("ssm.inner_size")?;
    if value_heads == 0 || !inner.is_multiple_of(value_heads) {
        return Err(outline.refuse("ssm.inner_size", "a multiple of `ssm.time_step_rank`"));
    }
    draft.set("linear_num_value_heads", value_heads);
    draft.set("linear_value_head_dim", inner / value_heads);
    draft.set("linear_num_key_heads", outline.require("ssm.group_count")?);
    draft.set("linear_key_head_dim", outline.require("ssm.state_size")?);
    draft.set("linear_conv_kernel_dim", outline.require("ssm.conv_kernel")?);
    let kind = |layer| if outline.is_delta(layer) { "linear_attention" } else { "full_attention" };
    draft.set("layer_types", (0..outline.layers).map(kind).collect::<Vec<_>>());
    Ok(())
}

/// The window, and the layers that have it.
fn window(outline: &Outline<'_>, draft: &mut Draft) -> Result<()> {
    draft.set_some("sliding_window", outline.u64("attention.sliding_window")?);
    let kind = |layer: usize| match outline.attention[layer].slides {
        true => "sliding_attention",
        false => "full_attention",
    };
    draft.set("layer_types", (0..outline.layers).map(kind).collect::<Vec<_>>());
    Ok(())
}

/// Layers of the 27B, whose attention is scaled otherwise than by the size of a head.
const GEMMA3_27B_LAYERS: usize = 62;

fn gemma3(outline: &Outline<'_>, draft: &mut Draft) -> Result<()> {
    window(outline, draft)?;
    let first = outline.attention[0];
    let scalar = match outline.layers {
        GEMMA3_27B_LAYERS => outline.require("embedding_length")? / (first.heads.max(1) as u64),
        _ => first.head_dim as u64,
    };
    draft.set("query_pre_attn_scalar", scalar);
    draft.set_some("final_logit_softcapping", softcap(outline)?);
    Ok(())
}

fn gemma4(outline: &Outline<'_>, draft: &mut Draft) -> Result<()> {
    window(outline, draft)?;
    draft.set_some("final_logit_softcapping", softcap(outline)?);
    draft.set_some("num_kv_shared_layers", outline.u64("attention.shared_kv_layers")?);
    let heads = outline.attention[..outline.layers].iter().enumerate().map(|(layer, a)| {
        let heads = json!({ "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim });
        (layer.to_string(), heads)
    });
    draft.set("per_layer_config", heads.collect::<Map<_, _>>());
    // Where keys serve as values, there is no projection of them.
    let shared = outline.u64("attention.shared_kv_layers")?.unwrap_or(0);
    let own = outline.layers.saturating_sub(usize::try_from(shared).unwrap_or(usize::MAX));
    let lacks_values = |layer: usize| {
        let attends = outline.has(layer, "attn_k") && !outline.attention[layer].slides;
        attends && !outline.has(layer, "attn_v")
    };
    draft.set("attention_k_eq_v", (0..own).any(lacks_values));
    let width = outline.u64("embedding_length_per_layer_input")?.filter(|&width| width > 0);
    if let Some(width) = width {
        draft.set("hidden_size_per_layer_input", width);
        let table = outline.tensor("per_layer_token_embd.weight");
        let rows = table.and_then(|table| table.shape.first().copied());
        draft.set_some("vocab_size_per_layer_input", rows);
    }
    Ok(())
}

/// The bound of the logits; zero means none.
fn softcap(outline: &Outline<'_>) -> Result<Option<f64>> {
    Ok(outline.f64("final_logit_softcapping")?.filter(|&cap| cap != 0.0))
}
