//! The free stretch before a grammar: everything up to and including a marker such as `</think>`.
//!
//! The marker may be one token or several, and need not begin where a token begins. While it is awaited every
//! token may come except those that end the answer (a grammar that has not begun cannot end) and those that
//! hold the end of the marker and then something else than one or two newlines: the grammar would begin in
//! the middle of a token.

use std::sync::Arc;

use crate::vocabulary::Vocabulary;
use crate::{GrammarError, Mask};

/// Longer markers are no markers.
const LONGEST_BYTES: usize = 64;

pub(crate) struct Marker {
    text: Vec<u8>,
    /// For each matched length, the longest shorter length that is matched as well (Knuth, Morris, Pratt).
    borders: Vec<usize>,
    /// For each matched length, what may come next.
    masks: Vec<Arc<Mask>>,
}

/// Where a token leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// So many bytes of the marker are the end of the text.
    Awaited(usize),
    /// The marker is complete, and so many bytes of the token follow it.
    Passed(usize),
}

impl Marker {
    pub(crate) fn new(text: &str, vocabulary: &Vocabulary) -> Result<Marker, GrammarError> {
        if text.is_empty() || text.len() > LONGEST_BYTES {
            let (what, got, limit) = ("bytes of the marker before it", text.len(), LONGEST_BYTES);
            return Err(GrammarError::TooLarge { what, got, limit });
        }
        let text = text.as_bytes().to_vec();
        let mut marker = Marker { borders: borders(&text), text, masks: Vec::new() };
        let mut free = vocabulary.known.clone();
        for &end in &vocabulary.ends {
            free.set(end, false);
        }
        let tokens: Vec<u32> = free.tokens().collect();
        for matched in 0..marker.text.len() {
            // What the first byte of a token sends back to nothing was decided with nothing matched.
            let mut mask = marker.masks.first().map_or_else(|| free.clone(), |m| Mask::clone(m));
            for &token in &tokens {
                let bytes = vocabulary.bytes(token);
                if matched == 0 || marker.next(matched, bytes[0]) > 1 {
                    let passed = marker.advance(matched, bytes);
                    mask.set(token, fits(passed, bytes));
                }
            }
            marker.masks.push(Arc::new(mask));
        }
        Ok(marker)
    }

    /// What may come when so many bytes of the marker are matched.
    pub(crate) fn mask(&self, matched: usize) -> &Arc<Mask> {
        &self.masks[matched]
    }

    /// Reads the bytes of a token.
    pub(crate) fn advance(&self, mut matched: usize, bytes: &[u8]) -> Progress {
        for (index, &byte) in bytes.iter().enumerate() {
            matched = self.next(matched, byte);
            if matched == self.text.len() {
                return Progress::Passed(bytes.len() - index - 1);
            }
        }
        Progress::Awaited(matched)
    }

    fn next(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.text[matched] != byte {
            matched = self.borders[matched];
        }
        matched + usize::from(self.text[matched] == byte)
    }
}

/// Whether nothing of the grammar's is in the token that completes the marker.
fn fits(progress: Progress, bytes: &[u8]) -> bool {
    match progress {
        Progress::Awaited(_) => true,
        Progress::Passed(rest) => {
            rest <= 2 && bytes[bytes.len() - rest..].iter().all(|&b| b == b'\n')
        }
    }
}

/// `borders[n]`: the longest proper prefix of the first `n` bytes that is also their suffix.
fn borders(text: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; text.len() + 1];
    for length in 2..=text.len() {
        let mut border = borders[length - 1];
        while border > 0 && text[border] != text[length - 1] {
            border = borders[border];
        }
        borders[length] = border + usize::from(text[border] == text[length - 1]);
    }
    borders
}
