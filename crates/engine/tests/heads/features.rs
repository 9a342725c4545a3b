//! Features are what the target thought: the output head turns them into the target's own logits.

use checkpoint::Checkpoint;
use model::{Batch, Logits, SegmentKind};
use runtime::Runner;

use crate::reference::{logits, rms_norm};
use crate::rig::{Rig, folder, options, tokens};
use crate::weights::{DflashShape, Experts, dflash_weights, mtp_weights};

const MODEL: &str = "qwen3_5_moe-f32";

/// Logits of every position, by a target of the first `layers` layers.
fn target_logits(layers: usize, prompt: &[u32]) -> Vec<Vec<f64>> {
    let read = |name: &str| std::fs::read(folder(MODEL).join(name)).expect("a model's file");
    let mut config: serde_json::Value =
        serde_json::from_slice(&read("config.json")).expect("config.json");
    config["num_hidden_layers"] = layers.into();
    let files = vec![
        ("config.json".to_owned(), config.to_string().into_bytes()),
        ("model.safetensors".to_owned(), read("model.safetensors")),
    ];
    let checkpoint = Checkpoint::from_owned(files).expect("a checkpoint");
    let mut runner = Runner::load(&checkpoint, &options(), &|_, _| {}).expect("a model");
    let mut sequence = runner.sequence().expect("a sequence");
    let mut rows = Vec::new();
    runner
        .feed(&mut sequence, prompt, Logits::All, |_, row| {
            rows.push(row.iter().map(|&x| f64::from(x)).collect());
        })
        .expect("feed");
    rows
}

#[track_caller]
fn check(what: &str, got: &[f64], want: &[f64]) {
    let largest = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-3 * largest, "{what}: {got}, expected {want}");
    }
}

#[test]
fn the_output_head_makes_the_targets_logits_of_them() {
    let (first, second) = (tokens(20, 50), tokens(21, 7));
    let shape = DflashShape::default();
    assert_eq!(shape.taps, [1, 0]);
    let mut rigs = [
        Rig::mtp(MODEL, &mtp_weights(96, Experts::None)),
        Rig::dflash(MODEL, &shape, &dflash_weights(&shape)),
    ];
    for rig in &mut rigs {
        let mut sequences =
            [rig.runner.sequence().expect("one"), rig.runner.sequence().expect("two")];
        let mut batch = Batch::default();
        batch.push(1, 0, &first, SegmentKind::Prefill, Logits::None);
        batch.push(0, 0, &second, SegmentKind::Prefill, Logits::All);
        let mut borrowed: Vec<_> = sequences.iter_mut().collect();
        rig.runner.forward(&batch, &mut borrowed, |_, _| {}).expect("forward");
        let features = rig.runner.take_features();
        assert!(rig.runner.take_features().is_empty());
        let is_mtp = !rig.runner.head().expect("a head").spec().is_block();
        let width = rig.runner.head().expect("a head").spec().features().width;
        for (features, prompt) in features.iter().zip([&first, &second]) {
            let features = features.values();
            assert_eq!(features.len(), prompt.len() * width);
            // The hidden state after the last norm, or the streams after both layers, the second first.
            let whole = target_logits(2, prompt);
            let half = target_logits(1, prompt);
            for (row, features) in features.chunks(width).enumerate() {
                let features: Vec<f64> = features.iter().map(|&x| f64::from(x)).collect();
                if is_mtp {
                    check("hidden", &logits(&rig.head(), &features), &whole[row]);
                } else {
                    let from =
                        |part: &[f64]| logits(&rig.head(), &rms_norm(part, &rig.last_norm()));
                    check("tap 1", &from(&features[..96]), &whole[row]);
                    check("tap 0", &from(&features[96..]), &half[row]);
                }
            }
        }
    }
}
