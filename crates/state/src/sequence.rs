//! One sequence: its length, and for each layer the pages or the slot that hold what it remembers.
//!
//! Pages and slots are shared by reference: [`Sequence::fork`] is both "branch here" and "checkpoint here".
//! A sequence holds no bytes itself and never copies any; that is [`Memory::prepare`](crate::Memory::prepare)'s
//! work, before each step.
//! Invariant: the pages of a KV layer cover every position from the first kept block up to the length, and pages
//! beyond the length are never shared.

use std::sync::Arc;

use compute::memory::{BLOCK, PageId, SlotId};
use compute::{PageTable, RecentPages};

use crate::layout::window_pages;
use crate::memory::GroupPlace;
use crate::pool::Lease;
use crate::{CodeId, Error, Result};

/// What a sequence remembers.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) layers: Vec<LayerState>,
    pub(crate) code: CodeId,
    pub(crate) len: usize,
    /// Positions that the layers of a draft head have taken in: never more than `len`.
    pub(crate) head_len: usize,
    /// Positions that may be written now, after `len`.
    pub(crate) prepared: usize,
}

/// What one layer remembers.
#[derive(Debug)]
pub enum LayerState {
    /// Pages and a recurrent state, as far as the layer has such.
    Own {
        /// Keys and values; the newest of them, if they are kept twice; other groups.
        pages: Vec<Pages>,
        /// Whether the second group has the newest keys and values.
        has_recent: bool,
        /// The recurrent state.
        slot: Option<Slot>,
    },
    /// The keys and values of another layer.
    Shared(usize),
}

/// One group of pages of a layer: consecutive blocks of entries, a page each. An entry is of one position, or of several.
#[derive(Debug)]
pub struct Pages {
    pub(crate) place: GroupPlace,
    first_block: usize,
    ids: Vec<PageId>,
    /// `leases[i]` is the right to use `ids[i]`.
    leases: Vec<Arc<Lease>>,
}

/// The recurrent state of one layer.
#[derive(Debug)]
pub struct Slot {
    arena: usize,
    slot_bytes: usize,
    lease: Arc<Lease>,
}

/// A page or slot whose contents must move to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    Page { arena: usize, shape: usize, from: PageId, to: PageId },
    Slot { arena: usize, from: SlotId, to: SlotId },
}

impl Sequence {
    /// Positions that were written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions whose keys and values the layers of a draft head hold; the target's layers hold all of them.
    pub fn head_len(&self) -> usize {
        self.head_len
    }

    /// Counts positions that a draft head has taken in.
    ///
    /// Their pages are there since the target wrote its own. Some may be shared with forks, and are written all
    /// the same: a fork holds the same tokens there, so its head would write the same values. (That is why a
    /// sequence should be taken in before it is forked: a fork that does not know of what its twin wrote would
    /// fill the gap with nothing.)
    ///
    /// # Panics
    /// If the sequence is shorter.
    pub fn set_head_len(&mut self, len: usize) {
        assert!(len <= self.len, "a head took in {len} positions of {}", self.len);
        self.head_len = len;
    }

    /// How it keeps keys and values.
    pub fn code(&self) -> CodeId {
        self.code
    }

    /// What each layer remembers.
    pub fn layers(&self) -> &[LayerState] {
        &self.layers
    }

