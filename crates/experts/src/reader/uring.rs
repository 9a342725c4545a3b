//! The queue of Linux: reads are handed to the kernel through io_uring.
//!
//! Who submits a read hands it over itself, so it begins without a thread being woken. One thread, the
//! reaper, collects what is done, hands over what waits, and tells.
//!
//! Who touches what: the submission queue belongs to whoever holds the state's lock; the completion
//! queue belongs to the reaper. The reaper waits for completions without the lock, and the kernel looks
//! at the queue before it lets it sleep, so none is missed. A lane's number goes with its read as the
//! mark by which the completion is known.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use checkpoint::FileIndex;
use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use super::{Core, Progress, State};
use crate::Result;

/// The mark of the entry that wakes the reaper to end.
const STOP: u64 = u64::MAX;

pub(super) struct Uring {
    shared: Arc<Shared>,
    reaper: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").finish_non_exhaustive()
    }
}

struct Shared {
    core: Arc<Core>,
    ring: IoUring,
}

impl Uring {
    pub(super) fn start(core: &Arc<Core>, depth: usize) -> Result<Uring> {
        if core.device.descriptor(FileIndex(0)).is_none() {
            let reason = "these files can only be read through the program";
            return Err(core.refused(io::Error::new(io::ErrorKind::Unsupported, reason)));
        }
        let ring = open_ring(depth).map_err(|source| core.refused(source))?;
        let shared = Arc::new(Shared { core: Arc::clone(core), ring });
        let reaper = {
            let shared = Arc::clone(&shared);
            Builder::new().name("reader-0".to_owned()).spawn(move || shared.reap(depth))
        };
        let reaper = Some(reaper.map_err(|source| core.refused(source))?);
        Ok(Uring { shared, reaper })
    }

    /// Begins what waits, as far as there are lanes.
    pub(super) fn fill(&self, state: &mut State) {
        self.shared.fill(state);
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        {
            let mut state = self.shared.core.state();
            state.stop();
            self.shared.push(&state, &opcode::Nop::new().build().user_data(STOP));
            self.shared.hand_over(&state);
        }
        if let Some(reaper) = self.reaper.take()
            && reaper.join().is_err()
        {
            // Reads may be under way that nobody waits for: their memory must not be freed.
            tracing::error!("the thread that collects reads panicked");
            std::process::abort();
        }
    }
}

/// A ring that is known to work: some systems grant the ring and refuse its use.
fn open_ring(depth: usize) -> io::Result<IoUring> {
    // One more for the entry that ends it.
    let mut ring = IoUring::new((depth as u32 + 1).next_power_of_two())?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !probe.is_supported(opcode::Read::CODE) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: an entry that does nothing refers to no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    while let Err(error) = ring.submit_and_wait(1) {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let answer = ring.completion().next();
    match answer {
        Some(entry) if entry.result() >= 0 => Ok(ring),
        Some(entry) => Err(io::Error::from_raw_os_error(-entry.result())),
        None => Err(io::Error::other("io_uring does not answer")),
    }
}

impl Shared {
    fn fill(&self, state: &mut State) {
        let now = Instant::now();
        while let Some(lane) = state.lanes.iter().position(Option::is_none) {
            if state.begin(lane, now).is_none() {
                break;
            }
            self.attempt(state, lane, &Progress::default());
        }
        self.hand_over(state);
    }

    /// Queues the next attempt at a lane's read.
    fn attempt(&self, state: &State, lane: usize, progress: &Progress) {
        let Some(task) = &state.lanes[lane] else { return };
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
        self.push(state, &entry);
    }

    /// Puts an entry into the submission queue, which has a place for every lane and for the end.
    fn push(&self, _locked: &State, entry: &squeue::Entry) {
        // SAFETY: the queue is touched under the state's lock alone, which `_locked` shows is held.
        // The memory of a read belongs to it until it is done (`Reader::submit`), and the reader does
        // not end before; the descriptor lives in `core.device`, which outlives the ring's reads.
        let pushed = unsafe { self.ring.submission_shared().push(entry) };
        assert!(pushed.is_ok(), "the submission queue is full");
    }

    /// Gives the kernel what is in the submission queue.
    fn hand_over(&self, _locked: &State) {
        // SAFETY: as in `push`.
        while !unsafe { self.ring.submission_shared() }.is_empty() {
            let Err(error) = self.ring.submit() else { continue };
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                // The kernel is short of memory for the moment.
                Some(Errno::AGAIN | Errno::NOMEM | Errno::BUSY) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => panic!("io_uring refused an entry: {error}"),
            }
        }
    }

    fn reap(&self, depth: usize) {
        machine::thread::wake_promptly();
        let mut progress = vec![Progress::default(); depth];
        let mut finished = Vec::with_capacity(depth);
        loop {
            self.wait();
            let ended = {
                let mut state = self.core.state();
                let now = Instant::now();
                // SAFETY: no other thread touches the completion queue.
                for entry in unsafe { self.ring.completion_shared() } {
                    if entry.user_data() == STOP {
                        continue;
                    }
                    let lane = entry.user_data() as usize;
                    let Some(task) = state.lanes[lane] else { continue };
                    let came = outcome(entry.result());
                    match progress[lane].record(&task.read, came, &*self.core.device) {
                        None => self.attempt(&state, lane, &progress[lane]),
                        Some(result) => {
                            state.finish(lane, &progress[lane], result.is_err(), now);
                            progress[lane] = Progress::default();
                            finished.push((task.read, result));
                        }
                    }
                }
                self.fill(&mut state);
                state.stopping && state.lanes.iter().all(Option::is_none)
            };
            for (read, result) in finished.drain(..) {
                self.core.tell(read, result);
            }
            if ended {
                return;
            }
        }
    }

    /// Waits until the completion queue is not empty. It submits nothing: the submission queue is not
    /// the reaper's without the lock.
    fn wait(&self) {
        // SAFETY: no other thread touches the completion queue.
        while unsafe { self.ring.completion_shared() }.is_empty() {
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: nothing is submitted and no argument is passed.
            let waited = unsafe { self.ring.submitter().enter::<()>(0, 1, flags, None) };
            if let Err(error) = waited
                && error.kind() != io::ErrorKind::Interrupted
            {
                panic!("io_uring does not wait: {error}");
            }
        }
    }
}

/// A completion as the result of an attempt.
fn outcome(result: i32) -> io::Result<usize> {
    if result >= 0 {
        return Ok(result as usize);
    }
    match Errno::from_raw_os_error(-result) {
        // A read is cancelled when the thread that submitted it ends first; trying again helps.
        Errno::AGAIN | Errno::CANCELED => Err(io::ErrorKind::Interrupted.into()),
        error => Err(error.into()),
    }
}
