//! The memory of all sequences: one arena for each shape of layer, and which sequence may write what.
//!
//! [`Memory::prepare`] is the only place where pages and slots are taken; what has to be copied then, the next operation on
//! the arena copies first. A forward pass after it only writes what the sequence owns. Sequences live outside, so that a step can borrow an arena mutably together with
//! the page lists of several sequences.
//! Invariant: a refused operation changes nothing.

use std::sync::Arc;

use compute::Store;
use compute::memory::{KvArena, RecurrentArena, slot_bytes};

use crate::pool::{Lease, Pool, Shortage};
use crate::sequence::Copy;
use crate::{
    Capacity, CodeId, Error, LayerKind, LayerState, Layout, PageGroup, Pages, Result, Sequence,
    Slot,
};

/// All arenas of a model, sized once.
#[derive(Debug)]
pub struct Memory {
    layers: Vec<LayerPlace>,
    code: CodeId,
    is_rewindable: bool,
    kv: Vec<KvArena>,
    /// The free pages of each KV arena.
    page_pools: Vec<Arc<Pool>>,
    recurrent: Vec<SlotPool>,
}

/// Where a layer keeps its state.
#[derive(Debug)]
enum LayerPlace {
    Own {
        /// For each code, where its groups of pages are.
        pages: Vec<PagesPlace>,
        /// The arena of its recurrent state.
        recurrent: Option<usize>,
    },
    Shared(usize),
}

#[derive(Debug)]
struct PagesPlace {
    groups: Vec<GroupPlace>,
    has_recent: bool,
}

/// Where the pages of a group are, and when they come and go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupPlace {
    pub(crate) arena: usize,
    pub(crate) shape: usize,
    pub(crate) page_bytes: usize,
    pub(crate) window: Option<usize>,
    pub(crate) rate: usize,
}

#[derive(Debug)]
struct SlotPool {
    bytes: RecurrentArena,
    pool: Arc<Pool>,
}

/// Pages that were taken, by arena and shape.
type Taken = Vec<Vec<std::vec::IntoIter<Lease>>>;

impl Memory {
    /// Takes [`Layout::memory_bytes`] from a backend's memory: the arenas of its pages, and one for each distinct size of
    /// recurrent state.
    pub fn new(layout: &Layout, capacity: &Capacity, store: &dyn Store) -> Result<Memory> {
        let arenas = layout.page_arenas(capacity);
        let group_place = |group: &PageGroup| {
            let shapes = arenas.iter().map(|(arena, _)| arena.shapes());
            let mut places = shapes.enumerate().filter_map(|(arena, shapes)| {
                let shape = shapes.iter().position(|shape| *shape == group.pages)?;
                Some((arena, shape))
            });
            let (arena, shape) = places.next().expect("an arena for each shape");
            let page_bytes = group.pages.bytes();
            GroupPlace { arena, shape, page_bytes, window: group.window, rate: group.rate }
        };
        let mut states: Vec<(usize, usize)> = Vec::new(); // floats, slots
        let mut slots_of = |floats: usize| {
            let index = states.iter().position(|state| state.0 == floats).unwrap_or_else(|| {
                states.push((floats, 0));
                states.len() - 1
            });
            states[index].1 = states[index].1.saturating_add(capacity.slots());
            index
        };
        let layers = layout.layers().iter().map(|kind| match kind {
            LayerKind::Own { pages, floats } => LayerPlace::Own {
                pages: Vec::from_iter(pages.iter().map(|pages| PagesPlace {
                    groups: pages.groups().map(group_place).collect(),
                    has_recent: pages.recent.is_some(),
                })),
                recurrent: (*floats > 0).then(|| slots_of(*floats)),
            },
            LayerKind::Shared(target) => LayerPlace::Shared(*target),
        });
        let layers = layers.collect();

        let (mut kv, mut page_pools) = (Vec::new(), Vec::new());
        for (shape, count) in arenas {
            let sizes: Vec<usize> =
                (0..shape.shapes().len()).map(|i| shape.chunk_pages(i)).collect();
            let pages = count.saturating_mul(sizes.iter().copied().max().unwrap_or(1));
            id_count("KV pages", pages)?;
            let pool = Pool::new(sizes, id_count("KV pages", count)?);
            kv.push(store.kv(&shape, count).map_err(|source| {
                let bytes = shape.chunk_bytes().saturating_mul(count);
                Error::Map { what: "KV pages", bytes, source: source.into() }
            })?);
            page_pools.push(pool);
        }
        let map_recurrent = |&(floats, count): &(usize, usize)| {
            let capacity = id_count("recurrent slots", count)?;
            let bytes = store.recurrent(floats, count).map_err(|source| {
                let bytes = slot_bytes(floats).saturating_mul(count);
                Error::Map { what: "recurrent slots", bytes, source: source.into() }
            })?;
            Ok(SlotPool { bytes, pool: Pool::new(vec![1], capacity) })
        };
        let recurrent = states.iter().map(map_recurrent).collect::<Result<_>>()?;
        let (code, is_rewindable) = (layout.code(), layout.is_rewindable());
        Ok(Memory { layers, code, is_rewindable, kv, page_pools, recurrent })
    }

