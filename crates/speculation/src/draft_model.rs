//! A smaller model with the same tokenizer drafts token by token.
//!
//! For each answer it keeps a sequence of what is certain. To draft, it reads what it has not seen, then goes on in a fork
//! that is thrown away: so a draft that turns out wrong is never in its memory, whatever kind of layers it has. It
//! reads only when it is asked for a draft, so one that does not pay costs nothing.

use std::collections::HashMap;

use model::{Batch, Logits, SegmentKind};
use runtime::{Result, Runner};
use state::{CacheLimits, PrefixCache, Sequence, Worth};

use super::controller::Offer;
use super::source::{Source, Wanted, bucket};
use super::{AnswerId, SourceKind};

/// Sequences of ended answers that are kept, for the next turn.
const ENTRIES: usize = 4;

/// A model that drafts.
pub(crate) struct DraftModel {
    runner: Runner,
    answers: HashMap<AnswerId, Sequence>,
    cache: PrefixCache,
}

impl DraftModel {
    /// A drafting model; its options must have room for as many sequences as the target's, and as many
    /// checkpoints again plus [`ENTRIES`].
    pub(crate) fn new(runner: Runner) -> DraftModel {
        let tokens = runner.options().pool_positions();
        let limits = CacheLimits { entries: ENTRIES, tokens };
        let cache = PrefixCache::new(limits, runner.memory().is_rewindable());
        DraftModel { runner, answers: HashMap::new(), cache }
    }

    /// The sequence of an answer, or the longest beginning of it that is known.
    fn sequence(&mut self, id: AnswerId, tokens: &[u32]) -> Result<Sequence> {
        if let Some(sequence) = self.answers.remove(&id) {
            return Ok(sequence);
        }
        if let Some(sequence) =
            self.cache.find(self.runner.memory().code(), tokens, tokens.len() - 1)
        {
            return Ok(sequence);
        }
        loop {
            match self.runner.new_sequence() {
                Ok(sequence) => return Ok(sequence),
                Err(error) if !self.cache.evict() => return Err(error.into()),
                Err(_) => {}
            }
        }
    }