    /// The pages a KV layer looks at, its own or those of the layer it shares with.
    ///
    /// # Panics
    /// If the layer has no pages.
    pub fn kv(&self, layer: usize) -> PageTable<'_> {
        match &self.layers[layer] {
            LayerState::Own { pages, .. } => match pages.first() {
                Some(keys) => keys.table(),
                None => panic!("layer {layer} is recurrent, it has no pages"),
            },
            LayerState::Shared(target) => self.kv(*target),
        }
    }

    /// The pages that hold the newest keys and values of a KV layer once more, if there are such.
    pub fn recent(&self, layer: usize) -> Option<RecentPages<'_>> {
        match &self.layers[layer] {
            LayerState::Own { pages, has_recent: true, .. } => {
                let (pages, positions) = (pages[1].table(), pages[1].place.window?);
                Some(RecentPages { pages, positions })
            }
            LayerState::Own { .. } => None,
            LayerState::Shared(target) => self.recent(*target),
        }
    }

    /// The pages of a layer besides those of keys and values: group `index` of them.
    pub fn others(&self, layer: usize, index: usize) -> PageTable<'_> {
        match &self.layers[layer] {
            LayerState::Own { pages, has_recent, .. } => {
                pages[1 + usize::from(*has_recent) + index].table()
            }
            LayerState::Shared(target) => self.others(*target, index),
        }
    }

    /// Arena and slot of a recurrent layer.
    ///
    /// # Panics
    /// If the layer is not recurrent.
    pub fn recurrent(&self, layer: usize) -> (usize, SlotId) {
        match self.layers[layer].slot() {
            Some(slot) => (slot.arena, slot.id()),
            None => panic!("layer {layer} is not recurrent"),
        }
    }

    /// Counts `count` positions that were written since [`Memory::prepare`](crate::Memory::prepare). The rest of
    /// what was prepared is given up: a draft that was not accepted.
    ///
    /// # Panics
    /// If fewer were prepared.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.prepared, "{count} positions written, {} prepared", self.prepared);
        self.len += count;
        self.prepared = 0;
    }

    /// Forgets the positions from `len` on. Refused, changing nothing, if a recurrent layer would have to be rewound
    /// or a sliding one has released what it would look at.
    ///
    /// # Panics
    /// If the sequence is shorter than `len`.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        self.check_truncate(len)?;
        for pages in self.layers.iter_mut().flat_map(LayerState::pages_mut) {
            pages.truncate(len);
        }
        self.len = len;
        self.head_len = self.head_len.min(len);
        self.prepared = 0;
        Ok(())
    }

    /// Whether [`Sequence::truncate`] would be refused, and why.
    ///
    /// # Panics
    /// If the sequence is shorter than `len`.
    pub fn check_truncate(&self, len: usize) -> Result<()> {
        assert!(len <= self.len, "cannot truncate {} positions to {len}", self.len);
        for (layer, state) in self.layers.iter().enumerate() {
            if state.slot().is_some() && len < self.len {
                return Err(Error::RecurrentCannotRewind { from: self.len, to: len });
            }
            if let Some(pages) = state.pages().iter().find(|pages| !pages.can_end_at(len)) {
                let oldest = pages.first_block * BLOCK;
                return Err(Error::WindowReleased { layer, oldest, to: len });
            }
        }
        Ok(())
    }

    /// The same sequence again, sharing every page and slot until one of the two is prepared for writing. Kept
    /// aside, it is a checkpoint.
    ///
    /// # Panics
    /// Between [`Memory::prepare`](crate::Memory::prepare) and [`Sequence::advance`]: what is being written cannot
    /// be shared.
    pub fn fork(&self) -> Sequence {
        assert_eq!(self.prepared, 0, "a sequence cannot be forked while a step writes it");
        let layers = self.layers.iter().map(|state| match state {
            LayerState::Own { pages, has_recent, slot } => LayerState::Own {
                pages: pages.iter().map(|pages| pages.fork(self.len)).collect(),
                has_recent: *has_recent,
                slot: slot.as_ref().map(Slot::fork),
            },
            LayerState::Shared(target) => LayerState::Shared(*target),
        });
        let (layers, code) = (layers.collect(), self.code);
        Sequence { layers, code, len: self.len, head_len: self.head_len, prepared: 0 }
    }

    /// Gives back pages of sliding layers that lie wholly before the last `window + keep + BLOCK` positions. `keep`
    /// is the longest draft: the sequence can still be truncated by that many.
    pub fn release_windows(&mut self, keep: usize) {
        let len = self.len;
        for pages in self.layers.iter_mut().flat_map(LayerState::pages_mut) {
            pages.release_window(len, keep);
        }
    }

    /// Bytes of the pages and slots it refers to, shared ones included.
    pub fn bytes(&self) -> usize {
        let bytes = |state: &LayerState| {
            let pages = state.pages().iter().map(|pages| pages.ids.len() * pages.place.page_bytes);
            pages.sum::<usize>() + state.slot().map_or(0, |slot| slot.slot_bytes)
        };
        self.layers.iter().map(bytes).sum()
    }
}

impl LayerState {
    /// Its pages, group by group.
    pub fn pages(&self) -> &[Pages] {
        match self {
            LayerState::Own { pages, .. } => pages,
            LayerState::Shared(_) => &[],
        }
    }

    pub(crate) fn pages_mut(&mut self) -> &mut [Pages] {
        match self {
            LayerState::Own { pages, .. } => pages,
            LayerState::Shared(_) => &mut [],
        }
    }

    /// Its recurrent state.
    pub fn slot(&self) -> Option<&Slot> {
        match self {
            LayerState::Own { slot, .. } => slot.as_ref(),
            LayerState::Shared(_) => None,
        }
    }

    pub(crate) fn slot_mut(&mut self) -> Option<&mut Slot> {
        match self {
            LayerState::Own { slot, .. } => slot.as_mut(),
            LayerState::Shared(_) => None,
        }
    }
}

impl Pages {
    pub(crate) fn new(place: GroupPlace) -> Pages {
        Pages { place, first_block: 0, ids: Vec::new(), leases: Vec::new() }
    }

