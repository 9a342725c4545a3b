//! Which slot an expert lives in: a pure policy over numbers, without bytes, threads or time.
//!
//! Slots that keep experts are in lists, one for each layer, and of a list the least recently used
//! expert leaves. So a layer finds some of its experts again however many the other layers want in
//! between. In addition, lists of a class share staging slots, which experts pass through without being kept.
//!
//! The bank requests a schedule of a whole visit at once: hits first, then each miss with the slot it
//! takes, and the earlier step that must have left that slot where a visit wants more experts than
//! there are slots. So what happens depends on the order of visits alone, never on which read lands
//! first, and the simulator, which runs this same code, counts what the live bank counts.
//!
//! What none but drafted rows want is on trial (`trials`) until the rows are [settled](Cache::settle).

mod trials;

use compute::Trial;

/// Says that there is none.
const NONE: u32 = u32::MAX;

/// Rows up to which what is read is kept: a decode step, a verification, a tool's short answer.
const KEPT_ROWS: usize = 32;

/// How slots are shared out. They are numbered class by class: the kept slots of its lists, list by list,
/// then its staging slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Slots that keep experts.
    pub lists: Vec<ListSize>,
    /// By class: slots that experts pass through.
    pub staging: Vec<usize>,
    /// By key: its list.
    pub list_of: Vec<u16>,
}

/// Slots whose contents replace each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSize {
    /// Whose staging slots it shares.
    pub class: u16,
    /// Slots that keep experts; may be none where there is staging.
    pub kept: usize,
}

/// One expert of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisitStep {
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
    /// Which rows want it.
    pub trial: Trial,
}

/// How a visit treats what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// A few tokens: what is read is kept in place of the least recently used that the visit itself does
    /// not use. The rest passes through.
    Keep,
    /// A prompt: nothing kept is replaced. The most used experts take slots that hold nothing.
    Sweep,
}

