//! What a sequence remembers: KV pages and recurrent slots, shared until one sequence writes.
//!
//! A [`Layout`] says what each layer of a model keeps, and how many bytes that takes before anything is
//! allocated. [`Memory`] owns the arenas and hands out [`Sequence`]s; a sequence holds reference-counted
//! pages and slots, so a fork or a checkpoint costs no bytes until one of the two is written, and dropping
//! one gives back what no other sequence holds. The forward pass borrows sequences to read page lists and
//! [`Memory`] to write the arenas, at the same time.
//!
//! Invariant: after [`Memory::prepare`] whatever the next step writes belongs to that sequence alone.

#![forbid(unsafe_code)]

mod error;
mod layout;
mod memory;
mod pool;
mod prefix;
mod sequence;

pub use error::{Error, Result};
pub use layout::{Capacity, CodeId, LayerKind, LayerPages, Layout, PageGroup};
pub use memory::Memory;
pub use prefix::{CacheLimits, PrefixCache, Worth, common_prefix};
pub use sequence::{LayerState, Pages, Sequence, Slot};
