//! The threads that compute masks while the model computes logits.
//!
//! A [`WorkerSlot`] is one answer: where its constraint stands, and the tokens that are not taken in yet. A worker takes the
//! [`Standing`] out, works without holding the lock, and puts it back. What a grammar costs is bounded by the
//! library's limits and by the memory that its standing holds, except for time: very ambiguous grammars stay within
//! the limits and yet take seconds a token. So waiting ends work that is overdue, and slow masks add up against a
//! budget. Results never depend on the threads, only their moment does; what takes too long or too much fails, and
//! what has failed is freed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

use crate::memory::{Holding, Memory};
use crate::state::GrammarState;
use crate::{ConstraintError, Mask};

/// More would compete with the threads that decode.
const THREADS: usize = 2;
/// The longest that one mask may take on the clock: far more than any takes that is followed to its end,
/// because the thread may have to wait long for a core.
const LONGEST: Duration = Duration::from_secs(10);
/// What counts as slow, and how much more than that all masks of one answer may take together: time of the
/// processor, so that a busy machine fails no answer.
const SLOW: Duration = Duration::from_millis(20);
const SLOW_BUDGET: Duration = Duration::from_secs(2);
/// How often overdue work is looked for while a result is waited for.
const WATCH: Duration = Duration::from_millis(20);

/// What is known after the accepted tokens.
#[derive(Clone)]
pub(crate) struct Settled {
    /// `None` if everything may come.
    pub(crate) mask: Option<Arc<Mask>>,
    pub(crate) is_complete: bool,
}

/// Where an answer stands after some tokens, and the memory for it.
pub(crate) struct Standing {
    state: GrammarState,
    settled: Settled,
    /// What slow masks took beyond [`SLOW`].
    slow: Duration,
    holding: Holding,
}

impl Standing {
    /// At the beginning, in memory that is held already.
    pub(crate) fn new(
        mut state: GrammarState,
        holding: Holding,
    ) -> Result<Standing, ConstraintError> {
        let settled = settle(&mut state, &[])?;
        Ok(Standing { state, settled, slow: Duration::ZERO, holding })
    }

    /// The memory that is held for it.
    pub(crate) fn bytes(&self) -> usize {
        self.holding.bytes()
    }

    /// A copy that continues from here on its own.
    pub(crate) fn fork(&self, memory: &Memory) -> Result<Standing, ConstraintError> {
        let holding = memory.hold(self.state.bytes())?;
        let (settled, slow) = (self.settled.clone(), self.slow);
        Ok(Standing { state: self.state.fork(), settled, slow, holding })
    }

    /// Takes in tokens. After an error it is of no use.
    fn advance(&mut self, tokens: &[u32], memory: &Memory) -> Result<(), ConstraintError> {
        let start = processor_time();
        let result = self.settle(tokens);
        self.slow += processor_time().saturating_sub(start).saturating_sub(SLOW);
        let result = match result {
            Err(error) if !self.state.cancellation().is_cancelled() => Err(error),
            Ok(settled) if self.slow <= SLOW_BUDGET => {
                memory.resize(&mut self.holding, self.state.bytes()).map(|()| settled)
            }
            _ => Err(failed_because("it takes too long, its rules are too ambiguous")),
        };
        self.settled = match result {
            Err(error) if self.state.let_go() => {
                tracing::debug!("an answer continues without its grammar: {error}");
                let _ = memory.resize(&mut self.holding, self.state.bytes());
                Settled { mask: None, is_complete: false }
            }
            result => result?,
        };
        Ok(())
    }

    fn settle(&mut self, tokens: &[u32]) -> Result<Settled, ConstraintError> {
        // The parser has a boundary of its own; this one is for the code around it.
        let work = AssertUnwindSafe(|| settle(&mut self.state, tokens));
        catch_unwind(work).unwrap_or_else(|_| Err(failed_because("it broke down")))
    }
}

/// One answer's constraint and what is to be done with it.
pub(crate) struct WorkerSlot {
    inner: Mutex<Inner>,
    changed: Condvar,
    cancellation: CancellationHandle,
}

struct Inner {
    work: Work,
    /// Accepted, not taken in yet.
    pending: Vec<u32>,
    /// When a worker took the standing.
    since: Instant,
}

enum Work {
    Idle(Box<Standing>),
    /// A worker has it.
    Running,
    Over(ConstraintError),
}

impl WorkerSlot {
    pub(crate) fn new(standing: Standing) -> WorkerSlot {
        let cancellation = standing.state.cancellation();
        WorkerSlot::of(Work::Idle(Box::new(standing)), cancellation)
    }

    /// An answer that cannot continue.
    pub(crate) fn over(error: ConstraintError) -> WorkerSlot {
        WorkerSlot::of(Work::Over(error), CancellationHandle::default())
    }

    fn of(work: Work, cancellation: CancellationHandle) -> WorkerSlot {
        let inner = Inner { work, pending: Vec::new(), since: Instant::now() };
        WorkerSlot { inner: Mutex::new(inner), changed: Condvar::new(), cancellation }
    }

