//! What can go wrong in this crate: memory that is full, and states that cannot go back.

/// Errors of the state crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // === Layout ===
    /// A layer of the layout cannot exist.
    #[error("layer {layer} of the layout: {reason}")]
    Layout {
        /// Index of the layer.
        layer: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The memory for all sequences could not be mapped.
    #[error("cannot map {bytes} bytes for {what}")]
    Map {
        /// What the memory was for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
        /// The answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// More pages or slots than an id can name.
    #[error("{count} {what} are more than an arena can name")]
    TooMany {
        /// Pages or slots.
        what: &'static str,
        /// How many were asked for.
        count: usize,
    },

    // === Full ===
    /// Too few KV pages are free; nothing was changed.
    #[error("out of KV pages: {needed} needed, {free} free")]
    OutOfPages {
        /// Pages the operation asked for.
        needed: usize,
        /// Pages that are free.
        free: usize,
    },
    /// Too few recurrent slots are free; nothing was changed.
    #[error("out of recurrent slots: {needed} needed, {free} free")]
    OutOfSlots {
        /// Slots the operation asked for.
        needed: usize,
        /// Slots that are free.
        free: usize,
    },

    // === Going back ===
    /// A recurrent layer has integrated the positions that were to be dropped: restore a checkpoint.
    #[error("recurrent state cannot be rewound from {from} to {to} positions")]
    RecurrentCannotRewind {
        /// Length of the sequence.
        from: usize,
        /// Length asked for.
        to: usize,
    },
    /// A sliding layer has released pages that the shorter sequence would look at.
    #[error(
        "layer {layer} has released positions below {oldest}: cannot go back to {to} positions"
    )]
    WindowReleased {
        /// The sliding layer.
        layer: usize,
        /// Its first position that is still held.
        oldest: usize,
        /// Length asked for.
        to: usize,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
