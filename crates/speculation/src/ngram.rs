//! Prompt lookup: what followed the last few tokens when they were there before.
//!
//! Answers that copy, edit or quote say again what the prompt said, and looking that up costs next to nothing. For each
//! answer an index records where each run of four, three and two tokens was seen last; the longest run that
//! was seen before decides. A source that was wrong twice in a row is silent for some time.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use runtime::{Result, Runner};

use super::controller::Offer;
use super::source::{Source, Wanted};
use super::{AnswerId, SourceKind};

/// Tokens of a run, the longest first.
const RUNS: [usize; 3] = [4, 3, 2];

/// Tokens proposed after a match of only two.
const SHORT_DRAFT: usize = 2;

/// Matches longer than this are as good as any.
const LONGEST: usize = 32;

/// Rounds in a row without an accepted token after which it is silent.
const FAILURES: usize = 2;

/// Tokens for which it is silent then.
const SILENCE: usize = 32;

/// Looks up what is repeated.
#[derive(Debug, Default)]
pub(crate) struct NGram {
    answers: HashMap<AnswerId, Index>,
}

/// Where runs of tokens of one answer were seen last.
#[derive(Debug, Default)]
struct Index {
    /// By run: the position after it. Runs that end with the last token are not in yet.
    after: HashMap<u128, u32, Keys>,
    /// Tokens that are in.
    len: usize,
    failures: usize,
    /// Length of the answer at which it may draft again.
    silent_until: usize,
}

impl Index {
    /// Takes in all tokens but the last, whose runs must not match themselves.
    fn extend(&mut self, tokens: &[u32]) {
        let end = tokens.len().saturating_sub(1);
        for at in self.len..end {
            for run in RUNS {
                if let Some(start) = (at + 1).checked_sub(run) {
                    self.after.insert(key(&tokens[start..=at]), at as u32 + 1);
                }
            }
        }
        self.len = self.len.max(end);
    }

    /// Where the tokens continue as they did before, and how many tokens before it are the same.
    fn find(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let run = |&run: &usize| {
            let start = tokens.len().checked_sub(run)?;
            self.after.get(&key(&tokens[start..]))
        };
        let at = RUNS.iter().find_map(run).copied()? as usize;
        let pairs = tokens[..at].iter().rev().zip(tokens.iter().rev());
        let same = pairs.take(LONGEST).take_while(|(a, b)| a == b).count();
        Some((at, same))
    }
}

/// The token that was `index` after a match; past the present, what has been proposed goes round again.
fn follow(tokens: &[u32], at: usize, draft: &[u32], index: usize) -> u32 {
    let back = tokens.len() - at;
    if index < back { tokens[at + index] } else { draft[index - back] }
}

/// Runs of different lengths never collide: no token has the number that all ones would be.
fn key(run: &[u32]) -> u128 {
    run.iter().fold(u128::MAX, |key, &token| key << 32 | u128::from(token))
}

/// Hashes a run by one multiplication with numbers that clients do not know: every token of every answer is put in three
/// times.
#[derive(Clone, Copy, Debug)]
struct Keys([u64; 2]);

impl Default for Keys {
    fn default() -> Keys {
        let random = RandomState::new();
        Keys([0, 1].map(|number: u8| random.hash_one(number)))
    }
}

impl BuildHasher for Keys {
    type Hasher = RunHasher;

    fn build_hasher(&self) -> RunHasher {
        RunHasher { keys: *self, hash: 0 }
    }
}

/// See [`Keys`].
struct RunHasher {
    keys: Keys,
    hash: u64,
}

impl Hasher for RunHasher {
    fn write_u128(&mut self, run: u128) {
        let [first, second] = self.keys.0;
        let product =
            u128::from(first ^ run as u64 ^ self.hash) * u128::from(second ^ (run >> 64) as u64);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u128(byte.into()));
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// The longer the match, the better it is.
fn bucket(same: usize) -> u8 {
    [3, 4, 5, 7, 10, 16, 32].iter().filter(|&&least| same >= least).count() as u8
}

impl Source for NGram {
    fn kind(&self) -> SourceKind {
        SourceKind::NGram
    }

