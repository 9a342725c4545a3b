//! This computer: cores and instruction sets, memory and its limits, huge pages, disk, and what day it is.
//!
//! Everything here queries the operating system and returns plain numbers; only [`mod@thread`] and [`mod@file`] change
//! something.
//! Nothing here knows about models, and nothing here decides what to do with an answer: `engine` plans,
//! `compute` picks kernels.
//! Invariant: a question that this system cannot answer gives `None` or a portable fallback, never a panic.

pub mod amx;
pub mod cpu;
pub mod descriptors;
pub mod disk;
pub mod doctor;
pub mod facts;
pub mod file;
pub mod memory;
pub mod pages;
pub mod probe;
pub mod size;
mod system;
pub mod thread;

use std::path::PathBuf;

/// The result of a request to this computer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a request to this computer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused to map anonymous memory.
    #[error("could not map {len_bytes} bytes of memory")]
    Map {
        /// How much was requested.
        len_bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the system could not be read.
    #[error("could not read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the system does not say what it should.
    #[error("{} has no readable {expected}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What was looked for.
        expected: &'static str,
    },
    /// This operating system did not answer.
    #[error("this system does not report {what}")]
    Unknown {
        /// What was requested.
        what: &'static str,
    },
    /// A name that is not an instruction set.
    #[error("unknown instruction set `{name}` (expected scalar, neon, avx2, avx512 or amx)")]
    UnknownIsa {
        /// The name as it was given.
        name: String,
    },
}
