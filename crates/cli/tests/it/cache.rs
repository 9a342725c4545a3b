//! Models in the Hugging Face cache, as downloads leave them: `list`, `plan` and `show` say the same of each.

use std::path::PathBuf;

use super::{Home, assert_has, repository};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const REPOSITORY: &str = ".cache/huggingface/hub/models--org--repo";

/// A repository in the cache with these files of a model, as links to blobs.
fn download(home: &Home, model: &str, files: &[&str]) {
    let folder = home.path().join(REPOSITORY);
    let snapshot = folder.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(folder.join("blobs")).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    home.write(&format!("{REPOSITORY}/refs/main"), COMMIT);
    for (number, file) in files.iter().enumerate() {
        let blob = format!("{number:040x}");
        let from = repository(model).join(file);
        std::fs::copy(from, folder.join("blobs").join(&blob)).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(file)).unwrap();
    }
}

fn file(home: &Home, name: &str) -> PathBuf {
    home.path().join(REPOSITORY).join("snapshots").join(COMMIT).join(name)
}

/// What a download that was killed leaves behind.
fn leave_behind(home: &Home) {
    let etag = "f".repeat(64);
    home.write(&format!("{REPOSITORY}/blobs/{etag}.0a1b2c3d.incomplete"), "half of it");
    home.write(&format!("{REPOSITORY}/blobs/{}.incomplete", "e".repeat(40)), "");
}

#[track_caller]
fn check_complete(home: &Home) {
    let models = home.run(&["list", "--json"]).json();
    assert_eq!(models[3]["name"], "org/repo");
    assert_eq!(models[3]["complete"], true);
    assert!(!home.run(&["list"]).good().contains("incomplete"));
    let plan = home.run(&["plan", "org/repo", "--context", "256", "--threads", "2", "--json"]);
    assert_eq!(plan.stderr, "");
    assert_eq!(plan.json()["fits"], true);
    home.run(&["show", "org/repo"]).good();
}

#[track_caller]
fn check_incomplete(home: &Home, message: &str, hint: &str) {
    let models = home.run(&["list", "--json"]).json();
    assert_eq!(models[3]["name"], "org/repo");
    assert_eq!(models[3]["complete"], false);
    let message = format!("snapshots/{COMMIT} is incomplete; {message}\n");
    for command in ["plan", "show"] {
        let stderr = home.run(&[command, "org/repo"]).bad(1);
        assert_has(&stderr, &[&message, &format!("hint: {hint}\n")]);
    }
}

const SHARDED: &str = "testdata/models/qwen3_moe-4bit-sharded";
const INDEX: &str = "model.safetensors.index.json";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

#[test]
fn what_a_killed_download_of_another_file_leaves_behind_is_no_matter() {
    for (model, files) in [
        ("models/pebble", &["config.json", "model.safetensors", "tokenizer.json"][..]),
        (SHARDED, &["config.json", INDEX, SHARDS[0], SHARDS[1]][..]),
    ] {
        let home = Home::new();
        download(&home, model, files);
        if model == SHARDED {
            // The test models have no text.
            home.write(&format!("{REPOSITORY}/snapshots/{COMMIT}/tokenizer.json"), "{}");
        }
        check_complete(&home);
        leave_behind(&home);
        check_complete(&home);
    }
}

#[test]
fn a_download_that_is_not_finished_is_incomplete() {
    let finish = "finish the download with `hf download org/repo`";
    for (files, missing) in [
        (&["config.json"][..], "model.safetensors"),
        (&["config.json", "model.safetensors"][..], "tokenizer.json"),
        (&["model.safetensors", "tokenizer.json"][..], "config.json"),
    ] {
        let home = Home::new();
        download(&home, "models/pebble", files);
        leave_behind(&home);
        check_incomplete(&home, &format!("missing {missing}"), finish);
    }
    let home = Home::new();
    download(&home, SHARDED, &["config.json", INDEX, SHARDS[1]]);
    leave_behind(&home);
    check_incomplete(&home, &format!("missing {}", SHARDS[0]), finish);
}

#[test]
fn links_without_blobs_and_blobs_that_are_cut_are_incomplete() {
    let files = ["config.json", "model.safetensors", "tokenizer.json"];
    for missing in files {
        let home = Home::new();
        download(&home, "models/pebble", &files);
        std::fs::remove_file(std::fs::canonicalize(file(&home, missing)).unwrap()).unwrap();
        let finish = "finish the download with `hf download org/repo`";
        check_incomplete(&home, &format!("missing {missing}"), finish);
    }
    let home = Home::new();
    download(&home, "models/pebble", &files);
    let blob = std::fs::File::options().write(true).open(file(&home, files[1])).unwrap();
    let whole = blob.metadata().unwrap().len();
    blob.set_len(whole - 1).unwrap();
    check_incomplete(
        &home,
        &format!("model.safetensors has {} bytes of {whole} or more", whole - 1),
        "download it again with `hf download org/repo model.safetensors --force-download`",
    );
}
