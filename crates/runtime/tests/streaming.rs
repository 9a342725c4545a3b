//! Experts read when they are wanted give the same bits as experts in memory: every tiny model with
//! experts and Pebble, at several numbers of slots down to one layer's top k, alone and in batches.

use std::path::{Path, PathBuf};

use std::sync::Arc;

use checkpoint::Checkpoint;
use experts::Device;
use experts::device::{Access, Files};
use experts::reader::{Method, ReadEngine};
use model::{Batch, Logits, SegmentKind};
use runtime::{Options, Plan, PlanRequest, Runner, Streaming};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every model in testdata that has experts, and Pebble.
fn models() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(golden::models()).expect("testdata");
    let mut models: Vec<PathBuf> = folders.map(|entry| entry.expect("entry").path()).collect();
    models.retain(|folder| {
        let spec = model::arch::spec(&Checkpoint::open(folder).expect("checkpoint"));
        spec.expect("spec").moe_layers().next().is_some()
    });
    assert!(models.len() >= 20, "{}", models.len());
    models.push(root().join("models/pebble"));
    models.sort();
    models
}

fn request() -> PlanRequest {
    PlanRequest {
        context: Some(448),
        sequences: Some(3),
        chunk: Some(128),
        ..PlanRequest::default()
    }
}

fn load(folder: &Path, request: &PlanRequest) -> Runner {
    let checkpoint = Checkpoint::open(folder).expect("checkpoint");
    let spec = model::arch::spec(&checkpoint).expect("spec");
    let plan = Plan::new(&spec, request).expect("plan");
    assert!(plan.fits, "{plan:?}");
    let options = Options { threads: 2, ..plan.options };
    // No probe: a hundred models are loaded here.
    let device = options.slots.as_ref().map(|_| {
        let files = Files::open(&checkpoint, Access::Direct).expect("files");
        (Arc::new(files) as Arc<dyn Device>, Method { queue: ReadEngine::Threads, depth: 4 })
    });
    Runner::load_from(&checkpoint, spec, &options, device, &|_, _| {}).expect("model")
}

fn tokens(seed: u32, count: usize, vocab: usize) -> Vec<u32> {
    (0..count as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 9) % vocab as u32)
        .collect()
}

fn bits(values: &[f32]) -> impl Iterator<Item = u32> {
    values.iter().map(|value| value.to_bits())
}

fn largest(values: &[f32]) -> u32 {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best as u32
}

/// Logits of a prompt's every position and of 64 tokens that follow greedily, and the tokens.
fn answer(runner: &mut Runner, prompt: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut sequence = runner.sequence().expect("sequence");
    let (mut logits, mut next) = (Vec::new(), 0);
    runner
        .feed(&mut sequence, prompt, Logits::All, |_, values| {
            logits.extend(bits(values));
            next = largest(values);
        })
        .expect("prompt");
    let mut said = Vec::new();
    for _ in 0..64 {
        said.push(next);
        let token = [next];
        runner
            .feed(&mut sequence, &token, Logits::Last, |_, values| {
                logits.extend(bits(values));
                next = largest(values);
            })
            .expect("token");
    }
    (logits, said)
}

/// Numbers of slots from one layer's top k to nearly all experts.
fn slot_counts(runner: &Runner) -> Vec<usize> {
    let spec = runner.spec();
    let least = spec.moe_layers().map(|(_, moe)| moe.experts_per_token()).max().expect("experts");
    let all: usize = spec.moe_layers().map(|(_, moe)| moe.experts.experts()).sum();
    // Each size of expert needs its own top k.
    let mut sizes: Vec<u64> =
        spec.moe_layers().map(|(_, m)| m.experts.bytes_per_expert()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let least = least * sizes.len();
    let mut counts = vec![least, least + 1, least.max(all / 4), least.max(all * 2 / 3), all + 64];
    counts.dedup();
    counts
}

#[test]
fn streamed_equals_resident_to_the_bit() {
    for folder in models() {
        let never = PlanRequest { streaming: Streaming::Never, ..request() };
        let mut resident = load(&folder, &never);
        assert!(resident.streamed().is_none());
        let prompt = tokens(5, 140, resident.spec().vocab);
        let want = answer(&mut resident, &prompt);
        for count in slot_counts(&resident) {
            let what = format!("{} with {count} slots", folder.display());
            let mut streamed =
                load(&folder, &PlanRequest { expert_slots: Some(count), ..request() });
            let got = answer(&mut streamed, &prompt);
            assert_eq!(want.1, got.1, "{what}");
            let different = want.0.iter().zip(&got.0).filter(|(a, b)| a != b).count();
            assert_eq!(different, 0, "{what}: {different} logits differ");
            let statistics = streamed.streamed().expect("a streamed bank").statistics();
            assert!(statistics.misses > 0 && statistics.failed == 0, "{what}: {statistics:?}");
        }
    }
}

#[test]
fn batches_share_slots_and_change_nothing() {
    let is_long = std::env::var_os("MILLSTREAM_LONG_TESTS").is_some();
    for folder in models() {
        let mut resident = load(&folder, &PlanRequest { streaming: Streaming::Never, ..request() });
        let vocab = resident.spec().vocab;
        // Every kind of step comes in three rounds; the others bring longer contexts.
        let rounds = if is_long || folder.ends_with("pebble") { 24 } else { 6 };
        let run = |runner: &mut Runner| {
            let mut sequences: Vec<_> =
                (0..3).map(|_| runner.sequence().expect("sequence")).collect();
            let mut seen = Vec::new();
            for round in 0..rounds {
                let mut batch = Batch::default();
                for (index, sequence) in sequences.iter().enumerate() {
                    // A decoding sequence, a short append, a long prompt.
                    let count = [1, 5, 17][(index + round) % 3].min(400 - sequence.len());
                    let part = tokens((index + 10 * round) as u32, count, vocab);
                    batch.push(index, sequence.len(), &part, SegmentKind::Prefill, Logits::Last);
                }
                let mut borrowed: Vec<_> = sequences.iter_mut().collect();
                let failures =
                    runner.forward(&batch, &mut borrowed, |_, row| seen.extend(bits(row)));
                assert!(failures.expect("forward").is_empty());
            }
            seen
        };
        let want = run(&mut resident);
        // The fewest, and some that keep experts from one round to the next.
        let counts = slot_counts(&resident);
        let counts = if is_long { &counts[..] } else { &[counts[0], counts[counts.len() / 2]][..] };
        for &count in counts {
            let mut streamed =
                load(&folder, &PlanRequest { expert_slots: Some(count), ..request() });
            assert!(want == run(&mut streamed), "{} with {count} slots", folder.display());
        }
    }
}
