//! The memory that requests may hold together, and each request's share of it.
//!
//! A share is taken before the memory is: for a body by its length, for what is read from it by its weight, for a prompt by
//! what preparing it may take, for a grammar by what its compiler may take and then by what it holds. Nothing waits for a
//! share, so that no two requests can wait for each other: what does not fit now is refused and may come again, and what
//! could never fit is refused for good. When much has been released, the allocator is asked to return it to the system.
//!
//! Invariant: the shares together are never more than the budget, and large ones leave a quarter of it to small ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use grammar::Allowance;

/// Preparing a request takes memory in addition to what it holds: this share of all, for each that is prepared at once.
const WORK_SHARE: usize = 8;
/// A step of a grammar may take this share of all; two are taken at once.
const STEP_SHARE: usize = 16;
/// A share of the budget up to this part of it is a small one.
const SMALL_SHARE: usize = 16;
/// A request up to this size is quickly prepared, however much memory there is.
const QUICK_BYTES: usize = 1 << 20;
/// Freed bytes that are worth a walk through the heap, and how long more of them are waited for.
const WORTH_RETURNING_BYTES: usize = 2 << 20;
const RETURN_AFTER: Duration = Duration::from_millis(500);

/// What all requests may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: usize,
    /// What each preparation may take for itself.
    work_bytes: usize,
    /// What each step of a grammar may take before it is counted.
    step_bytes: usize,
    /// Shared, not owned by the budget: memory is returned on a thread that may outlive it.
    state: Arc<Mutex<BudgetState>>,
}

#[derive(Debug, Default)]
struct BudgetState {
    used_bytes: usize,
    /// Released since memory was last returned to the system.
    freed_bytes: usize,
    /// Whether memory is about to be returned.
    is_returning: bool,
}

/// Part of a [`Budget`], released when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

/// Why there is no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Others hold too much.
    Now,
    /// It is more than any request may have.
    Never,
}

impl Budget {
    /// Of `bytes` for all requests, of which up to `preparing` are prepared at once: each of these takes `work_bytes` for
    /// itself, however small it is.
    pub(crate) fn new(bytes: u64, preparing: usize, work_bytes: usize) -> Arc<Budget> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (work_bytes, step_bytes) = ((bytes / WORK_SHARE).max(work_bytes), bytes / STEP_SHARE);
        let aside = work_bytes.saturating_mul(preparing).saturating_add(2 * step_bytes);
        let total_bytes = bytes.saturating_sub(aside);
        Arc::new(Budget { total_bytes, work_bytes, step_bytes, state: Arc::default() })
    }

    /// A share of so many bytes.
    pub(crate) fn take(self: &Arc<Budget>, bytes: usize) -> Result<Share, Denied> {
        let mut share = Share { budget: Arc::clone(self), bytes: 0 };
        share.resize(bytes)?;
        Ok(share)
    }

    /// What a preparation may take without a share of its own.
    pub(crate) fn work_bytes(&self) -> usize {
        self.work_bytes
    }

    /// The largest share that counts as small.
    pub(crate) fn small_bytes(&self) -> usize {
        self.total_bytes / SMALL_SHARE
    }

    /// The largest request that may be prepared in parallel with any other.
    pub(crate) fn quick_bytes(&self) -> usize {
        self.small_bytes().min(QUICK_BYTES)
    }

    /// Changes what is used by one holding.
    fn change(&self, from: usize, to: usize) -> Result<(), Denied> {
        if to <= from {
            self.free(from - to);
            return Ok(());
        }
        if to > self.most_bytes() {
            return Err(Denied::Never);
        }
        let is_small = to <= self.small_bytes();
        let limit = if is_small { self.total_bytes } else { self.most_bytes() };
        let mut state = lock(&self.state);
        let used = (state.used_bytes - from).saturating_add(to);
        if used > limit {
            return Err(Denied::Now);
        }
        state.used_bytes = used;
        Ok(())
    }

    fn free(&self, bytes: usize) {
        if bytes > 0 {
            lock(&self.state).used_bytes -= bytes;
            self.was_freed(bytes);
        }
    }

    /// Takes note of memory that was freed, so that it is returned when there is much of it.
    pub(crate) fn was_freed(&self, bytes: usize) {
        let mut state = lock(&self.state);
        state.freed_bytes = state.freed_bytes.saturating_add(bytes);
        if state.freed_bytes >= WORTH_RETURNING_BYTES && !state.is_returning {
            state.is_returning = true;
            drop(state);
            return_memory(Arc::clone(&self.state));
        }
    }
}

