//! Bytes come as they are in the file, to its very end.

use std::sync::Arc;

use checkpoint::write::{Declaration, SafetensorsWriter};
use checkpoint::{Checkpoint, FileIndex};
use experts::device::{ALIGNMENT, Access, Files};
use experts::{Device, Error};
use format::Dtype;

use crate::support::{LENGTHS, check_bytes, content, open, pieces, read_all, threads, write_files};

#[test]
fn whole_files_come_in_pieces_of_any_size() {
    let (_folder, paths) = write_files(&LENGTHS);
    for access in [Access::Direct, Access::Buffered] {
        let Some(device) = open(&paths, access) else { continue };
        for (depth, blocks) in [(1, 1), (4, 3), (16, 7), (2, 1000)] {
            let mut wishes = Vec::new();
            for (file, &len) in LENGTHS.iter().enumerate() {
                wishes.extend(pieces(file, len, blocks));
            }
            let results = read_all(&device, threads(depth), &wishes).unwrap();
            check_bytes(&wishes, &LENGTHS, &results);
        }
        device.check_unchanged(FileIndex(0)).unwrap();
    }
}

#[test]
fn more_than_the_file_has_is_too_much_only_when_it_is_needed() {
    let (_folder, paths) = write_files(&[5000]);
    for access in [Access::Direct, Access::Buffered] {
        let Some(device) = open(&paths, access) else { continue };
        let len = 4 * ALIGNMENT;
        let wishes = [(0, 0, len, 5000), (0, 0, len, 5001), (0, 2 * ALIGNMENT as u64, len, 1)];
        let results = read_all(&device, threads(2), &wishes).unwrap();
        check_bytes(&wishes[..1], &[5000], &results[..1]);
        for (result, expect) in results[1..].iter().zip([(0, 5001, 5000), (8192, 1, 0)]) {
            let Err(Error::ShortRead { path, offset, expected, got }) = result else {
                panic!("{result:?}")
            };
            assert_eq!(path, &paths[0]);
            assert_eq!((*offset, *expected, *got), expect);
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let (folder, mut paths) = write_files(&[1]);
    paths.push(folder.path().join("gone.bin"));
    let error = Files::open_paths(&paths, Access::Buffered).unwrap_err();
    assert!(error.to_string().contains("gone.bin"), "{error}");
}

#[test]
fn a_checkpoint_in_memory_is_a_device_that_outlives_it() {
    let tensors = [Declaration::new("weight", Dtype::U8, &[10_000])];
    let mut writer = SafetensorsWriter::new(Vec::new(), &tensors, &Default::default()).unwrap();
    writer.write("weight", &content(0, 10_000)).unwrap();
    let model = writer.finish().unwrap();
    let config = br#"{"model_type": "tiny"}"#.to_vec();
    let list = vec![
        ("config.json".to_owned(), config.clone()),
        ("model.safetensors".to_owned(), model.clone()),
    ];
    let in_memory = Checkpoint::from_owned(list).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), &model).unwrap();
    let on_disk = Checkpoint::open(folder.path()).unwrap();

    for (checkpoint, is_memory) in [(in_memory, true), (on_disk, false)] {
        let files = Files::open(&checkpoint, Access::Buffered).unwrap();
        drop(checkpoint);
        assert_eq!(files.len_bytes(FileIndex(0)), model.len() as u64);
        let device: Arc<dyn Device> = Arc::new(files);
        assert_eq!(device.is_memory(), is_memory);
        let wishes = pieces(0, model.len(), 1);
        let results = read_all(&device, threads(3), &wishes).unwrap();
        let bytes: Vec<u8> = results.into_iter().flat_map(Result::unwrap).collect();
        assert_eq!(bytes, model);
        device.check_unchanged(FileIndex(0)).unwrap();
    }
}
