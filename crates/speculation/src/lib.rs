//! Speculation: tokens are drafted by something cheap and verified by the model, several in one pass.
//!
//! What is drafted never changes an answer: the model's own token is drawn at every position, and a draft only decides how
//! many positions one pass is worth. [`Drafter`] queries its sources, which are behind one trait; the controller decides for
//! every round which of them drafts how much, from what passes cost and how often each source is right, and stays at nothing
//! where it does not pay.

#![forbid(unsafe_code)]

mod acceptance;
mod choice;
mod controller;
#[cfg(test)]
mod controller_tests;
mod draft_cost;
mod draft_model;
mod drafter;
mod head;
mod log;
mod ngram;
mod oracle;
mod pass_cost;
#[cfg(test)]
mod replay_tests;
mod report;
#[cfg(test)]
mod simulator;
mod source;
mod time_account;

use serde::{Deserialize, Serialize};

use runtime::Runner;

pub use drafter::{Drafter, ObservedRows, Subject};
pub use log::{HEADER as LOG_HEADER, LoggedRound};
pub use oracle::Oracle;
pub use report::{PassFit, Report, SourceReport};
pub use source::{Choose, Draft};

/// Tokens drafted at once by default.
const MOST: usize = 16;

/// Where drafted tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// What followed the same tokens before.
    NGram,
    /// A smaller model.
    DraftModel,
    /// The model's own head for the token after the next.
    Mtp,
    /// A head that drafts a block at once.
    Dflash,
    /// Tokens that are known to come, some of them spoiled: for benchmarks.
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

    /// Its name in reports, metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::NGram => "n_gram",
            SourceKind::DraftModel => "draft_model",
            SourceKind::Mtp => "mtp",
            SourceKind::Dflash => "dflash",
            SourceKind::Oracle => "oracle",
        }
    }

    fn index(self) -> usize {
        self as usize
    }

    /// Whether one draft costs the same however long it is: then draft much and verify what pays.
    fn is_one_shot(self) -> bool {
        matches!(self, SourceKind::NGram | SourceKind::Dflash | SourceKind::Oracle)
    }
}

/// What an engine may speculate with. The default is prompt lookup.
pub struct Speculation {
    /// Tokens of a draft at most.
    pub most: usize,
    /// Look up what was said before.
    pub ngram: bool,
    /// A smaller model with the same tokenizer. Its options must have room for as many sequences as the
    /// target's, and for twice as many recurrent states and four more.
    pub draft_model: Option<Runner>,
    /// Draft with the head that the target was loaded with, so many tokens at most.
    pub head: Option<usize>,
    /// A source that knows the answers, for benchmarks.
    pub oracle: Option<Oracle>,
    /// Draft this many tokens in every round whatever it costs, for tests and to see how good a source is.
    pub fixed: Option<usize>,
}

impl Default for Speculation {
    fn default() -> Speculation {
        Speculation {
            most: MOST,
            ngram: true,
            draft_model: None,
            head: Some(usize::MAX),
            oracle: None,
            fixed: None,
        }
    }
}

/// Which answer a draft is for: the same number for all of one answer's drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AnswerId(pub u64);