    /// An empty sequence. It takes its recurrent slots, zeroed, and no pages yet.
    pub fn sequence(&mut self) -> Result<Sequence> {
        self.sequence_of(self.code)
    }

    /// An empty sequence of some code.
    ///
    /// # Panics
    /// If the layout has no such code.
    pub fn sequence_of(&mut self, code: CodeId) -> Result<Sequence> {
        let mut slots = vec![0; self.recurrent.len()];
        for place in &self.layers {
            if let LayerPlace::Own { recurrent: Some(arena), .. } = *place {
                slots[arena] += 1;
            }
        }
        let mut slots = self.take_slots(&slots)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for place in &self.layers {
            layers.push(match place {
                LayerPlace::Own { pages, recurrent } => {
                    let place = (!pages.is_empty()).then(|| &pages[code.0]);
                    let groups = place.map_or(&[][..], |place| &place.groups);
                    let slot = recurrent.map(|arena| {
                        let bytes = &mut self.recurrent[arena].bytes;
                        let slot = Slot::new(arena, bytes.slot_bytes(), &mut slots[arena]);
                        bytes.clear(slot.id());
                        slot
                    });
                    LayerState::Own {
                        pages: groups.iter().map(|&place| Pages::new(place)).collect(),
                        has_recent: place.is_some_and(|place| place.has_recent),
                        slot,
                    }
                }
                LayerPlace::Shared(target) => LayerState::Shared(*target),
            });
        }
        Ok(Sequence { layers, code, len: 0, head_len: 0, prepared: 0 })
    }

    /// The code of sequences that ask for none.
    pub fn code(&self) -> CodeId {
        self.code
    }

    /// Makes room for `count` more positions and makes everything they will write belong to this sequence alone.
    /// If pages or slots run out, nothing is changed.
    pub fn prepare(&mut self, sequence: &mut Sequence, count: usize) -> Result<()> {
        // Since it was prepared no other sequence can have come to share what it will write.
        if count > 0 && sequence.prepared == count {
            return Ok(());
        }
        let copies = self.own(sequence, count)?;
        self.copy(&copies);
        Ok(())
    }

