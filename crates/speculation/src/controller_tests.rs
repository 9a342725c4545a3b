//! The controller against made-up machines: finds the best length, never loses more than it may.
//!
//! Everything is seeded. A gain is over plain decoding of the same tokens, both without timing noise, so
//! that a test compares what was decided and not how lucky it was.

use proptest::prelude::*;

use super::SourceKind::{self, Dflash, DraftModel, Mtp, NGram, Oracle};
use super::controller::{Controller, DraftCost, Drafted, Offer, Pass, Settings, Verdict};
use super::simulator::{Misses, Source, Sum, TINY, TWELVE_LAYERS, World, linear, through, union};

const SEEDS: u64 = 6;

/// After 200 rounds to learn, on average within 3 % of always verifying the best same number of tokens.
#[track_caller]
fn converges(name: &str, world: impl Fn() -> World) {
    let (best, best_gain) = world().best_gain();
    let mut reached = Vec::new();
    for seed in 0..SEEDS {
        let mut world = world();
        world.random.0 = seed;
        let mut controller = world.controller();
        world.run(&mut controller, 200);
        reached.push(world.run(&mut controller, 800).gain() / best_gain);
    }
    let mean = reached.iter().sum::<f64>() / reached.len() as f64;
    let least = reached.iter().copied().fold(f64::MAX, f64::min);
    println!(
        "{name}: {best} tokens gain {best_gain:.3}, reached {mean:.3} of it, least {least:.3}"
    );
    assert!(mean > 0.97, "{name}: {best} tokens gain {best_gain:.3}; reached {reached:.3?} of it");
    assert!(least > 0.9, "{name}: {best} tokens gain {best_gain:.3}; reached {reached:.3?} of it");
}

/// Over 2,000 rounds no slower than plain decoding by more than 1.5 %, and what was lost by trying is
/// within 1 % and three passes.
#[track_caller]
fn never_slower(name: &str, world: impl Fn() -> World) -> f64 {
    slower_by(name, world, 0.01)
}

#[track_caller]
fn slower_by(name: &str, world: impl Fn() -> World, share: f64) -> f64 {
    let mut gains = Vec::new();
    for seed in 0..SEEDS {
        let mut world = world();
        world.random.0 = seed + 100;
        let mut controller = world.controller();
        let sum = world.run(&mut controller, 2000);
        let report = controller.report();
        assert!(1.0 / sum.gain() <= 1.015, "{name}: {:.4} of plain", 1.0 / sum.gain());
        assert!(report.exploration_share <= share + 3.0 / 2000.0, "{name}: {report:?}");
        gains.push(sum.gain());
    }
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    println!("{name}: gain {mean:.4} {gains:.4?}");
    mean
}

fn steady(kind: SourceKind, chance: f64) -> Vec<Source> {
    vec![Source::steady(kind, chance)]
}

#[test]
fn finds_the_best_length_on_measured_curves() {
    for (name, points) in [("twelve layers", TWELVE_LAYERS), ("tiny", TINY)] {
        for chance in [0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9] {
            let name = format!("{name} {chance}");
            converges(&name, || World::new(through(points), steady(Oracle, chance)));
        }
    }
}

#[test]
fn finds_the_best_length_on_union_curves() {
    for fixed in [0.0, 0.2, 0.5, 0.8, 0.9] {
        for chance in [0.0, 0.5, 0.7, 0.9] {
            let name = format!("union, fixed share {fixed} {chance}");
            converges(&name, || World::new(union(fixed), steady(NGram, chance)));
        }
    }
}

#[test]
fn finds_the_best_length_when_drafting_costs_too() {
    for further in [0.02, 0.1, 0.3, 0.6, 1.0] {
        for chance in [0.1, 0.5, 0.7, 0.9] {
            converges(&format!("linear {further} {chance}"), || {
                let mut source = Source::steady(Mtp, chance);
                source.step = 0.0005;
                World::new(linear(further), vec![source])
            });
        }
    }
}

#[test]
fn finds_the_best_length_when_acceptance_falls_with_position() {
    for fall in [0.95_f64, 0.85, 0.7] {
        converges(&format!("falling {fall}"), || {
            let source = Source::new(DraftModel, move |t| 0.95 * fall.powi(t.position as i32));
            World::new(linear(0.15), vec![source])
        });
    }
}

#[test]
fn an_oracle_of_nine_in_ten_gains_half_on_the_twelve_layers() {
    for seed in 0..SEEDS {
        let mut world = World::new(through(TWELVE_LAYERS), steady(Oracle, 0.9));
        world.random.0 = seed;
        let mut controller = world.controller();
        let sum = world.run(&mut controller, 1000);
        assert!(sum.gain() > 1.5, "{sum:?}");
        let told = controller.report().gain;
        assert!((told / sum.gain() - 1.0).abs() < 0.08, "told {told}, is {}", sum.gain());
    }
}

