//! What the numbers of a config.json may be: one table, looked at before anything is computed from them.
//!
//! A config is untrusted input. Its sizes make rotation tables, loops over layers and products that
//! decide how much is allocated, long before a tensor disagrees. So each size has a maximum here, some times
//! what any published model has, chosen so that no product of a few of them overflows; the shapes of the
//! tensors are the second check, where weights are looked up. Keys that are not in the table decide nothing.

use checkpoint::Config;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The most layers. Published models have up to 126.
const LAYERS: u64 = 1024;
/// The widest stream, and the widest layer of a feed-forward. Published: 18,432 and 53,248.
const WIDTH: u64 = 1 << 18;
/// The most heads. Published: 128.
const HEADS: u64 = 1024;
/// The most dimensions of a head. Published: 512.
const HEAD_DIMENSIONS: u64 = 4096;
/// The most experts of a layer. Published: 512.
const EXPERTS: u64 = 4096;
/// The largest vocabulary. Published: 262,400.
const TOKENS: u64 = 1 << 21;
/// The longest context. Published: 10 million.
const POSITIONS: u64 = 1 << 30;

/// Whole numbers and the most they may be.
const SIZES: [(&str, u64); 35] = [
    ("hidden_size", WIDTH),
    ("intermediate_size", WIDTH),
    ("moe_intermediate_size", WIDTH),
    ("shared_expert_intermediate_size", WIDTH),
    ("hidden_size_per_layer_input", WIDTH),
    ("num_hidden_layers", LAYERS),
    ("num_kv_shared_layers", LAYERS),
    ("mtp_num_hidden_layers", LAYERS),
    ("num_target_layers", LAYERS),
    ("max_window_layers", LAYERS),
    ("full_attention_interval", LAYERS),
    ("sliding_window_pattern", LAYERS),
    ("decoder_sparse_step", LAYERS),
    ("num_attention_heads", HEADS),
    ("num_key_value_heads", HEADS),
    ("num_global_key_value_heads", HEADS),
    ("linear_num_key_heads", HEADS),
    ("linear_num_value_heads", HEADS),
    ("head_dim", HEAD_DIMENSIONS),
    ("global_head_dim", HEAD_DIMENSIONS),
    ("linear_key_head_dim", HEAD_DIMENSIONS),
    ("linear_value_head_dim", HEAD_DIMENSIONS),
    // Published: 4.
    ("linear_conv_kernel_dim", 64),
    ("num_experts", EXPERTS),
    ("num_local_experts", EXPERTS),
    ("num_experts_per_tok", EXPERTS),
    ("experts_per_token", EXPERTS),
    ("top_k_experts", EXPERTS),
    ("vocab_size", TOKENS),
    ("vocab_size_per_layer_input", TOKENS),
    ("mask_token_id", TOKENS),
    ("max_position_embeddings", POSITIONS),
    ("original_max_position_embeddings", POSITIONS),
    ("sliding_window", POSITIONS),
    ("block_size", POSITIONS),
];

/// Numbers, and the least and the most they may be. Far beyond, they become infinite as 32-bit floats.
const NUMBERS: [(&str, f64, f64); 14] = [
    ("rms_norm_eps", 0.0, 1.0),
    ("rope_theta", 1e-3, 1e12),
    ("rope_local_base_freq", 1e-3, 1e12),
    ("partial_rotary_factor", 0.0, 1.0),
    ("factor", 1e-6, 1e6),
    ("attention_factor", 0.0, 1e6),
    ("low_freq_factor", 1e-6, 1e6),
    ("high_freq_factor", 1e-6, 1e6),
    ("beta_fast", 1e-6, 1e6),
    ("beta_slow", 1e-6, 1e6),
    ("mscale", -1e6, 1e6),
    ("mscale_all_dim", -1e6, 1e6),
    ("query_pre_attn_scalar", 1e-6, 1e9),
    ("final_logit_softcapping", 0.0, 1e9),
];

/// Lists, and the most entries they may have.
const LISTS: [(&str, usize); 3] = [
    ("layer_types", LAYERS as usize),
    ("mlp_only_layers", LAYERS as usize),
    ("target_layer_ids", LAYERS as usize),
];

/// Tables within a config that are read; others belong to parts that are not, such as `vision_config`.
const TABLES: [&str; 5] =
    ["text_config", "rope_parameters", "rope_scaling", "per_layer_config", "dflash_config"];

/// Of these, those with a table for each kind of layer, or for each layer.
const TABLES_OF_TABLES: [&str; 2] = ["rope_parameters", "per_layer_config"];

/// Longest value that an error shows whole.
const SHOWN_CHARS: usize = 60;

/// Refuses a config with a size, number or list beyond what any model has.
pub(crate) fn check(config: &Config) -> Result<()> {
    check_table(config, "", config.root(), false)?;
    let layers = config.usize("num_hidden_layers");
    let types = config.list("layer_types").map(<[Value]>::len);
    match (layers, types) {
        (Some(layers), Some(types)) if types < layers => {
            let expected = format!("at least {layers} entries, as many as num_hidden_layers");
            Err(refuse(config, "layer_types", expected, format!("a list of {types}")))
        }
        _ => Ok(()),
    }
}

