//! config.json: one view over `text_config` and the top level.

use std::path::Path;

use checkpoint::{Checkpoint, Config, Mode, Scheme};

use crate::support::{files, raw_file};

fn parse(json: &str) -> Config {
    Config::parse(json.as_bytes(), Path::new("config.json")).unwrap()
}

#[test]
fn text_config_comes_first_and_null_is_absent() {
    let config = parse(
        r#"{"model_type": "qwen3_5_moe", "hidden_size": 1, "tie_word_embeddings": true, "n": 7.0,
            "text_config": {"model_type": "qwen3_5_moe_text", "hidden_size": 2, "n": null,
                            "rope_parameters": {"rope_theta": 10000000, "mrope_section": [3, 3, 2]},
                            "layer_types": ["a", "b"], "rms_norm_eps": 1e-6}}"#,
    );
    assert_eq!(config.usize("hidden_size"), Some(2));
    assert_eq!(config.usize("n"), Some(7));
    assert_eq!(config.bool("tie_word_embeddings"), Some(true));
    assert_eq!(config.f64("rope_parameters.rope_theta"), Some(1e7));
    assert_eq!(config.usize_list("rope_parameters.mrope_section"), Some(vec![3, 3, 2]));
    assert_eq!(config.str_list("layer_types"), Some(vec!["a", "b"]));
    assert_eq!(config.usize_list("layer_types"), None);
    assert_eq!(config.f64("rms_norm_eps"), Some(1e-6));
    assert_eq!(config.usize("rms_norm_eps"), None);
    assert!(config.quantization().is_none());
    let error = |result: checkpoint::Result<usize>| result.unwrap_err().to_string();
    assert_eq!(
        error(config.require_usize("layers")),
        "config.json: \"layers\": expected a whole number, got nothing"
    );
    assert_eq!(
        error(config.require_usize("layer_types")),
        "config.json: \"layer_types\": expected a whole number, got [\"a\",\"b\"]"
    );
}

#[test]
fn model_types_lose_their_text() {
    for (json, model, text) in [
        (r#"{"model_type": "gemma4_text"}"#, "gemma4", "gemma4"),
        (r#"{"model_type": "mixtral"}"#, "mixtral", "mixtral"),
        (r#"{"text_config": {"model_type": "qwen3_5_text"}}"#, "qwen3_5", "qwen3_5"),
        (
            r#"{"model_type": "kimi_k25", "text_config": {"model_type": "deepseek_v3"}}"#,
            "kimi_k25",
            "deepseek_v3",
        ),
    ] {
        let config = parse(json);
        assert_eq!((config.model_type(), config.text_model_type()), (model, text));
    }
}

#[test]
fn end_tokens_are_gathered_from_everywhere() {
    let config =
        r#"{"model_type": "x", "eos_token_id": [3, 4], "text_config": {"eos_token_id": 4}}"#;
    assert_eq!(parse(config).eos_token_ids(), [4, 3]);
    let list = files(&[
        ("config.json", config.as_bytes()),
        ("generation_config.json", br#"{"eos_token_id": [3, 9, -1, 1e30, "x"]}"#),
        ("model.safetensors", &raw_file("{}", 0)),
    ]);
    assert_eq!(Checkpoint::from_owned(list).unwrap().eos_token_ids().unwrap(), [4, 3, 9]);
    assert!(parse(r#"{"model_type": "x", "eos_token_id": null}"#).eos_token_ids().is_empty());
}

#[test]
fn quantization_is_a_default_and_exceptions() {
    let json = r#"{"model_type": "x", "quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4",
        "model.layers.0.mlp.gate": {"bits": 8, "group_size": 64}, "model.norm": false,
        "note": "made by hand", "lm_head": {"mode": "nvfp4"}}}"#;
    let config = parse(json);
    let quantization = config.quantization().unwrap();
    assert_eq!(quantization.exception_count(), 3);
    let scheme = |path| quantization.scheme(path).map(|scheme| scheme.to_string());
    for path in ["model.layers.0.mlp.gate", "language_model.model.layers.0.mlp.gate"] {
        assert_eq!(scheme(path).as_deref(), Some("affine 8-bit group 64"));
    }
    // Another layer, or a name that merely ends alike, is not meant.
    for path in ["model.layers.10.mlp.gate", "model.layers.0.mlp.up_gate", "gate", "mlp.gate"] {
        assert_eq!(scheme(path).as_deref(), Some("mxfp4"));
        assert_eq!(quantization.exception(path), None);
    }
    assert_eq!(scheme("model.norm"), None);
    let nvfp4 = Scheme { bits: 4, group: 16, mode: Mode::Nvfp4 };
    assert_eq!(quantization.scheme("language_model.lm_head"), Some(nvfp4));
}

#[test]
fn quantization_in_other_words_is_not_ours() {
    let gptq = r#"{"model_type": "x",
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1}}"#;
    assert!(parse(gptq).quantization().is_none());
    let copy = r#"{"model_type": "x", "quantization_config": {"bits": 3, "group_size": 64}}"#;
    assert_eq!(parse(copy).quantization().unwrap().default.bits, 3);
}
