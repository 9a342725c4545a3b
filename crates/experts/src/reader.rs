//! Parallel positioned reads: each lands in the memory that it names, the urgent first.
//!
//! A read is one range of one file and the memory it goes to. At most `depth` of them are under way;
//! the rest wait, demand before read-ahead, each kind in the order it came. Two queues do the work:
//! threads with positioned reads, which run everywhere, and io_uring, which threads replace once it
//! fails. Both share what is here: the backlog, the rules of continuing a short transfer, and the counters.
//!
//! Invariant: every read that has begun is done before its reader is gone, so its memory is not
//! written afterwards.

mod statistics;
mod threads;
#[cfg(target_os = "linux")]
mod uring;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use checkpoint::FileIndex;
use serde::{Deserialize, Serialize};

pub use statistics::{Histogram, Statistics};

use crate::device::ALIGNMENT;
use crate::{Device, Error, Result};
use statistics::Counters;

/// The longest read. Linux transfers less than 2 GiB at once; no read should be this long either.
pub const READ_LIMIT_BYTES: usize = 1 << 30;

/// How often a read may be interrupted in a row before that counts as an error.
const INTERRUPTIONS_LIMIT: u32 = 1000;

/// The most events a trace holds; later ones are left out. About 20 MB.
const TRACE_LIMIT: usize = 1 << 18;

/// One range of a file and the memory it is to land in.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The file.
    pub file: FileIndex,
    /// The first byte; a multiple of [`ALIGNMENT`].
    pub offset: u64,
    /// Where it lands; a multiple of [`ALIGNMENT`].
    pub target: NonNull<u8>,
    /// How many bytes to request; a multiple of [`ALIGNMENT`]. More than the file has is no error.
    pub len: usize,
    /// How many bytes must come: at least one, at most `len`.
    pub needed: usize,
    /// The caller's mark. Reads may share one.
    pub ticket: u64,
    /// Whatever the caller wants to find again in a trace.
    pub label: [u32; 2],
}

// SAFETY: the pointer is an address to write to. The caller of `DiskReader::submit` promises that the memory
// behind it may be written from any thread until the read is done.
unsafe impl Send for Read {}

/// How urgent a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// It is waited for.
    Demand,
    /// It may be wanted soon.
    Ahead,
}

/// What carries the reads out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadEngine {
    /// A thread for each read under way.
    #[default]
    Threads,
    /// The kernel (Linux), and one thread that collects what is done.
    #[serde(rename = "io_uring")]
    Uring,
}

/// A queue and how many reads it keeps under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// What carries the reads out.
    pub queue: ReadEngine,
    /// The most reads under way at once; at least one.
    pub depth: usize,
}

/// Receives each read that is done, by its ticket, from a thread of the reader.
///
/// It must not wait for other reads, and it must not drop the reader.
pub type Done = dyn Fn(u64, Result<()>) + Send + Sync;

/// One read of the past.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent {
    /// When it began.
    pub start: Instant,
    /// When it was done.
    pub end: Instant,
    /// Which of the `depth` places it had.
    pub lane: usize,
    /// The file.
    pub file: FileIndex,
    /// The first byte.
    pub offset: u64,
    /// The bytes requested.
    pub len: usize,
    /// The caller's mark.
    pub ticket: u64,
    /// What the caller wanted to find here.
    pub label: [u32; 2],
    /// How urgent it was in the end.
    pub priority: Priority,
}

/// Carries out reads until it is dropped.
///
/// Dropping it waits for the reads that have begun; those that have not are forgotten, and `done` is
/// not called for them.
#[derive(Debug)]
pub struct DiskReader {
    core: Arc<ReaderCore>,
    queue: Running,
}

#[derive(Debug)]
enum Running {
    Threads {
        /// Dropping them ends them.
        _threads: threads::Threads,
    },
    #[cfg(target_os = "linux")]
    Uring(uring::Uring),
}

