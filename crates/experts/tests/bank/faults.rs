//! Visits to disks that fail: what can be had is handed over, what cannot is named, and nothing hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::Projection;
use compute::{ExpertBank, Turn};
use experts::device::{Fault, Faulty, Rule};

use crate::support::{Dice, EXPERTS, LAYERS, Model, Settings, within_patience};

const STALL: Duration = Duration::from_millis(150);

#[test]
fn one_bad_part_fails_its_expert_and_no_other() {
    within_patience(|| {
        let model = Model::new();
        let cases = [(Fault::Broken, "cannot read at"), (Fault::ShortForever, "is too short")];
        for (fault, reason) in cases {
            // In one slot each expert but the first waits for the one before it.
            for (kept, staging, rows) in
                [(1, 0, 1), (0, 1, 1), (2, 2, 1), (1, 1, 100), (3, 2, 100), (12, 0, 1)]
            {
                for part in Projection::ALL {
                    // The first attempt alone: the next finds the disk mended.
                    let rule = Rule { attempts: 0..2, ..model.rule(0, 5, part, fault) };
                    let device = Arc::new(Faulty::new(model.device(), 0).with_rule(rule));
                    let settings = Settings { kept, staging, ..Settings::default() };
                    let bank = model.bank(device, settings);
                    let wanted = [7, 5, 2, 9, 4];
                    let visited = model.visit(&bank, 0, &wanted, rows, 2);
                    visited.check_failed(&[5], "expert 5 of layer 0");
                    visited.check_failed(&[5], reason);
                    assert_eq!(bank.statistics().failed, 1);
                    if fault != Fault::Broken {
                        continue;
                    }
                    model.visit(&bank, 0, &[5], rows, 2).check_failed(&[5], reason);
                    assert_eq!(model.visit(&bank, 0, &wanted, rows, 2).failed, []);
                    assert_eq!(bank.statistics().failed, 2);
                }
            }
        }
    });
}

#[test]
fn a_layer_may_fail_as_a_whole() {
    within_patience(|| {
        let model = Model::new();
        for kept in [1, 5, 24] {
            let rule = Rule { attempts: 0..1, ..Rule::always(Fault::Broken) };
            let device = Arc::new(Faulty::new(model.device(), 0).with_rule(rule));
            let bank = model.bank(device, Settings { kept, ..Settings::default() });
            let all: Vec<u32> = (0..EXPERTS as u32).collect();
            model.visit(&bank, 0, &all, 1, 3).check_failed(&all, "cannot read");
            let statistics = bank.statistics();
            assert_eq!((statistics.hits, statistics.misses), (0, EXPERTS as u64));
            assert_eq!(statistics.failed, EXPERTS as u64);
            // All had their one fault; none of them is taken for one that is there.
            assert_eq!(model.visit(&bank, 0, &all, 1, 3).failed, []);
            assert_eq!(bank.statistics().hits, 0);
        }
    });
}

/// A bank whose expert 3 of layer 0 does not come before `release`.
fn stalling(model: &Model, settings: Settings) -> (Arc<Faulty>, experts::StreamedBank) {
    let rule = model.rule(0, 3, Projection::Up, Fault::Stall);
    let device = Arc::new(Faulty::new(model.device(), 0).with_rule(rule));
    let bank = model.bank(device.clone(), settings);
    (device, bank)
}

