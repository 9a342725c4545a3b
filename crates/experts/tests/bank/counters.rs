//! What the bank counts and records.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::Projection;
use compute::{ExpertBank, Tallied};
use experts::device::{Fault, Faulty, Rule};
use experts::reads_of;

use crate::support::{Dice, EXPERT_BYTES, EXPERTS, LAYERS, Model, Settings, within_patience};

#[test]
fn counters_add_up() {
    within_patience(|| {
        let model = Model::new();
        for (kept, staging) in [(1, 0), (3, 2), (15, 8)] {
            let settings = Settings { kept, staging, ..Settings::default() };
            let bank = model.bank(model.device(), settings);
            bank.observe(true);
            let mut dice = Dice(3);
            let mut wanted_in_all = 0;
            let mut expected = Vec::new();
            for _ in 0..80 {
                let wanted = dice.experts(6);
                let (layer, rows) = (dice.roll(LAYERS), [1, 100][dice.roll(2)]);
                model.visit(&bank, layer, &wanted, rows, 2);
                wanted_in_all += wanted.len();
                expected.push((layer, rows, wanted.len()));
            }
            let statistics = bank.statistics();
            let (hits, misses) = (statistics.hits, statistics.misses);
            assert_eq!(hits + misses, wanted_in_all as u64);
            assert!(misses > 0 && (kept < 15 || hits > 0), "{statistics:?}");
            assert_eq!(statistics.hit_rate(), hits as f64 / wanted_in_all as f64);
            assert_eq!(statistics.reads.bytes, misses * EXPERT_BYTES as u64);
            let reads = reads_of(model.layers[0].as_ref().unwrap(), 0).len() as u64;
            assert_eq!(statistics.reads.reads, misses * reads);
            assert_eq!((statistics.failed, statistics.reads.failed), (0, 0));

            // Visit by visit they come to the same.
            let visits = bank.take_visits();
            let shapes =
                visits.iter().map(|visit| (visit.layer, visit.rows, visit.hits + visit.misses));
            assert_eq!(shapes.collect::<Vec<_>>(), expected);
            assert_eq!(visits.iter().map(|visit| visit.hits as u64).sum::<u64>(), hits);
            for visit in &visits {
                assert_eq!(visit.missed_bytes, (visit.misses * EXPERT_BYTES) as u64);
                assert!(visit.started <= visit.ended);
            }
            let waited = visits.iter().map(|visit| visit.waited).sum::<std::time::Duration>();
            assert_eq!(waited, statistics.waited);
            let activities = bank.take_activities();
            let computed: usize = activities.iter().map(|activity| activity.experts).sum();
            assert_eq!(computed, wanted_in_all);
            assert!(activities.iter().all(|activity| activity.started <= activity.ended));
        }
    });
}

#[test]
fn a_guess_that_was_taken_back_is_not_counted_as_read() {
    within_patience(|| {
        let model = Model::new();
        let stalled = model.rule(0, 3, Projection::Gate, Fault::Stall);
        let device = Arc::new(Faulty::new(model.device(), 0).with_rule(stalled));
        let settings = Settings { kept: 4, staging: 4, depth: 1, ..Settings::default() };
        let bank = model.bank(device.clone(), settings);
        // One read at a time: the first does not end before the visit has taken the others back.
        bank.expect(0, &[3, 4]);
        device.wait_for_stalled(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while bank.statistics().reads.withdrawn == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                device.release();
            });
            assert_eq!(model.visit(&bank, 1, &[7], 1, 1).failed, []);
        });
        let reads = reads_of(model.layers[0].as_ref().unwrap(), 3);
        let statistics = bank.statistics();
        assert_eq!(statistics.reads.withdrawn, 2 * reads.len() as u64 - 1);
        assert_eq!(statistics.reads.bytes, (EXPERT_BYTES + reads[0].len) as u64);
    });
}

#[test]
fn what_is_not_observed_is_not_kept() {
    let model = Model::new();
    let bank = model.bank(model.device(), Settings::default());
    let visit = || model.visit(&bank, 0, &[1, 2, 3], 1, 1);
    visit();
    assert!(bank.take_visits().is_empty() && bank.take_activities().is_empty());
    bank.observe(true);
    visit();
    assert_eq!(bank.take_visits().len(), 1);
    assert!(bank.take_visits().is_empty(), "taken once");
    visit();
    bank.observe(false);
    visit();
    assert!(bank.take_visits().is_empty() && bank.take_activities().is_empty());
}

#[test]
fn reads_are_tallied_while_watched_and_what_is_kept_is_known() {
    let model = Model::new();
    let settings = Settings { kept: 4, staging: 2, ..Settings::default() };
    let bank = model.bank(model.device(), settings);
    model.visit(&bank, 0, &[1, 2, 3], 1, 1);
    assert_eq!(bank.kept(), [(0, 1), (0, 2), (0, 3)]);
    assert_eq!(bank.tally().take(), []);
    bank.tally().watch(true);
    // One hit, and two that are read; then another layer.
    model.visit(&bank, 0, &[2, 9, 5], 1, 1);
    model.visit(&bank, 1, &[23], 1, 1);
    let read = |layer, expert| Tallied { layer, expert, uses: 0, reads: 1 };
    assert_eq!(bank.tally().take(), [read(0, 5), read(0, 9), read(1, 23)]);
    assert_eq!(bank.kept(), [(0, 2), (0, 3), (0, 5), (0, 9), (1, 23)]);
    // A prompt passes through: it is read, and what is kept stays.
    model.visit(&bank, 0, &[10, 11], 100, 1);
    assert_eq!(bank.tally().take(), [read(0, 10), read(0, 11)]);
    assert_eq!(bank.kept().len(), 5);
}

