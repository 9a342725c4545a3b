//! One visit: reads started together, experts handed over as they land.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use compute::{Expert, Parting, SlabExpert, Take, Turn, Visit};

use crate::Error;
use crate::bank::StreamedBank;
use crate::cache::VisitStep;
use crate::reader::{Priority, Read};
use crate::state::{BankState, Phase};

pub(crate) struct StreamedVisit<'a> {
    pub(crate) bank: &'a StreamedBank,
    pub(crate) layer: usize,
    pub(crate) first_key: u32,
    pub(crate) stall: Duration,
    /// Steps whose experts are the device's until the visit ends.
    pub(crate) held: Vec<Held>,
    pub(crate) _turn: MutexGuard<'a, ()>,
}

/// An expert that stays in its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    id: u32,
    slot: u32,
    /// What is in the slot.
    content: u32,
}

impl StreamedVisit<'_> {
    /// Keeps the experts that are there for the device, but those whose slot another expert of the visit waits for.
    pub(crate) fn hold_ready(&mut self) {
        let mut state = self.bank.core.lock();
        let awaited: Vec<u32> = state.steps.iter().filter_map(|step| step.after).collect();
        let ready = std::mem::take(&mut state.ready);
        for index in ready {
            if awaited.contains(&index) {
                state.ready.push_back(index);
                continue;
            }
            let step = state.steps[index as usize];
            state.phases[index as usize] = Phase::Taken;
            state.open -= 1;
            let content = state.slots[step.slot as usize].content.unwrap_or(step.key);
            self.held.push(Held { id: step.key - self.first_key, slot: step.slot, content });
        }
    }

    /// Starts every read that need not wait for a slot.
    pub(crate) fn start(&self, state: &mut BankState) {
        // First, while the slots of vain ones are not yet being read into for others.
        self.abandon_guesses(state);
        let mut reads = Vec::new();
        for index in 0..state.steps.len() as u32 {
            let step = state.steps[index as usize];
            let slot = &mut state.slots[step.slot as usize];
            let is_read_into = slot.reads_left > 0;
            let there = step.hit || (step.staged && slot.content == Some(step.key));
            if there && is_read_into {
                // It was read ahead and has not landed.
                slot.step = Some(index);
                state.phases[index as usize] = Phase::Reading;
                self.bank.reader.promote(u64::from(step.slot));
            } else if there {
                state.phases[index as usize] = Phase::Ready;
                state.ready.push_back(index);
            } else if step.after.is_some() || is_read_into {
                state.blocked.push(index);
            } else {
                self.read(state, index, &mut reads);
            }
        }
        self.submit(&reads);
    }

    /// What was expected and is not wanted need not be read, if it has not begun.
    fn abandon_guesses(&self, state: &mut BankState) {
        for slot in state.judge_guesses() {
            let state_of = &mut state.slots[slot as usize];
            if state_of.reads_left > 0 {
                state_of.abandon(self.bank.reader.withdraw(u64::from(slot)));
            }
            if state_of.reads_left > 0 {
                // What is not wanted is not to be waited for.
                state.cache.set_aside(slot);
            }
        }
    }

    /// Starts the reads of steps whose slot has become free.
    fn unblock(&self, state: &mut BankState) {
        if state.blocked.is_empty() {
            return;
        }
        let mut reads = Vec::new();
        let blocked = std::mem::take(&mut state.blocked);
        for index in blocked {
            let step = state.steps[index as usize];
            if state.phases[index as usize] != Phase::Blocked {
                continue;
            }
            let left = step.after.is_none_or(|after| state.phases[after as usize] == Phase::Done);
            if left && state.slots[step.slot as usize].reads_left == 0 {
                self.read(state, index, &mut reads);
            } else {
                state.blocked.push(index);
            }
        }
        self.submit(&reads);
    }

    /// Adds the reads of a step.
    fn read(&self, state: &mut BankState, index: u32, reads: &mut Vec<Read>) {
        let step = state.steps[index as usize];
        if state.is_late(step.key) {
            // Another try would take another of the reads that may be under way at once.
            state.fail(index, self.stalled());
            return;
        }
        let expert = step.key - self.first_key;
        let before = reads.len();
        let bytes = self.bank.reads_into(step.key, step.slot, reads);
        state.count_missed(step.trial, bytes);
        self.bank.tally.count_read(self.layer, expert);
        state.progress = Instant::now();
        let slot = &mut state.slots[step.slot as usize];
        slot.reads_left = reads.len() - before;
        slot.step = Some(index);
        slot.content = Some(step.key);
        state.phases[index as usize] = Phase::Reading;
    }

    fn submit(&self, reads: &[Read]) {
        if !reads.is_empty() {
            // SAFETY: targets are slots of the arena, which outlives the reader; a slot is read into
            // only when no other read is in flight and no visitor holds it, and is handed over only
            // when `reads_left` is zero again.
            unsafe { self.bank.reader.submit(reads, Priority::Demand) }
        }
    }

    /// Everything that is still on its way is given up.
    fn give_up(&self, state: &mut BankState) {
        let mut given_up = Vec::new();
        for index in 0..state.steps.len() as u32 {
            if matches!(state.phases[index as usize], Phase::Reading | Phase::Blocked) {
                let slot = state.steps[index as usize].slot;
                let withdrawn = self.bank.reader.withdraw(u64::from(slot));
                state.slots[slot as usize].abandon(withdrawn);
                given_up.push((index, state.phases[index as usize]));
                state.fail(index, self.stalled());
            }
        }
        state.blocked.clear();
        for (index, phase) in given_up {
            let VisitStep { key, slot, .. } = state.steps[index as usize];
            if state.slots[slot as usize].reads_left > 0 {
                // What is under way is this expert, or one that another visit wanted before.
                state.set_aside(slot, (phase == Phase::Reading).then_some(key));
            }
        }
    }

    fn stalled(&self) -> Error {
        Error::Stalled { seconds: self.stall.as_secs_f64() }
    }

    /// Waits until something lands, or gives up.
    fn wait<'s>(&self, mut state: MutexGuard<'s, BankState>) -> MutexGuard<'s, BankState> {
        let started = Instant::now();
        if !state.awaits_reads() {
            state.progress = started;
        }
        let left = self.stall.saturating_sub(state.progress.elapsed());
        if left.is_zero() {
            self.give_up(&mut state);
            self.bank.core.landed.notify_all();
            return state;
        }
        let waited = self.bank.core.landed.wait_timeout(state, left);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.count_wait(started);
        state
    }
}

