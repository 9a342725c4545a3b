//! config.json of a copy: the model's own, unless its table of quantization is wrong about the new names.
//!
//! Our loader believes shapes and only warns by the table; exceptions written for `switch_mlp.down_proj`
//! do not reach `experts.0.down_proj`, and the warning would be false.

use anyhow::{Context, Result};
use checkpoint::{Mode, Projection, Scheme};
use serde_json::{Map, Value, json};

use super::origin::{CONFIG, Origin};
use super::recipe::module;

/// config.json for the copy.
pub(super) fn config(origin: &Origin) -> Result<Vec<u8>> {
    let bytes = origin.checkpoint.read_file(CONFIG)?.context("config.json is gone")?;
    let entries = exceptions(origin);
    if entries.is_empty() {
        return Ok(bytes);
    }
    let mut root: Value = serde_json::from_slice(&bytes).context("config.json is no JSON")?;
    let key = if root["quantization"].is_object() { "quantization" } else { "quantization_config" };
    if let Some(table) = root[key].as_object_mut() {
        table.extend(entries);
    }
    let written = serde_json::to_vec(&root)?;
    // A number that would not be read as it was is worse than a warning too many.
    let same = serde_json::from_slice::<Value>(&written)? == root;
    Ok(if same { written } else { bytes })
}

/// What the table must say of experts, where it does not say so by itself.
fn exceptions(origin: &Origin) -> Map<String, Value> {
    let mut entries = Map::new();
    let Some(table) = origin.checkpoint.config().quantization() else { return entries };
    for (_, moe) in origin.spec.moe_layers() {
        for projection in Projection::ALL {
            let Some(scheme) = checkpoint::Scheme::of(moe.experts.encoding(projection)) else {
                continue;
            };
            for expert in 0..moe.experts.experts() {
                let path = module(&moe.experts, expert, projection);
                if table.scheme(&path) != Some(scheme) {
                    entries.insert(path, entry(scheme));
                }
            }
        }
    }
    entries
}

fn entry(scheme: Scheme) -> Value {
    let mode = match scheme.mode {
        Mode::Affine => "affine",
        Mode::Mxfp4 => "mxfp4",
        Mode::Mxfp8 => "mxfp8",
        Mode::Nvfp4 => "nvfp4",
    };
    json!({ "group_size": scheme.group, "bits": scheme.bits, "mode": mode })
}
