//! Which pages or slots of an arena are free.
//!
//! Indices come in chunks, each of one kind while any of its indices is in use: pages of several sizes share an arena so.
//! A [`Lease`] is the right to use one index. It returns to the pool when dropped, on whatever thread
//! that happens, so nothing leaks and nothing has to be freed by hand. Sharing is `Arc<Lease>`.
//! Invariants: an index of a chunk in use is either free or in exactly one lease; a kind opens a chunk only when all its
//! chunks are full, so it never holds more of them than its most indices ever in use need.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use compute::memory::MOST_CHUNK_PAGES;

/// The free indices of one arena.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Indices of each kind that a chunk has.
    sizes: Vec<usize>,
    chunk_count: usize,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Chunks of no kind.
    chunks: Vec<u32>,
    /// For each kind, its chunks that are not full.
    partial: Vec<Vec<u32>>,
    /// For each chunk a bit for each free index.
    bits: Vec<u64>,
    /// For each kind, free indices in its chunks.
    counts: Vec<usize>,
}

/// One index, until dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    kind: usize,
    index: u32,
    pool: Arc<Pool>,
}

impl Pool {
    /// A pool of chunks that have room for `sizes[k]` indices of kind `k`, all free.
    pub(crate) fn new(sizes: Vec<usize>, chunk_count: u32) -> Arc<Pool> {
        assert!(sizes.iter().all(|&size| 0 < size && size <= MOST_CHUNK_PAGES));
        let free = Free {
            // Backwards, so that the low indices, whose memory is touched first, are used first.
            chunks: (0..chunk_count).rev().collect(),
            partial: vec![Vec::new(); sizes.len()],
            bits: vec![0; chunk_count as usize],
            counts: vec![0; sizes.len()],
        };
        Arc::new(Pool { sizes, chunk_count: chunk_count as usize, free: Mutex::new(free) })
    }

    /// How many indices of a kind could be taken.
    pub(crate) fn free(&self, kind: usize) -> usize {
        let free = self.lock();
        free.counts[kind] + free.chunks.len() * self.sizes[kind]
    }

    /// How many chunks there are, and how many of them are of no kind.
    pub(crate) fn chunks(&self) -> (usize, usize) {
        (self.chunk_count, self.lock().chunks.len())
    }

    /// How many kinds there are.
    pub(crate) fn kinds(&self) -> usize {
        self.sizes.len()
    }

    /// Indices of a kind that a chunk has.
    pub(crate) fn size(&self, kind: usize) -> usize {
        self.sizes[kind]
    }

    /// `counts[k]` leases of each kind `k`; or none, and for the first kind that ran out how many were wanted and free.
    pub(crate) fn take(self: &Arc<Pool>, counts: &[usize]) -> Result<Vec<Vec<Lease>>, Shortage> {
        let mut free = self.lock();
        let mut chunks_left = free.chunks.len();
        for (kind, &wanted) in counts.iter().enumerate() {
            let chunks = wanted.saturating_sub(free.counts[kind]).div_ceil(self.sizes[kind]);
            let Some(left) = chunks_left.checked_sub(chunks) else {
                let found = free.counts[kind] + chunks_left * self.sizes[kind];
                return Err(Shortage { wanted, free: found });
            };
            chunks_left = left;
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
        let chunk = match self.partial[kind].last() {
            Some(&chunk) => chunk,
            None => {
                let chunk = self.chunks.pop().expect("chunks were counted");
                self.bits[chunk as usize] = all(size);
                self.counts[kind] += size;
                self.partial[kind].push(chunk);
                chunk
            }
        };
        let bits = &mut self.bits[chunk as usize];
        let place = bits.trailing_zeros();
        *bits &= *bits - 1;
        if *bits == 0 {
            self.partial[kind].pop();
        }
        self.counts[kind] -= 1;
        chunk * size as u32 + place
    }

    fn give_back(&mut self, kind: usize, size: usize, index: u32) {
        let (chunk, place) = (index / size as u32, index % size as u32);
        let bits = &mut self.bits[chunk as usize];
        let was_full = *bits == 0;
        *bits |= 1 << place;
        let is_empty = *bits == all(size);
        self.counts[kind] += 1;
        let partial = &mut self.partial[kind];
        match (was_full, is_empty) {
            (true, false) => partial.push(chunk),
            (false, false) | (true, true) => {}
            (false, true) => partial.retain(|&other| other != chunk),
        }
        if is_empty {
            self.counts[kind] -= size;
            self.chunks.push(chunk);
        }
    }
}

/// A bit for each index of a chunk.
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
    fn kinds_take_chunks_when_theirs_are_full_and_give_them_back_when_empty() {
        let pool = Pool::new(vec![1, 3], 3);
        assert_eq!((pool.free(0), pool.free(1), pool.chunks()), (3, 9, (3, 3)));
        let mut first = pool.take(&[1, 4]).unwrap();
        assert_eq!(indices(&first), [vec![0], vec![3, 4, 5, 6]]);
        assert_eq!((pool.free(0), pool.free(1), pool.chunks()), (0, 2, (3, 0)));
        // All or nothing.
        assert_eq!(pool.take(&[0, 3]).unwrap_err(), Shortage { wanted: 3, free: 2 });
        assert_eq!(pool.take(&[1, 2]).unwrap_err(), Shortage { wanted: 1, free: 0 });
        // A hole is filled before a chunk is opened.
        first[1].remove(1);
        first[0].clear();
        assert_eq!((pool.free(0), pool.free(1), pool.chunks()), (1, 6, (3, 1)));
        let second = pool.take(&[0, 3]).unwrap();
        let mut taken = indices(&second).concat();
        taken.sort_unstable();
        assert_eq!(taken, [4, 7, 8]);
        assert_eq!(pool.chunks(), (3, 1));
        drop((first, second));
        assert_eq!((pool.free(0), pool.free(1), pool.chunks()), (3, 9, (3, 3)));
    }
}
