//! What can go wrong between a request and its tokens.

use std::sync::Arc;

/// Errors of the engine.
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
        /// Prompt and answer together.
        needed: usize,
        /// What was planned.
        context: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Text and tokens do not come together.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] crate::SampleError),
    /// A step failed as a whole, and with it everything that was in it.
    #[error("the model could not go on: {message}")]
    Step {
        /// What happened.
        message: String,
    },
    /// The answer cannot follow its grammar.
    #[error(transparent)]
    Constraint(#[from] grammar::ConstraintError),
    /// An instruction set that this machine lacks.
    #[error("this machine cannot run {isa} kernels")]
    Isa {
        /// What was asked for.
        isa: machine::cpu::Isa,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