    /// Whether sequences could each grow by so many positions, `step` at a time, if no other sequence held any pages.
    /// (Recurrent slots are not looked at: a sequence never takes more of them.)
    pub fn can_hold(&self, sequences: &[(&Sequence, usize)], step: usize) -> bool {
        // For each arena and shape: chunks that they hold pages in, pages of those, and pages that they will hold.
        let mut needs: Vec<Vec<Need>> = Vec::new();
        for pool in &self.page_pools {
            let (chunks, _) = pool.chunks();
            let need = |shape| Need { held: vec![0; chunks], needed: 0, size: pool.size(shape) };
            needs.push((0..pool.kinds()).map(need).collect());
        }
        for &(sequence, count) in sequences {
            let (len, end) = (sequence.len, sequence.len.saturating_add(count));
            for pages in sequence.layers.iter().flat_map(LayerState::pages) {
                let table = pages.table();
                let need = &mut needs[table.arena][table.shape];
                need.needed = need.needed.saturating_add(pages.growth(len, end, step));
                for page in table.pages {
                    // Those that several share count once.
                    let (chunk, place) = (page.0 as usize / need.size, page.0 as usize % need.size);
                    need.held[chunk] |= 1 << place;
                }
            }
        }
        let fits = |(needs, pool): (&Vec<Need>, &Arc<Pool>)| {
            let chunks = needs.iter().fold(0, |sum: usize, need| sum.saturating_add(need.chunks()));
            chunks <= pool.chunks().0
        };
        needs.iter().zip(&self.page_pools).all(fits)
    }

    /// The bookkeeping of [`Memory::prepare`]: says which contents have to be copied.
    fn own(&self, sequence: &mut Sequence, count: usize) -> Result<Vec<Copy>> {
        assert_eq!(sequence.layers.len(), self.layers.len(), "a sequence of another model");
        let mut copies = Vec::new();
        if count == 0 {
            sequence.prepared = 0;
            return Ok(copies);
        }
        let (len, end) = (sequence.len, sequence.len.saturating_add(count));

        let mut pages: Vec<Vec<usize>> =
            self.page_pools.iter().map(|pool| vec![0; pool.kinds()]).collect();
        let mut slots = vec![0; self.recurrent.len()];
        for state in &sequence.layers {
            for layer in state.pages() {
                pages[layer.arena()][layer.shape()] += layer.missing(len, end);
            }
            state.slot().into_iter().for_each(|slot| slots[slot.arena()] += slot.missing());
        }
        let mut pages = self.take_pages(&pages)?;
        let mut slots = self.take_slots(&slots)?;

        // Nothing can fail from here on.
        for state in &mut sequence.layers {
            for layer in state.pages_mut() {
                let fresh = &mut pages[layer.arena()][layer.shape()];
                layer.grow(len, end, fresh, &mut copies);
            }
            if let Some(slot) = state.slot_mut() {
                slot.own(&mut slots[slot.arena()], &mut copies);
            }
        }
        sequence.prepared = count;
        Ok(copies)
    }

    fn copy(&mut self, copies: &[Copy]) {
        for copy in copies {
            match *copy {
                Copy::Page { arena, shape, from, to } => self.kv[arena].copy_page(shape, from, to),
                Copy::Slot { arena, from, to } => self.recurrent_mut(arena).copy(from, to),
            }
        }
    }

    /// `counts[i][k]` pages of shape `k` of arena `i`, or none at all.
    fn take_pages(&self, counts: &[Vec<usize>]) -> Result<Taken> {
        let take = |(pool, counts): (&Arc<Pool>, &Vec<usize>)| match pool.take(counts) {
            Ok(leases) => Ok(leases.into_iter().map(Vec::into_iter).collect()),
            Err(Shortage { wanted, free }) => Err(Error::OutOfPages { needed: wanted, free }),
        };
        self.page_pools.iter().zip(counts).map(take).collect()
    }

    /// `counts[i]` slots of arena `i`, or none at all.
    fn take_slots(&self, counts: &[usize]) -> Result<Vec<std::vec::IntoIter<Lease>>> {
        let take = |(arena, &count): (&SlotPool, &usize)| match arena.pool.take(&[count]) {
            Ok(mut leases) => Ok(leases.remove(0).into_iter()),
            Err(Shortage { wanted, free }) => Err(Error::OutOfSlots { needed: wanted, free }),
        };
        self.recurrent.iter().zip(counts).map(take).collect()
    }

    /// Pages, an arena for each shape; the index is [`PageTable::arena`](compute::PageTable::arena).
    pub fn kv(&self) -> &[KvArena] {
        &self.kv
    }

    /// Pages, for the step that appends to them.
    pub fn kv_mut(&mut self) -> &mut [KvArena] {
        &mut self.kv
    }

