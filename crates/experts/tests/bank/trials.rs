//! Steps with drafted rows: what a verdict does to what is kept, what is counted, and that a replay of the
//! log counts the same.

use std::sync::Arc;

use checkpoint::Projection;
use compute::{ExpertBank, Trial, Union};
use experts::device::{Fault, Faulty, Rule};
use experts::simulate::{Policy, run};
use experts::{Missed, StreamedBank, routing_log};

use crate::support::{Dice, EXPERT_BYTES, EXPERTS, LAYERS, Model, Settings, within_patience};

/// Wanted by the drafted row of this depth alone, which is the row of that number too.
fn drafted(depth: u8) -> Trial {
    Trial { rows: 1 << depth, depth }
}

/// Visits the first layer in a step of four rows.
fn try_visit(model: &Model, bank: &StreamedBank, wanted: &[(u32, Trial)]) {
    let (wanted, trials): (Vec<u32>, Vec<Trial>) = wanted.iter().copied().unzip();
    assert_eq!(model.visit_on_trial(bank, 0, &wanted, 4, &trials, 2).failed, []);
}

/// What the first layer keeps.
fn kept(bank: &StreamedBank) -> Vec<u32> {
    bank.kept().into_iter().filter(|(layer, _)| *layer == 0).map(|(_, id)| id).collect()
}

/// A bank of four slots a layer that keeps 1 to 4, 4 the newest.
fn filled(model: &Model, staging: usize) -> StreamedBank {
    let settings = Settings { kept: 4, staging, ..Settings::default() };
    let bank = model.bank(model.device(), settings);
    assert_eq!(model.visit(&bank, 0, &[1, 2, 3, 4], 1, 2).failed, []);
    bank
}

#[test]
fn wrong_drafts_leave_first_and_right_ones_stay() {
    within_patience(|| {
        let model = Model::new();
        for staging in [0, 3] {
            for (accepted, expect) in
                [(0b00, [3, 4, 5, 6]), (0b10, [4, 5, 6, 9]), (0b110, [5, 6, 8, 9])]
            {
                let bank = filled(&model, staging);
                try_visit(&model, &bank, &[(9, drafted(1)), (8, drafted(2))]);
                assert_eq!(kept(&bank), [3, 4, 8, 9]);
                bank.settle(accepted);
                assert_eq!(kept(&bank), [3, 4, 8, 9]);
                model.visit(&bank, 0, &[5], 1, 1);
                model.visit(&bank, 0, &[6], 1, 1);
                assert_eq!(kept(&bank), expect, "{accepted:b}");
            }
        }
    });
}

#[test]
fn a_step_without_a_verdict_counts_as_rejected() {
    within_patience(|| {
        let model = Model::new();
        let wanted = [(9, drafted(1)), (1, drafted(2))];
        // Then a plain step, or another with drafted rows.
        let bank = filled(&model, 2);
        try_visit(&model, &bank, &wanted);
        model.visit(&bank, 0, &[5], 1, 1);
        bank.settle(u64::MAX);
        assert_eq!(kept(&bank), [1, 3, 4, 5]);
        model.visit(&bank, 0, &[6], 1, 1);
        assert_eq!(kept(&bank), [3, 4, 5, 6]);

        let bank = filled(&model, 2);
        try_visit(&model, &bank, &wanted);
        try_visit(&model, &bank, &[(5, drafted(1))]);
        // The rows of the second alone.
        bank.settle(0b10);
        assert_eq!(kept(&bank), [1, 3, 4, 5]);
        model.visit(&bank, 0, &[6], 1, 1);
        assert_eq!(kept(&bank), [3, 4, 5, 6]);
    });
}

#[test]
fn what_cannot_be_read_gets_no_verdict() {
    within_patience(|| {
        let model = Model::new();
        for accepted in [0, 0b110] {
            let rule = Rule { attempts: 0..1, ..model.rule(0, 9, Projection::Up, Fault::Broken) };
            let device = Arc::new(Faulty::new(model.device(), 0).with_rule(rule));
            let bank = model.bank(device, Settings { kept: 4, staging: 1, ..Settings::default() });
            let visited = model.visit_on_trial(
                &bank,
                0,
                &[9, 8, 3],
                4,
                &[drafted(1), drafted(2), Trial::default()],
                2,
            );
            visited.check_failed(&[9], "cannot read");
            bank.settle(accepted);
            assert_eq!(kept(&bank), [3, 8]);
            let all: Vec<u32> = (0..EXPERTS as u32).collect();
            assert_eq!(model.visit(&bank, 0, &all, 1, 2).failed, []);
        }
    });
}

