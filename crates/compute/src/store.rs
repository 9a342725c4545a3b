//! Where what outlives a step is kept: weights, what sequences remember, slots of experts.
//!
//! A [`Store`] belongs to a backend. What it makes is used by that backend's steps alone: the kernels of the CPU refuse the
//! memory of another. What the host fills (weights, slots of experts) it fills in host memory; a store then takes it over.

use std::ptr::NonNull;
use std::sync::Arc;

use machine::pages::Pages;

use crate::memory::{ArenaShape, KvArena, RecurrentArena};
#[cfg(feature = "recording")]
use crate::recording::Locked;
use crate::{Error, Result, Tape};

/// Memory of a backend.
pub trait Store: Send + Sync {
    /// Takes over memory that was filled with weights.
    fn region(&self, filled: Pages) -> Result<Region>;
    /// Takes over values.
    fn vector(&self, values: Vec<f32>) -> Vector;
    /// Room for chunks of pages. Nothing of it is resident until it is written.
    fn kv(&self, shape: &ArenaShape, chunk_count: usize) -> machine::Result<KvArena>;
    /// Room for recurrent states of one size, all zeros.
    fn recurrent(&self, slot_floats: usize, slot_count: usize) -> machine::Result<RecurrentArena>;
    /// An empty tape.
    fn tape(&self) -> Tape;
    /// Memory that the host writes while kernels read other parts of it: slots of experts.
    fn slab(&self, bytes: usize) -> machine::Result<Slab>;
}

/// The memory of the CPU: the host's own.
#[derive(Clone, Copy, Debug)]
pub struct HostStore;

impl Store for HostStore {
    fn region(&self, filled: Pages) -> Result<Region> {
        Ok(Region::host(filled))
    }

    fn vector(&self, values: Vec<f32>) -> Vector {
        Vector::host(values)
    }

    fn kv(&self, shape: &ArenaShape, chunk_count: usize) -> machine::Result<KvArena> {
        KvArena::new(shape.clone(), chunk_count)
    }

    fn recurrent(&self, slot_floats: usize, slot_count: usize) -> machine::Result<RecurrentArena> {
        RecurrentArena::new(slot_floats, slot_count)
    }

    fn tape(&self) -> Tape {
        Tape::new()
    }

    fn slab(&self, bytes: usize) -> machine::Result<Slab> {
        Slab::new(bytes)
    }
}

/// Weights in a backend's memory.
#[derive(Clone, Debug)]
pub struct Region {
    len: usize,
    memory: RegionMemory,
}

#[derive(Clone, Debug)]
enum RegionMemory {
    Host(Arc<Pages>),
    #[cfg(feature = "recording")]
    Recorded(Locked<Arc<Pages>>),
}

impl Region {
    /// Host memory.
    pub(crate) fn host(pages: Pages) -> Region {
        Region { len: pages.len(), memory: RegionMemory::Host(Arc::new(pages)) }
    }

    /// Memory of a recording backend.
    #[cfg(feature = "recording")]
    pub(crate) fn recorded(pages: Locked<Arc<Pages>>, len: usize) -> Region {
        Region { len, memory: RegionMemory::Recorded(pages) }
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes, for the kernels of the CPU.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.memory {
            RegionMemory::Host(pages) => pages,
            #[cfg(feature = "recording")]
            RegionMemory::Recorded(pages) => pages.open(),
        }
    }
}

/// Values that are kept with a model: norms, biases, scales.
#[derive(Clone, Debug)]
pub struct Vector {
    len: usize,
    values: VectorValues,
}

#[derive(Clone, Debug)]
enum VectorValues {
    Host(Arc<[f32]>),
    #[cfg(feature = "recording")]
    Recorded(Locked<Arc<[f32]>>),
}

impl Vector {
    /// In host memory.
    pub(crate) fn host(values: Vec<f32>) -> Vector {
        Vector { len: values.len(), values: VectorValues::Host(values.into()) }
    }

    /// In the memory of a recording backend.
    #[cfg(feature = "recording")]
    pub(crate) fn recorded(values: Locked<Arc<[f32]>>, len: usize) -> Vector {
        Vector { len, values: VectorValues::Recorded(values) }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }

    /// The values, for the kernels of the CPU.
    pub(crate) fn values(&self) -> &[f32] {
        match &self.values {
            VectorValues::Host(values) => values,
            #[cfg(feature = "recording")]
            VectorValues::Recorded(values) => values.open(),
        }
    }
}

/// Host memory to fill with weights, for [`Store::region`].
pub fn weight_memory(bytes: usize) -> Result<Pages> {
    Pages::new(bytes.max(1)).map_err(|source| Error::Memory { what: "weights", bytes, source })
}

/// Memory that the host writes in parts while kernels read others.
#[derive(Debug)]
pub struct Slab {
    start: *mut u8,
    pages: Pages,
}

// SAFETY: `start` points into `pages`, which the slab owns; which part may be read or written when is the contract of its
// functions.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Host memory.
    pub(crate) fn new(bytes: usize) -> machine::Result<Slab> {
        let mut pages = Pages::new(bytes)?;
        let start = pages.as_mut_ptr();
        Ok(Slab { start, pages })
    }

    /// Makes all of it resident now.
    pub fn prefault(&mut self) {
        self.pages.prefault();
    }

    /// Where a byte is, to write to it and to those after it. Valid as long as the slab lives.
    pub fn target(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.pages.len(), "an offset outside the slab");
        // SAFETY: inside the pages, so not null either.
        unsafe { NonNull::new_unchecked(self.start.add(offset)) }
    }

    /// Some bytes of it.
    ///
    /// # Safety
    /// None of them is written while the slice lives.
    pub unsafe fn bytes(&self, start: usize, len: usize) -> &[u8] {
        assert!(start + len <= self.pages.len(), "bytes outside the slab");
        // SAFETY: inside the pages, which began as zeros; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(start), len) }
    }
}
