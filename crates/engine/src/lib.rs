//! The loop: plan, then step after step of schedule → forward → sample → emit.
//!
//! [`Runner`] is a loaded model with its memory: it runs batches. [`Engine`] serves requests with it.
//! Nothing here knows HTTP or terminals; the engine belongs to the thread that calls `step`.

#![forbid(unsafe_code)]

mod admission;
mod draw;
mod engine;
mod error;
mod heads;
mod job;
mod load;
mod options;
mod pass;
mod plan;
mod request;
mod runner;
mod sampler;
mod schedule;
mod speculation;
mod streaming;
mod text_files;
mod watch;

pub use engine::Engine;
pub use error::{Error, Result};
pub use heads::{HeadDraft, HeadTokens};
pub use load::{Counters, Load};
pub use options::{HeadOptions, Options};
pub use plan::{Plan, PlanRequest, Row, StreamPlan, Streaming};
pub use request::{Event, FinishReason, Request, RequestId, Usage};
pub use runner::{Runner, SequenceFailure};
pub use sampler::{SampleError, Sampled, SamplingParams, Scratch, TokenCounts, sample};
pub use speculation::{
    LOG_HEADER, LoggedRound, Oracle, PassFit, Report as SpeculationReport, SourceKind,
    SourceReport, Speculation,
};
pub use streaming::{mean_read_bytes, probe, samples};
pub use text_files::open_text;
pub use watch::{ExpertActivity, ExpertLoad, ExpertShape, ExpertUnion};
