//! A ring that fails: threads continue with what it did not take, and wait for what it did.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use checkpoint::FileIndex;
use experts::device::{ALIGNMENT, Access, Device, Faulty, RingCall};
use experts::reader::{DiskReader, Priority, ReadEngine};
use machine::pages::Pages;

use crate::support::{LENGTHS, Listener, Wish, check_bytes, lay_out, open, pieces, write_files};
use crate::uring::{unless_refused, uring};

const EINTR: i32 = 4;
const EIO: i32 = 5;
const EBADF: i32 = 9;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EMFILE: i32 = 24;
const ENOSYS: i32 = 38;
const EPERM: i32 = 1;

const ALWAYS: Range<u32> = 0..u32::MAX;

/// Waits until the reader reads in this way, or for long enough to be sure that it does not.
fn wait_for_queue(reader: &DiskReader, expect: ReadEngine) {
    for _ in 0..10_000 {
        if reader.queue() == expect {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes all reads, some of them in a second call, and afterwards checks that the memory stays as it is.
fn read_twice(
    device: &Arc<dyn Device>,
    depth: usize,
    wishes: &[Wish],
    expect: ReadEngine,
) -> Option<ReadEngine> {
    let listener = Listener::new();
    let (mut memory, reads) = lay_out(wishes);
    let reader = DiskReader::start(Arc::clone(device), uring(depth), listener.done());
    let reader = unless_refused(reader)?;
    let (first, second) = reads.split_at(reads.len() / 3);
    // SAFETY: the memory outlives the reader, and the reads do not overlap.
    unsafe { reader.submit(first, Priority::Demand) };
    let mut results = listener.wait(depth.min(first.len()));
    let told = results.len();
    // SAFETY: as above.
    unsafe { reader.submit(second, Priority::Ahead) };
    results.append(&mut listener.wait(wishes.len() - told));
    assert_eq!(results.len(), wishes.len(), "each is reported once");
    let mut used = 0;
    let mut bytes = Vec::new();
    for (result, &(_, _, len, needed)) in results.into_values().zip(wishes) {
        assert!(matches!(result[..], [Ok(())]), "{result:?}");
        bytes.push(Ok(memory[used..used + needed].to_vec()));
        used += len;
    }
    check_bytes(wishes, &LENGTHS, &bytes);
    // Memory of a finished read belongs to the listener: no read writes to it any more.
    memory.fill(0xee);
    // A call that is refused repeatedly is given up after some attempts.
    wait_for_queue(&reader, expect);
    let statistics = reader.statistics();
    assert_eq!((statistics.reads, statistics.failed), (wishes.len() as u64, 0));
    assert_eq!(statistics.queue, reader.queue());
    drop(reader);
    assert_eq!(listener.count(), 0);
    assert!(memory.iter().all(|&byte| byte == 0xee));
    Some(statistics.queue)
}

fn wishes() -> Vec<Wish> {
    (0..LENGTHS.len()).flat_map(|file| pieces(file, LENGTHS[file], 1)).collect()
}

/// Expects all bytes, and this queue in the end.
#[track_caller]
fn check(call: RingCall, calls: Range<u32>, errno: i32, expect: ReadEngine) {
    let (_folder, paths) = write_files(&LENGTHS);
    let Some(files) = open(&paths, Access::Direct) else { return };
    for depth in [1, 4, 32] {
        let faulty = Faulty::new(Arc::clone(&files), 0);
        let device: Arc<dyn Device> = Arc::new(faulty.with_ring_fault(call, calls.clone(), errno));
        let Some(queue) = read_twice(&device, depth, &wishes(), expect) else { return };
        assert_eq!(queue, expect, "{call:?} {calls:?} {errno} at depth {depth}");
    }
}

#[test]
fn a_ring_that_takes_no_reads_gives_way_to_threads() {
    for errno in [EIO, EBADF, EBUSY, EAGAIN, ENOMEM] {
        check(RingCall::Submit, ALWAYS, errno, ReadEngine::Threads);
    }
    check(RingCall::Submit, 1..2, EIO, ReadEngine::Threads);
    check(RingCall::Submit, 3..u32::MAX, ENOMEM, ReadEngine::Threads);
}

#[test]
fn a_ring_that_is_refused_for_a_moment_is_tried_again() {
    for errno in [EBUSY, EAGAIN, ENOMEM, EINTR] {
        check(RingCall::Submit, 0..20, errno, ReadEngine::Uring);
        check(RingCall::Wait, 0..20, errno, ReadEngine::Uring);
    }
}

#[test]
fn a_ring_that_cannot_be_waited_for_gives_way_to_threads() {
    for errno in [EIO, EBADF, EBUSY, ENOMEM] {
        check(RingCall::Wait, ALWAYS, errno, ReadEngine::Threads);
    }
    check(RingCall::Wait, 0..1, EIO, ReadEngine::Threads);
}

#[test]
fn lost_completions_are_read_again() {
    check(RingCall::Complete, 0..1, EIO, ReadEngine::Threads);
    check(RingCall::Complete, 7..9, EIO, ReadEngine::Threads);
    check(RingCall::Complete, ALWAYS, EIO, ReadEngine::Threads);
}

#[test]
fn a_ring_that_cannot_be_made_is_an_error_or_threads() {
    let (_folder, paths) = write_files(&LENGTHS);
    let Some(files) = open(&paths, Access::Direct) else { return };
    for errno in [ENOSYS, EPERM, EMFILE, ENOMEM] {
        let faulty = Faulty::new(Arc::clone(&files), 0);
        let device: Arc<dyn Device> =
            Arc::new(faulty.with_ring_fault(RingCall::Setup, ALWAYS, errno));
        let listener = Listener::new();
        let error = DiskReader::start(Arc::clone(&device), uring(4), listener.done()).unwrap_err();
        assert!(error.to_string().contains("use io_uring to read"), "{error}");
        let reader = DiskReader::start_or_by_threads(device, uring(4), listener.done()).unwrap();
        assert_eq!(
            (reader.queue(), reader.statistics().queue),
            (ReadEngine::Threads, ReadEngine::Threads)
        );
    }
}

/// A device with one bad habit, otherwise another device.
#[derive(Debug)]
struct Panicking {
    device: Arc<dyn Device>,
    call: RingCall,
    number: u32,
    calls: AtomicU32,
}

impl Device for Panicking {
    fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.device.read(file, offset, out)
    }

    fn path(&self, file: FileIndex) -> &Path {
        self.device.path(file)
    }

    fn check_unchanged(&self, file: FileIndex) -> experts::Result<()> {
        self.device.check_unchanged(file)
    }

    fn descriptor(&self, file: FileIndex) -> Option<BorrowedFd<'_>> {
        self.device.descriptor(file)
    }

    fn ring_fault(&self, call: RingCall) -> Option<io::Error> {
        if call == self.call {
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            assert_ne!(number, self.number, "made on purpose");
        }
        None
    }
}

#[test]
fn a_reaper_that_panics_becomes_a_thread_that_reads() {
    let (_folder, paths) = write_files(&LENGTHS);
    let Some(device) = open(&paths, Access::Direct) else { return };
    for depth in [1, 4] {
        let (device, calls) = (Arc::clone(&device), AtomicU32::new(0));
        let panicking = Panicking { device, call: RingCall::Wait, number: 0, calls };
        let device: Arc<dyn Device> = Arc::new(panicking);
        let expect = ReadEngine::Threads;
        let Some(queue) = read_twice(&device, depth, &wishes(), expect) else { return };
        assert_eq!(queue, expect);
    }
}

/// Reads through the ring wait for a pipe; reads by threads come at once.
#[derive(Debug)]
struct Pipe {
    end: PipeReader,
    is_broken: AtomicBool,
    call: RingCall,
}

impl Device for Pipe {
    fn read(&self, _file: FileIndex, _offset: u64, out: &mut [u8]) -> io::Result<usize> {
        out.fill(b't');
        Ok(out.len())
    }

    fn path(&self, _file: FileIndex) -> &Path {
        Path::new("<pipe>")
    }

    fn check_unchanged(&self, _file: FileIndex) -> experts::Result<()> {
        Ok(())
    }

    fn descriptor(&self, _file: FileIndex) -> Option<BorrowedFd<'_>> {
        Some(self.end.as_fd())
    }

    fn ring_fault(&self, call: RingCall) -> Option<io::Error> {
        let is_broken = call == self.call && self.is_broken.load(Ordering::Relaxed);
        is_broken.then(|| io::Error::from_raw_os_error(EIO))
    }
}

