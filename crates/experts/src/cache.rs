//! Which slot an expert lives in: a pure policy over numbers, without bytes, threads or time.
//!
//! The bank asks it for a schedule of a whole visit at once: hits first, then each miss with the slot it
//! takes, and the earlier step that must have let go of that slot where a visit wants more experts than
//! there are slots. So what happens depends on the order of visits alone, never on which read lands
//! first, and the simulator, which runs this same code, counts what the live bank counts.

use serde::{Deserialize, Serialize};

/// Says that there is none.
const NONE: u32 = u32::MAX;

/// Rows up to which what is read is kept: a decode step, a verification, a tool's short answer.
const KEPT_ROWS: usize = 32;

/// Slots whose contents replace each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListSize {
    /// Slots that keep experts.
    pub kept: usize,
    /// Slots that prompts pass through.
    pub staging: usize,
}

/// One expert of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which expert.
    pub key: u32,
    /// The slot that holds it or will.
    pub slot: u32,
    /// Whether it was there.
    pub hit: bool,
    /// Whether its read began before the visit, in a staging slot. Such a step is no hit.
    pub staged: bool,
    /// An earlier step of the same visit that uses the slot first.
    pub after: Option<u32>,
}

/// How a visit treats what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// A few tokens: everything read is kept, the least recently used goes.
    Keep,
    /// A prompt: nothing kept is replaced. Up to `fill` experts take slots that were never used.
    Sweep {
        /// A layer's share of the kept slots.
        fill: usize,
    },
}

impl Manner {
    /// Of a visit for `rows` rows. More than a few are a prompt, which passes through.
    pub fn of(rows: usize, share: impl FnOnce() -> usize) -> Manner {
        if rows <= KEPT_ROWS { Manner::Keep } else { Manner::Sweep { fill: share() } }
    }
}

/// Counts of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Experts found in a slot.
    pub hits: u64,
    /// Experts that had to be read.
    pub misses: u64,
    /// Those of them whose read had begun before the visit.
    pub staged: u64,
}

/// Experts by slot, least recently used out first.
#[derive(Clone, Debug)]
pub struct Cache {
    /// By key: its slot, or [`NONE`].
    place: Vec<u32>,
    /// By key: its list.
    list_of: Vec<u16>,
    slots: Vec<Slot>,
    lists: Vec<List>,
    counts: Counts,
    visit: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// What it keeps; in a staging slot, what was read ahead into it.
    key: u32,
    list: u16,
    staging: bool,
    newer: u32,
    older: u32,
    /// Not to be given to anybody; a kept slot is not in its list then.
    aside: bool,
    /// The last visit that used it, and the step in it.
    used: (u64, u32),
}

#[derive(Clone, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    /// Kept slots that hold nothing.
    empty: usize,
    /// The staging slots are used in turn.
    staging: Vec<u32>,
    staging_next: usize,
}

impl Cache {
    /// A cache of some lists. `list_of` tells each key's list. The slots are numbered list by list,
    /// kept slots before staging slots.
    pub fn new(lists: &[ListSize], list_of: Vec<u16>) -> Cache {
        let mut cache = Cache {
            place: vec![NONE; list_of.len()],
            list_of,
            slots: Vec::new(),
            lists: Vec::new(),
            counts: Counts::default(),
            visit: 0,
        };
        for (index, size) in lists.iter().enumerate() {
            let first = cache.slots.len() as u32;
            let staging = first + size.kept as u32..first + (size.kept + size.staging) as u32;
            cache.lists.push(List {
                newest: NONE,
                oldest: NONE,
                empty: size.kept,
                staging: staging.clone().collect(),
                staging_next: 0,
            });
            let blank = Slot {
                key: NONE,
                list: index as u16,
                staging: false,
                newer: NONE,
                older: NONE,
                aside: false,
                used: (0, 0),
            };
            cache.slots.resize(staging.end as usize, blank);
            (first..staging.start).for_each(|slot| cache.push_oldest(slot));
            staging.for_each(|slot| cache.slots[slot as usize].staging = true);
        }
        cache
    }

    /// Where an expert is kept.
    pub fn find(&self, key: u32) -> Option<u32> {
        Some(self.place[key as usize]).filter(|&slot| slot != NONE)
    }

    /// What a slot keeps.
    pub fn content(&self, slot: u32) -> Option<u32> {
        let Slot { key, staging, .. } = self.slots[slot as usize];
        (key != NONE && !staging).then_some(key)
    }

    /// The step of the last visit that used a slot last.
    pub fn last_step(&self, slot: u32) -> Option<u32> {
        let (visit, step) = self.slots[slot as usize].used;
        (visit == self.visit && visit > 0).then_some(step)
    }

