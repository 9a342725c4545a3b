//! The queue that runs everywhere: threads, each with one positioned read at a time.
//!
//! A thread for each lane. They take from the shared backlog under its lock and read outside of it.

use std::io;
use std::ops::Range;
use std::slice;
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use checkpoint::FileIndex;

use super::{Progress, Read, ReaderCore};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Threads {
    core: Arc<ReaderCore>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// A thread for each of these lanes.
    pub(super) fn start(core: &Arc<ReaderCore>, lanes: Range<usize>) -> Result<Threads> {
        let mut threads = Threads { core: Arc::clone(core), handles: Vec::new() };
        // Where one cannot be had, dropping `threads` ends those that could.
        threads.add(lanes).map_err(|source| {
            let path = core.device.path(FileIndex(0)).to_owned();
            Error::Io { path, operation: "start a thread to read".to_owned(), source }
        })?;
        Ok(threads)
    }

    /// Threads for as many of these lanes as the system grants.
    #[cfg(target_os = "linux")]
    pub(super) fn start_most(core: &Arc<ReaderCore>, lanes: Range<usize>) -> Threads {
        let mut threads = Threads { core: Arc::clone(core), handles: Vec::new() };
        let wanted = lanes.len();
        if let Err(error) = threads.add(lanes) {
            let got = threads.handles.len();
            tracing::warn!(
                "{got} threads read instead of {wanted}: no more can be started ({error})"
            );
        }
        threads
    }

    fn add(&mut self, lanes: Range<usize>) -> io::Result<()> {
        for lane in lanes {
            let core = Arc::clone(&self.core);
            let named = Builder::new().name(format!("reader-{lane}"));
            self.handles.push(named.spawn(move || work(&core, lane))?);
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.core.state().stop();
        self.core.ready.notify_all();
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a reader thread panicked");
            }
        }
    }
}

/// Carries reads out in this lane until the reader ends.
pub(super) fn work(core: &ReaderCore, lane: usize) {
    machine::thread::wake_promptly();
    let mut state = core.state();
    loop {
        let Some(read) = state.begin(lane, Instant::now()) else {
            if state.stopping {
                return;
            }
            state.idle += 1;
            state = core.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
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

/// Reads until what is needed is there.
fn carry_out(core: &ReaderCore, read: &Read) -> (Progress, Result<()>) {
    let mut progress = Progress::default();
    loop {
        let start = progress.next();
        // SAFETY: `DiskReader::submit` was promised `len` bytes of initialised memory at `target` that are
        // this read's alone until it is done, and `start` is below `len`.
        let out =
            unsafe { slice::from_raw_parts_mut(read.target.as_ptr().add(start), read.len - start) };
        let came: io::Result<usize> = core.device.read(read.file, read.offset + start as u64, out);
        if let Some(result) = progress.record(read, came, &*core.device) {
            return (progress, result);
        }
    }
}
