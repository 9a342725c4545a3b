//! Tests of `cache.rs`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The same policy in the plainest way: by list, the keys kept, the oldest first.
struct Plain {
    room: Vec<usize>,
    /// By list: whether there is something to pass through.
    staging: Vec<bool>,
    kept: Vec<Vec<u32>>,
    counts: Counts,
    /// Keys that were read for drafted rows alone.
    probation: BTreeSet<u32>,
    /// By visit: list, depth, key and rows.
    unsettled: Vec<BTreeSet<(usize, u8, u32, u64)>>,
}

impl Plain {
    fn new(partition: &Partition) -> Plain {
        let lists = &partition.lists;
        Plain {
            room: lists.iter().map(|list| list.kept).collect(),
            staging: lists.iter().map(|list| partition.staging[list.class as usize] > 0).collect(),
            kept: vec![Vec::new(); lists.len()],
            counts: Counts::default(),
            probation: BTreeSet::new(),
            unsettled: Vec::new(),
        }
    }

    fn visit(&mut self, list: usize, wanted: &[(u32, Trial)], manner: Manner) {
        let (room, staging, kept) = (self.room[list], self.staging[list], &mut self.kept[list]);
        let (hits, mut misses): (Vec<_>, Vec<_>) =
            wanted.iter().copied().partition(|(key, _)| kept.contains(key));
        self.counts.hits += hits.len() as u64;
        self.counts.misses += misses.len() as u64;
        let drafted: BTreeSet<u32> =
            wanted.iter().filter(|(_, trial)| trial.rows > 0).map(|(key, _)| *key).collect();
        self.probation
            .retain(|key| !hits.iter().any(|(hit, _)| hit == key) || drafted.contains(key));
        let mut on_trial = Vec::new();
        if manner == Manner::Sweep && staging {
            misses.sort_by_key(|(_, trial)| trial.depth);
            misses.truncate(room - kept.len());
            kept.extend(misses.iter().map(|(key, _)| key));
            on_trial.extend(&misses);
        } else {
            for (key, _) in hits.iter().filter(|(key, _)| !drafted.contains(key)) {
                kept.retain(|other| other != key);
                kept.push(*key);
            }
            on_trial.extend(&hits);
            misses.sort_unstable_by_key(|&(key, trial)| (trial.depth, key));
            let mut used: Vec<u32> = hits.iter().map(|(key, _)| *key).collect();
            for &(key, trial) in &misses {
                if kept.len() == room {
                    let unused = kept.iter().position(|key| !used.contains(key));
                    if unused.is_none() && staging {
                        continue;
                    }
                    let least = || kept.iter().position(|key| drafted.contains(key));
                    kept.remove(unused.or_else(least).unwrap_or(0));
                }
                kept.push(key);
                used.push(key);
                on_trial.push((key, trial));
            }
        }
        on_trial.retain(|(key, _)| drafted.contains(key) && kept.contains(key));
        let read = |key: &u32| misses.iter().any(|(miss, _)| miss == key);
        self.probation.retain(|key| !read(key));
        self.probation.extend(on_trial.iter().map(|(key, _)| *key).filter(read));
        let entry = |(key, trial): (u32, Trial)| (list, trial.depth, key, trial.rows);
        self.unsettled.push(on_trial.into_iter().map(entry).collect());
    }

    fn settle(&mut self, accepted: u64) {
        for (list, _, key, rows) in std::mem::take(&mut self.unsettled).into_iter().flatten() {
            let kept = &mut self.kept[list];
            if !kept.contains(&key) {
                continue;
            }
            if rows & accepted != 0 {
                kept.retain(|&other| other != key);
                kept.push(key);
                self.probation.remove(&key);
            } else if self.probation.remove(&key) {
                kept.retain(|&other| other != key);
                kept.insert(0, key);
            }
        }
    }
}

/// Whatever a visit does, its schedule can be carried out.
#[track_caller]
pub(super) fn check_schedule(cache: &Cache, steps: &[VisitStep], keys: &[u32]) {
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
    // Carried out in the order of the schedule, each slot ends with what the cache says it keeps.
    for slot in 0..cache.slot_count() as u32 {
        let last = steps.iter().rfind(|step| step.slot == slot);
        if let (Some(last), Some(key)) = (last, cache.content(slot)) {
            assert_eq!(last.key, key);
        }
    }
}

/// Keys of each of three lists.
pub(super) const KEYS: u32 = 14;

