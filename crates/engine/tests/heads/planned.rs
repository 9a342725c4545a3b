//! The plan charges a head, and what it charges is enough.

use std::sync::Arc;

use model::HeadSpec;
use runtime::{HeadOptions, Plan, PlanRequest};

use crate::rig::{Rig, draft_checkpoint, tokens, with_file};
use crate::weights::{
    DflashShape, Experts, Weights, dflash_config, dflash_weights, minus_one, mtp_weights,
};

#[test]
fn a_plan_with_a_head_has_its_weights_its_positions_and_its_activations() {
    let checkpoint = with_file("qwen3_5_moe-f32", &Weights::new());
    let spec = model::arch::spec(&checkpoint).expect("a spec");
    let shape = DflashShape::default();
    let draft = draft_checkpoint(&dflash_config(&shape), &dflash_weights(&shape));
    let head = Arc::new(HeadSpec::dflash(&draft, &spec).expect("a head"));
    let head = HeadOptions { spec: Arc::clone(&head), checkpoint: Some(Arc::new(draft)) };
    let request = PlanRequest {
        memory_bytes: Some(4 << 30),
        context: Some(1024),
        chunk: Some(128),
        threads: Some(2),
        ..PlanRequest::default()
    };
    let without = Plan::new(&spec, &request).expect("a plan");
    let with = Plan::with_head(&spec, &request, Some(head.clone())).expect("a plan");
    let bytes = |plan: &Plan, name: &str| {
        plan.rows.iter().find(|row| row.name == name).map_or(0, |row| row.bytes)
    };
    assert_eq!(bytes(&with, "draft head"), head.spec.bytes());
    assert_eq!(bytes(&without, "draft head"), 0);
    // One full layer and two windows of 24, two heads of 32, f16 keys and values.
    let page = 64 * 2 * 32 * 2 * 2;
    let more = bytes(&with, "keys and values") - bytes(&without, "keys and values");
    assert_eq!(more, page * (16 + 2 * (4 + 2)));
    assert!(bytes(&with, "activations") > bytes(&without, "activations"));
    let added = |name| bytes(&with, name) - bytes(&without, name);
    let sum = added("draft head") + added("keys and values") + added("activations");
    assert_eq!(with.total_bytes - without.total_bytes, sum);
    assert!(with.options.head.is_some());
}

#[test]
fn the_largest_steps_stay_inside_what_was_planned() {
    // The backend panics where a step wants more activations than were planned.
    let request = PlanRequest {
        memory_bytes: Some(4 << 30),
        context: Some(512),
        chunk: Some(256),
        sequences: Some(3),
        threads: Some(2),
        ..PlanRequest::default()
    };
    let shape = DflashShape { block_size: 64, ..DflashShape::default() };
    let mtp = minus_one(&mtp_weights(96, Experts::Fused));
    let checkpoint = with_file("qwen3_5_moe-f32", &mtp);
    let spec = model::arch::spec(&checkpoint).expect("a spec");
    let plan = Plan::new(&spec, &request).expect("a plan");
    let rigs = [
        Rig::mtp_stored("qwen3_5_moe-f32", &mtp, &plan.options),
        Rig::dflash_with("qwen3_5_moe-f32", &shape, &dflash_weights(&shape), &plan.options),
    ];
    for mut rig in rigs {
        let mut tracks: Vec<_> = (0..3)
            .map(|seed| {
                let mut track = rig.track();
                rig.feed(&mut track, &tokens(seed, 256), &[]);
                track
            })
            .collect();
        let mut all: Vec<_> = tracks.iter_mut().collect();
        let drafts = rig.draft_all(&mut all, &[(1, 64), (2, 64), (3, 64)]);
        let reach = rig.runner.head().expect("a head").spec().reach();
        assert!(drafts.iter().all(|draft| draft.len() == reach));
    }
}