impl Manner {
    /// Of a visit for `rows` rows. More than a few are a prompt, which passes through; drafted rows are
    /// none of a prompt.
    pub fn of(rows: usize, trials: &[Trial]) -> Manner {
        let drafted = trials.iter().fold(0, |rows, trial| rows | trial.rows);
        let certain = rows.saturating_sub(drafted.count_ones() as usize);
        if certain <= KEPT_ROWS { Manner::Keep } else { Manner::Sweep }
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

/// Experts by slot, the least recently used of a list out first.
#[derive(Clone, Debug)]
pub struct Cache {
    /// By key: its slot, or [`NONE`].
    place: Vec<u32>,
    /// By key: its list.
    list_of: Vec<u16>,
    slots: Vec<CacheSlot>,
    lists: Vec<List>,
    /// By class: its staging slots.
    staging: Vec<Vec<u32>>,
    counts: Counts,
    visit: u64,
    /// Experts that are kept and that drafted rows alone wanted since the last verdict, with the
    /// rows.
    unsettled: Vec<(u32, Trial)>,
}

#[derive(Clone, Copy, Debug)]
struct CacheSlot {
    /// What it keeps; in a staging slot, what was read ahead into it.
    key: u32,
    staging: bool,
    /// Of a slot that is not for staging.
    list: u16,
    newer: u32,
    older: u32,
    /// Not to be given away; a kept slot is not in its list then.
    aside: bool,
    /// The last visit that used it, and the step in it.
    used: (u64, u32),
    /// Whether that visit used it for drafted rows alone.
    drafted: bool,
    /// Whether it was read for drafted rows alone, which may have been wrong.
    probation: bool,
}

impl CacheSlot {
    const BLANK: CacheSlot = CacheSlot {
        key: NONE,
        staging: false,
        list: 0,
        newer: NONE,
        older: NONE,
        aside: false,
        used: (0, 0),
        drafted: false,
        probation: false,
    };
}

#[derive(Clone, Debug)]
struct List {
    class: u16,
    /// Of the slots that hold something.
    newest: u32,
    oldest: u32,
    count: usize,
    /// Slots that hold nothing; the last is taken first.
    empty: Vec<u32>,
}

impl List {
    /// Slots that can be given away.
    fn slot_count(&self) -> usize {
        self.count + self.empty.len()
    }
}

impl Cache {
    /// A cache that keeps nothing yet.
    pub fn new(partition: Partition) -> Cache {
        let Partition { lists, staging, list_of } = partition;
        let list = |&ListSize { class, kept }: &ListSize| {
            assert!(kept + staging[class as usize] > 0, "a list without slots");
            let empty = Vec::with_capacity(kept);
            List { class, newest: NONE, oldest: NONE, count: 0, empty }
        };
        let mut cache = Cache {
            place: vec![NONE; list_of.len()],
            list_of,
            slots: Vec::new(),
            lists: lists.iter().map(list).collect(),
            staging: Vec::new(),
            counts: Counts::default(),
            visit: 0,
            unsettled: Vec::new(),
        };
        let mut lists_of = vec![Vec::new(); staging.len()];
        for (list, size) in lists.iter().enumerate() {
            lists_of[size.class as usize].push((list as u16, size.kept));
        }
        for (lists, staging) in lists_of.into_iter().zip(staging) {
            for (list, kept) in lists {
                for _ in 0..kept {
                    cache.lists[list as usize].empty.push(cache.slots.len() as u32);
                    cache.slots.push(CacheSlot { list, ..CacheSlot::BLANK });
                }
            }
            let first = cache.slots.len();
            cache.slots.resize(first + staging, CacheSlot { staging: true, ..CacheSlot::BLANK });
            cache.staging.push((first as u32..cache.slots.len() as u32).collect());
        }
        cache
    }

    /// Where an expert is kept.
    pub fn find(&self, key: u32) -> Option<u32> {
        Some(self.place[key as usize]).filter(|&slot| slot != NONE)
    }

    /// What a slot keeps.
    pub fn content(&self, slot: u32) -> Option<u32> {
        let CacheSlot { key, staging, .. } = self.slots[slot as usize];
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

    /// Schedules a visit: what is there first, in the order given, then what is not, what is certain
    /// before what is drafted, in the order of keys. `keys` are distinct and of one list, the most used
    /// first; `trials` are theirs, or empty if no row is drafted.
    pub fn visit(
        &mut self,
        keys: &[u32],
        trials: &[Trial],
        manner: Manner,
        steps: &mut Vec<VisitStep>,
    ) {
        assert!(trials.is_empty() || trials.len() == keys.len(), "trials of other experts");
        let trial_of = |index: usize| trials.get(index).copied().unwrap_or_default();
        steps.clear();
        self.visit += 1;
        let list = keys.first().map_or(0, |&key| self.list_of[key as usize] as usize);
        let in_list = |&key: &u32| self.list_of[key as usize] as usize == list;
        assert!(keys.iter().all(in_list), "a visit to several lists");
        let class = self.lists[list].class as usize;
        let has_staging = !self.staging[class].is_empty();
        // Without staging a prompt cannot pass through.
        let keeps = manner == Manner::Keep || !has_staging;
        for (index, &key) in keys.iter().enumerate() {
            let (slot, trial) = (self.place[key as usize], trial_of(index));
            if slot == NONE {
                continue;
            }
            if !trial.is_drafted() {
                self.slots[slot as usize].probation = false;
                if keeps {
                    self.detach(slot);
                    self.push_newest(slot);
                }
            }
            self.use_in(slot, steps.len(), trial);
            steps.push(VisitStep { key, slot, hit: true, staged: false, after: None, trial });
        }
        self.counts.hits += steps.len() as u64;
        self.counts.misses += (keys.len() - steps.len()) as u64;
        let first = steps.len();
        let missing = keys.iter().enumerate();
        let missing = missing.filter(|&(_, &key)| self.place[key as usize] == NONE);
        steps.extend(missing.map(|(index, &key)| {
            let (staged, trial) = (self.staged_in(key).is_some(), trial_of(index));
            VisitStep { key, slot: NONE, hit: false, staged, after: None, trial }
        }));
        self.forget_vain_guesses(&steps[first..]);
        // Reading ahead has no say in which misses are kept.
        let room = if keeps {
            steps[first..].sort_unstable_by_key(|step| (step.trial.depth, step.key));
            // All slots that this visit has not used yet.
            self.lists[list].slot_count() - first
        } else {
            steps[first..].sort_by_key(|step| step.trial.depth);
            self.lists[list].empty.len()
        };
        for step in steps[first..].iter_mut().take(room) {
            step.slot = self.keep(step.key, step.trial);
        }
        // What is staged and stays there comes first: others may need its slot after it.
        steps[first..].sort_unstable_by_key(|step| {
            (step.slot != NONE || !step.staged, step.trial.depth, step.key)
        });
        for index in first..steps.len() {
            let VisitStep { key, slot, staged, trial, .. } = steps[index];
            let slot = match slot {
                NONE if staged => self.unstage(key),
                NONE if has_staging => self.next_staging(class),
                // In place of another of this visit, once that was used.
                NONE => self.keep(key, trial),
                kept => kept,
            };
            self.counts.staged += u64::from(staged);
            steps[index].slot = slot;
            steps[index].after = self.last_step(slot);
            self.use_in(slot, index, trial);
        }
        self.note_trials(steps, keeps);
    }

    /// The staging slots that an expert may pass through.
    fn staging_of(&self, key: u32) -> &[u32] {
        let list = self.list_of[key as usize] as usize;
        &self.staging[self.lists[list].class as usize]
    }

    /// The staging slot that an expert was read ahead into.
    fn staged_in(&self, key: u32) -> Option<u32> {
        self.staging_of(key).iter().copied().find(|&slot| self.slots[slot as usize].key == key)
    }

    /// Takes an expert out of the staging slot that it was read ahead into: the slot.
    fn unstage(&mut self, key: u32) -> u32 {
        let slot = self.staged_in(key).unwrap_or(NONE);
        self.slots[slot as usize].key = NONE;
        slot
    }

    fn forget_vain_guesses(&mut self, missing: &[VisitStep]) {
        for slot in self.slots.iter_mut().filter(|slot| slot.staging && slot.key != NONE) {
            if !missing.iter().any(|step| step.key == slot.key) {
                slot.key = NONE;
                // Reads into it may be under way: the visit takes others first.
                slot.used = (self.visit - 1, u32::MAX);
            }
        }
    }

    /// Keeps an expert in place of the least recently used of its list: the slot. If it was read ahead,
    /// that is the slot it was read into, and the other one becomes a staging slot.
    fn keep(&mut self, key: u32, trial: Trial) -> u32 {
        let list = self.list_of[key as usize] as usize;
        let taken = self.take_oldest(list, key);
        let Some(staged) = self.staged_in(key) else {
            self.slots[taken as usize].probation = trial.is_drafted();
            return taken;
        };
        self.detach(taken);
        let other = &mut self.slots[taken as usize];
        (other.key, other.staging, other.probation) = (NONE, true, false);
        let own = &mut self.slots[staged as usize];
        (own.key, own.staging, own.list) = (key, false, list as u16);
        own.probation = trial.is_drafted();
        self.push_newest(staged);
        self.place[key as usize] = staged;
        let class = self.lists[list].class as usize;
        let staging = self.staging[class].iter_mut();
        staging.filter(|slot| **slot == staged).for_each(|slot| *slot = taken);
        staged
    }

    /// Gives a staging slot to an expert that may be wanted next. `is_free` is called with a slot and the
    /// step of the last visit that used it.
    pub fn stage(&mut self, key: u32, is_free: impl Fn(u32, Option<u32>) -> bool) -> Option<u32> {
        if self.place[key as usize] != NONE || self.staged_in(key).is_some() {
            return None;
        }
        let blank = |&slot: &u32| {
            let CacheSlot { key, aside, .. } = self.slots[slot as usize];
            key == NONE && !aside && is_free(slot, self.last_step(slot))
        };
        let slot = self.staging_of(key).iter().copied().find(blank)?;
        self.slots[slot as usize].key = key;
        Some(slot)
    }

    /// A read ahead into a slot failed.
    pub fn clear_staged(&mut self, slot: u32) {
        if self.slots[slot as usize].staging {
            self.slots[slot as usize].key = NONE;
        }
    }

    /// An expert did not come: its slot holds nothing.
    pub fn forget(&mut self, key: u32) {
        let slot = std::mem::replace(&mut self.place[key as usize], NONE);
        if slot != NONE {
            self.detach(slot);
            let CacheSlot { key, list, probation, .. } = &mut self.slots[slot as usize];
            (*key, *probation) = (NONE, false);
            self.lists[*list as usize].empty.push(slot);
        }
    }

    /// Something may still be written to a slot: it is not given away before it is [put
    /// back](Cache::put_back), unless there is no other. What it keeps is forgotten.
    pub fn set_aside(&mut self, slot: u32) {
        let CacheSlot { key, list, staging, aside, .. } = self.slots[slot as usize];
        if staging {
            self.slots[slot as usize].key = NONE;
        } else if key != NONE {
            self.forget(key);
        }
        if aside || (!staging && self.is_last(list)) {
            return;
        }
        self.slots[slot as usize].aside = true;
        if !staging {
            self.lists[list as usize].empty.retain(|&other| other != slot);
        }
    }

    /// Whether one slot of a list is all that its experts have.
    fn is_last(&self, list: u16) -> bool {
        let list = &self.lists[list as usize];
        let mut staging = self.staging[list.class as usize].iter();
        list.slot_count() == 1 && staging.all(|&slot| self.slots[slot as usize].aside)
    }

    /// A slot that was taken out of use can be used again.
    pub fn put_back(&mut self, slot: u32) {
        let CacheSlot { list, staging, aside, .. } = self.slots[slot as usize];
        if !aside {
            return;
        }
        self.slots[slot as usize].aside = false;
        if !staging {
            self.lists[list as usize].empty.push(slot);
        }
    }

    fn use_in(&mut self, slot: u32, step: usize, trial: Trial) {
        let slot = &mut self.slots[slot as usize];
        (slot.used, slot.drafted) = ((self.visit, step as u32), trial.is_drafted());
    }

    /// An empty slot of a list or its least recently used, now the newest and `key`'s.
    fn take_oldest(&mut self, list: usize, key: u32) -> u32 {
        let slot = self.lists[list].empty.pop().unwrap_or_else(|| {
            let slot = self.oldest(list);
            self.detach(slot);
            self.place[self.slots[slot as usize].key as usize] = NONE;
            slot
        });
        self.push_newest(slot);
        self.slots[slot as usize].key = key;
        self.place[key as usize] = slot;
        slot
    }

    /// The least recently used slot of a list that the visit has no use for. If it uses all, one that is
    /// drafted goes before one that is certain.
    fn oldest(&self, list: usize) -> u32 {
        let oldest = self.lists[list].oldest;
        assert!(oldest != NONE, "a list without slots");
        let is_used = |slot: &u32| self.slots[*slot as usize].used.0 == self.visit;
        if !is_used(&oldest) {
            return oldest;
        }
        // What is drafted and was found has not moved: it may be anywhere.
        let newer = |&slot: &u32| Some(self.slots[slot as usize].newer).filter(|&s| s != NONE);
        let mut slots = std::iter::successors(Some(oldest), newer);
        let unused = slots.clone().find(|slot| !is_used(slot));
        let drafted = || slots.find(|&slot| self.slots[slot as usize].drafted);
        unused.or_else(drafted).unwrap_or(oldest)
    }

    /// The staging slot that was used longest ago.
    fn next_staging(&self, class: usize) -> u32 {
        let slots = self.staging[class].iter().copied();
        let turn = |&slot: &u32| (self.slots[slot as usize].aside, self.slots[slot as usize].used);
        slots.min_by_key(turn).unwrap_or(NONE)
    }

    fn detach(&mut self, slot: u32) {
        let CacheSlot { list, newer, older, .. } = self.slots[slot as usize];
        let list = &mut self.lists[list as usize];
        list.count -= 1;
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
        list.count += 1;
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
        list.count += 1;
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
