//! Which pages or slots of an arena are free.
//!
//! A [`Lease`] is the right to use one of them. It returns to the pool when dropped, on whatever thread
//! that happens, so nothing leaks and nothing has to be freed by hand. Sharing is `Arc<Lease>`.
//! Invariant: an index is either in the free list or in exactly one lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The free indices of one arena.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Vec<u32>>,
}

/// One index, until dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    index: u32,
    pool: Arc<Pool>,
}

impl Pool {
    /// A pool of the indices `0..capacity`, all free.
    pub(crate) fn new(capacity: u32) -> Arc<Pool> {
        // Backwards, so that the low indices, whose memory is touched first, are used first.
        Arc::new(Pool { free: Mutex::new((0..capacity).rev().collect()) })
    }

    /// How many indices are free.
    pub(crate) fn free(&self) -> usize {
        self.list().len()
    }

    /// `count` leases, or none and the number that is free.
    pub(crate) fn take(self: &Arc<Pool>, count: usize) -> Result<Vec<Lease>, usize> {
        let mut free = self.list();
        let Some(rest) = free.len().checked_sub(count) else {
            return Err(free.len());
        };
        let lease = |index| Lease { index, pool: Arc::clone(self) };
        Ok(free.drain(rest..).map(lease).collect())
    }

    /// The list is whole after every statement, so a panic elsewhere cannot have broken it.
    fn list(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// The page or slot this is about.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.list().push(self.index);
    }
}
