//! Files that change while they are open.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use checkpoint::{Checkpoint, FileIndex};
use experts::device::{Access, Files};
use experts::{Device, Error};

use crate::support::{LENGTHS, check_bytes, content, open, pieces, read_all, threads, write_files};

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

/// Writes into the file without changing its length, and makes its time another even where clocks are coarse.
fn write(path: &Path, offset: u64, bytes: &[u8]) {
    let mut file = File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(bytes).unwrap();
    touch(path, 100);
}

fn touch(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

#[test]
fn a_change_in_place_is_noticed() {
    assert!(!is_noticed(|_| {}));
    let set_len = |path: &Path, len| {
        File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    };
    assert!(is_noticed(|path| set_len(path, 10_000)));
    assert!(is_noticed(|path| set_len(path, 30_000)));
    let other = vec![0; 20_000];
    assert!(is_noticed(|path| write(path, 0, &other)));
    // The beginning alone, or the end.
    assert!(is_noticed(|path| write(path, 7, &other[..1])));
    assert!(is_noticed(|path| write(path, 19_999, &other[..1])));
}

#[test]
fn a_new_time_of_the_same_bytes_is_no_change() {
    assert!(!is_noticed(|path| touch(path, 100)));
    assert!(!is_noticed(|path| touch(path, 0)));
    assert!(!is_noticed(|path| write(path, 0, &content(0, 20_000))));
}

/// A safetensors file whose header is longer than what is read of it at a time.
fn long_header() -> Vec<u8> {
    let tensor = |index: usize| {
        let name = format!("layers.{index:04}.{}", "x".repeat(800));
        format!(
            r#""{name}":{{"dtype":"U8","shape":[64],"data_offsets":[{},{}]}}"#,
            64 * index,
            64 * index + 64
        )
    };
    let header = format!("{{{}}}", (0..400).map(tensor).collect::<Vec<_>>().join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(content(1, 400 * 64));
    bytes
}

#[test]
fn the_whole_header_counts() {
    let bytes = long_header();
    assert!(bytes.len() > 300_000);
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "tiny"}"#).unwrap();
    std::fs::write(&model, &bytes).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    for access in [Access::Direct, Access::Buffered] {
        let Ok(device) = Files::open(&checkpoint, access) else {
            println!("skipped: the temporary folder has no direct reads");
            continue;
        };
        touch(&model, 7);
        device.check_unchanged(FileIndex(0)).unwrap();
        // One letter of a name near the header's end, between the samples.
        let place = 300_000;
        assert_eq!(bytes[place], b'x');
        write(&model, place as u64, b"y");
        for _ in 0..2 {
            let error = device.check_unchanged(FileIndex(0)).unwrap_err();
            assert!(matches!(&error, Error::Changed { path } if *path == model), "{error}");
        }
        // What is as it was may be read again.
        write(&model, place as u64, b"x");
        touch(&model, 50);
        device.check_unchanged(FileIndex(0)).unwrap();
    }
}

#[test]
fn reads_in_flight_while_the_time_changes_are_good() {
    let (_folder, paths) = write_files(&LENGTHS);
    for access in [Access::Direct, Access::Buffered] {
        let Some(device) = open(&paths, access) else { continue };
        let wishes = pieces(0, LENGTHS[0], 1);
        let is_over = AtomicBool::new(false);
        let touched = std::thread::scope(|scope| {
            let touching = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) || count < 10 {
                    touch(&paths[0], count);
                    count += 1;
                }
                count
            });
            for _ in 0..4 {
                let results = read_all(&device, threads(8), &wishes).unwrap();
                check_bytes(&wishes, &LENGTHS, &results);
            }
            is_over.store(true, Ordering::Relaxed);
            touching.join().unwrap()
        });
        assert!(touched >= 10);
    }
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
