//! Tests of `geometry.rs`.

use proptest::prelude::*;

use super::*;

const BLOCK: usize = 4096;

fn layer(experts: usize, experts_per_token: usize, expert_bytes: u64) -> Option<LayerSize> {
    // A range that straddles a block costs one more.
    let slot_bytes = (expert_bytes as usize).next_multiple_of(BLOCK) + BLOCK;
    Some(LayerSize { experts, experts_per_token, expert_bytes, slot_bytes })
}

/// Layers of up to three sizes, some without experts.
fn models() -> impl Strategy<Value = Vec<Option<LayerSize>>> {
    let sizes = prop::collection::vec(1_u64..3_000_000, 1..4);
    let layers = prop::collection::vec(
        prop::option::weighted(0.8, (any::<prop::sample::Index>(), 1_usize..80, 1_usize..12)),
        1..12,
    );
    let models = (sizes, layers).prop_map(|(sizes, layers)| {
        let size = |(index, experts, most): (prop::sample::Index, usize, usize)| {
            layer(experts, most.min(experts), *index.get(&sizes)).unwrap()
        };
        layers.into_iter().map(|layer| layer.map(size)).collect::<Vec<_>>()
    });
    models.prop_filter("a model with experts", |layers| layers.iter().any(Option::is_some))
}

/// What holds of slots however they came about.
#[track_caller]
fn check(geometry: &Geometry, slots: &Slots) {
    assert_eq!(slots.classes.len(), geometry.classes().len());
    let mut bytes = 0;
    for (class, &ClassSlots { kept, staging }) in geometry.classes().iter().zip(&slots.classes) {
        let what = format!("{kept} + {staging} of {class:?}");
        let wanted = class.experts_per_token;
        assert!(kept + staging >= wanted && kept <= class.experts, "{what}");
        // Experts of a token that no slot keeps have slots to pass through.
        assert!(kept >= class.working_set() || staging >= wanted, "{what}");
        // That and a prompt's way through take at most a quarter, unless there is more than enough.
        let (all, spare) = (kept + staging, kept == class.experts);
        assert!(spare || staging <= wanted.max(all / 4), "{what}");
        assert!(staging <= wanted.max(*STAGING_SLOTS.end()), "{what}");
        bytes += (all * class.slot_bytes) as u64;
    }
    assert_eq!(slots.bytes, bytes);
    assert_eq!(slots.kept(), slots.classes.iter().map(|class| class.kept).sum::<usize>());
    assert_eq!(slots.staging(), slots.classes.iter().map(|class| class.staging).sum::<usize>());
    check_shares(geometry, slots);
}

/// Each layer has its share of the slots of its class.
#[track_caller]
fn check_shares(geometry: &Geometry, slots: &Slots) {
    let Partition { lists, staging, list_of } = geometry.layered(slots);
    let layers: Vec<Layer> = geometry.layers.iter().flatten().copied().collect();
    assert_eq!(lists.len(), layers.len());
    assert_eq!(list_of.len(), geometry.experts());
    for (index, (class, count)) in geometry.classes().iter().zip(&slots.classes).enumerate() {
        assert_eq!(staging[index], count.staging);
        let shares = || {
            let shares = lists.iter().zip(&layers).filter(|(list, _)| list.class as usize == index);
            shares.map(|(list, layer)| (list.kept, layer.experts))
        };
        assert_eq!(shares().count(), class.layers);
        assert_eq!(shares().map(|(kept, _)| kept).sum::<usize>(), count.kept);
        // None has two fewer than another, unless it has all its experts.
        let most = shares().map(|(kept, _)| kept).max().unwrap_or(0);
        for (kept, experts) in shares() {
            assert!(kept <= experts && (kept + 1 >= most || kept == experts), "{lists:?}");
        }
        let enough = count.kept >= class.layers * class.experts_per_token;
        for (kept, experts) in shares().filter(|_| enough) {
            assert!(kept >= class.experts_per_token.min(experts), "{lists:?}");
        }
    }
    for (list, layer) in layers.iter().enumerate() {
        assert_eq!(lists[list].class, layer.class);
        assert!(list_of[layer.keys()].iter().all(|&of| of as usize == list));
    }
}

