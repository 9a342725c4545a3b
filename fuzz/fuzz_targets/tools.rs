//! An answer with tool calls, of any format, cut anywhere.

#![no_main]

#[allow(dead_code, reason = "each target uses one of its functions")]
#[path = "../../crates/text/tests/support/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exercise::answer(input));