impl DiskReader {
    /// Starts reading from `device`. An error when the system refuses threads or io_uring, or when
    /// the device cannot be read by io_uring.
    ///
    /// # Panics
    /// When the depth is zero or absurd.
    pub fn start(device: Arc<dyn Device>, method: Method, done: Arc<Done>) -> Result<DiskReader> {
        assert!((1..=4096).contains(&method.depth), "{} reads at once", method.depth);
        let state = Mutex::new(ReaderState::new(method));
        let core = Arc::new(ReaderCore { device, done, state, ready: Condvar::new() });
        let queue = match method.queue {
            ReadEngine::Threads => {
                Running::Threads { _threads: threads::Threads::start(&core, 0..method.depth)? }
            }
            #[cfg(target_os = "linux")]
            ReadEngine::Uring => Running::Uring(uring::Uring::start(&core, method.depth)?),
            #[cfg(not(target_os = "linux"))]
            ReadEngine::Uring => return Err(core.refused(io::ErrorKind::Unsupported.into())),
        };
        Ok(DiskReader { core, queue })
    }

    /// The same, by threads where there is no io_uring: what was chosen on one day may be forbidden, or out of
    /// descriptors, on the next.
    ///
    /// # Panics
    /// As [`DiskReader::start`].
    pub fn start_or_by_threads(
        device: Arc<dyn Device>,
        method: Method,
        done: Arc<Done>,
    ) -> Result<DiskReader> {
        match DiskReader::start(Arc::clone(&device), method, Arc::clone(&done)) {
            Err(Error::Io { source, .. }) if method.queue == ReadEngine::Uring => {
                tracing::warn!("io_uring cannot be used ({source}): threads read instead");
                DiskReader::start(device, Method { queue: ReadEngine::Threads, ..method }, done)
            }
            started => started,
        }
    }

    /// The queue in use, which is not the one it was started with once io_uring has failed.
    pub fn queue(&self) -> ReadEngine {
        self.core.state().queue
    }

    /// Puts reads into the queue, in this order.
    ///
    /// # Safety
    /// The `len` bytes at each read's `target` are initialised memory that no other thread reads, writes
    /// or frees until `done` was called for the read, [`DiskReader::withdraw`] took it back, or the reader
    /// was dropped.
    ///
    /// # Panics
    /// When a read is not aligned, or requests nothing or more than [`READ_LIMIT_BYTES`].
    pub unsafe fn submit(&self, reads: &[Read], priority: Priority) {
        for read in reads {
            let places = [read.offset, read.target.addr().get() as u64, read.len as u64];
            let aligned = places.iter().all(|place| place.is_multiple_of(ALIGNMENT as u64));
            assert!(aligned, "{read:?} is not aligned");
            assert!((1..=READ_LIMIT_BYTES).contains(&read.len), "the length of {read:?}");
            assert!((1..=read.len).contains(&read.needed), "the need of {read:?}");
        }
        let mut state = self.core.state();
        state.push(reads, priority, Instant::now());
        match &self.queue {
            Running::Threads { .. } => self.core.wake(state, reads.len()),
            #[cfg(target_os = "linux")]
            Running::Uring(uring) => uring.begin(state, reads.len()),
        }
    }

    /// Makes the read-ahead of `ticket` urgent: what has not begun moves behind the demand reads that
    /// wait already.
    pub fn promote(&self, ticket: u64) {
        self.core.state().promote(ticket, Instant::now());
    }

    /// Takes back the reads of `ticket` that have not begun: how many. `done` is not called for them.
    pub fn withdraw(&self, ticket: u64) -> usize {
        self.core.state().withdraw(ticket, Instant::now())
    }

    /// What was done so far.
    pub fn statistics(&self) -> Statistics {
        let state = self.core.state();
        Statistics { queue: state.queue, ..state.counters.snapshot(Instant::now()) }
    }

    /// Begins or ends the recording of a trace. Beginning forgets what was recorded before.
    pub fn record_trace(&self, on: bool) {
        // Room for all of it at once, so that recording allocates nothing.
        let trace = on.then(|| Vec::with_capacity(TRACE_LIMIT));
        let mut state = self.core.state();
        match trace {
            Some(trace) => (state.trace, state.tracing) = (trace, true),
            None => state.tracing = false,
        }
    }

