//! Folders as people have them: sharded, half downloaded, linked, truncated while in use.

use std::fs;
use std::path::Path;

use checkpoint::write::Declaration;
use checkpoint::{Checkpoint, Source};
use format::Dtype;

use crate::support::{CONFIG, counted_file, declare, files};

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

fn shard(index: usize) -> Vec<Declaration> {
    vec![declare(&format!("layer.{index}.weight"), Dtype::F32, &[2, 3])]
}

fn index_of(map: &[(&str, &str)]) -> String {
    let entries: Vec<String> =
        map.iter().map(|(tensor, file)| format!("{tensor:?}: {file:?}")).collect();
    format!(r#"{{"metadata": {{"total_size": 1}}, "weight_map": {{{}}}}}"#, entries.join(", "))
}

fn write_folder(folder: &Path, list: &[(&str, Vec<u8>)]) {
    fs::write(folder.join("config.json"), CONFIG).unwrap();
    list.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
}

/// Opens the files from disk and from memory and demands the same answer.
#[track_caller]
fn check(list: &[(&str, Vec<u8>)], tensors: &[&str], warnings: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), list);
    let mut memory = files(&[("config.json", CONFIG.as_bytes())]);
    memory.extend(list.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())));
    let opened =
        [Checkpoint::open(folder.path()).unwrap(), Checkpoint::from_owned(memory).unwrap()];
    for checkpoint in &opened {
        let names: Vec<&str> = checkpoint.tensors().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, tensors);
        let found: Vec<String> = checkpoint.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(found, warnings);
    }
    for (on_disk, in_memory) in opened[0].tensors().zip(opened[1].tensors()) {
        assert_eq!(on_disk, in_memory);
        let values = opened[0].read_f32(on_disk).unwrap();
        let same = opened[1].read_f32(in_memory).unwrap();
        assert!(values.iter().zip(&same).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn single_and_sharded_folders() {
    let (one, two) = (counted_file(&shard(0)), counted_file(&shard(1)));
    let both = ["layer.0.weight", "layer.1.weight"];
    check(&[("model.safetensors", one.clone())], &both[..1], &[]);
    check(&[("weights.safetensors", one.clone())], &both[..1], &[]);
    let shards = [(SHARDS[0], one.clone()), (SHARDS[1], two.clone())];
    check(&shards, &both, &[]);
    let index = index_of(&[(both[0], SHARDS[0]), (both[1], SHARDS[1])]).into_bytes();
    let name = "model.safetensors.index.json";
    check(&[shards.as_slice(), &[(name, index.clone())]].concat(), &both, &[]);
    // What the index does not list is not part of the model.
    let extra = ("model-extra.safetensors", counted_file(&shard(7)));
    check(&[shards.as_slice(), &[(name, index), extra.clone()]].concat(), &both, &[]);
    // Without an index every model file is, and nothing else.
    let other = ("consolidated.safetensors", one);
    let all = ["layer.0.weight", "layer.1.weight", "layer.7.weight"];
    check(&[shards.as_slice(), &[other, extra]].concat(), &all, &[]);
}

#[test]
fn an_index_that_lists_missing_shards_is_named_and_passed_over() {
    let index = index_of(&[("layer.0.weight", SHARDS[0]), ("layer.1.weight", SHARDS[1])]);
    let list = [
        ("model.safetensors.index.json", index.into_bytes()),
        (SHARDS[0], counted_file(&shard(0))),
        ("model-q4.safetensors", counted_file(&shard(5))),
    ];
    check(
        &list,
        &["layer.0.weight", "layer.5.weight"],
        &[
            "the index lists files that are not there: model-00002-of-00002.safetensors",
            "the index lists 1 tensors that are not there: \"layer.1.weight\" …",
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &list);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(
        checkpoint.require("layer.1.weight", &[2, 3]).unwrap_err().to_string(),
        format!(
            "{}: no tensor \"layer.1.weight\"; near: \"layer.0.weight\", \"layer.5.weight\"; \
             the index lists files that are not there: model-00002-of-00002.safetensors",
            folder.path().display()
        )
    );
}

#[test]
fn a_truncated_shard_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = counted_file(&shard(0));
    model.pop();
    write_folder(folder.path(), &[("model.safetensors", model)]);
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    let expected = "model.safetensors: tensor \"layer.0.weight\": ends at data byte 24, \
                    the file has 23 (truncated?)";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn a_file_that_shrinks_while_open_fails_the_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = counted_file(&shard(0));
    let len = model.len() as u64;
    write_folder(folder.path(), &[("model.safetensors", model)]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let path = folder.path().join("model.safetensors");
    fs::File::options().write(true).open(&path).unwrap().set_len(len - 10).unwrap();
    let error = checkpoint.read_f32(checkpoint.tensor("layer.0.weight").unwrap()).unwrap_err();
    let expected = format!("wanted 24 bytes at offset {}, got 14", len - 24);
    assert!(error.to_string().ends_with(&expected), "{error}");
}

#[test]
fn side_files_are_bounded_and_stay_inside() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &[("model.safetensors", counted_file(&shard(0)))]);
    fs::write(folder.path().join("tokenizer.json"), "tokens").unwrap();
    let large = fs::File::create(folder.path().join("large.json")).unwrap();
    large.set_len(1 << 30).unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let tokens = checkpoint.read_file("tokenizer.json").unwrap();
    assert_eq!(tokens.as_deref(), Some(b"tokens".as_slice()));
    for name in ["absent.json", "../config.json", "/etc/passwd", "", ".", "..", "a/b"] {
        assert_eq!(checkpoint.read_file(name).unwrap(), None, "{name}");
    }
    let error = |name| checkpoint.read_file(name).unwrap_err().to_string();
    assert!(
        error("large.json")
            .ends_with("large.json: more than 268435456 bytes, which is the limit for such a file")
    );
    assert!(error("folder").ends_with("folder: not a plain file"));
}

#[test]
fn what_is_no_folder_of_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let error = || Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(error().ends_with("config.json: not found"));
    fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    assert!(error().ends_with("no *.safetensors file"));
    fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    assert!(error().ends_with("model.safetensors: not a plain file"));
}