/// Once nothing stalls any more, experts of layer 0 come as soon as what stalled has landed.
fn come_at_last(model: &Model, bank: &experts::StreamedBank, experts: &[u32]) {
    while !model.visit(bank, 0, experts, 1, 1).failed.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stalled_read_fails_within_a_bound_and_holds_up_no_others() {
    within_patience(|| {
        let model = Model::new();
        for (kept, staging, rows) in
            [(6, 0, 1), (2, 0, 1), (4, 3, 100), (4, 2, 100), (1, 2, 1), (0, 3, 1)]
        {
            let settings = Settings { kept, staging, stall: STALL, depth: 4 };
            let (device, bank) = stalling(&model, settings);
            let started = Instant::now();
            let visited = model.visit(&bank, 0, &[3], rows, 2);
            visited.check_failed(&[3], "did not answer");
            assert!(started.elapsed() >= STALL);
            // One slot is lost until the read ends. There are others.
            let mut dice = Dice(kept as u64);
            for _ in 0..30 {
                let mut wanted = dice.experts(8);
                let layer = dice.roll(LAYERS);
                wanted.retain(|&id| layer != 0 || id != 3);
                let visited = model.visit(&bank, layer, &wanted, rows, 2);
                assert_eq!(visited.failed, [], "{kept} + {staging} slots");
            }
            assert_eq!(bank.statistics().failed, 1);
            // A second try does not take another of the disk's places, or of our time.
            let asked = || {
                let reads = bank.statistics().reads;
                (reads.reads, reads.withdrawn, device.fault_count())
            };
            let before = asked();
            for _ in 0..10 {
                model.visit(&bank, 0, &[3], rows, 2).check_failed(&[3], "did not answer");
            }
            assert_eq!(asked(), before);
            device.release();
            come_at_last(&model, &bank, &[3]);
            let all: Vec<u32> = (0..EXPERTS as u32).collect();
            assert_eq!(model.visit(&bank, 0, &all, rows, 2).failed, []);
            assert_eq!(model.visit(&bank, 0, &all, 1, 2).failed, []);
        }
    });
}

#[test]
fn a_read_that_lands_late_does_not_land_on_another_expert() {
    within_patience(|| {
        let model = Model::new();
        // The only slot is the one that the late read will land in.
        let settings = Settings { kept: 1, stall: STALL, ..Settings::default() };
        let (device, bank) = stalling(&model, settings);
        model.visit(&bank, 0, &[3], 1, 1).check_failed(&[3], "did not answer");
        // Nothing else fits, so others fail too, as long as it lasts.
        model.visit(&bank, 0, &[8], 1, 1).check_failed(&[8], "did not answer");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(STALL / 3);
                device.release();
            });
            // It waits for the slot, and has it to itself.
            assert_eq!(model.visit(&bank, 0, &[9, 8], 1, 2).failed, []);
        });
        assert_eq!(model.visit(&bank, 0, &[3, 9], 1, 2).failed, []);
    });
}

#[test]
fn a_late_failure_is_nobodys() {
    within_patience(|| {
        let model = Model::new();
        // The first part fails at once, the second stalls, the third waits behind it.
        let broken = model.rule(0, 3, Projection::Gate, Fault::Broken);
        let stalled = model.rule(0, 3, Projection::Up, Fault::Stall);
        let faulty = Faulty::new(model.device(), 0).with_rule(broken).with_rule(stalled);
        let device = Arc::new(faulty);
        let settings = Settings { kept: 1, stall: STALL, depth: 1, staging: 0 };
        let bank = model.bank(device.clone(), settings);
        model.visit(&bank, 0, &[3], 1, 1).check_failed(&[3], "did not answer");
        device.release();
        for _ in 0..3 {
            assert_eq!(model.visit(&bank, 0, &[4, 5], 1, 1).failed, []);
        }
        model.visit(&bank, 0, &[3, 6], 1, 1).check_failed(&[3], "cannot read");
    });
}

#[test]
fn a_disk_that_stalls_altogether_is_given_up_at_once() {
    within_patience(|| {
        let model = Model::new();
        let device = Arc::new(Faulty::new(model.device(), 0).with_rule(Rule::always(Fault::Stall)));
        // Many waves through few slots: they do not each take their time.
        let settings = Settings { kept: 2, staging: 0, stall: STALL, depth: 3 };
        let bank = model.bank(device.clone(), settings);
        let all: Vec<u32> = (0..EXPERTS as u32).collect();
        model.visit(&bank, 0, &all, 1, 2).check_failed(&all, "did not answer");
        let statistics = bank.statistics();
        assert_eq!(statistics.failed, EXPERTS as u64);
        assert_eq!(statistics.reads.bytes, 0);
        // Three are under way; of the first wave, the only one submitted, the others were withdrawn.
        let reads = experts::reads_of(model.layers[0].as_ref().unwrap(), 0).len() as u64;
        assert_eq!(statistics.reads.withdrawn, 2 * reads - 3);
        device.release();
        come_at_last(&model, &bank, &all);
    });
}

#[test]
fn a_bank_can_be_dropped_while_a_read_stalls() {
    within_patience(|| {
        let model = Model::new();
        let settings = Settings { kept: 2, stall: STALL, ..Settings::default() };
        let (device, bank) = stalling(&model, settings);
        model.visit(&bank, 0, &[3], 1, 1).check_failed(&[3], "did not answer");
        device.wait_for_stalled(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(STALL / 3);
                device.release();
            });
            // It waits: the read writes to memory of the bank.
            drop(bank);
        });
    });
}

