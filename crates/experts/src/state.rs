//! What changes during visits: which slot is being read, which experts of the visit are where.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use compute::Trial;

use crate::cache::{Cache, Manner, VisitStep};
use crate::geometry::{ClassSlots, Geometry, Slots};
use crate::routing_log::RoutingLog;
use crate::statistics::{Activity, Missed, VisitRecord};
use crate::{Error, Result};

/// A trace that is longer is cut.
const MOST_ACTIVITIES: usize = 1 << 20;

/// A slot as the reader sees it.
#[derive(Debug, Default)]
pub(crate) struct SlotState {
    /// Reads that have not ended.
    pub(crate) reads_left: usize,
    /// Why one of them failed.
    error: Option<Error>,
    /// The step of the current visit that waits for them.
    pub(crate) step: Option<u32>,
    /// The expert whose bytes it holds, once they are all there.
    pub(crate) content: Option<u32>,
}

impl SlotState {
    /// Reads that had not begun were taken back, and what the others bring is not wanted.
    pub(crate) fn abandon(&mut self, withdrawn: usize) {
        self.reads_left -= withdrawn.min(self.reads_left);
        self.content = None;
        if self.reads_left == 0 {
            self.error = None;
        }
    }
}

/// How far an expert of the visit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Another expert must leave the slot first.
    Blocked,
    /// Its reads are in flight.
    Reading,
    /// It is in memory.
    Ready,
    /// A computation uses it.
    Taken,
    /// It was used, or cannot be had.
    Done,
}

/// Whether reading ahead pays: most of what it reads must then be wanted.
#[derive(Debug, Default)]
struct Foresight {
    read: f64,
    used: f64,
    /// Guesses still to be left out.
    pause: u32,
}

/// Guesses left out after a series of bad ones.
const PAUSE: u32 = 256;

/// What a new guess weighs against all before it.
const MEMORY: f64 = 0.99;

/// Share of the bytes read ahead that must be wanted. A wrong byte costs a later byte its time; a right
/// one comes while the disk would stand still.
const LEAST_USED: f64 = 0.5;

impl Foresight {
    fn learn(&mut self, read: f64, used: f64) {
        self.read = self.read * MEMORY + read;
        self.used = self.used * MEMORY + used;
        // Judged only after some guesses.
        if self.read > 64.0 && self.used < LEAST_USED * self.read {
            *self = Foresight { pause: PAUSE, ..Foresight::default() };
        }
    }

    fn allows(&mut self) -> bool {
        self.pause = self.pause.saturating_sub(1);
        self.pause == 0
    }
}

#[derive(Debug)]
pub(crate) struct BankState {
    pub(crate) cache: Cache,
    pub(crate) slots: Vec<SlotState>,
    pub(crate) steps: Vec<VisitStep>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) blocked: Vec<u32>,
    /// Steps that are neither handed over nor failed.
    pub(crate) open: usize,
    pub(crate) failures: Vec<(u32, Error)>,
    /// Experts that were given up while reads of them were under way: slot and key, until they end.
    late: Vec<(u32, u32)>,
    /// When something last arrived or began.
    pub(crate) progress: Instant,
    /// The last layer that a step with drafted rows visited, until it is settled.
    unsettled: Option<usize>,
    pub(crate) missed: Missed,
    pub(crate) failed: u64,
    pub(crate) ahead: u64,
    /// Slots that experts were read ahead into since the last visit, and the bytes.
    pub(crate) ahead_slots: Vec<(u32, u64)>,
    foresight: Foresight,
    pub(crate) waited: Duration,
    pub(crate) rehearsing: bool,
    rehearsed: usize,
    /// How often slots were chosen for plain reads.
    pub(crate) plain_rounds: usize,
    pub(crate) visits: Option<Vec<VisitRecord>>,
    pub(crate) activities: Vec<Activity>,
    current: Option<VisitRecord>,
    pub(crate) log: Option<RoutingLog>,
    keys: Vec<u32>,
}

impl BankState {
    pub(crate) fn new(cache: Cache, slots: Vec<SlotState>) -> BankState {
        BankState {
            cache,
            slots,
            steps: Vec::new(),
            phases: Vec::new(),
            ready: VecDeque::new(),
            blocked: Vec::new(),
            open: 0,
            failures: Vec::new(),
            late: Vec::new(),
            progress: Instant::now(),
            unsettled: None,
            missed: Missed::default(),
            failed: 0,
            ahead: 0,
            ahead_slots: Vec::new(),
            foresight: Foresight::default(),
            waited: Duration::ZERO,
            rehearsing: false,
            rehearsed: 0,
            plain_rounds: 0,
            visits: None,
            activities: Vec::new(),
            current: None,
            log: None,
            keys: Vec::new(),
        }
    }

