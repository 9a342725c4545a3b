//! Several sequences on several threads in one batch, as a server runs them: prompts, answers and verified drafts mixed,
//! experts in memory and streamed. Every row has the bits of its sequence alone on one thread.

use std::sync::Arc;

use checkpoint::Checkpoint;
use experts::Device;
use experts::device::{Access, Files};
use experts::reader::{Method, ReadEngine};
use model::{Batch, Logits, SegmentKind};
use runtime::{Plan, PlanRequest, Runner, Streaming};
use state::Sequence;

/// One of each kind of layer: experts or none, windows, recurrent layers, embeddings by layer, biases; several encodings.
const MODELS: [&str; 10] = [
    "qwen3_5_moe-4bit",
    "qwen3_5_moe-f32",
    "qwen3_5-4bit",
    "qwen3_next-8bit",
    "qwen3_moe-nvfp4",
    "mixtral-mxfp4",
    "llama-bf16",
    "gpt_oss-published",
    "gemma4-mixed",
    "gemma4_e-4bit",
];

/// Positions of each sequence: past the end of a page.
const LENGTH: usize = 90;
const SEQUENCES: usize = 16;
/// Rows that a step with drafts may have.
const DRAFTED_ROWS: usize = 64;

fn load(model: &str, threads: usize, expert_slots: Option<usize>) -> Runner {
    let folder = golden::model(model);
    let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
    let spec = model::arch::spec(&checkpoint).expect("spec");
    let request = PlanRequest {
        context: Some(192),
        sequences: Some(SEQUENCES),
        chunk: Some(256),
        threads: Some(threads),
        streaming: if expert_slots.is_none() { Streaming::Never } else { Streaming::Auto },
        expert_slots,
        ..PlanRequest::default()
    };
    let plan = Plan::new(&spec, &request).expect("plan");
    assert!(plan.fits, "{plan:?}");
    let device = plan.options.slots.as_ref().map(|_| {
        let files = Files::open(&checkpoint, Access::Direct).expect("files");
        (Arc::new(files) as Arc<dyn Device>, Method { queue: ReadEngine::Threads, depth: 4 })
    });
    assert_eq!(device.is_some(), expert_slots.is_some(), "{model}");
    let runner = Runner::load_from(&checkpoint, spec, &plan.options, device, &|_, _| {});
    let runner = runner.expect("model");
    assert_eq!(runner.options().threads, threads);
    runner
}

/// The token at a position of a sequence.
fn token(sequence: usize, position: usize) -> u32 {
    ((sequence * 53 + position * position * 7 + position * 31) % 200) as u32
}

/// The logits of every position of every sequence, each alone on one thread.
fn alone(model: &str) -> Vec<Vec<Vec<u32>>> {
    let mut runner = load(model, 1, None);
    let each = |index: usize| {
        let mut sequence = runner.sequence().expect("sequence");
        let tokens: Vec<u32> = (0..LENGTH).map(|position| token(index, position)).collect();
        let mut rows = vec![Vec::new(); LENGTH];
        runner
            .feed(&mut sequence, &tokens, Logits::All, |row, values| {
                rows[row] = values.iter().map(|value| value.to_bits()).collect();
            })
            .expect("prompt");
        rows
    };
    (0..SEQUENCES).map(each).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Runs the sequences to their ends in random batches and compares every row of logits that comes out.
fn check(what: &str, runner: &mut Runner, count: usize, want: &[Vec<Vec<u32>>]) {
    let mut random = Random(count as u64 + 11);
    let mut sequences: Vec<Sequence> =
        (0..count).map(|_| runner.sequence().expect("sequence")).collect();
    let [mut prompts, mut answers, mut drafts] = [0; 3];
    while sequences.iter().any(|sequence| sequence.len() < LENGTH) {
        let drafting = random.below(2) == 0;
        let mut batch = Batch::default();
        // By row of logits: its sequence and position, if its tokens are the sequence's own.
        let mut rows: Vec<Option<(usize, usize)>> = Vec::new();
        let mut right = Vec::new();
        for index in 0..count {
            let position = sequences[index].len();
            let left = LENGTH - position;
            if left == 0 || (count > 2 && random.below(8) == 0) {
                continue;
            }
            let own = |n: usize| (position..position + n).map(|at| token(index, at));
            if drafting {
                // The last emitted token, drafts that are right, drafts that are wrong.
                let good = left.min(1 + random.below(3));
                let wrong = if good < left { random.below(2) } else { 0 };
                let mut tokens: Vec<u32> = own(good).collect();
                tokens.extend((0..wrong).map(|i| (token(index, position + good + i) + 1) % 200));
                if tokens.len() == 1 || batch.tokens.len() + tokens.len() + count > DRAFTED_ROWS {
                    batch.push(
                        index,
                        position,
                        &[token(index, position)],
                        SegmentKind::Decode,
                        Logits::Last,
                    );
                    rows.push(Some((index, position)));
                    right.push(1);
                    answers += 1;
                } else {
                    batch.push(index, position, &tokens, SegmentKind::Verify, Logits::All);
                    rows.extend(
                        (0..tokens.len()).map(|i| (i < good).then_some((index, position + i))),
                    );
                    right.push(good);
                    drafts += 1;
                }
                continue;
            }
            let (n, kind) = match random.below(3) {
                0 => (left.min(1 + random.below(24)), SegmentKind::Prefill),
                _ => (1, SegmentKind::Decode),
            };
            match kind {
                SegmentKind::Prefill => prompts += 1,
                _ => answers += 1,
            }
            let tokens: Vec<u32> = own(n).collect();
            batch.push(index, position, &tokens, kind, Logits::Last);
            rows.push(Some((index, position + n - 1)));
            right.push(n);
        }
        if batch.tokens.is_empty() {
            continue;
        }
        let mut all: Vec<&mut Sequence> = sequences.iter_mut().collect();
        let mut seen = 0;
        let failed = runner.forward(&batch, &mut all, |row, values| {
            seen += 1;
            let Some((sequence, position)) = rows[row] else { return };
            let same = values
                .iter()
                .map(|value| value.to_bits())
                .eq(want[sequence][position].iter().copied());
            assert!(same, "{what}: sequence {sequence} at position {position}");
        });
        assert!(failed.expect("pass").is_empty());
        assert_eq!(seen, rows.len(), "{what}");
        if batch.keeps {
            runner.settle(&batch, &right, &mut all);
        }
    }
    assert!(prompts > 0 && answers > 0 && drafts > 0, "{what}: {prompts} {answers} {drafts}");
}

#[test]
fn sequences_on_several_threads_have_the_bits_of_each_alone() {
    for model in MODELS {
        let want = alone(model);
        let all = load(model, 1, None)
            .spec()
            .moe_layers()
            .map(|(_, moe)| moe.experts.experts())
            .sum::<usize>();
        for threads in [2, 4] {
            let streamed = (all > 0).then_some(Some(all / 2));
            for slots in [Some(None), streamed].into_iter().flatten() {
                let mut runner = load(model, threads, slots);
                for count in [2, 3, 5, SEQUENCES] {
                    let place = if slots.is_some() { "streamed" } else { "resident" };
                    let what = format!("{model}, {place}, {count} sequences on {threads} threads");
                    check(&what, &mut runner, count, &want);
                }
            }
        }
    }
}
