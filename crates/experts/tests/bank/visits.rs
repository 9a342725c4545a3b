//! Visits to disks that work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use compute::{Expert, ExpertBank, Turn};

use crate::support::{Dice, EXPERTS, LAYERS, Model, Settings, within_patience};

#[test]
fn threads_get_every_expert_once_whatever_the_slots() {
    within_patience(|| {
        let model = Model::new();
        for (kept, staging) in
            [(1, 0), (0, 1), (0, 5), (1, 1), (3, 2), (EXPERTS / 2, 0), (EXPERTS, 8)]
        {
            for depth in [1, 8] {
                let settings = Settings { kept, staging, depth, ..Settings::default() };
                let bank = model.bank(model.device(), settings);
                let mut dice = Dice(kept as u64);
                for round in 0..60 {
                    let wanted = dice.experts(EXPERTS);
                    let rows = [1, 2, 40, 200][dice.roll(4)];
                    let layer = dice.roll(LAYERS);
                    if round % 2 == 0 {
                        bank.expect(layer, &dice.experts(6));
                    }
                    let visited = model.visit(&bank, layer, &wanted, rows, 1 + round % 4);
                    assert_eq!(visited.failed, []);
                }
            }
        }
    });
}

#[test]
fn models_take_turns() {
    within_patience(|| {
        let model = Model::new();
        let bank = model.bank(model.device(), Settings { kept: 4, ..Settings::default() });
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (model, bank) = (&model, &bank);
                scope.spawn(move || {
                    let mut dice = Dice(thread);
                    for _ in 0..40 {
                        let wanted = dice.experts(9);
                        let visited = model.visit(bank, thread as usize % LAYERS, &wanted, 1, 2);
                        assert_eq!(visited.failed, []);
                    }
                });
            }
        });
    });
}

#[test]
fn a_visit_waits_only_on_request() {
    let model = Model::new();
    let bank = model.bank(model.device(), Settings::default());
    let wanted = [3, 1, 2];
    let visit = bank.visit(0, &wanted, 1, &[]);
    let mut came = 0;
    loop {
        match visit.next(usize::MAX, false, &mut |experts| came += experts.len()) {
            Turn::Served => {}
            Turn::Empty => std::thread::yield_now(),
            Turn::Finished => break,
        }
    }
    assert_eq!(came, 3);
}

#[test]
fn a_visit_that_was_left_does_not_spoil_the_next() {
    within_patience(|| {
        let model = Model::new();
        for kept in [1, 4, 20] {
            let bank = model.bank(model.device(), Settings { kept, ..Settings::default() });
            let mut dice = Dice(1);
            for round in 0..200 {
                let wanted = dice.experts(EXPERTS);
                let layer = dice.roll(LAYERS);
                if round % 3 != 2 {
                    // The visitor stops after none, one or two.
                    let visit = bank.visit(layer, &wanted, 1, &[]);
                    for _ in 0..dice.roll(3) {
                        visit.next(1, true, &mut |_| {});
                    }
                    continue;
                }
                assert_eq!(model.visit(&bank, layer, &wanted, 1, 2).failed, []);
            }
        }
    });
}

#[test]
fn a_visitor_that_panics_does_not_spoil_the_next() {
    within_patience(|| {
        let model = Model::new();
        let bank = model.bank(model.device(), Settings { kept: 2, ..Settings::default() });
        let wanted = [1, 2, 3, 4, 5];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let visit = bank.visit(0, &wanted, 1, &[]);
            visit.next(1, true, &mut |_| panic!("on purpose"));
        }));
        assert!(panicked.is_err());
        assert_eq!(model.visit(&bank, 0, &wanted, 1, 2).failed, []);
    });
}

#[test]
fn slow_computing_is_no_stall() {
    within_patience(|| {
        let model = Model::new();
        let stall = Duration::from_millis(100);
        // Four experts through one slot: the next is not read before the last is computed.
        let bank = model.bank(model.device(), Settings { kept: 1, stall, ..Settings::default() });
        let wanted = [1, 2, 3, 4];
        let visit = bank.visit(0, &wanted, 1, &[]);
        let slow = AtomicBool::new(true);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut take = |_: &[(u32, Expert<'_>)]| {
                        if slow.swap(false, Ordering::Relaxed) {
                            std::thread::sleep(4 * stall);
                        }
                    };
                    while visit.next(1, true, &mut take) != Turn::Finished {}
                });
            }
        });
        assert!(visit.failures().is_empty(), "{:?}", visit.failures());
    });
}
