//! Logits and greedy tokens of tiny models against transformers (f32 on the dequantised weights).
//!
//! `testdata/make.py` made the models and the expected values; each case carries its own bar: 1e-3 of
//! the logits' standard deviation for unquantised weights, 5e-3 (or three times the effect of a 5e-5
//! perturbation) for quantised ones. Greedy tokens must be identical.

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, Config};
use compute::memory::KvFormat;
use engine::{Options, Runner};
use machine::cpu::Isa;
use model::Logits;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models")
}

struct Golden {
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
    std: f64,
    tolerance: f64,
}

fn golden(folder: &Path) -> Golden {
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

/// The error over the golden positions, and the greedy tokens.
fn run(folder: &Path, golden: &Golden, options: &Options) -> (f64, Vec<u32>) {
    let checkpoint = Checkpoint::open(folder).expect("checkpoint");
    let mut runner = Runner::load(&checkpoint, options, &|_, _| {}).expect("model");
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

fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(models())
        .expect("testdata/models")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.join("golden.safetensors").exists())
        .collect();
    cases.sort();
    assert!(cases.len() >= 45, "only {} golden cases", cases.len());
    cases
}

#[track_caller]
fn check(isa: Isa) {
    if !machine::cpu::supports(isa) {
        println!("skipped: golden models on {isa}, which this machine lacks");
        return;
    }
    let mut failures = Vec::new();
    for folder in cases() {
        let golden = golden(&folder);
        let name = folder.file_name().expect("name").to_string_lossy().into_owned();
        let options =
            Options { isa, kv: KvFormat::F32, context: 256, threads: 2, ..Options::default() };
        let (error, tokens) = run(&folder, &golden, &options);
        println!("{name:28} {isa}: error {error:.2e} of {:.1e}", golden.tolerance);
        if error > golden.tolerance || error.is_nan() {
            failures.push(format!("{name}: error {error:.3e}, allowed {:.1e}", golden.tolerance));
        }
        if tokens != golden.greedy {
            failures.push(format!("{name}: greedy {tokens:?}, expected {:?}", golden.greedy));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn golden_models_on_this_machine() {
    check(machine::cpu::isa());
}

#[test]
fn every_supported_model_type_has_goldens_in_every_format() {
    for (model_type, _) in model::arch::ARCHITECTURES {
        for format in ["f32", "4bit", "8bit", "mixed", "mxfp4"] {
            let folder = models().join(format!("{model_type}-{format}"));
            let config = std::fs::read(folder.join("config.json")).expect("config.json");
            let config = Config::parse(&config, &folder).expect("config");
            assert_eq!(config.model_type(), *model_type);
        }
    }
}
