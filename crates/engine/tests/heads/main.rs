//! Draft heads on tiny models: against a plain f64 computation, and against themselves with other chunks and in other batches.
//!
//! The heads have random weights: what they guess is worth nothing, but every bit of it is fixed by the weights, the
//! tokens and what the target thought of them, whichever way the tokens came in.

mod company;
mod features;
mod golden;
mod parsing;
mod pebble;
mod planned;
mod reference;
mod rig;
mod weights;

use rig::{Rig, tokens};
use weights::{DflashShape, Experts, dflash_weights, mtp_weights};

/// Logits may differ from f64 by this share of their standard deviation, as in the golden tests of whole models.
const TOLERANCE: f64 = 1e-3;

#[track_caller]
fn compare(what: &str, got: &[(u32, Vec<f32>)], want: &[Vec<f64>]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (slot, ((token, got), want)) in got.iter().zip(want).enumerate() {
        let mean = want.iter().sum::<f64>() / want.len() as f64;
        let square = want.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        let std = (square / want.len() as f64).sqrt();
        let worst =
            got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(
            worst < TOLERANCE * std,
            "{what}, slot {slot}: {worst:.2e} off, deviation {std:.2e}"
        );
        let best =
            (0..want.len()).max_by(|&a, &b| want[a].total_cmp(&want[b])).expect("a vocabulary");
        assert_eq!(*token as usize, best, "{what}, slot {slot}");
    }
}

#[track_caller]
fn check_mtp(experts: Experts, prompt: usize, count: usize) {
    let weights = mtp_weights(96, experts);
    let mut rig = Rig::mtp("qwen3_5_moe-f32", &weights);
    let prompt = tokens(prompt as u32, prompt);
    let mut track = rig.track();
    rig.feed(&mut track, &prompt, &[]);
    let got = rig.draft(&mut track, 17, count);
    let want = reference::mtp(&rig.embedding(), &rig.head(), &weights, &track, 17, count);
    compare(&format!("MTP {experts:?} after {}", prompt.len()), &got, &want);
}

#[test]
fn mtp_drafts_agree_with_f64() {
    for experts in [Experts::None, Experts::Separate] {
        for (prompt, count) in [(1, 1), (2, 3), (40, 4), (130, 2)] {
            check_mtp(experts, prompt, count);
        }
    }
}

#[track_caller]
fn check_dflash(shape: &DflashShape, prompt: usize, count: usize) {
    let weights = dflash_weights(shape);
    let mut rig = Rig::dflash("qwen3_5_moe-f32", shape, &weights);
    let prompt = tokens(prompt as u32, prompt);
    let mut track = rig.track();
    rig.feed(&mut track, &prompt, &[]);
    let got = rig.draft(&mut track, 17, count);
    let want = reference::dflash(&rig.embedding(), &rig.head(), &weights, shape, &track, 17, count);
    compare(&format!("{shape:?} after {}, {count}", prompt.len()), &got, &want);
}

#[test]
fn dflash_drafts_agree_with_f64() {
    let full = DflashShape { sliding: vec![false, false], ..DflashShape::default() };
    let both_ways = DflashShape { causal: Some(false), ..DflashShape::default() };
    let causal = DflashShape { causal: Some(true), ..full.clone() };
    for shape in [full, DflashShape::default(), both_ways, causal] {
        // The last is so long that the sliding layers have released pages.
        for (prompt, count) in [(1, 7), (30, 1), (60, 7), (100, 4), (250, 7)] {
            check_dflash(&shape, prompt, count);
        }
    }
}
