//! The seam between models and backends is real: a backend that queues operations, owns its memory and finds experts by
//! their places gives what the CPU gives, to the bit, and passes the goldens.

#[path = "../reference/mod.rs"]
#[allow(dead_code, reason = "models of these tests are loaded on a backend")]
mod reference;
mod script;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Checkpoint;
use compute::BackendKind;
use compute::memory::KvFormat;
use experts::Device;
use experts::device::{Access, Files};
use experts::reader::{Method, ReadEngine};
use model::{Batch, Logits, SegmentKind};
use runtime::{Options, Plan, PlanRequest, Runner, Streaming};
use state::Sequence;

use reference::{Golden, answer, golden, models};

/// A model on a backend, its experts in memory or in so many slots.
fn load(folder: &Path, backend: BackendKind, expert_slots: Option<usize>) -> Runner {
    let checkpoint = Checkpoint::open(folder).expect("checkpoint");
    let spec = model::arch::spec(&checkpoint).expect("spec");
    let request = PlanRequest {
        context: Some(256),
        sequences: Some(4),
        chunk: Some(64),
        streaming: if expert_slots.is_none() { Streaming::Never } else { Streaming::Auto },
        expert_slots,
        ..PlanRequest::default()
    };
    let options = Plan::new(&spec, &request).expect("plan").options;
    let options = Options { backend, threads: 2, kv: KvFormat::F32, ..options };
    let device = options.slots.as_ref().map(|_| {
        let files = Files::open(&checkpoint, Access::Buffered).expect("files");
        (Arc::new(files) as Arc<dyn Device>, Method { queue: ReadEngine::Threads, depth: 4 })
    });
    assert_eq!(device.is_some(), expert_slots.is_some(), "{}", folder.display());
    Runner::load_from(&checkpoint, spec, &options, device, &|_, _| {}).expect("model")
}

/// Slots for the experts of one token and half as many again.
fn few_slots(folder: &Path) -> usize {
    let checkpoint = Checkpoint::open(folder).expect("checkpoint");
    let spec = model::arch::spec(&checkpoint).expect("spec");
    spec.moe_layers().map(|(_, moe)| moe.experts_per_token() * 3 / 2).sum()
}

fn folders(of: &[&str]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(models())
        .expect("testdata/models")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| {
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            of.iter().any(|of| name.starts_with(&format!("{of}-")))
        })
        .filter(|path| path.join("golden.safetensors").exists())
        .collect();
    folders.sort();
    folders
}

#[track_caller]
fn check_golden(runner: &mut Runner, golden: &Golden, what: &str) -> f64 {
    let (error, tokens) = answer(runner, golden);
    println!("{what}: error {error:.2e} of {:.1e}", golden.tolerance);
    assert!(error <= golden.tolerance, "{what}: error {error:.3e}");
    assert_eq!(tokens, golden.greedy, "{what}");
    error
}

#[test]
fn goldens_pass_with_experts_in_memory() {
    let folders = folders(&["llama", "qwen3_5_moe", "gemma4", "gemma4_e"]);
    assert!(folders.len() >= 26, "only {} cases", folders.len());
    for folder in folders {
        let golden = golden(&folder);
        let mut runner = load(&folder, BackendKind::Recording, None);
        let error = check_golden(&mut runner, &golden, &folder.display().to_string());
        // What any instruction set of the CPU gives, to the bit.
        let mut cpu = load(&folder, BackendKind::Cpu, None);
        assert_eq!(error.to_bits(), answer(&mut cpu, &golden).0.to_bits());
    }
}

#[test]
fn goldens_pass_with_experts_that_are_read() {
    let folders = folders(&["qwen3_5_moe", "gemma4"]);
    assert!(folders.len() >= 12, "only {} cases", folders.len());
    for folder in folders {
        let mut runner = load(&folder, BackendKind::Recording, Some(few_slots(&folder)));
        check_golden(&mut runner, &golden(&folder), &folder.display().to_string());
        let statistics = runner.streamed().expect("a streamed bank").statistics();
        assert!(statistics.hits > 0 && statistics.misses > 0, "{statistics:?}");
    }
}

/// Prompts, forks, verified drafts of which some stay, and plain steps of several sequences: the bits of all logits.
fn life(runner: &mut Runner) -> Vec<u32> {
    let mut bits = Vec::new();
    let token = |seed: usize| ((seed * 7919 + 13) % 200) as u32;
    let mut sequences: Vec<Sequence> =
        (0..2).map(|_| runner.sequence().expect("sequence")).collect();
    let mut step = |runner: &mut Runner,
                    sequences: &mut Vec<Sequence>,
                    rows: &[(usize, SegmentKind)],
                    kept: usize| {
        let mut batch = Batch::default();
        for (index, (sequence, &(count, kind))) in sequences.iter().zip(rows).enumerate() {
            let tokens: Vec<u32> =
                (0..count).map(|row| token(31 * index + sequence.len() + row)).collect();
            batch.push(index, sequence.len(), &tokens, kind, Logits::All);
        }
        let mut borrowed: Vec<&mut Sequence> = sequences.iter_mut().collect();
        let failures = runner.forward(&batch, &mut borrowed, |_, row| {
            bits.extend(row.iter().map(|value| value.to_bits()));
        });
        assert!(failures.expect("forward").is_empty());
        if batch.keeps {
            let counts: Vec<usize> =
                batch.segments.iter().map(|s| if s.is_trial() { kept } else { s.count }).collect();
            runner.settle(&batch, &counts, &mut borrowed);
        }
    };
    use SegmentKind::{Decode, Prefill, Verify};
    step(runner, &mut sequences, &[(9, Prefill), (20, Prefill)], 0);
    // Forks share pages and states until one of them writes.
    let forks: Vec<Sequence> = sequences.iter().map(Sequence::fork).collect();
    sequences.extend(forks);
    step(runner, &mut sequences, &[(1, Decode), (6, Verify), (5, Verify), (1, Decode)], 3);
    step(runner, &mut sequences, &[(4, Verify), (1, Decode), (1, Decode), (2, Prefill)], 1);
    // A slot that is used again starts at zero.
    sequences.truncate(3);
    sequences.push(runner.sequence().expect("sequence"));
    step(runner, &mut sequences, &[(1, Decode), (1, Decode), (1, Decode), (3, Prefill)], 0);
    bits
}

#[test]
fn sequences_fork_and_drafts_are_settled_as_on_the_cpu() {
    for name in
        ["llama-4bit", "qwen3_5_moe-4bit", "qwen3_next-8bit", "gemma4_e-4bit", "gpt_oss-published"]
    {
        let folder = golden::model(name);
        let want = life(&mut load(&folder, BackendKind::Cpu, None));
        assert!(want == life(&mut load(&folder, BackendKind::Recording, None)), "{name}");
        let slots = few_slots(&folder);
        if slots > 0 {
            // Rows of a batch want more experts than there are slots: some wait for others.
            for slots in [slots, 4 * slots] {
                let mut runner = load(&folder, BackendKind::Recording, Some(slots));
                assert!(want == life(&mut runner), "{name} with {slots} slots");
            }
        }
    }
}
