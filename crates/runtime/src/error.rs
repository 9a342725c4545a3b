//! What can go wrong between a checkpoint and its logits.

use std::sync::Arc;

/// Errors of a loaded model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The backend failed.
    #[error(transparent)]
    Compute(#[from] compute::Error),
    /// An expert, or a row of a table on the disk, that a sequence needs could not be read.
    #[error(transparent)]
    Expert(Arc<compute::Error>),
    /// The expert store failed.
    #[error(transparent)]
    Experts(#[from] experts::Error),
    /// No room for a sequence.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A token that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
    /// More tokens than the context holds.
    #[error("{needed} tokens do not fit in a context of {context}")]
    Context {
        /// Tokens of the sequence.
        needed: usize,
        /// What was planned.
        context: usize,
    },
    /// An instruction set that this machine lacks.
    #[error("this machine cannot run {isa} kernels")]
    Isa {
        /// What was asked for.
        isa: machine::cpu::Isa,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
