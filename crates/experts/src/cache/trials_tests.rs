//! Tests of `trials.rs`: where experts are in their list after drafted rows were right or wrong.

use compute::Trial;
use proptest::prelude::*;

use super::super::tests::{KEYS, cache, check_schedule, partitions, trials, visits};
use super::super::{ListSize, Manner, Partition};
use super::*;

/// Keys of a visit, each with the rows that want it.
type Wanted = [(u32, Trial)];

/// Wanted by a row that is certain.
const SURE: Trial = Trial { rows: 0, depth: 0 };

/// Wanted by the drafted row of this depth alone, which is the row of that number too.
fn drafted(depth: u8) -> Trial {
    Trial { rows: 1 << depth, depth }
}

fn visit(cache: &mut Cache, wanted: &Wanted, manner: Manner) -> Vec<VisitStep> {
    let (keys, trials): (Vec<u32>, Vec<Trial>) = wanted.iter().copied().unzip();
    let mut steps = Vec::new();
    cache.visit(&keys, &trials, manner, &mut steps);
    check_schedule(cache, &steps, &keys);
    steps
}

fn sure(cache: &mut Cache, keys: &[u32]) {
    let wanted: Vec<_> = keys.iter().map(|&key| (key, SURE)).collect();
    visit(cache, &wanted, Manner::Keep);
}

fn kept(cache: &Cache) -> Vec<u32> {
    cache.kept().collect()
}

/// A list that keeps 1 to 4, 4 the newest, is visited: what it keeps before the verdict and after, the
/// newest first.
#[track_caller]
fn check(
    (kept_slots, staging): (usize, usize),
    wanted: &Wanted,
    before: &[u32],
    accepted: u64,
    after: &[u32],
) {
    let mut cache = cache(kept_slots, staging);
    sure(&mut cache, &[1, 2, 3, 4]);
    visit(&mut cache, wanted, Manner::Keep);
    assert_eq!(kept(&cache), before, "before the verdict");
    cache.settle(accepted);
    assert_eq!(kept(&cache), after, "after the verdict");
    // It is given once.
    cache.settle(u64::MAX);
    assert_eq!(kept(&cache), after, "after another");
}

#[test]
fn what_is_found_moves_when_its_rows_were_right() {
    let (first, second) = (drafted(1), drafted(2));
    let both = Trial { rows: 0b110, depth: 1 };
    for staging in [0, 2] {
        let four = (4, staging);
        check(four, &[(2, first)], &[4, 3, 2, 1], 0b10, &[2, 4, 3, 1]);
        check(four, &[(2, first)], &[4, 3, 2, 1], 0, &[4, 3, 2, 1]);
        // Row 0 is always right, and others say nothing of this.
        check(four, &[(2, first)], &[4, 3, 2, 1], 0b1101, &[4, 3, 2, 1]);
        check(four, &[(2, first), (1, SURE)], &[1, 4, 3, 2], 0b10, &[2, 1, 4, 3]);
        // The shallow before the deep, then by key, however they are ordered in the visit.
        let wanted = [(1, second), (4, first), (2, first)];
        check(four, &wanted, &[4, 3, 2, 1], 0b110, &[1, 4, 2, 3]);
        check(four, &wanted, &[4, 3, 2, 1], 0b10, &[4, 2, 3, 1]);
        check(four, &[(1, both), (2, second)], &[4, 3, 2, 1], 0b100, &[2, 1, 4, 3]);
        check(four, &[(1, both), (2, second)], &[4, 3, 2, 1], 0b10, &[1, 4, 3, 2]);
    }
}

