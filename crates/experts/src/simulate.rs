//! Hit rates of cache sizes and policies over a recorded routing, without the model.
//!
//! The policy under test is the live one, the same code; in addition there are two that are not built in, for
//! comparison: one list of slots for all layers, and Belady's, which knows the future and which no policy
//! beats.

use std::collections::BTreeSet;

use crate::Result;
use crate::cache::{Cache, Counts, Manner, Partition};
use crate::geometry::{Geometry, Slots};
use crate::routing_log::{Header, LoggedVisit};

/// How slots are given to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each layer has its own share of the slots; the least recently used of the layer leaves. What the
    /// bank does.
    Layered,
    /// The least recently used of all layers leaves.
    Lru,
    /// The one that is wanted again last leaves. Knows the future.
    Belady,
}

impl Policy {
    /// All of them, the built-in one first.
    pub const ALL: [Policy; 3] = [Policy::Layered, Policy::Lru, Policy::Belady];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Layered => "layered",
            Policy::Lru => "lru",
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
    Manner::of(visit.rows, &visit.trials) == Manner::Keep
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
        Policy::Layered => replay(header, &geometry, visits, geometry.layered(slots)),
        Policy::Lru => replay(header, &geometry, visits, geometry.pooled(slots)),
        Policy::Belady => belady(header, &geometry, visits, slots),
    })
}

/// What is read from the disk when an expert is missed: a slot's worth, with the ends of its blocks.
fn missed_bytes(header: &Header, visit: &LoggedVisit) -> u64 {
    header.layers[visit.layer].map_or(0, |layer| layer.slot_bytes as u64)
}

fn replay(
    header: &Header,
    geometry: &Geometry,
    visits: &[LoggedVisit],
    partition: Partition,
) -> Outcome {
    let mut cache = Cache::new(partition);
    let (mut keys, mut steps) = (Vec::new(), Vec::new());
    let mut outcome = Outcome::default();
    for visit in visits {
        let Some((_, first)) = geometry.layer(visit.layer) else { continue };
        keys.clear();
        keys.extend(visit.wanted.iter().map(|id| first + id));
        let manner = Manner::of(visit.rows, &visit.trials);
        cache.visit(&keys, &visit.trials, manner, &mut steps);
        let hits = steps.iter().filter(|step| step.hit).count();
        outcome.tally(visit).add(hits, steps.len() - hits, missed_bytes(header, visit));
        if let Some(accepted) = visit.settled {
            cache.settle(accepted);
        }
    }
    outcome
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
    let mut kept: Vec<BTreeSet<(usize, u32)>> = vec![BTreeSet::new(); slots.classes.len()];
    for (time, visit) in visits.iter().enumerate() {
        let (class, first) = first(visit);
        let (kept, room) = (&mut kept[class as usize], slots.classes[class as usize].kept);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::LayerSize;
    use crate::routing_log::LOG_VERSION;

    const LAYERS: usize = 10;

    /// Hits of 20 tokens that all want the same four experts of 16 of every layer.
    fn hits(slots: usize, policy: Policy) -> u64 {
        let size =
            LayerSize { experts: 16, experts_per_token: 4, expert_bytes: 900, slot_bytes: 4096 };
        let layers = vec![Some(size); LAYERS];
        let slots = Geometry::new(&layers).with_total(slots).expect("enough slots");
        let visit = |index| LoggedVisit {
            layer: index % LAYERS,
            rows: 1,
            wanted: vec![3, 0, 9, 7],
            ..LoggedVisit::default()
        };
        let visits: Vec<LoggedVisit> = (0..20 * LAYERS).map(visit).collect();
        let header = Header { version: LOG_VERSION, layers, slots, fixed_bytes: 0 };
        let outcome = run(&header, &visits, &header.slots, policy).expect("a simulation");
        assert_eq!(outcome.counts().hits + outcome.counts().misses, 4 * visits.len() as u64);
        outcome.counts().hits
    }

    #[test]
    fn layers_in_turn_find_experts_again_in_fewer_slots_than_a_token_uses() {
        // A token uses 40. Of 25 slots 6 are for staging, and two keep in each layer but the last.
        assert_eq!(hits(25, Policy::Lru), 0);
        assert_eq!(hits(25, Policy::Layered), 19 * 19);
        // Of 12 slots 4 are for staging, and one in each of 8 layers keeps.
        assert_eq!(hits(12, Policy::Layered), 19 * 8);
        // No slot keeps anything.
        assert_eq!(hits(4, Policy::Layered), 0);
        // All layers keep all that a token uses.
        for policy in [Policy::Lru, Policy::Layered] {
            assert_eq!(hits(60, policy), 19 * 40);
        }
    }
}
