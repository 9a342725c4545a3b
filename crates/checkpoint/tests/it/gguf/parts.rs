//! Models in several files.

use checkpoint::gguf::{Declaration, Value};
use checkpoint::{Checkpoint, FileIndex};

use super::{field, fields, tensors, written};

type Files = Vec<(String, Vec<u8>)>;

fn split(number: u16, count: u16, total: usize) -> Vec<(String, Value)> {
    vec![
        field("split.no", Value::U16(number)),
        field("split.count", Value::U16(count)),
        field("split.tensors.count", Value::I32(total as i32)),
    ]
}

/// The first part small on purpose: no tensors at all.
fn model() -> Files {
    let list = tensors();
    let (first, second) = list.split_at(5);
    let parts: [&[Declaration]; 3] = [&[], first, second];
    let part = |(number, tensors): (usize, &[Declaration])| {
        let mut all = split(number as u16, 3, list.len());
        if number == 0 {
            all.extend(fields("llama"));
        }
        (format!("m-{:05}-of-00003.gguf", number + 1), written(&all, tensors))
    };
    parts.into_iter().enumerate().map(part).collect()
}

#[test]
fn parts_are_one_model() {
    let checkpoint = Checkpoint::from_owned(model()).unwrap();
    assert_eq!((checkpoint.file_count(), checkpoint.tensors().len()), (3, tensors().len()));
    let places: Vec<u32> = checkpoint.tensors().map(|tensor| tensor.file.0).collect();
    assert!(places.contains(&1) && places.contains(&2) && !places.contains(&0));
    // Each is read from its own file.
    let files = model();
    for tensor in checkpoint.tensors() {
        let mut bytes = vec![0; tensor.len_bytes as usize];
        checkpoint.read(tensor, 0, &mut bytes).unwrap();
        let start = tensor.offset as usize;
        assert_eq!(bytes, files[tensor.file.0 as usize].1[start..start + bytes.len()]);
    }
}

#[test]
fn any_part_stands_for_all() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in model() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    for name in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"] {
        let checkpoint = Checkpoint::open(&folder.path().join(name)).unwrap();
        assert_eq!(checkpoint.tensors().len(), tensors().len(), "{name}");
    }
    let whole = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(whole.opened(FileIndex(2)).is_some(), cfg!(any(unix, windows)));
}

#[track_caller]
fn check(change: impl Fn(&mut Files), expect: &str) {
    let mut files = model();
    change(&mut files);
    let error = Checkpoint::from_owned(files).unwrap_err().to_string();
    assert!(error.starts_with(expect), "{error}");
}

#[test]
fn parts_that_do_not_fit() {
    check(|files| drop(files.remove(2)), "<memory>/m-00003-of-00003.gguf: not found");
    check(|files| drop(files.remove(0)), "<memory>/config.json: not found");
    let copy = |files: &mut Files, from: usize, to: usize| files[to].1 = files[from].1.clone();
    check(
        |files| copy(files, 1, 2),
        "<memory>/m-00003-of-00003.gguf: split.no is 1, expected 2; all parts of a model",
    );
    check(
        |files| files[1].1 = written(&split(1, 4, 11), &[]),
        "<memory>/m-00002-of-00003.gguf: split.count is 4, expected 3",
    );
    check(
        |files| files[2].1 = written(&split(2, 3, 11), &[]),
        "<memory>/m-00001-of-00003.gguf: split.tensors.count is 11, the files have 5",
    );
    check(
        |files| files[2].1 = written(&split(2, 3, 11), &tensors()),
        "<memory>/m-00001-of-00003.gguf: split.tensors.count is 11, the files have 16",
    );
    check(
        |files| {
            let mut all = split(0, 3, 11);
            all.retain(|(key, _)| key != "split.tensors.count");
            all.extend(fields("llama"));
            files[0].1 = written(&all, &[]);
            files[2].1 = written(&split(2, 3, 11), &tensors());
        },
        "tensor \"blk.0.attn_k.weight\" is in two files: \
         <memory>/m-00002-of-00003.gguf and <memory>/m-00003-of-00003.gguf",
    );
    check(
        |files| files.iter_mut().for_each(|file| file.0 = file.0.replace("-of-", "_of_")),
        "<memory>: several GGUF models; name one of the files: m-00001_of_00003.gguf",
    );
    check(
        |files| {
            files.truncate(1);
            files[0].0 = "renamed.gguf".to_owned();
        },
        "<memory>/renamed.gguf: split.count says 3 files, and its name is not that of a part",
    );
    check(
        |files| files[0].1 = written(&fields("llama"), &tensors()),
        "<memory>/m-00001-of-00003.gguf: split.count says 1 files, and its name says 3",
    );
}