#[test]
fn what_is_read_leaves_first_when_its_rows_were_wrong() {
    let (first, second) = (drafted(1), drafted(2));
    for staging in [0, 2] {
        let four = (4, staging);
        check(four, &[(9, first)], &[9, 4, 3, 2], 0, &[4, 3, 2, 9]);
        check(four, &[(9, first)], &[9, 4, 3, 2], 0b10, &[9, 4, 3, 2]);
        // Certain ones are kept first, whatever their key; of the wrong ones the deepest leaves first.
        let wanted = [(5, second), (6, first), (9, SURE)];
        check(four, &wanted, &[5, 6, 9, 4], 0, &[9, 4, 6, 5]);
        check(four, &wanted, &[5, 6, 9, 4], 0b10, &[6, 9, 4, 5]);
        check(four, &wanted, &[5, 6, 9, 4], 0b110, &[5, 6, 9, 4]);
        // What the visit uses is not replaced, even what was drafted and is the oldest.
        let wanted = [(1, first), (9, SURE), (7, second), (3, SURE)];
        check(four, &wanted, &[7, 9, 3, 1], 0, &[9, 3, 1, 7]);
        // Wrong ones come after what is older than all, but not before what is empty.
        check((6, staging), &[(9, first)], &[9, 4, 3, 2, 1], 0, &[4, 3, 2, 1, 9]);
    }
    let mut cache = cache(6, 2);
    sure(&mut cache, &[1, 2, 3, 4]);
    visit(&mut cache, &[(9, first)], Manner::Keep);
    cache.settle(0);
    sure(&mut cache, &[5]);
    assert_eq!(kept(&cache), [5, 4, 3, 2, 1, 9]);
    sure(&mut cache, &[6]);
    assert_eq!(kept(&cache), [6, 5, 4, 3, 2, 1]);
}

#[test]
fn what_is_drafted_makes_room_for_what_is_certain() {
    let (first, second) = (drafted(1), drafted(2));
    // All slots are used: what is drafted passes through, and has no verdict.
    let wanted = [(1, SURE), (2, SURE), (3, first), (4, SURE), (8, second), (9, first)];
    check((4, 2), &wanted, &[4, 2, 1, 3], 0b110, &[3, 4, 2, 1]);
    // Without staging it goes through a slot that was drafted, and what is certain stays.
    check((4, 0), &wanted, &[8, 4, 2, 1], 0b100, &[8, 4, 2, 1]);
    check((4, 0), &wanted, &[8, 4, 2, 1], 0b10, &[4, 2, 1, 8]);
    // So does what is certain and finds no other.
    let wanted = [(1, SURE), (2, first), (3, SURE), (4, SURE), (9, SURE)];
    check((4, 0), &wanted, &[9, 4, 3, 1], 0b10, &[9, 4, 3, 1]);
    check((4, 2), &wanted, &[4, 3, 1, 2], 0b10, &[2, 4, 3, 1]);
}

#[test]
fn certain_use_ends_a_trial() {
    let mut cache = cache(4, 2);
    sure(&mut cache, &[1, 2, 3, 4]);
    visit(&mut cache, &[(9, drafted(1)), (8, drafted(1))], Manner::Keep);
    sure(&mut cache, &[9]);
    cache.settle(0);
    assert_eq!(kept(&cache), [9, 4, 3, 8]);
    // A prompt that finds it ends it too, and moves nothing.
    visit(&mut cache, &[(7, drafted(1))], Manner::Keep);
    visit(&mut cache, &[(7, SURE)], Manner::Sweep);
    cache.settle(0);
    assert_eq!(kept(&cache), [7, 9, 4, 3]);
}

#[test]
fn one_right_row_of_two_visits_is_enough() {
    for (accepted, expect) in
        [(0, [4, 3, 2, 9]), (0b10, [9, 4, 3, 2]), (0b100, [9, 4, 3, 2]), (0b110, [9, 4, 3, 2])]
    {
        let mut cache = cache(4, 0);
        sure(&mut cache, &[1, 2, 3, 4]);
        visit(&mut cache, &[(9, drafted(1))], Manner::Keep);
        visit(&mut cache, &[(9, drafted(2))], Manner::Keep);
        cache.settle(accepted);
        assert_eq!(kept(&cache), expect, "{accepted:b}");
    }
}

