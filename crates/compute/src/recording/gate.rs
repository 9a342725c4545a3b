//! Memory of a recording backend: it can be reached only while the queue runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether the queue runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<AtomicBool>);

/// The gate is open as long as this lives.
pub(super) struct Open(Gate);

impl Gate {
    pub(super) fn open(&self) -> Open {
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
    pub(super) fn new(value: T, gate: &Gate) -> Locked<T> {
        Locked { value, gate: gate.clone() }
    }

    pub(crate) fn open(&self) -> &T {
        assert!(self.gate.0.load(Ordering::SeqCst), "memory of a device is read by the host");
        &self.value
    }
}

/// Something of the backend's that the host holds by name and operations in the queue change.
#[derive(Debug)]
pub(crate) struct DeviceMemory<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for DeviceMemory<T> {
    fn clone(&self) -> DeviceMemory<T> {
        DeviceMemory(Arc::clone(&self.0))
    }
}

impl<T> DeviceMemory<T> {
    pub(crate) fn new(value: T) -> DeviceMemory<T> {
        DeviceMemory(Arc::new(Mutex::new(Some(value))))
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
