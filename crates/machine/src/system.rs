//! The queries to each operating system: one file for each, with the same functions in all.
//!
//! Answers come back in the types of [`crate::memory`], [`crate::facts`] and [`crate::disk`]; what a
//! system does not report is `None`, zero or empty. Nothing else in this crate knows which system it is
//! on, but for the two that need different instructions or mappings: [`crate::amx`], [`crate::pages`].

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
pub(crate) use macos::*;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub(crate) use windows::*;

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
mod other;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
pub(crate) use other::*;
