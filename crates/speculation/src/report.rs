//! What the controller did and learned, for metrics, `bench` and the health page.

use serde::Serialize;

use super::SourceKind;

/// What speculation did so far.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Decode rounds, plain ones included.
    pub rounds: u64,
    /// Rounds in which drafted tokens were verified.
    pub speculative_rounds: u64,
    /// Each source that was used.
    pub sources: Vec<SourceReport>,
    /// Drafted tokens verified a sequence in speculative rounds.
    pub mean_verified: f64,
    /// Estimated seconds of plain decoding for the same tokens, over the seconds taken.
    pub gain: f64,
    /// Decode seconds, drafting included.
    pub seconds: f64,
    /// Share of the decode time lost by rounds taken to learn.
    pub exploration_share: f64,
    /// How often speculation was paused because it had lost time.
    pub pauses: u64,
    /// The line through the measured times of passes.
    pub fit: PassFit,
}

/// One source of drafts.
#[derive(Clone, Debug, Serialize)]
pub struct SourceReport {
    /// Which one.
    pub source: SourceKind,
    /// Drafts of which tokens were verified.
    pub rounds: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Tokens verified.
    pub verified: u64,
    /// Tokens accepted.
    pub accepted: u64,
    /// Share of the drafts whose first token was accepted.
    pub first_accepted: f64,
}

/// Seconds of a pass = base + row · (rows − 1) + byte · missed bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PassFit {
    /// Seconds of a pass of one row that misses nothing.
    pub base_seconds: f64,
    /// Seconds a further row adds.
    pub row_seconds: f64,
    /// Seconds a missed byte adds.
    pub byte_seconds: f64,
}