#[test]
fn is_never_slower_where_nothing_is_to_gain() {
    for kind in [NGram, Oracle, Mtp, Dflash] {
        for chance in [0.0, 0.1, 0.3] {
            let name = format!("twelve layers {kind:?} {chance}");
            never_slower(&name, || World::new(through(TWELVE_LAYERS), steady(kind, chance)));
        }
    }
    for chance in [0.0, 0.5, 0.7, 0.9] {
        never_slower(&format!("all in experts {chance}"), || {
            World::new(union(0.0), steady(NGram, chance))
        });
        never_slower(&format!("nearly all in experts {chance}"), || {
            World::new(union(0.2), steady(DraftModel, chance))
        });
        never_slower(&format!("linear {chance}"), || World::new(linear(1.0), steady(Mtp, chance)));
    }
    never_slower("rows nearly free", || World::new(union(0.9), steady(NGram, 0.0)));
}

#[test]
fn plain_decoding_is_all_that_is_left_when_drafts_are_never_right() {
    for seed in 0..SEEDS {
        let mut world = World::new(through(TINY), steady(Oracle, 0.0));
        world.random.0 = seed;
        let mut controller = world.controller();
        world.run(&mut controller, 200);
        let late = world.run(&mut controller, 1000);
        assert!(late.speculative < 30, "{late:?}");
    }
}

/// Streamed experts: further rows miss `further` of what a plain row does.
fn streamed(kind: SourceKind, chance: f64, missed: f64, further: f64) -> World {
    let mut world = World::new(linear(0.1), steady(kind, chance));
    let wanted = 50e6;
    world.misses = Some(Misses { missed: missed * wanted, wanted, further, seconds_a_byte: 1e-9 });
    world
}

#[test]
fn streaming_pays_when_drafted_rows_miss_little() {
    converges("few misses", || streamed(Mtp, 0.8, 0.1, 0.3));
    converges("misses of their own", || streamed(Mtp, 0.8, 0.2, 1.0));
    never_slower("every row misses all", || streamed(Oracle, 0.5, 1.0, 1.0));
    never_slower("every row misses much", || streamed(NGram, 0.0, 0.5, 0.9));
}

#[test]
fn many_misses_limit_the_length_unless_more_is_clearly_better() {
    for (kind, chance, limit) in [(Mtp, 0.8, 1.5), (NGram, 0.95, 4.5)] {
        // Half of the experts are missed, and further rows miss nearly as many.
        let mut world = streamed(kind, chance, 0.5, 0.7);
        let mut controller = world.controller();
        world.run(&mut controller, 200);
        let late = world.run(&mut controller, 400);
        assert!(late.mean_verified() < limit, "{kind:?} {late:?}");
    }
    // Further rows find everything there: measurement beats the rule of thumb.
    let mut world = streamed(Mtp, 0.95, 0.5, 0.02);
    let mut controller = world.controller();
    world.run(&mut controller, 400);
    let late = world.run(&mut controller, 400);
    assert!(late.mean_verified() > 4.0, "{late:?}");
}

#[test]
fn a_change_of_domain_is_noticed_in_both_directions() {
    for seed in 0..SEEDS {
        let world = |chance| {
            let mut world = World::new(through(TWELVE_LAYERS), steady(Mtp, chance));
            world.random.0 = seed;
            world
        };
        let mut controller = world(0.9).controller();
        world(0.9).run(&mut controller, 400);
        let bad = world(0.05).run(&mut controller, 400);
        let back = world(0.9).run(&mut controller, 300);
        let good = world(0.9).run(&mut controller, 300);
        println!("{:.3} {:.3} {:.3}", bad.gain(), back.gain(), good.gain());
        assert!(bad.gain() > 0.94, "{seed} {bad:?}");
        assert!(good.gain() > 1.5, "{seed} {good:?}");
    }
}

#[test]
fn the_better_of_two_sources_wins() {
    let late = |sources: fn() -> Vec<Source>| {
        let mut world = World::new(through(TWELVE_LAYERS), sources());
        let mut controller = world.controller();
        world.run(&mut controller, 300);
        world.run(&mut controller, 500)
    };
    let share = |sum: &Sum, kind: SourceKind| {
        sum.drafts[kind as usize] as f64 / sum.drafts.iter().sum::<usize>() as f64
    };
    let sum = late(|| vec![Source::steady(NGram, 0.4), Source::steady(Mtp, 0.9)]);
    assert!(share(&sum, Mtp) > 0.9 && sum.gain() > 1.5, "{sum:?}");
    let sum = late(|| vec![Source::steady(NGram, 0.9), Source::steady(Mtp, 0.6)]);
    assert!(share(&sum, NGram) > 0.9 && sum.gain() > 1.5, "{sum:?}");
    // As often right, but dear.
    let sum = late(|| {
        let mut dear = Source::steady(DraftModel, 0.9);
        dear.step = 0.015;
        vec![dear, Source::steady(Mtp, 0.85)]
    });
    assert!(share(&sum, Mtp) > 0.9, "{sum:?}");
}

