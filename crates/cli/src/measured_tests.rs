//! Tests of `measured.rs`.

use super::*;
use experts::reader::ReadEngine;

const NOW: u64 = 1_794_733_531;

fn measured(folder: &Path, now: u64) -> Measured {
    let path = Some(folder.join("cache/millstream/measured.json"));
    Measured { path, machine: "a machine".to_owned(), now }
}

fn place(disk: &str, read_bytes: u64) -> Place {
    Place { disk: disk.to_owned(), read_bytes }
}

fn choice(bytes_per_second: f64) -> Choice {
    let method = Method { queue: ReadEngine::Uring, depth: 16 };
    Choice { access: Access::Direct, method, bytes_per_second, tried: Vec::new() }
}

/// A file with one disk and one memory, measured at [`NOW`].
fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let measured = measured(folder.path(), NOW);
    measured.keep_disk(&place("ext4 /dev/sda /", 1 << 20), choice(2.5e9));
    measured.keep_memory(2, 3e10);
    folder
}

/// Whether the disk and the memory of [`written`] are known.
#[track_caller]
fn check(measured: &Measured, expect: bool) {
    let disk = measured.disk(&place("ext4 /dev/sda /", 1 << 20));
    assert_eq!(disk.map(|disk| disk.value.bytes_per_second), expect.then_some(2.5e9));
    assert_eq!(measured.memory(2).map(|memory| memory.value), expect.then_some(3e10));
}

#[test]
fn what_was_measured_is_known_for_a_week() {
    let folder = written();
    for age in [0, 3600, OLDEST_SECONDS] {
        check(&measured(folder.path(), NOW + age), true);
    }
    check(&measured(folder.path(), NOW + OLDEST_SECONDS + 1), false);
    // The clock was wrong, then or now.
    check(&measured(folder.path(), NOW - 1), false);
    let disk = measured(folder.path(), NOW).disk(&place("ext4 /dev/sda /", 1 << 20)).unwrap();
    assert_eq!(disk.date(), "2026-11-15");
    assert_eq!(disk.value.method, Method { queue: ReadEngine::Uring, depth: 16 });
    assert_eq!(disk.value.access, Access::Direct);
}

#[test]
fn another_disk_size_of_reads_machine_or_number_of_threads_is_not_known() {
    let folder = written();
    let same = measured(folder.path(), NOW);
    assert!(same.disk(&place("ext4 /dev/sdb /", 1 << 20)).is_none());
    assert!(same.disk(&place("ext4 /dev/sda /", 1 << 21)).is_none());
    assert!(same.memory(3).is_none());
    check(&Measured { machine: "another".to_owned(), ..same }, false);
}

#[test]
fn a_file_that_is_damaged_or_of_another_version_is_as_good_as_none() {
    let folder = written();
    let measured = measured(folder.path(), NOW);
    let path = measured.path.clone().unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    let zero = whole.replace("2500000000.0", "0.0").replace("30000000000.0", "-1.0");
    assert_ne!(zero, whole);
    let other = whole.replace("\"format\": 1", "\"format\": 2");
    assert_ne!(other, whole);
    for damaged in [&whole[..whole.len() / 2], "", "[]", "nonsense", &zero, &other] {
        fs::write(&path, damaged).unwrap();
        check(&measured, false);
    }
    // The next measurement mends it.
    measured.keep_disk(&place("ext4 /dev/sda /", 1 << 20), choice(2.5e9));
    measured.keep_memory(2, 3e10);
    check(&measured, true);
    let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "nothing but the file itself");
}

#[test]
fn a_new_measurement_replaces_the_old_one_and_the_file_stays_small() {
    let folder = written();
    let later = measured(folder.path(), NOW + 60);
    for index in 0..3 * MOST_ENTRIES {
        later.keep_disk(&place("ext4 /dev/sda /", 1 << 20), choice(1e9 + index as f64));
        later.keep_disk(&place(&format!("disk {index}"), 1 << 20), choice(1e9));
    }
    let found = later.disk(&place("ext4 /dev/sda /", 1 << 20)).unwrap().value;
    assert_eq!(found.bytes_per_second, 1e9 + (3 * MOST_ENTRIES - 1) as f64);
    assert_eq!(later.read().disks.len(), MOST_ENTRIES);
    assert_eq!(later.read().memories.len(), 1);
}

#[test]
fn what_was_not_timed_is_not_kept_and_a_cache_that_cannot_be_written_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let measured = measured(folder.path(), NOW);
    measured.keep_disk(&place("disk", 1), choice(0.0));
    measured.keep_memory(2, 0.0);
    assert!(!measured.path.as_ref().unwrap().exists());
    // A file where the folder should be.
    fs::write(folder.path().join("cache"), "").unwrap();
    assert_eq!(measured.keep_disk(&place("disk", 1), choice(1e9)).date(), "2026-11-15");
    assert!(measured.disk(&place("disk", 1)).is_none());
    let nowhere = Measured { path: None, ..measured };
    assert_eq!(nowhere.keep_memory(2, 1e9).value, 1e9);
    assert!(nowhere.memory(2).is_none());
}

#[test]
fn a_place_is_a_disk_and_a_size_of_reads() {
    let folder = tempfile::tempdir().unwrap();
    let one = Place::new(folder.path(), 600_000);
    assert_eq!(one, Place::new(folder.path(), 1 << 20));
    assert_ne!(one, Place::new(folder.path(), 2_000_000));
    assert!(!one.disk.is_empty());
}
