//! What a [`Runner`] does with a draft head: features out of its batches, tokens taken in, drafts.
//!
//! The engine's cycle is: run a batch, [`Runner::take_features`], pass the tokens that stayed to [`Runner::head_take_in`],
//! keep the last token's features, and later call [`Runner::head_draft`] for what may come next. Nothing here decides
//! whether a draft pays. Invariant: drafts change speed, never text, so what cannot be drafted is simply not drafted.

use compute::Features;
use model::{Anchor, Head, HeadSegment};
use state::Sequence;

use crate::runner::{Runner, logit_rows};

/// The last tokens of a sequence, which its head has not seen.
#[derive(Debug)]
pub struct HeadTokens<'a> {
    /// The sequence, which holds them already.
    pub sequence: &'a mut Sequence,
    /// Its last tokens.
    pub tokens: &'a [u32],
    /// Their features, from [`Runner::take_features`]; no rows if they are not known.
    pub features: &'a Features,
    /// Features of the token before them; no row if they are not known, as after a prefix came from the cache.
    pub before: &'a Features,
}

/// A draft that is wanted.
#[derive(Debug)]
pub struct HeadDraft<'a> {
    /// The sequence, all of it taken in.
    pub sequence: &'a mut Sequence,
    /// The token after its last, chosen but not in it.
    pub token: u32,
    /// Features of its last token; no row if they are not known.
    pub feature: &'a Features,
    /// Tokens wanted at most.
    pub count: usize,
}

/// Takes a token of a draft by its logits.
type Choose<'a> = &'a mut dyn FnMut(usize, &[f32]) -> (u32, f32);

impl Runner {
    /// The draft head, if there is one.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// What the head needs of the rows of the last batch, segment by segment. Nothing without a head.
    pub fn take_features(&mut self) -> Vec<Features> {
        std::mem::take(&mut self.features)
    }

