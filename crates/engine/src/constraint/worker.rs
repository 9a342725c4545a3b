//! The threads that compute masks while the model computes logits.
//!
//! A [`Slot`] is a constraint's state, the tokens that it has not taken in, and the last result. A worker takes
//! the state out, works without holding the lock, and puts state and result back. What a grammar costs is
//! bounded by the library's limits, except for time: very ambiguous grammars stay within them and yet take
//! seconds a token. So whoever waits ends work that is overdue, and slow masks add up against a budget.
//! Results never depend on the threads, only their moment does; and what takes too long fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

use super::state::State;
use super::{ConstraintError, Mask};

/// More would compete with the threads that decode.
const THREADS: usize = 2;
/// The longest that one mask may take on the clock: far more than any takes that is followed to its end,
/// because the thread may have to wait long for a core.
const LONGEST: Duration = Duration::from_secs(10);
/// What counts as slow, and how much more than that all masks of one answer may take together: time of the
/// processor, so that a busy machine fails nobody.
const SLOW: Duration = Duration::from_millis(20);
const SLOW_BUDGET: Duration = Duration::from_secs(2);
/// How often who waits looks for overdue work.
const WATCH: Duration = Duration::from_millis(20);

/// What is known after the accepted tokens.
#[derive(Clone)]
pub(super) struct Settled {
    /// `None` if everything may come.
    pub(super) mask: Option<Arc<Mask>>,
    pub(super) is_complete: bool,
}

/// A constraint's state and what is to be done with it.
pub(super) struct Slot {
    inner: Mutex<Inner>,
    changed: Condvar,
    cancellation: CancellationHandle,
}

struct Inner {
    /// None while a worker has it.
    state: Option<State>,
    /// Accepted, not taken in yet.
    pending: Vec<u32>,
    settled: Result<Settled, ConstraintError>,
    /// When the worker took the state.
    since: Instant,
    /// What slow masks took beyond [`SLOW`].
    slow: Duration,
}

impl Slot {
    pub(super) fn new(mut state: State) -> Slot {
        let settled = settle(&mut state, &[]);
        Slot::settled(state, settled, Duration::ZERO)
    }

    fn settled(state: State, settled: Result<Settled, ConstraintError>, slow: Duration) -> Slot {
        let cancellation = state.cancellation();
        let (pending, since) = (Vec::new(), Instant::now());
        let inner = Inner { state: Some(state), pending, settled, since, slow };
        Slot { inner: Mutex::new(inner), changed: Condvar::new(), cancellation }
    }

    /// Says whether there is work to do: none while words are free.
    pub(super) fn accept(&self, token: u32) -> bool {
        let mut inner = self.lock();
        let is_idle = inner.pending.is_empty();
        if is_idle && inner.state.as_mut().is_some_and(|state| state.stays_free(token)) {
            return false;
        }
        inner.pending.push(token);
        true
    }

    /// Takes in the accepted tokens, unless somebody is at it: then they are taken in there.
    fn work(&self) {
        let mut inner = self.lock();
        while !inner.pending.is_empty() {
            let Some(mut state) = inner.state.take() else { return };
            let pending = std::mem::take(&mut inner.pending);
            inner.since = Instant::now();
            let start = processor_time();
            let before = inner.settled.clone();
            drop(inner);

            // The library catches its own panics; this is for ours.
            let work = AssertUnwindSafe(|| before.and_then(|_| settle(&mut state, &pending)));
            let broken = |_| Err(failed_because("it broke down"));
            let result = catch_unwind(work).unwrap_or_else(broken);

            inner = self.lock();
            inner.slow += processor_time().saturating_sub(start).saturating_sub(SLOW);
            inner.settled = match result {
                Err(error) if !self.cancellation.is_cancelled() => Err(error),
                Ok(settled) if inner.slow <= SLOW_BUDGET => Ok(settled),
                _ => Err(failed_because("it takes too long, its rules are too ambiguous")),
            };
            if let Err(error) = &inner.settled
                && state.let_go()
            {
                tracing::debug!("an answer goes on without its grammar: {error}");
                inner.settled = Ok(Settled { mask: None, is_complete: false });
            }
            inner.state = Some(state);
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn settle(state: &mut State, tokens: &[u32]) -> Result<Settled, ConstraintError> {
    state.accept(tokens)?;
    let mask = state.mask()?;
    Ok(Settled { mask, is_complete: state.is_complete() })
}

/// Time that this thread has had a core; where the system does not tell, the time on the clock.
fn processor_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

fn failed_because(reason: &str) -> ConstraintError {
    ConstraintError::Failed { reason: reason.to_owned() }
}

/// Started with the first job; the threads end when this is dropped.
#[derive(Default)]
pub(super) struct Workers {
    jobs: OnceLock<Sender<Weak<Slot>>>,
    /// What each thread works at.
    running: Arc<Mutex<[Weak<Slot>; THREADS]>>,
}

impl Workers {
    /// Has the accepted tokens taken in, soon.
    pub(super) fn send(&self, slot: &Arc<Slot>) {
        let jobs = self.jobs.get_or_init(|| self.start());
        if jobs.send(Arc::downgrade(slot)).is_err() {
            // No thread could be started.
            slot.work();
        }
    }

    /// The result after all accepted tokens.
    pub(super) fn settled(&self, slot: &Slot) -> Result<Settled, ConstraintError> {
        self.with(slot, |inner, _| inner.settled.clone())
    }

    /// A copy of the slot after all accepted tokens.
    pub(super) fn fork(&self, slot: &Slot) -> Slot {
        self.with(slot, |inner, state| {
            Slot::settled(state.fork(), inner.settled.clone(), inner.slow)
        })
    }

    /// Waits until all accepted tokens are taken in, and looks.
    fn with<T>(&self, slot: &Slot, look: impl FnOnce(&Inner, &State) -> T) -> T {
        let start = Instant::now();
        let mut inner = slot.lock();
        loop {
            if let Some(state) = inner.state.as_ref().filter(|_| inner.pending.is_empty()) {
                return look(&inner, state);
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

    /// Ends work that takes too long, whoever wants it: others wait behind it.
    fn end_overdue(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for slot in running.iter().filter_map(Weak::upgrade) {
            let inner = slot.lock();
            if inner.state.is_none() && inner.since.elapsed() > LONGEST {
                slot.cancellation.cancel();
            }
        }
    }

    fn start(&self) -> Sender<Weak<Slot>> {
        let (sender, receiver) = channel::<Weak<Slot>>();
        let receiver = Arc::new(Mutex::new(receiver));
        for index in 0..THREADS {
            let receiver = Arc::clone(&receiver);
            let running = Arc::clone(&self.running);
            let run = move |slot: Weak<Slot>| {
                running.lock().unwrap_or_else(PoisonError::into_inner)[index] = slot;
            };
            let work = move || {
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    // A request that is gone wants no mask.
                    if let Some(slot) = job.upgrade() {
                        run(job);
                        slot.work();
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
