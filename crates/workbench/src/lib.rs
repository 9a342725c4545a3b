//! The tools of the workshop: what measures a model, and what makes one to be measured.
//!
//! Each module takes a loaded model, or none, and returns a report as data. Finding, planning and loading
//! models, options and terminals are the program's business, and so is how a report is printed. Nothing here
//! is used to serve a request.

#![forbid(unsafe_code)]

pub mod bench;
mod error;
pub mod logits;
pub mod perplexity;
pub mod simulate;
pub mod synth;

pub use error::{Error, Result};

/// The index of the largest value; the first of equals.
fn argmax(values: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &value) in values.iter().enumerate() {
        if value > values[best] {
            best = index;
        }
    }
    best as u32
}