    /// Slots of one size; the index comes with [`Sequence::recurrent`].
    pub fn recurrent(&self, arena: usize) -> &RecurrentArena {
        &self.recurrent[arena].bytes
    }

    /// Slots of one size, for the step that updates them.
    pub fn recurrent_mut(&mut self, arena: usize) -> &mut RecurrentArena {
        &mut self.recurrent[arena].bytes
    }

    /// How many recurrent arenas there are.
    pub fn recurrent_count(&self) -> usize {
        self.recurrent.len()
    }

    /// [`Layout::is_rewindable`] of the layout it was made for.
    pub fn is_rewindable(&self) -> bool {
        self.is_rewindable
    }

    /// Pages of the first shape of a KV arena that are free.
    #[cfg(test)]
    pub(crate) fn free_pages(&self, arena: usize) -> usize {
        self.page_pools[arena].free(0)
    }

    /// Slots of a recurrent arena that are free.
    #[cfg(test)]
    pub(crate) fn free_slots(&self, arena: usize) -> usize {
        self.recurrent[arena].pool.free(0)
    }

    /// Chunks of pages of all KV arenas, and how many of them are free: pages, where sequences have one code.
    pub fn pages(&self) -> (usize, usize) {
        let chunks = self.page_pools.iter().map(|pool| pool.chunks());
        chunks.fold((0, 0), |(all, free), chunks| (all + chunks.0, free + chunks.1))
    }

    /// Recurrent states there is room for, each of all recurrent layers, and how many of them are free.
    pub fn states(&self) -> (usize, usize) {
        let mut layers = vec![0usize; self.recurrent.len()];
        for place in &self.layers {
            if let LayerPlace::Own { recurrent: Some(arena), .. } = *place {
                layers[arena] += 1;
            }
        }
        let arenas = self.recurrent.iter().zip(&layers);
        let least = |count: &dyn Fn(&SlotPool) -> usize| {
            arenas.clone().map(|(arena, &layers)| count(arena) / layers.max(1)).min().unwrap_or(0)
        };
        (least(&|arena| arena.bytes.slot_count()), least(&|arena| arena.pool.free(0)))
    }

    /// Bytes of all arenas.
    pub fn bytes(&self) -> usize {
        let kv = self.kv.iter().map(KvArena::bytes);
        let recurrent = self.recurrent.iter();
        let recurrent = recurrent.map(|arena| arena.bytes.slot_count() * arena.bytes.slot_bytes());
        kv.chain(recurrent).sum()
    }

    /// Bytes of the chunks and slots that are free.
    pub fn free_bytes(&self) -> usize {
        let kv = self.kv.iter().zip(&self.page_pools);
        let kv = kv.map(|(arena, pool)| pool.chunks().1 * arena.shape().chunk_bytes());
        let recurrent = self.recurrent.iter();
        let recurrent = recurrent.map(|arena| arena.pool.free(0) * arena.bytes.slot_bytes());
        kv.chain(recurrent).sum()
    }

    /// Makes all of it resident now.
    pub fn prefault(&mut self) {
        self.kv.iter_mut().for_each(KvArena::prefault);
        self.recurrent.iter_mut().for_each(|arena| arena.bytes.prefault());
    }
}

/// Pages of one shape that some sequences hold and will hold.
struct Need {
    /// For each chunk a bit for each page.
    held: Vec<u64>,
    /// Pages beyond those.
    needed: usize,
    /// Pages of a chunk.
    size: usize,
}

impl Need {
    /// Chunks of this shape that it takes.
    fn chunks(&self) -> usize {
        let (mut chunks, mut pages) = (0, 0);
        for held in self.held.iter().filter(|held| **held != 0) {
            (chunks, pages) = (chunks + 1, pages + held.count_ones() as usize);
        }
        let room = chunks * self.size - pages;
        chunks.saturating_add(self.needed.saturating_sub(room).div_ceil(self.size))
    }
}

fn id_count(what: &'static str, count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| Error::TooMany { what, count })
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
