//! The server from outside: the real binary with Pebble, official clients, many at once, and bad ones.
//!
//! Clients and browsers come from the environment that `cargo xtask test` makes; what is missing there is
//! said with a line that begins `skipped:`. Everything else is done with plain sockets, which can also say
//! what no client library would.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue should panic")]
// Servers are ended by SIGTERM, which Windows does not have.
#![cfg(unix)]

mod browser;
mod clients;
mod connections;
mod ending;
mod group;
mod hostile;
mod http;
mod load;
mod memory;
mod prompts;
mod readers;
mod served;
mod speculation;
mod templates;
mod thinking;
mod turns;
mod uring;
mod watched;
mod weights;

use std::path::{Path, PathBuf};

/// A path in the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A path that `cargo xtask test` gives in this variable; without it, the test says so and skips.
fn provided(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {variable} is not set");
    }
    path
}