    /// Lets the head take in the last tokens of some sequences. Positions before them that it never saw are filled
    /// with nothing.
    pub fn head_take_in(&mut self, sequences: &mut [HeadTokens<'_>]) {
        let Some(head) = &self.head else { return };
        let most = self.options.chunk.max(compute::memory::BLOCK);
        for tokens in sequences.iter() {
            let (known, first) = (tokens.sequence.head_len(), tokens.first());
            for start in (known..first).step_by(most) {
                let count = most.min(first - start);
                let mut step = self.backend.begin();
                head.skip(&mut *step, start, count, &mut self.memory, tokens.sequence);
                let _fence = step.submit();
            }
        }
        // As many rows in a step as in one of prefill, whosever they are.
        let mut parts: Vec<(usize, usize, usize)> = Vec::new();
        for (index, tokens) in sequences.iter().enumerate().filter(|(_, t)| t.is_known()) {
            let starts = (0..tokens.tokens.len()).step_by(most);
            parts.extend(starts.map(|at| (index, at, most.min(tokens.tokens.len() - at))));
        }
        let shared: Vec<&Sequence> = sequences.iter().map(|tokens| &*tokens.sequence).collect();
        let mut rest = parts.as_slice();
        while !rest.is_empty() {
            let now = within(rest, most, |part| part.2);
            let segments: Vec<HeadSegment<'_>> = rest[..now]
                .iter()
                .map(|&(index, at, count)| {
                    let of = &sequences[index];
                    HeadSegment {
                        sequence: index,
                        position: of.first() + at,
                        tokens: &of.tokens[at..at + count],
                        features: of.features.slice(at..at + count),
                        before: match at {
                            0 => of.before.clone(),
                            _ => of.features.slice(at - 1..at),
                        },
                    }
                })
                .collect();
            let mut step = self.backend.begin();
            head.take_in(&mut *step, &self.decoder, &segments, &mut self.memory, &shared);
            let _fence = step.submit();
            rest = &rest[now..];
        }
        for tokens in sequences {
            tokens.sequence.set_head_len(tokens.sequence.len());
        }
    }

    /// What the head thinks will follow each sequence's token: the tokens that `choose` takes, given which draft a row of
    /// logits is of, with what it says of them. Fewer than requested, or none, where the head does not reach so far, has
    /// not taken in the sequence, or there is no room for what it writes.
    pub fn head_draft(
        &mut self,
        drafts: &mut [HeadDraft<'_>],
        mut choose: impl FnMut(usize, &[f32]) -> (u32, f32),
    ) -> Vec<Vec<(u32, f32)>> {
        let mut answers = vec![Vec::new(); drafts.len()];
        let Some(head) = &self.head else { return answers };
        let (is_block, reach) = (head.spec().is_block(), head.spec().reach());
        let extra = usize::from(is_block);
        let mut counts = vec![0; drafts.len()];
        for (draft, count) in drafts.iter_mut().zip(&mut counts) {
            let len = draft.sequence.len();
            let room = self.options.context.saturating_sub(len + extra);
            let wanted = draft.count.min(reach).min(room);
            if wanted > 0
                && draft.sequence.head_len() == len
                && self.memory.prepare(draft.sequence, wanted + extra).is_ok()
            {
                *count = wanted;
            }
        }
        let going: Vec<usize> = (0..drafts.len()).filter(|&index| counts[index] > 0).collect();
        match is_block {
            true => self.draft_blocks(drafts, &counts, &going, &mut answers, &mut choose),
            false => self.draft_chains(drafts, &counts, going, &mut answers, &mut choose),
        }
        // What the drafts wrote is not part of the sequences.
        drafts.iter_mut().for_each(|draft| draft.sequence.advance(0));
        answers
    }

    /// All tokens of a draft in one pass, as many sequences at once as there is room for logits.
    fn draft_blocks(
        &mut self,
        drafts: &[HeadDraft<'_>],
        counts: &[usize],
        going: &[usize],
        answers: &mut [Vec<(u32, f32)>],
        choose: Choose<'_>,
    ) {
        let Some(head) = &self.head else { return };
        let shared: Vec<&Sequence> = drafts.iter().map(|draft| &*draft.sequence).collect();
        let mut rest = going;
        while !rest.is_empty() {
            let now = within(rest, logit_rows(&self.options), |&index| counts[index]);
            let anchor = |&index: &usize| anchor(drafts, index, 0, counts[index]);
            let anchors: Vec<Anchor> = rest[..now].iter().map(anchor).collect();
            let mut step = self.backend.begin();
            let memory = &mut self.memory;
            let proposal = head.propose(&mut *step, &self.decoder, &anchors, memory, &shared);
            let fence = step.submit();
            let mut rows = step.read(&fence, proposal.logits).chunks_exact(self.spec.vocab);
            for &index in &rest[..now] {
                let rows = rows.by_ref().take(counts[index]);
                answers[index].extend(rows.map(|row| choose(index, row)));
            }
            rest = &rest[now..];
        }
    }

    /// One token of every draft in a pass, and again from there.
    fn draft_chains(
        &mut self,
        drafts: &[HeadDraft<'_>],
        counts: &[usize],
        mut going: Vec<usize>,
        answers: &mut [Vec<(u32, f32)>],
        choose: Choose<'_>,
    ) {
        let Some(head) = &self.head else { return };
        let shared: Vec<&Sequence> = drafts.iter().map(|draft| &*draft.sequence).collect();
        let mut hidden: Vec<Features> = drafts.iter().map(|draft| draft.feature.clone()).collect();
        for drafted in 0.. {
            going.retain(|&index| counts[index] > drafted);
            if going.is_empty() {
                break;
            }
            let anchor = |&index: &usize| Anchor {
                token: answers[index].last().map_or(drafts[index].token, |&(token, _)| token),
                feature: hidden[index].clone(),
                ..anchor(drafts, index, drafted, 1)
            };
            let anchors: Vec<Anchor> = going.iter().map(anchor).collect();
            let mut step = self.backend.begin();
            let memory = &mut self.memory;
            let proposal = head.propose(&mut *step, &self.decoder, &anchors, memory, &shared);
            let each: Vec<_> = (0..going.len()).map(|row| row..row + 1).collect();
            let own = proposal.hidden.map(|own| step.retain(&[own], &each));
            let fence = step.submit();
            let rows = step.read(&fence, proposal.logits).chunks_exact(self.spec.vocab);
            for (&index, row) in going.iter().zip(rows) {
                answers[index].push(choose(index, row));
            }
            let Some(own) = own else { break };
            for (&index, row) in going.iter().zip(own) {
                hidden[index] = row;
            }
        }
    }
}

impl HeadTokens<'_> {
    fn is_known(&self) -> bool {
        !self.features.is_empty()
    }

    /// Position of the first token whose features are known.
    fn first(&self) -> usize {
        let (len, count) = (self.sequence.len(), self.tokens.len());
        assert!(count <= len, "{count} tokens of {len}");
        if self.is_known() { len - count } else { len }
    }
}

/// Where the token `drafted` of a draft is guessed.
fn anchor(drafts: &[HeadDraft<'_>], index: usize, drafted: usize, count: usize) -> Anchor {
    let draft = &drafts[index];
    let position = draft.sequence.len() + drafted;
    let feature = draft.feature.clone();
    Anchor { sequence: index, position, token: draft.token, feature, count }
}

/// How many of the first items have at most `most` rows together; one at least.
fn within<T>(items: &[T], most: usize, rows: impl Fn(&T) -> usize) -> usize {
    let mut sum = 0;
    let fits = |item: &&T| {
        sum += rows(item);
        sum <= most
    };
    items.iter().take_while(fits).count().max(1)
}
