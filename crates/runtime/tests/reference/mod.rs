//! Golden values of the tiny models in testdata, and what a model gives in their place.

use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use model::{DecoderSpec, Logits};
use runtime::{Options, Runner};

/// Where the tiny models are.
pub(crate) fn models() -> PathBuf {
    golden::models().to_owned()
}

/// What a model must give.
pub(crate) struct Golden {
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<f32>,
    pub(crate) greedy: Vec<u32>,
    std: f64,
    pub(crate) tolerance: f64,
}

/// The golden values of a case.
pub(crate) fn golden(folder: &Path) -> Golden {
    let bytes = std::fs::read(folder.join("golden.safetensors")).expect("golden.safetensors");
    let files = vec![
        ("config.json".to_string(), b"{\"model_type\":\"none\"}".to_vec()),
        ("model.safetensors".to_string(), bytes),
    ];
    let file = Checkpoint::from_owned(files).expect("a safetensors file");
    let integers = |name: &str| -> Vec<u32> {
        let tensor = file.tensor(name).expect(name);
        let mut bytes = vec![0; tensor.len_bytes as usize];
        file.read(tensor, 0, &mut bytes).expect(name);
        bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
    };
    let number = |key: &str| file.metadata(key).expect(key).parse::<f64>().expect(key);
    Golden {
        prompt: integers("prompt"),
        positions: integers("positions").into_iter().map(|p| p as usize).collect(),
        logits: file.read_f32(file.tensor("logits").expect("logits")).expect("logits"),
        greedy: integers("greedy"),
        std: number("std"),
        tolerance: number("tolerance"),
    }
}

fn argmax(values: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &value) in values.iter().enumerate() {
        if value > values[best] {
            best = i;
        }
    }
    best as u32
}

/// The error over the golden positions, and the greedy tokens. The spec may be another than the checkpoint's.
pub(crate) fn run(
    checkpoint: &Checkpoint,
    spec: DecoderSpec,
    golden: &Golden,
    options: &Options,
) -> (f64, Vec<u32>) {
    answer(&mut Runner::load_spec(checkpoint, spec, options, &|_, _| {}).expect("model"), golden)
}

/// The same of a model that is loaded.
pub(crate) fn answer(runner: &mut Runner, golden: &Golden) -> (f64, Vec<u32>) {
    let vocab = runner.spec().vocab;
    let mut sequence = runner.sequence().expect("sequence");
    let mut worst = 0.0f64;
    let mut next = 0;
    runner
        .feed(&mut sequence, &golden.prompt, Logits::All, |row, values| {
            if let Some(index) = golden.positions.iter().position(|&p| p == row) {
                for (a, b) in values.iter().zip(&golden.logits[index * vocab..]) {
                    worst = worst.max((f64::from(*a) - f64::from(*b)).abs());
                }
            }
            next = argmax(values);
        })
        .expect("prefill");
    let mut tokens = vec![next];
    while tokens.len() < golden.greedy.len() {
        let token = *tokens.last().expect("a token");
        runner
            .feed(&mut sequence, &[token], Logits::Last, |_, values| next = argmax(values))
            .expect("decode");
        tokens.push(next);
    }
    (worst / golden.std, tokens)
}
