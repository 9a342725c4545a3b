//! io_uring reads what threads read, and says so when it may not.

use std::fs::File;
use std::sync::Arc;

use experts::device::{ALIGNMENT, Access, Device, Faulty};
use experts::reader::{DiskReader, Method, Priority, ReadEngine};
use experts::{Error, Result};

use crate::support::{
    LENGTHS, Listener, check_bytes, lay_out, open, pieces, read_all, threads, write_files,
};

pub(crate) fn uring(depth: usize) -> Method {
    Method { queue: ReadEngine::Uring, depth }
}

/// The result, or `None` and a line that says so, where this system has no io_uring for us.
pub(crate) fn unless_refused<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Io { operation, source, .. }) if operation.contains("io_uring") => {
            println!("skipped: no io_uring here: {source}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn uring_and_threads_read_the_same() {
    let (_folder, paths) = write_files(&LENGTHS);
    let Some(device) = open(&paths, Access::Direct) else { return };
    for (depth, blocks) in [(1, 1), (4, 3), (16, 7), (32, 1), (2, 1000)] {
        let mut wishes = Vec::new();
        for (file, &len) in LENGTHS.iter().enumerate() {
            wishes.extend(pieces(file, len, blocks));
        }
        // Beyond the end, and more than there is.
        wishes.push((2, 4 * ALIGNMENT as u64, ALIGNMENT, 1));
        wishes.push((2, 0, 4 * ALIGNMENT, LENGTHS[2] + 1));
        let by_threads = read_all(&device, threads(depth), &wishes).unwrap();
        let Some(by_uring) = unless_refused(read_all(&device, uring(depth), &wishes)) else {
            return;
        };
        let valid = wishes.len() - 2;
        check_bytes(&wishes[..valid], &LENGTHS, &by_uring[..valid]);
        for (ours, theirs) in by_uring[valid..].iter().zip(&by_threads[valid..]) {
            let (ours, theirs) = (ours.as_ref().unwrap_err(), theirs.as_ref().unwrap_err());
            assert_eq!(ours.to_string(), theirs.to_string());
        }
    }
}

#[test]
fn a_device_without_descriptors_is_refused() {
    let (_folder, paths) = write_files(&[ALIGNMENT]);
    let buffered = open(&paths, Access::Buffered).unwrap();
    let faulty: Arc<dyn Device> = Arc::new(Faulty::new(Arc::clone(&buffered), 0));
    for device in [buffered, faulty] {
        let error = read_all(&device, uring(4), &[]).unwrap_err();
        assert!(error.to_string().contains("io_uring"), "{error}");
    }
}

#[test]
fn a_file_cut_while_it_is_read_is_too_short() {
    let (_folder, paths) = write_files(&[20_000]);
    let Some(device) = open(&paths, Access::Direct) else { return };
    let wishes = pieces(0, 20_000, 1);
    File::options().write(true).open(&paths[0]).unwrap().set_len(10_000).unwrap();
    let Some(results) = unless_refused(read_all(&device, uring(2), &wishes)) else { return };
    // What is still there is no longer what it was.
    for result in &results[..2] {
        assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
    }
    for result in &results[2..] {
        assert!(matches!(result, Err(Error::ShortRead { .. })), "{result:?}");
    }
}

#[test]
fn threads_that_submit_and_end_lose_nothing() {
    let (_folder, paths) = write_files(&LENGTHS);
    let Some(device) = open(&paths, Access::Direct) else { return };
    let wishes = pieces(0, LENGTHS[0], 1);
    for round in 0..8 {
        let listener = Listener::new();
        let (_memory, reads) = lay_out(&wishes);
        let reader = DiskReader::start(Arc::clone(&device), uring(8), listener.done());
        let Some(reader) = unless_refused(reader) else { return };
        std::thread::scope(|scope| {
            for part in reads.chunks(reads.len() / 4) {
                let (reader, part) = (&reader, Sendable(part.to_vec()));
                scope.spawn(move || {
                    let Sendable(part) = part;
                    for (number, read) in part.iter().enumerate() {
                        let ahead = (number + round) % 3 == 0;
                        let priority = if ahead { Priority::Ahead } else { Priority::Demand };
                        // SAFETY: the memory outlives the reader.
                        unsafe { reader.submit(&[*read], priority) };
                        if number % 5 == 0 {
                            reader.promote(read.ticket);
                        }
                    }
                });
            }
        });
        let results = listener.wait(wishes.len());
        assert!(results.values().all(|told| matches!(told[..], [Ok(())])), "{results:?}");
        assert_eq!(reader.statistics().reads, wishes.len() as u64);
    }
}

struct Sendable<T>(T);

#[test]
fn dropping_the_reader_ends_it_whatever_waits() {
    let (_folder, paths) = write_files(&LENGTHS);
    let Some(device) = open(&paths, Access::Direct) else { return };
    let wishes = pieces(0, LENGTHS[0], 1);
    for depth in [1, 3, 32] {
        let listener = Listener::new();
        let (_memory, reads) = lay_out(&wishes);
        let reader = DiskReader::start(Arc::clone(&device), uring(depth), listener.done());
        let Some(reader) = unless_refused(reader) else { return };
        // SAFETY: the memory outlives the reader.
        unsafe { reader.submit(&reads, Priority::Ahead) };
        let last = wishes.len() as u64 - 1;
        let withdrawn = reader.withdraw(last);
        drop(reader);
        let told = listener.wait(0);
        assert!(told.len() <= wishes.len() - withdrawn);
        assert!(told.values().all(|told| matches!(told[..], [Ok(())])), "{told:?}");
    }
}
