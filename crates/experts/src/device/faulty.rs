//! A device that fails on purpose, for tests.
//!
//! What happens to a read depends on the seed, the file, the offset and how often that offset was read
//! before: never on the clock or on the thread that reads. So a run that found a defect can be repeated.
//! It hands out a descriptor only to have calls to io_uring fail, and otherwise none: every read comes through here.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use checkpoint::FileIndex;

#[cfg(target_os = "linux")]
use super::RingCall;
use super::{ALIGNMENT, Device};
use crate::{Error, Result};

/// "Input/output error" on every Unix. Windows reads it as "access denied", which does as well.
const EIO: i32 = 5;

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fewer bytes come than were requested, at least a block; continuing brings the rest.
    Short,
    /// Half a block comes, however often it is read.
    ShortForever,
    /// The disk fails.
    Broken,
    /// A signal came first; trying again helps.
    Interrupted,
    /// The read comes late.
    Delay(Duration),
    /// The read waits for [`Faulty::release`].
    Stall,
    /// The file ends here, whatever it was when it was opened.
    Truncated(u64),
    /// The file was overwritten: other bytes come, and only [`Device::check_unchanged`] shows it.
    Overwritten,
}

/// A fault in a place of one's choosing.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The file; `None` for all of them.
    pub file: Option<FileIndex>,
    /// Reads that touch these bytes.
    pub bytes: Range<u64>,
    /// The first attempt at an offset is number 0.
    pub attempts: Range<u32>,
    /// What happens.
    pub fault: Fault,
}

impl Rule {
    /// This fault for every read of every file.
    pub fn always(fault: Fault) -> Rule {
        Rule { file: None, bytes: 0..u64::MAX, attempts: 0..u32::MAX, fault }
    }

    fn applies(&self, file: FileIndex, offset: u64, len: usize, attempt: u32) -> bool {
        self.file.is_none_or(|only| only == file)
            && offset < self.bytes.end
            && self.bytes.start < offset.saturating_add(len as u64)
            && self.attempts.contains(&attempt)
    }
}

