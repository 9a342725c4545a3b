//! Tokenizers that were made to do harm, loaded and used: each ends as a tokenizer or as an error.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue should panic")]

#[path = "support/tokenizer.rs"]
mod tokenizer;

use std::path::Path;

use text::{Error, Tokenizer};
use tokenizer::exercise;

/// The seeds of the fuzzer, whole, cut at every place and with every byte changed.
#[test]
fn the_corpus_and_its_neighbours_end_well() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tokenizer");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        exercise(&seed);
        for place in 0..seed.len() {
            exercise(&seed[..place]);
            for byte in [b'9', b'"', b',', seed[place] ^ 1] {
                let mut changed = seed.clone();
                changed[place] = byte;
                exercise(&changed);
            }
        }
        count += 1;
    }
    assert!(count >= 5, "{count} seeds");
}

/// What the library panics on only when a certain text comes is an error of that text.
#[test]
fn a_panic_while_encoding_is_an_error() {
    // It begins with the empty text before an x, which the library replaces by cutting nothing out of nothing.
    let file = br#"{"version": "1.0", "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(?=x)"}, "content": "y"},
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
    match Tokenizer::from_bytes(file) {
        Ok(tokenizer) => {
            for text in ["", "x", "axb", "xx", "éx世"] {
                let _ = tokenizer.encode(text, true);
            }
        }
        Err(error) => assert!(matches!(error, Error::TokenizerFile { .. }), "{error}"),
    }
}
