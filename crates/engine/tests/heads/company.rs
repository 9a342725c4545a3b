//! A draft is the same to the bit whichever way its sequence came about.

use model::{Batch, Logits, SegmentKind};
use proptest::prelude::*;

use crate::rig::{Rig, Track, options, tokens};
use crate::weights::{DflashShape, Experts, dflash_weights, minus_one, mtp_weights};

/// A head of each kind, on a target with recurrent layers and on one that can be cut.
fn rigs() -> Vec<(&'static str, Rig)> {
    let shape = DflashShape::default();
    let weights = dflash_weights(&shape);
    vec![
        ("MTP", Rig::mtp("qwen3_5_moe-f32", &mtp_weights(96, Experts::Separate))),
        ("DFlash", Rig::dflash("qwen3_5_moe-f32", &shape, &weights)),
        ("DFlash on a target that can be cut", Rig::dflash("qwen3-f32", &shape, &weights)),
    ]
}

fn bits(draft: &[(u32, Vec<f32>)]) -> Vec<u32> {
    draft.iter().flat_map(|(_, logits)| logits.iter().map(|x| x.to_bits())).collect()
}

#[track_caller]
fn same(what: &str, want: &[(u32, Vec<f32>)], got: &[(u32, Vec<f32>)]) {
    assert!(!want.is_empty() && bits(want) == bits(got), "{what}");
}

fn fresh(rig: &mut Rig, tokens: &[u32]) -> Track {
    let mut track = rig.track();
    rig.feed(&mut track, tokens, &[]);
    track
}

#[test]
fn tokens_may_come_in_any_cuts() {
    for (name, mut rig) in rigs() {
        let prompt = tokens(1, 200);
        let mut whole = fresh(&mut rig, &prompt);
        let want = rig.draft(&mut whole, 9, 5);
        let strategy = proptest::collection::vec(1..90usize, 1..9);
        let config = ProptestConfig { cases: 8, ..ProptestConfig::default() };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let rig = std::cell::RefCell::new(&mut rig);
        runner
            .run(&strategy, |sizes| {
                let rig = &mut **rig.borrow_mut();
                let mut track = rig.track();
                rig.feed(&mut track, &prompt, &sizes);
                let got = rig.draft(&mut track, 9, 5);
                prop_assert!(bits(&want) == bits(&got), "{} in cuts of {:?}", name, sizes);
                Ok(())
            })
            .expect(name);
    }
}

#[test]
fn several_sequences_draft_as_each_alone() {
    for (name, mut rig) in rigs() {
        let mut tracks: Vec<Track> = [70, 1, 130]
            .iter()
            .map(|&count| fresh(&mut rig, &tokens(count as u32, count)))
            .collect();
        let wanted = [(3, 7), (200, 2), (64, 4)];
        let alone: Vec<_> =
            tracks.iter_mut().zip(wanted).map(|(t, (token, n))| rig.draft(t, token, n)).collect();
        let mut together: Vec<&mut Track> = tracks.iter_mut().collect();
        for (got, want) in rig.draft_all(&mut together, &wanted).iter().zip(&alone) {
            same(name, want, got);
        }
    }
}

#[test]
fn what_a_draft_wrote_is_forgotten() {
    for (name, mut rig) in rigs() {
        let all = tokens(5, 140);
        let mut track = fresh(&mut rig, &all[..60]);
        // Drafts across a page's end, each followed by what was really said.
        for end in [61, 64, 70, 127, 131, 140] {
            rig.draft(&mut track, 250, 7);
            let start = track.tokens.len();
            rig.feed(&mut track, &all[start..end], &[]);
            let mut scratch = fresh(&mut rig, &all[..end]);
            same(name, &rig.draft(&mut scratch, 8, 6), &rig.draft(&mut track, 8, 6));
        }
    }
}

#[test]
fn rejected_tokens_leave_nothing_in_a_head() {
    for (name, mut rig) in rigs() {
        let prompt = tokens(6, 62);
        let mut track = fresh(&mut rig, &prompt);
        // Of each draft some stay, across a page's end.
        for kept in [3, 1, 6] {
            let draft = rig.draft(&mut track, 33, 7);
            let rows: Vec<u32> =
                std::iter::once(33).chain(draft.into_iter().map(|(token, _)| token)).collect();
            let features = rig.verify(&mut track, &rows, kept);
            rig.take_in(&mut track, &rows[..kept], features);
            let mut scratch = fresh(&mut rig, &track.tokens);
            same(name, &rig.draft(&mut scratch, 8, 6), &rig.draft(&mut track, 8, 6));
        }
    }
}

#[test]
fn a_cut_sequence_drafts_as_if_it_had_never_been_longer() {
    let shape = DflashShape::default();
    let mut rig = Rig::dflash("qwen3-f32", &shape, &dflash_weights(&shape));
    let prompt = tokens(6, 90);
    let mut track = fresh(&mut rig, &prompt);
    track.sequence.truncate(40).expect("it can be cut");
    assert_eq!(track.sequence.head_len(), 40);
    track.tokens.truncate(40);
    track.features.truncate(40 * track.width);
    let mut scratch = fresh(&mut rig, &prompt[..40]);
    same("cut", &rig.draft(&mut scratch, 8, 6), &rig.draft(&mut track, 8, 6));
}

