//! Files that change while they are open.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use checkpoint::FileIndex;
use experts::device::{Access, Files};
use experts::{Device, Error};

use crate::support::{open, pieces, read_all, threads, write_files};

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
