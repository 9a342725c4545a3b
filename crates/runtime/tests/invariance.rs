//! A row's result depends on its own inputs and position alone: the same bits in any batch.
//!
//! Logits of tiny models are computed in many ways (threads, chunks, instruction sets, one token at a
//! time, in a batch with other sequences, after a fork) and compared to the bit with one plain run.

use checkpoint::Checkpoint;
use compute::memory::KvFormat;
use machine::cpu::Isa;
use model::{Batch, Logits, SegmentKind};
use runtime::{Options, Runner};

/// Each architecture, and among them the usual formats.
const MODELS: [&str; 15] = [
    "qwen3_5_moe-4bit",
    "qwen3_5_moe-f32",
    "qwen3_5-4bit",
    "qwen3_next-8bit",
    "qwen3-4bit",
    "qwen2-8bit",
    "mixtral-mxfp4",
    "mistral-mixed",
    "llama-bf16",
    "qwen3_moe-nvfp4",
    "gpt_oss-published",
    "gpt_oss-f32",
    "gemma4-mixed",
    "gemma4_e-4bit",
    "gemma3-f32",
];

/// The other formats, for what depends on kernels alone.
const FORMATS: [&str; 6] = [
    "llama-2bit",
    "qwen3_moe-3bit",
    "llama-5bit",
    "llama-6bit",
    "llama-4bit-g32-f32",
    "llama-mxfp8",
];

fn options() -> Options {
    Options { context: 320, sequences: 4, threads: 2, ..Options::default() }
}

fn runner(model: &str, options: &Options) -> Runner {
    let folder = golden::model(model);
    let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
    Runner::load(&checkpoint, options, &|_, _| {}).expect("model")
}

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 9) % 256)
        .collect()
}

/// Logits of every position, fed in whole chunks.
fn plain(runner: &mut Runner, tokens: &[u32]) -> Vec<u32> {
    let mut bits = Vec::new();
    let mut sequence = runner.sequence().expect("sequence");
    runner
        .feed(&mut sequence, tokens, Logits::All, |_, values| {
            bits.extend(values.iter().map(|v| v.to_bits()));
        })
        .expect("feed");
    bits
}

#[track_caller]
fn same(what: &str, want: &[u32], got: &[u32]) {
    assert_eq!(want.len(), got.len(), "{what}");
    let different = want.iter().zip(got).filter(|(a, b)| a != b).count();
    assert_eq!(different, 0, "{what}: {different} of {} logits differ", want.len());
}

/// Models on one instruction set, compared with the best that this machine has; the best compared with the scalar one.
#[track_caller]
fn check(isa: Isa) {
    if !machine::cpu::supports(isa) {
        println!("skipped: models on {isa}, which this machine lacks");
        return;
    }
    let other = if isa == machine::cpu::isa() { Isa::Scalar } else { machine::cpu::isa() };
    let prompt = tokens(1, 150);
    for model in MODELS.into_iter().chain(FORMATS) {
        let logits = |isa| plain(&mut runner(model, &Options { isa, ..options() }), &prompt);
        same(&format!("{model} on {other} and {isa}"), &logits(other), &logits(isa));
    }
}

#[test]
fn avx2_does_not_change_a_bit() {
    check(Isa::Avx2);
}

#[test]
fn avx512_does_not_change_a_bit() {
    check(Isa::Avx512);
}

#[test]
fn amx_does_not_change_a_bit() {
    check(Isa::Amx);
}

#[test]
fn neon_does_not_change_a_bit() {
    check(Isa::Neon);
}

#[test]
fn threads_do_not_change_a_bit() {
    let prompt = tokens(1, 150);
    for model in MODELS.into_iter().chain(FORMATS) {
        let logits =
            |threads| plain(&mut runner(model, &Options { threads, ..options() }), &prompt);
        let want = logits(2);
        for threads in [1, 3] {
            same(&format!("{model} on {threads} threads"), &want, &logits(threads));
        }
    }
}