#[test]
fn a_rehearsal_reads_nothing_and_counts_nothing() {
    within_patience(|| {
        let model = Model::new();
        let bank = model.bank(model.device(), Settings { kept: 5, ..Settings::default() });
        model.visit(&bank, 0, &[1, 2, 3], 1, 2);
        model.visit(&bank, 1, &[7], 1, 2);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routing");
        bank.record_routing(&path, 0).unwrap();
        let before = bank.statistics();
        bank.rehearse(true);
        let all: Vec<u32> = (0..EXPERTS as u32).collect();
        for layer in 0..LAYERS {
            let visit = bank.visit(layer, &all, 1, &[]);
            let mut came = Vec::new();
            while visit.next(4, true, &mut |experts| came.extend(experts.iter().map(|e| e.0)))
                != compute::Turn::Finished
            {}
            came.sort_unstable();
            assert_eq!(came, all);
            assert!(visit.failures().is_empty());
        }
        bank.rehearse(false);
        let after = bank.statistics();
        assert_eq!((before.hits, before.misses), (after.hits, after.misses));
        assert_eq!(
            (before.reads.bytes, before.reads.reads),
            (after.reads.bytes, after.reads.reads)
        );
        bank.finish_routing().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1, "the header alone");
        // What was kept still is, and is right.
        model.visit(&bank, 0, &[3, 2, 1], 1, 2);
        assert_eq!(bank.statistics().hits, before.hits + 3);
        model.visit(&bank, 1, &[7, 8], 1, 2);
    });
}

#[test]
fn plain_reads_leave_the_slots_as_they_were() {
    within_patience(|| {
        let model = Model::new();
        // A delay of nothing: a fault that only counts.
        let counting = Rule::always(Fault::Delay(Duration::ZERO));
        let counter = Arc::new(Faulty::new(model.device(), 0).with_rule(counting));
        let bank = model.bank(counter.clone(), Settings { kept: 4, ..Settings::default() });
        // Empty slots are read into as well; nothing has to be read back.
        let reads = reads_of(model.layers[0].as_ref().unwrap(), 0).len() as u64;
        let (bytes, _) = bank.read_plainly(3 * EXPERT_BYTES as u64).unwrap();
        assert_eq!(counter.fault_count(), bytes / EXPERT_BYTES as u64 * reads);
        for layer in 0..LAYERS {
            model.visit(&bank, layer, &[0, 3, 5, 8], 1, 2);
        }
        let before = bank.statistics();
        // Less than one expert, some of the slots, and all of them more than once.
        for least in [1, 3 * EXPERT_BYTES, 9 * LAYERS * EXPERT_BYTES] {
            let counted = counter.fault_count();
            let (bytes, time) = bank.read_plainly(least as u64).unwrap();
            assert!(bytes >= least as u64 && bytes < (2 * least + 8 * EXPERT_BYTES) as u64);
            assert!(time > Duration::ZERO);
            // Each expert that was read, and the one that was there before.
            let experts = bytes / EXPERT_BYTES as u64;
            assert_eq!(counter.fault_count() - counted, 2 * experts * reads);
        }
        let after = bank.statistics();
        assert_eq!((before.hits, before.misses), (after.hits, after.misses));
        assert_eq!(before.reads.bytes, after.reads.bytes);
        for layer in 0..LAYERS {
            model.visit(&bank, layer, &[0, 3, 5, 8], 1, 2);
        }
        assert_eq!(bank.statistics().misses, before.misses, "all were still there");
    });
}

#[test]
fn slots_that_plain_reads_have_spoiled_are_read_again() {
    within_patience(|| {
        let model = Model::new();
        // An expert that no visit wants.
        let rule = model.rule(0, 3, Projection::Up, Fault::Broken);
        let faulty = Arc::new(Faulty::new(model.device(), 0).with_rule(rule));
        let bank = model.bank(faulty, Settings { kept: 2, ..Settings::default() });
        model.visit(&bank, 0, &[1, 2], 1, 2);
        bank.read_plainly(u64::MAX).unwrap_err();
        let before = bank.statistics().misses;
        // Both have their own bytes, which a visit checks.
        model.visit(&bank, 0, &[1, 2], 1, 2);
        assert_eq!(bank.statistics().misses, before + 2);
    });
}

#[test]
fn a_log_has_every_visit_in_order() {
    let model = Model::new();
    let bank = model.bank(model.device(), Settings::default());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("routing");
    model.visit(&bank, 0, &[9], 1, 1);
    bank.record_routing(&path, 12_345).unwrap();
    let visits = [(0, 1, vec![5, 2, 7]), (1, 40, vec![1, 4, 0]), (0, 2, vec![2, 5, 6, 1])];
    for (layer, rows, wanted) in &visits {
        model.visit(&bank, *layer, wanted, *rows, 2);
    }
    bank.finish_routing().unwrap();
    model.visit(&bank, 0, &[8], 1, 1);
    let text = std::fs::read(&path).unwrap();
    let (header, logged) = experts::routing_log::read(&text[..]).unwrap();
    assert_eq!(header.fixed_bytes, 12_345);
    assert_eq!(header.slots, bank.options().slots);
    let logged: Vec<_> =
        logged.into_iter().map(|visit| (visit.layer, visit.rows, visit.wanted)).collect();
    assert_eq!(logged, visits);
}