#[test]
fn a_prompt_keeps_what_is_drafted_only_where_nothing_else_would_be() {
    let mut cache = cache(6, 2);
    sure(&mut cache, &[1, 2, 3, 4]);
    let wanted = [(9, drafted(1)), (2, drafted(1)), (7, SURE), (8, drafted(2)), (3, SURE)];
    visit(&mut cache, &wanted, Manner::Sweep);
    assert_eq!(kept(&cache), [9, 7, 4, 3, 2, 1]);
    let mut right = cache.clone();
    right.settle(0b110);
    assert_eq!(kept(&right), [9, 7, 4, 3, 2, 1]);
    cache.settle(0);
    assert_eq!(kept(&cache), [7, 4, 3, 2, 1, 9]);
}

#[test]
fn lists_are_settled_each_for_itself() {
    let lists = vec![ListSize { class: 0, kept: 3 }; 2];
    let list_of = (0..16).map(|key| key / 8).collect();
    let mut cache = Cache::new(Partition { lists, staging: vec![2], list_of });
    sure(&mut cache, &[1, 2, 3]);
    sure(&mut cache, &[9, 10, 11]);
    let (first, second) = (drafted(1), drafted(2));
    visit(&mut cache, &[(2, SURE), (1, first), (6, second)], Manner::Keep);
    visit(&mut cache, &[(9, first), (12, first), (10, second)], Manner::Keep);
    assert_eq!(kept(&cache), [6, 2, 1, 12, 10, 9]);
    cache.settle(0b10);
    assert_eq!(kept(&cache), [1, 2, 6, 12, 9, 10]);
}

#[test]
fn what_was_read_ahead_is_on_trial_in_the_slot_it_was_read_into() {
    for (accepted, expect) in [(0, [4, 3, 9]), (0b10, [9, 4, 3])] {
        let mut cache = cache(3, 2);
        sure(&mut cache, &[2, 3, 4]);
        let slot = cache.stage(9, |_, _| true).unwrap();
        let steps = visit(&mut cache, &[(9, drafted(1))], Manner::Keep);
        assert_eq!((steps[0].slot, steps[0].staged), (slot, true));
        cache.settle(accepted);
        assert_eq!(kept(&cache), expect);
        assert_eq!(cache.find(9), Some(slot));
        // The other slot is a staging slot now, with nothing on trial.
        sure(&mut cache, &[4, 3, 9]);
        visit(&mut cache, &[(4, SURE), (3, SURE), (9, SURE), (7, SURE)], Manner::Keep);
        cache.settle(0);
        assert_eq!(kept(&cache), [9, 3, 4]);
    }
}

#[test]
fn what_did_not_come_has_no_verdict() {
    for staging in [0, 2] {
        for accepted in [0, 0b110] {
            let mut cache = cache(4, staging);
            sure(&mut cache, &[1, 2, 3, 4]);
            let wanted = [(3, drafted(1)), (8, drafted(1)), (9, drafted(2))];
            let steps = visit(&mut cache, &wanted, Manner::Keep);
            let slot_of = |key| steps.iter().find(|step| step.key == key).unwrap().slot;
            cache.forget(8);
            cache.set_aside(slot_of(9));
            cache.set_aside(slot_of(3));
            cache.settle(accepted);
            assert_eq!(kept(&cache), [4]);
            // One slot is empty; the others come back and are as good as new.
            sure(&mut cache, &[5]);
            assert_eq!(kept(&cache), [5, 4]);
            cache.put_back(slot_of(9));
            cache.put_back(slot_of(3));
            sure(&mut cache, &[9, 3]);
            cache.settle(0);
            assert_eq!(kept(&cache), [9, 3, 5, 4]);
        }
    }
}