/// A reader with two of four places, and two reads that the kernel has taken and that wait for the pipe.
fn with_two_in_the_kernel(
    call: RingCall,
    test: impl FnOnce(DiskReader, &Pipe, &Listener, &dyn Fn(&DiskReader, usize), PipeWriter, Pages),
) {
    let (end, mut writer) = io::pipe().unwrap();
    let pipe = Arc::new(Pipe { end, is_broken: AtomicBool::new(false), call });
    let listener = Listener::new();
    let wishes: Vec<Wish> = (0..6).map(|_| (0, 0, ALIGNMENT, ALIGNMENT)).collect();
    let (memory, reads) = lay_out(&wishes);
    let reader = DiskReader::start(pipe.clone(), uring(4), listener.done());
    let Some(reader) = unless_refused(reader) else { return };
    let submit = |reader: &DiskReader, number: usize| {
        // SAFETY: the memory outlives the reader, and each read is submitted once.
        unsafe { reader.submit(&reads[number..=number], Priority::Demand) };
    };
    // The ring can read from a pipe.
    submit(&reader, 0);
    writer.write_all(&[b'r'; ALIGNMENT]).unwrap();
    assert!(matches!(listener.wait(1)[&0][..], [Ok(())]));
    assert_eq!(memory[0], b'r');
    submit(&reader, 1);
    submit(&reader, 2);
    test(reader, &pipe, &listener, &submit, writer, memory);
}

