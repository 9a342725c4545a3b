//! Files that others take the place of while they are open.

use std::fs;

use checkpoint::{Checkpoint, FileIndex};
use experts::Error;
use experts::device::{ALIGNMENT, Access, Files};

use crate::support::{check_bytes, open, pieces, read_all, threads, write_files};

#[test]
fn a_file_replaced_by_another_reads_on_as_it_was() {
    let (folder, paths) = write_files(&[20_000]);
    for access in [Access::Direct, Access::Buffered] {
        let Some(device) = open(&paths, access) else { continue };
        let new = folder.path().join("new");
        fs::copy(&paths[0], folder.path().join("old")).unwrap();
        fs::write(&new, vec![0; 3 * ALIGNMENT]).unwrap();
        fs::rename(&new, &paths[0]).unwrap();
        device.check_unchanged(FileIndex(0)).unwrap();
        let wishes = pieces(0, 20_000, 2);
        check_bytes(&wishes, &[20_000], &read_all(&device, threads(2), &wishes).unwrap());
        fs::rename(folder.path().join("old"), &paths[0]).unwrap();
    }
}

#[test]
fn a_file_replaced_before_it_is_opened_again_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1, 2, 3, 4]);
    fs::write(folder.path().join("config.json"), r#"{"model_type": "tiny"}"#).unwrap();
    fs::write(&model, &bytes).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    Files::open(&checkpoint, Access::Buffered).unwrap();
    fs::write(folder.path().join("new"), &bytes).unwrap();
    fs::rename(folder.path().join("new"), &model).unwrap();
    let error = Files::open(&checkpoint, Access::Buffered).unwrap_err();
    assert!(matches!(&error, Error::Changed { path } if *path == model), "{error}");
}
