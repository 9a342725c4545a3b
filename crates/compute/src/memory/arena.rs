//! Arenas of pages and of recurrent states, in the memory of a backend.
//!
//! Between steps the host cannot reach what is in them: copies and zeros that are wanted then are noted, in order, and the
//! next operation on the arena carries them out first. Invariant: no operation sees an arena with moves that are due.

use machine::Result;

#[cfg(feature = "recording")]
use crate::recording::Shared;

use super::{ArenaShape, PageId, PageMemory, SlotId, SlotMemory, slot_bytes};

/// Pages of one shape, or of several.
#[derive(Debug)]
pub struct KvArena {
    shape: ArenaShape,
    chunk_count: usize,
    /// Pages to be copied over others of their shape.
    copies: Vec<PageCopy>,
    memory: Memory<PageMemory>,
}

#[derive(Clone, Copy, Debug)]
struct PageCopy {
    shape: usize,
    from: PageId,
    to: PageId,
}

/// Slots for what a recurrent layer remembers.
#[derive(Debug)]
pub struct RecurrentArena {
    slot_floats: usize,
    slot_count: usize,
    moves: Vec<SlotMove>,
    memory: Memory<SlotMemory>,
}

/// What is to happen to a slot.
#[derive(Clone, Copy, Debug)]
enum SlotMove {
    Clear(SlotId),
    Copy { from: SlotId, to: SlotId },
}

/// Where an arena is.
#[derive(Debug)]
enum Memory<T> {
    Host(T),
    #[cfg(feature = "recording")]
    Recorded(Shared<T>),
}

impl<T> Memory<T> {
    fn host(&self) -> &T {
        match self {
            Memory::Host(memory) => memory,
            #[cfg(feature = "recording")]
            Memory::Recorded(_) => panic!("the CPU was given an arena of a recording backend"),
        }
    }

    fn host_mut(&mut self) -> &mut T {
        match self {
            Memory::Host(memory) => memory,
            #[cfg(feature = "recording")]
            Memory::Recorded(_) => panic!("the CPU was given an arena of a recording backend"),
        }
    }
}

impl KvArena {
    /// Maps `chunk_count` chunks of host memory; nothing is resident until it is written.
    pub(crate) fn new(shape: ArenaShape, chunk_count: usize) -> Result<KvArena> {
        let memory = Memory::Host(PageMemory::new(&shape, chunk_count)?);
        Ok(KvArena { shape, chunk_count, copies: Vec::new(), memory })
    }

    /// What its pages may hold.
    pub fn shape(&self) -> &ArenaShape {
        &self.shape
    }

    /// How many chunks there are.
    pub fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> usize {
        self.chunk_count * self.shape.chunk_bytes()
    }

    /// Makes the whole arena resident now, where that is the host's to do.
    pub fn prefault(&mut self) {
        match &mut self.memory {
            Memory::Host(memory) => memory.prefault(),
            #[cfg(feature = "recording")]
            Memory::Recorded(_) => {}
        }
    }

    /// Copies a page over another of its shape, before the next operation.
    pub fn copy_page(&mut self, shape: usize, from: PageId, to: PageId) {
        self.copies.push(PageCopy { shape, from, to });
    }

    /// The pages as the CPU's kernels see them, all copies made.
    pub(crate) fn settled(&mut self) -> &mut PageMemory {
        let memory = self.memory.host_mut();
        for PageCopy { shape, from, to } in self.copies.drain(..) {
            memory.shaped_mut(shape).copy_page(from, to);
        }
        memory
    }

    /// Stores one position: for each plane the vectors of all its heads, `[heads * width]`. For tests: a step stores rows.
    pub fn write(&mut self, shape: usize, page: PageId, slot: usize, rows: &[&[f32]]) {
        self.settled().shaped_mut(shape).write(page, slot, rows);
    }

    /// A vector of one position, as f32. For tests: a step reads whole blocks.
    pub fn read(
        &self,
        shape: usize,
        page: PageId,
        slot: usize,
        plane: usize,
        head: usize,
    ) -> Vec<f32> {
        // Back through the copies that are due.
        let copies = self.copies.iter().rev().filter(|copy| copy.shape == shape);
        let page = copies.fold(page, |page, copy| if copy.to == page { copy.from } else { page });
        self.memory.host().shaped(shape).read(page, slot, plane, head)
    }
}

impl RecurrentArena {
    /// Maps `slot_count` zeroed slots of host memory; nothing is resident until it is written.
    pub(crate) fn new(slot_floats: usize, slot_count: usize) -> Result<RecurrentArena> {
        let memory = Memory::Host(SlotMemory::new(slot_floats, slot_count)?);
        Ok(RecurrentArena { slot_floats, slot_count, moves: Vec::new(), memory })
    }