/// Long enough to see what should not happen, if it does.
const A_WHILE: Duration = Duration::from_millis(100);

#[test]
fn what_the_kernel_has_taken_is_reported_when_the_kernel_is_done() {
    for call in [RingCall::Submit, RingCall::Wait] {
        with_two_in_the_kernel(call, |reader, pipe, listener, submit, mut writer, memory| {
            pipe.is_broken.store(true, Ordering::Relaxed);
            if call == RingCall::Wait {
                // The reaper waits already: something must end that.
                writer.write_all(&[b'r'; ALIGNMENT]).unwrap();
                let told = listener.wait(1);
                assert!(told.values().all(|told| matches!(told[..], [Ok(())])), "{told:?}");
                // Before that, the ring would take the next read too.
                wait_for_queue(&reader, ReadEngine::Threads);
                assert_eq!(reader.queue(), ReadEngine::Threads);
            }
            for number in 3..6 {
                submit(&reader, number);
                assert!(matches!(listener.wait(1)[&(number as u64)][..], [Ok(())]));
                assert_eq!(reader.queue(), ReadEngine::Threads);
                let bytes = &memory[number * ALIGNMENT..(number + 1) * ALIGNMENT];
                assert!(bytes.iter().all(|&byte| byte == b't'));
            }
            // Their memory is the kernel's still.
            std::thread::sleep(A_WHILE);
            assert_eq!(listener.count(), 0);
            let left = if call == RingCall::Wait { 1 } else { 2 };
            writer.write_all(&vec![b'r'; left * ALIGNMENT]).unwrap();
            let results = listener.wait(left);
            assert!(results.values().all(|told| matches!(told[..], [Ok(())])), "{results:?}");
            assert!(memory[..3 * ALIGNMENT].iter().all(|&byte| byte == b'r'));
            drop(reader);
        });
    }
}

#[test]
fn the_reader_ends_only_when_the_kernel_is_done() {
    with_two_in_the_kernel(
        RingCall::Submit,
        |reader, pipe, listener, submit, mut writer, memory| {
            pipe.is_broken.store(true, Ordering::Relaxed);
            submit(&reader, 3);
            listener.wait(1);
            let has_ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    drop(reader);
                    has_ended.store(true, Ordering::Relaxed);
                });
                std::thread::sleep(A_WHILE);
                assert!(!has_ended.load(Ordering::Relaxed));
                writer.write_all(&[b'r'; 2 * ALIGNMENT]).unwrap();
            });
            assert_eq!(listener.wait(2).into_keys().collect::<Vec<_>>(), [1, 2]);
            assert!(memory[..3 * ALIGNMENT].iter().all(|&byte| byte == b'r'));
        },
    );
}

#[test]
fn a_read_that_the_ring_began_is_ended_by_a_thread() {
    with_two_in_the_kernel(
        RingCall::Submit,
        |reader, pipe, listener, submit, mut writer, memory| {
            pipe.is_broken.store(true, Ordering::Relaxed);
            submit(&reader, 3);
            listener.wait(1);
            // Not enough for one of them, which then has to be read on.
            writer.write_all(&[b'r'; 100]).unwrap();
            let told = listener.wait(1);
            let (&number, results) = told.iter().next().unwrap();
            assert!(matches!(results[..], [Ok(())]), "{told:?}");
            let number = number as usize;
            assert_eq!(memory[number * ALIGNMENT], b't');
            writer.write_all(&[b'r'; ALIGNMENT]).unwrap();
            assert_eq!(listener.wait(1).into_keys().next(), Some(3 - number as u64));
            drop(reader);
        },
    );
}

#[test]
fn a_read_that_fails_is_no_failure_of_the_ring() {
    let (_folder, paths) = write_files(&[ALIGNMENT]);
    // A file that is no weight file: the kernel answers with an error, which is the read's and not the ring's.
    let folder = File::open(paths[0].parent().unwrap()).unwrap();
    #[derive(Debug)]
    struct Folder(File);
    impl Device for Folder {
        fn read(&self, _: FileIndex, _: u64, _: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }
        fn path(&self, _: FileIndex) -> &Path {
            Path::new("<folder>")
        }
        fn check_unchanged(&self, _: FileIndex) -> experts::Result<()> {
            Ok(())
        }
        fn descriptor(&self, _: FileIndex) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
    }
    let listener = Listener::new();
    let (_memory, reads) = lay_out(&[(0, 0, ALIGNMENT, ALIGNMENT)]);
    let reader = DiskReader::start(Arc::new(Folder(folder)), uring(4), listener.done());
    let Some(reader) = unless_refused(reader) else { return };
    // SAFETY: the memory outlives the reader.
    unsafe { reader.submit(&reads, Priority::Demand) };
    assert!(matches!(listener.wait(1)[&0][..], [Err(experts::Error::Io { .. })]));
    assert_eq!(reader.queue(), ReadEngine::Uring);
}
