//! A GGUF file on its own, opened and asked for everything.

#![no_main]

#[allow(dead_code, reason = "each target uses one of its functions")]
#[path = "../../crates/checkpoint/tests/it/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exercise::gguf(input));
