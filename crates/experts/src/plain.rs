//! The disk's own rate: reads as misses make them, with nothing else running.
//!
//! They land where those of misses land, in slots all over the arena, which then get back what they held. A small buffer
//! that is read into again and again is the better target: on a virtual machine's disk 32 MiB were filled at 3.6 GB/s where
//! 2 GiB were filled at 2.2 (`benches/landing.py`). No expert that is kept can be read at such a rate.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bank::StreamedBank;
use crate::reader::{DiskReader, Method, Priority, Read};
use crate::state::BankState;
use crate::{Error, Result};

impl StreamedBank {
    /// Reads experts that are not wanted into slots, `least_bytes` or more of them, as many at a time as for misses, and
    /// afterwards what the slots held: the bytes of the former and the time they took. Both are zero if all slots are
    /// being read into. Visits wait meanwhile; the bank's own counters know nothing of it.
    pub fn read_plainly(&self, least_bytes: u64) -> Result<(u64, Duration)> {
        let _turn = self.turn();
        // Held to the end: until then no slot is read into or handed over.
        let mut state = self.core.lock();
        let reads = PlainReader::start(self)?;
        let (mut bytes, mut time) = (0, Duration::ZERO);
        while bytes < least_bytes {
            let slots = state.spread_slots(self.arena.mean_bytes(), least_bytes - bytes);
            if slots.is_empty() {
                break;
            }
            match self.read_and_restore(&reads, &slots, state.plain_rounds) {
                Ok((read, took)) => (bytes, time) = (bytes + read, time + took),
                Err(error) => {
                    // What is in them now is not known.
                    let held = slots.iter().filter_map(|&(slot, held)| Some((slot, held?)));
                    held.for_each(|(slot, key)| state.lose(slot, key));
                    return Err(error);
                }
            }
        }
        Ok((bytes, time))
    }

    fn read_and_restore(
        &self,
        reader: &PlainReader,
        slots: &[(u32, Option<u32>)],
        round: usize,
    ) -> Result<(u64, Duration)> {
        let (mut others, mut own, mut bytes) = (Vec::new(), Vec::new(), 0);
        for &(slot, held) in slots {
            // Of the same layer, so of the same size, and each round another one.
            let of = self.experts.entry(held.unwrap_or_else(|| self.some_key_for(slot, round)));
            let (first_key, experts) = self.keys_of(of.layer);
            let other = (of.expert as usize + 1 + round % (experts - 1).max(1)) % experts;
            bytes += self.reads_into(first_key + other as u32, slot, &mut others);
            if let Some(key) = held {
                self.reads_into(key, slot, &mut own);
            }
        }
        // SAFETY: `slots` names each slot once, nothing is being read into it, and the caller has both the turn and the
        // state's lock, so that no other thread begins to use or to fill it.
        let time = unsafe { reader.carry_out(&others) }?;
        // SAFETY: as above; the reads before are done.
        unsafe { reader.carry_out(&own) }?;
        Ok((bytes, time))
    }

    /// The first key of a layer with experts, and how many it has.
    fn keys_of(&self, layer: usize) -> (u32, usize) {
        let (_, first_key) = self.geometry.layer(layer).expect("a layer with experts");
        let experts = self.layers()[layer].as_ref().map_or(0, |layer| layer.layout.experts());
        (first_key, experts)
    }

    /// For an empty slot: an expert of a layer whose experts fit it, each round another one.
    fn some_key_for(&self, slot: u32, round: usize) -> u32 {
        let fits = |&index: &usize| {
            self.geometry.layer(index).is_some_and(|(class, _)| {
                self.geometry.classes()[usize::from(class)].slot_bytes == self.arena.slot_len(slot)
            })
        };
        let layers: Vec<usize> = (0..self.layers().len()).filter(fits).collect();
        let (first_key, experts) = self.keys_of(layers[(slot as usize + round) % layers.len()]);
        first_key + slot % experts as u32
    }
}

impl BankState {
    /// Slots that nothing is being read into, evenly spread, at least this many bytes of them if there are as many, each
    /// with the key of what it holds. Each time others.
    fn spread_slots(&mut self, slot_bytes: usize, bytes: u64) -> Vec<(u32, Option<u32>)> {
        let wanted = bytes.div_ceil(slot_bytes.max(1) as u64) as usize;
        let step = (self.slots.len() / wanted.max(1)).max(1);
        let first = self.plain_rounds % step;
        self.plain_rounds += 1;
        let slots = (first..self.slots.len()).step_by(step).map(|slot| slot as u32);
        let is_free = |&slot: &u32| {
            let state = &self.slots[slot as usize];
            // A layer that keeps an expert there counts on its bytes.
            let is_known = state.content.is_some() || self.cache.content(slot).is_none();
            state.reads_left == 0 && is_known
        };
        slots.filter(is_free).map(|slot| (slot, self.slots[slot as usize].content)).collect()
    }

    fn lose(&mut self, slot: u32, key: u32) {
        self.slots[slot as usize].content = None;
        self.cache.clear_staged(slot);
        if self.cache.find(key) == Some(slot) {
            self.cache.forget(key);
        }
    }
}

/// A reader of its own, like the bank's.
struct PlainReader {
    reader: DiskReader,
    landing: Arc<Landing>,
}

#[derive(Default)]
struct Landing {
    /// Reads that are not done, and why one of them failed.
    state: Mutex<(usize, Option<Error>)>,
    all: Condvar,
}

impl Landing {
    fn lock(&self) -> MutexGuard<'_, (usize, Option<Error>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlainReader {
    fn start(bank: &StreamedBank) -> Result<PlainReader> {
        let landing = Arc::new(Landing::default());
        let done = {
            let landing = Arc::clone(&landing);
            Arc::new(move |_, outcome: Result<()>| {
                let mut state = landing.lock();
                state.0 -= 1;
                if let Err(error) = outcome {
                    state.1.get_or_insert(error);
                }
                if state.0 == 0 {
                    landing.all.notify_one();
                }
            })
        };
        // As the bank reads now, which is not as configured where io_uring has failed.
        let method = Method { queue: bank.reader.queue(), ..bank.options().method };
        let reader = DiskReader::start_or_by_threads(Arc::clone(&bank.device), method, done)?;
        Ok(PlainReader { reader, landing })
    }

    /// Carries the reads out: how long they took.
    ///
    /// # Safety
    /// As for [`DiskReader::submit`].
    unsafe fn carry_out(&self, reads: &[Read]) -> Result<Duration> {
        self.landing.lock().0 = reads.len();
        let start = Instant::now();
        // SAFETY: the caller's promise; they are done when this function returns.
        unsafe { self.reader.submit(reads, Priority::Demand) };
        let mut state = self.landing.lock();
        while state.0 > 0 {
            state = self.landing.all.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.1.take() {
            Some(error) => Err(error),
            None => Ok(start.elapsed()),
        }
    }
}