/// The Hugging Face cache: a snapshot folder of links into `blobs`.
// Links take a privilege on Windows.
#[cfg(unix)]
#[test]
fn links_are_followed() {
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshot"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&snapshot).unwrap();
    fs::write(blobs.join("1"), CONFIG).unwrap();
    fs::write(blobs.join("2"), counted_file(&shard(0))).unwrap();
    std::os::unix::fs::symlink("../blobs/1", snapshot.join("config.json")).unwrap();
    std::os::unix::fs::symlink("../blobs/2", snapshot.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(&snapshot).unwrap();
    assert_eq!(checkpoint.tensors().len(), 1);
}

#[test]
fn a_reader_of_its_own_finds_the_bytes() {
    let model: &'static [u8] = counted_file(&shard(0)).leak();
    let list = [("config.json", CONFIG.as_bytes()), ("model.safetensors", model)];
    let built_in = Checkpoint::from_memory(&list).unwrap();
    let tensor = built_in.tensor("layer.0.weight").unwrap();
    let Source::Memory(bytes) = built_in.source(tensor.file) else { panic!("not in memory") };
    let start = tensor.offset as usize;
    let mut read = vec![0; tensor.len_bytes as usize];
    built_in.read(tensor, 0, &mut read).unwrap();
    assert_eq!(read, bytes[start..start + read.len()]);

    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &[("model.safetensors", model.to_vec())]);
    let on_disk = Checkpoint::open(folder.path()).unwrap();
    let Source::Path(path) = on_disk.source(tensor.file) else { panic!("not on disk") };
    assert_eq!(fs::read(path).unwrap(), model);
}
