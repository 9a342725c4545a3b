//! Pebble, the built-in model, on its evaluation set: whole answers by greedy decoding, exactly.
//!
//! Ordinarily four items of each task, at least 97 % right; with `MILLSTREAM_LONG_TESTS` set, all of
//! them, each task within a point of what transformers reaches with the same 4-bit weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use engine::{Engine, Event, Request, RequestId, SamplingParams};
use runtime::{Options, Runner};
use serde_json::Value;
use text::ChatRequest;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Items that the reference itself gets wrong with these weights: transformers 5.22 in f32 on the dequantized
/// 4-bit weights says the same wrong digit (logits 15.5852 against 15.2341; ours 15.5844 against 15.2350,
/// mlx-lm 15.5852 against 15.2341; measured 2026-11-15). The column this test compares with was made from the
/// first 20 items of that task, where both are right. We must be as right as the reference, not more.
const WRONG_IN_THE_REFERENCE: [&str; 1] = ["recall_1024-29"];

struct Item {
    id: String,
    task: String,
    request: ChatRequest,
    expected: String,
}

fn items(evaluation: &Value, per_task: usize) -> Vec<Item> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut items = Vec::new();
    for item in evaluation["items"].as_array().expect("items") {
        let task = item["task"].as_str().expect("task");
        let count = seen.entry(task).or_default();
        *count += 1;
        if *count > per_task {
            continue;
        }
        let mut request = ChatRequest::new(item["messages"].as_array().expect("messages").clone());
        request.tools = item["tools"].as_array().cloned().unwrap_or_default();
        request.enable_thinking = item["enable_thinking"].as_bool();
        let expected = item["expected"].as_str().expect("expected").to_owned();
        let id = item["id"].as_str().expect("id").to_owned();
        items.push(Item { id, task: task.to_owned(), request, expected });
    }
    items
}

#[test]
fn pebble_answers_its_evaluation_set() {
    let long = std::env::var_os("MILLSTREAM_LONG_TESTS").is_some();
    let path = root().join("testdata/pebble/eval.json");
    let evaluation: Value =
        serde_json::from_slice(&std::fs::read(path).expect("eval.json")).expect("JSON");
    let items = items(&evaluation, if long { usize::MAX } else { 4 });
    let checkpoint = Checkpoint::open(&root().join("models/pebble")).expect("pebble");
    let text = engine::open_text(&checkpoint).expect("text");
    let options = Options { context: 4096, sequences: 16, ..Options::default() };
    let runner = Runner::load(&checkpoint, &options, &|_, _| {}).expect("model");
    let mut engine = Engine::new(runner);

    let mut answers: BTreeMap<RequestId, (usize, Vec<u32>)> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        let prompt = text.prompt(&item.request).expect("prompt");
        let request = Request {
            prompt: prompt.tokens,
            max_tokens: 400,
            stop_tokens: text.eos.clone(),
            sampling: SamplingParams::greedy(),
            ..Request::default()
        };
        let id = engine.submit(request).expect("submit");
        answers.insert(id, (index, Vec::new()));
    }
    while !engine.is_idle() {
        for event in engine.step().expect("step") {
            match event {
                Event::Token { id, sampled } => {
                    answers.get_mut(&id).expect("known").1.push(sampled.token);
                }
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Prefill { .. } | Event::Finished { .. } => {}
            }
        }
    }

    let mut tasks: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut excused: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, tokens) in answers.values() {
        let item = &items[*index];
        let text = text.tokenizer.decode(tokens, true).expect("text");
        let right = text.trim() == item.expected.trim();
        if !right {
            println!("{}: expected {:?}, got {text:?}", item.id, item.expected);
            if WRONG_IN_THE_REFERENCE.contains(&item.id.as_str()) {
                *excused.entry(&item.task).or_default() += 1;
            }
        }
        let entry = tasks.entry(&item.task).or_default();
        *entry = (entry.0 + usize::from(right), entry.1 + 1);
    }
    let (right, all) = tasks.values().fold((0, 0), |sum, t| (sum.0 + t.0, sum.1 + t.1));
    println!("{right} of {all} right: {tasks:?}");
    assert_eq!(tasks.len(), 23);
    assert!(right * 100 >= all * 97, "{right} of {all}");
    if long {
        let bars = &evaluation["quantised_accuracy"]["pebble-4bit"];
        for (task, (right, all)) in &tasks {
            let bar = 100.0 * bars[*task].as_f64().expect("a bar");
            let all = all - excused.get(task).copied().unwrap_or(0);
            let share = 100.0 * *right as f64 / all as f64;
            assert!(share >= bar - 1.0, "{task}: {share:.1} %, transformers {bar:.1} %");
        }
    }
}
