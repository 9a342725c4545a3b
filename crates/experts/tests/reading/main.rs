//! Reading from disks that work, disks that fail, and files that change.

#![allow(
    clippy::unwrap_used,
    reason = "these are tests; clippy.toml covers only the test functions"
)]

mod changes;
mod faults;
mod files;
mod order;
mod probe;
// Other systems may refuse to replace a file that is open.
#[cfg(unix)]
mod replaced;
#[cfg(target_os = "linux")]
mod ring;
mod support;
#[cfg(target_os = "linux")]
mod uring;