#[test]
fn drafts_dearer_than_what_they_bring_are_dropped() {
    for fixed in [true, false] {
        let gain = never_slower("dear drafts", || {
            let mut source = Source::steady(if fixed { Dflash } else { DraftModel }, 0.9);
            (source.fixed, source.step) = if fixed { (0.09, 0.0) } else { (0.0, 0.04) };
            World::new(through(TWELVE_LAYERS), vec![source])
        });
        assert!(gain < 1.0);
    }
}

#[test]
fn a_draft_model_that_lags_is_not_paid_for_in_vain() {
    never_slower("lagging", || {
        let mut source = Source::steady(DraftModel, 0.2);
        (source.step, source.read, source.lags) = (0.004, 0.002, true);
        World::new(through(TWELVE_LAYERS), vec![source])
    });
}

/// Answers of a hundred rounds to prompts of a hundred tokens, which a draft model has not read when they begin.
fn prompted(controller: &mut Controller, chance: f64, answers: usize) -> Sum {
    let mut source = Source::steady(DraftModel, chance);
    (source.step, source.read, source.lags) = (0.003, 0.0003, true);
    let mut world = World::new(through(TWELVE_LAYERS), vec![source]);
    let mut all = Sum::default();
    for _ in 0..answers {
        world.lag = vec![vec![100]];
        let sum = world.run(controller, 100);
        all.seconds += sum.seconds;
        all.plain_seconds += sum.plain_seconds;
        all.speculative += sum.speculative;
    }
    all
}

#[test]
fn a_draft_model_is_tried_though_prompts_are_long() {
    let world = || World::new(through(TWELVE_LAYERS), steady(DraftModel, 0.9));
    let mut controller = world().controller();
    let first = prompted(&mut controller, 0.9, 20);
    let then = prompted(&mut controller, 0.9, 10);
    println!("{first:?} {then:?}");
    assert!(first.gain() > 0.985, "{first:?}");
    assert!(then.gain() > 1.2, "{first:?} {then:?}");
    // One that is never right is tried as rarely as before.
    let mut controller = world().controller();
    let never = prompted(&mut controller, 0.0, 30);
    assert!(never.gain() > 0.985, "{never:?}");
}

#[test]
fn confidence_distinguishes_drafts() {
    // Half of the tokens are sure, half are hopeless.
    let world = |kind: SourceKind| {
        let mut source = Source::new(kind, |t| if t.bucket > 3 { 0.95 } else { 0.02 });
        source.buckets = vec![1, 6];
        World::new(through(TWELVE_LAYERS), vec![source])
    };
    for kind in [NGram, Oracle] {
        let mut world = world(kind);
        let blind = world.best_gain().1;
        let mut controller = world.controller();
        world.run(&mut controller, 200);
        let late = world.run(&mut controller, 800);
        println!("{kind:?} {:.3} blind {blind:.3}", late.gain());
        assert!(late.gain() > 1.1 * blind, "{kind:?} {:.3}, blind {blind:.3}", late.gain());
    }
}

#[test]
fn four_sequences_of_different_acceptance_share_a_pass() {
    const CHANCES: [f64; 4] = [0.95, 0.8, 0.4, 0.0];
    for seed in 0..SEEDS {
        // Confidence distinguishes the sequences, as it does in real drafts.
        let mut source = Source::new(NGram, |t| CHANCES[usize::from(t.bucket)]);
        source.buckets = vec![0, 1, 2, 3];
        let mut world = World::new(linear(0.2), vec![source]);
        (world.sequences, world.random.0) = (4, seed);
        let mut controller = world.controller();
        world.run(&mut controller, 200);
        let late = world.run(&mut controller, 400);
        println!("four: {:.3} {:.2}", late.gain(), late.mean_verified());
        assert!(late.gain() > 1.2, "{late:?}");
    }
    never_slower("four, never right", || {
        let mut world = World::new(linear(0.5), steady(DraftModel, 0.0));
        world.sequences = 4;
        world
    });
}

