//! Files that change while they are open.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use checkpoint::{Checkpoint, FileIndex};
use experts::device::{ALIGNMENT, Access, Files};
use experts::{Device, Error};

use crate::support::{check_bytes, open, pieces, read_all, threads, write_files};

/// Opens a file, does something to it, and says whether the device noticed.
fn is_noticed(change: impl FnOnce(&Path)) -> bool {
    let (_folder, paths) = write_files(&[20_000]);
    let device = Files::open_paths(&paths, Access::Buffered).unwrap();
    device.check_unchanged(FileIndex(0)).unwrap();
    change(&paths[0]);
    match device.check_unchanged(FileIndex(0)) {
        Ok(()) => false,
        Err(Error::Changed { path }) => path == paths[0],
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_change_in_place_is_noticed() {
    assert!(!is_noticed(|_| {}));
    assert!(is_noticed(|path| {
        let file = File::options().write(true).open(path).unwrap();
        // The same length, and a time that differs even where clocks are coarse.
        file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
    }));
    let set_len = |path: &Path, len| {
        File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    };
    assert!(is_noticed(|path| set_len(path, 10_000)));
    assert!(is_noticed(|path| set_len(path, 30_000)));
}

#[test]
fn a_file_that_was_cut_is_too_short_and_no_longer_what_it_was() {
    for access in [Access::Direct, Access::Buffered] {
        let (_folder, paths) = write_files(&[20_000]);
        let Some(device) = open(&paths, access) else { continue };
        let wishes = pieces(0, 20_000, 1);
        File::options().write(true).open(&paths[0]).unwrap().set_len(10_000).unwrap();
        let results = read_all(&device, threads(2), &wishes).unwrap();
        for result in &results[..2] {
            assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
        }
        for result in &results[2..] {
            assert!(matches!(result, Err(Error::ShortRead { .. })), "{result:?}");
        }
    }
}

#[test]
// Other systems may refuse to replace a file that is open.
#[cfg(unix)]
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
// Other systems may refuse to replace a file that is open.
#[cfg(unix)]
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