    /// Hits and misses so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Slots of all kinds.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Keys that are kept, the most recently used of each list first.
    pub fn kept(&self) -> impl Iterator<Item = u32> {
        self.lists.iter().flat_map(|list| {
            let next = |&slot: &u32| Some(self.slots[slot as usize].older).filter(|&s| s != NONE);
            let first = Some(list.newest).filter(|&slot| slot != NONE);
            std::iter::successors(first, next).filter_map(|slot| self.content(slot))
        })
    }

    /// Schedules a visit: what is there first, in the order given, then what is not, in the order of
    /// keys. `keys` are distinct, the most used first.
    pub fn visit(&mut self, keys: &[u32], manner: Manner, steps: &mut Vec<Step>) {
        steps.clear();
        self.visit += 1;
        for &key in keys {
            let slot = self.place[key as usize];
            if slot == NONE {
                continue;
            }
            if manner == Manner::Keep {
                self.detach(slot);
                self.push_newest(slot);
            }
            self.use_in(slot, steps.len());
            steps.push(Step { key, slot, hit: true, staged: false, after: None });
        }
        self.counts.hits += steps.len() as u64;
        self.counts.misses += (keys.len() - steps.len()) as u64;
        let first = steps.len();
        let missing = keys.iter().filter(|&&key| self.place[key as usize] == NONE);
        steps.extend(missing.map(|&key| {
            let staged = self.staged_in(key).is_some();
            Step { key, slot: NONE, hit: false, staged, after: None }
        }));
        self.forget_vain_guesses(&steps[first..]);
        // Which misses are kept is decided by use, and the order of reading by place.
        if let Manner::Sweep { fill } = manner {
            for step in steps[first..].iter_mut().take(fill) {
                let list = self.list_of[step.key as usize] as usize;
                // Without staging the rest would push them out again.
                if self.lists[list].empty > 0 && !self.lists[list].staging.is_empty() {
                    step.slot = self.keep(step.key);
                }
            }
            // What is staged and stays there comes first: others may need its slot after it.
            steps[first..]
                .sort_unstable_by_key(|step| (step.slot != NONE || !step.staged, step.key));
        } else {
            steps[first..].sort_unstable_by_key(|step| step.key);
        }
        for index in first..steps.len() {
            let Step { key, slot, staged, .. } = steps[index];
            let list = self.list_of[key as usize] as usize;
            let sweeps = manner != Manner::Keep && !self.lists[list].staging.is_empty();
            let slot = match slot {
                NONE if sweeps && staged => self.unstage(key),
                NONE if sweeps => self.next_staging(list),
                NONE => self.keep(key),
                kept => kept,
            };
            self.counts.staged += u64::from(staged);
            steps[index].slot = slot;
            steps[index].after = self.last_step(slot);
            self.use_in(slot, index);
        }
    }

    /// The staging slot that an expert was read ahead into.
    fn staged_in(&self, key: u32) -> Option<u32> {
        let list = &self.lists[self.list_of[key as usize] as usize];
        list.staging.iter().copied().find(|&slot| self.slots[slot as usize].key == key)
    }

    /// Takes an expert out of the staging slot that it was read ahead into: the slot.
    fn unstage(&mut self, key: u32) -> u32 {
        let slot = self.staged_in(key).unwrap_or(NONE);
        self.slots[slot as usize].key = NONE;
        slot
    }

    fn forget_vain_guesses(&mut self, missing: &[Step]) {
        for slot in self.slots.iter_mut().filter(|slot| slot.staging && slot.key != NONE) {
            if !missing.iter().any(|step| step.key == slot.key) {
                slot.key = NONE;
            }
        }
    }

    /// Keeps an expert in place of the least recently used of its list: the slot. If it was read ahead,
    /// that is the slot it was read into, and the other one becomes a staging slot.
    fn keep(&mut self, key: u32) -> u32 {
        let list = self.list_of[key as usize] as usize;
        let taken = self.take_oldest(list, key);
        let Some(staged) = self.staged_in(key) else { return taken };
        self.detach(taken);
        let other = &mut self.slots[taken as usize];
        (other.key, other.staging) = (NONE, true);
        let own = &mut self.slots[staged as usize];
        (own.key, own.staging) = (key, false);
        self.push_newest(staged);
        self.place[key as usize] = staged;
        let staging = self.lists[list].staging.iter_mut();
        staging.filter(|slot| **slot == staged).for_each(|slot| *slot = taken);
        staged
    }

