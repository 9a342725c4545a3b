//! How to read these files best: a short trial of this disk with the reads that will be made.
//!
//! A table of disks would be wrong on the next machine: the file system, the virtual machine and the
//! kernel decide as much as the disk does. So each way is tried for some milliseconds, several times in
//! turn, on places no earlier trial has touched, and its best time counts: what else the machine does
//! can only make a trial slower. Only what the system keeps in memory would make one faster, so buffered
//! reads are not tried on files that it does not drop. Reads past the file cache and by io_uring win
//! unless another way is clearly faster.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use checkpoint::FileIndex;

use crate::device::{ALIGNMENT, Access};
use crate::reader::{DiskReader, Method, Priority, READ_LIMIT_BYTES, Read, ReadEngine};
use crate::{Device, Error, Result};

/// A read to try: file, offset, length. Offset and length are multiples of [`ALIGNMENT`].
pub type Sample = (FileIndex, u64, usize);

/// The numbers of reads under way that are tried.
pub const DEPTHS: [usize; 4] = [4, 8, 16, 32];

/// The factor by which each depth must win over 32. The trial runs on idle cores and never stops; in a run reads come by
/// the expert, nine for each, and the thread that refills a short queue must first be woken while cores compute. A bench
/// that chose 8 read at 0.63 of the plain rate, six that were given 16 at 0.75 on average, and six with 32 at 0.85 (tuned
/// routing, 2-core Xeon, 2026-11-16).
const DEPTH_FACTORS: [f64; 4] = [1.5, 1.3, 1.15, 1.0];
/// io_uring may be this much slower than threads in the trial, on idle cores. While they compute, a thread that is to read
/// first waits for one of them, and io_uring begins reads at once: in seven turns of decoding on two busy cores its bound
/// share was 0.95 on average where that of threads was 0.88, with trials between 2 and 6 % behind (2-core Xeon,
/// 2026-11-15). It also takes less processor time, 0.03 to 0.04 s for a gigabyte of expert-sized reads and not 0.05 to 0.06.
const URING_FACTOR: f64 = 0.9;
/// Buffered reads must win by this factor: they fill memory that is not in the plan.
const BUFFERED_FACTOR: f64 = 1.25;

/// Samples that are looked for in memory before a buffered trial.
const ASKED_SAMPLES: usize = 32;
/// Why there was no buffered trial.
const CACHED: &str = "not tried, the file is in memory";

/// A turn that moved less says little.
const TURN_LEAST_BYTES: u64 = 4 << 20;
/// How many turns each way gets, if time allows.
const TURNS: u32 = 3;

/// One way of reading, and how fast it was.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Through the file cache or past it.
    pub access: Access,
    /// The queue and its depth.
    pub method: Method,
    /// The best rate, or why there is none.
    pub outcome: std::result::Result<f64, String>,
}

/// The way to read.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Through the file cache or past it.
    pub access: Access,
    /// The queue and its depth.
    pub method: Method,
    /// How fast it was in its trial; 0 when nothing was tried.
    pub bytes_per_second: f64,
    /// All that was tried, in order.
    pub tried: Vec<Trial>,
}

impl Choice {
    /// A choice without a trial.
    fn untried(access: Access, depth: usize) -> Choice {
        let method = Method { queue: ReadEngine::Threads, depth };
        Choice { access, method, bytes_per_second: 0.0, tried: Vec::new() }
    }
}

