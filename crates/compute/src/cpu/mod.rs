//! The CPU backend: kernels, the thread pool and the step that drives them.
//!
//! Integer kernels have one file per instruction set under `dot/` and `tiles/`; float kernels are
//! written once and compiled for each (`lanes`). All agree to the bit.

mod activation;
mod arena;
mod attention;
mod conv;
mod delta;
mod dense;
mod dot;
pub(crate) mod half_float;
mod lanes;
pub mod logits;
mod matmul;
mod mixer;
mod moe;
mod norm;
mod pool;
pub(crate) mod prefetch;
mod quantize;
mod rope;
mod routing;
mod selection;
mod step;
mod tasks;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(feature = "recording")]
pub(crate) use arena::Stack;
pub use rope::{Rope, RopePairs, Yarn};
pub use step::{CpuBackend, CpuStep};
