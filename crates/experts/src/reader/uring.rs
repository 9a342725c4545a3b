//! The queue of Linux: reads are handed to the kernel through io_uring.
//!
//! The submitting thread hands a read over itself, so it begins without a thread being woken. One thread, the
//! reaper, collects what is done, hands over what waits, and reports.
//!
//! Whatever fails about the ring ends its use, once and for all: reads that the kernel has not taken go back to
//! the backlog, those that it has taken end in the ring, and threads carry out everything else. The reaper
//! makes that change; others only mark the ring as failed and wake it.
//!
//! Invariant: a read is reported, or begun by a thread, only when the kernel is done with its memory or never had it.

mod reaper;
mod ring;

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, MutexGuard};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use checkpoint::FileIndex;
use io_uring::{opcode, squeue, types};

use self::reaper::Reaper;
use self::ring::Ring;
use super::{Progress, ReadEngine, ReaderCore, ReaderState};
use crate::Result;

/// The mark of the entry that wakes the reaper. Those of reads are their lanes.
const WAKE: u64 = u64::MAX;

/// How often the kernel may refuse a call for the moment, in a row, and how long it is left alone after each.
const REFUSALS_LIMIT: u32 = 100;
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);

/// "There is something to read", for a poll; the same number on every Linux.
const POLLIN: u32 = 1;

pub(super) struct Uring {
    shared: Arc<SharedRing>,
    reaper: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").finish_non_exhaustive()
    }
}

/// What is known of the entries in the submission queue; part of the reader's state.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Those that the kernel may not have taken, in order: the lane of each, `None` for the one that wakes the reaper.
    untaken: VecDeque<Option<usize>>,
    /// Whether the entry that wakes the reaper is queued and not completed.
    is_armed: bool,
}

impl Entries {
    /// The kernel takes entries in order and has left this many.
    fn keep_last(&mut self, count: usize) {
        let taken = self.untaken.len().saturating_sub(count);
        self.untaken.drain(..taken);
    }
}

struct SharedRing {
    core: Arc<ReaderCore>,
    ring: Ring,
    /// Reads that may be in the ring: the first lanes.
    depth: usize,
    /// A byte in this pipe wakes the reaper through an entry that is queued in advance, so that it can be woken
    /// when no entry can be submitted any more.
    wake: PipeWriter,
    woken: PipeReader,
}

impl Uring {
    pub(super) fn start(core: &Arc<ReaderCore>, depth: usize) -> Result<Uring> {
        if core.device.descriptor(FileIndex(0)).is_none() {
            let reason = "these files can only be read through the program";
            return Err(core.refused(io::Error::new(io::ErrorKind::Unsupported, reason)));
        }
        let refused = |source| core.refused(source);
        let ring = Ring::open(&core.device, depth).map_err(refused)?;
        let (woken, wake) = io::pipe().map_err(refused)?;
        let shared = Arc::new(SharedRing { core: Arc::clone(core), ring, depth, wake, woken });
        let reaper = Reaper::new(Arc::clone(&shared));
        let reaper = Builder::new().name("reader-0".to_owned()).spawn(move || reaper.run());
        Ok(Uring { shared, reaper: Some(reaper.map_err(refused)?) })
    }

    /// Begins what waits, as far as there are lanes, after `count` reads have joined it.
    pub(super) fn begin(&self, state: MutexGuard<'_, ReaderState>, count: usize) {
        match state.queue {
            ReadEngine::Uring => drop(self.shared.fill(state)),
            ReadEngine::Threads => self.shared.core.wake(state, count),
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shared.core.state().stop();
        self.shared.core.ready.notify_all();
        self.shared.wake_reaper();
        if let Some(reaper) = self.reaper.take()
            && reaper.join().is_err()
        {
            // Reads may be under way that are not waited for: their memory must not be freed.
            tracing::error!("the thread that collects reads panicked");
            std::process::abort();
        }
    }
}

impl SharedRing {
    /// Begins what waits, as far as there are lanes, unless the ring has failed.
    fn fill<'a>(&'a self, mut state: MutexGuard<'a, ReaderState>) -> MutexGuard<'a, ReaderState> {
        let now = Instant::now();
        while state.queue == ReadEngine::Uring
            && let Some(lane) = state.lanes.iter().position(Option::is_none)
            && state.begin(lane, now).is_some()
        {
            if let Err(error) = self.attempt(&mut state, lane, &Progress::default()) {
                return self.fail(state, &error);
            }
        }
        self.hand_over(state)
    }

