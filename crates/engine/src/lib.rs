//! Requests in, tokens out: step after step of admit → schedule → draft → reserve → forward → commit.
//!
//! A [`runtime::Runner`] is a loaded model with its memory: it runs batches. [`Engine`] serves requests with it, and
//! [`session`] makes them from messages, and answers from their events.
//! Nothing here knows HTTP or terminals; the engine belongs to the thread that calls `step`.

#![forbid(unsafe_code)]

mod admission;
mod draw;
mod engine;
mod error;
mod job;
mod load;
mod pool;
mod queue;
mod request;
mod sampler;
mod schedule;
pub mod session;

pub use engine::Engine;
pub use error::{Error, Result};
pub use load::{Counters, Load};
pub use request::{Event, FinishReason, Request, RequestId, Usage};
pub use sampler::{SampleError, Sampled, SamplingParams, Scratch, TokenCounts, sample};
pub use session::open_text;