    /// Takes the schedule of a visit from the cache; nothing is read yet.
    pub(crate) fn begin(
        &mut self,
        layer: usize,
        rows: usize,
        wanted: &[u32],
        trials: &[Trial],
        first_key: u32,
    ) {
        // Another step: the one before has failed, or it was not judged.
        if self.unsettled.is_some_and(|last| trials.is_empty() || layer <= last) {
            self.settle(0);
        }
        if !trials.is_empty() {
            self.unsettled = Some(layer);
        }
        if let Some(log) = &mut self.log {
            log.visit(layer, rows, wanted, trials);
        }
        let manner = Manner::of(rows, trials);
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        keys.extend(wanted.iter().map(|id| first_key + id));
        let mut steps = std::mem::take(&mut self.steps);
        self.cache.visit(&keys, trials, manner, &mut steps);
        self.keys = keys;
        self.phases.clear();
        self.phases.resize(steps.len(), Phase::Blocked);
        self.open = steps.len();
        self.ready.clear();
        self.blocked.clear();
        self.failures.clear();
        self.progress = Instant::now();
        let hits = steps.iter().filter(|step| step.hit).count();
        self.missed.wanted += steps.len() as u64;
        self.missed.found += hits as u64;
        self.current = Some(VisitRecord {
            layer,
            rows,
            hits,
            misses: steps.len() - hits,
            missed_bytes: 0,
            started: self.progress,
            ended: self.progress,
            waited: Duration::ZERO,
        });
        self.steps = steps;
    }

    /// Says which drafted rows of the last step were right, if it had any.
    pub(crate) fn settle(&mut self, accepted: u64) {
        if self.unsettled.take().is_some() {
            if let Some(log) = &mut self.log {
                log.settle(accepted);
            }
            self.cache.settle(accepted);
        }
    }

    /// Whether the visit waits for reads; if not, then for a computation.
    pub(crate) fn awaits_reads(&self) -> bool {
        let reading = |slot: u32| self.slots[slot as usize].reads_left > 0;
        let mut phases = self.steps.iter().zip(&self.phases);
        phases.any(|(step, phase)| match phase {
            Phase::Reading => true,
            Phase::Blocked => reading(step.slot),
            Phase::Ready | Phase::Taken | Phase::Done => false,
        })
    }

    /// Makes any experts of the right size ready.
    pub(crate) fn rehearse(
        &mut self,
        wanted: &[u32],
        first_key: u32,
        class: u16,
        geometry: &Geometry,
        slots: &Slots,
    ) {
        let size = |class: &ClassSlots| class.kept + class.staging;
        let before: usize = slots.classes[..class as usize].iter().map(size).sum();
        let count = size(&slots.classes[class as usize]);
        let filled: Vec<u32> = (before..before + count)
            .filter(|&slot| self.slots[slot].reads_left == 0 && self.slots[slot].content.is_some())
            .map(|slot| slot as u32)
            .collect();
        assert!(!filled.is_empty(), "a rehearsal of {} experts of nothing", geometry.experts());
        self.steps.clear();
        for id in wanted {
            let slot = filled[self.rehearsed % filled.len()];
            self.rehearsed += 1;
            self.steps.push(VisitStep {
                key: first_key + id,
                slot,
                hit: true,
                staged: false,
                after: None,
                trial: Trial::default(),
            });
        }
        self.phases.clear();
        self.phases.resize(self.steps.len(), Phase::Ready);
        self.ready = (0..self.steps.len() as u32).collect();
        self.blocked.clear();
        self.failures.clear();
        self.open = self.steps.len();
        let now = Instant::now();
        self.current = Some(VisitRecord {
            layer: 0,
            rows: 1,
            hits: wanted.len(),
            misses: 0,
            missed_bytes: 0,
            started: now,
            ended: now,
            waited: Duration::ZERO,
        });
    }

    /// A read into a slot has ended: whether it was the slot's last, the only one that is waited for.
    pub(crate) fn land(&mut self, slot: u32, outcome: Result<()>) -> bool {
        self.progress = Instant::now();
        let state = &mut self.slots[slot as usize];
        state.reads_left -= 1;
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        if state.reads_left > 0 {
            return false;
        }
        self.cache.put_back(slot);
        self.late.retain(|&(other, _)| other != slot);
        let error = state.error.take();
        let step = state.step.take();
        let lost = if error.is_some() { state.content.take() } else { None };
        match (step, error) {
            (Some(step), None) => {
                self.phases[step as usize] = Phase::Ready;
                self.ready.push_back(step);
            }
            (Some(step), Some(error)) => self.fail(step, error),
            // It is not waited for any more. What came is good; what did not must not be found.
            (None, Some(_)) => {
                self.cache.clear_staged(slot);
                if let Some(key) = lost.filter(|&key| self.cache.find(key) == Some(slot)) {
                    self.cache.forget(key);
                }
            }
            (None, None) => {}
        }
        true
    }