    /// Queues the next attempt at a lane's read.
    fn attempt(&self, state: &mut ReaderState, lane: usize, progress: &Progress) -> io::Result<()> {
        let Some(task) = &state.lanes[lane] else { return Ok(()) };
        let (read, start) = (&task.read, progress.next());
        // A file without a descriptor gets one that the kernel answers with an error.
        let descriptor = self.core.device.descriptor(read.file);
        let descriptor = types::Fd(descriptor.map_or(-1, |descriptor| descriptor.as_raw_fd()));
        // `len` is at most READ_LIMIT_BYTES, and `start` below it.
        let target = read.target.as_ptr().wrapping_add(start);
        let entry = opcode::Read::new(descriptor, target, (read.len - start) as u32)
            .offset(read.offset + start as u64)
            .build()
            .user_data(lane as u64);
        self.push(state, &entry, Some(lane))
    }

    /// Queues the entry by which [`SharedRing::wake_reaper`] works.
    fn arm(&self, state: &mut ReaderState) -> io::Result<()> {
        let woken = types::Fd(self.woken.as_raw_fd());
        let entry = opcode::PollAdd::new(woken, POLLIN).build().user_data(WAKE);
        state.entries.is_armed = true;
        self.push(state, &entry, None)
    }

    /// Puts an entry into the submission queue, which has a place for every lane and for the one that wakes.
    fn push(
        &self,
        state: &mut ReaderState,
        entry: &squeue::Entry,
        lane: Option<usize>,
    ) -> io::Result<()> {
        // Noted first, so that a lane whose entry finds no place is put back like the others.
        state.entries.untaken.push_back(lane);
        // SAFETY: `state` is borrowed from behind the lock of the one reader that this ring belongs to, so no other
        // thread touches the submission queue. The memory of a read is its own until it is reported or its reader is
        // dropped (`DiskReader::submit`). It is reported only when its entry has completed or was never taken, and a
        // reader's drop waits for the reaper, which ends when no taken entry is left. The files live in
        // `core.device` and the pipe in `self`, both as long as the ring.
        unsafe { self.ring.push(entry) }
    }

    /// Gives the kernel what is in the submission queue. While it refuses for the moment others may have the state.
    fn hand_over<'a>(
        &'a self,
        mut state: MutexGuard<'a, ReaderState>,
    ) -> MutexGuard<'a, ReaderState> {
        let mut refusals = 0;
        while state.queue == ReadEngine::Uring && !state.entries.untaken.is_empty() {
            let outcome = self.ring.submit();
            let before = state.entries.untaken.len();
            // SAFETY: the guard shows that this thread has the state's lock.
            state.entries.keep_last(unsafe { self.ring.untaken() });
            if state.entries.untaken.len() < before {
                refusals = 0;
                continue;
            }
            let error = outcome.err().unwrap_or_else(|| io::Error::other("it takes no entries"));
            refusals += 1;
            if !ring::is_for_the_moment(&error) || refusals >= REFUSALS_LIMIT {
                return self.fail(state, &error);
            }
            drop(state);
            std::thread::sleep(REFUSAL_PAUSE);
            state = self.core.state();
        }
        state
    }

    /// Ends the use of the ring: nothing is submitted to it from now on.
    fn fail<'a>(
        &'a self,
        mut state: MutexGuard<'a, ReaderState>,
        error: &io::Error,
    ) -> MutexGuard<'a, ReaderState> {
        if state.queue == ReadEngine::Uring {
            tracing::warn!("io_uring failed ({error}): threads read from now on");
            state.queue = ReadEngine::Threads;
            // What the kernel has not taken it never takes: entries are taken during a submission only.
            while let Some(lane) = state.entries.untaken.pop_back() {
                match lane {
                    Some(lane) => state.put_back(lane),
                    None => state.entries.is_armed = false,
                }
            }
            self.wake_reaper();
        }
        state
    }

    fn wake_reaper(&self) {
        // The pipe holds thousands of bytes, and gets one at a failure and one at the end.
        if let Err(error) = (&self.wake).write_all(&[1]) {
            tracing::error!("the thread that collects reads cannot be woken: {error}");
        }
    }
}
