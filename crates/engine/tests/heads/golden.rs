//! Pebble's heads against transformers and z-lab's own code, in f32 on the dequantized weights.
//!
//! `testdata/heads/README.md` says how the numbers came about. Features and logits must be within a tolerance, drafted
//! tokens the same.

use checkpoint::Checkpoint;
use compute::memory::KvFormat;
use runtime::Options;

use crate::pebble::{dflash, mtp, pebble, root};
use crate::rig::{Rig, Track};

/// How far features and logits may be off, of their deviation. Measured: at most 6e-4, but for the end of one case,
/// where two experts of the target come so close that the last bit decides between them. What it thinks of a token
/// there is 5e-3 off, and so is what the heads make of it: 1.4e-2 at most.
fn tolerance(case: &str, known: usize) -> f64 {
    if case == "tool" && known >= 249 { 2e-2 } else { 2e-3 }
}

const CASES: [&str; 4] = ["story", "arithmetic", "tool", "recall"];

/// The first token whose logits are kept, and the step to the next.
const KEPT: (usize, usize) = (5, 128);

struct Golden(Checkpoint);

impl Golden {
    fn open(name: &str) -> Golden {
        let path = root().join(format!("testdata/heads/{name}.safetensors"));
        let files = vec![
            ("config.json".to_owned(), b"{\"model_type\":\"none\"}".to_vec()),
            ("model.safetensors".to_owned(), std::fs::read(path).expect(name)),
        ];
        Golden(Checkpoint::from_owned(files).expect("a safetensors file"))
    }

    fn integers(&self, name: &str) -> Vec<u32> {
        let tensor = self.0.tensor(name).expect(name);
        let mut bytes = vec![0; tensor.len_bytes as usize];
        self.0.read(tensor, 0, &mut bytes).expect(name);
        bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b) as u32).collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.0.read_f32(self.0.tensor(name).expect(name)).expect(name)
    }
}

/// Every `step`-th value of the last token's features, from the fourth on, against the golden ones.
#[track_caller]
fn check_features(what: &str, track: &Track, golden: &[f32], step: usize, tolerance: f64) {
    let own: Vec<f32> = track.last().values().into_iter().skip(3).step_by(step).collect();
    assert_eq!(own.len(), golden.len(), "{what}");
    let square = golden.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
    let scale = (square / golden.len() as f64).sqrt();
    let off = own.iter().zip(golden).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(off < tolerance * scale, "{what}: features {off:.2e} off, of {scale:.2e}");
}

/// Drafts of `slots` tokens at each point of each case.
fn check(rig: &mut Rig, features: &str, step: usize, heads: &[(&str, usize)]) {
    let mut worst = 0.0f64;
    let mut failures = Vec::new();
    for case in CASES {
        let golden = Golden::open(case);
        let (prompt, said) = (golden.integers("prompt"), golden.integers("continuation"));
        let all = [prompt, said].concat();
        let points = golden.integers("points");
        let kept = golden.floats(features);
        let width = kept.len() / points.len();
        let mut track = rig.track();
        for (point, (&known, kept)) in points.iter().zip(kept.chunks(width)).enumerate() {
            let known = known as usize;
            let done = track.tokens.len();
            rig.feed(&mut track, &all[done..known], &[]);
            let tolerance = tolerance(case, known);
            check_features(&format!("{case} after {known}"), &track, kept, step, tolerance);
            for &(head, slots) in heads {
                let draft = rig.draft(&mut track, all[known], slots);
                let tokens = &golden.integers(&format!("{head}_tokens"))[point * slots..][..slots];
                let logits = golden.floats(&format!("{head}_logits"));
                let columns = logits.len() / points.len() / slots;
                let deviation = golden.floats(&format!("{head}_deviation"));
                for (slot, (token, own)) in draft.iter().enumerate() {
                    let at = point * slots + slot;
                    let (first, next) = KEPT;
                    let own = own.iter().skip(first).step_by(next);
                    let off = own
                        .zip(&logits[at * columns..][..columns])
                        .map(|(a, b)| f64::from((a - b).abs()))
                        .fold(0.0, f64::max);
                    let off = off / f64::from(deviation[at]);
                    worst = worst.max(off / tolerance);
                    let what = format!("{case} after {known}, {head} slot {slot}");
                    if off > tolerance || off.is_nan() {
                        failures.push(format!("{what}: logits {off:.2e} off"));
                    }
                    if *token != tokens[slot] {
                        failures.push(format!("{what}: {token}, expected {}", tokens[slot]));
                    }
                }
                assert_eq!(draft.len(), slots);
            }
        }
    }
    println!("{features}: at most {worst:.2} of what is allowed");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn options() -> Options {
    Options { context: 2048, kv: KvFormat::F32, ..Options::default() }
}

#[test]
fn the_mtp_head_says_what_transformers_says() {
    check(&mut pebble(&options(), mtp).0, "hidden", 4, &[("mtp", 4)]);
}

#[test]
fn the_dflash_draft_says_what_its_authors_code_says() {
    let heads = [("dflash16", 15), ("dflash8", 7)];
    check(&mut pebble(&options(), dflash).0, "taps", 8, &heads);
}