/// Chooses how to read. `open` opens the files; `samples` are reads as they will be made, spread over
/// the files; `scratch` begins at a multiple of [`ALIGNMENT`] and holds some dozens of them. All trials
/// together take about `budget`.
///
/// # Panics
/// When `scratch` is not aligned or holds less than two blocks.
pub fn choose(
    open: &dyn Fn(Access) -> Result<Arc<dyn Device>>,
    samples: &[Sample],
    scratch: &mut [u8],
    budget: Duration,
) -> Result<Choice> {
    let mut tried = Vec::new();
    let direct = match open(Access::Direct) {
        Ok(device) => Some(device),
        Err(Error::Io { source, .. }) if is_refusal(&source) => {
            tried.push(refused(Access::Direct, &source));
            None
        }
        Err(error) => return Err(error),
    };
    if let Some(device) = &direct {
        if device.is_memory() {
            return Ok(Choice::untried(Access::Direct, DEPTHS[0]));
        }
        if samples.is_empty() {
            return Ok(Choice::untried(Access::Direct, DEPTHS[1]));
        }
    } else if samples.is_empty() {
        return Ok(Choice { tried, ..Choice::untried(Access::Buffered, DEPTHS[1]) });
    }

    // The first write to a page is slower than the rest; no trial should pay for it.
    scratch.iter_mut().step_by(ALIGNMENT).for_each(|byte| *byte = 0);
    // Two queues at each depth, and one buffered trial.
    let share = budget / (TURNS * (2 * DEPTHS.len() as u32 + 1));
    let deadline = Instant::now() + budget;
    let mut course = Course { samples, scratch, next: 0, share, deadline, tried };
    let direct = match direct {
        Some(device) => course.warm_up(&device)?.then_some(device),
        None => None,
    };
    for turn in 0..TURNS {
        if let Some(device) = &direct {
            course.try_direct(device)?;
        }
        // In addition to direct reads one buffered trial is enough, if there is time for it: it would have to win by far.
        if direct.is_none() || (turn == 0 && Instant::now() < deadline) {
            let depths = match decide(&course.tried) {
                Some(best) if direct.is_some() => &[course.tried[best].method.depth][..],
                _ => &DEPTHS[..],
            };
            let device = open(Access::Buffered)?;
            for &depth in depths {
                let method = Method { queue: ReadEngine::Threads, depth };
                let is_cached = course.forget(&device);
                if is_cached && direct.is_some() {
                    // Memory would be timed, and memory wins.
                    let outcome = Err(CACHED.to_owned());
                    course.tried.push(Trial { access: Access::Buffered, method, outcome });
                    continue;
                }
                course.attempt(&device, Access::Buffered, method)?;
            }
        }
    }
    let tried = course.tried;
    let Some(best) = decide(&tried) else {
        return Ok(Choice { tried, ..Choice::untried(Access::Buffered, DEPTHS[1]) });
    };
    let Trial { access, method, .. } = tried[best];
    let bytes_per_second = *tried[best].outcome.as_ref().unwrap_or(&0.0);
    Ok(Choice { access, method, bytes_per_second, tried })
}

/// Whether the answer means "not this way" rather than "this disk is broken".
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported)
}

fn refused(access: Access, error: &io::Error) -> Trial {
    let method = Method { queue: ReadEngine::Threads, depth: DEPTHS[0] };
    Trial { access, method, outcome: Err(error.to_string()) }
}

/// The number of the trial to go with: `None` when none has a rate. Trials of one kind come in order of
/// depth.
fn decide(tried: &[Trial]) -> Option<usize> {
    let best = |access: Access, queue: ReadEngine| {
        let mut best: Option<(usize, f64)> = None;
        for (index, trial) in tried.iter().enumerate() {
            let Ok(rate) = trial.outcome else { continue };
            let same = trial.access == access && trial.method.queue == queue;
            let worth = |index: usize, rate: f64| rate / depth_factor(tried[index].method.depth);
            if same && best.is_none_or(|(at, before)| worth(index, rate) > worth(at, before)) {
                best = Some((index, rate));
            }
        }
        best
    };
    let mut chosen = best(Access::Direct, ReadEngine::Threads);
    for (access, queue, factor) in [
        (Access::Direct, ReadEngine::Uring, URING_FACTOR),
        (Access::Buffered, ReadEngine::Threads, BUFFERED_FACTOR),
    ] {
        if let Some((index, rate)) = best(access, queue)
            && chosen.is_none_or(|(_, before)| rate > before * factor)
        {
            chosen = Some((index, rate));
        }
    }
    chosen.map(|(index, _)| index)
}

fn depth_factor(depth: usize) -> f64 {
    let index = DEPTHS.iter().position(|&tried| tried == depth);
    index.map_or(1.0, |index| DEPTH_FACTORS[index])
}

/// A series of trials.
struct Course<'a> {
    samples: &'a [Sample],
    scratch: &'a mut [u8],
    /// The next sample. Goes round when a fast disk has used them all.
    next: usize,
    /// The time of one turn.
    share: Duration,
    deadline: Instant,
    tried: Vec<Trial>,
}

