//! The prefix cache: sequences of the past that a new prompt may begin with.
//!
//! An entry is a list of tokens and the [`Sequence`] that holds them; its key is the list and the sequence's code. It takes no memory of its own but that list:
//! its pages and slots belong to the pool of all sequences, so a caller that runs out of them evicts entries here. A
//! prompt gets a fork of the entry that saves most, cut to what both have in common where the layers allow it.
//! It knows nothing of requests and does not decide when to keep or to evict.
//! Invariant: a sequence handed out holds exactly the tokens it is said to hold.

use crate::{CodeId, Sequence};

/// By how many uses (entries kept or found) a turn's end outlives an entry of [`Worth::Spaced`].
const TURN_USES: u64 = 16;

/// What an entry is likely to be good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// A place on the way, in case a prompt diverges after it. It goes before turns that are not much older.
    Spaced,
    /// The end of a turn, an answer, or a place where prompts are known to diverge.
    Turn,
}

/// How much a [`PrefixCache`] may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Entries; each may hold a recurrent state.
    pub entries: usize,
    /// Tokens over all entries, shared ones counted again: bounds the lists, not the pages.
    pub tokens: usize,
}

/// Sequences that may be gone on with.
#[derive(Debug)]
pub struct PrefixCache {
    limits: CacheLimits,
    /// An entry that another begins with is of no use: that one can be cut.
    is_rewindable: bool,
    entries: Vec<Entry>,
    token_count: usize,
    /// Counts uses; the time of this cache.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    tokens: Vec<u32>,
    sequence: Sequence,
    worth: Worth,
    used: u64,
}

impl Entry {
    /// The least goes first.
    fn rank(&self) -> u64 {
        match self.worth {
            Worth::Spaced => self.used,
            Worth::Turn => self.used + TURN_USES,
        }
    }
}

impl PrefixCache {
    /// An empty cache; `is_rewindable` is [`Layout::is_rewindable`](crate::Layout::is_rewindable).
    pub fn new(limits: CacheLimits, is_rewindable: bool) -> PrefixCache {
        PrefixCache { limits, is_rewindable, entries: Vec::new(), token_count: 0, clock: 0 }
    }

    /// Keeps a sequence and the tokens it holds, and drops what is past the limits: perhaps the same one.
    ///
    /// # Panics
    /// If they are not as many as the sequence has positions.
    pub fn insert(&mut self, tokens: &[u32], sequence: Sequence, worth: Worth) {
        assert_eq!(tokens.len(), sequence.len(), "an entry's tokens are those of its sequence");
        if tokens.is_empty() || self.limits.entries == 0 {
            return;
        }
        self.clock += 1;
        let code = sequence.code();
        let covers = |entry: &Entry| {
            entry.sequence.code() == code
                && match self.is_rewindable {
                    true => entry.tokens.starts_with(tokens),
                    false => entry.tokens == tokens,
                }
        };
        if let Some(index) = self.entries.iter().position(covers) {
            let entry = &mut self.entries[index];
            entry.used = self.clock;
            entry.worth = entry.worth.max(worth);
            return;
        }
        if self.is_rewindable {
            let is_covered =
                |entry: &Entry| entry.sequence.code() == code && tokens.starts_with(&entry.tokens);
            self.entries.retain(|entry| !is_covered(entry));
        }
        self.entries.push(Entry { tokens: tokens.to_vec(), sequence, worth, used: self.clock });
        self.count_tokens();
        while self.entries.len() > self.limits.entries || self.token_count > self.limits.tokens {
            self.evict();
        }
    }

    /// A fork of this code that holds the longest beginning of `tokens` it can, at most `most` of them, if any does.
    pub fn find(&mut self, code: CodeId, tokens: &[u32], most: usize) -> Option<Sequence> {
        let (index, len) = self.best(code, tokens, most)?;
        self.clock += 1;
        let entry = &mut self.entries[index];
        entry.used = self.clock;
        let mut sequence = entry.sequence.fork();
        // What was checked cannot be refused.
        sequence.truncate(len).is_ok().then_some(sequence)
    }

    /// How long a sequence [`PrefixCache::find`] would hand out.
    pub fn reach(&self, code: CodeId, tokens: &[u32], most: usize) -> usize {
        self.best(code, tokens, most).map_or(0, |(_, len)| len)
    }

    /// The longest beginning that `tokens` has in common with any entry of this code, whether or not it can be used.
    pub fn longest_common(&self, code: CodeId, tokens: &[u32]) -> usize {
        let entries = self.entries.iter().filter(|entry| entry.sequence.code() == code);
        entries.map(|entry| common_prefix(&entry.tokens, tokens)).max().unwrap_or(0)
    }

    /// The entry that saves most of `tokens`, the one used last of several, and how much that is.
    fn best(&self, code: CodeId, tokens: &[u32], most: usize) -> Option<(usize, usize)> {
        let usable = |(index, entry): (usize, &Entry)| {
            if entry.sequence.code() != code {
                return None;
            }
            let len = common_prefix(&entry.tokens, tokens).min(most);
            (len > 0 && entry.sequence.check_truncate(len).is_ok()).then_some((index, len))
        };
        let candidates = self.entries.iter().enumerate().filter_map(usable);
        candidates.max_by_key(|&(index, len)| (len, self.entries[index].used))
    }

    /// Drops the entry that is worth least: the one least recently used, turns counting as used a little later.
    /// Whether there was one.
    pub fn evict(&mut self) -> bool {
        let ranks = self.entries.iter().enumerate().map(|(index, entry)| (entry.rank(), index));
        let Some((_, index)) = ranks.min() else { return false };
        self.entries.remove(index);
        self.count_tokens();
        true
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.token_count = 0;
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Tokens of all entries, shared ones counted again.
    pub fn token_count(&self) -> usize {
        self.token_count
    }

    fn count_tokens(&mut self) {
        self.token_count = self.entries.iter().map(|entry| entry.tokens.len()).sum();
    }
}

/// How many tokens two lists begin with alike.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
