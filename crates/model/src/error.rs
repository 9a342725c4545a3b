//! What can be wrong with a model.

/// Errors of the model crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No architecture of that name.
    #[error(
        "{}: model_type `{model_type}` is not supported (supported: {supported})",
        path.display()
    )]
    UnknownArchitecture {
        /// The file.
        path: std::path::PathBuf,
        /// What it says.
        model_type: String,
        /// What there is.
        supported: String,
    },
    /// A config value that no model has.
    #[error("{}: `{key}` is {got}, expected {expected}", path.display())]
    ConfigValue {
        /// The file.
        path: std::path::PathBuf,
        /// The key, after those of the tables around it.
        key: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A config value that this architecture cannot have.
    #[error("config.json: `{key}` is {got}, expected {expected}")]
    Config {
        /// The key.
        key: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Divisors of the rotation's frequencies that are more or fewer than its pairs, or are not positive.
    #[error(
        "rope_freqs.weight has {got} values, expected {expected} positive ones: one for each pair that turns"
    )]
    FrequencyFactors {
        /// Pairs there are.
        expected: usize,
        /// Values there are.
        got: usize,
    },
    /// A factor for the output of a matrix, which is not computed.
    #[error(
        "`{tensor}` scales what a matrix gives, which is not supported yet: take a file of another type"
    )]
    OutputScale {
        /// The first of such.
        tensor: String,
    },
    /// A draft head that belongs to another model.
    #[error("the draft was made for another model: its `{key}` is {head}, the model's is {target}")]
    OtherModel {
        /// The config key.
        key: &'static str,
        /// What the draft says.
        head: String,
        /// What the model says.
        target: String,
    },
    /// A draft head that was to answer alone.
    #[error(
        "this is a DFlash draft, which only guesses for the model it was made for: give it with --dflash together with that model"
    )]
    DraftAlone,
    /// A draft of a kind that is not known.
    #[error(
        "the draft has `{tensor}`, which belongs to {kind}; only plain DFlash drafts are supported"
    )]
    DraftKind {
        /// A tensor that plain drafts do not have.
        tensor: String,
        /// What has it.
        kind: &'static str,
    },
    /// Unquantized experts of gpt-oss.
    #[error(
        "`{tensor}` is unquantized and has its inputs first, which is not supported; use files with experts \
         in mxfp4 (`_blocks`, `_scales`), or with `gate_proj`, `up_proj` and `down_proj` of [experts, out, in]"
    )]
    TransposedExperts {
        /// The tensor.
        tensor: String,
    },
    /// The checkpoint cannot be read or lacks something.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The backend failed.
    #[error(transparent)]
    Compute(#[from] compute::Error),
    /// No room for a sequence's state.
    #[error(transparent)]
    State(#[from] state::Error),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