#[test]
fn a_guess_that_stalls_holds_up_one_prompt_at_most() {
    within_patience(|| {
        let model = Model::new();
        let settings = Settings { kept: 2, staging: 3, stall: STALL, depth: 4 };
        let (device, bank) = stalling(&model, settings);
        bank.expect(0, &[3, 4]);
        device.wait_for_stalled(1);
        let others: Vec<u32> = (4..20).collect();
        // The schedule of the first may still have it in its way.
        model.visit(&bank, 0, &others, 100, 2);
        for _ in 0..3 {
            assert_eq!(model.visit(&bank, 0, &others, 100, 2).failed, []);
            assert_eq!(model.visit(&bank, 0, &others[..2], 1, 2).failed, []);
        }
        // Wanted in earnest, it is what it is.
        model.visit(&bank, 0, &[3, 7], 1, 2).check_failed(&[3], "did not answer");
        device.release();
        come_at_last(&model, &bank, &[3]);
    });
}

#[test]
fn a_stalled_read_of_a_visit_that_was_left_is_waited_for() {
    within_patience(|| {
        let model = Model::new();
        let settings = Settings { kept: 2, ..Settings::default() };
        let (device, bank) = stalling(&model, settings);
        {
            let visit = bank.visit(0, &[3], 1, &[]);
            assert_eq!(visit.next(1, false, &mut |_| {}), Turn::Empty);
            device.wait_for_stalled(1);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(STALL);
                device.release();
            });
            assert_eq!(model.visit(&bank, 0, &[3, 4], 1, 2).failed, []);
        });
        let statistics = bank.statistics();
        assert_eq!((statistics.hits, statistics.misses, statistics.failed), (1, 2, 0));
    });
}

/// Whatever goes wrong in whatever order, an expert has its own bytes or is named as failed.
#[test]
fn no_expert_is_ever_another() {
    within_patience(|| {
        let model = Model::new();
        for seed in 0..40 {
            let mut dice = Dice(seed);
            let faulty = Faulty::new(model.device(), seed)
                .with_chance(0.03, Fault::Broken)
                .with_chance(0.03, Fault::ShortForever)
                .with_chance(0.1, Fault::Short)
                .with_chance(0.1, Fault::Interrupted)
                .with_chance(0.02, Fault::Delay(Duration::from_millis(2)))
                .with_chance([0.0, 0.01][seed as usize % 2], Fault::Stall);
            let device = Arc::new(faulty);
            let staging = dice.roll(4);
            let settings = Settings {
                kept: [usize::from(staging == 0), 1, 2, 5, EXPERTS][dice.roll(5)],
                staging,
                stall: Duration::from_millis(15),
                depth: 1 + dice.roll(6),
            };
            let bank = model.bank(device.clone(), settings);
            let (mut wanted_in_all, mut failed) = (0, 0);
            for round in 0..40 {
                if round == 25 {
                    device.release();
                }
                let wanted = dice.experts(9);
                let rows = [1, 100][dice.roll(2)];
                let layer = dice.roll(LAYERS);
                // Guesses that come true in part, or not at all.
                match dice.roll(3) {
                    0 => bank.expect(layer, &wanted[..1 + wanted.len() / 2]),
                    1 => bank.expect(dice.roll(LAYERS), &dice.experts(4)),
                    _ => {}
                }
                // Some steps have drafted rows, and not all of those are judged.
                let is_drafted = rows == 1 && dice.roll(2) == 0;
                let rows = if is_drafted { 8 } else { rows };
                let trials = dice.trials(if is_drafted { wanted.len() } else { 0 });
                let threads = 1 + dice.roll(3);
                let visited = model.visit_on_trial(&bank, layer, &wanted, rows, &trials, threads);
                if dice.roll(3) > 0 {
                    bank.settle(dice.roll(256) as u64);
                }
                wanted_in_all += wanted.len() as u64;
                failed += visited.failed.len() as u64;
            }
            let statistics = bank.statistics();
            assert_eq!(statistics.hits + statistics.misses, wanted_in_all, "seed {seed}");
            assert_eq!(statistics.failed, failed, "seed {seed}");
            assert!(failed < wanted_in_all, "seed {seed}: nothing came");
            device.release();
        }
    });
}
