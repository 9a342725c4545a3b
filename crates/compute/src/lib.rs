//! Tensors, weights and the list of operations, and the backends that run them.
//!
//! Model code records operations on a step; the backend runs them. Nothing here knows files or
//! models. The one invariant: a row's result depends on its own inputs and position alone, never on
//! the other rows in the call, the threads, the chunking or the instruction set (see `cpu::dot`).

mod backend;
mod bank;
mod cpu;
mod error;
mod kept;
pub mod memory;
#[cfg(feature = "recording")]
mod recording;
mod step;
mod store;
mod tally;
mod weight;

pub use backend::{Backend, BackendKind};
pub use bank::{
    Bias, BiasPlace, Expert, ExpertBank, ExpertPlace, Parting, Residency, ResidentBank,
    ResidentExpert, SlabExpert, Take, Trial, Turn, Visit,
};
pub use cpu::{CpuBackend, CpuStep, Rope, Yarn, logits};
pub use error::{Error, Result};
pub use kept::{Features, Tape};
#[cfg(feature = "recording")]
pub use recording::RecordingBackend;
pub use step::{
    Activation, AttentionShape, DeltaShape, ExpertGroups, Fence, HeadRows, KvRun, Linear, Mark,
    PageTable, RecentPages, RouterShape, Routing, RowFailure, RowLogits, RowSource, Score,
    Selection, SharedExpert, StateRun, Step, Tensor,
};
pub use store::{HostStore, Region, Slab, Store, Vector, weight_memory};
pub use tally::{Tallied, Tally, Union};
pub use weight::{Matrix, MatrixPlace, Norm, Weight};
