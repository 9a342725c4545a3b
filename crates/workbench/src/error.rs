//! What can go wrong while something is measured. Making synthetic models has errors of its own.

use std::io;
use std::path::PathBuf;

/// Errors of measuring.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// A request cannot be answered.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// This machine cannot be measured.
    #[error(transparent)]
    Machine(#[from] machine::Error),
    /// A file of prompts cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file of results cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The same for a file of tensors.
    #[error("cannot write {}", path.display())]
    WriteTensors {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: checkpoint::Error,
    },
    /// A file of prompts without any.
    #[error("{} has no prompts", path.display())]
    NoPrompts {
        /// The file.
        path: PathBuf,
    },
    /// An answer with drafts differs from the one without: a defect of the engine.
    #[error("drafts changed the answer to prompt {prompt}")]
    DraftsChanged {
        /// Index of the prompt.
        prompt: usize,
    },
}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Error {
        Error::Runtime(error.into())
    }
}

impl From<experts::Error> for Error {
    fn from(error: experts::Error) -> Error {
        Error::Runtime(error.into())
    }
}

/// Result of measuring.
pub type Result<T> = std::result::Result<T, Error>;