/// Another device, and what is to go wrong with it.
#[derive(Debug)]
pub struct Faulty {
    device: Arc<dyn Device>,
    seed: u64,
    rules: Vec<Rule>,
    chances: Vec<(f64, Fault)>,
    #[cfg(target_os = "linux")]
    ring_rules: Vec<(RingCall, Range<u32>, i32)>,
    state: Mutex<RuleState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RuleState {
    attempts: HashMap<(FileIndex, u64), u32>,
    faults: u64,
    stalled: usize,
    released: bool,
    overwritten: Option<FileIndex>,
    #[cfg(target_os = "linux")]
    ring_calls: HashMap<RingCall, u32>,
}

impl Faulty {
    /// A device without faults yet.
    pub fn new(device: Arc<dyn Device>, seed: u64) -> Faulty {
        Faulty {
            device,
            seed,
            rules: Vec::new(),
            chances: Vec::new(),
            #[cfg(target_os = "linux")]
            ring_rules: Vec::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Adds a fault in a place of one's choosing. The first rule that applies decides.
    #[must_use]
    pub fn with_rule(mut self, rule: Rule) -> Faulty {
        self.rules.push(rule);
        self
    }

    /// Adds a fault that befalls a read with this probability, where no rule applies. The first
    /// chance that comes true decides.
    #[must_use]
    pub fn with_chance(mut self, probability: f64, fault: Fault) -> Faulty {
        self.chances.push((probability, fault));
        self
    }

    /// Makes calls to io_uring fail with a number of the system's, the first call of each kind being number 0. The
    /// ring then reads the files by their descriptors, past the other faults.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn with_ring_fault(mut self, call: RingCall, calls: Range<u32>, errno: i32) -> Faulty {
        self.ring_rules.push((call, calls, errno));
        self
    }

    /// Releases the reads that stall, now and later.
    pub fn release(&self) {
        self.state().released = true;
        self.changed.notify_all();
    }

    /// Waits until this many reads stall at once.
    pub fn wait_for_stalled(&self, count: usize) {
        let mut state = self.state();
        while state.stalled < count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many reads met a fault so far.
    pub fn fault_count(&self) -> u64 {
        self.state().faults
    }

    fn state(&self) -> MutexGuard<'_, RuleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, file: FileIndex, offset: u64, len: usize) -> Option<(Fault, u64)> {
        let mut state = self.state();
        let attempts = state.attempts.entry((file, offset)).or_default();
        let attempt = *attempts;
        *attempts += 1;
        let place = [u64::from(file.0), offset, u64::from(attempt)];
        let draw = place.iter().fold(mix(self.seed), |hash, &part| mix(hash ^ part));
        let ruled = self.rules.iter().find(|rule| rule.applies(file, offset, len, attempt));
        let fault = ruled.map(|rule| rule.fault).or_else(|| {
            let hit = |&(number, &(probability, _)): &(usize, &(f64, Fault))| {
                unit(mix(draw ^ (number as u64 + 1))) < probability
            };
            self.chances.iter().enumerate().find(hit).map(|(_, &(_, fault))| fault)
        })?;
        state.faults += 1;
        match fault {
            // A file that was cut has another length, which its identity would show.
            Fault::Overwritten | Fault::Truncated(_) => state.overwritten = Some(file),
            _ => {}
        }
        Some((fault, mix(draw)))
    }

    fn stall(&self) {
        let mut state = self.state();
        state.stalled += 1;
        self.changed.notify_all();
        while !state.released {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.stalled -= 1;
    }
}

impl Device for Faulty {
    fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let Some((fault, draw)) = self.fault(file, offset, out.len()) else {
            return self.device.read(file, offset, out);
        };
        match fault {
            Fault::Short if out.len() > ALIGNMENT => {
                // A block at least, so that a caller that continues from the last whole block gets further.
                let most = (out.len() - ALIGNMENT) as u64;
                let len = ALIGNMENT + (draw % most) as usize;
                self.device.read(file, offset, &mut out[..len])
            }
            Fault::Short => self.device.read(file, offset, out),
            Fault::ShortForever => {
                let len = out.len().min(ALIGNMENT / 2);
                self.device.read(file, offset, &mut out[..len])
            }
            Fault::Broken => Err(io::Error::from_raw_os_error(EIO)),
            Fault::Interrupted => Err(io::ErrorKind::Interrupted.into()),
            Fault::Delay(time) => {
                std::thread::sleep(time);
                self.device.read(file, offset, out)
            }
            Fault::Stall => {
                self.stall();
                self.device.read(file, offset, out)
            }
            Fault::Truncated(end) => {
                let left = end.saturating_sub(offset).min(out.len() as u64);
                self.device.read(file, offset, &mut out[..left as usize])
            }
            Fault::Overwritten => {
                let count = self.device.read(file, offset, out)?;
                out[..count].iter_mut().for_each(|byte| *byte = !*byte);
                Ok(count)
            }
        }
    }

    fn path(&self, file: FileIndex) -> &Path {
        self.device.path(file)
    }

    fn check_unchanged(&self, file: FileIndex) -> Result<()> {
        if self.state().overwritten == Some(file) {
            return Err(Error::Changed { path: self.device.path(file).to_owned() });
        }
        self.device.check_unchanged(file)
    }

    #[cfg(target_os = "linux")]
    fn descriptor(&self, file: FileIndex) -> Option<std::os::fd::BorrowedFd<'_>> {
        if self.ring_rules.is_empty() { None } else { self.device.descriptor(file) }
    }

    #[cfg(target_os = "linux")]
    fn ring_fault(&self, call: RingCall) -> Option<io::Error> {
        if self.ring_rules.is_empty() {
            return None;
        }
        let mut state = self.state();
        let calls = state.ring_calls.entry(call).or_default();
        let number = *calls;
        *calls += 1;
        let applies = |(only, calls, _): &&(RingCall, Range<u32>, i32)| {
            *only == call && calls.contains(&number)
        };
        let (_, _, errno) = self.ring_rules.iter().find(applies)?;
        state.faults += 1;
        Some(io::Error::from_raw_os_error(*errno))
    }

    fn forget(&self, file: FileIndex, offset: u64, len: usize) {
        self.device.forget(file, offset, len);
    }

    fn forget_file(&self, file: FileIndex) {
        self.device.forget_file(file);
    }

    fn may_be_cached(&self, file: FileIndex, offset: u64) -> bool {
        self.device.may_be_cached(file, offset)
    }
}

/// The finaliser of splitmix64: every bit of the input moves every bit of the output.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number from 0 up to 1.
fn unit(value: u64) -> f64 {
    (value >> 11) as f64 / (1_u64 << 53) as f64
}
