//! Weights that are replaced, overwritten or cut while they are in use.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::{
    Model, Outcome, PATIENCE, SLOTS, bank, failed, monotone, serve, varied, within_patience,
};

/// A copy of a model that may be changed.
fn copy(name: &str) -> (tempfile::TempDir, Model, PathBuf) {
    let from = golden::model(name);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let model = Model::open(folder.path());
    let weights = folder.path().join("model.safetensors");
    // Later than the resolution of the file system's clock.
    std::thread::sleep(Duration::from_millis(30));
    (folder, model, weights)
}

/// Serves requests, lets something happen to the weights, and serves them again: whether any failed.
#[track_caller]
fn after(change: impl FnOnce(&Path), slots: usize, reason: &str) -> bool {
    let (_folder, model, weights) = copy("qwen3_5_moe-4bit");
    let requests = [monotone(5, 40, 6), varied(2, 3, 6), varied(7, 70, 6)];
    let answers = model.answers(&requests);
    let mut engine = model.engine(slots, &model.good_disk(), PATIENCE);
    for (outcome, answer) in serve(&mut engine, &requests).iter().zip(&answers) {
        assert!(!failed(outcome, answer), "{outcome:?}");
    }
    change(&weights);
    let outcomes = serve(&mut engine, &requests);
    let lost: Vec<&Outcome> = outcomes
        .iter()
        .zip(&answers)
        .filter_map(|(outcome, answer)| failed(outcome, answer).then_some(outcome))
        .collect();
    for outcome in &lost {
        let error = outcome.error.as_ref().unwrap();
        assert!(error.contains(reason) && error.contains(weights.to_str().unwrap()), "{error}");
    }
    assert_eq!(bank(&engine).statistics().failed > 0, !lost.is_empty());
    !lost.is_empty()
}

fn open(path: &Path) -> fs::File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
// Other systems may refuse to replace a file that is open.
#[cfg(unix)]
fn a_file_replaced_by_a_rename_is_read_on() {
    within_patience(|| {
        let replace = |path: &Path| {
            let new = path.with_extension("new");
            fs::write(&new, vec![0x55; fs::metadata(path).unwrap().len() as usize]).unwrap();
            fs::rename(&new, path).unwrap();
        };
        assert!(!after(replace, SLOTS[0], ""));
    });
}

#[test]
fn a_file_overwritten_in_place_is_noticed_before_it_is_used() {
    within_patience(|| {
        let overwrite = |path: &Path| {
            let len = fs::metadata(path).unwrap().len() as usize;
            open(path).write_all(&vec![0x55; len]).unwrap();
        };
        assert!(after(overwrite, SLOTS[0], "was changed while it was in use"));
        // What was read before it happened is right.
        assert!(!after(overwrite, SLOTS[1], ""));
    });
}

#[test]
fn a_file_that_is_touched_is_read_on() {
    within_patience(|| {
        for slots in SLOTS {
            let later = SystemTime::now() + Duration::from_secs(100);
            assert!(!after(|path| open(path).set_modified(later).unwrap(), slots, ""));
        }
    });
}

#[test]
fn other_weights_below_the_same_header_are_noticed() {
    within_patience(|| {
        let overwrite = |path: &Path| {
            let mut bytes = fs::read(path).unwrap();
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes[header..].iter_mut().for_each(|byte| *byte = !*byte);
            open(path).write_all(&bytes).unwrap();
        };
        assert!(after(overwrite, SLOTS[0], "was changed while it was in use"));
    });
}

#[test]
fn a_file_that_is_cut_is_noticed() {
    within_patience(|| {
        assert!(after(|path| open(path).set_len(20_000).unwrap(), SLOTS[0], "is too short"));
        let end = |path: &Path| fs::metadata(path).unwrap().len() - 1;
        assert!(after(|path| open(path).set_len(end(path)).unwrap(), SLOTS[0], ""));
    });
}