#[test]
fn forks_continue_as_if_alone() {
    for (name, mut rig) in rigs() {
        let (root, left, right) = (tokens(7, 75), tokens(8, 30), tokens(9, 90));
        let mut track = fresh(&mut rig, &root);
        let mut other = track.fork();
        rig.feed(&mut track, &left, &[]);
        rig.feed(&mut other, &right, &[]);
        for (track, tail) in [(&mut track, &left), (&mut other, &right)] {
            let got = rig.draft(track, 8, 6);
            let mut scratch = fresh(&mut rig, &[root.as_slice(), tail].concat());
            same(name, &rig.draft(&mut scratch, 8, 6), &got);
        }
    }
}

#[test]
fn a_prefix_of_the_past_serves_a_head_too() {
    for (name, mut rig) in rigs() {
        let (root, tail) = (tokens(10, 80), tokens(11, 20));
        let kept = fresh(&mut rig, &root);
        // A request that finds it in a cache has pages, but not what the target thought of the last token.
        let reused = |rig: &mut Rig| {
            let mut track = Track { is_last_known: false, ..kept.fork() };
            rig.feed(&mut track, &tail, &[]);
            rig.draft(&mut track, 8, 6)
        };
        let (once, again) = (reused(&mut rig), reused(&mut rig));
        same(name, &once, &again);
        if name.starts_with("DFlash") {
            let mut scratch = fresh(&mut rig, &[root.as_slice(), &tail].concat());
            same(name, &rig.draft(&mut scratch, 8, 6), &once);
        }
        // The one that was kept has not changed.
        let mut kept = kept;
        let mut scratch = fresh(&mut rig, &root);
        same(name, &rig.draft(&mut scratch, 8, 6), &rig.draft(&mut kept, 8, 6));
    }
}

#[test]
fn tokens_that_were_never_taken_in_cost_guesses_only() {
    for (name, mut rig) in rigs() {
        let all = tokens(12, 150);
        let mut track = rig.track();
        rig.feed(&mut track, &all[..20], &[]);
        let features = rig.forward(&mut track, &all[20..100]);
        assert_eq!(rig.draft(&mut track, 8, 6), Vec::new(), "{name}");
        drop(features);
        track.is_last_known = false;
        rig.feed(&mut track, &all[100..], &[]);
        let draft = rig.draft(&mut track, 8, 6);
        assert_eq!(draft.len(), 6, "{name}");
        assert!(draft.iter().flat_map(|(_, logits)| logits).all(|x| x.is_finite()), "{name}");
        let mut scratch = fresh(&mut rig, &all);
        assert_ne!(bits(&draft), bits(&rig.draft(&mut scratch, 8, 6)), "{name}");
    }
}

#[test]
fn drafts_end_where_the_context_does() {
    for (name, mut rig) in rigs() {
        let mut track = fresh(&mut rig, &tokens(13, 318));
        let len = rig.draft(&mut track, 8, 6).len();
        assert!((1..=2).contains(&len), "{name}: {len}");
        rig.feed(&mut track, &[1, 2], &[]);
        assert!(rig.draft(&mut track, 8, 6).is_empty(), "{name}");
    }
}

#[test]
fn a_head_does_not_change_what_its_target_says() {
    let prompt = tokens(14, 90);
    let mut batch = Batch::default();
    batch.push(0, 0, &prompt, SegmentKind::Prefill, Logits::Last);
    for (name, mut rig) in rigs() {
        let logits = |runner: &mut runtime::Runner| {
            let mut sequence = runner.sequence().expect("a sequence");
            let mut bits: Vec<u32> = Vec::new();
            runner
                .forward(&batch, &mut [&mut sequence], |_, row| {
                    bits.extend(row.iter().map(|x| x.to_bits()));
                })
                .expect("forward");
            bits
        };
        let with = logits(&mut rig.runner);
        let mut plain = rig.without_head();
        assert!(with == logits(&mut plain) && !with.is_empty(), "{name}");
        assert!(plain.take_features().is_empty());
    }
}

#[test]
fn experts_and_norms_may_be_stored_in_any_form() {
    let draft = |mut rig: Rig| {
        let mut track = fresh(&mut rig, &tokens(15, 66));
        rig.draft(&mut track, 8, 4)
    };
    let want = draft(Rig::mtp("qwen3_5_moe-f32", &mtp_weights(96, Experts::Separate)));
    for experts in [Experts::Fused, Experts::Stacked] {
        let got = draft(Rig::mtp("qwen3_5_moe-f32", &mtp_weights(96, experts)));
        same(&format!("{experts:?}"), &want, &got);
    }
    // A target that MLX has converted: the head's norms may be either way.
    let weights = mtp_weights(128, Experts::Stacked);
    let plain = draft(Rig::mtp_stored("qwen3_5_moe-4bit", &weights, &options()));
    let centred = draft(Rig::mtp_stored("qwen3_5_moe-4bit", &minus_one(&weights), &options()));
    same("centred norms", &plain, &centred);
}
