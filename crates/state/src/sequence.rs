//! One sequence: its length, and for each layer the pages or the slot that hold what it remembers.
//!
//! Pages and slots are shared by reference: [`Sequence::fork`] is both "branch here" and "checkpoint here".
//! A sequence holds no bytes itself and never copies any; that is [`Memory::prepare`](crate::Memory::prepare)'s
//! work, before each step.
//! Invariant: the pages of a KV layer cover every position from the first kept block up to the length, and pages
//! beyond the length are never shared.

use std::sync::Arc;

use compute::PageTable;
use compute::memory::{BLOCK, PageId, SlotId};

use crate::layout::window_pages;
use crate::pool::Lease;
use crate::{Error, Result};

/// What a sequence remembers.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) layers: Vec<LayerState>,
    pub(crate) len: usize,
    /// Positions that the layers of a draft head have taken in: never more than `len`.
    pub(crate) head_len: usize,
    /// Positions that may be written now, after `len`.
    pub(crate) prepared: usize,
}

/// What one layer remembers.
#[derive(Debug)]
pub enum LayerState {
    /// Keys and values.
    Kv(Pages),
    /// A recurrent state.
    Recurrent(Slot),
    /// The keys and values of another layer.
    Shared(usize),
}

/// Keys and values of one layer: consecutive blocks of positions, a page each.
#[derive(Debug)]
pub struct Pages {
    arena: usize,
    page_bytes: usize,
    window: Option<usize>,
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
    Page { arena: usize, from: PageId, to: PageId },
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

    /// What each layer remembers.
    pub fn layers(&self) -> &[LayerState] {
        &self.layers
    }

    /// The pages a KV layer looks at, its own or those of the layer it shares with.
    ///
    /// # Panics
    /// If the layer is recurrent.
    pub fn kv(&self, layer: usize) -> PageTable<'_> {
        match &self.layers[layer] {
            LayerState::Kv(pages) => pages.table(),
            LayerState::Shared(target) => self.kv(*target),
            LayerState::Recurrent(_) => panic!("layer {layer} is recurrent, it has no pages"),
        }
    }

    /// Arena and slot of a recurrent layer.
    ///
    /// # Panics
    /// If the layer is not recurrent.
    pub fn recurrent(&self, layer: usize) -> (usize, SlotId) {
        match &self.layers[layer] {
            LayerState::Recurrent(slot) => (slot.arena, slot.id()),
            LayerState::Kv(_) | LayerState::Shared(_) => panic!("layer {layer} is not recurrent"),
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
        for pages in self.layers.iter_mut().filter_map(LayerState::pages_mut) {
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
            match state {
                LayerState::Recurrent(_) if len < self.len => {
                    return Err(Error::RecurrentCannotRewind { from: self.len, to: len });
                }
                LayerState::Kv(pages) if !pages.can_end_at(len) => {
                    let oldest = pages.first_block * BLOCK;
                    return Err(Error::WindowReleased { layer, oldest, to: len });
                }
                LayerState::Kv(_) | LayerState::Recurrent(_) | LayerState::Shared(_) => {}
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
            LayerState::Kv(pages) => LayerState::Kv(pages.fork(self.len)),
            LayerState::Recurrent(slot) => LayerState::Recurrent(slot.fork()),
            LayerState::Shared(target) => LayerState::Shared(*target),
        });
        let layers = layers.collect();
        Sequence { layers, len: self.len, head_len: self.head_len, prepared: 0 }
    }

    /// Gives back pages of sliding layers that lie wholly before the last `window + keep + BLOCK` positions. `keep`
    /// is the longest draft: the sequence can still be truncated by that many.
    pub fn release_windows(&mut self, keep: usize) {
        let len = self.len;
        for pages in self.layers.iter_mut().filter_map(LayerState::pages_mut) {
            pages.release_window(len, keep);
        }
    }

    /// Bytes of the pages and slots it refers to, shared ones included.
    pub fn bytes(&self) -> usize {
        let bytes = |state: &LayerState| match state {
            LayerState::Kv(pages) => pages.ids.len() * pages.page_bytes,
            LayerState::Recurrent(slot) => slot.slot_bytes,
            LayerState::Shared(_) => 0,
        };
        self.layers.iter().map(bytes).sum()
    }
}

impl LayerState {
    pub(crate) fn pages(&self) -> Option<&Pages> {
        match self {
            LayerState::Kv(pages) => Some(pages),
            LayerState::Recurrent(_) | LayerState::Shared(_) => None,
        }
    }

    fn pages_mut(&mut self) -> Option<&mut Pages> {
        match self {
            LayerState::Kv(pages) => Some(pages),
            LayerState::Recurrent(_) | LayerState::Shared(_) => None,
        }
    }
}

impl Pages {
    pub(crate) fn new(arena: usize, page_bytes: usize, window: Option<usize>) -> Pages {
        Pages { arena, page_bytes, window, first_block: 0, ids: Vec::new(), leases: Vec::new() }
    }

    /// Where attention finds them.
    pub fn table(&self) -> PageTable<'_> {
        PageTable { arena: self.arena, pages: &self.ids, first_block: self.first_block }
    }

    pub(crate) fn arena(&self) -> usize {
        self.arena
    }

    /// Pages that must be taken before positions `len..end` can be written.
    pub(crate) fn missing(&self, len: usize, end: usize) -> usize {
        let new = (end.div_ceil(BLOCK) - self.first_block).saturating_sub(self.ids.len());
        new + usize::from(self.shared_tail(len).is_some())
    }

    /// Pages that will be held at once, in addition to those that are, until positions `len..end` are written `step` at a
    /// time: a sliding layer releases old ones on the way.
    pub(crate) fn growth(&self, len: usize, end: usize, step: usize) -> usize {
        let new = self.missing(len, end);
        let window = |window| window_pages(window).saturating_add(step.div_ceil(BLOCK));
        self.window.map_or(new, |size| new.min(window(size)))
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
            copies.push(Copy::Page { arena: self.arena, from, to });
        }
        for _ in self.first_block + self.ids.len()..end.div_ceil(BLOCK) {
            let lease = next(fresh);
            self.ids.push(PageId(lease.index()));
            self.leases.push(lease);
        }
    }

    /// Index of the partly filled last page, if others hold it too. No later page is ever shared.
    fn shared_tail(&self, len: usize) -> Option<usize> {
        let index = len / BLOCK - self.first_block;
        let partly_filled = !len.is_multiple_of(BLOCK);
        (partly_filled && Arc::strong_count(&self.leases[index]) > 1).then_some(index)
    }

    fn fork(&self, len: usize) -> Pages {
        let count = len.div_ceil(BLOCK) - self.first_block;
        Pages { ids: self.ids[..count].to_vec(), leases: self.leases[..count].to_vec(), ..*self }
    }

    /// Whether everything a row at position `len` looks at is still here.
    fn can_end_at(&self, len: usize) -> bool {
        let oldest = self.window.map_or(0, |window| len.saturating_sub(window));
        len == 0 || self.first_block * BLOCK <= oldest
    }

    fn truncate(&mut self, len: usize) {
        if len == 0 {
            self.first_block = 0;
        }
        let count = len.div_ceil(BLOCK) - self.first_block;
        self.ids.truncate(count);
        self.leases.truncate(count);
    }

    fn release_window(&mut self, len: usize, keep: usize) {
        let Some(window) = self.window else { return };
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