    /// Bytes one slot takes in memory.
    pub fn slot_bytes(&self) -> usize {
        slot_bytes(self.slot_floats)
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// Makes the whole arena resident now, where that is the host's to do.
    pub fn prefault(&mut self) {
        match &mut self.memory {
            Memory::Host(memory) => memory.prefault(),
            #[cfg(feature = "recording")]
            Memory::Recorded(_) => {}
        }
    }

    /// Fills a slot with zeros, before the next operation.
    pub fn clear(&mut self, slot: SlotId) {
        self.moves.push(SlotMove::Clear(slot));
    }

    /// Copies a slot, before the next operation.
    pub fn copy(&mut self, from: SlotId, to: SlotId) {
        self.moves.push(SlotMove::Copy { from, to });
    }

    /// The slots as the CPU's kernels see them, all moves made.
    pub(crate) fn settled(&mut self) -> &mut SlotMemory {
        let memory = self.memory.host_mut();
        for slot_move in self.moves.drain(..) {
            match slot_move {
                SlotMove::Clear(slot) => memory.slot_mut(slot).fill(0.0),
                SlotMove::Copy { from, to } => memory.copy(from, to),
            }
        }
        memory
    }

    /// What a slot holds. For tests.
    pub fn slot(&self, mut slot: SlotId) -> Vec<f32> {
        // Back through the moves that are due.
        for slot_move in self.moves.iter().rev() {
            match *slot_move {
                SlotMove::Clear(cleared) if cleared == slot => return vec![0.0; self.slot_floats],
                SlotMove::Copy { from, to } if to == slot => slot = from,
                SlotMove::Clear(_) | SlotMove::Copy { .. } => {}
            }
        }
        self.memory.host().slot(slot).to_vec()
    }

    /// A slot. For tests: a step updates it.
    pub fn slot_mut(&mut self, slot: SlotId) -> &mut [f32] {
        self.settled().slot_mut(slot)
    }
}

#[cfg(feature = "recording")]
impl<T> Memory<T> {
    fn into_recorded(self) -> Memory<T> {
        match self {
            Memory::Host(memory) => Memory::Recorded(Shared::new(memory)),
            Memory::Recorded(_) => self,
        }
    }

    /// The same memory again, for an operation in a queue.
    fn again(&self) -> Memory<T> {
        match self {
            Memory::Recorded(shared) => Memory::Recorded(shared.clone()),
            Memory::Host(_) => panic!("a recording backend was given an arena of the CPU"),
        }
    }

    /// Lends the memory to the host while an operation of the queue runs.
    fn lend(&mut self) {
        if let Memory::Recorded(shared) = self {
            *self = Memory::Host(shared.take());
        }
    }

    /// Ends that; `other` is the same memory.
    fn give_back(self, other: &Memory<T>) {
        if let (Memory::Host(memory), Memory::Recorded(shared)) = (self, other) {
            shared.put(memory);
        }
    }
}

#[cfg(feature = "recording")]
impl KvArena {
    /// Moves an arena to a recording backend.
    pub(crate) fn into_recorded(self) -> KvArena {
        KvArena { memory: self.memory.into_recorded(), ..self }
    }

    /// The arena with the copies that are due, for an operation in a queue.
    pub(crate) fn record(&mut self) -> KvArena {
        let (copies, memory) = (std::mem::take(&mut self.copies), self.memory.again());
        KvArena { shape: self.shape.clone(), chunk_count: self.chunk_count, copies, memory }
    }

    /// The arenas in host memory, while `run` runs.
    pub(crate) fn lent(mut arenas: Vec<KvArena>, run: impl FnOnce(&mut [KvArena])) {
        let places: Vec<_> = arenas.iter().map(|arena| arena.memory.again()).collect();
        arenas.iter_mut().for_each(|arena| arena.memory.lend());
        run(&mut arenas);
        arenas.into_iter().zip(&places).for_each(|(arena, place)| arena.memory.give_back(place));
    }
}

#[cfg(feature = "recording")]
impl RecurrentArena {
    /// Moves an arena to a recording backend.
    pub(crate) fn into_recorded(self) -> RecurrentArena {
        RecurrentArena { memory: self.memory.into_recorded(), ..self }
    }

    /// The arena with the moves that are due, for an operation in a queue.
    pub(crate) fn record(&mut self) -> RecurrentArena {
        let (moves, memory) = (std::mem::take(&mut self.moves), self.memory.again());
        RecurrentArena { moves, memory, ..*self }
    }

    /// The arena in host memory, while `run` runs.
    pub(crate) fn lent(mut self, run: impl FnOnce(&mut RecurrentArena)) {
        let place = self.memory.again();
        self.memory.lend();
        run(&mut self);
        self.memory.give_back(&place);
    }
}
