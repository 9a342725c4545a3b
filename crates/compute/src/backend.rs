//! What computes: the one place that knows which backends there are.

use machine::cpu::Isa;

#[cfg(feature = "recording")]
use crate::recording::RecordingBackend;
use crate::store::{HostStore, Store};
use crate::{CpuBackend, Result, Step};

/// The kinds of backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// The CPU.
    #[default]
    Cpu,
    /// A backend for tests, which queues operations and owns its memory.
    #[cfg(feature = "recording")]
    Recording,
}

/// A backend: memory for what lasts, and for the activations of one step.
#[allow(clippy::large_enum_variant, reason = "one a model")]
pub enum Backend {
    /// The CPU.
    Cpu(CpuBackend),
    /// A backend for tests.
    #[cfg(feature = "recording")]
    Recording(RecordingBackend),
}

impl Backend {
    /// A backend with room for `arena_floats` activations in a step. Instruction set and threads are for what the CPU computes.
    pub fn new(
        kind: BackendKind,
        isa: Isa,
        threads: usize,
        arena_floats: usize,
    ) -> Result<Backend> {
        Ok(match kind {
            BackendKind::Cpu => Backend::Cpu(CpuBackend::new(isa, threads, arena_floats)?),
            #[cfg(feature = "recording")]
            BackendKind::Recording => Backend::Recording(RecordingBackend::new(arena_floats)?),
        })
    }

    /// Starts a step; the tensors of the step before are gone.
    pub fn begin(&mut self) -> Box<dyn Step + '_> {
        match self {
            Backend::Cpu(cpu) => Box::new(cpu.begin()),
            #[cfg(feature = "recording")]
            Backend::Recording(recording) => Box::new(recording.begin()),
        }
    }

    /// Where weights and the memory of sequences are kept.
    pub fn store(&self) -> &dyn Store {
        match self {
            Backend::Cpu(_) => &HostStore,
            #[cfg(feature = "recording")]
            Backend::Recording(recording) => recording.store(),
        }
    }

    /// Moves to the threads of another, whose model takes turns with this one's.
    pub fn share_threads(&mut self, other: &Backend) {
        match (self, other) {
            (Backend::Cpu(own), Backend::Cpu(other)) => own.share_threads(other),
            // A backend of another kind has no threads to share.
            #[cfg(feature = "recording")]
            (Backend::Recording(_), _) | (_, Backend::Recording(_)) => {}
        }
    }
}