#[test]
fn drafted_rows_are_none_of_a_prompt() {
    let trials = |rows| [SURE, Trial { rows, depth: 1 }];
    let many = u64::MAX << 8;
    for (rows, trials, expect) in [
        (32, &[][..], Manner::Keep),
        (33, &[], Manner::Sweep),
        (33, &[SURE; 4], Manner::Sweep),
        (33, &trials(1 << 32), Manner::Keep),
        (64, &trials(many), Manner::Keep),
        (64, &trials(0b111), Manner::Sweep),
    ] {
        assert_eq!(Manner::of(rows, trials), expect, "{rows} {trials:?}");
    }
}

/// What is left of some keys in the order of others.
fn without(keys: &[u32], others: &[u32]) -> Vec<u32> {
    keys.iter().copied().filter(|key| !others.contains(key)).collect()
}

fn is_subsequence(part: &[u32], whole: &[u32]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|key| whole.any(|other| other == key))
}

proptest! {
    /// A step whose drafted rows were all wrong, against the same step without them. Of the experts that
    /// the drafted rows did not want the step keeps the same in the same order, but for some at the end of
    /// the list, one at most for each drafted expert; what was read for them comes after all others; what
    /// was found for them stays, in its place among what was not used.
    #[test]
    fn wrong_rows_cost_the_oldest_and_no_more(
        history in visits(),
        drafts in prop::collection::vec(trials(), 60),
        partition in partitions(),
    ) {
        let mut cache = Cache::new(partition.clone());
        for (index, (list, keys, sweeps)) in history.iter().enumerate() {
            let manner = if *sweeps { Manner::Sweep } else { Manner::Keep };
            let wanted: Vec<(u32, Trial)> =
                keys.iter().copied().zip(drafts[index].iter().copied()).collect();
            let of_list = |cache: &Cache| {
                let keys = cache.kept().filter(|key| key / KEYS == *list);
                keys.collect::<Vec<_>>()
            };
            let before = of_list(&cache);
            let certain: Vec<(u32, Trial)> =
                wanted.iter().copied().filter(|(_, trial)| !trial.is_drafted()).collect();
            let sure: Vec<u32> = certain.iter().map(|wanted| wanted.0).collect();
            let tried = without(keys, &sure);
            let (found, read): (Vec<u32>, Vec<u32>) =
                tried.iter().partition(|key| before.contains(key));
            let mut plain = cache.clone();
            if !certain.is_empty() {
                visit(&mut plain, &certain, manner);
            }
            let origin = cache.clone();
            visit(&mut cache, &wanted, manner);
            cache.settle(0);
            let (with, alone) = (of_list(&cache), of_list(&plain));
            let (others, all) = (without(&with, &tried), without(&alone, &tried));
            let ListSize { class, kept: room } = partition.lists[*list as usize];
            let is_staged = partition.staging[class as usize] > 0;
            let has_room = sure.len() + found.len() <= room;
            if has_room {
                prop_assert_eq!(&others[..], &all[..others.len()], "the newest stay");
                prop_assert!(all.len() - others.len() <= tried.len());
            } else if is_staged {
                // What was found for drafted rows has kept a slot from what is certain.
                prop_assert!(is_subsequence(&others, &all), "{others:?} of {all:?}");
            }
            if has_room && manner == Manner::Keep && (is_staged || sure.len() < room) {
                prop_assert!(sure.iter().all(|key| with.contains(key)), "{with:?} without {sure:?}");
            }
            if is_staged || keys.len() <= room {
                let unused = without(&before, &sure);
                let left = without(&without(&with, &sure), &read);
                prop_assert!(is_subsequence(&left, &unused), "{left:?} of {unused:?}");
                prop_assert!(found.iter().all(|key| with.contains(key)));
            }
            if *sweeps && is_staged {
                prop_assert_eq!(&others, &all, "a prompt replaces nothing");
            }
            let first = with.iter().position(|key| read.contains(key)).unwrap_or(with.len());
            prop_assert!(with[first..].iter().all(|key| read.contains(key)), "{with:?}, {read:?}");
            // Some of what comes next comes after rows that were right.
            if index % 2 == 0 {
                cache = origin;
                visit(&mut cache, &wanted, manner);
                cache.settle(u64::MAX);
            }
        }
    }
}
