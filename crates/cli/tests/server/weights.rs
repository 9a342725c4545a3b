//! Weights that change on the disk while a server reads experts from them.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

use crate::repository;
use crate::served::{COLD, HOT, Served, question};

/// 12 slots, a token's experts of one layer and one more for each layer, so that every answer reads.
const FEW_SLOTS: [&str; 5] = ["-v", "--expert-cache", "1248k", "--stream-experts", "always"];

/// A server that keeps few of Pebble's experts in memory, and the folder of its weights.
pub(crate) fn streaming() -> (TempDir, Served) {
    let folder = pebble();
    let model = folder.path().to_str().unwrap();
    let served = Served::start(&[&FEW_SLOTS[..], &[model]].concat());
    (folder, served)
}

pub(crate) fn pebble() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(repository("models/pebble")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn touch(path: &Path) {
    let file = std::fs::File::options().append(true).open(path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
}

fn weights(folder: &TempDir) -> Vec<PathBuf> {
    ["model.safetensors", "mtp.safetensors"].map(|name| folder.path().join(name)).to_vec()
}

#[test]
fn weights_that_are_touched_are_read_on() {
    let (folder, served) = streaming();
    served.check_answers();
    for _ in 0..2 {
        weights(&folder).iter().for_each(|path| touch(path));
        let before = served.metric("expert_misses_total");
        served.check_answers();
        assert!(served.metric("expert_misses_total") > before, "nothing was read");
    }
    served.signal("TERM");
    let (status, said) = served.wait(Duration::from_secs(60));
    assert_eq!(status.code(), Some(0));
    // Once for each new time, and not once a read.
    let lines = said.lines().filter(|line| line.contains("has a new time of change"));
    let of_model = lines.filter(|line| line.contains("/model.safetensors")).count();
    assert_eq!(of_model, 2, "{said}");
}

#[test]
fn weights_that_are_written_anew_with_the_same_bytes_are_read_on() {
    let (folder, served) = streaming();
    served.check_answers();
    for path in weights(&folder) {
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    served.check_answers();
}

#[test]
fn other_weights_of_the_same_shapes_are_an_error_until_the_old_ones_are_back() {
    let (folder, served) = streaming();
    served.check_answers();
    let path = &weights(&folder)[0];
    let bytes = std::fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut other = bytes.clone();
    other[header..].iter_mut().for_each(|byte| *byte = !*byte);
    std::fs::write(path, &other).unwrap();
    for _ in 0..2 {
        let reply = served.post("/v1/chat/completions", &question(COLD));
        assert_eq!(reply.status, 500);
        let error: Value = serde_json::from_str(&reply.text()).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("was changed while it was in use; start again"), "{message}");
    }
    std::fs::write(path, &bytes).unwrap();
    let answer = served.chat(&question(COLD));
    assert_eq!(answer["choices"][0]["message"]["content"], HOT);
}