#[test]
fn prefill_in_any_chunks_equals_one_token_at_a_time() {
    for model in MODELS.into_iter().chain(FORMATS) {
        let mut runner = runner(model, &options());
        let vocab = runner.spec().vocab;
        let prompt = tokens(3, 200);
        let want = plain(&mut runner, &prompt);
        // A chunk of the last row only, and chunks that are no whole blocks.
        for sizes in [vec![200], vec![64, 128, 8], vec![1; 200], vec![3, 61, 65, 71]] {
            let mut sequence = runner.sequence().expect("sequence");
            let mut done = 0;
            for size in sizes.iter().copied() {
                let mut batch = Batch::default();
                let part = &prompt[done..done + size];
                batch.push(0, done, part, SegmentKind::Prefill, Logits::Last);
                done += size;
                runner
                    .forward(&batch, &mut [&mut sequence], |_, values| {
                        let got: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
                        same(
                            &format!("{model} after {done}"),
                            &want[(done - 1) * vocab..done * vocab],
                            &got,
                        );
                    })
                    .expect("forward");
            }
        }
    }
}

#[test]
fn ragged_batches_equal_each_sequence_alone() {
    for model in MODELS {
        let mut runner = runner(model, &options());
        let vocab = runner.spec().vocab;
        let prompts = [tokens(4, 130), tokens(5, 67), tokens(6, 90)];
        let alone: Vec<Vec<u32>> = prompts.iter().map(|p| plain(&mut runner, p)).collect();
        let mut sequences: Vec<_> = (0..3).map(|_| runner.sequence().expect("sequence")).collect();
        // Each step takes another number of tokens from each sequence, some none.
        let steps = [[64, 1, 30], [1, 5, 0], [0, 60, 59], [65, 1, 1]];
        let mut done = [0usize; 3];
        for step in steps {
            let mut batch = Batch::default();
            let mut rows = Vec::new();
            for (s, &count) in step.iter().enumerate().filter(|(_, count)| **count > 0) {
                let part = &prompts[s][done[s]..done[s] + count];
                let kind = if count == 1 { SegmentKind::Decode } else { SegmentKind::Prefill };
                batch.push(s, done[s], part, kind, Logits::Last);
                done[s] += count;
                rows.push((s, done[s] - 1));
            }
            let mut borrowed: Vec<_> = sequences.iter_mut().collect();
            runner
                .forward(&batch, &mut borrowed, |row, values| {
                    let (s, position) = rows[row];
                    let got: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
                    let want = &alone[s][position * vocab..(position + 1) * vocab];
                    same(&format!("{model}, sequence {s} at {position}"), want, &got);
                })
                .expect("forward");
        }
        assert_eq!(done, [130, 67, 90]);
    }
}

#[test]
fn forks_and_restored_checkpoints_continue_as_if_alone() {
    for model in MODELS {
        for kv in [KvFormat::F16, KvFormat::F32] {
            let mut runner = runner(model, &Options { kv, ..options() });
            let (head, left, right) = (tokens(7, 70), tokens(8, 75), tokens(9, 75));
            let vocab = runner.spec().vocab;
            let whole = |tail: &[u32]| [head.as_slice(), tail].concat();
            let want_left = plain(&mut runner, &whole(&left));
            let want_right = plain(&mut runner, &whole(&right));
            let mut sequence = runner.sequence().expect("sequence");
            runner.feed(&mut sequence, &head, Logits::None, |_, _| {}).expect("feed");
            let checkpoint = sequence.fork();
            let mut other = sequence.fork();
            let mut feed =
                |sequence: &mut state::Sequence, tail: &[u32], want: &[u32], what: &str| {
                    let mut got = Vec::new();
                    runner
                        .feed(sequence, tail, Logits::All, |_, values| {
                            got.extend(values.iter().map(|v| v.to_bits()));
                        })
                        .expect("feed");
                    same(&format!("{model}, {what}"), &want[head.len() * vocab..], &got);
                };
            feed(&mut sequence, &left, &want_left, "the original");
            feed(&mut other, &right, &want_right, "its fork");
            drop(other);
            sequence = checkpoint.fork();
            feed(&mut sequence, &right, &want_right, "restored");
        }
    }
}
