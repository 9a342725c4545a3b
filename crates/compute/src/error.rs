//! What can go wrong in this crate: memory that cannot be had, and experts that could not be brought.

/// Errors of the compute crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused memory.
    #[error("cannot allocate {bytes} bytes for {what}")]
    Memory {
        /// What the memory was for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
        /// The system's answer.
        #[source]
        source: machine::Error,
    },
    /// The activation arena is smaller than the step needs: the plan was wrong.
    #[error("the activation arena holds {capacity} floats, the step needs {needed}")]
    Arena {
        /// Floats in the arena.
        capacity: usize,
        /// Floats the step asked for.
        needed: usize,
    },
    /// A weight's bytes do not have the length its shape and encoding ask for.
    #[error("{what} of a [{rows}, {cols}] weight has {got} bytes, expected {expected}")]
    WeightBytes {
        /// Which part: codes, scales or biases.
        what: &'static str,
        /// Output features.
        rows: usize,
        /// Input features.
        cols: usize,
        /// Bytes the shape asks for.
        expected: usize,
        /// Bytes there are.
        got: usize,
    },
    /// A row of a table that is not in memory could not be brought.
    #[error("row {row} of a table could not be read")]
    Row {
        /// Which.
        row: usize,
        /// What its source said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The expert bank could not bring an expert.
    #[error("expert {expert} of layer {layer} could not be read")]
    Expert {
        /// Layer of the expert.
        layer: usize,
        /// Its index in the layer.
        expert: u32,
        /// What the bank said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
