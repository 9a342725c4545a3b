//! The queue that runs everywhere: threads, each with one positioned read at a time.
//!
//! As many threads as reads may be under way. They take from the shared backlog under its lock and read
//! outside of it.

use std::io;
use std::slice;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use checkpoint::FileIndex;

use super::{Core, Progress, Read, State};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    /// Told when a read waits that no thread has seen, and at the end.
    ready: Condvar,
}

impl Threads {
    pub(super) fn start(core: &Arc<Core>, depth: usize) -> Result<Threads> {
        let shared = Arc::new(Shared { core: Arc::clone(core), ready: Condvar::new() });
        let mut threads = Threads { shared, handles: Vec::with_capacity(depth) };
        for lane in 0..depth {
            let shared = Arc::clone(&threads.shared);
            let named = Builder::new().name(format!("reader-{lane}"));
            // Where one cannot be had, dropping `threads` ends those that could.
            let handle = named.spawn(move || shared.work(lane)).map_err(|source| {
                let path = core.device.path(FileIndex(0)).to_owned();
                Error::Io { path, operation: "start a thread to read".to_owned(), source }
            })?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }

    /// Wakes threads for `count` new reads. A thread looks at the backlog before it waits, so one that
    /// is busy now needs no call.
    pub(super) fn wake(&self, state: MutexGuard<'_, State>, count: usize) {
        let idle = state.idle;
        drop(state);
        for _ in 0..count.min(idle) {
            self.shared.ready.notify_one();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.core.state().stop();
        self.shared.ready.notify_all();
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a reader thread panicked");
            }
        }
    }
}

impl Shared {
    fn work(&self, lane: usize) {
        machine::thread::wake_promptly();
        let core = &*self.core;
        let mut state = core.state();
        loop {
            let Some(read) = state.begin(lane, Instant::now()) else {
                if state.stopping {
                    return;
                }
                state.idle += 1;
                state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let (progress, result) = carry_out(core, &read);
            state = core.state();
            state.finish(lane, &progress, result.is_err(), Instant::now());
            drop(state);
            core.tell(read, result);
            state = core.state();
        }
    }
}

/// Reads until what is needed is there.
fn carry_out(core: &Core, read: &Read) -> (Progress, Result<()>) {
    let mut progress = Progress::default();
    loop {
        let start = progress.next();
        // SAFETY: `Reader::submit` was promised `len` bytes of initialised memory at `target` that are
        // this read's alone until it is done, and `start` is below `len`.
        let out =
            unsafe { slice::from_raw_parts_mut(read.target.as_ptr().add(start), read.len - start) };
        let came: io::Result<usize> = core.device.read(read.file, read.offset + start as u64, out);
        if let Some(result) = progress.record(read, came, &*core.device) {
            return (progress, result);
        }
    }
}
