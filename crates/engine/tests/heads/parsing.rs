//! What is a head, what is none, and what is refused.

use checkpoint::Checkpoint;
use compute::AttentionShape;
use compute::memory::{KvCode, KvFormat};
use model::{DecoderSpec, HeadSpec, in_format};
use serde_json::{Value, json};
use state::LayerKind;

use crate::rig::{draft_checkpoint, with_file};
use crate::weights::{
    DflashShape, Experts, Values, Weights, dflash_config, dflash_weights, mtp_weights,
};

fn target() -> (Checkpoint, DecoderSpec) {
    let checkpoint = with_file("qwen3_5_moe-f32", &mtp_weights(96, Experts::Fused));
    let spec = model::arch::spec(&checkpoint).expect("a spec");
    (checkpoint, spec)
}

#[test]
fn an_mtp_head_is_found_under_every_prefix() {
    let weights = mtp_weights(96, Experts::Fused);
    for prefix in ["", "language_model.", "model.", "model.language_model."] {
        let named =
            weights.iter().map(|(name, values)| (format!("{prefix}{name}"), values.clone()));
        let checkpoint = with_file("qwen3_5_moe-f32", &named.collect());
        let spec = model::arch::spec(&checkpoint).expect("a spec");
        let head = HeadSpec::mtp(&checkpoint, &spec).expect(prefix).expect(prefix);
        assert_eq!(head.name(), "MTP");
        assert!(head.features().hidden && head.features().width == 96 && !head.is_block());
        let floats: usize = weights.values().map(|values| values.data.len()).sum();
        assert_eq!(head.bytes(), 4 * floats as u64);
        let pages = AttentionShape::new(2, 1, 64, 64).pages(KvFormat::F16);
        let kv = LayerKind::kv(pages, None);
        assert_eq!(head.layers(&[KvCode::plain(KvFormat::F16)]), std::slice::from_ref(&kv));
        let layout = head.layout(&spec, &in_format(KvFormat::F16)).expect("a layout");
        assert_eq!(layout.layers()[2..], [kv]);
    }
}

#[test]
fn a_model_without_one_has_none() {
    let none = Weights::from([("other.weight".into(), Values { shape: vec![1], data: vec![0.0] })]);
    let checkpoint = with_file("qwen3_5_moe-f32", &none);
    let spec = model::arch::spec(&checkpoint).expect("a spec");
    assert!(HeadSpec::mtp(&checkpoint, &spec).expect("no error").is_none());
}

#[test]
fn an_mtp_head_that_lacks_something_is_refused() {
    for missing in ["norm.weight", "layers.0.self_attn.k_norm.weight", "layers.0.mlp.gate.weight"] {
        let mut weights = mtp_weights(96, Experts::Fused);
        weights.remove(&format!("mtp.{missing}")).expect(missing);
        let checkpoint = with_file("qwen3_5_moe-f32", &weights);
        let spec = model::arch::spec(&checkpoint).expect("a spec");
        let error = HeadSpec::mtp(&checkpoint, &spec).expect_err(missing).to_string();
        assert!(error.contains(missing), "{error}");
    }
}

#[test]
fn a_dflash_draft_is_read_from_either_level_and_prefix() {
    let (_, target) = target();
    let shape = DflashShape::default();
    let weights = dflash_weights(&shape);
    let mut flat = dflash_config(&shape);
    let inner = flat["dflash_config"].take();
    flat["target_layer_ids"] = inner["target_layer_ids"].clone();
    flat["mask_token_id"] = inner["mask_token_id"].clone();
    let mut nested = dflash_config(&shape);
    // What is inside counts.
    nested["dflash_config"]["block_size"] = 8.into();
    nested["block_size"] = 16.into();
    nested["mask_token_id"] = 3.into();
    for config in [dflash_config(&shape), flat, nested] {
        for prefix in ["", "model."] {
            let named = weights.iter().map(|(name, v)| (format!("{prefix}{name}"), v.clone()));
            let draft = draft_checkpoint(&config, &named.collect());
            let head = HeadSpec::dflash(&draft, &target).expect("a head");
            assert_eq!((head.name(), head.reach(), head.is_block()), ("DFlash", 7, true));
            assert_eq!(head.features().taps, [1, 0]);
            assert_eq!(head.features().width, 2 * 96);
            let floats: usize = weights.values().map(|values| values.data.len()).sum();
            assert_eq!(head.bytes(), 4 * floats as u64);
            let pages = AttentionShape::new(4, 2, 32, 32).pages(KvFormat::F16);
            let kv = |window| LayerKind::kv(pages.clone(), window);
            assert_eq!(
                head.layers(&[KvCode::plain(KvFormat::F16)]),
                [kv(Some(24)), kv(None), kv(Some(24))]
            );
        }
    }
}

