//! Disks that fail under an engine that serves several requests: those that need what cannot be read
//! fail and say why, the others give exactly the answer they give alone, and afterwards the engine continues.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "these are tests; clippy.toml covers only the test functions"
)]

mod files;
#[cfg(target_os = "linux")]
mod ring;
mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use engine::Request;
use experts::device::{Fault, Faulty, Rule};
use model::Logits;
use runtime::Runner;

use self::support::{
    Disk, Divided, Model, PATIENCE, SLOTS, STALL, bank, check_mended, failed, serve, varied,
    within_patience,
};

/// Stacked, sharded, fused and separate experts; with and without recurrent layers and a shared expert.
const MODELS: [&str; 4] =
    ["qwen3_5_moe-4bit", "qwen3_moe-4bit-sharded", "qwen3_5_moe-vl-bf16", "qwen3_moe-bf16"];

#[test]
fn faults_that_a_retry_mends_change_nothing() {
    within_patience(|| {
        for name in MODELS {
            let model = Model::new(name);
            let prompt = varied(3, 100, 1).prompt;
            let logits = |runner: &mut Runner| {
                let mut sequence = runner.sequence().unwrap();
                let mut bits = Vec::new();
                // A prompt that passes through, then single tokens.
                for part in std::iter::once(&prompt[..80]).chain(prompt[80..].chunks(1)) {
                    runner
                        .feed(&mut sequence, part, Logits::All, |_, row| {
                            bits.extend(row.iter().map(|value| value.to_bits()));
                        })
                        .unwrap();
                }
                bits
            };
            let want = logits(&mut model.runner(None, PATIENCE));
            for slots in SLOTS {
                let disk = Disk::new(&model.checkpoint, |faulty| {
                    faulty
                        .with_chance(0.4, Fault::Short)
                        .with_chance(0.4, Fault::Interrupted)
                        .with_chance(0.02, Fault::Delay(Duration::from_millis(1)))
                });
                let mut runner =
                    model.runner(Some((slots, Arc::clone(&disk))), Duration::from_secs(60));
                assert!(logits(&mut runner) == want, "{name} with {slots} slots");
                let statistics = runner.streamed().unwrap().statistics();
                assert_eq!((statistics.failed, statistics.reads.failed), (0, 0));
                assert!(disk.bad.fault_count() > 20 && statistics.reads.retries > 10);
            }
        }
    });
}

#[test]
fn a_bad_place_fails_the_prompts_that_need_it() {
    within_patience(|| {
        for name in MODELS {
            let divided = Divided::new(name, 40, 3);
            for slots in SLOTS {
                divided.check(slots, Fault::Broken);
            }
        }
        // Two steps for each prompt.
        let divided = Divided::new(MODELS[0], 100, 3);
        for slots in SLOTS {
            divided.check(slots, Fault::ShortForever);
        }
    });
}

#[test]
fn a_bad_place_fails_the_answers_that_need_it() {
    within_patience(|| {
        for name in MODELS {
            let divided = Divided::new(name, 2, 8);
            for slots in SLOTS {
                divided.check(slots, Fault::ShortForever);
                divided.check(slots, Fault::Broken);
            }
        }
    });
}

#[test]
fn a_stalled_read_fails_those_that_need_it() {
    within_patience(|| {
        for (count, max_tokens) in [(40, 3), (2, 8)] {
            let divided = Divided::new(MODELS[1], count, max_tokens);
            for slots in SLOTS {
                divided.check(slots, Fault::Stall);
            }
        }
    });
}

#[test]
fn when_nothing_can_be_read_all_fail_and_nothing_hangs() {
    within_patience(|| {
        let model = Model::new(MODELS[0]);
        let requests = [varied(1, 50, 4), varied(2, 3, 4), varied(3, 90, 4), varied(4, 1, 4)];
        let answers = model.answers(&requests);
        for (fault, slots) in
            [(Fault::Broken, 2), (Fault::Broken, 24), (Fault::Stall, 2), (Fault::Stall, 24)]
        {
            let disk = Disk::new(&model.checkpoint, |faulty| faulty.with_rule(Rule::always(fault)));
            let mut engine = model.engine(slots, &disk, STALL);
            let outcomes = serve(&mut engine, &requests);
            for (outcome, answer) in outcomes.iter().zip(&answers) {
                assert!(failed(outcome, answer) && outcome.tokens.is_empty(), "{outcome:?}");
            }
            disk.mend();
            check_mended(&mut engine, &requests, &answers);
        }
    });
}

#[test]
fn a_dead_disk_is_waited_for_in_one_layer_only() {
    within_patience(|| {
        let model = Model::new(MODELS[0]);
        assert!(model.spec.moe_layers().count() > 1);
        let (_, first) = model.spec.moe_layers().next().unwrap();
        let disk =
            Disk::new(&model.checkpoint, |faulty| faulty.with_rule(Rule::always(Fault::Stall)));
        let mut engine = model.engine(24, &disk, STALL);
        let outcomes = serve(&mut engine, &[varied(1, 1, 4)]);
        assert!(outcomes[0].tokens.is_empty());
        let statistics = bank(&engine).statistics();
        assert_eq!(statistics.failed, first.experts_per_token() as u64, "{statistics:?}");
        disk.mend();
    });
}

/// Whatever fails, no request ever says anything that it would not say in memory.
#[test]
fn never_a_wrong_token() {
    within_patience(|| {
        let (mut failures, mut successes) = (0, 0);
        for name in [MODELS[0], MODELS[3]] {
            let model = Model::new(name);
            let lengths = [2, 40, 70, 9, 33];
            let requests: Vec<Request> =
                (0..5).map(|index| varied(index, lengths[index as usize], 5)).collect();
            let answers = model.answers(&requests);
            for seed in 0..16 {
                let mut chance = (seed + 1) as f64 / 1600.0;
                let slots = [2, 3, 7, 24][seed as usize % 4];
                let good = model.good_disk();
                let mut bad = Faulty::new(Arc::clone(&good.good), seed)
                    .with_chance(0.1, Fault::Short)
                    .with_chance(0.1, Fault::Interrupted)
                    .with_chance(0.01, Fault::Delay(Duration::from_millis(1)));
                if seed % 8 == 5 {
                    bad = bad.with_chance(chance / 2.0, Fault::Stall);
                }
                if seed % 8 == 7 {
                    bad = bad.with_chance(chance / 4.0, Fault::Overwritten);
                    chance = 0.0;
                }
                bad = bad.with_chance(chance, Fault::Broken);
                bad = bad.with_chance(chance / 2.0, Fault::ShortForever);
                let is_bad = AtomicBool::new(true);
                let disk = Arc::new(Disk { good: Arc::clone(&good.good), bad, is_bad });
                let mut engine = model.engine(slots, &disk, Duration::from_millis(100));
                for _ in 0..2 {
                    let outcomes = serve(&mut engine, &requests);
                    let lost = outcomes.iter().zip(&answers).filter(|(o, a)| failed(o, a)).count();
                    assert!(lost == 0 || bank(&engine).statistics().failed > 0, "seed {seed}");
                    failures += lost;
                    successes += requests.len() - lost;
                }
                disk.mend();
                check_mended(&mut engine, &requests, &answers);
            }
        }
        // Else nothing was tried.
        assert!(failures > 40 && successes > 40, "{failures} failed, {successes} did not");
    });
}
