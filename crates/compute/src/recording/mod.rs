//! A backend for tests: it queues operations, owns its memory, and runs the queue at `submit` with the scalar kernels.
//!
//! It stands for a device. Weights are copied into memory that can be reached only while the queue runs; tensors are handles
//! into an arena that is laid out when operations are queued; experts are found through [`Residency`](crate::Residency).
//! Code above that looks at memory between steps, or expects a value before it was computed, fails here.
//! Invariant: results are the CPU's, to the bit.

mod bank;
pub(crate) mod gate;
mod step;

use std::sync::Arc;

use machine::cpu::Isa;
use machine::pages::Pages;

use crate::cpu::Stack;
use crate::memory::{ArenaShape, KvArena, RecurrentArena};
use crate::store::{Region, Slab, Store, Vector, weight_memory};
use crate::{CpuBackend, CpuStep, Result, Tape};

use gate::{Gate, Locked};
use step::RecordingStep;

/// An operation that waits for the next submit.
type Operation = Box<dyn FnOnce(&mut CpuStep<'_>) + Send>;

/// A backend that computes when a step is submitted.
pub struct RecordingBackend {
    /// Runs the queue: the arena of activations is its own.
    cpu: CpuBackend,
    store: RecordingStore,
    /// The arena as the operations in the queue will leave it.
    stack: Stack,
    queue: Vec<Operation>,
}

impl RecordingBackend {
    /// A backend with room for so many activations.
    pub(crate) fn new(arena_floats: usize) -> Result<RecordingBackend> {
        let cpu = CpuBackend::new(Isa::Scalar, 1, arena_floats)?;
        Ok(RecordingBackend {
            stack: Stack::new(cpu.arena_floats()),
            cpu,
            store: RecordingStore { gate: Gate::default() },
            queue: Vec::new(),
        })
    }

    /// Starts a step.
    pub(crate) fn begin(&mut self) -> RecordingStep<'_> {
        assert!(self.queue.is_empty(), "the step before was not submitted");
        let _fresh = self.cpu.begin();
        self.stack.clear();
        RecordingStep { backend: self }
    }

    pub(crate) fn store(&self) -> &RecordingStore {
        &self.store
    }

    /// Runs what is queued, in order.
    fn run_queue(&mut self) {
        let _open = self.store.gate.open();
        let mut step = self.cpu.resume();
        self.queue.drain(..).for_each(|operation| operation(&mut step));
    }
}

/// The memory of a recording backend.
#[derive(Debug)]
pub(crate) struct RecordingStore {
    gate: Gate,
}

impl RecordingStore {
    fn locked<T>(&self, value: T) -> Locked<T> {
        Locked::new(value, &self.gate)
    }
}

impl Store for RecordingStore {
    fn region(&self, filled: Pages) -> Result<Region> {
        let mut own = weight_memory(filled.len())?;
        own.copy_from_slice(&filled);
        let len = own.len();
        Ok(Region::recorded(self.locked(Arc::new(own)), len))
    }

    fn vector(&self, values: Vec<f32>) -> Vector {
        let len = values.len();
        Vector::recorded(self.locked(values.into()), len)
    }

    fn kv(&self, shape: &ArenaShape, extent_count: usize) -> machine::Result<KvArena> {
        Ok(KvArena::new(shape.clone(), extent_count)?.into_recorded())
    }

    fn recurrent(&self, slot_floats: usize, slot_count: usize) -> machine::Result<RecurrentArena> {
        Ok(RecurrentArena::new(slot_floats, slot_count)?.into_recorded())
    }

    fn tape(&self) -> Tape {
        Tape::recorded()
    }

    fn slab(&self, bytes: usize) -> machine::Result<Slab> {
        // Host memory, as a device would import it.
        Slab::new(bytes)
    }
}