#[test]
fn a_target_that_can_be_cut_stays_so() {
    let shape = DflashShape::default();
    let draft = draft_checkpoint(&dflash_config(&shape), &dflash_weights(&shape));
    let checkpoint = with_file("qwen3-f32", &Weights::new());
    let target = model::arch::spec(&checkpoint).expect("a spec");
    let head = HeadSpec::dflash(&draft, &target).expect("a head");
    assert!(head.layout(&target, &in_format(KvFormat::F16)).expect("a layout").is_rewindable());
}

#[track_caller]
fn refused(edit: impl FnOnce(&mut Value, &mut Weights), expect: &str) {
    let (_, target) = target();
    let shape = DflashShape::default();
    let (mut config, mut weights) = (dflash_config(&shape), dflash_weights(&shape));
    edit(&mut config, &mut weights);
    let draft = draft_checkpoint(&config, &weights);
    let error = HeadSpec::dflash(&draft, &target).expect_err(expect).to_string();
    assert!(error.contains(expect), "{error:?} should say {expect:?}");
}

#[test]
fn drafts_for_another_model_or_of_another_kind_are_refused() {
    let inner = |key: &'static str, value: Value| {
        move |config: &mut Value, _: &mut Weights| config["dflash_config"][key] = value
    };
    let outer = |key: &'static str, value: Value| {
        move |config: &mut Value, _: &mut Weights| config[key] = value
    };
    refused(inner("target_layer_ids", Value::Null), "`target_layer_ids` is nothing");
    refused(inner("target_layer_ids", json!([])), "`target_layer_ids` is []");
    refused(inner("target_layer_ids", json!([0, 2])), "its `target_layer_ids` is [0, 2]");
    refused(inner("mask_token_id", Value::Null), "`mask_token_id` is nothing");
    refused(
        inner("mask_token_id", json!(256)),
        "`mask_token_id` is 256, expected a token below 256",
    );
    refused(outer("hidden_size", json!(64)), "its `hidden_size` is 64, the model's is 96");
    refused(outer("vocab_size", json!(300)), "its `vocab_size` is 300, the model's is 256");
    refused(
        outer("num_target_layers", json!(40)),
        "its `num_target_layers` is 40, the model's is 2",
    );
    refused(outer("block_size", json!(1)), "`block_size` is 1, expected 2 to 64");
    refused(outer("block_size", Value::Null), "`block_size` is nothing");
    refused(outer("sliding_window", Value::Null), "`sliding_window` is nothing");
    refused(outer("input_embedding_scale", json!(9.5)), "`input_embedding_scale` is 9.5");
    let without =
        |name: &'static str| move |_: &mut Value, weights: &mut Weights| drop(weights.remove(name));
    refused(without("fc.weight"), "fc.weight");
    refused(without("layers.2.self_attn.v_proj.weight"), "layers.2.self_attn.v_proj");
    let with = |name: &'static str| {
        move |_: &mut Value, weights: &mut Weights| {
            weights.insert(name.into(), Values { shape: vec![1], data: vec![0.0] });
        }
    };
    refused(with("candidate_selector.hidden_projection.weight"), "belongs to DFlash 2");
    refused(with("markov_head.markov_w1"), "belongs to DSpark");
}
