//! Tests of `cache.rs`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The same policy in the plainest way: by list, the keys kept, the oldest first.
struct Plain {
    room: Vec<usize>,
    staging: Vec<usize>,
    kept: BTreeMap<u16, Vec<u32>>,
    counts: Counts,
}

impl Plain {
    fn new(lists: &[ListSize]) -> Plain {
        Plain {
            room: lists.iter().map(|list| list.kept).collect(),
            staging: lists.iter().map(|list| list.staging).collect(),
            kept: (0..lists.len() as u16).map(|list| (list, Vec::new())).collect(),
            counts: Counts::default(),
        }
    }

    fn visit(&mut self, list_of: &[u16], keys: &[u32], manner: Manner) {
        let list = |key: u32| list_of[key as usize];
        let (hits, misses): (Vec<u32>, Vec<u32>) =
            keys.iter().partition(|&&key| self.kept[&list(key)].contains(&key));
        self.counts.hits += hits.len() as u64;
        self.counts.misses += misses.len() as u64;
        match manner {
            Manner::Keep => {
                for key in hits {
                    let kept = self.kept.get_mut(&list(key)).unwrap();
                    kept.retain(|&other| other != key);
                    kept.push(key);
                }
                self.keep(list_of, misses);
            }
            Manner::Sweep { fill } => {
                let mut passing = Vec::new();
                for (index, key) in misses.into_iter().enumerate() {
                    let kept = self.kept.get_mut(&list(key)).unwrap();
                    if self.staging[list(key) as usize] == 0 {
                        passing.push(key);
                    } else if index < fill && kept.len() < self.room[list(key) as usize] {
                        kept.push(key);
                    }
                }
                self.keep(list_of, passing);
            }
        }
    }

    fn keep(&mut self, list_of: &[u16], mut keys: Vec<u32>) {
        keys.sort_unstable();
        for key in keys {
            let list = list_of[key as usize];
            let kept = self.kept.get_mut(&list).unwrap();
            kept.push(key);
            if kept.len() > self.room[list as usize] {
                kept.remove(0);
            }
        }
    }
}

/// Whatever a visit does, its schedule can be carried out.
#[track_caller]
fn check_schedule(cache: &Cache, steps: &[Step], keys: &[u32]) {
    let mut seen: Vec<u32> = steps.iter().map(|step| step.key).collect();
    let mut wanted = keys.to_vec();
    seen.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(seen, wanted, "every key once");
    for (index, step) in steps.iter().enumerate() {
        assert!((step.slot as usize) < cache.slot_count());
        // The last step before this one in the same slot, and no other.
        let earlier = steps[..index].iter().rposition(|other| other.slot == step.slot);
        assert_eq!(step.after.map(|after| after as usize), earlier);
        if step.hit {
            assert_eq!(step.after, None);
        }
    }
    // Carried out in the order it asks for, each slot ends with what the cache says it keeps.
    for slot in 0..cache.slot_count() as u32 {
        let last = steps.iter().rfind(|step| step.slot == slot);
        if let (Some(last), Some(key)) = (last, cache.content(slot)) {
            assert_eq!(last.key, key);
        }
    }
}

fn visits() -> impl Strategy<Value = Vec<(Vec<u32>, bool)>> {
    let keys = proptest::sample::subsequence((0..40_u32).collect::<Vec<_>>(), 1..12);
    prop::collection::vec((keys.prop_shuffle(), prop::bool::weighted(0.2)), 1..60)
}

proptest! {
    #[test]
    fn it_keeps_what_a_plain_map_keeps(
        visits in visits(),
        kept in (1..20_usize, 1..20_usize),
        staging in (0..4_usize, 0..4_usize),
        fill in 0..6_usize,
        forgotten in 0..40_u32,
        guesses in prop::collection::vec(0..40_u32, 60 * 3),
    ) {
        let lists = [
            ListSize { kept: kept.0, staging: staging.0 },
            ListSize { kept: kept.1, staging: staging.1 },
        ];
        let list_of: Vec<u16> = (0..40).map(|key| u16::from(key >= 15)).collect();
        let mut cache = Cache::new(&lists, list_of.clone());
        let mut plain = Plain::new(&lists);
        let mut steps = Vec::new();
        for (index, (keys, sweeps)) in visits.iter().enumerate() {
            let manner = if *sweeps { Manner::Sweep { fill } } else { Manner::Keep };
            let before: Vec<u32> = cache.kept().collect();
            // Reading ahead changes nothing but where and when.
            let guessed: Vec<(u32, u32)> = guesses[index * 3..index * 3 + 3]
                .iter()
                .filter_map(|&key| Some((key, cache.stage(key, |_, _| true)?)))
                .collect();
            cache.visit(keys, manner, &mut steps);
            plain.visit(&list_of, keys, manner);
            for step in &steps {
                let slot = guessed.iter().find(|guess| guess.0 == step.key).map(|guess| guess.1);
                prop_assert_eq!(step.staged, slot.is_some());
                prop_assert!(!step.staged || slot == Some(step.slot));
            }
            check_schedule(&cache, &steps, keys);
            for step in &steps {
                prop_assert_eq!(step.hit, before.contains(&step.key));
            }
            if *sweeps && staging.0 > 0 && staging.1 > 0 {
                for key in before {
                    prop_assert!(cache.find(key).is_some(), "a prompt flushed {}", key);
                }
            }
            if index % 7 == 3 {
                cache.forget(forgotten);
                plain.kept.values_mut().for_each(|kept| kept.retain(|&key| key != forgotten));
            }
            let mut kept: Vec<u32> = cache.kept().collect();
            let mut expected: Vec<u32> = plain.kept.values().flatten().copied().collect();
            kept.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(kept, expected);
            for slot in 0..cache.slot_count() as u32 {
                if let Some(key) = cache.content(slot) {
                    prop_assert_eq!(cache.find(key), Some(slot));
                }
            }
        }
        prop_assert_eq!(Counts { staged: 0, ..cache.counts() }, plain.counts);
    }
}

#[test]
fn a_visit_larger_than_the_cache_goes_in_waves() {
    let mut cache = Cache::new(&[ListSize { kept: 2, staging: 0 }], vec![0; 8]);
    let mut steps = Vec::new();
    cache.visit(&[5, 1, 3, 7, 0], Manner::Keep, &mut steps);
    let waits: Vec<(u32, Option<u32>)> = steps.iter().map(|step| (step.key, step.after)).collect();
    assert_eq!(waits, [(0, None), (1, None), (3, Some(0)), (5, Some(1)), (7, Some(2))]);
}

#[test]
fn a_prompt_fills_empty_slots_with_what_it_uses_most_and_passes_through_the_rest() {
    let mut cache = Cache::new(&[ListSize { kept: 3, staging: 2 }], vec![0; 16]);
    let mut steps = Vec::new();
    cache.visit(&[9, 4, 2, 7, 1], Manner::Sweep { fill: 2 }, &mut steps);
    assert_eq!(cache.kept().collect::<Vec<_>>(), [4, 9]);
    let staged: Vec<u32> =
        steps.iter().filter(|step| step.slot >= 3).map(|step| step.key).collect();
    assert_eq!(staged, [1, 2, 7]);
    assert_eq!(steps.iter().find(|step| step.key == 7).unwrap().after, Some(0));
}
