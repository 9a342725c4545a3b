//! Repacking in this process, where a test can stop it at any moment.

use std::collections::BTreeMap;
use std::path::Path;

use checkpoint::{Checkpoint, ExpertForm, Span};

use super::*;

const LAYOUTS: [&str; 11] = [
    "mixtral-f32",
    "mixtral-4bit",
    "qwen3_moe-f32",
    "qwen3_moe-3bit",
    "qwen3_moe-mixed",
    "qwen3_moe-nvfp4",
    "qwen3_moe-4bit-sharded",
    "qwen3_5_moe-vl-bf16",
    "qwen3_next-8bit",
    "gpt_oss-published",
    "gpt_oss-mxfp4-q8",
];

const QUIET: Watch<'static> = Watch { advance: &|_| {}, stop: &|| false };

fn origin(name: &str) -> Origin {
    let environment =
        Environment { current_folder: golden::models().to_owned(), ..Environment::default() };
    Origin::open(name, &environment).unwrap()
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let file = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

#[test]
fn every_expert_is_one_aligned_stretch_with_the_same_bytes() {
    let builtin = cfg!(feature = "builtin").then_some("pebble");
    for name in LAYOUTS.into_iter().chain(builtin) {
        let folder = tempfile::tempdir().unwrap();
        let origin = origin(name);
        let copy = Copy::new(&origin, folder.path()).unwrap();
        assert_eq!(copy.write(QUIET).unwrap(), 0);
        copy.verify(QUIET).unwrap();

        let repacked = Checkpoint::open(folder.path()).unwrap();
        let spec = model::arch::spec(&repacked).unwrap();
        let mut warnings = repacked.warnings();
        warnings.retain(|warning| !matches!(warning, checkpoint::Warning::Skipped { .. }));
        assert_eq!(warnings, [], "{name}");
        let read = |checkpoint: &Checkpoint, span: Span| {
            let mut bytes = vec![0; span.len_bytes as usize];
            checkpoint.read_span(span, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(spec.moe_layers().count(), origin.spec.moe_layers().count());
        for ((layer, before), (same, after)) in origin.spec.moe_layers().zip(spec.moe_layers()) {
            assert_eq!(layer, same);
            assert_eq!(after.experts.form(), ExpertForm::Separate);
            for expert in 0..before.experts.experts() {
                let mut spans = after.experts.spans(expert);
                for (old, new) in before.experts.spans(expert).into_iter().zip(&spans) {
                    let same = read(&origin.checkpoint, old) == read(&repacked, *new);
                    assert!(same, "{name} layer {layer} expert {expert}");
                }
                spans.sort();
                assert_eq!(spans[0].offset % recipe::ALIGNMENT, 0, "{name} {layer} {expert}");
                for pair in spans.windows(2) {
                    assert_eq!(pair[0].offset + pair[0].len_bytes, pair[1].offset);
                }
            }
        }
        // What is no expert keeps its name, and nothing is there twice.
        let experts: u64 = spec.expert_bytes();
        assert_eq!(experts, origin.spec.expert_bytes());
        let padding = |tensor: &&checkpoint::Tensor| tensor.name.starts_with("padding.");
        let padded: u64 = repacked.tensors().filter(padding).map(|tensor| tensor.len_bytes).sum();
        assert_eq!(repacked.total_bytes() - padded, origin.checkpoint.total_bytes());
        for file in contents(folder.path()).iter().filter(|(name, _)| name.starts_with("experts")) {
            assert_eq!(file.1.len() as u64 % recipe::ALIGNMENT, 0, "{name} {}", file.0);
        }
    }
}

#[test]
fn a_run_that_was_stopped_anywhere_is_finished_by_the_next() {
    let whole = tempfile::tempdir().unwrap();
    let origin = origin("qwen3_moe-4bit-sharded");
    Copy::new(&origin, whole.path()).unwrap().write(QUIET).unwrap();
    let expect = contents(whole.path());

    for steps in 0..6_usize {
        let folder = tempfile::tempdir().unwrap();
        let copy = Copy::new(&origin, folder.path()).unwrap();
        let left = Cell::new(steps);
        let stop = || left.replace(left.get().saturating_sub(1)) == 0;
        let error = copy.write(Watch { stop: &stop, ..QUIET }).unwrap_err();
        assert!(error.is::<Interrupted>(), "{error:#}");
        let left = contents(folder.path());
        assert!(!left.contains_key(CONFIG) && !left.contains_key(marker::FILE), "{steps}");
        assert!(left.keys().all(|name| !name.ends_with(".partial")), "{steps}");
        assert!(left.iter().all(|(name, bytes)| expect[name] == *bytes), "{steps}");
        // Writing and checking a small file take a step each.
        assert_eq!(copy.write(QUIET).unwrap(), steps / 2);
        assert!(contents(folder.path()) == expect, "{steps}");
    }
}

#[test]
fn files_of_another_version_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let other = origin("qwen3_moe-4bit");
    let older = Copy::new(&other, folder.path()).unwrap();
    older.write(QUIET).unwrap();
    fs::write(folder.path().join("experts-077.safetensors"), b"stray").unwrap();

    let origin = origin("qwen3_moe-8bit");
    let copy = Copy::new(&origin, folder.path()).unwrap();
    assert!(copy.verify(QUIET).is_err());
    assert_eq!(copy.write(QUIET).unwrap(), 0);
    copy.verify(QUIET).unwrap();
    assert!(!folder.path().join("experts-077.safetensors").exists());
    assert!(older.verify(QUIET).is_err());
}

#[test]
fn any_range_of_a_file_can_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let origin = origin("mixtral-4bit");
    let copy = Copy::new(&origin, folder.path()).unwrap();
    copy.write(QUIET).unwrap();
    for recipe in &copy.recipes {
        let file = fs::read(folder.path().join(&recipe.name)).unwrap();
        for step in [1000, 4096, 77_777] {
            for offset in (0..file.len()).step_by(step) {
                let end = (offset + step).min(file.len());
                let mut bytes = vec![0xaa; end - offset];
                recipe.fill(&origin.checkpoint, offset as u64, &mut bytes).unwrap();
                assert!(bytes == file[offset..end], "{} {offset}", recipe.name);
            }
        }
    }
}

#[test]
fn a_full_disk_is_reported_with_the_bytes_that_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let origin = origin("mixtral-4bit");
    let copy = Copy::new(&origin, folder.path()).unwrap();
    let error = copy.refuse_full_disk(u64::MAX).unwrap_err().to_string();
    assert!(error.starts_with("the rest of the copy needs 18446744.1 TB, "), "{error}");
    let full = anyhow::Error::from(io::Error::from(io::ErrorKind::StorageFull)).context("writing");
    let error = copy.explain_full_disk(full, 5_000_000_000).to_string();
    assert!(error.starts_with("the rest of the copy needs 5.0 GB, "), "{error}");
    let other = copy.explain_full_disk(io::Error::from(io::ErrorKind::NotFound).into(), 1);
    assert!(!other.to_string().contains("needs"), "{other}");
}