    /// Where attention finds them.
    pub fn table(&self) -> PageTable<'_> {
        let GroupPlace { arena, shape, .. } = self.place;
        PageTable { arena, shape, pages: &self.ids, first_block: self.first_block }
    }

    pub(crate) fn arena(&self) -> usize {
        self.place.arena
    }

    /// Index of their shape in the arena.
    pub(crate) fn shape(&self) -> usize {
        self.place.shape
    }

    /// Entries of so many positions: those that are whole.
    fn entries(&self, positions: usize) -> usize {
        positions / self.place.rate
    }

    /// Pages of so many positions.
    fn blocks(&self, positions: usize) -> usize {
        self.entries(positions).div_ceil(BLOCK)
    }

    /// Pages that must be taken before positions `len..end` can be written.
    pub(crate) fn missing(&self, len: usize, end: usize) -> usize {
        let new = (self.blocks(end) - self.first_block).saturating_sub(self.ids.len());
        new + usize::from(self.shared_tail(len).is_some())
    }

    /// Pages that will be held at once, in addition to those that are, until positions `len..end` are written `step` at a
    /// time: a sliding layer releases old ones on the way.
    pub(crate) fn growth(&self, len: usize, end: usize, step: usize) -> usize {
        let new = self.missing(len, end);
        let window = |window| window_pages(window).saturating_add(step.div_ceil(BLOCK));
        self.place.window.map_or(new, |size| new.min(window(size)))
    }

    /// Takes what [`Pages::missing`] counted from `fresh`, so that positions `len..end` have pages of their own.
    pub(crate) fn grow(
        &mut self,
        len: usize,
        end: usize,
        fresh: &mut impl Iterator<Item = Lease>,
        copies: &mut Vec<Copy>,
    ) {
        if let Some(index) = self.shared_tail(len) {
            let lease = next(fresh);
            let (from, to) = (self.ids[index], PageId(lease.index()));
            self.ids[index] = to;
            self.leases[index] = lease;
            let GroupPlace { arena, shape, .. } = self.place;
            copies.push(Copy::Page { arena, shape, from, to });
        }
        for _ in self.first_block + self.ids.len()..self.blocks(end) {
            let lease = next(fresh);
            self.ids.push(PageId(lease.index()));
            self.leases.push(lease);
        }
    }

    /// Index of the partly filled last page, if others hold it too. No later page is ever shared.
    fn shared_tail(&self, len: usize) -> Option<usize> {
        let entries = self.entries(len);
        let index = entries / BLOCK - self.first_block;
        let partly_filled = !entries.is_multiple_of(BLOCK);
        (partly_filled && Arc::strong_count(&self.leases[index]) > 1).then_some(index)
    }

    fn fork(&self, len: usize) -> Pages {
        let count = self.blocks(len) - self.first_block;
        Pages { ids: self.ids[..count].to_vec(), leases: self.leases[..count].to_vec(), ..*self }
    }

    /// Whether everything a row at position `len` looks at is still here.
    fn can_end_at(&self, len: usize) -> bool {
        let oldest = self.place.window.map_or(0, |window| len.saturating_sub(window));
        len == 0 || self.first_block * BLOCK <= oldest
    }

    fn truncate(&mut self, len: usize) {
        if len == 0 {
            self.first_block = 0;
        }
        let count = self.blocks(len) - self.first_block;
        self.ids.truncate(count);
        self.leases.truncate(count);
    }

    fn release_window(&mut self, len: usize, keep: usize) {
        let Some(window) = self.place.window else { return };
        let reach = window.saturating_add(keep).saturating_add(BLOCK);
        let first_block = len.saturating_sub(reach) / BLOCK;
        // A sequence that was truncated may already start later.
        let old = first_block.saturating_sub(self.first_block);
        self.ids.drain(..old);
        self.leases.drain(..old);
        self.first_block += old;
    }
}

impl Slot {
    pub(crate) fn new(
        arena: usize,
        slot_bytes: usize,
        fresh: &mut impl Iterator<Item = Lease>,
    ) -> Slot {
        Slot { arena, slot_bytes, lease: next(fresh) }
    }

    /// The slot in its arena.
    pub fn id(&self) -> SlotId {
        SlotId(self.lease.index())
    }

    pub(crate) fn arena(&self) -> usize {
        self.arena
    }

    /// Slots that must be taken before this one can be written.
    pub(crate) fn missing(&self) -> usize {
        usize::from(Arc::strong_count(&self.lease) > 1)
    }

    /// Takes what [`Slot::missing`] counted from `fresh`.
    pub(crate) fn own(&mut self, fresh: &mut impl Iterator<Item = Lease>, copies: &mut Vec<Copy>) {
        if self.missing() == 0 {
            return;
        }
        let from = self.id();
        self.lease = next(fresh);
        copies.push(Copy::Slot { arena: self.arena, from, to: self.id() });
    }

    fn fork(&self) -> Slot {
        Slot { lease: Arc::clone(&self.lease), ..*self }
    }
}

/// One of the leases that were taken for this.
///
/// Another thread may drop a fork between counting and taking, so some leases may be left over, never too few.
fn next(fresh: &mut impl Iterator<Item = Lease>) -> Arc<Lease> {
    match fresh.next() {
        Some(lease) => Arc::new(lease),
        None => unreachable!("missing() counted fewer leases than are used"),
    }
}