#[test]
fn an_adversary_that_accepts_only_rarely_requested_drafts_costs_little() {
    // Trying more than one is all loss here; what single tokens gain pays for half of it.
    let adversary = || {
        let source = Source::new(Oracle, |t| if t.verified <= 1 { 1.0 } else { 0.0 });
        World::new(linear(0.9), vec![source])
    };
    slower_by("accepts single tokens only", adversary, 0.02);
    // Good for as long as it takes to be trusted, then never right for as long.
    for period in [50, 100, 400] {
        let mut worlds = [0.95, 0.0].map(|c| World::new(linear(0.5), steady(Oracle, c)));
        let mut controller = worlds[0].controller();
        let (mut plain, mut taken) = (0.0, 0.0);
        for turn in 0..4000 / period {
            let sum = worlds[turn % 2].run(&mut controller, period);
            plain += sum.plain_seconds;
            taken += sum.seconds;
        }
        println!("period {period}: {:.3}", plain / taken);
        assert!(taken < 1.015 * plain, "period {period}: {:.3}", plain / taken);
    }
}

#[test]
fn the_same_observations_give_the_same_decisions() {
    let run = || {
        let mut world = World::new(through(TINY), steady(Oracle, 0.8));
        let mut controller = world.controller();
        world.run(&mut controller, 500);
        serde_json::to_string(&controller.report()).unwrap()
    };
    assert_eq!(run(), run());
}

/// Times that should never be reported, among sensible ones.
fn any_seconds() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => 1e-6..1.0,
        1 => prop::sample::select(vec![0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300]),
    ]
}

type AnyRound = (Vec<Vec<(usize, usize, usize, Option<u8>)>>, Vec<u8>, [f64; 2], u64, usize);

fn any_round() -> impl Strategy<Value = AnyRound> {
    let count = || prop_oneof![4 => 0..20_usize, 1 => Just(usize::MAX / 4)];
    let offer = (0..5_usize, count(), count(), prop::option::of(any::<u8>()));
    let offers = prop::collection::vec(prop::collection::vec(offer, 0..4), 0..5);
    let bytes = prop_oneof![4 => 0..1_u64 << 30, 1 => Just(u64::MAX)];
    let seconds = [any_seconds(), any_seconds()];
    (offers, prop::collection::vec(any::<u8>(), 20), seconds, bytes, 0..40_usize)
}

proptest! {
    #[test]
    fn nothing_reported_makes_it_panic_or_ask_for_too_much(
        most in 0..40_usize,
        streams: bool,
        rounds in prop::collection::vec(any_round(), 1..60),
    ) {
        let mut controller = Controller::new(Settings { most, streams });
        for (offers, confidences, [draft_seconds, seconds], bytes, accepted) in rounds {
            let offers: Vec<Vec<Offer>> = offers.iter().map(|of_sequence| {
                of_sequence.iter().map(|&(source, most, behind, bucket)| Offer {
                    source: SourceKind::ALL[source], most, behind, bucket,
                }).collect()
            }).collect();
            let picks = controller.plan(&offers);
            prop_assert_eq!(picks.len(), offers.len());
            let mut drafts = Vec::new();
            for (pick, of_sequence) in picks.iter().zip(&offers) {
                drafts.push(pick.map(|pick| {
                    let offer = of_sequence[pick.offer];
                    assert!(pick.count >= 1 && pick.count <= offer.most.min(most));
                    let length = pick.count.min(confidences.len());
                    let (source, tokens, read) = (offer.source, pick.count, offer.behind);
                    let cost = DraftCost { source, sequences: 1, tokens, read, seconds: draft_seconds };
                    controller.observe_draft(&cost);
                    Drafted { source, buckets: &confidences[..length] }
                }));
            }
            let counts = controller.trim(&drafts);
            prop_assert_eq!(counts.len(), drafts.len());
            for (&count, draft) in counts.iter().zip(&drafts) {
                prop_assert!(count <= most && count <= draft.map_or(0, |d| d.buckets.len()));
                if let Some(Drafted { source, buckets }) = *draft {
                    let buckets = &buckets[..count];
                    controller.observe_verdict(&Verdict { source, buckets, accepted });
                }
            }
            controller.observe_pass(&Pass {
                rows: offers.len() + counts.iter().sum::<usize>(),
                sequences: offers.len(),
                missed_bytes: bytes,
                wanted_bytes: bytes / 2,
                missed_by_depth: &[bytes, bytes / 3, 7],
                seconds,
            });
            let report = controller.report();
            let fit = report.fit;
            for number in [report.gain, report.seconds, report.exploration_share,
                report.mean_verified, fit.base_seconds, fit.row_seconds, fit.byte_seconds]
            {
                prop_assert!(number.is_finite() && number >= 0.0, "{:?}", report);
            }
        }
    }
}
