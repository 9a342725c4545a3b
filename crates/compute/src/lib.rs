//! Tensors, weights and the list of operations, on the CPU.
//!
//! Model code records operations on a step; the backend runs them. Nothing here knows files or
//! models. The one invariant: a row's result depends on its own inputs and position alone, never on
//! the other rows in the call, the threads, the chunking or the instruction set (see `cpu::dot`).

mod bank;
mod cpu;
mod error;
pub mod memory;
mod step;
mod tally;
mod weight;

pub use bank::{
    Bias, BiasWeight, Expert, ExpertBank, ResidentBank, ResidentExpert, Take, Trial, Turn, Visit,
};
pub use cpu::{CpuBackend, CpuStep, Rope, Yarn, logits};
pub use error::{Error, Result};
pub use step::{
    Activation, AttentionShape, DeltaShape, ExpertGroups, Fence, KvRun, Linear, Mark, PageTable,
    RouterShape, Routing, RowFailure, RowSource, Score, SharedExpert, StateRun, Step, Tape, Tensor,
};
pub use tally::{Tallied, Tally, Union};
pub use weight::{Matrix, Norm, Vector, Weight, weight_memory};
