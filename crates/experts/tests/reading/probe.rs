//! The probe chooses what works. How fast things are is not a matter for a test.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checkpoint::FileIndex;
use experts::device::{ALIGNMENT, Access, Device, Fault, Faulty, Rule};
use experts::probe::{DEPTHS, Sample, Trial, choose};
use experts::reader::ReadEngine;
use experts::{Error, Result};
use machine::pages::Pages;

use crate::support::{LENGTHS, open, write_files};

const BUDGET: Duration = Duration::from_millis(50);

/// Reads over all files, the last of each beyond its end.
fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for (file, &len) in LENGTHS.iter().enumerate() {
        let sample = |offset| (FileIndex(file as u32), offset as u64, 4 * ALIGNMENT);
        samples.extend((0..len).step_by(4 * ALIGNMENT).map(sample));
    }
    samples
}

fn scratch() -> Pages {
    Pages::new(1 << 20).unwrap()
}

/// Opens for direct reads and then refuses them, as some file systems do.
#[derive(Debug)]
struct Refusing(Arc<dyn Device>);

impl Device for Refusing {
    fn read(&self, _file: FileIndex, _offset: u64, _out: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::InvalidInput.into())
    }

    fn path(&self, file: FileIndex) -> &Path {
        self.0.path(file)
    }

    fn check_unchanged(&self, file: FileIndex) -> Result<()> {
        self.0.check_unchanged(file)
    }
}

/// Files that the system keeps in memory and answers buffered reads from, until a call drops them, if it does.
#[derive(Debug)]
struct Cached {
    files: Arc<dyn Device>,
    access: Access,
    is_dropped: AtomicBool,
    drops: bool,
    /// Whether a buffered read was answered from memory.
    memory_read: Arc<AtomicBool>,
}

impl Device for Cached {
    fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        // A disk takes its time.
        if self.access == Access::Direct || self.is_dropped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(200));
        } else {
            self.memory_read.store(true, Ordering::Relaxed);
        }
        self.files.read(file, offset, out)
    }

    fn path(&self, file: FileIndex) -> &Path {
        self.files.path(file)
    }

    fn check_unchanged(&self, file: FileIndex) -> Result<()> {
        self.files.check_unchanged(file)
    }

    fn forget_file(&self, _file: FileIndex) {
        self.is_dropped.store(self.drops, Ordering::Relaxed);
    }

    fn may_be_cached(&self, _file: FileIndex, _offset: u64) -> bool {
        !self.is_dropped.load(Ordering::Relaxed)
    }
}

#[test]
fn reads_from_memory_are_not_taken_for_a_fast_disk() {
    let (_folder, paths) = write_files(&LENGTHS);
    let memory_read = Arc::new(AtomicBool::new(false));
    let cached = |access, drops| -> Arc<dyn Device> {
        let files = open(&paths, Access::Buffered).unwrap();
        let (is_dropped, memory_read) = (AtomicBool::new(false), Arc::clone(&memory_read));
        Arc::new(Cached { files, access, is_dropped, drops, memory_read })
    };
    for drops in [false, true] {
        let way = |access| Ok(cached(access, drops));
        let budget = Duration::from_secs(1);
        let choice = choose(&way, &samples(), &mut scratch(), budget).unwrap();
        assert!(!memory_read.load(Ordering::Relaxed), "{choice}");
        // What was dropped may win fairly.
        assert!(drops || choice.access == Access::Direct, "{choice}");
        let buffered = choice.tried.iter().find(|trial| trial.access == Access::Buffered).unwrap();
        assert_eq!(buffered.outcome.is_ok(), drops, "{choice}");
    }
    // Where there is no other way it is taken, whatever is in memory.
    let way = |access| match access {
        Access::Buffered => Ok(cached(access, false)),
        Access::Direct => Ok(Arc::new(Refusing(cached(access, false))) as Arc<dyn Device>),
    };
    let choice = choose(&way, &samples(), &mut scratch(), BUDGET).unwrap();
    assert_eq!(choice.access, Access::Buffered);
    assert!(memory_read.load(Ordering::Relaxed), "{choice}");
    assert!(choice.bytes_per_second > 0.0, "{choice}");
}

