//! The resident thread pool: workers spin for a moment, then park.
//!
//! A fork/join through a general scheduler costs 10–34 µs, and a decoded token has a hundred of
//! them; here a region costs one or two. There is one pool per backend; nothing else runs threads in
//! the hot path. (Two models that take turns share one: the idle spinning of a second would be at the
//! cost of the first.) Work is cut into tasks that threads claim from a shared counter, so which thread
//! does what is never fixed, and no result may depend on it. Where one region goes on with what another left, a thread
//! begins with [a share of its own](Pool::run_near): moving small rows from core to core takes longer than computing them.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker spins before it parks. Long enough to bridge the serial parts of a step,
/// short enough that an idle process uses no core.
const SPIN: Duration = Duration::from_micros(400);

type Job = dyn Fn(usize) + Sync;

/// A counter that shares its cache line with nothing.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicUsize);

/// How threads come to their tasks.
#[derive(Clone, Copy)]
enum Order {
    /// The next one, for any thread.
    Next,
    /// Those of their own share, then what others have left.
    Near,
}

struct Shared {
    /// Counts regions; a change tells the workers that a job is there.
    epoch: AtomicUsize,
    job: UnsafeCell<Option<(*const Job, usize, Order)>>,
    next_task: AtomicUsize,
    /// The next task of each thread's share, the caller's first.
    shares: Vec<Counter>,
    /// Workers that have not finished the current region yet.
    busy: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Whether idle workers park at once.
    rest: AtomicBool,
    parked: Vec<AtomicBool>,
}

// SAFETY: `job` is written by the owner only while no worker is busy, and read by workers only
// after they have seen the epoch that was published (Release/Acquire) after the write.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer inside is only used between publication and the end of the region, while
// the closure it points to is borrowed by `Pool::run`.
unsafe impl Send for Shared {}

/// Spins of a caller that waits for its workers before it lets others run in between: on a busy machine
/// a worker may be waiting for this very core.
const PATIENCE: u32 = 1 << 10;

/// A fixed set of threads that runs one region at a time. The calling thread works too. Clones are the same
/// threads.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Threads>);

struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    /// Held while a region runs.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` in all, the caller included.
    pub(crate) fn new(threads: usize) -> Pool {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next_task: AtomicUsize::new(0),
            shares: (0..=workers).map(|_| Counter::default()).collect(),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            rest: AtomicBool::new(false),
            parked: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        });
        let threads: Vec<_> = (0..workers)
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("compute-{index}"))
                    .spawn(move || worker(&shared, index))
                    .expect("the system refuses to start a compute thread")
            })
            .collect();
        let handles = threads.iter().map(|t| t.thread().clone()).collect();
        Pool(Arc::new(Threads { shared, threads, handles, turn: Mutex::new(()) }))
    }

    /// Threads in all, the caller included.
    pub(crate) fn thread_count(&self) -> usize {
        self.0.threads.len() + 1
    }

    /// The caller is going to wait for a disk, or others want the cores: workers give theirs up instead of spinning,
    /// until the next region.
    pub(crate) fn rest(&self) {
        self.0.shared.rest.store(true, Ordering::Relaxed);
    }

    /// Runs `job(0) … job(tasks - 1)`, each once, on all threads, and returns when all are done.
    pub(crate) fn run(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        self.run_in(Order::Next, tasks, job);
    }

    /// The same for tasks that go through the same rows as those of other regions, in the same order: a thread begins
    /// with the same share of them each time, and helps others when it is done.
    pub(crate) fn run_near(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        self.run_in(Order::Near, tasks, job);
    }

    fn run_in(&mut self, order: Order, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        let Threads { shared, threads, handles, turn } = &*self.0;
        if tasks <= 1 || threads.is_empty() {
            for task in 0..tasks {
                job(task);
            }
            return;
        }
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no worker is busy here (the previous region waited for all of them), so no thread
        // reads `job`. The lifetime is erased; the pointer is not used after this function returns.
        unsafe {
            *shared.job.get() = Some((
                std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job),
                tasks,
                order,
            ));
        }
        shared.rest.store(false, Ordering::Relaxed);
        match order {
            Order::Next => shared.next_task.store(0, Ordering::Relaxed),
            Order::Near => shared.shares.iter().enumerate().for_each(|(owner, next)| {
                next.0.store(shared.share(owner, tasks).start, Ordering::Relaxed);
            }),
        }
        shared.busy.store(threads.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (parked, handle) in shared.parked.iter().zip(handles) {
            if parked.load(Ordering::SeqCst) {
                handle.unpark();
            }
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            work(shared, job, tasks, order, 0);
        }));
        let mut spins = 0u32;
        while shared.busy.load(Ordering::Acquire) != 0 {
            spins = spins.wrapping_add(1);
            if spins >= PATIENCE && spins.is_multiple_of(64) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        let others_panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(!others_panicked, "a compute task panicked");
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for handle in &self.handles {
            handle.unpark();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The tasks that a thread begins with.
    fn share(&self, owner: usize, tasks: usize) -> Range<usize> {
        let threads = self.shares.len();
        tasks * owner / threads..tasks * (owner + 1) / threads
    }
}

fn work(shared: &Shared, job: &(dyn Fn(usize) + Sync), tasks: usize, order: Order, me: usize) {
    let take = |counter: &AtomicUsize, end: usize| {
        loop {
            let task = counter.fetch_add(1, Ordering::Relaxed);
            if task >= end {
                return;
            }
            job(task);
        }
    };
    match order {
        Order::Next => take(&shared.next_task, tasks),
        Order::Near => {
            let threads = shared.shares.len();
            for owner in (me..threads).chain(0..me) {
                take(&shared.shares[owner].0, shared.share(owner, tasks).end);
            }
        }
    }
}

fn worker(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = wait_for_epoch(shared, index, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch was published after the job was written, and the owner does not touch
        // it again before `busy` reaches zero.
        let (job, tasks, order) = unsafe { (*shared.job.get()).expect("an epoch without a job") };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: `Pool::run` keeps the closure alive until `busy` is zero.
            work(shared, unsafe { &*job }, tasks, order, index + 1);
        }));
        if outcome.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

fn wait_for_epoch(shared: &Shared, index: usize, seen: usize) -> usize {
    loop {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                let epoch = shared.epoch.load(Ordering::Acquire);
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN || shared.rest.load(Ordering::Relaxed) {
                break;
            }
        }
        shared.parked[index].store(true, Ordering::SeqCst);
        // The owner bumps the epoch before it looks at `parked`, so one of us sees the other.
        if shared.epoch.load(Ordering::SeqCst) == seen {
            std::thread::park();
        }
        shared.parked[index].store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                for order in [Order::Next, Order::Near] {
                    let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                    pool.run_in(order, tasks, &|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                }
            }
            // Workers that parked wake up again.
            std::thread::sleep(Duration::from_millis(3));
            let sum = AtomicUsize::new(0);
            pool.run(100, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }

    #[test]
    fn a_thread_begins_with_its_share_and_helps_with_the_rest() {
        let mut pool = Pool::new(2);
        let caller = std::thread::current().id();
        let (first_of_worker, done) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
        // A task of the caller waits for seven others, so the worker does its own four and three of the caller's at least.
        pool.run_near(8, &|task| {
            if std::thread::current().id() == caller {
                while done.load(Ordering::SeqCst) < 7 {
                    std::thread::yield_now();
                }
            } else if first_of_worker.load(Ordering::SeqCst) == usize::MAX {
                first_of_worker.store(task, Ordering::SeqCst);
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!((first_of_worker.into_inner(), done.into_inner()), (4, 8));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(2);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(64, &|i| assert!(i != 13, "task 13"));
        }));
        assert!(outcome.is_err());
        // All of them at once.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let there = AtomicUsize::new(0);
            pool.run_near(2, &|_| {
                there.fetch_add(1, Ordering::SeqCst);
                while there.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                panic!("everybody");
            });
        }));
        assert!(outcome.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }
}
