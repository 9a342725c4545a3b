//! The memory of all sequences: one arena for each shape of layer, and which sequence may write what.
//!
//! [`Memory::prepare`] is the only place where pages and slots are taken; what has to be copied then, the next operation on
//! the arena copies first. A forward pass after it only writes what the sequence owns. Sequences live outside, so that a step can borrow an arena mutably together with
//! the page lists of several sequences.
//! Invariant: a refused operation changes nothing.

use std::sync::Arc;

use compute::Store;
use compute::memory::{KvArena, PageShape, RecurrentArena, slot_bytes};

use crate::pool::{Lease, Pool};
use crate::sequence::Copy;
use crate::{Capacity, Error, LayerKind, LayerState, Layout, Pages, Result, Sequence, Slot};

/// All arenas of a model, sized once.
#[derive(Debug)]
pub struct Memory {
    layers: Vec<Place>,
    kv: Vec<KvArena>,
    /// The free pages of each KV arena.
    page_pools: Vec<Arc<Pool>>,
    recurrent: Vec<Arena>,
}

/// Where a layer keeps its state.
#[derive(Clone, Copy, Debug)]
enum Place {
    Kv { arena: usize, window: Option<usize> },
    Recurrent { arena: usize },
    Shared(usize),
}

#[derive(Debug)]
struct Arena {
    bytes: RecurrentArena,
    pool: Arc<Pool>,
}

impl Memory {
    /// Takes [`Layout::memory_bytes`] from a backend's memory: an arena for each distinct shape of pages and for each distinct
    /// size of recurrent state.
    pub fn new(layout: &Layout, capacity: &Capacity, store: &dyn Store) -> Result<Memory> {
        let mut page_shapes: Vec<(&PageShape, usize)> = Vec::new(); // shape, pages
        let mut recurrent_shapes: Vec<(usize, usize)> = Vec::new(); // floats, slots
        let mut layers = Vec::with_capacity(layout.layers().len());
        for kind in layout.layers() {
            layers.push(match kind {
                LayerKind::Kv { pages, window } => {
                    let arena = add_shape(&mut page_shapes, pages, capacity.pages(*window));
                    Place::Kv { arena, window: *window }
                }
                LayerKind::Recurrent { floats } => {
                    let arena = add_shape(&mut recurrent_shapes, *floats, capacity.slots());
                    Place::Recurrent { arena }
                }
                LayerKind::Shared(target) => Place::Shared(*target),
            });
        }

        let (mut kv, mut page_pools) = (Vec::new(), Vec::new());
        for (shape, count) in page_shapes {
            page_pools.push(Pool::new(id_count("KV pages", count)?));
            kv.push(store.kv(shape, count).map_err(|source| {
                let bytes = shape.bytes().saturating_mul(count);
                Error::Map { what: "KV pages", bytes, source: source.into() }
            })?);
        }
        let map_recurrent = |&(floats, count): &(usize, usize)| {
            let capacity = id_count("recurrent slots", count)?;
            let bytes = store.recurrent(floats, count).map_err(|source| {
                let bytes = slot_bytes(floats).saturating_mul(count);
                Error::Map { what: "recurrent slots", bytes, source: source.into() }
            })?;
            Ok(Arena { bytes, pool: Pool::new(capacity) })
        };
        let recurrent = recurrent_shapes.iter().map(map_recurrent).collect::<Result<_>>()?;
        Ok(Memory { layers, kv, page_pools, recurrent })
    }

    /// An empty sequence. It takes its recurrent slots, zeroed, and no pages yet.
    pub fn sequence(&mut self) -> Result<Sequence> {
        let mut slots = vec![0; self.recurrent.len()];
        for place in &self.layers {
            if let Place::Recurrent { arena } = *place {
                slots[arena] += 1;
            }
        }
        let mut slots = self.take_slots(&slots)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for place in &self.layers {
            layers.push(match *place {
                Place::Kv { arena, window } => {
                    let page_bytes = self.kv[arena].page_bytes();
                    LayerState::Kv(Pages::new(arena, page_bytes, window))
                }
                Place::Recurrent { arena } => {
                    let bytes = &mut self.recurrent[arena].bytes;
                    let slot = Slot::new(arena, bytes.slot_bytes(), &mut slots[arena]);
                    bytes.clear(slot.id());
                    LayerState::Recurrent(slot)
                }
                Place::Shared(target) => LayerState::Shared(target),
            });
        }
        Ok(Sequence { layers, len: 0, head_len: 0, prepared: 0 })
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
        let page_counts = self.kv.iter().map(KvArena::page_count);
        let mut held: Vec<Vec<bool>> =
            page_counts.clone().map(|page_count| vec![false; page_count]).collect();
        let mut needed = vec![0usize; self.kv.len()];
        for &(sequence, count) in sequences {
            let (len, end) = (sequence.len, sequence.len.saturating_add(count));
            for pages in sequence.layers.iter().filter_map(LayerState::pages) {
                let table = pages.table();
                needed[table.arena] += pages.growth(len, end, step);
                for page in table.pages {
                    // Those that several share count once.
                    let held = &mut held[table.arena][page.0 as usize];
                    needed[table.arena] += usize::from(!*held);
                    *held = true;
                }
            }
        }
        needed.into_iter().zip(page_counts).all(|(needed, page_count)| needed <= page_count)
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

        let mut pages = vec![0; self.kv.len()];
        let mut slots = vec![0; self.recurrent.len()];
        for state in &sequence.layers {
            match state {
                LayerState::Kv(layer) => pages[layer.arena()] += layer.missing(len, end),
                LayerState::Recurrent(slot) => slots[slot.arena()] += slot.missing(),
                LayerState::Shared(_) => {}
            }
        }
        let mut pages = self.take_pages(&pages)?;
        let mut slots = self.take_slots(&slots)?;

        // Nothing can fail from here on.
        for state in &mut sequence.layers {
            match state {
                LayerState::Kv(layer) => {
                    layer.grow(len, end, &mut pages[layer.arena()], &mut copies);
                }
                LayerState::Recurrent(slot) => slot.own(&mut slots[slot.arena()], &mut copies),
                LayerState::Shared(_) => {}
            }
        }
        sequence.prepared = count;
        Ok(copies)
    }