impl Course<'_> {
    /// A few reads that are not timed: the file system has yet to find out where the files lie. Says
    /// whether there can be direct reads; some file systems open a file for them and then refuse them.
    fn warm_up(&mut self, device: &Arc<dyn Device>) -> Result<bool> {
        let method = Method { queue: ReadEngine::Threads, depth: DEPTHS[0] };
        let mut first = self.samples.iter().take(2 * DEPTHS[0]).copied();
        self.next = 2 * DEPTHS[0];
        match run(device, method, &mut || first.next(), self.scratch, &|_, _| false) {
            Ok(_) => Ok(true),
            Err(Error::Io { source, .. }) if is_refusal(&source) => {
                self.tried.push(refused(Access::Direct, &source));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// A turn of direct reads at each depth, by threads and by io_uring.
    fn try_direct(&mut self, device: &Arc<dyn Device>) -> Result<()> {
        for depth in DEPTHS {
            let method = Method { queue: ReadEngine::Threads, depth };
            self.attempt(device, Access::Direct, method)?;
        }
        for depth in DEPTHS {
            let method = Method { queue: ReadEngine::Uring, depth };
            // What the kernel refuses once it refuses always.
            if self
                .tried
                .iter()
                .any(|trial| trial.method.queue == ReadEngine::Uring && trial.outcome.is_err())
            {
                break;
            }
            match self.attempt(device, Access::Direct, method) {
                Err(Error::Io { source, .. }) => {
                    let outcome = Err(source.to_string());
                    // Nor is it chosen for what it did before it failed.
                    self.tried.retain(|trial| trial.method.queue != ReadEngine::Uring);
                    self.tried.push(Trial { access: Access::Direct, method, outcome });
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Lets the system drop what it keeps of the files: the disk is to be timed, not the memory. Says whether some of
    /// the next samples may be there all the same, as those of a file are that was written just now.
    fn forget(&self, device: &Arc<dyn Device>) -> bool {
        let mut files: Vec<FileIndex> = self.samples.iter().map(|&(file, ..)| file).collect();
        files.sort_unstable_by_key(|file| file.0);
        files.dedup();
        files.iter().for_each(|&file| device.forget_file(file));
        // The query may bring the page in: one of each sample, and not of all samples.
        let next = self.samples.iter().cycle().skip(self.next % self.samples.len());
        let mut asked = next.take(ASKED_SAMPLES.min(self.samples.len()));
        asked.any(|&(file, offset, len)| device.may_be_cached(file, offset + len as u64 / 2))
    }

    /// A turn: reads for a share of the time, longer where that is too little to measure. Nothing when
    /// no time is left, unless nothing was tried before.
    fn attempt(&mut self, device: &Arc<dyn Device>, access: Access, method: Method) -> Result<()> {
        let first = !self.tried.iter().any(|trial| trial.outcome.is_ok());
        if !first && Instant::now() >= self.deadline {
            return Ok(());
        }
        let (samples, next) = (self.samples, &mut self.next);
        let mut sample = || {
            let sample = samples[*next % samples.len()];
            *next += 1;
            Some(sample)
        };
        let (share, deadline, begun) = (self.share, self.deadline, Instant::now());
        let enough = |bytes: u64, now: Instant| {
            let in_time = now < deadline || first;
            !in_time || (bytes >= TURN_LEAST_BYTES && now - begun >= share)
        };
        let run = run(device, method, &mut sample, self.scratch, &enough)?;
        if run.bytes < TURN_LEAST_BYTES {
            return Ok(());
        }
        let same = |trial: &&mut Trial| trial.access == access && trial.method == method;
        match self.tried.iter_mut().find(same) {
            Some(trial) => trial.outcome = trial.outcome.clone().map(|rate| rate.max(run.rate())),
            None => self.tried.push(Trial { access, method, outcome: Ok(run.rate()) }),
        }
        Ok(())
    }
}

/// What a run moved, and how long it took.
struct Run {
    bytes: u64,
    elapsed: Duration,
}

impl Run {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// What the listener of a run knows.
#[derive(Default)]
struct Waves {
    /// Reads of each wave that are not done.
    left: [usize; 2],
    failure: Option<Error>,
}

/// Reads samples in two waves that take turns, each with its half of the scratch memory: while one is
/// waited for, the other keeps the disk busy. Ends when `enough` says so, given the bytes and the time,
/// or when there are no more samples.
fn run(
    device: &Arc<dyn Device>,
    method: Method,
    sample: &mut dyn FnMut() -> Option<Sample>,
    scratch: &mut [u8],
    enough: &dyn Fn(u64, Instant) -> bool,
) -> Result<Run> {
    assert!(scratch.as_ptr().addr().is_multiple_of(ALIGNMENT), "scratch memory is not aligned");
    let half_bytes = scratch.len() / 2 / ALIGNMENT * ALIGNMENT;
    assert!(half_bytes > 0, "scratch memory of {} bytes", scratch.len());
    let scratch = NonNull::from(scratch).cast::<u8>();

    let waves = Arc::new((Mutex::new(Waves::default()), Condvar::new()));
    let done = {
        let waves = Arc::clone(&waves);
        move |wave: u64, result: Result<()>| {
            let mut state = waves.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.left[wave as usize] -= 1;
            if let Err(error) = result {
                state.failure.get_or_insert(error);
            }
            if state.left[wave as usize] == 0 {
                waves.1.notify_one();
            }
        }
    };
    let reader = DiskReader::start(Arc::clone(device), method, Arc::new(done))?;

    let start = Instant::now();
    let mut carried = None;
    let mut reads: Vec<Read> = Vec::new();
    let mut failure = None;
    for wave in (0..2).cycle() {
        // Wait for this half of the memory.
        let mut state = waves.0.lock().unwrap_or_else(PoisonError::into_inner);
        while state.left[wave] > 0 {
            state = waves.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        failure = failure.or(state.failure.take());
        if failure.is_some() || enough(reader.statistics().bytes, Instant::now()) {
            break;
        }
        // Fill it with reads, one after the other. A wave is no longer than keeps the queue full, so
        // that a slow disk gets no more reads than the time allows.
        reads.clear();
        let mut used = 0;
        while reads.len() < 2 * method.depth
            && let Some((file, offset, len)) = carried.take().or_else(&mut *sample)
        {
            let len = len.min(half_bytes).min(READ_LIMIT_BYTES);
            if used + len > half_bytes {
                carried = Some((file, offset, len));
                break;
            }
            // SAFETY: `wave * half_bytes + used + len` is within the scratch memory.
            let target = unsafe { scratch.add(wave * half_bytes + used) };
            // One byte will do: the last read of a file may be short.
            let (needed, ticket, label) = (1, wave as u64, [0; 2]);
            reads.push(Read { file, offset, target, len, needed, ticket, label });
            used += len;
        }
        if reads.is_empty() {
            break;
        }
        state.left[wave] = reads.len();
        drop(state);
        // SAFETY: the ranges of `reads` do not overlap, this wave's earlier reads are done, and the
        // other wave has the other half. The scratch memory is borrowed until this function returns,
        // and the reader is dropped before.
        unsafe { reader.submit(&reads, Priority::Demand) };
    }
    // What has not begun is not waited for when time is what ended the run.
    let ended_early = failure.is_some() || !reads.is_empty();
    let mut state = waves.0.lock().unwrap_or_else(PoisonError::into_inner);
    for wave in 0..2 {
        if ended_early {
            state.left[wave] -= reader.withdraw(wave as u64);
        }
        while state.left[wave] > 0 {
            state = waves.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    match failure.or(state.failure.take()) {
        Some(error) => Err(error),
        // Threads were timed, and that is another trial.
        None if reader.queue() != method.queue => {
            let path = device.path(FileIndex(0)).to_owned();
            let source = io::Error::other("io_uring failed");
            Err(Error::Io { path, operation: "use io_uring to read".to_owned(), source })
        }
        None => Ok(Run { bytes: reader.statistics().bytes, elapsed: start.elapsed() }),
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Direct => "direct",
            Access::Buffered => "buffered",
        })
    }
}

impl fmt::Display for ReadEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadEngine::Threads => "threads",
            ReadEngine::Uring => "io_uring",
        })
    }
}

/// One line: what is chosen, and what it was chosen from.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { access, method: Method { queue, depth }, bytes_per_second, tried } = self;
        write!(f, "{access} reads, {depth} at a time by {queue}")?;
        if *bytes_per_second > 0.0 {
            write!(f, ", {:.2} GB/s", bytes_per_second / 1e9)?;
        }
        let mut kind = None;
        for trial in tried {
            let (access, queue) = (trial.access, trial.method.queue);
            match kind.replace((access, queue)) {
                Some(before) if before == (access, queue) => f.write_str(", ")?,
                Some(_) => write!(f, "; {access} by {queue} ")?,
                None => write!(f, " (tried {access} by {queue} ")?,
            }
            match &trial.outcome {
                Ok(rate) => write!(f, "{}: {:.2}", trial.method.depth, rate / 1e9)?,
                Err(problem) => write!(f, "{}: {problem}", trial.method.depth)?,
            }
        }
        if kind.is_some() { f.write_str(")") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(access: Access, queue: ReadEngine, depth: usize, rate: f64) -> Trial {
        Trial { access, method: Method { queue, depth }, outcome: Ok(rate) }
    }

    /// Rates of direct reads by threads and by io_uring at each depth, and of buffered reads.
    #[track_caller]
    fn check(
        threads: [f64; 4],
        uring: [f64; 4],
        buffered: f64,
        expect: (Access, ReadEngine, usize),
    ) {
        let mut tried = Vec::new();
        for (queue, rates) in [(ReadEngine::Threads, threads), (ReadEngine::Uring, uring)] {
            for (depth, rate) in DEPTHS.into_iter().zip(rates) {
                tried.push(trial(Access::Direct, queue, depth, rate));
            }
        }
        tried.push(trial(Access::Buffered, ReadEngine::Threads, 8, buffered));
        let Trial { access, method, .. } = &tried[decide(&tried).unwrap()];
        assert_eq!((*access, method.queue, method.depth), expect);
    }

    #[test]
    fn the_simple_way_wins_unless_another_is_clearly_faster() {
        let (direct, buffered) = (Access::Direct, Access::Buffered);
        let (threads, uring) = (ReadEngine::Threads, ReadEngine::Uring);
        check([100.0; 4], [100.0; 4], 100.0, (direct, uring, 32));
        check([100.0; 4], [0.0; 4], 100.0, (direct, threads, 32));
        check([100.0, 102.0, 102.5, 102.0], [91.0; 4], 124.0, (direct, threads, 32));
        check([149.0, 129.0, 114.0, 100.0], [85.0; 4], 0.0, (direct, threads, 32));
        check([151.0, 129.0, 114.0, 100.0], [85.0; 4], 0.0, (direct, threads, 4));
        check([100.0, 110.0, 120.0, 104.0], [105.0; 4], 0.0, (direct, threads, 16));
        check([100.0, 110.0, 110.0, 110.0], [100.0, 146.0, 120.0, 110.0], 0.0, (direct, uring, 8));
        check([100.0; 4], [110.0; 4], 130.0, (direct, uring, 32));
        check([100.0; 4], [110.0; 4], 140.0, (buffered, threads, 8));
        check([90.0, 80.0, 85.0, 98.0], [0.0; 4], 0.0, (direct, threads, 32));
    }

    #[test]
    fn what_could_not_be_tried_is_not_chosen() {
        let refused = |access, queue| Trial {
            access,
            method: Method { queue, depth: 4 },
            outcome: Err("no".to_owned()),
        };
        let mut tried = vec![refused(Access::Direct, ReadEngine::Threads)];
        assert_eq!(decide(&tried), None);
        tried.push(trial(Access::Buffered, ReadEngine::Threads, 8, 1.0));
        assert_eq!(decide(&tried), Some(1));
    }

    #[test]
    fn the_choice_reads_as_a_sentence() {
        let tried = vec![
            trial(Access::Direct, ReadEngine::Threads, 4, 1.5e9),
            trial(Access::Direct, ReadEngine::Threads, 8, 2.25e9),
            Trial {
                access: Access::Direct,
                method: Method { queue: ReadEngine::Uring, depth: 4 },
                outcome: Err("Operation not permitted (os error 1)".to_owned()),
            },
            trial(Access::Buffered, ReadEngine::Threads, 8, 0.5e9),
        ];
        let Trial { access, method, .. } = tried[1];
        let choice = Choice { access, method, bytes_per_second: 2.25e9, tried };
        assert_eq!(
            choice.to_string(),
            "direct reads, 8 at a time by threads, 2.25 GB/s (tried direct by threads 4: 1.50, 8: 2.25; \
             direct by io_uring 4: Operation not permitted (os error 1); buffered by threads 8: 0.50)"
        );
        let untried = Choice::untried(Access::Direct, 4);
        assert_eq!(untried.to_string(), "direct reads, 4 at a time by threads");
    }
}
