//! The memory of grammars: reserved before it is taken, counted by what the library says it holds.
//!
//! Compiled grammars that are kept for later requests are evicted first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ConstraintError;
use crate::compiled::Compiled;

/// Grants memory to grammars.
pub trait Allowance: Send + Sync {
    /// Changes one holding from `from` to `to` bytes. Growth may be denied, a smaller holding never.
    fn resize(&self, from: usize, to: usize) -> bool;

    /// The largest holding that is ever granted.
    fn most_bytes(&self) -> usize {
        usize::MAX
    }

    /// What one step of a grammar may take before it is counted. The grantor sets it aside, for two steps at once.
    fn step_bytes(&self) -> usize;
}

/// Grants everything: for one answer at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Allowance for Unlimited {
    fn resize(&self, _from: usize, _to: usize) -> bool {
        true
    }

    fn step_bytes(&self) -> usize {
        usize::MAX
    }
}

/// All grammars of a model.
pub(crate) struct Memory {
    allowance: Arc<dyn Allowance>,
    kept: Mutex<Compiled>,
}

/// What one compiled grammar or one answer holds, released when dropped.
pub(crate) struct Holding {
    allowance: Arc<dyn Allowance>,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(allowance: Arc<dyn Allowance>) -> Memory {
        Memory { allowance, kept: Mutex::default() }
    }

    pub(crate) fn step_bytes(&self) -> usize {
        self.allowance.step_bytes()
    }

    pub(crate) fn most_bytes(&self) -> usize {
        self.allowance.most_bytes()
    }

    /// Grammars that were compiled lately.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Compiled> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for something new.
    pub(crate) fn hold(&self, bytes: usize) -> Result<Holding, ConstraintError> {
        let mut holding = Holding { allowance: Arc::clone(&self.allowance), bytes: 0 };
        self.resize(&mut holding, bytes)?;
        Ok(holding)
    }

    /// Makes a holding this large. Denied, it stays as it was.
    pub(crate) fn resize(
        &self,
        holding: &mut Holding,
        bytes: usize,
    ) -> Result<(), ConstraintError> {
        while !self.allowance.resize(holding.bytes, bytes) {
            let least_used = self.kept().pop();
            // Dropped here, without the lock.
            if least_used.is_none() {
                return Err(ConstraintError::NoMemory { bytes });
            }
        }
        holding.bytes = bytes;
        Ok(())
    }
}

impl Holding {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.allowance.resize(self.bytes, 0);
    }
}