    /// The reads recorded since the last call, in the order in which they were done.
    pub fn take_trace(&self) -> Vec<TraceEvent> {
        let mut state = self.core.state();
        let next = Vec::with_capacity(if state.tracing { TRACE_LIMIT } else { 0 });
        std::mem::replace(&mut state.trace, next)
    }
}

/// What the queues share.
struct ReaderCore {
    device: Arc<dyn Device>,
    done: Arc<Done>,
    state: Mutex<ReaderState>,
    /// Notified when a read waits that no thread has seen, and at the end.
    ready: Condvar,
}

impl std::fmt::Debug for ReaderCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderCore").field("device", &self.device).finish_non_exhaustive()
    }
}

impl ReaderCore {
    fn state(&self) -> MutexGuard<'_, ReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes threads for `count` new reads. A thread looks at the backlog before it waits, so one that
    /// is busy now needs no call.
    fn wake(&self, state: MutexGuard<'_, ReaderState>, count: usize) {
        let idle = state.idle;
        drop(state);
        for _ in 0..count.min(idle) {
            self.ready.notify_one();
        }
    }

    /// Reports that a read is done. What came counts only if the file was not changed before it came:
    /// a writer to a file changes its identity first. A listener that panics has lost its read;
    /// the others continue.
    fn tell(&self, Read { file, ticket, .. }: Read, result: Result<()>) {
        let result = result.and_then(|()| self.device.check_unchanged(file));
        if catch_unwind(AssertUnwindSafe(|| (self.done)(ticket, result))).is_err() {
            tracing::error!(ticket, "the listener of a read panicked");
        }
    }

    /// The error of a queue that could not be started.
    fn refused(&self, source: io::Error) -> Error {
        let path = self.device.path(FileIndex(0)).to_owned();
        Error::Io { path, operation: "use io_uring to read".to_owned(), source }
    }
}

/// A read and when it came.
#[derive(Clone, Copy, Debug)]
struct Task {
    read: Read,
    priority: Priority,
    submitted: Instant,
    began: Instant,
}

/// Everything that changes, under one lock.
#[derive(Debug)]
struct ReaderState {
    /// The queue in use.
    queue: ReadEngine,
    demand: VecDeque<Task>,
    ahead: VecDeque<Task>,
    /// Reads that have begun; as many places as may be under way at once.
    lanes: Vec<Option<Task>>,
    #[cfg(target_os = "linux")]
    entries: uring::Entries,
    /// Threads that have nothing to do.
    idle: usize,
    stopping: bool,
    counters: Counters,
    tracing: bool,
    trace: Vec<TraceEvent>,
}

impl ReaderState {
    fn new(Method { queue, depth }: Method) -> ReaderState {
        ReaderState {
            queue,
            demand: VecDeque::new(),
            ahead: VecDeque::new(),
            lanes: vec![None; depth],
            #[cfg(target_os = "linux")]
            entries: uring::Entries::default(),
            idle: 0,
            stopping: false,
            counters: Counters::default(),
            tracing: false,
            trace: Vec::new(),
        }
    }

    fn push(&mut self, reads: &[Read], priority: Priority, now: Instant) {
        let waiting = match priority {
            Priority::Demand => &mut self.demand,
            Priority::Ahead => &mut self.ahead,
        };
        let task = |&read| Task { read, priority, submitted: now, began: now };
        waiting.extend(reads.iter().map(task));
        self.counters.submitted(reads.len(), priority, now);
    }

    /// Begins the next read, if one waits, in this lane.
    fn begin(&mut self, lane: usize, now: Instant) -> Option<Read> {
        let task = self.demand.pop_front().or_else(|| self.ahead.pop_front())?;
        debug_assert!(self.lanes[lane].is_none(), "lane {lane} is taken");
        self.lanes[lane] = Some(Task { began: now, ..task });
        Some(task.read)
    }

    /// Makes the read of this lane the next of its kind to begin, as if it never had. Nothing may be writing to its
    /// memory. At the end it is forgotten, as others are that have not begun.
    #[cfg(target_os = "linux")]
    fn put_back(&mut self, lane: usize) {
        let Some(task) = self.lanes[lane].take() else { return };
        if !self.stopping {
            match task.priority {
                Priority::Demand => self.demand.push_front(task),
                Priority::Ahead => self.ahead.push_front(task),
            }
        }
    }

