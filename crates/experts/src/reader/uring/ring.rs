//! The ring and its system calls, each of which a device may make fail on purpose.
//!
//! The submission queue belongs to the holder of the lock of the reader's state, the completion queue to the
//! reaper. The reaper waits without the lock and submits nothing, and the kernel looks at the completion queue
//! before it lets it sleep, so no completion is missed.

use std::io;
use std::sync::Arc;

use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue};
use rustix::io::Errno;

use crate::Device;
use crate::device::RingCall;

pub(super) struct Ring {
    ring: IoUring,
    device: Arc<dyn Device>,
}

/// Whether the same call may succeed a moment later.
pub(super) fn is_for_the_moment(error: &io::Error) -> bool {
    let refusals = [Errno::INTR, Errno::AGAIN, Errno::NOMEM, Errno::BUSY];
    Errno::from_io_error(error).is_some_and(|error| refusals.contains(&error))
}

impl Ring {
    /// A ring that is known to work: some systems grant the ring and refuse its use.
    pub(super) fn open(device: &Arc<dyn Device>, depth: usize) -> io::Result<Ring> {
        if let Some(error) = device.ring_fault(RingCall::Setup) {
            return Err(error);
        }
        // One more for the entry that wakes the reaper. The completion queue has twice as many places.
        let mut ring = IoUring::new((depth as u32 + 1).next_power_of_two())?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::PollAdd::CODE];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
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
            Some(entry) if entry.result() >= 0 => Ok(Ring { ring, device: Arc::clone(device) }),
            Some(entry) => Err(io::Error::from_raw_os_error(-entry.result())),
            None => Err(io::Error::other("io_uring does not answer")),
        }
    }

    /// Puts an entry into the submission queue.
    ///
    /// # Safety
    /// No other thread touches the submission queue meanwhile, and the memory and the descriptor of the entry stay
    /// valid, the memory for the kernel alone, until the entry has completed or the ring takes no more entries.
    pub(super) unsafe fn push(&self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.ring.submission_shared().push(entry) }.map_err(io::Error::other)
    }

    /// Entries in the submission queue.
    ///
    /// # Safety
    /// No other thread touches the submission queue meanwhile.
    pub(super) unsafe fn untaken(&self) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.ring.submission_shared() }.len()
    }

    /// Lets the kernel take entries. An error: it took none.
    pub(super) fn submit(&self) -> io::Result<()> {
        match self.device.ring_fault(RingCall::Submit) {
            Some(error) => Err(error),
            None => self.ring.submit().map(drop),
        }
    }

    /// Waits for this many completions to be in their queue. With none, lets the kernel bring those that it could
    /// not place before.
    pub(super) fn wait(&self, least: u32) -> io::Result<()> {
        if let Some(error) = self.device.ring_fault(RingCall::Wait) {
            return Err(error);
        }
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: nothing is submitted and no argument is passed.
        unsafe { self.ring.submitter().enter::<()>(0, least, flags, None) }.map(drop)
    }

    /// What has completed.
    ///
    /// # Safety
    /// No other thread touches the completion queue while the value lives.
    pub(super) unsafe fn completions(&self) -> cqueue::CompletionQueue<'_> {
        // SAFETY: the caller's promise.
        unsafe { self.ring.completion_shared() }
    }

    /// Completions that the kernel had no place for and has dropped.
    ///
    /// # Safety
    /// As [`Ring::completions`].
    pub(super) unsafe fn dropped(&self) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.completions() }.overflow() as usize
    }

    /// Whether the device wants the next completion to be lost.
    pub(super) fn loses_completion(&self) -> bool {
        self.device.ring_fault(RingCall::Complete).is_some()
    }
}
