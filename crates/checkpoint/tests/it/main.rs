//! The checkpoint reader from outside: real layouts, forged files, round trips, mutations.

#![allow(
    clippy::unwrap_used,
    reason = "these are tests; clippy.toml covers only the test functions"
)]

mod config;
mod errors;
mod exercise;
mod experts;
mod folders;
mod gguf;
mod layouts;
mod mutation;
mod quantization;
mod round_trip;
mod support;
