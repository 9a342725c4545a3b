//! Pebble's own heads guess what Pebble says: enough of it that a wrong tap, position or norm would show.
//!
//! The answers are Pebble's greedy ones. At each place a head drafts, as many tokens stay as Pebble really said, and
//! the sequence continues from there: what the engine does, without a controller.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Checkpoint;
use model::{DecoderSpec, HeadSpec, Logits};
use runtime::{HeadOptions, Options, Runner};
use serde_json::Value;
use text::{ChatRequest, ModelText};

use crate::rig::{Rig, argmax};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Some prompts of one task.
fn prompts(text: &ModelText, task: &str, count: usize) -> Vec<Vec<u32>> {
    let path = root().join("testdata/pebble/eval.json");
    let evaluation: Value =
        serde_json::from_slice(&std::fs::read(path).expect("eval.json")).expect("JSON");
    let items = evaluation["items"].as_array().expect("items").iter();
    let prompt = |item: &Value| {
        let mut request = ChatRequest::new(item["messages"].as_array().expect("messages").clone());
        request.tools = item["tools"].as_array().cloned().unwrap_or_default();
        request.enable_thinking = item["enable_thinking"].as_bool();
        text.prompt(&request).expect("prompt").tokens
    };
    items.filter(|item| item["task"] == task).take(count).map(prompt).collect()
}

/// What Pebble answers.
fn answer(runner: &mut Runner, prompt: &[u32], stop: &BTreeSet<u32>) -> Vec<u32> {
    let mut sequence = runner.sequence().expect("a sequence");
    let mut said: Vec<u32> = Vec::new();
    let mut rest = prompt.to_vec();
    while said.len() < 120 && said.last().is_none_or(|last| !stop.contains(last)) {
        let mut next = 0;
        runner.feed(&mut sequence, &rest, Logits::Last, |_, row| next = argmax(row)).expect("feed");
        said.push(next);
        rest = vec![next];
    }
    said
}

/// Tokens that stay of each draft on average, and how often the first does.
fn acceptance(rig: &mut Rig, text: &ModelText, task: &str, count: usize) -> (f64, f64) {
    let (mut rounds, mut stayed, mut first) = (0.0, 0.0, 0.0);
    for prompt in prompts(text, task, 2) {
        let said = answer(&mut rig.runner, &prompt, &text.eos);
        let mut track = rig.track();
        rig.feed(&mut track, &prompt, &[]);
        let mut at = 0;
        while at + 1 < said.len() {
            let draft = rig.draft(&mut track, said[at], count);
            let same = draft.iter().zip(&said[at + 1..]).take_while(|((a, _), b)| a == *b).count();
            (rounds, stayed) = (rounds + 1.0, stayed + same as f64);
            first += f64::from(u8::from(same > 0));
            rig.feed(&mut track, &said[at..=at + same], &[]);
            at += same + 1;
        }
    }
    println!("{task}: {:.2} stay of {count}, the first {:.2}", stayed / rounds, first / rounds);
    (stayed / rounds, first / rounds)
}

/// Pebble with one of its heads.
pub(crate) fn pebble(
    options: &Options,
    head: impl Fn(&Checkpoint, &DecoderSpec) -> HeadOptions,
) -> (Rig, ModelText) {
    let target = Checkpoint::open(&root().join("models/pebble")).expect("pebble");
    let spec = model::arch::spec(&target).expect("a spec");
    let text = engine::open_text(&target).expect("text");
    let head = head(&target, &spec);
    (Rig::new(target, head, options), text)
}

pub(crate) fn dflash(_target: &Checkpoint, spec: &DecoderSpec) -> HeadOptions {
    let draft = Checkpoint::open(&root().join("models/pebble-dflash")).expect("a draft");
    let head = HeadSpec::dflash(&draft, spec).expect("a head");
    HeadOptions { spec: Arc::new(head), checkpoint: Some(Arc::new(draft)) }
}

pub(crate) fn mtp(target: &Checkpoint, spec: &DecoderSpec) -> HeadOptions {
    let head = HeadSpec::mtp(target, spec).expect("a head").expect("a head");
    HeadOptions { spec: Arc::new(head), checkpoint: None }
}

fn options() -> Options {
    Options { context: 2048, ..Options::default() }
}

#[test]
fn pebbles_dflash_draft_guesses_what_pebble_says() {
    let (mut rig, text) = pebble(&options(), dflash);
    for (task, least) in [("story_ask", 4.0), ("recall_256", 4.0), ("code", 4.0)] {
        let (stayed, _) = acceptance(&mut rig, &text, task, 15);
        assert!(stayed >= least, "{task}: {stayed:.2}");
    }
}

#[test]
fn pebbles_mtp_head_guesses_what_pebble_says() {
    let (mut rig, text) = pebble(&options(), mtp);
    for task in ["story_ask", "recall_256", "code"] {
        let (_, first) = acceptance(&mut rig, &text, task, 3);
        assert!(first >= 0.85, "{task}: {first:.2}");
    }
}
