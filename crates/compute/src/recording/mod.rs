//! A backend for tests: it queues operations, owns its memory, and runs the queue at `submit` with the scalar kernels.
//!
//! It stands for a device. Weights are copied into memory that can be reached only while the queue runs; tensors are handles
//! into an arena that is laid out when operations are queued; experts are found through [`Residency`](crate::Residency).
//! Code above that looks at memory between steps, or expects a value before it was computed, fails here.
//! Invariant: results are the CPU's, to the bit.

mod bank;
mod step;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use machine::cpu::Isa;
use machine::pages::Pages;

use crate::cpu::Stack;
use crate::memory::{ArenaShape, KvArena, RecurrentArena};
use crate::store::{Region, Slab, Store, Vector, weight_memory};
use crate::{CpuBackend, CpuStep, Result, Tape};

use step::RecordingStep;

/// An operation that waits for the next submit.
type Operation = Box<dyn FnOnce(&mut CpuStep<'_>) + Send>;

/// A backend that computes when it is told to.
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
        Locked { value, gate: self.gate.clone() }
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

    fn kv(&self, shape: &ArenaShape, chunk_count: usize) -> machine::Result<KvArena> {
        Ok(KvArena::new(shape.clone(), chunk_count)?.into_recorded())
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

/// Whether the queue runs.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<AtomicBool>);

/// The gate is open as long as this lives.
struct Open(Gate);

impl Gate {
    fn open(&self) -> Open {
        self.0.store(true, Ordering::SeqCst);
        Open(self.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::SeqCst);
    }
}

/// Something that can be reached only while the queue runs.
#[derive(Clone, Debug)]
pub(crate) struct Locked<T> {
    value: T,
    gate: Gate,
}

impl<T> Locked<T> {
    pub(crate) fn open(&self) -> &T {
        assert!(self.gate.0.load(Ordering::SeqCst), "memory of a device is read by the host");
        &self.value
    }
}

/// Something of the backend's that the host holds by name and operations in the queue change.
#[derive(Debug)]
pub(crate) struct Shared<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Shared<T> {
        Shared(Arc::new(Mutex::new(Some(value))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it out, for one operation.
    pub(crate) fn take(&self) -> T {
        self.lock().take().expect("one operation runs at a time")
    }

    pub(crate) fn put(&self, value: T) {
        *self.lock() = Some(value);
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(self.lock().as_ref().expect("one operation runs at a time"))
    }
}
