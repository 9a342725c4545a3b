//! Keys of the rotation to `rope_parameters`.

use serde_json::{Map, Value, json};

use super::architecture::Family;
use super::outline::Outline;
use crate::{Error, Result};

/// The base where a file says none.
const THETA: f64 = 10_000.0;

/// Rotations of a model: one, or one for each kind of layer.
pub(super) fn parameters(outline: &Outline<'_>) -> Result<Value> {
    refuse_long(outline)?;
    let theta = outline.f64("rope.freq_base")?;
    // Ollama's words.
    let theta = theta.or(outline.f64("rope.global.freq_base")?).unwrap_or(THETA);
    let full = outline.attention.iter().find(|layer| !layer.slides);
    let sliding = outline.attention.iter().find(|layer| layer.slides);
    let head_dim = |layer: Option<&super::outline::Attention>| {
        layer.or(outline.attention.first()).map_or(0, |layer| layer.head_dim)
    };
    let mut all = scaling(outline)?;
    all.insert("rope_theta".to_owned(), json!(theta));
    let rotated = partial(outline, "rope.dimension_count", head_dim(full))?;
    all.extend(rotated.clone());
    if !matches!(outline.family(), Family::Gemma3 | Family::Gemma4) {
        return Ok(Value::Object(all));
    }
    let local = outline.f64("rope.freq_base_swa")?.or(outline.f64("rope.local.freq_base")?);
    let mut local = Map::from_iter([
        ("rope_type".to_owned(), json!("default")),
        ("rope_theta".to_owned(), json!(local.unwrap_or(THETA))),
    ]);
    local.extend(partial(outline, "rope.dimension_count_swa", head_dim(sliding))?);
    Ok(json!({ "full_attention": all, "sliding_attention": local }))
}

/// The share of a head that turns, where it is not all of it.
fn partial(outline: &Outline<'_>, key: &str, head_dim: usize) -> Result<Map<String, Value>> {
    let Some(turning) = outline.u64(key)? else { return Ok(Map::new()) };
    if turning == 0 || turning > head_dim as u64 {
        return Err(outline.refuse(key, "some dimensions of a head, or all of them"));
    }
    let mut share = turning as f64 / head_dim as f64;
    // The share times the head is cut to a whole number later, which must not be one less.
    if ((head_dim as f64 * share) as u64) < turning {
        share = share.next_up();
    }
    let is_whole = turning == head_dim as u64;
    Ok(match is_whole {
        true => Map::new(),
        false => Map::from_iter([("partial_rotary_factor".to_owned(), json!(share))]),
    })
}

/// How positions beyond the original context are handled.
fn scaling(outline: &Outline<'_>) -> Result<Map<String, Value>> {
    let factor = outline.f64("rope.scaling.factor")?.or(outline.f64("rope.scale_linear")?);
    // A factor alone means linear; zero and one mean none.
    let factor = factor.filter(|&factor| factor != 0.0);
    let kind = match (outline.str("rope.scaling.type"), factor) {
        (Some("none"), _) | (None | Some("linear"), None) => "default",
        (None | Some("linear"), Some(1.0)) => "default",
        (None | Some("linear"), Some(_)) => "linear",
        (Some("yarn"), _) => "yarn",
        _ => return Err(outline.refuse("rope.scaling.type", "none, linear or yarn")),
    };
    let mut table = Map::from_iter([("rope_type".to_owned(), json!(kind))]);
    let mut set = |key: &str, value: Option<f64>| {
        if let Some(value) = value {
            table.insert(key.to_owned(), json!(value));
        }
    };
    if kind == "linear" {
        set("factor", factor);
    }
    if kind != "yarn" {
        return Ok(table);
    }
    let key = "rope.scaling.factor";
    let factor = factor.ok_or_else(|| outline.refuse(key, "a number, which yarn needs"))?;
    set("factor", Some(factor));
    let original = outline.f64("rope.scaling.original_context_length")?;
    set("original_max_position_embeddings", original);
    set("beta_fast", outline.f64("rope.scaling.yarn_beta_fast")?);
    set("beta_slow", outline.f64("rope.scaling.yarn_beta_slow")?);
    // llama.cpp multiplies the usual magnitude with it; the HF key stands in its place.
    let magnitude = outline.f64("rope.scaling.attn_factor")?.filter(|&magnitude| magnitude != 1.0);
    set("attention_factor", magnitude.map(|magnitude| magnitude * (0.1 * factor.ln() + 1.0)));
    let key = "rope.scaling.yarn_log_multiplier";
    if outline.f64(key)?.is_some_and(|multiplier| multiplier != 0.0) {
        return Err(outline.refuse(key, "none for this architecture"));
    }
    if outline.family() == Family::GptOss {
        // The range of pairs is not rounded in this family, which GGUF does not say.
        table.insert("truncate".to_owned(), json!(false));
    }
    Ok(table)
}

/// Two sets of factors by the length of the text are not computed.
fn refuse_long(outline: &Outline<'_>) -> Result<()> {
    let names = ["rope_factors_long.weight", "rope_factors_short.weight"];
    match names.iter().find(|name| outline.tensor(name).is_some()) {
        Some(name) => Err(Error::Config {
            path: outline.metadata.path().to_owned(),
            key: (*name).to_owned(),
            expected: "no factors by length (longrope)",
            got: "a tensor".to_owned(),
        }),
        None => Ok(()),
    }
}
