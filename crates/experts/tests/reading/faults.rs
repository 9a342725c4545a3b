//! Whatever goes wrong below, the bytes are right or there is an error.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::FileIndex;
use experts::device::{ALIGNMENT, Access, Device, Fault, Faulty, Files, Rule};
use experts::reader::{DiskReader, Priority};
use experts::{Error, Result};
use proptest::prelude::*;

use crate::support::{
    LENGTHS, Listener, Wish, check_bytes, content, lay_out, pieces, read_all, threads, write_files,
};

fn device() -> (tempfile::TempDir, Arc<dyn Device>) {
    let (folder, paths) = write_files(&LENGTHS);
    (folder, Arc::new(Files::open_paths(&paths, Access::Buffered).unwrap()))
}

fn wishes(blocks: usize) -> Vec<Wish> {
    LENGTHS.iter().enumerate().flat_map(|(file, &len)| pieces(file, len, blocks)).collect()
}

fn describe(results: &[Result<Vec<u8>>]) -> Vec<String> {
    let text = |result: &Result<Vec<u8>>| match result {
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(error) => error.to_string(),
    };
    results.iter().map(text).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn faults_that_a_retry_mends_are_not_seen(
        seed in any::<u64>(), blocks in 1_usize..40, depth in 1_usize..9,
        short in 0.0..1.0_f64, interrupted in 0.0..0.9_f64,
    ) {
        let (_folder, device) = device();
        let faulty: Arc<dyn Device> = Arc::new(
            Faulty::new(device, seed)
                .with_chance(short, Fault::Short)
                .with_chance(interrupted, Fault::Interrupted)
                .with_chance(0.01, Fault::Delay(Duration::from_micros(100))),
        );
        let wishes = wishes(blocks);
        let results = read_all(&faulty, threads(depth), &wishes).unwrap();
        check_bytes(&wishes, &LENGTHS, &results);
        faulty.check_unchanged(FileIndex(0)).unwrap();
    }

    #[test]
    fn bytes_are_right_or_there_is_an_error(
        seed in any::<u64>(), blocks in 1_usize..40, depth in 1_usize..9, chance in 0.0..0.3_f64,
        end in 0_u64..1_100_000,
    ) {
        let (_folder, device) = device();
        let fresh = || -> Arc<dyn Device> {
            let truncated = Rule { file: Some(FileIndex(0)), ..Rule::always(Fault::Truncated(end)) };
            Arc::new(
                Faulty::new(Arc::clone(&device), seed)
                    .with_rule(truncated)
                    .with_chance(chance, Fault::Short)
                    .with_chance(chance, Fault::ShortForever)
                    .with_chance(chance, Fault::Broken)
                    .with_chance(chance, Fault::Interrupted),
            )
        };
        let wishes = wishes(blocks);
        let results = read_all(&fresh(), threads(depth), &wishes).unwrap();
        let contents = [0, 1, 2].map(|file| content(file, LENGTHS[file]));
        for (&wish, result) in wishes.iter().zip(&results) {
            let (file, offset, _, needed) = wish;
            match result {
                Ok(bytes) => {
                    let content = &contents[file][offset as usize..][..needed];
                    prop_assert!(bytes == content, "bytes of {wish:?}");
                    prop_assert!(file != 0 || offset + needed as u64 <= end);
                }
                Err(Error::ShortRead { .. } | Error::Io { .. }) => {}
                Err(Error::Changed { .. }) if file == 0 => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
        // The same faults again, whichever thread reads when.
        let again = read_all(&fresh(), threads(1), &wishes).unwrap();
        prop_assert_eq!(describe(&again), describe(&results));
    }
}

#[test]
fn retries_and_failures_are_counted() {
    let (_folder, device) = device();
    let twice = Rule { attempts: 0..2, ..Rule::always(Fault::Interrupted) };
    let broken = Rule { file: Some(FileIndex(1)), ..Rule::always(Fault::Broken) };
    let faulty = Arc::new(Faulty::new(device, 0).with_rule(broken).with_rule(twice));
    let listener = Listener::new();
    let (_memory, reads) = lay_out(&[
        (0, 0, ALIGNMENT, ALIGNMENT),
        (1, 0, ALIGNMENT, ALIGNMENT),
        (2, 0, 2 * ALIGNMENT, 1),
    ]);
    let reader = DiskReader::start(faulty.clone(), threads(2), listener.done()).unwrap();
    // SAFETY: the memory outlives the reader.
    unsafe { reader.submit(&reads, Priority::Demand) };
    let results = listener.wait(3);
    let Err(Error::Io { operation, source, .. }) = &results[&1][0] else { panic!("{results:?}") };
    assert_eq!(operation, "read at 0");
    assert_eq!(source.raw_os_error(), Some(5));
    let statistics = reader.statistics();
    assert_eq!((statistics.reads, statistics.failed, statistics.retries), (3, 1, 4));
    assert_eq!(statistics.bytes, 3 * ALIGNMENT as u64);
    assert_eq!(faulty.fault_count(), 5);
}

#[test]
fn endless_interruptions_end() {
    let (_folder, device) = device();
    let faulty: Arc<dyn Device> =
        Arc::new(Faulty::new(device, 0).with_rule(Rule::always(Fault::Interrupted)));
    let results = read_all(&faulty, threads(1), &[(0, 0, ALIGNMENT, 1)]).unwrap();
    assert!(matches!(&results[0], Err(Error::Io { .. })), "{results:?}");
}

#[test]
fn what_an_overwritten_file_brings_does_not_count() {
    let (_folder, device) = device();
    let file = Some(FileIndex(0));
    let rule = Rule { file, bytes: 0..1, ..Rule::always(Fault::Overwritten) };
    let faulty: Arc<dyn Device> = Arc::new(Faulty::new(device, 0).with_rule(rule));
    faulty.check_unchanged(FileIndex(0)).unwrap();
    let wishes = [(0, 0, ALIGNMENT, ALIGNMENT), (1, 0, ALIGNMENT, ALIGNMENT)];
    let results = read_all(&faulty, threads(1), &wishes[..1]).unwrap();
    assert!(matches!(results[0], Err(Error::Changed { .. })), "{results:?}");
    // The other bytes did come, and only the file's identity shows it.
    let mut came = vec![0; ALIGNMENT];
    assert_eq!(faulty.read(FileIndex(0), 0, &mut came).unwrap(), ALIGNMENT);
    assert_ne!(came[..], content(0, LENGTHS[0])[..ALIGNMENT]);
    assert!(matches!(faulty.check_unchanged(FileIndex(0)), Err(Error::Changed { .. })));
    // Other files are what they were.
    let results = read_all(&faulty, threads(1), &wishes[1..]).unwrap();
    check_bytes(&wishes[1..], &LENGTHS, &results);
}

#[test]
fn a_stalled_read_holds_up_its_lane_and_no_other() {
    let (_folder, device) = device();
    let rule = Rule { file: Some(FileIndex(1)), ..Rule::always(Fault::Stall) };
    let faulty = Arc::new(Faulty::new(device, 0).with_rule(rule));
    let listener = Listener::new();
    let mut wishes = vec![(1, 0, ALIGNMENT, ALIGNMENT), (1, 4096, ALIGNMENT, ALIGNMENT)];
    wishes.extend(pieces(0, LENGTHS[0], 16));
    let (_memory, reads) = lay_out(&wishes);
    let reader = DiskReader::start(faulty.clone(), threads(3), listener.done()).unwrap();
    // SAFETY: the memory outlives the reader.
    unsafe { reader.submit(&reads, Priority::Demand) };
    faulty.wait_for_stalled(2);
    let results = listener.wait(wishes.len() - 2);
    assert!(!results.contains_key(&0) && !results.contains_key(&1));
    faulty.release();
    assert_eq!(listener.wait(2).into_keys().collect::<Vec<_>>(), [0, 1]);
}
