//! A loaded model with its memory: batches in, logits out.
//!
//! [`Plan`] says what a model takes before it is loaded; [`Runner`] loads it, resident or streamed, with a draft head or
//! without, and runs batches. It knows tokens and sequences, but no requests, text or sampling.

#![forbid(unsafe_code)]

mod error;
mod features;
mod heads;
mod options;
mod pass;
mod plan;
mod runner;
mod streaming;
mod watch;

pub use compute::{Features, RowLogits};
pub use error::{Error, Result};
pub use heads::{HeadDraft, HeadTokens};
pub use options::{HeadOptions, Options};
pub use pass::LogitsReader;
pub use plan::{Plan, PlanRequest, Row, StreamPlan, Streaming};
pub use runner::{LOGIT_ROWS, Runner, SequenceFailure};
pub use streaming::{mean_read_bytes, probe, samples};
pub use watch::{ExpertActivity, ExpertLoad, ExpertShape, ExpertUnion};
