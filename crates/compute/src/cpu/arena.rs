//! Memory for the activations of one step: tensors are taken from the front and given back in the reverse order.

use machine::pages::Pages;

use crate::{Error, Result};

/// Tensors start on a cache line.
const ALIGN_FLOATS: usize = 16;

/// Where tensors lie: a stack of floats.
pub(crate) struct Stack {
    capacity: usize,
    used: usize,
}

impl Stack {
    pub(crate) fn new(capacity: usize) -> Stack {
        Stack { capacity, used: 0 }
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Where it stands: for [`Stack::release`].
    pub(crate) fn mark(&self) -> usize {
        self.used
    }

    pub(crate) fn release(&mut self, mark: usize) {
        debug_assert!(mark <= self.used);
        self.used = mark;
    }

    /// Takes so many floats; where they begin.
    pub(crate) fn take(&mut self, floats: usize) -> usize {
        let start = self.used.next_multiple_of(ALIGN_FLOATS);
        let (needed, capacity) = (start + floats, self.capacity);
        assert!(
            needed <= capacity,
            "the plan gave {capacity} floats to activations, {needed} are needed"
        );
        self.used = needed;
        start
    }
}

/// The memory of a stack.
pub(crate) struct Arena {
    start: *mut f32,
    pub(crate) stack: Stack,
    /// What `start` points to.
    _memory: Pages,
}

// SAFETY: `start` points into `_memory`, which the arena owns; what may be written is the contract of `Arena::at`.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(floats: usize) -> Result<Arena> {
        let bytes = floats * 4;
        let mut memory = Pages::new(bytes.max(4096)).map_err(|source| Error::Memory {
            what: "activations",
            bytes,
            source,
        })?;
        let start = memory.as_mut_ptr().cast();
        Ok(Arena { start, stack: Stack::new(memory.len() / 4), _memory: memory })
    }

    /// Floats there are.
    #[cfg(feature = "recording")]
    pub(crate) fn capacity(&self) -> usize {
        self.stack.capacity
    }

    /// The floats at `start`. They stay where they are as long as the arena lives; a caller that writes through this makes sure
    /// that nothing else reads them meanwhile.
    pub(crate) fn at(&self, start: usize, floats: usize) -> *mut f32 {
        assert!(start + floats <= self.stack.capacity);
        // SAFETY: inside the memory.
        unsafe { self.start.add(start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_released_is_taken_again() {
        let mut arena = Arena::new(4096).unwrap().stack;
        let first = arena.take(3);
        let mark = arena.mark();
        let second = arena.take(100);
        assert!(second > first && second.is_multiple_of(ALIGN_FLOATS));
        arena.release(mark);
        assert_eq!(arena.take(5), second);
        arena.clear();
        assert_eq!(arena.take(1), first);
    }

    #[test]
    #[should_panic(expected = "the plan gave 4096 floats")]
    fn an_arena_has_an_end() {
        Arena::new(4096).unwrap().stack.take(4097);
    }
}
