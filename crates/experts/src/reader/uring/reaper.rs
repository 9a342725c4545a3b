//! The thread that collects completions, and what it does once the ring has failed.
//!
//! It then starts threads for everything that has not begun, and continues collecting until the kernel has no read
//! left, by looking at the completion queue: waiting may be what failed. Afterwards it is one of the threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::threads::{self, Threads};
use super::super::{Progress, Read, ReadEngine};
use super::{REFUSAL_PAUSE, REFUSALS_LIMIT, SharedRing, WAKE, ring};
use crate::Result;

/// How long a failed ring is left alone between two looks, at first and at most.
const DRAIN_PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(10)];

pub(super) struct Reaper {
    shared: Arc<SharedRing>,
    /// By lane.
    progress: Vec<Progress>,
    /// Reads that are done and not reported.
    finished: Vec<(Read, Result<()>)>,
    /// The lane whose completion is looked at.
    handled: Option<usize>,
    /// Waits that the kernel refused for the moment, in a row.
    refusals: u32,
    /// Completions that were lost on purpose.
    lost: usize,
}

impl Reaper {
    pub(super) fn new(shared: Arc<SharedRing>) -> Reaper {
        let progress = vec![Progress::default(); shared.depth];
        let finished = Vec::with_capacity(shared.depth);
        Reaper { shared, progress, finished, handled: None, refusals: 0, lost: 0 }
    }

    /// Collects until the reader ends.
    pub(super) fn run(mut self) {
        machine::thread::wake_promptly();
        if catch_unwind(AssertUnwindSafe(|| self.reap())).is_err() {
            let error = io::Error::other("the thread that collects reads panicked");
            let mut state = self.shared.fail(self.shared.core.state(), &error);
            // Its completion was taken out of the queue, so the kernel is done with it.
            if let Some(lane) = self.handled.take() {
                state.put_back(lane);
            }
            drop(state);
            self.tell();
        }
        let queue = self.shared.core.state().queue;
        if queue == ReadEngine::Threads {
            self.fall_back();
        }
    }

    /// Collects until the reader ends or the ring fails.
    fn reap(&mut self) {
        while self.collect() {
            if let Err(error) = self.wait() {
                drop(self.shared.fail(self.shared.core.state(), &error));
            }
        }
    }

    /// Waits until the completion queue is not empty.
    fn wait(&mut self) -> io::Result<()> {
        let ring = &self.shared.ring;
        // SAFETY: only this thread touches the completion queue.
        while unsafe { ring.completions() }.is_empty() {
            match ring.wait(1) {
                Ok(()) => self.refusals = 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.refusals += 1;
                    if !ring::is_for_the_moment(&error) || self.refusals >= REFUSALS_LIMIT {
                        return Err(error);
                    }
                    std::thread::sleep(REFUSAL_PAUSE);
                }
            }
        }
        Ok(())
    }

    /// Takes what has completed and begins what waits: whether the ring has more to do.
    fn collect(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let core = &*shared.core;
        let mut state = core.state();
        let (now, mut failure, mut returned) = (Instant::now(), None, 0);
        // SAFETY: only this thread touches the completion queue.
        for entry in unsafe { shared.ring.completions() } {
            if shared.ring.loses_completion() {
                self.lost += 1;
                continue;
            }
            let came = outcome(entry.result());
            if entry.user_data() == WAKE {
                state.entries.is_armed = false;
                // It would fail again.
                let failed = |error: &io::Error| error.kind() != io::ErrorKind::Interrupted;
                failure = failure.or(came.err().filter(failed));
                continue;
            }
            let lane = entry.user_data() as usize;
            let Some(task) = state.lanes[lane] else { continue };
            self.handled = Some(lane);
            match self.progress[lane].record(&task.read, came, &*core.device) {
                Some(result) => {
                    state.finish(lane, &self.progress[lane], result.is_err(), now);
                    self.progress[lane] = Progress::default();
                    self.finished.push((task.read, result));
                }
                None if state.queue == ReadEngine::Threads => {
                    state.put_back(lane);
                    returned += 1;
                }
                None => {
                    let queued = shared.attempt(&mut state, lane, &self.progress[lane]);
                    failure = failure.or(queued.err());
                }
            }
            self.handled = None;
        }
        // SAFETY: as above.
        if self.lost + unsafe { shared.ring.dropped() } > 0 {
            failure = Some(io::Error::other("completions were lost"));
        }
        if failure.is_none() && !state.entries.is_armed && !state.stopping {
            // The beginning, or it was spent although nothing happened.
            failure = match state.queue {
                ReadEngine::Uring => shared.arm(&mut state).err(),
                ReadEngine::Threads => None,
            };
        }
        state = match failure {
            Some(error) => shared.fail(state, &error),
            None => shared.fill(state),
        };
        let is_over = state.stopping && state.lanes.iter().all(Option::is_none);
        let goes_on = state.queue == ReadEngine::Uring && !is_over;
        core.wake(state, returned);
        self.tell();
        goes_on
    }

    fn tell(&mut self) {
        for (read, result) in self.finished.drain(..) {
            self.shared.core.tell(read, result);
        }
    }

    /// Lets threads read, in lanes of their own.
    fn fall_back(mut self) {
        let core = Arc::clone(&self.shared.core);
        let depth = self.shared.depth;
        core.state().lanes.resize(2 * depth, None);
        // This thread has the last lane, when the kernel is done. So there is one even where no more can be had.
        let last = 2 * depth - 1;
        let threads = Threads::start_most(&core, depth..last);
        self.drain();
        threads::work(&core, last);
        drop(threads);
    }

    /// Collects until the kernel is done with the memory of every read that it has taken.
    fn drain(&mut self) {
        let [mut pause, longest] = DRAIN_PAUSES;
        loop {
            self.collect();
            let (ring, core) = (&self.shared.ring, &self.shared.core);
            let mut state = core.state();
            let left = state.lanes[..self.shared.depth].iter().flatten().count();
            // SAFETY: only this thread touches the completion queue.
            let lost = self.lost + unsafe { ring.dropped() };
            if left + usize::from(state.entries.is_armed) == lost {
                // All that is left has completed, and that was lost: the memory is free, what is in it is not known.
                (0..self.shared.depth).rev().for_each(|lane| state.put_back(lane));
                core.wake(state, left);
                return;
            }
            if left == 0 {
                return;
            }
            drop(state);
            // What fails about it has been said.
            let _ = ring.wait(0);
            std::thread::sleep(pause);
            pause = longest.min(2 * pause);
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
