//! An arena in a step: all of it, or as much as one of several threads may use that run at the same time.
//!
//! Those threads write what is theirs alone, and read that and what nobody writes. Every use is checked, so whoever lends an
//! arena needs no `unsafe` and cannot make two threads meet in one page.

use std::sync::Arc;

use super::{KvArena, PageId, RecurrentArena, SlotId};

/// Memory that is made of pages or slots.
pub trait Arena: Sync {
    /// How many there are.
    fn units(&self) -> usize;
}

impl Arena for KvArena {
    fn units(&self) -> usize {
        self.page_count()
    }
}

impl Arena for RecurrentArena {
    fn units(&self) -> usize {
        self.slot_count()
    }
}

/// The right to use an arena, or a part of it, while a step runs.
#[derive(Debug)]
pub struct Part<'a, A> {
    arena: &'a A,
    /// Everything may be used if `None`.
    claims: Option<Claims>,
}

#[derive(Debug)]
struct Claims {
    /// By page or slot: who alone may use it; everybody may read it if that is [`NOBODY`].
    owners: Arc<[u16]>,
    me: u16,
}

const NOBODY: u16 = u16::MAX;

impl<'a, A: Arena> Part<'a, A> {
    /// All of an arena.
    pub fn whole(arena: &'a mut A) -> Part<'a, A> {
        Part { arena, claims: None }
    }

    /// An arena for several threads at once: the pages or slots in `claims[i]` are for part `i` alone, and the rest is for
    /// reading.
    ///
    /// # Panics
    /// If two claim the same.
    pub fn apart(arena: &'a mut A, claims: &[Vec<u32>]) -> Vec<Part<'a, A>> {
        assert!(claims.len() < NOBODY as usize, "{} parts", claims.len());
        let mut owners = vec![NOBODY; arena.units()];
        for (part, claimed) in claims.iter().enumerate() {
            for &unit in claimed {
                let owner = &mut owners[unit as usize];
                assert!(*owner == NOBODY || *owner == part as u16, "two write what {unit} holds");
                *owner = part as u16;
            }
        }
        let (arena, owners) = (&*arena, Arc::<[u16]>::from(owners));
        let part = |part: usize| {
            let claims = Claims { owners: Arc::clone(&owners), me: part as u16 };
            Part { arena, claims: Some(claims) }
        };
        (0..claims.len()).map(part).collect()
    }

    fn check(&self, unit: u32, writes: bool) {
        let Some(Claims { owners, me }) = &self.claims else { return };
        let owner = owners[unit as usize];
        assert!(owner == *me || (owner == NOBODY && !writes), "{unit} is another thread's");
    }
}

impl Part<'_, KvArena> {
    /// The arena, to read these pages of it.
    pub(crate) fn reading(&self, pages: &[PageId]) -> &KvArena {
        if self.claims.is_some() {
            pages.iter().for_each(|page| self.check(page.0, false));
        }
        self.arena
    }

    /// Shape and format.
    pub(crate) fn arena(&self) -> &KvArena {
        self.arena
    }

    /// [`KvArena::write_shared`] of a page that is this part's.
    ///
    /// # Safety
    /// As there, of the threads that share this part.
    pub(crate) unsafe fn write_shared(&self, page: PageId, slot: usize, k: &[f32], v: &[f32]) {
        self.check(page.0, true);
        // SAFETY: no other part uses the page; within this one it is the caller's promise.
        unsafe { self.arena.write_shared(page, slot, k, v) }
    }
}

impl Part<'_, RecurrentArena> {
    /// [`RecurrentArena::slot_ptr`] of a slot that is this part's: its contract is among the threads that share the part.
    pub(crate) fn slot_ptr(&self, slot: SlotId) -> *mut f32 {
        self.check(slot.0, true);
        self.arena.slot_ptr(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::KvFormat;

    fn parts(arena: &mut KvArena) -> Vec<Part<'_, KvArena>> {
        Part::apart(arena, &[vec![0, 2], vec![3, 3]])
    }

    #[test]
    fn parts_write_what_is_theirs_and_read_what_nobody_writes() {
        let mut arena = KvArena::new(KvFormat::F32, 1, 16, 5).unwrap();
        let pages = [PageId(1), PageId(2), PageId(4)];
        let row = [0.5; 16];
        {
            let parts = parts(&mut arena);
            parts[0].reading(&pages);
            parts[1].reading(&[PageId(1), PageId(3), PageId(4)]);
            std::thread::scope(|scope| {
                for (part, page) in parts.iter().zip([2, 3]) {
                    // SAFETY: nobody else uses the page.
                    scope.spawn(move || unsafe { part.write_shared(PageId(page), 7, &row, &row) });
                }
            });
        }
        assert_eq!(arena.read(PageId(2), 7, 0).0, row);
        assert_eq!(arena.read(PageId(3), 7, 0).1, row);
    }

    #[test]
    #[should_panic(expected = "3 is another thread's")]
    fn what_another_writes_is_not_read() {
        parts(&mut KvArena::new(KvFormat::F32, 1, 16, 5).unwrap())[0].reading(&[PageId(3)]);
    }

    #[test]
    #[should_panic(expected = "1 is another thread's")]
    fn what_nobody_owns_is_not_written() {
        let mut arena = KvArena::new(KvFormat::F32, 1, 16, 5).unwrap();
        // SAFETY: nobody else uses the page.
        unsafe { parts(&mut arena)[0].write_shared(PageId(1), 0, &[0.0; 16], &[0.0; 16]) };
    }

    #[test]
    #[should_panic(expected = "0 is another thread's")]
    fn a_state_belongs_to_one_part() {
        let mut arena = RecurrentArena::new(4, 2).unwrap();
        Part::apart(&mut arena, &[vec![0], vec![1]])[1].slot_ptr(SlotId(0));
    }

    #[test]
    #[should_panic(expected = "two write what 2 holds")]
    fn two_parts_cannot_claim_the_same() {
        let mut arena = RecurrentArena::new(4, 3).unwrap();
        Part::apart(&mut arena, &[vec![2], vec![1, 2]]);
    }
}