#[test]
fn a_file_that_was_just_read_is_dropped_from_memory_before_it_is_timed() {
    let (_folder, paths) = write_files(&[24 << 20]);
    let Some(_) = open(&paths, Access::Direct) else { return };
    // What is not on the disk yet cannot be dropped.
    std::fs::File::open(&paths[0]).unwrap().sync_all().unwrap();
    let device = open(&paths, Access::Buffered).unwrap();
    let step = 512 << 10;
    let samples: Vec<Sample> =
        (0..24 << 20).step_by(step).map(|at| (FileIndex(0), at as u64, step)).collect();
    let cached = || {
        let may = |&&(file, at, len): &&Sample| device.may_be_cached(file, at + len as u64 / 2);
        samples.iter().filter(may).count()
    };
    std::fs::read(&paths[0]).unwrap();
    assert_eq!(cached(), samples.len());
    device.forget_file(FileIndex(0));
    if cached() > 0 {
        println!("skipped: the temporary folder is in memory, or the system drops nothing");
        return;
    }
    std::fs::read(&paths[0]).unwrap();
    let way = |access| Ok(open(&paths, access).unwrap());
    let mut scratch = Pages::new(16 << 20).unwrap();
    let choice = choose(&way, &samples, &mut scratch, Duration::from_secs(1)).unwrap();
    assert!(choice.tried.iter().any(|trial| trial.access == Access::Direct), "{choice}");
    // A slow machine has no time left for it. If it was timed, then not what was in memory: that is gone, but for what
    // the query has brought in.
    let is_timed = |trial: &Trial| trial.access == Access::Buffered && trial.outcome.is_ok();
    if choice.tried.iter().any(is_timed) {
        assert!(cached() < samples.len(), "{choice}");
    }
}

#[test]
fn what_is_chosen_was_tried() {
    let (_folder, paths) = write_files(&LENGTHS);
    if open(&paths, Access::Direct).is_none() {
        return;
    }
    let choice =
        choose(&|access| Ok(open(&paths, access).unwrap()), &samples(), &mut scratch(), BUDGET)
            .unwrap();
    assert!(choice.bytes_per_second > 0.0, "{choice}");
    assert!(DEPTHS.contains(&choice.method.depth));
    let same = choice
        .tried
        .iter()
        .find(|trial| trial.access == choice.access && trial.method == choice.method);
    assert_eq!(same.unwrap().outcome, Ok(choice.bytes_per_second));
}

#[test]
fn without_direct_reads_they_are_buffered() {
    let (_folder, paths) = write_files(&LENGTHS);
    let buffered = || open(&paths, Access::Buffered).unwrap();
    let no_open = |access| match access {
        Access::Buffered => Ok(buffered()),
        Access::Direct => Err(Error::Io {
            path: paths[0].clone(),
            operation: "open".to_owned(),
            source: io::ErrorKind::InvalidInput.into(),
        }),
    };
    let no_read = |access| -> Result<Arc<dyn Device>> {
        match access {
            Access::Buffered => Ok(buffered()),
            Access::Direct => Ok(Arc::new(Refusing(buffered()))),
        }
    };
    let ways: [&dyn Fn(Access) -> Result<Arc<dyn Device>>; 2] = [&no_open, &no_read];
    for way in ways {
        let choice = choose(way, &samples(), &mut scratch(), BUDGET).unwrap();
        assert_eq!((choice.access, choice.method.queue), (Access::Buffered, ReadEngine::Threads));
        assert!(choice.bytes_per_second > 0.0);
        assert_eq!(choice.tried[0].access, Access::Direct);
        choice.tried[0].outcome.as_ref().unwrap_err();
    }
}

#[test]
fn a_broken_disk_is_an_error_and_no_choice() {
    let (_folder, paths) = write_files(&LENGTHS);
    let broken = |_| -> Result<Arc<dyn Device>> {
        let rule = Rule { attempts: 1..9, ..Rule::always(Fault::Broken) };
        Ok(Arc::new(Faulty::new(open(&paths, Access::Buffered).unwrap(), 0).with_rule(rule)))
    };
    let error = choose(&broken, &samples(), &mut scratch(), BUDGET).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn without_samples_nothing_is_tried() {
    let (_folder, paths) = write_files(&LENGTHS);
    let choice =
        choose(&|_| Ok(open(&paths, Access::Buffered).unwrap()), &[], &mut scratch(), BUDGET);
    assert!(choice.unwrap().tried.is_empty());
}
