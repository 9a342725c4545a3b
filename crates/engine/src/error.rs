//! What can go wrong between a request and its tokens.

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be loaded or run, or not with this request.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// A prompt without tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A text of a GGUF file's metadata that is none.
    #[error("{}: text {index} of `{key}` is not UTF-8: the file is damaged or of an unknown kind", path.display())]
    TokenText {
        /// The file.
        path: std::path::PathBuf,
        /// The list.
        key: &'static str,
        /// Its place in the list.
        index: usize,
    },
    /// Text and tokens do not come together.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] crate::SampleError),
    /// A step failed as a whole, and with it everything that was in it.
    #[error("the model could not continue: {message}")]
    Step {
        /// What happened.
        message: String,
    },
    /// The answer cannot follow its grammar.
    #[error(transparent)]
    Constraint(#[from] grammar::ConstraintError),
    /// The model cannot do what a field of the request specifies.
    #[error("{field}: {reason}")]
    Field {
        /// The field.
        field: String,
        /// Why not.
        reason: String,
    },
    /// There is no memory for a grammar, or the model cannot follow any.
    #[error(transparent)]
    Grammar(grammar::GrammarError),
}

impl Error {
    pub(crate) fn field(field: &str, reason: impl Into<String>) -> Error {
        Error::Field { field: field.to_owned(), reason: reason.into() }
    }
}

impl From<checkpoint::Error> for Error {
    fn from(error: checkpoint::Error) -> Error {
        Error::Runtime(error.into())
    }
}

impl From<state::Error> for Error {
    fn from(error: state::Error) -> Error {
        Error::Runtime(error.into())
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
