//! Expert weights under a byte budget: read from the disk into slots as tokens need them.
//!
//! [`StreamedBank`] is what a model sees: a [`compute::ExpertBank`] like the resident one. Below it a
//! pure replacement policy ([`cache`]) says which slot an expert lives in, and a [`reader`] brings its
//! bytes into that slot. Knows nothing of tokens or HTTP.

mod bank;
pub mod cache;
pub mod device;
mod error;
mod geometry;
mod plain;
pub mod probe;
pub mod reader;
mod record;
pub mod routing_log;
pub mod simulate;
mod state;
mod statistics;
mod table;
mod visit;

pub use bank::{BankOptions, StreamedBank};
pub use device::Device;
pub use error::{Error, Result};
pub use geometry::{Class, ClassSlots, Geometry, LayerSize, Slots};
pub use record::{LayerExperts, Region, reads_of};
pub use statistics::{Activity, Missed, Statistics, VisitRecord};