    /// Counts the read of this lane as done and frees the lane.
    fn finish(&mut self, lane: usize, progress: &Progress, failed: bool, now: Instant) {
        let Some(task) = self.lanes[lane].take() else { return };
        self.counters.left(1, task.priority, now);
        let done = &mut self.counters.done;
        done.reads += 1;
        done.retries += u64::from(progress.retries);
        match failed {
            true => done.failed += 1,
            false => done.bytes += progress.have as u64,
        }
        done.from_submit.add(now.saturating_duration_since(task.submitted));
        done.from_start.add(now.saturating_duration_since(task.began));
        if self.tracing && self.trace.len() < TRACE_LIMIT {
            let Read { file, offset, len, ticket, label, .. } = task.read;
            let (start, end, priority) = (task.began, now, task.priority);
            let event = TraceEvent { start, end, lane, file, offset, len, ticket, label, priority };
            self.trace.push(event);
        }
    }

    fn promote(&mut self, ticket: u64, now: Instant) {
        let mut count = 0;
        // Once around: what stays keeps its order.
        for _ in 0..self.ahead.len() {
            let Some(mut task) = self.ahead.pop_front() else { break };
            if task.read.ticket == ticket {
                task.priority = Priority::Demand;
                self.demand.push_back(task);
                count += 1;
            } else {
                self.ahead.push_back(task);
            }
        }
        // What has begun is no faster for it, but from now on it is waited for.
        for task in self.lanes.iter_mut().flatten() {
            if task.read.ticket == ticket && task.priority == Priority::Ahead {
                task.priority = Priority::Demand;
                count += 1;
            }
        }
        self.counters.promoted(count, now);
    }

    fn withdraw(&mut self, ticket: u64, now: Instant) -> usize {
        let mut total = 0;
        for (waiting, priority) in
            [(&mut self.demand, Priority::Demand), (&mut self.ahead, Priority::Ahead)]
        {
            let before = waiting.len();
            waiting.retain(|task| task.read.ticket != ticket);
            let count = before - waiting.len();
            self.counters.left(count, priority, now);
            total += count;
        }
        self.counters.done.withdrawn += total as u64;
        total
    }

    /// Forgets what has not begun and lets the queue end.
    fn stop(&mut self) {
        self.stopping = true;
        self.demand.clear();
        self.ahead.clear();
    }
}

/// How far a read has come.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Bytes from the read's beginning that are there.
    have: usize,
    /// Attempts beyond the first.
    retries: u32,
    /// Interruptions in a row.
    interruptions: u32,
}

impl Progress {
    /// Where in the read the next attempt begins: direct reads cannot begin amid a block, so the
    /// last one that came in part is read again.
    fn next(&self) -> usize {
        self.have - self.have % ALIGNMENT
    }

    /// Takes note of an attempt that began at [`Progress::next`]. `None`: another is needed.
    fn record(
        &mut self,
        read: &Read,
        came: io::Result<usize>,
        device: &dyn Device,
    ) -> Option<Result<()>> {
        let path = || device.path(read.file).to_owned();
        match came {
            Ok(count) => {
                let reached = self.next() + count;
                if reached >= read.needed {
                    self.have = reached;
                    return Some(Ok(()));
                }
                if count == 0 || reached <= self.have {
                    return Some(Err(Error::ShortRead {
                        path: path(),
                        offset: read.offset,
                        expected: read.needed as u64,
                        got: self.have as u64,
                    }));
                }
                (self.have, self.interruptions) = (reached, 0);
            }
            Err(error)
                if error.kind() == io::ErrorKind::Interrupted
                    && self.interruptions < INTERRUPTIONS_LIMIT =>
            {
                self.interruptions += 1;
            }
            Err(source) => {
                let operation = format!("read at {}", read.offset + self.next() as u64);
                return Some(Err(Error::Io { path: path(), operation, source }));
            }
        }
        self.retries += 1;
        None
    }
}
