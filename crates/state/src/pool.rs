//! Which pages or slots of an arena are free.
//!
//! Indices come in extents, each of one kind while any of its indices is in use: pages of several sizes share an arena so.
//! A [`Lease`] is the right to use one index. It returns to the pool when dropped, on whatever thread
//! that happens, so nothing leaks and nothing has to be freed by hand. Sharing is `Arc<Lease>`.
//! Invariants: an index of an extent in use is either free or in exactly one lease; a kind opens an extent only when all its
//! extents are full, so it never holds more of them than its most indices ever in use need.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use compute::memory::MOST_EXTENT_PAGES;

/// The free indices of one arena.
#[derive(Debug)]
pub(crate) struct LeasePool {
    /// Indices of each kind that an extent has.
    sizes: Vec<usize>,
    extent_count: usize,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Extents of no kind.
    extents: Vec<u32>,
    /// For each kind, its extents that are not full.
    partial: Vec<Vec<u32>>,
    /// For each extent a bit for each free index.
    bits: Vec<u64>,
    /// For each kind, free indices in its extents.
    counts: Vec<usize>,
}

/// One index, until dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    kind: usize,
    index: u32,
    pool: Arc<LeasePool>,
}

impl LeasePool {
    /// A pool of extents that have room for `sizes[k]` indices of kind `k`, all free.
    pub(crate) fn new(sizes: Vec<usize>, extent_count: u32) -> Arc<LeasePool> {
        assert!(sizes.iter().all(|&size| 0 < size && size <= MOST_EXTENT_PAGES));
        let free = Free {
            // Backwards, so that the low indices, whose memory is touched first, are used first.
            extents: (0..extent_count).rev().collect(),
            partial: vec![Vec::new(); sizes.len()],
            bits: vec![0; extent_count as usize],
            counts: vec![0; sizes.len()],
        };
        Arc::new(LeasePool { sizes, extent_count: extent_count as usize, free: Mutex::new(free) })
    }

    /// How many indices of a kind could be taken.
    pub(crate) fn free(&self, kind: usize) -> usize {
        let free = self.lock();
        free.counts[kind] + free.extents.len() * self.sizes[kind]
    }

    /// How many extents there are, and how many of them are of no kind.
    pub(crate) fn extents(&self) -> (usize, usize) {
        (self.extent_count, self.lock().extents.len())
    }

    /// How many kinds there are.
    pub(crate) fn kinds(&self) -> usize {
        self.sizes.len()
    }

    /// Indices of a kind that an extent has.
    pub(crate) fn size(&self, kind: usize) -> usize {
        self.sizes[kind]
    }

    /// `counts[k]` leases of each kind `k`; or none, and for the first kind that ran out how many were wanted and free.
    pub(crate) fn take(
        self: &Arc<LeasePool>,
        counts: &[usize],
    ) -> Result<Vec<Vec<Lease>>, Shortage> {
        let mut free = self.lock();
        let mut extents_left = free.extents.len();
        for (kind, &wanted) in counts.iter().enumerate() {
            let extents = wanted.saturating_sub(free.counts[kind]).div_ceil(self.sizes[kind]);
            let Some(left) = extents_left.checked_sub(extents) else {
                let found = free.counts[kind] + extents_left * self.sizes[kind];
                return Err(Shortage { wanted, free: found });
            };
            extents_left = left;
        }
        let lease = |kind, index| Lease { kind, index, pool: Arc::clone(self) };
        let taken = |(kind, &count): (usize, &usize)| {
            (0..count).map(|_| lease(kind, free.take(kind, self.sizes[kind]))).collect()
        };
        Ok(counts.iter().enumerate().map(taken).collect())
    }

    /// The lists are whole whenever the lock is free: nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) wanted: usize,
    pub(crate) free: usize,
}

impl Free {
    /// An index of a kind. The caller made sure that there is one.
    fn take(&mut self, kind: usize, size: usize) -> u32 {
        let extent = match self.partial[kind].last() {
            Some(&extent) => extent,
            None => {
                let extent = self.extents.pop().expect("extents were counted");
                self.bits[extent as usize] = all(size);
                self.counts[kind] += size;
                self.partial[kind].push(extent);
                extent
            }
        };
        let bits = &mut self.bits[extent as usize];
        let place = bits.trailing_zeros();
        *bits &= *bits - 1;
        if *bits == 0 {
            self.partial[kind].pop();
        }
        self.counts[kind] -= 1;
        extent * size as u32 + place
    }

    fn give_back(&mut self, kind: usize, size: usize, index: u32) {
        let (extent, place) = (index / size as u32, index % size as u32);
        let bits = &mut self.bits[extent as usize];
        let was_full = *bits == 0;
        *bits |= 1 << place;
        let is_empty = *bits == all(size);
        self.counts[kind] += 1;
        let partial = &mut self.partial[kind];
        match (was_full, is_empty) {
            (true, false) => partial.push(extent),
            (false, false) | (true, true) => {}
            (false, true) => partial.retain(|&other| other != extent),
        }
        if is_empty {
            self.counts[kind] -= size;
            self.extents.push(extent);
        }
    }
}

/// A bit for each index of an extent.
fn all(size: usize) -> u64 {
    u64::MAX >> (u64::BITS as usize - size)
}

impl Lease {
    /// The page or slot this is about, among those of its kind.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let size = self.pool.sizes[self.kind];
        self.pool.lock().give_back(self.kind, size, self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(leases: &[Vec<Lease>]) -> Vec<Vec<u32>> {
        leases.iter().map(|kind| kind.iter().map(Lease::index).collect()).collect()
    }

    #[test]
    fn kinds_take_extents_when_theirs_are_full_and_give_them_back_when_empty() {
        let pool = LeasePool::new(vec![1, 3], 3);
        assert_eq!((pool.free(0), pool.free(1), pool.extents()), (3, 9, (3, 3)));
        let mut first = pool.take(&[1, 4]).unwrap();
        assert_eq!(indices(&first), [vec![0], vec![3, 4, 5, 6]]);
        assert_eq!((pool.free(0), pool.free(1), pool.extents()), (0, 2, (3, 0)));
        // All or nothing.
        assert_eq!(pool.take(&[0, 3]).unwrap_err(), Shortage { wanted: 3, free: 2 });
        assert_eq!(pool.take(&[1, 2]).unwrap_err(), Shortage { wanted: 1, free: 0 });
        // A hole is filled before an extent is opened.
        first[1].remove(1);
        first[0].clear();
        assert_eq!((pool.free(0), pool.free(1), pool.extents()), (1, 6, (3, 1)));
        let second = pool.take(&[0, 3]).unwrap();
        let mut taken = indices(&second).concat();
        taken.sort_unstable();
        assert_eq!(taken, [4, 7, 8]);
        assert_eq!(pool.extents(), (3, 1));
        drop((first, second));
        assert_eq!((pool.free(0), pool.free(1), pool.extents()), (3, 9, (3, 3)));
    }
}