    /// One step of several sequences; the token drafted after each that reaches its end, and its probability.
    fn step(
        &mut self,
        sequences: &mut [Sequence],
        rows: &[(usize, &[u32], bool)],
        wanted: &[Wanted<'_>],
    ) -> Result<Vec<(usize, u32, f32)>> {
        let mut batch = Batch::default();
        let mut wanting = Vec::new();
        for &(index, tokens, reaches_end) in rows {
            let kind = if tokens.len() > 1 { SegmentKind::Prefill } else { SegmentKind::Decode };
            let logits = if reaches_end { Logits::Last } else { Logits::None };
            if reaches_end {
                wanting.push(index);
            }
            batch.push(index, sequences[index].len(), tokens, kind, logits);
        }
        let mut found = Vec::with_capacity(wanting.len());
        let mut all: Vec<&mut Sequence> = sequences.iter_mut().collect();
        let failures = self.runner.forward(&batch, &mut all, |row, logits| {
            let (token, probability) = wanted[wanting[row]].choose(logits);
            found.push((wanting[row], token, probability));
        })?;
        match failures.into_iter().next() {
            Some(failure) => Err(failure.error),
            None => Ok(found),
        }
    }

    /// Makes room for forks and new pages.
    fn make_room(&mut self, sequences: &mut [Sequence], counts: &[usize]) -> Result<()> {
        for (sequence, &count) in sequences.iter_mut().zip(counts) {
            while let Err(error) = self.runner.reserve(sequence, count) {
                if !self.cache.evict() {
                    sequence.advance(0);
                    return Err(error.into());
                }
            }
            sequence.advance(0);
        }
        Ok(())
    }

    fn run(&mut self, sequences: &mut [Sequence], wanted: &mut [Wanted<'_>]) -> Result<()> {
        let behind = |sequences: &[Sequence], wanted: &[Wanted<'_>]| -> Vec<usize> {
            let left = |(s, w): (&Sequence, &Wanted<'_>)| w.tokens.len() - s.len();
            sequences.iter().zip(wanted).map(left).collect()
        };
        // Read what is certain.
        let mut ends = Vec::new();
        loop {
            let left = behind(sequences, wanted);
            if left.iter().all(|&left| left == 0) {
                break;
            }
            let mut room = self.runner.options().chunk;
            let mut counts = vec![0; left.len()];
            for (count, &left) in counts.iter_mut().zip(&left) {
                *count = left.min(room);
                room -= *count;
            }
            self.make_room(sequences, &counts)?;
            let rows: Vec<(usize, &[u32], bool)> = (0..left.len())
                .filter(|&index| counts[index] > 0)
                .map(|index| {
                    let at = sequences[index].len();
                    let part = &wanted[index].tokens[at..at + counts[index]];
                    (index, part, counts[index] == left[index])
                })
                .collect();
            ends.extend(self.step(sequences, &rows, wanted)?);
        }
        // Go on in forks.
        let mut forks: Vec<Sequence> = sequences.iter().map(Sequence::fork).collect();
        loop {
            for (index, token, probability) in std::mem::take(&mut ends) {
                wanted[index].draft.push(token, bucket(probability));
            }
            // Without a first token there was nothing new to read.
            let unfinished = |w: &Wanted<'_>| {
                let draft = &w.draft.tokens;
                !draft.is_empty() && draft.len() < w.count
            };
            let counts: Vec<usize> = wanted.iter().map(|w| usize::from(unfinished(w))).collect();
            if counts.iter().all(|&count| count == 0) {
                return Ok(());
            }
            self.make_room(&mut forks, &counts)?;
            let last: Vec<(usize, [u32; 1])> = wanted
                .iter()
                .enumerate()
                .filter(|(_, w)| unfinished(w))
                .filter_map(|(index, w)| Some((index, [*w.draft.tokens.last()?])))
                .collect();
            let rows: Vec<(usize, &[u32], bool)> =
                last.iter().map(|(index, token)| (*index, token.as_slice(), true)).collect();
            ends = self.step(&mut forks, &rows, wanted)?;
        }
    }
}

impl Source for DraftModel {
    fn kind(&self) -> SourceKind {
        SourceKind::DraftModel
    }

    fn offer(&mut self, id: AnswerId, tokens: &[u32], most: usize) -> Option<Offer> {
        let known = match self.answers.get(&id) {
            Some(sequence) => sequence.len(),
            None => self.cache.reach(self.runner.memory().code(), tokens, tokens.len() - 1),
        };
        let vocab = self.runner.spec().vocab;
        if tokens[known..].iter().any(|&token| token as usize >= vocab) {
            return None;
        }
        // The last token drafted is not read.
        let room = (self.runner.options().context + 1).saturating_sub(tokens.len());
        let (source, most) = (SourceKind::DraftModel, most.min(room));
        // The last token is read in any case: that is the draft's first step.
        let behind = (tokens.len() - known).saturating_sub(1);
        (most > 0).then_some(Offer { source, most, behind, bucket: None })
    }

    fn draft(&mut self, _target: &mut Runner, wanted: &mut [Wanted<'_>]) -> Result<()> {
        let mut sequences = Vec::with_capacity(wanted.len());
        for Wanted { id, tokens, .. } in wanted.iter() {
            sequences.push(self.sequence(*id, tokens)?);
        }
        let outcome = self.run(&mut sequences, wanted);
        if outcome.is_ok() {
            let ids = wanted.iter().map(|wanted| wanted.id);
            self.answers.extend(ids.zip(sequences));
        }
        outcome
    }

    fn clear(&mut self) {
        self.cache.clear();
    }

    fn forget(&mut self, id: AnswerId, tokens: &[u32]) {
        if let Some(sequence) = self.answers.remove(&id) {
            self.cache.insert(&tokens[..sequence.len()], sequence, Worth::Turn);
        }
    }
}
