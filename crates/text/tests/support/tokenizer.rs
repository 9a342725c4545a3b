//! What is done with a tokenizer.json that may say anything: for the fuzzer, and for tests on its corpus.

use text::{Detokenizer, Tokenizer};

/// Letters of one to four bytes, marks that compose, white space, and what vocabularies call special.
const TEXT: &str = "ab <s>e\u{301}é ▁世界\u{1f467}\u{0}\n\t<0x0A> ab";

/// Loads the file and, if that goes well, encodes and decodes with it. Errors are fine; a panic is not.
pub(crate) fn exercise(json: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_bytes(json) else { return };
    let _ = tokenizer.encode(TEXT, true);
    let Ok(ids) = tokenizer.encode_up_to(TEXT, false, 1000) else { return };
    let _ = tokenizer.decode(&ids, true);
    let mut detokenizer = Detokenizer::new(&tokenizer);
    for &id in ids.iter().take(64) {
        let _ = (tokenizer.token_bytes(id), tokenizer.is_special(id), detokenizer.push(id));
    }
    let _ = detokenizer.finish();
}