    /// A step of the visit cannot be had.
    pub(crate) fn fail(&mut self, step: u32, error: Error) {
        let VisitStep { key, slot, .. } = self.steps[step as usize];
        self.phases[step as usize] = Phase::Done;
        self.open -= 1;
        self.failed += 1;
        let state = &mut self.slots[slot as usize];
        state.step = state.step.filter(|&other| other != step);
        if self.cache.find(key) == Some(slot) {
            self.cache.forget(key);
        }
        self.failures.push((key, error));
    }

    /// Reads into a slot do not end: no other visit is to wait for it, or for another try at the same.
    pub(crate) fn set_aside(&mut self, slot: u32, key: Option<u32>) {
        self.cache.set_aside(slot);
        self.late.extend(key.map(|key| (slot, key)));
    }

    /// Whether reads of an expert have not ended that were given up.
    pub(crate) fn is_late(&self, key: u32) -> bool {
        self.late.iter().any(|&(_, other)| other == key)
    }

    /// A staging slot for an expert that may be wanted next, if there is one and it is not in memory.
    pub(crate) fn stage(&mut self, key: u32) -> Option<u32> {
        if self.is_late(key) {
            return None;
        }
        let (slots, phases) = (&self.slots, &self.phases);
        let left = |step: u32| phases.get(step as usize).is_none_or(|&phase| phase == Phase::Done);
        self.cache.stage(key, |slot, last_step| {
            slots[slot as usize].reads_left == 0 && last_step.is_none_or(left)
        })
    }

    /// Whether guesses were good enough of late to act on one more.
    pub(crate) fn trusts_guesses(&mut self) -> bool {
        !self.rehearsing && self.foresight.allows()
    }

    /// Learns from what was read ahead for this visit, and says for which slots it was unused.
    pub(crate) fn judge_guesses(&mut self) -> Vec<u32> {
        let guesses = std::mem::take(&mut self.ahead_slots);
        if guesses.is_empty() {
            return Vec::new();
        }
        let (mut vain, mut used) = (Vec::new(), 0);
        for &(slot, bytes) in &guesses {
            // The slot of a vain one may be another step's.
            match self.steps.iter().find(|step| step.staged && step.slot == slot) {
                // Read early, but missed all the same.
                Some(step) => {
                    used += 1;
                    self.count_missed(step.trial, bytes);
                }
                None => vain.push(slot),
            }
        }
        self.foresight.learn(guesses.len() as f64, f64::from(used));
        vain
    }

    /// The reads of an expert that may be wanted next are about to begin.
    pub(crate) fn begin_ahead(&mut self, slot: u32, key: u32, reads: usize, bytes: u64) {
        let state = &mut self.slots[slot as usize];
        state.reads_left = reads;
        state.content = Some(key);
        self.ahead += 1;
        self.ahead_slots.push((slot, bytes));
    }

    /// Counts the bytes of a miss, whenever they were read.
    pub(crate) fn count_missed(&mut self, trial: Trial, bytes: u64) {
        self.missed.add(trial.depth, bytes);
        if let Some(visit) = &mut self.current {
            visit.missed_bytes += bytes;
        }
    }

    /// Remembers what a thread did, if visits are observed.
    pub(crate) fn note(&mut self, started: Instant, experts: usize) {
        if let (Some(_), Some(visit)) = (&self.visits, &self.current)
            && self.activities.len() < MOST_ACTIVITIES
        {
            let (layer, ended) = (visit.layer, Instant::now());
            self.activities.push(Activity { layer, started, ended, experts });
        }
    }

    /// Counts a wait.
    pub(crate) fn count_wait(&mut self, started: Instant) {
        let waited = started.elapsed();
        self.note(started, 0);
        self.waited += waited;
        if let Some(visit) = &mut self.current {
            visit.waited += waited;
        }
    }

    /// Ends the visit.
    pub(crate) fn end(&mut self) {
        for (index, step) in self.steps.iter().enumerate() {
            let slot = &mut self.slots[step.slot as usize];
            if slot.step == Some(index as u32) {
                slot.step = None;
            }
            // Given up before its read began: it must not be found.
            if self.phases[index] == Phase::Blocked && self.cache.find(step.key) == Some(step.slot)
            {
                self.cache.forget(step.key);
            }
        }
        self.open = 0;
        if let Some(mut visit) = self.current.take() {
            visit.ended = Instant::now();
            self.visits.iter_mut().for_each(|visits| visits.push(visit));
        }
    }
}