    /// Gives a staging slot to an expert that may be wanted next. `is_free` is asked about a slot and the
    /// step of the last visit that used it.
    pub fn stage(&mut self, key: u32, is_free: impl Fn(u32, Option<u32>) -> bool) -> Option<u32> {
        let list = self.list_of[key as usize] as usize;
        if self.place[key as usize] != NONE || self.staged_in(key).is_some() {
            return None;
        }
        let blank = |&slot: &u32| {
            let Slot { key, aside, .. } = self.slots[slot as usize];
            key == NONE && !aside && is_free(slot, self.last_step(slot))
        };
        let slot = self.lists[list].staging.iter().copied().find(blank)?;
        self.slots[slot as usize].key = key;
        Some(slot)
    }

    /// A read ahead into a slot failed.
    pub fn clear_staged(&mut self, slot: u32) {
        if self.slots[slot as usize].staging {
            self.slots[slot as usize].key = NONE;
        }
    }

    /// Puts an expert into a slot that was never used, if there is one left for it.
    pub fn fill(&mut self, key: u32) -> Option<u32> {
        let list = self.list_of[key as usize] as usize;
        (self.place[key as usize] == NONE && self.lists[list].empty > 0)
            .then(|| self.take_oldest(list, key))
    }

    /// An expert did not come: its slot holds nothing.
    pub fn forget(&mut self, key: u32) {
        let slot = std::mem::replace(&mut self.place[key as usize], NONE);
        if slot != NONE {
            self.slots[slot as usize].key = NONE;
            self.detach(slot);
            self.push_oldest(slot);
            self.lists[self.slots[slot as usize].list as usize].empty += 1;
        }
    }

    /// Something may still be written to a slot: nobody is given it before it is [put
    /// back](Cache::put_back), unless there is no other. What it keeps is forgotten.
    pub fn set_aside(&mut self, slot: u32) {
        let Slot { key, list, staging, aside, .. } = self.slots[slot as usize];
        if staging {
            self.slots[slot as usize].key = NONE;
        } else if key != NONE {
            self.forget(key);
        }
        let list = &mut self.lists[list as usize];
        if aside || (list.newest, list.oldest) == (slot, slot) {
            return;
        }
        self.slots[slot as usize].aside = true;
        if !staging {
            list.empty -= 1;
            self.detach(slot);
        }
    }

    /// A slot that was set aside can be used again.
    pub fn put_back(&mut self, slot: u32) {
        let Slot { list, staging, aside, .. } = self.slots[slot as usize];
        if !aside {
            return;
        }
        self.slots[slot as usize].aside = false;
        let list = &mut self.lists[list as usize];
        if !staging {
            list.empty += 1;
            self.push_oldest(slot);
        }
    }

    fn use_in(&mut self, slot: u32, step: usize) {
        self.slots[slot as usize].used = (self.visit, step as u32);
    }

    /// The least recently used slot of a list, now the newest and `key`'s.
    fn take_oldest(&mut self, list: usize, key: u32) -> u32 {
        let slot = self.lists[list].oldest;
        assert!(slot != NONE, "a list without slots");
        self.detach(slot);
        self.push_newest(slot);
        let evicted = std::mem::replace(&mut self.slots[slot as usize].key, key);
        if evicted == NONE {
            self.lists[list].empty -= 1;
        } else {
            self.place[evicted as usize] = NONE;
        }
        self.place[key as usize] = slot;
        slot
    }

    fn next_staging(&mut self, list: usize) -> u32 {
        let list = &mut self.lists[list];
        let mut slot = NONE;
        for _ in 0..list.staging.len() {
            slot = list.staging[list.staging_next];
            list.staging_next = (list.staging_next + 1) % list.staging.len();
            if !self.slots[slot as usize].aside {
                break;
            }
        }
        slot
    }

    fn detach(&mut self, slot: u32) {
        let Slot { list, newer, older, .. } = self.slots[slot as usize];
        let list = &mut self.lists[list as usize];
        match newer {
            NONE => list.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    fn push_newest(&mut self, slot: u32) {
        let list = &mut self.lists[self.slots[slot as usize].list as usize];
        let older = std::mem::replace(&mut list.newest, slot);
        self.slots[slot as usize].newer = NONE;
        self.slots[slot as usize].older = older;
        match older {
            NONE => list.oldest = slot,
            older => self.slots[older as usize].newer = slot,
        }
    }

    fn push_oldest(&mut self, slot: u32) {
        let list = &mut self.lists[self.slots[slot as usize].list as usize];
        let newer = std::mem::replace(&mut list.oldest, slot);
        self.slots[slot as usize].older = NONE;
        self.slots[slot as usize].newer = newer;
        match newer {
            NONE => list.newest = slot,
            newer => self.slots[newer as usize].older = slot,
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