/// Lists and keys of them, and whether it is a prompt.
pub(super) fn visits() -> impl Strategy<Value = Vec<(u32, Vec<u32>, bool)>> {
    let keys = proptest::sample::subsequence((0..KEYS).collect::<Vec<_>>(), 1..12).prop_shuffle();
    let visit = (0..3_u32, keys, prop::bool::weighted(0.2)).prop_map(|(list, mut keys, sweeps)| {
        keys.iter_mut().for_each(|key| *key += list * KEYS);
        (list, keys, sweeps)
    });
    prop::collection::vec(visit, 1..60)
}

/// Slots of three lists; the first and the last share staging.
pub(super) fn partitions() -> impl Strategy<Value = Partition> {
    let kept = (0..10_usize, 0..10_usize, 0..10_usize);
    (kept, prop::collection::vec(0..4_usize, 2)).prop_map(|((a, b, c), staging)| {
        let list = |(class, kept): (u16, usize)| {
            let least = usize::from(staging[class as usize] == 0);
            ListSize { class, kept: kept.max(least) }
        };
        let lists = [(0, a), (1, b), (0, c)].map(list).to_vec();
        Partition {
            lists,
            staging,
            list_of: (0..3 * KEYS).map(|key| (key / KEYS) as u16).collect(),
        }
    })
}

/// The rows that want each of the keys of a visit; often rows that are certain.
pub(super) fn trials() -> impl Strategy<Value = Vec<Trial>> {
    let trial = (0..4_u8, 1..256_u64).prop_map(|(depth, rows)| match depth {
        0 => Trial::default(),
        depth => Trial { depth, rows },
    });
    prop::collection::vec(trial, KEYS as usize)
}

/// For each visit, the rows that want its keys where rows are drafted, and the verdict after it if there is one.
fn drafts() -> impl Strategy<Value = Vec<(Option<Vec<Trial>>, Option<u64>)>> {
    prop::collection::vec((prop::option::of(trials()), prop::option::of(0..256_u64)), 60)
}

