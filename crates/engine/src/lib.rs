//! The loop: plan, then step after step of schedule → forward → sample → emit.
//!
//! [`Runner`] is a loaded model with its memory: it runs batches. [`Engine`] serves requests with it.
//! Nothing here knows HTTP or terminals; the engine belongs to the thread that calls `step`.

#![forbid(unsafe_code)]

mod error;
mod options;
mod runner;

pub use error::{Error, Result};
pub use options::Options;
pub use runner::Runner;
