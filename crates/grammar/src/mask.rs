//! A set of tokens, one bit each: what may come next.

use std::fmt;

/// Which tokens of a vocabulary may come next.
#[derive(Clone, PartialEq, Eq)]
pub struct Mask {
    /// Bit `token % 64` of word `token / 64`; bits past the vocabulary are zero.
    words: Box<[u64]>,
    vocabulary: usize,
}

impl Mask {
    /// A mask that allows nothing.
    pub fn none(vocabulary: usize) -> Mask {
        Mask { words: vec![0; vocabulary.div_ceil(64)].into(), vocabulary }
    }

    /// A mask that allows these tokens; those outside the vocabulary count as absent.
    pub fn of(vocabulary: usize, tokens: impl IntoIterator<Item = u32>) -> Mask {
        let mut mask = Mask::none(vocabulary);
        for token in tokens {
            mask.set(token, true);
        }
        mask
    }

    /// What it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// A mask from 32-bit words, the lowest token in the lowest bit.
    pub(crate) fn from_words(words: &[u32], vocabulary: usize) -> Mask {
        let mut mask = Mask::none(vocabulary);
        for (word, pair) in mask.words.iter_mut().zip(words.chunks(2)) {
            let high = pair.get(1).copied().unwrap_or(0);
            *word = u64::from(pair[0]) | u64::from(high) << 32;
        }
        if let Some(last) = mask.words.last_mut() {
            let unused = (64 - vocabulary % 64) % 64;
            *last &= u64::MAX >> unused;
        }
        mask
    }

    /// Allows or forbids a token; one outside the vocabulary stays forbidden.
    pub fn set(&mut self, token: u32, allowed: bool) {
        if (token as usize) < self.vocabulary {
            let word = &mut self.words[token as usize / 64];
            let bit = 1 << (token % 64);
            *word = if allowed { *word | bit } else { *word & !bit };
        }
    }

    /// Whether a token may come next.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// How many tokens may come next.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The tokens that may come next, ascending.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.vocabulary as u32).filter(|&token| self.allows(token))
    }

    /// Tokens there are, allowed or not.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The bits, 64 tokens a word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Forbids what `other` forbids.
    pub(crate) fn retain(&mut self, other: &Mask) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Mask({} of {})", self.count(), self.vocabulary)
    }
}

#[cfg(test)]
mod tests {
    use crate::*;

    #[track_caller]
    fn check(vocabulary: usize, tokens: &[u32]) {
        let mask = Mask::of(vocabulary, tokens.iter().copied());
        let inside: Vec<u32> =
            tokens.iter().copied().filter(|&token| (token as usize) < vocabulary).collect();
        assert_eq!(mask.tokens().collect::<Vec<_>>(), inside);
        assert_eq!(mask.count(), inside.len());
        let halves: Vec<u32> =
            mask.words().iter().flat_map(|&word| [word as u32, (word >> 32) as u32]).collect();
        assert_eq!(Mask::from_words(&halves, vocabulary), mask);
        // The library's words may hold more bits than there are tokens, or end early.
        let mut more = halves.clone();
        more.extend([u32::MAX; 3]);
        if !vocabulary.is_multiple_of(64) {
            let last = vocabulary / 32;
            more[last] |= u32::MAX << (vocabulary % 32);
        }
        assert_eq!(Mask::from_words(&more, vocabulary), mask);
        assert_eq!(Mask::from_words(&[], vocabulary), Mask::none(vocabulary));
    }

    #[test]
    fn bits_are_tokens() {
        check(0, &[0, 5]);
        check(1, &[0]);
        check(63, &[0, 1, 62, 63]);
        check(64, &[0, 31, 32, 63, 64]);
        check(65, &[64, 65]);
        check(97, &[3, 31, 32, 64, 96, 97, 200]);
    }
}