proptest! {
    #[test]
    fn it_keeps_what_a_plain_map_keeps(
        visits in visits(),
        partition in partitions(),
        forgotten in 0..3 * KEYS,
        guesses in prop::collection::vec(0..3 * KEYS, 60 * 3),
        drafts in drafts(),
    ) {
        let mut cache = Cache::new(partition.clone());
        let mut plain = Plain::new(&partition);
        let mut steps = Vec::new();
        for (index, (list, keys, sweeps)) in visits.iter().enumerate() {
            let list = *list as usize;
            let manner = if *sweeps { Manner::Sweep } else { Manner::Keep };
            let before: Vec<u32> = cache.kept().collect();
            // Reading ahead changes nothing but where and when.
            let guessed: Vec<(u32, u32)> = guesses[index * 3..index * 3 + 3]
                .iter()
                .filter_map(|&key| Some((key, cache.stage(key, |_, _| true)?)))
                .collect();
            let trials = drafts[index].0.as_ref().map_or(&[][..], |trials| &trials[..keys.len()]);
            cache.visit(keys, trials, manner, &mut steps);
            let trial_of = |at: usize| trials.get(at).copied().unwrap_or_default();
            let wanted: Vec<(u32, Trial)> =
                keys.iter().enumerate().map(|(at, &key)| (key, trial_of(at))).collect();
            plain.visit(list, &wanted, manner);
            for step in &steps {
                let slot = guessed.iter().find(|guess| guess.0 == step.key).map(|guess| guess.1);
                prop_assert_eq!(step.staged, slot.is_some());
                prop_assert!(!step.staged || slot == Some(step.slot));
            }
            check_schedule(&cache, &steps, keys);
            for step in &steps {
                prop_assert_eq!(step.hit, before.contains(&step.key));
                prop_assert!(wanted.contains(&(step.key, step.trial)));
            }
            if *sweeps && plain.staging[list] {
                for key in before {
                    prop_assert!(cache.find(key).is_some(), "a prompt flushed {}", key);
                }
            }
            if index % 7 == 3 {
                cache.forget(forgotten);
                plain.kept.iter_mut().for_each(|kept| kept.retain(|&key| key != forgotten));
                plain.probation.remove(&forgotten);
            }
            if let Some(accepted) = drafts[index].1 {
                cache.settle(accepted);
                plain.settle(accepted);
            }
            let expected = plain.kept.iter().flat_map(|kept| kept.iter().rev().copied());
            prop_assert_eq!(cache.kept().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            for slot in 0..cache.slot_count() as u32 {
                if let Some(key) = cache.content(slot) {
                    prop_assert_eq!(cache.find(key), Some(slot));
                }
            }
        }
        prop_assert_eq!(Counts { staged: 0, ..cache.counts() }, plain.counts);
    }
}

/// A cache of one list.
pub(super) fn cache(kept: usize, staging: usize) -> Cache {
    let lists = vec![ListSize { class: 0, kept }];
    Cache::new(Partition { lists, staging: vec![staging], list_of: vec![0; 16] })
}

#[test]
fn a_visit_larger_than_the_cache_goes_in_waves() {
    let waits = |cache: &mut Cache| {
        let mut steps = Vec::new();
        cache.visit(&[5, 1, 3, 7, 0], &[], Manner::Keep, &mut steps);
        steps.iter().map(|step| (step.key, step.after)).collect::<Vec<_>>()
    };
    let two_by_two = [(0, None), (1, None), (3, Some(0)), (5, Some(1)), (7, Some(2))];
    assert_eq!(waits(&mut cache(2, 0)), two_by_two);
    assert_eq!(waits(&mut cache(0, 2)), two_by_two);
    // What is kept is not waited for while there is staging.
    let others_in_turn = [(0, None), (1, None), (3, None), (5, Some(2)), (7, Some(3))];
    assert_eq!(waits(&mut cache(2, 1)), others_in_turn);
}

#[test]
fn a_few_tokens_replace_nothing_that_they_use() {
    let mut cache = cache(3, 2);
    let mut steps = Vec::new();
    cache.visit(&[2, 4, 8], &[], Manner::Keep, &mut steps);
    cache.visit(&[9, 4, 7, 2, 6], &[], Manner::Keep, &mut steps);
    // 8 left for 6, and two passed through.
    assert_eq!(cache.kept().collect::<Vec<_>>(), [6, 2, 4]);
    assert!(steps.iter().all(|step| step.after.is_none()), "{steps:?}");
    cache.visit(&[7, 9], &[], Manner::Keep, &mut steps);
    assert!(steps.iter().all(|step| !step.hit));
    assert_eq!(cache.kept().collect::<Vec<_>>(), [9, 7, 6]);
}

#[test]
fn a_prompt_fills_empty_slots_with_what_it_uses_most_and_passes_through_the_rest() {
    let mut cache = cache(2, 2);
    let mut steps = Vec::new();
    cache.visit(&[9, 4, 2, 7, 1], &[], Manner::Sweep, &mut steps);
    assert_eq!(cache.kept().collect::<Vec<_>>(), [4, 9]);
    let staged: Vec<u32> =
        steps.iter().filter(|step| step.slot >= 2).map(|step| step.key).collect();
    assert_eq!(staged, [1, 2, 7]);
    assert_eq!(steps.iter().find(|step| step.key == 7).unwrap().after, Some(0));
}

#[test]
fn what_passes_through_waits_for_nothing_while_a_staging_slot_is_free() {
    let mut cache = cache(1, 4);
    let mut steps = Vec::new();
    cache.visit(&[0], &[], Manner::Keep, &mut steps);
    // Right guesses stay where they are, and the slots of wrong ones are the last to be taken.
    for (right, wrong) in [(5, 9), (9, 5), (5, 10)] {
        let staged = [right, wrong].map(|key| cache.stage(key, |_, _| true).unwrap());
        cache.visit(&[0, right, 6, 7], &[], Manner::Keep, &mut steps);
        assert!(steps.iter().all(|step| step.after.is_none()), "{steps:?}");
        assert!(steps.iter().all(|step| step.slot != staged[1]), "{steps:?}");
        assert_eq!(steps[1], VisitStep { key: right, slot: staged[0], staged: true, ..steps[1] });
    }
}

#[test]
fn a_slot_out_of_use_is_not_assigned_if_there_is_another() {
    for (kept, staging) in [(2, 0), (1, 2), (1, 0)] {
        let mut cache = cache(kept, staging);
        let mut steps = Vec::new();
        cache.visit(&[3], &[], Manner::Keep, &mut steps);
        let aside = steps[0].slot;
        cache.set_aside(aside);
        assert_eq!(cache.find(3), None);
        for key in 4..8 {
            cache.visit(&[key], &[], Manner::Keep, &mut steps);
            assert_eq!(steps[0].slot != aside, kept + staging > 1, "{kept} + {staging}: {steps:?}");
        }
        cache.put_back(aside);
        cache.visit(&[9], &[], Manner::Keep, &mut steps);
        assert_eq!((steps[0].slot, cache.find(9)), (aside, Some(aside)));
    }
}
