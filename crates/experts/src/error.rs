//! What can go wrong between a disk and a slot.

use std::path::PathBuf;

/// Errors of the expert store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused to open or read a file.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried: "open", "read at 4096", …
        operation: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file ended too early.
    #[error(
        "{} is too short: {expected} bytes were asked for at {offset}, {got} came; is it still being \
         written, or was it cut?", path.display()
    )]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset: u64,
        /// Bytes that are needed.
        expected: u64,
        /// Bytes that came.
        got: u64,
    },
    /// The disk did not answer in time.
    #[error("the disk did not answer within {seconds} s")]
    Stalled {
        /// How long was waited.
        seconds: f64,
    },
    /// A file is not the one that was opened.
    #[error("{} was changed while it was in use; start again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused memory.
    #[error("cannot allocate {bytes} bytes for expert slots")]
    Memory {
        /// How much was requested.
        bytes: usize,
        /// The system's answer.
        #[source]
        source: machine::Error,
    },
    /// There are fewer slots than one token's experts of one layer.
    #[error("{slots} expert slots are too few: a token needs {needed} of a layer at once")]
    TooFewSlots {
        /// Slots there are.
        slots: usize,
        /// Slots a token needs.
        needed: usize,
    },
    /// Memory for experts that holds less than one token's of one layer.
    #[error(
        "{} for experts is too little: a token needs {needed} of a layer at once, {}",
        machine::size::bytes(*bytes),
        machine::size::bytes(*needed_bytes)
    )]
    TooLittleCache {
        /// The memory there is.
        bytes: u64,
        /// Experts a token needs.
        needed: usize,
        /// What they take.
        needed_bytes: u64,
    },
    /// A routing log that cannot be read.
    #[error("line {line} of the routing log: {problem}")]
    Log {
        /// Counted from one.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
