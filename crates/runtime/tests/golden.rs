//! Logits and greedy tokens of tiny models against transformers (f32 on the dequantized weights).
//!
//! `testdata/make.py` made the models and the expected values; each case carries its own bar: 1e-3 of
//! the logits' standard deviation for unquantized weights, 5e-3 (or three times the effect of a 5e-5
//! perturbation) for quantized ones. Greedy tokens must be identical.

mod reference;

use std::path::PathBuf;

use checkpoint::{Checkpoint, Config};
use compute::memory::KvFormat;
use machine::cpu::Isa;
use runtime::Options;

use reference::{golden, models, run};

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
        let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
        let spec = model::arch::spec(&checkpoint).expect("spec");
        let (error, tokens) = run(&checkpoint, spec, &golden, &options);
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