    fn offer(&mut self, id: AnswerId, tokens: &[u32], most: usize) -> Option<Offer> {
        let index = self.answers.entry(id).or_default();
        index.extend(tokens);
        if tokens.len() < index.silent_until {
            return None;
        }
        let (_, same) = index.find(tokens)?;
        let longest = if same < 3 { SHORT_DRAFT } else { most };
        let (source, bucket) = (SourceKind::NGram, Some(bucket(same)));
        Some(Offer { source, most: longest.min(most), behind: 0, bucket })
    }

    fn draft(&mut self, _target: &mut Runner, wanted: &mut [Wanted<'_>]) -> Result<()> {
        for Wanted { id, tokens, count, draft, .. } in wanted {
            let found = self.answers.get(id).and_then(|index| index.find(tokens));
            let Some((at, same)) = found else { continue };
            for index in 0..*count {
                let token = follow(tokens, at, &draft.tokens, index);
                draft.push(token, bucket(same));
            }
        }
        Ok(())
    }

    fn observe(&mut self, id: AnswerId, verified: usize, accepted: usize) {
        let Some(index) = self.answers.get_mut(&id).filter(|_| verified > 0) else { return };
        index.failures = if accepted > 0 { 0 } else { index.failures + 1 };
        if index.failures >= FAILURES {
            index.failures = 0;
            index.silent_until = index.len + SILENCE;
        }
    }

    fn forget(&mut self, id: AnswerId, _tokens: &[u32]) {
        self.answers.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tokens: &[u32], expect: Option<(&[u32], u8)>) {
        let mut source = NGram::default();
        let offer = source.offer(AnswerId(0), tokens, 8);
        let index = &source.answers[&AnswerId(0)];
        let found = offer.map(|offer| {
            let at = index.find(tokens).unwrap().0;
            let mut draft = Vec::new();
            (0..offer.most).for_each(|i| draft.push(follow(tokens, at, &draft, i)));
            (draft, offer.bucket.unwrap())
        });
        assert_eq!(found, expect.map(|(draft, bucket)| (draft.to_vec(), bucket)));
        // Token by token it finds the same.
        let mut source = NGram::default();
        for len in 1..=tokens.len() {
            source.offer(AnswerId(0), &tokens[..len], 8);
        }
        if !tokens.is_empty() {
            assert_eq!(source.answers[&AnswerId(0)].find(tokens), index.find(tokens));
        }
    }

    #[test]
    fn what_was_said_before_is_proposed_again() {
        check(&[], None);
        check(&[1], None);
        check(&[1, 2, 3, 4, 5], None);
        // Two tokens: a short draft.
        check(&[1, 2, 3, 4, 5, 9, 1, 2], Some((&[3, 4], 0)));
        // Three and more: a long one, past the present as if the pattern continued.
        check(&[1, 2, 3, 4, 5, 9, 1, 2, 3], Some((&[4, 5, 9, 1, 2, 3, 4, 5], 1)));
        check(&[7, 1, 2, 3, 4, 7, 1, 2, 3], Some((&[4, 7, 1, 2, 3, 4, 7, 1], 2)));
        // The last time it was seen counts, and a longer run more than a later one.
        check(&[1, 2, 3, 1, 2, 4, 1, 2], Some((&[4, 1], 0)));
        check(&[9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], Some((&[3, 8, 1, 2, 4, 9, 1, 2], 1)));
        // A loop.
        check(&[5, 5, 5, 5, 5], Some((&[5; 8], 2)));
        check(&[1, 2, 1, 2, 1, 2], Some((&[1, 2, 1, 2, 1, 2, 1, 2], 2)));
    }

    #[test]
    fn after_two_failures_it_is_silent_for_some_time() {
        let mut source = NGram::default();
        let id = AnswerId(3);
        let mut tokens = vec![1, 2, 3, 4, 1, 2, 3];
        assert!(source.offer(id, &tokens, 4).is_some());
        source.observe(id, 2, 0);
        source.observe(id, 2, 1);
        source.observe(id, 2, 0);
        assert!(source.offer(id, &tokens, 4).is_some());
        source.observe(id, 2, 0);
        assert!(source.offer(id, &tokens, 4).is_none());
        let spoke = (0..40).find(|_| {
            tokens.extend([1, 2, 3]);
            source.offer(id, &tokens, 4).is_some()
        });
        assert_eq!(spoke, Some(10));
        source.forget(id, &tokens);
        assert!(source.answers.is_empty());
    }
}
