//! A tokenizer.json, and a text that goes through it.

#![no_main]

#[path = "../../crates/text/tests/support/tokenizer.rs"]
mod tokenizer;

libfuzzer_sys::fuzz_target!(|input: &[u8]| tokenizer::exercise(input));