impl Allowance for Budget {
    fn resize(&self, from: usize, to: usize) -> bool {
        self.change(from, to).is_ok()
    }

    fn most_bytes(&self) -> usize {
        self.total_bytes - self.total_bytes / 4
    }

    fn step_bytes(&self) -> usize {
        self.step_bytes
    }
}

impl Share {
    /// How much it is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The budget that it is a part of.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Makes it this large. Denied, it stays as it was.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Denied> {
        self.budget.change(self.bytes, bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Gives back what is more than this. What it stood for has to be freed before.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.budget.free(freed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Returns freed memory to the system a little later, when what is being freed with it is free as well.
fn return_memory(state: Arc<Mutex<BudgetState>>) {
    let later = move || {
        thread::sleep(RETURN_AFTER);
        {
            let mut state = lock(&state);
            state.freed_bytes = 0;
            state.is_returning = false;
        }
        machine::memory::release_freed();
    };
    // Grammars are freed on threads of their own, which have no runtime.
    if let Err(error) = thread::Builder::new().name("return memory".to_owned()).spawn(later) {
        tracing::warn!("no thread to return memory: {error}");
    }
}

fn lock(state: &Mutex<BudgetState>) -> MutexGuard<'_, BudgetState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 bytes for shares, of which one may have 750 and 62 are few.
    fn budget() -> Arc<Budget> {
        let budget = Budget::new(2000, 3, 0);
        assert_eq!((budget.total_bytes, budget.work_bytes()), (1000, 250));
        assert_eq!(budget.step_bytes(), 125);
        assert_eq!((budget.most_bytes(), budget.small_bytes()), (750, 62));
        budget
    }

    #[test]
    fn shares_are_never_more_than_the_budget() {
        let budget = budget();
        assert_eq!(budget.take(751).unwrap_err(), Denied::Never);
        let mut large = budget.take(700).unwrap();
        assert_eq!(budget.take(63).unwrap_err(), Denied::Now);
        assert_eq!(large.resize(751), Err(Denied::Never));
        assert_eq!(large.bytes(), 700);
        large.resize(750).unwrap();
        large.shrink(800);
        assert_eq!(large.bytes(), 750);
        large.shrink(100);
        let other = budget.take(650).unwrap();
        assert_eq!(large.resize(101), Err(Denied::Now));
        drop(other);
        large.resize(750).unwrap();
        drop(large);
        assert_eq!(lock(&budget.state).used_bytes, 0);
        assert!(budget.take(750).is_ok());
    }

    #[test]
    fn what_every_preparation_takes_is_reserved() {
        let budget = Budget::new(2000, 3, 400);
        assert_eq!((budget.total_bytes, budget.work_bytes()), (550, 400));
    }

    #[test]
    fn large_shares_leave_a_quarter_to_small_ones() {
        let budget = budget();
        let _large = budget.take(750).unwrap();
        let small: Vec<Share> = (0..4).map(|_| budget.take(62).unwrap()).collect();
        assert_eq!(budget.take(62).unwrap_err(), Denied::Now);
        assert!(budget.take(2).is_ok());
        drop(small);
        // Small ones may have all that large ones leave.
        assert!(budget.take(62).is_ok());
    }

    #[test]
    fn what_is_quick_does_not_grow_with_the_memory() {
        assert_eq!(budget().quick_bytes(), 62);
        assert_eq!(Budget::new(512 << 20, 2, 0).quick_bytes(), 1 << 20);
        assert!(Budget::new(512 << 20, 2, 0).small_bytes() > 16 << 20);
    }

    #[test]
    fn memory_is_returned_once_for_much_that_is_freed_together() {
        let budget = Budget::new(1 << 30, 0, 0);
        let free = |bytes| drop(budget.take(bytes).unwrap());
        free(WORTH_RETURNING_BYTES - 1);
        assert!(!lock(&budget.state).is_returning);
        free(1);
        assert!(lock(&budget.state).is_returning);
        free(WORTH_RETURNING_BYTES);
        while lock(&budget.state).is_returning {
            thread::sleep(RETURN_AFTER / 10);
        }
        assert_eq!(lock(&budget.state).freed_bytes, 0);
    }
}
