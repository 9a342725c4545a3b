//! Speculation: tokens guessed cheaply and verified together in one pass of the model.
//!
//! The [`Controller`] decides who guesses and how much, from measured times and acceptance alone.
//! It knows no model, no clock and no thread: what it decides depends on what it was told only.

mod acceptance;
mod bank;
mod choice;
mod controller;
#[cfg(test)]
mod controller_tests;
mod draft_cost;
mod pass_cost;
#[cfg(test)]
mod replay_tests;
mod report;
#[cfg(test)]
mod simulator;

pub(crate) use controller::{Controller, DraftCost, Drafted, Offer, Pass, Pick, Settings, Verdict};
pub use report::{PassFit, Report, SourceReport};

/// Where drafted tokens come from.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// What followed the same tokens earlier in the sequence.
    NGram,
    /// A smaller model with the same tokenizer.
    DraftModel,
    /// The model's own multi-token-prediction head.
    Mtp,
    /// A block draft in the DFlash format.
    Dflash,
    /// A drafter with set acceptance, for benchmarks only.
    Oracle,
}

impl SourceKind {
    /// Every source, in the order of their numbers.
    pub const ALL: [SourceKind; 5] = [
        SourceKind::NGram,
        SourceKind::DraftModel,
        SourceKind::Mtp,
        SourceKind::Dflash,
        SourceKind::Oracle,
    ];

    fn index(self) -> usize {
        self as usize
    }

    /// Whether one draft costs the same however long it is: then draft much and verify what pays.
    fn is_one_shot(self) -> bool {
        matches!(self, SourceKind::NGram | SourceKind::Dflash | SourceKind::Oracle)
    }
}
