//! What is seen of experts is what the model does with them: uses, reads and residents of Pebble, in memory
//! and streamed.

use std::path::Path;
use std::sync::Arc;

use checkpoint::Checkpoint;
use experts::Device;
use experts::device::{Access, Files};
use experts::reader::{Method, ReadEngine};
use model::Logits;
use runtime::{ExpertActivity, Options, Plan, PlanRequest, Runner, Streaming};

const PROMPT: usize = 40;

fn pebble(slots: Option<usize>) -> Runner {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pebble");
    let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
    let spec = model::arch::spec(&checkpoint).expect("spec");
    let streaming = if slots.is_some() { Streaming::Always } else { Streaming::Never };
    let request = PlanRequest {
        context: Some(256),
        expert_slots: slots,
        streaming,
        ..PlanRequest::default()
    };
    let plan = Plan::new(&spec, &request).expect("plan");
    let options = Options { threads: 2, ..plan.options };
    let device = options.slots.as_ref().map(|_| {
        let files = Files::open(&checkpoint, Access::Direct).expect("files");
        (Arc::new(files) as Arc<dyn Device>, Method { queue: ReadEngine::Threads, depth: 4 })
    });
    Runner::load_from(&checkpoint, spec, &options, device, &|_, _| {}).expect("model")
}

/// Feeds a prompt, then one token, and looks after each.
fn look(runner: &mut Runner) -> [ExpertActivity; 2] {
    let mut sequence = runner.sequence().expect("sequence");
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 100 + i * 7).collect();
    runner.feed(&mut sequence, &prompt, Logits::Last, |_, _| {}).expect("prompt");
    let first = runner.take_expert_activity().expect("experts");
    runner.feed(&mut sequence, &[17], Logits::Last, |_, _| {}).expect("token");
    [first, runner.take_expert_activity().expect("experts")]
}

fn rows(activity: &ExpertActivity) -> usize {
    activity.uses.iter().map(|&(_, _, rows)| rows as usize).sum()
}

fn bits(activity: &ExpertActivity) -> usize {
    activity.resident.iter().map(|byte| byte.count_ones() as usize).sum()
}

#[test]
fn uses_are_rows_times_experts_per_token_and_all_are_resident() {
    let mut runner = pebble(None);
    let shape = runner.expert_shape().expect("experts");
    assert_eq!(shape.slots, shape.layers * shape.experts);
    assert_eq!(runner.expert_load(), None);
    // Without an observer.
    for activity in look(&mut runner) {
        assert!(activity.uses.is_empty() && activity.reads.is_empty());
    }
    runner.watch_experts(true);
    let [prompt, token] = look(&mut runner);
    assert_eq!(rows(&prompt), PROMPT * shape.layers * shape.experts_per_token);
    assert_eq!(rows(&token), shape.layers * shape.experts_per_token);
    assert!(token.uses.iter().all(|&(layer, expert, rows)| {
        (layer as usize) < shape.layers && (expert as usize) < shape.experts && rows == 1
    }));
    for activity in [prompt, token] {
        assert!(activity.reads.is_empty());
        assert_eq!(bits(&activity), shape.layers * shape.experts);
    }
}

#[test]
fn reads_are_the_misses_and_residents_fill_the_slots() {
    let shape = pebble(None).expert_shape().expect("experts");
    let slots = shape.layers * shape.experts / 4;
    let mut runner = pebble(Some(slots));
    runner.watch_experts(true);
    let [prompt, token] = look(&mut runner);
    assert_eq!(rows(&prompt), PROMPT * shape.layers * shape.experts_per_token);
    assert_eq!(rows(&token), shape.layers * shape.experts_per_token);
    let load = runner.expert_load().expect("it streams");
    // And what was read ahead and not used.
    let vain = load.ahead - load.ahead_used;
    assert_eq!((prompt.reads.len() + token.reads.len()) as u64, load.misses + vain);
    assert!(load.misses > 0 && load.read_bytes > 0 && load.reads >= load.misses, "{load:?}");
    assert!(load.latency_seconds > 0.0 && load.latency_seconds_p50 <= load.latency_seconds_p99);
    let counts: Vec<u64> = load.latency_buckets.iter().map(|bucket| bucket.1).collect();
    assert!(counts.is_sorted() && counts.last() <= Some(&load.reads), "{counts:?}");
    let kept = runner.expert_shape().expect("experts").slots;
    assert!(bits(&token) <= kept && bits(&token) > 0, "{} of {kept}", bits(&token));
    // What a token has just used and could be kept is there.
    let is_resident = |layer: u32, expert: u32| {
        let bit = layer as usize * shape.experts + expert as usize;
        token.resident[bit / 8] >> (bit % 8) & 1 == 1
    };
    let used = token.uses.iter().filter(|&&(layer, expert, _)| is_resident(layer, expert)).count();
    assert!(used * 2 > token.uses.len(), "{used} of {}", token.uses.len());
}
