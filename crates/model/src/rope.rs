//! The rotation a config describes: `rope_parameters` (transformers 5), `rope_scaling` and `rope_theta`.

use std::sync::Arc;

use checkpoint::Config;
use compute::{Rope, Yarn};
use serde_json::Value;

use crate::{Error, Result};

/// The rotation of heads of `head_dim`. `default_theta` is used when the config names none.
pub(crate) fn rope(config: &Config, head_dim: usize, default_theta: f64) -> Result<Arc<Rope>> {
    let parameters = config.value("rope_parameters").filter(|v| v.is_object());
    let scaling = parameters.or_else(|| config.value("rope_scaling").filter(|v| v.is_object()));
    rope_of(config, scaling, head_dim, default_theta)
}

/// The same where `rope_parameters` has a table for each kind of layer; `None` where it has none for this one.
pub(crate) fn rope_of_kind(
    config: &Config,
    kind: &str,
    head_dim: usize,
    default_theta: f64,
) -> Result<Option<Arc<Rope>>> {
    let table = config.value(&format!("rope_parameters.{kind}")).filter(|v| v.is_object());
    table.map(|table| rope_of(config, Some(table), head_dim, default_theta)).transpose()
}

/// The rotation that a table of parameters describes.
fn rope_of(
    config: &Config,
    scaling: Option<&Value>,
    head_dim: usize,
    default_theta: f64,
) -> Result<Arc<Rope>> {
    let number = |key: &str| scaling.and_then(|s| s.get(key)).and_then(Value::as_f64);
    let theta = number("rope_theta").or_else(|| config.f64("rope_theta")).unwrap_or(default_theta);
    let partial = number("partial_rotary_factor")
        .or_else(|| config.f64("partial_rotary_factor"))
        .unwrap_or(1.0);
    if !(theta > 0.0 && partial > 0.0 && partial <= 1.0) {
        return Err(Error::Config {
            key: "rope_parameters",
            expected: "rope_theta > 0 and 0 < partial_rotary_factor <= 1".into(),
            got: format!("{theta} and {partial}"),
        });
    }
    let dim = ((head_dim as f64 * partial) as usize) & !1;
    if dim == 0 {
        return Err(Error::Config {
            key: "partial_rotary_factor",
            expected: format!("at least two of the {head_dim} dimensions of a head"),
            got: partial.to_string(),
        });
    }
    let kind = scaling
        .and_then(|s| s.get("rope_type").or_else(|| s.get("type")))
        .and_then(Value::as_str)
        .unwrap_or("default");
    let required = |key: &'static str| {
        number(key).ok_or_else(|| Error::Config {
            key: "rope_parameters",
            expected: format!("a number `{key}` for rope_type {kind}"),
            got: "nothing".into(),
        })
    };
    let original = || {
        number("original_max_position_embeddings")
            .or_else(|| config.f64("original_max_position_embeddings"))
            .or_else(|| config.f64("max_position_embeddings"))
            .unwrap_or(4096.0)
    };
    let rope = match kind {
        "default" | "mrope" => Rope::default_theta(dim, theta),
        "linear" => Rope::linear(dim, theta, required("factor")?),
        "proportional" => {
            Rope::proportional(head_dim, theta, partial, number("factor").unwrap_or(1.0))
        }
        "llama3" => Rope::llama3(
            dim,
            theta,
            required("factor")?,
            required("low_freq_factor")?,
            required("high_freq_factor")?,
            original(),
        ),
        "yarn" => {
            let yarn = Yarn {
                factor: required("factor")?,
                original_max_position: original(),
                beta_fast: number("beta_fast").unwrap_or(32.0),
                beta_slow: number("beta_slow").unwrap_or(1.0),
                attention_factor: number("attention_factor"),
                mscale: number("mscale"),
                mscale_all_dim: number("mscale_all_dim"),
                truncate: scaling
                    .and_then(|s| s.get("truncate"))
                    .and_then(Value::as_bool)
                    .unwrap_or(true),
            };
            Rope::yarn(dim, theta, &yarn)
        }
        other => {
            return Err(Error::Config {
                key: "rope_type",
                expected: "default, linear, llama3, proportional or yarn".into(),
                got: other.into(),
            });
        }
    };
    Ok(Arc::new(rope))
}
