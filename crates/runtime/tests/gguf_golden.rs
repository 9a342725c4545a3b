//! Logits of tiny GGUF models against transformers (f32 on the dequantized weights).
//!
//! `testdata/gguf` has seeds and what the logits must be; `testdata/gguf_models.py` writes the files with the package
//! of llama.cpp's makers. Needs `MILLSTREAM_TEST_GGUF`, a Python with gguf and numpy; skipped without. The bars are
//! those of `golden.rs`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use checkpoint::Checkpoint;
use compute::memory::KvFormat;
use model::Logits;
use runtime::{Options, Runner};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Tokens that are fed at once; those after them come one by one, as in decoding.
const AT_ONCE: usize = 60;

/// What a model must give in each plan of types.
struct Golden {
    model: String,
    positions: Vec<usize>,
    columns: Vec<usize>,
    cases: Vec<(String, Case)>,
}

#[derive(Deserialize)]
struct Case {
    seed: u64,
    /// Of the weights in the file.
    digest: String,
    std: f64,
    tolerance: f64,
    prompt: Vec<u32>,
    /// At the columns of the positions.
    logits: Vec<Vec<f32>>,
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

fn goldens() -> Vec<Golden> {
    let entries = std::fs::read_dir(testdata().join("gguf")).expect("testdata/gguf");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| golden(path)).collect()
}

fn golden(path: &Path) -> Golden {
    let bytes = std::fs::read(path).expect("a file of goldens");
    let root: Map<String, Value> = serde_json::from_slice(&bytes).expect("an object");
    let numbers = |key: &str| Vec::deserialize(&root[key]).expect(key);
    let (positions, columns) = (numbers("positions"), numbers("columns"));
    let cases = root.iter().filter(|(_, value)| value.is_object());
    let cases = cases.map(|(plan, case)| (plan.clone(), Case::deserialize(case).expect(plan)));
    let model = path.file_stem().expect("a name").to_string_lossy().into_owned();
    Golden { positions, columns, cases: cases.collect(), model }
}

/// Writes the files of a model; their digests by name.
fn write(python: &OsStr, golden: &Golden, folder: &Path) -> BTreeMap<String, String> {
    let cases = golden.cases.iter();
    let names = cases.map(|(plan, case)| format!("{}:{plan}:{}", golden.model, case.seed));
    let output = Command::new(python)
        .arg("-B")
        .arg(testdata().join("gguf_models.py"))
        .arg(folder)
        .args(names)
        .output()
        .expect("python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("digests")
}

/// The largest difference from what is expected, in deviations.
fn error(checkpoint: &Checkpoint, golden: &Golden, case: &Case) -> Result<f64, runtime::Error> {
    let options = Options { kv: KvFormat::F32, context: 256, threads: 2, ..Options::default() };
    let mut runner = Runner::load(checkpoint, &options, &|_, _| {})?;
    let mut sequence = runner.sequence()?;
    let (mut worst, mut compared) = (0.0f64, 0);
    let mut compare = |position: usize, values: &[f32]| {
        let Some(row) = golden.positions.iter().position(|&p| p == position) else { return };
        for (&column, &expected) in golden.columns.iter().zip(&case.logits[row]) {
            let difference = (f64::from(values[column]) - f64::from(expected)).abs();
            worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
            compared += 1;
        }
    };
    let (first, rest) = case.prompt.split_at(AT_ONCE);
    runner.feed(&mut sequence, first, Logits::All, &mut compare)?;
    for (index, &token) in rest.iter().enumerate() {
        runner.feed(&mut sequence, &[token], Logits::Last, |_, values| {
            compare(AT_ONCE + index, values);
        })?;
    }
    assert_eq!(compared, golden.positions.len() * golden.columns.len());
    Ok(worst / case.std)
}

#[test]
fn logits_of_gguf_files() {
    let Some(python) = std::env::var_os("MILLSTREAM_TEST_GGUF") else {
        println!("skipped: MILLSTREAM_TEST_GGUF is not set");
        return;
    };
    let mut failures = Vec::new();
    for golden in goldens() {
        let folder = tempfile::tempdir().expect("a folder");
        let digests = write(&python, &golden, folder.path());
        for (plan, case) in &golden.cases {
            let name = format!("{}-{plan}", golden.model);
            assert_eq!(digests[&name], case.digest, "{name}: other weights than the reference had");
            let checkpoint = Checkpoint::open(&folder.path().join(format!("{name}.gguf")));
            let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{name}: {error}"));
            match error(&checkpoint, &golden, case) {
                Ok(error) => {
                    println!("{name:20}: error {error:.2e} of {:.1e}", case.tolerance);
                    if error > case.tolerance {
                        let allowed = case.tolerance;
                        failures.push(format!("{name}: error {error:.3e}, allowed {allowed:.1e}"));
                    }
                }
                Err(error) => failures.push(format!("{name}: {error}")),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_model_has_goldens_in_the_usual_types() {
    let goldens = goldens();
    assert!(goldens.len() >= 13, "only {} models", goldens.len());
    let has = |golden: &Golden, plan: &str| golden.cases.iter().any(|(name, _)| name == plan);
    for golden in &goldens {
        for plan in ["F32", "Q8_0", "Q4_K_M", "Q4_0"] {
            assert!(has(golden, plan), "{}: no {plan}", golden.model);
        }
    }
    for plan in [
        "F16", "BF16", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M",
        "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
        "TQ1_0", "TQ2_0",
    ] {
        assert!(goldens.iter().any(|golden| has(golden, plan)), "no model in {plan}");
    }
}
