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

/// The token number `index` of a text that repeats nothing, for a model with so many tokens.
fn noise_token(index: u64, vocab: usize) -> u32 {
    let hash = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((hash >> 20) % vocab as u64) as u32
}

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