    /// Says whether there is work to do: none while words are free.
    pub(crate) fn accept(&self, token: u32) -> bool {
        let mut inner = self.lock();
        let is_idle = inner.pending.is_empty();
        let is_done = match &mut inner.work {
            Work::Idle(standing) => is_idle && standing.state.stays_free(token),
            Work::Running => false,
            Work::Over(_) => true,
        };
        if !is_done {
            inner.pending.push(token);
        }
        !is_done
    }

    /// Takes in the accepted tokens, unless another thread is at it: then they are taken in there.
    fn work(&self, memory: &Memory) {
        let mut inner = self.lock();
        while !inner.pending.is_empty() {
            let mut standing = match std::mem::replace(&mut inner.work, Work::Running) {
                Work::Idle(standing) => standing,
                other => {
                    inner.work = other;
                    return;
                }
            };
            let pending = std::mem::take(&mut inner.pending);
            inner.since = Instant::now();
            drop(inner);
            let result = standing.advance(&pending, memory);
            let work = match result {
                Ok(()) => Work::Idle(standing),
                Err(error) => {
                    drop(standing);
                    Work::Over(error)
                }
            };
            inner = self.lock();
            if let Work::Over(_) = work {
                inner.pending.clear();
            }
            inner.work = work;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn settle(state: &mut GrammarState, tokens: &[u32]) -> Result<Settled, ConstraintError> {
    state.accept(tokens)?;
    let mask = state.mask()?;
    Ok(Settled { mask, is_complete: state.is_complete() })
}

/// Time that this thread has had a core; where the system does not report it, the time on the clock.
fn processor_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = text.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

fn failed_because(reason: &str) -> ConstraintError {
    ConstraintError::Failed { reason: reason.to_owned() }
}

/// Started with the first job; the threads end when this is dropped.
pub(crate) struct Workers {
    memory: Arc<Memory>,
    jobs: OnceLock<Sender<Weak<WorkerSlot>>>,
    /// What each thread works at.
    running: Arc<Mutex<[Weak<WorkerSlot>; THREADS]>>,
}

impl Workers {
    pub(crate) fn new(memory: Arc<Memory>) -> Workers {
        Workers { memory, jobs: OnceLock::new(), running: Arc::default() }
    }

    /// Has the accepted tokens taken in, soon.
    pub(crate) fn send(&self, slot: &Arc<WorkerSlot>) {
        let jobs = self.jobs.get_or_init(|| self.start());
        if jobs.send(Arc::downgrade(slot)).is_err() {
            // No thread could be started.
            slot.work(&self.memory);
        }
    }

    /// The result after all accepted tokens.
    pub(crate) fn settled(&self, slot: &WorkerSlot) -> Result<Settled, ConstraintError> {
        self.with(slot, |standing| standing.settled.clone())
    }

    /// A copy of the answer after all accepted tokens.
    pub(crate) fn fork(&self, slot: &WorkerSlot) -> Result<Standing, ConstraintError> {
        self.with(slot, |standing| standing.fork(&self.memory)).flatten()
    }

    /// Waits until all accepted tokens are taken in, and looks.
    fn with<T>(
        &self,
        slot: &WorkerSlot,
        look: impl FnOnce(&Standing) -> T,
    ) -> Result<T, ConstraintError> {
        let start = Instant::now();
        let mut inner = slot.lock();
        loop {
            match &inner.work {
                Work::Idle(standing) if inner.pending.is_empty() => return Ok(look(standing)),
                Work::Over(error) => return Err(error.clone()),
                Work::Idle(_) | Work::Running => {}
            }
            let waited = slot.changed.wait_timeout(inner, WATCH);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            if start.elapsed() >= WATCH {
                drop(inner);
                self.end_overdue();
                inner = slot.lock();
            }
        }
    }

    /// Ends any work that takes too long: other answers wait behind it.
    fn end_overdue(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for slot in running.iter().filter_map(Weak::upgrade) {
            let inner = slot.lock();
            if matches!(inner.work, Work::Running) && inner.since.elapsed() > LONGEST {
                slot.cancellation.cancel();
            }
        }
    }

    fn start(&self) -> Sender<Weak<WorkerSlot>> {
        let (sender, receiver) = channel::<Weak<WorkerSlot>>();
        let receiver = Arc::new(Mutex::new(receiver));
        for index in 0..THREADS {
            let receiver = Arc::clone(&receiver);
            let (running, memory) = (Arc::clone(&self.running), Arc::clone(&self.memory));
            let run = move |slot: Weak<WorkerSlot>| {
                running.lock().unwrap_or_else(PoisonError::into_inner)[index] = slot;
            };
            let work = move || {
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    // A request that is gone wants no mask.
                    if let Some(slot) = job.upgrade() {
                        run(job);
                        slot.work(&memory);
                        run(Weak::new());
                    }
                }
            };
            let spawned = thread::Builder::new().name(format!("grammar-{index}")).spawn(work);
            if let Err(error) = spawned {
                tracing::warn!("no thread for grammars: {error}");
            }
        }
        sender
    }
}