impl Visit for StreamedVisit<'_> {
    fn next(&self, most: usize, wait: bool, take: Take<'_>) -> Turn {
        let mut state = self.bank.core.lock();
        let taken: Vec<(u32, u32, u32)> = loop {
            self.unblock(&mut state);
            if !state.ready.is_empty() {
                let count = most.min(state.ready.len());
                let indices: Vec<u32> = state.ready.drain(..count).collect();
                break indices
                    .into_iter()
                    .map(|index| {
                        state.phases[index as usize] = Phase::Taken;
                        state.open -= 1;
                        let step = state.steps[index as usize];
                        let content = state.slots[step.slot as usize].content;
                        (index, step.slot, content.unwrap_or(step.key))
                    })
                    .collect();
            }
            if state.open == 0 {
                // Others may still be waiting for what I took or what failed.
                self.bank.core.landed.notify_all();
                return Turn::Finished;
            }
            if !wait {
                return Turn::Empty;
            }
            state = self.wait(state);
        };
        let ids: Vec<u32> =
            taken.iter().map(|t| state.steps[t.0 as usize].key - self.first_key).collect();
        drop(state);
        let experts: Vec<(u32, Expert<'_>)> = taken
            .iter()
            .zip(ids)
            .map(|(&(_, slot, content), id)| {
                // SAFETY: all reads of the slot have ended, and none begins before this step is done.
                let bytes = unsafe { self.bank.arena.slot(slot) };
                (id, self.bank.experts.entry(content).record.place.view(bytes))
            })
            .collect();
        let started = Instant::now();
        take(&experts);
        let mut state = self.bank.core.lock();
        state.note(started, experts.len());
        for (index, ..) in taken {
            state.phases[index as usize] = Phase::Done;
        }
        self.unblock(&mut state);
        Turn::Served
    }

    fn failures(&self) -> Vec<(u32, compute::Error)> {
        let failures = std::mem::take(&mut self.bank.core.lock().failures);
        let failure = |(key, error): (u32, Error)| {
            let (layer, expert) = (self.layer, key - self.first_key);
            (expert, compute::Error::Expert { layer, expert, source: Box::new(error) })
        };
        failures.into_iter().map(failure).collect()
    }
}

impl Parting for StreamedVisit<'_> {
    fn on_device(&self) -> Vec<SlabExpert<'_>> {
        let expert = |&Held { id, slot, content }: &Held| SlabExpert {
            id,
            slot: self.bank.arena.address(slot),
            // SAFETY: all reads of the slot have ended; none begins before the visit has, since no step waits for it.
            bytes: unsafe { self.bank.arena.slot(slot) },
            place: &self.bank.experts.entry(content).record.place,
        };
        self.held.iter().map(expert).collect()
    }

    fn on_host(&self) -> &dyn Visit {
        self
    }
}

impl Drop for StreamedVisit<'_> {
    fn drop(&mut self) {
        self.bank.core.lock().end();
    }
}
