//! The bank as a model sees it: every expert once and with its own bytes, or a failure that says why.

#![allow(
    clippy::unwrap_used,
    reason = "these are tests; clippy.toml covers only the test functions"
)]

mod changes;
mod counters;
mod faults;
mod support;
mod trials;
mod visits;