#[test]
fn missed_bytes_are_counted_by_depth() {
    within_patience(|| {
        let model = Model::new();
        let bank = filled(&model, 2);
        let read = |counts: &[(usize, u64)], wanted, found| {
            let mut missed = Missed { wanted, found, ..Missed::default() };
            counts.iter().for_each(|&(depth, n)| missed.bytes[depth] = n * EXPERT_BYTES as u64);
            missed
        };
        // A plain step's are certain.
        assert_eq!(bank.take_missed(), read(&[(0, 4)], 4, 0));
        assert_eq!(bank.take_missed(), Missed::default());
        // One is found, one was read ahead for nothing, one comes true.
        bank.expect(0, &[10, 20]);
        let wanted = [(5, Trial::default()), (10, drafted(2)), (4, drafted(1)), (11, drafted(2))];
        try_visit(&model, &bank, &wanted);
        bank.settle(0);
        let missed = bank.take_missed();
        assert_eq!(missed, read(&[(0, 1), (2, 2)], 4, 1));
        assert_eq!(missed.total_bytes(), 3 * EXPERT_BYTES as u64);
        // Depths past the last are counted with it.
        let deep = [16, 17, 40].map(|depth| Trial { rows: 1 << 60, depth });
        model.visit_on_trial(&bank, 1, &[6, 7, 8], 64, &deep, 2);
        assert_eq!(bank.take_missed(), read(&[(16, 3)], 3, 0));
        // And how many experts rows wanted together.
        let union = |rows, visits, experts| Union { rows, visits, experts };
        assert_eq!(bank.tally().unions(), [union(1, 1, 4), union(4, 1, 4), union(64, 1, 3)]);
    });
}

#[test]
fn a_replay_of_the_log_counts_what_was_counted() {
    within_patience(|| {
        let model = Model::new();
        for (kept, staging) in [(1, 0), (3, 2), (8, 4), (15, 1)] {
            let settings = Settings { kept, staging, ..Settings::default() };
            let bank = model.bank(model.device(), settings);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("routing");
            bank.record_routing(&path, 0).unwrap();
            let mut dice = Dice(kept as u64);
            let mut expected = Vec::new();
            for round in 0..120 {
                let is_drafted = round % 4 != 0;
                for layer in 0..LAYERS {
                    let mut wanted = dice.experts(9);
                    wanted.extend((0..3).filter(|id| !wanted.contains(id)).collect::<Vec<_>>());
                    let trials = dice.trials(if is_drafted { wanted.len() } else { 0 });
                    bank.expect(layer, &dice.experts(4));
                    model.visit_on_trial(&bank, layer, &wanted, 8, &trials, 2);
                    expected.push((wanted, trials));
                }
                // Some steps are judged, and some are found unjudged by the next.
                if round % 3 != 0 {
                    bank.settle(dice.roll(256) as u64);
                }
            }
            bank.finish_routing().unwrap();
            let text = std::fs::read(&path).unwrap();
            let (header, visits) = routing_log::read(&text[..]).unwrap();
            let logged = visits.iter().map(|visit| (visit.wanted.clone(), visit.trials.clone()));
            // A step whose rows all want the same is as good as a plain one.
            expected.iter_mut().for_each(|(_, trials)| {
                if trials.iter().all(|trial| !trial.is_drafted()) {
                    trials.clear();
                }
            });
            assert_eq!(logged.collect::<Vec<_>>(), expected);
            let outcome = run(&header, &visits, &header.slots, Policy::Layered).unwrap();
            let (counts, live) = (outcome.counts(), bank.statistics());
            assert_eq!((counts.hits, counts.misses), (live.hits, live.misses), "{kept} kept");
            // The same bytes, and what was read for guesses and not used.
            let simulated = outcome.decode.read_bytes + outcome.prompt.read_bytes;
            let in_vain = (live.ahead - live.ahead_used) * EXPERT_BYTES as u64;
            assert!((simulated..=simulated + in_vain).contains(&live.reads.bytes), "{live:?}");
            assert!(live.ahead_used > 0 || staging == 0);
            // The verdicts have a say where a step leaves something alone.
            let mut unjudged = visits.clone();
            unjudged.iter_mut().for_each(|visit| visit.settled = visit.settled.map(|_| 0));
            let wrong = run(&header, &unjudged, &header.slots, Policy::Layered).unwrap().counts();
            assert_eq!(wrong.hits != counts.hits, kept > 3, "{kept} kept");
        }
    });
}
