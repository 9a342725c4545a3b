//! One answer under a grammar.

use std::fmt;
use std::sync::Arc;

use crate::compile::SharedCompiler;
use crate::worker::{Settled, Standing, WorkerSlot};
use crate::{ConstraintError, Mask};

/// One answer under a grammar.
pub struct Constraint {
    shared: Arc<SharedCompiler>,
    slot: Arc<WorkerSlot>,
    mask: Option<Arc<Mask>>,
}

impl Constraint {
    pub(crate) fn new(shared: &Arc<SharedCompiler>, standing: Standing) -> Constraint {
        Constraint::of(shared, WorkerSlot::new(standing))
    }

    fn of(shared: &Arc<SharedCompiler>, slot: WorkerSlot) -> Constraint {
        Constraint { shared: Arc::clone(shared), slot: Arc::new(slot), mask: None }
    }

    /// Another answer that continues from here on its own: compile once, fork for every choice.
    pub fn fork(&self) -> Result<Constraint, ConstraintError> {
        let standing = self.shared.workers.fork(&self.slot)?;
        Ok(Constraint::new(&self.shared, standing))
    }

    /// Which tokens may come next, `None` if all may; waits for the worker if it is not done. End tokens are among them
    /// exactly if the answer may end here. After an error there is never a mask again.
    pub fn mask(&mut self) -> Result<Option<&Mask>, ConstraintError> {
        self.mask = self.settled()?.mask;
        Ok(self.mask.as_deref())
    }

    /// Notes the token that came, and has the next mask computed meanwhile. What is wrong with the token is
    /// reported by the next [`Constraint::mask`].
    pub fn accept(&mut self, token: u32) {
        if self.slot.accept(token) {
            self.shared.workers.send(&self.slot);
        }
    }

    /// Whether nothing can follow but the end; waits like [`Constraint::mask`].
    pub fn is_complete(&self) -> Result<bool, ConstraintError> {
        Ok(self.settled()?.is_complete)
    }

    fn settled(&self) -> Result<Settled, ConstraintError> {
        self.shared.workers.settled(&self.slot)
    }
}

impl Clone for Constraint {
    /// The same as [`Constraint::fork`]; where that fails, the copy says so when a mask is wanted.
    fn clone(&self) -> Constraint {
        let over = |error| Constraint::of(&self.shared, WorkerSlot::over(error));
        self.fork().unwrap_or_else(over)
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Constraint").field("mask", &self.mask).finish_non_exhaustive()
    }
}