/// A table and those in it. `holds_tables`: whatever is an object in it counts, under any key.
fn check_table(
    config: &Config,
    path: &str,
    table: &Map<String, Value>,
    holds_tables: bool,
) -> Result<()> {
    for (key, value) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            Value::Null => {}
            Value::Object(inner) if holds_tables || TABLES.contains(&key.as_str()) => {
                // Nothing is read below a table of tables' own tables.
                let holds_tables = !holds_tables && TABLES_OF_TABLES.contains(&key.as_str());
                check_table(config, &path, inner, holds_tables)?;
            }
            value => check_value(config, &path, key, value)?,
        }
    }
    Ok(())
}

fn check_value(config: &Config, path: &str, key: &str, value: &Value) -> Result<()> {
    let refuse = |expected: String| Err(refuse(config, path, expected, shown(value)));
    if let Some((_, most)) = SIZES.iter().find(|(name, _)| *name == key) {
        // Some converters write every number as a float.
        let is_size = match value.as_u64() {
            Some(size) => size <= *most,
            None => value
                .as_f64()
                .is_some_and(|size| size.fract() == 0.0 && (0.0..=*most as f64).contains(&size)),
        };
        if !is_size {
            return refuse(format!("a whole number from 0 to {most}"));
        }
    }
    if let Some((_, least, most)) = NUMBERS.iter().find(|(name, ..)| *name == key)
        && !value.as_f64().is_some_and(|number| (*least..=*most).contains(&number))
    {
        return refuse(format!("a number from {least} to {most}"));
    }
    if let Some((_, most)) = LISTS.iter().find(|(name, _)| *name == key)
        && !value.as_array().is_some_and(|list| list.len() <= *most && list.iter().all(is_plain))
    {
        return refuse(format!("a list of at most {most} names or numbers"));
    }
    Ok(())
}

/// What a list may hold.
fn is_plain(value: &Value) -> bool {
    value.is_string() || value.is_u64()
}

fn refuse(config: &Config, key: &str, expected: String, got: String) -> Error {
    Error::ConfigValue { path: config.path().to_owned(), key: key.to_owned(), expected, got }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "a table".to_owned(),
        value => {
            let text = value.to_string();
            match text.char_indices().nth(SHOWN_CHARS) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[track_caller]
    fn check_config(json: &str, expect: std::result::Result<(), &str>) {
        let config = Config::parse(json.as_bytes(), Path::new("config.json")).expect("a config");
        match (check(&config), expect) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(expect)) => assert_eq!(error.to_string(), expect),
            (got, expect) => panic!("{json}: {got:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn sizes_have_a_maximum_at_every_level_that_is_read() {
        let check = |table: &str, expect| {
            check_config(&format!(r#"{{"model_type": "llama", {table}}}"#), expect);
        };
        check(r#""head_dim": 4096, "hidden_size": 8192.0, "vocab_size": null"#, Ok(()));
        check(
            r#""head_dim": 9007199254740992"#,
            Err(
                "config.json: `head_dim` is 9007199254740992, expected a whole number from 0 to 4096",
            ),
        );
        check(
            r#""text_config": {"hidden_size": 4294967296}"#,
            Err(
                "config.json: `text_config.hidden_size` is 4294967296, expected a whole number from 0 to 262144",
            ),
        );
        check(
            r#""per_layer_config": {"3": {"head_dim": -2}}"#,
            Err(
                "config.json: `per_layer_config.3.head_dim` is -2, expected a whole number from 0 to 4096",
            ),
        );
        check(
            r#""num_experts": "8""#,
            Err("config.json: `num_experts` is \"8\", expected a whole number from 0 to 4096"),
        );
        check(
            r#""num_hidden_layers": 1.5"#,
            Err("config.json: `num_hidden_layers` is 1.5, expected a whole number from 0 to 1024"),
        );
        // Another part's width is none of ours.
        check(r#""vision_config": {"hidden_size": [1, 2]}"#, Ok(()));
    }

    #[test]
    fn numbers_stay_finite_as_floats() {
        let check = |table: &str, expect| {
            check_config(&format!(r#"{{"model_type": "llama", {table}}}"#), expect);
        };
        check(
            r#""rms_norm_eps": 1e-6, "rope_scaling": {"factor": 32, "rope_type": "yarn"}"#,
            Ok(()),
        );
        check(
            r#""rms_norm_eps": 1e308"#,
            Err("config.json: `rms_norm_eps` is 1e+308, expected a number from 0 to 1"),
        );
        check(
            r#""rope_parameters": {"full_attention": {"factor": 0}}"#,
            Err(
                "config.json: `rope_parameters.full_attention.factor` is 0, expected a number from 0.000001 to 1000000",
            ),
        );
    }

    #[test]
    fn lists_are_as_long_as_there_are_layers() {
        let types = |count: usize| vec!["\"full_attention\""; count].join(", ");
        let config = |layers: usize, count: usize| {
            format!(
                r#"{{"model_type": "x", "num_hidden_layers": {layers}, "layer_types": [{}]}}"#,
                types(count)
            )
        };
        check_config(&config(3, 3), Ok(()));
        check_config(&config(3, 4), Ok(()));
        check_config(
            &config(3, 2),
            Err(
                "config.json: `layer_types` is a list of 2, expected at least 3 entries, as many as num_hidden_layers",
            ),
        );
        check_config(
            &config(3, 1025),
            Err(
                "config.json: `layer_types` is a list of 1025, expected a list of at most 1024 names or numbers",
            ),
        );
        check_config(
            r#"{"model_type": "x", "mlp_only_layers": [[]]}"#,
            Err(
                "config.json: `mlp_only_layers` is a list of 1, expected a list of at most 1024 names or numbers",
            ),
        );
    }
}