proptest! {
    #[test]
    fn slots_fit_the_budget_whenever_a_token_does(layers in models(), share in 0.0..2.0_f64) {
        let geometry = Geometry::new(&layers);
        let all: u64 = geometry.classes().iter().map(Class::bank_bytes).sum();
        let least = geometry.least_bytes();
        for budget in [(all as f64 * share) as u64, least, least - 1, 2 * least, u64::MAX / 2] {
            match geometry.fit(budget) {
                Some(slots) => {
                    check(&geometry, &slots);
                    prop_assert!(slots.bytes <= budget, "{} > {budget}", slots.bytes);
                    prop_assert!(budget >= least);
                }
                None => prop_assert!(budget < least, "{budget} holds {least}"),
            }
        }
        let everything = geometry.fit(u64::MAX / 2).unwrap();
        prop_assert_eq!(everything.kept(), geometry.experts());
    }

    #[test]
    fn so_many_slots_are_no_more(layers in models(), slots in 0_usize..2000) {
        let geometry = Geometry::new(&layers);
        let needed: usize = geometry.classes().iter().map(|class| class.experts_per_token).sum();
        for slots in [slots, needed] {
            match geometry.with_total(slots) {
                Ok(got) => {
                    check(&geometry, &got);
                    prop_assert!(got.kept() + got.staging() <= slots);
                }
                Err(Error::TooFewSlots { slots: had, needed: least }) => {
                    prop_assert!(slots < needed);
                    prop_assert_eq!((had, least), (slots, needed));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn every_expert_has_a_key_of_its_own(layers in models()) {
        let geometry = Geometry::new(&layers);
        let everything = geometry.fit(u64::MAX / 2).unwrap();
        let classes = geometry.pooled(&everything).list_of;
        prop_assert_eq!(classes.len(), geometry.experts());
        let mut next = 0;
        for (index, layer) in layers.iter().enumerate() {
            let Some(layer) = layer else {
                prop_assert_eq!(geometry.layer(index), None);
                continue;
            };
            let (class, first) = geometry.layer(index).unwrap();
            prop_assert_eq!(first as usize, next);
            next += layer.experts;
            let size = geometry.classes()[class as usize];
            prop_assert_eq!(size.expert_bytes, layer.expert_bytes);
            prop_assert!(size.slot_bytes >= layer.slot_bytes);
            prop_assert!(classes[first as usize..next].iter().all(|&of| of == class));
        }
        prop_assert_eq!(next, geometry.experts());
        prop_assert_eq!(geometry.layer(layers.len()), None);
    }
}

#[test]
fn two_sizes_share_a_budget_by_the_bytes_of_their_experts() {
    let (small, large) = (1 << 20, 3 << 20);
    let layers = [layer(64, 4, small), layer(64, 4, large), layer(64, 4, small)];
    let geometry = Geometry::new(&layers);
    assert_eq!(geometry.classes().len(), 2);
    let bytes = |slots: &Slots, class: usize| {
        let ClassSlots { kept, staging } = slots.classes[class];
        (kept + staging) as u64 * geometry.classes()[class].slot_bytes as u64
    };
    let slots = geometry.fit(geometry.least_bytes() + (100 << 20)).unwrap();
    // 128 small experts and 64 large ones: two fifths and three fifths of what is left over.
    let rest = |class: usize| {
        let Class { experts_per_token, slot_bytes, .. } = geometry.classes()[class];
        bytes(&slots, class) - (experts_per_token * slot_bytes) as u64
    };
    let near = |got: u64, want: u64, slot: u64| got <= want && got + slot > want;
    assert!(near(rest(0), 40 << 20, small + 2 * BLOCK as u64), "{slots:?}");
    assert!(near(rest(1), 60 << 20, large + 2 * BLOCK as u64), "{slots:?}");
}

#[test]
fn a_small_class_gets_what_a_token_needs_of_it() {
    // By bytes alone the second size would get a fifth of a slot.
    let geometry = Geometry::new(&[layer(256, 8, 2 << 20), layer(8, 8, 100_000)]);
    let slots = geometry.fit(geometry.least_bytes()).unwrap();
    assert_eq!(slots.classes, [ClassSlots { kept: 8, staging: 0 }; 2]);
}

#[test]
fn layers_of_one_size_share_slots_of_the_larger_footprint() {
    let straddling =
        LayerSize { experts: 4, experts_per_token: 2, expert_bytes: 10_000, slot_bytes: 9 * BLOCK };
    let tidy = LayerSize { slot_bytes: 3 * BLOCK, experts_per_token: 3, ..straddling };
    let geometry = Geometry::new(&[None, Some(tidy), None, Some(straddling)]);
    let expect = Class {
        slot_bytes: 9 * BLOCK,
        expert_bytes: 10_000,
        layers: 2,
        experts: 8,
        experts_per_token: 3,
    };
    assert_eq!(geometry.classes(), [expect]);
    assert_eq!((geometry.layer(1), geometry.layer(3)), (Some((0, 0)), Some((0, 4))));
    assert_eq!(geometry.experts_per_token(), 6);
    assert_eq!(geometry.least_bytes(), 3 * 9 * BLOCK as u64);
}

#[test]
fn staging_grows_with_the_slots_up_to_what_a_disk_can_use() {
    #[track_caller]
    fn staging(expert_bytes: u64, slots: usize, expect: usize) {
        let geometry = Geometry::new(&[layer(512, 8, expert_bytes), layer(512, 8, expert_bytes)]);
        let slots = geometry.with_total(slots).unwrap();
        assert_eq!(slots.classes[0].staging, expect, "{slots:?}");
    }
    // A token's experts of a layer, where not all layers' are kept; then a quarter, then 32 MiB but no
    // fewer than 8 slots and no more than 24.
    staging(2 << 20, 8, 8);
    staging(2 << 20, 9, 8);
    staging(2 << 20, 20, 8);
    staging(2 << 20, 21, 5);
    staging(2 << 20, 28, 7);
    staging(2 << 20, 400, 16);
    staging(16 << 20, 400, 8);
    staging(50_000, 400, 24);
}

#[test]
fn layers_share_the_kept_slots_alike() {
    #[track_caller]
    fn shares(experts: [usize; 3], kept: usize, expect: [usize; 3]) {
        let [a, b, c] = experts.map(|experts| layer(experts, 1, 1 << 20));
        let geometry = Geometry::new(&[a, None, b, c]);
        let slots = Slots { classes: vec![ClassSlots { kept, staging: 3 }], bytes: 0 };
        let lists = geometry.layered(&slots).lists;
        assert_eq!(lists.iter().map(|list| list.kept).collect::<Vec<_>>(), expect);
    }
    shares([64; 3], 9, [3, 3, 3]);
    shares([64; 3], 11, [4, 4, 3]);
    shares([64; 3], 2, [1, 1, 0]);
    shares([64; 3], 0, [0; 3]);
    shares([64; 3], 192, [64; 3]);
    // One has hardly any: the others have the rest.
    shares([64, 2, 64], 11, [5, 2, 4]);
    shares([64, 2, 64], 130, [64, 2, 64]);
}
