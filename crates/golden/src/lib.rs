//! The tiny models of testdata as files, for tests.
//!
//! The repository keeps how their weights are made, not the weights. This crate's build script writes the files
//! once, into cargo's target folder; `testdata/README.md` says what they are.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// The folder with a folder for each model.
pub fn models() -> &'static Path {
    Path::new(env!("GOLDEN_MODELS"))
}

/// The folder of a model, such as `llama-4bit`.
pub fn model(name: &str) -> PathBuf {
    models().join(name)
}

/// A path of the repository, such as `models/pebble`; in `testdata/models`, where its files were made.
pub fn repository(path: &str) -> PathBuf {
    match path.strip_prefix("testdata/models") {
        Some(model) => models().join(model.trim_start_matches('/')),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_is_whole() {
        let folders: Vec<_> = std::fs::read_dir(models()).expect("models").collect();
        assert!(folders.len() > 80, "{} models", folders.len());
        for folder in folders {
            let folder = folder.expect("a folder").path();
            for file in ["config.json", "golden.safetensors"] {
                assert!(folder.join(file).is_file(), "{}: no {file}", folder.display());
            }
        }
        assert!(model("llama-4bit").join("model.safetensors").is_file());
        assert_eq!(repository("testdata/models/llama-4bit"), model("llama-4bit"));
        assert!(repository("models/pebble").join("config.json").is_file());
    }
}
