//! Hit rates of cache sizes and policies over a recorded routing, without the model.
//!
//! The policy under test is the live one, the same code; beside it are two that are not built in, for
//! comparison: fixed slots for each layer, and Belady's, which knows the future and which no policy beats.

use std::collections::BTreeSet;

use crate::Result;
use crate::cache::{Cache, Counts, ListSize, Manner};
use crate::geometry::{Geometry, Slots};
use crate::routing_log::{Header, LoggedVisit};

/// How slots are given to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The least recently used of all layers leaves: what the bank does.
    Lru,
    /// Each layer has its own share of the slots; the least recently used of the layer leaves.
    Layered,
    /// The one that is wanted again last leaves. Knows the future.
    Belady,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 3] = [Policy::Lru, Policy::Layered, Policy::Belady];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Layered => "layered",
            Policy::Belady => "belady",
        }
    }
}

/// What became of the visits of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hits and misses.
    pub counts: Counts,
    /// Bytes read for the misses.
    pub read_bytes: u64,
    /// Rows of the visits, every layer's counted.
    pub rows: u64,
}

impl Tally {
    /// Share of the wanted experts that were in a slot; `None` if none was wanted.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.counts.hits + self.counts.misses;
        (all > 0).then(|| self.counts.hits as f64 / all as f64)
    }

    fn add(&mut self, hits: usize, misses: usize, expert_bytes: u64) {
        self.counts.hits += hits as u64;
        self.counts.misses += misses as u64;
        self.read_bytes += misses as u64 * expert_bytes;
    }
}

/// What became of a log's visits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Visits that keep what they read: a few rows, as when decoding.
    pub decode: Tally,
    /// Visits that pass through: prompts.
    pub prompt: Tally,
}

impl Outcome {
    /// Of all visits, as the live bank counts.
    pub fn counts(&self) -> Counts {
        Counts {
            hits: self.decode.counts.hits + self.prompt.counts.hits,
            misses: self.decode.counts.misses + self.prompt.counts.misses,
            staged: 0,
        }
    }

    fn tally(&mut self, visit: &LoggedVisit) -> &mut Tally {
        let tally = if is_decode(visit) { &mut self.decode } else { &mut self.prompt };
        tally.rows += visit.rows as u64;
        tally
    }
}

/// Whether the cache keeps what a visit reads.
fn is_decode(visit: &LoggedVisit) -> bool {
    Manner::of(visit.rows, || 0) == Manner::Keep
}

/// Runs a log through a policy.
pub fn run(
    header: &Header,
    visits: &[LoggedVisit],
    slots: &Slots,
    policy: Policy,
) -> Result<Outcome> {
    let geometry = Geometry::new(&header.layers);
    Ok(match policy {
        Policy::Lru => {
            let cache = Cache::new(&slots.lists, geometry.class_of_keys());
            replay(header, &geometry, visits, cache, slots)
        }
        Policy::Layered => {
            let cache = layered(header, &geometry, slots);
            replay(header, &geometry, visits, cache, slots)
        }
        Policy::Belady => belady(header, &geometry, visits, slots),
    })
}

/// What the disk is asked for when an expert is missed: a slot's worth, with the ends of its blocks.
fn missed_bytes(header: &Header, visit: &LoggedVisit) -> u64 {
    header.layers[visit.layer].map_or(0, |layer| layer.slot_bytes as u64)
}

fn replay(
    header: &Header,
    geometry: &Geometry,
    visits: &[LoggedVisit],
    mut cache: Cache,
    slots: &Slots,
) -> Outcome {
    let (mut keys, mut steps) = (Vec::new(), Vec::new());
    let mut outcome = Outcome::default();
    for visit in visits {
        let Some((class, first)) = geometry.layer(visit.layer) else { continue };
        keys.clear();
        keys.extend(visit.wanted.iter().map(|id| first + id));
        let manner = Manner::of(visit.rows, || geometry.share(class, slots));
        cache.visit(&keys, manner, &mut steps);
        let hits = steps.iter().filter(|step| step.hit).count();
        outcome.tally(visit).add(hits, steps.len() - hits, missed_bytes(header, visit));
    }
    outcome
}

/// One list for each layer; what does not divide goes to the first layers.
fn layered(header: &Header, geometry: &Geometry, slots: &Slots) -> Cache {
    let mut lists = Vec::new();
    let mut list_of = vec![0; geometry.experts()];
    let mut seen = vec![0; geometry.classes().len()];
    for (layer, size) in header.layers.iter().enumerate() {
        let (Some(size), Some((class, first))) = (size, geometry.layer(layer)) else { continue };
        let (class, layers) = (class as usize, geometry.classes()[class as usize].layers);
        let kept = slots.lists[class].kept / layers
            + usize::from(seen[class] < slots.lists[class].kept % layers);
        seen[class] += 1;
        // A layer without slots of its own still needs one to pass experts through.
        let (kept, staging) = (kept.max(1), slots.lists[class].staging);
        list_of[first as usize..first as usize + size.experts].fill(lists.len() as u16);
        lists.push(ListSize { kept, staging });
    }
    Cache::new(&lists, list_of)
}

fn belady(header: &Header, geometry: &Geometry, visits: &[LoggedVisit], slots: &Slots) -> Outcome {
    let first = |visit: &LoggedVisit| geometry.layer(visit.layer).unwrap_or_default();
    // When each wanted expert is wanted again, last visit first.
    let mut wanted_again = Vec::new();
    let mut next = vec![usize::MAX; geometry.experts()];
    for (time, visit) in visits.iter().enumerate().rev() {
        for id in visit.wanted.iter().rev() {
            wanted_again.push(std::mem::replace(&mut next[(first(visit).1 + id) as usize], time));
        }
    }
    let mut outcome = Outcome::default();
    // By class: what is kept, by when it is wanted again.
    let mut kept: Vec<BTreeSet<(usize, u32)>> = vec![BTreeSet::new(); slots.lists.len()];
    for (time, visit) in visits.iter().enumerate() {
        let (class, first) = first(visit);
        let (kept, room) = (&mut kept[class as usize], slots.lists[class as usize].kept);
        let mut hits = 0;
        for key in visit.wanted.iter().map(|id| first + id) {
            hits += usize::from(kept.remove(&(time, key)));
            let next = wanted_again.pop().unwrap_or(usize::MAX);
            if next == usize::MAX {
                continue;
            }
            if kept.len() < room {
                kept.insert((next, key));
            } else if kept.last().is_some_and(|&last| last > (next, key)) {
                kept.pop_last();
                kept.insert((next, key));
            }
        }
        let misses = visit.wanted.len() - hits;
        outcome.tally(visit).add(hits, misses, missed_bytes(header, visit));
    }
    outcome
}
