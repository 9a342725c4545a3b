//! Memory for the activations of one step: tensors are taken from the front and given back in the reverse order.

use std::ops::Range;
use std::sync::Arc;

use machine::pages::Pages;

use crate::{Error, Result};

/// Tensors start on a cache line.
const ALIGN_FLOATS: usize = 16;

/// A stack of floats, or a share of one.
pub(crate) struct Arena {
    start: *mut f32,
    range: Range<usize>,
    used: usize,
    /// What `start` points to.
    memory: Arc<Pages>,
}

// SAFETY: `start` points into `memory`, which the arena holds; who writes what is the contract of `Arena::at`.
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
        Ok(Arena { start, range: 0..memory.len() / 4, used: 0, memory: Arc::new(memory) })
    }

    /// Shares of the arena, in these proportions. They do not overlap each other, but they do overlap this arena.
    pub(crate) fn shares(&self, weights: impl Iterator<Item = usize> + Clone) -> Vec<Arena> {
        let all = weights.clone().sum::<usize>().max(1);
        let mut before = 0;
        let at = |weight: usize| {
            let floats = self.range.len() / ALIGN_FLOATS * weight / all;
            self.range.start + floats * ALIGN_FLOATS
        };
        let share = |weight: usize| {
            let range = at(before)..at(before + weight);
            before += weight;
            let used = range.start;
            Arena { start: self.start, range, used, memory: Arc::clone(&self.memory) }
        };
        weights.map(share).collect()
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.used = self.range.start;
    }

    /// Where it stands: for [`Arena::release`].
    pub(crate) fn mark(&self) -> usize {
        self.used
    }

    pub(crate) fn release(&mut self, mark: usize) {
        debug_assert!(self.range.start <= mark && mark <= self.used);
        self.used = mark;
    }

    /// Takes so many floats; where they begin.
    pub(crate) fn take(&mut self, floats: usize) -> usize {
        let start = self.used.next_multiple_of(ALIGN_FLOATS);
        let (needed, capacity) = (start + floats - self.range.start, self.range.len());
        assert!(
            needed <= capacity,
            "the plan gave {capacity} floats to activations, {needed} are needed"
        );
        self.used = start + floats;
        start
    }

    /// The floats at `start`. They stay where they are as long as the arena lives; whoever writes through this makes sure
    /// that nobody else looks meanwhile.
    pub(crate) fn at(&self, start: usize, floats: usize) -> *mut f32 {
        assert!(self.range.start <= start && start + floats <= self.range.end);
        // SAFETY: inside the memory.
        unsafe { self.start.add(start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_apart_and_inside() {
        let arena = Arena::new(10_000).unwrap();
        let shares = arena.shares([3usize, 0, 1, 4].into_iter());
        for (index, share) in shares.iter().enumerate() {
            assert!(share.range.start.is_multiple_of(ALIGN_FLOATS));
            assert!(share.range.end <= arena.range.end);
            for other in &shares[index + 1..] {
                assert!(share.range.end <= other.range.start);
            }
        }
        assert!(shares[1].range.is_empty() && shares[3].range.len() >= 4900);
    }

    #[test]
    fn what_is_released_is_taken_again() {
        let mut arena = Arena::new(4096).unwrap().shares([1usize, 1].into_iter()).remove(1);
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
    #[should_panic(expected = "the plan gave 2048 floats")]
    fn a_share_has_an_end() {
        Arena::new(4096).unwrap().shares([1usize, 1].into_iter())[0].take(2049);
    }
}