    fn copy(&mut self, copies: &[Copy]) {
        for copy in copies {
            match *copy {
                Copy::Page { arena, from, to } => self.kv[arena].copy_page(from, to),
                Copy::Slot { arena, from, to } => self.recurrent_mut(arena).copy(from, to),
            }
        }
    }

    /// `counts[i]` pages of arena `i`, or none at all.
    fn take_pages(&self, counts: &[usize]) -> Result<Vec<std::vec::IntoIter<Lease>>> {
        let take = |(pool, &needed): (&Arc<Pool>, &usize)| {
            let leases = pool.take(needed);
            Ok(leases.map_err(|free| Error::OutOfPages { needed, free })?.into_iter())
        };
        self.page_pools.iter().zip(counts).map(take).collect()
    }

    /// `counts[i]` slots of arena `i`, or none at all.
    fn take_slots(&self, counts: &[usize]) -> Result<Vec<std::vec::IntoIter<Lease>>> {
        let take = |(arena, &needed): (&Arena, &usize)| {
            let leases = arena.pool.take(needed);
            Ok(leases.map_err(|free| Error::OutOfSlots { needed, free })?.into_iter())
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
        self.layers.iter().all(|place| match place {
            Place::Kv { window, .. } => window.is_none(),
            Place::Recurrent { .. } => false,
            Place::Shared(_) => true,
        })
    }

    /// Pages of a KV arena that are free.
    pub fn free_pages(&self, arena: usize) -> usize {
        self.page_pools[arena].free()
    }

    /// Slots of a recurrent arena that are free.
    #[cfg(test)]
    pub(crate) fn free_slots(&self, arena: usize) -> usize {
        self.recurrent[arena].pool.free()
    }

    /// Pages of all KV arenas, and how many of them are free.
    pub fn pages(&self) -> (usize, usize) {
        let all = self.kv.iter().map(KvArena::page_count).sum();
        (all, self.page_pools.iter().map(|pool| pool.free()).sum())
    }

    /// Recurrent states there is room for, each of all recurrent layers, and how many of them are free.
    pub fn states(&self) -> (usize, usize) {
        let mut layers = vec![0usize; self.recurrent.len()];
        for place in &self.layers {
            if let Place::Recurrent { arena } = *place {
                layers[arena] += 1;
            }
        }
        let arenas = self.recurrent.iter().zip(&layers);
        let least = |count: &dyn Fn(&Arena) -> usize| {
            arenas.clone().map(|(arena, &layers)| count(arena) / layers.max(1)).min().unwrap_or(0)
        };
        (least(&|arena| arena.bytes.slot_count()), least(&|arena| arena.pool.free()))
    }

    /// Bytes of all arenas.
    pub fn bytes(&self) -> usize {
        let kv = self.kv.iter().map(|arena| arena.page_count() * arena.page_bytes());
        let recurrent = self.recurrent.iter();
        let recurrent = recurrent.map(|arena| arena.bytes.slot_count() * arena.bytes.slot_bytes());
        kv.chain(recurrent).sum()
    }

    /// Bytes of the pages and slots that are free.
    pub fn free_bytes(&self) -> usize {
        let kv = self.kv.iter().zip(&self.page_pools);
        let kv = kv.map(|(arena, pool)| pool.free() * arena.page_bytes());
        let recurrent = self.recurrent.iter();
        let recurrent = recurrent.map(|arena| arena.pool.free() * arena.bytes.slot_bytes());
        kv.chain(recurrent).sum()
    }

    /// Makes all of it resident now.
    pub fn prefault(&mut self) {
        self.kv.iter_mut().for_each(KvArena::prefault);
        self.recurrent.iter_mut().for_each(|arena| arena.bytes.prefault());
    }
}

/// Index of the arena of this shape, which grows by `count`.
fn add_shape<S: PartialEq>(shapes: &mut Vec<(S, usize)>, shape: S, count: usize) -> usize {
    let index = shapes.iter().position(|(known, _)| *known == shape).unwrap_or_else(|| {
        shapes.push((shape, 0));
        shapes.len() - 1
    });
    shapes[index].1 = shapes[index].1.saturating_add(count);
    index
}

fn id_count(what: &'static str, count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| Error::TooMany { what, count })
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
