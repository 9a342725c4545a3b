//! JSON schemas: what they refer to, which types they name, and whether a grammar can follow them.
//!
//! Schemas come from clients: every walk over one is bounded, whatever its references and alternatives.

mod closed;
mod intersections;
pub(crate) mod limits;
mod parts;
mod references;
mod types;

pub use closed::closed;
pub use parts::{DEFINITIONS, definitions_of, settled};
pub use references::{leave_expressions_out, plainly_referring};
pub use types::{Alternatives, Types, members, target};
