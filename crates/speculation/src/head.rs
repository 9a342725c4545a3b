//! A draft head as a source: an MTP layer or a DFlash block, which read what the target thought of each token.
//!
//! Features of tokens that were computed are handed over after every pass. Those of prompts are taken in at once, those of
//! answers when a draft is wanted. Of an answer for which none is wanted for long only the last are kept: a head that
//! does not pay costs little.

use std::collections::HashMap;

use model::HeadSpec;
use runtime::{Features, HeadDraft, HeadTokens, Result, Runner};
use state::Sequence;

use super::controller::Offer;
use super::drafter::ObservedRows;
use super::source::{Source, Wanted, bucket};
use super::{AnswerId, SourceKind};

/// Rows of an answer whose features are kept for the head at least; twice as many at most.
const KEPT: usize = 128;

/// The head of the target.
pub(crate) struct HeadSource {
    kind: SourceKind,
    reach: usize,
    context: usize,
    answers: HashMap<AnswerId, Follower>,
}

/// How far the head has followed an answer.
#[derive(Debug, Default)]
struct Follower {
    /// Features of the last tokens of the sequence, which the head has not taken in.
    pending: Features,
    /// Features of the token before them; no row if they are not known.
    before: Features,
    /// Length of the sequence up to which it was followed.
    len: usize,
}

impl Follower {
    /// Features of the last token of the sequence.
    fn last(&self) -> Features {
        match self.pending.is_empty() {
            true => self.before.clone(),
            false => self.pending.last().alone(),
        }
    }

    /// Drops all but the last rows, once there are twice as many.
    fn forget_old(&mut self, rows: usize) {
        let pending = self.pending.rows();
        if pending >= 2 * rows {
            let old = pending - rows;
            self.before = self.pending.slice(old - 1..old).alone();
            self.pending = self.pending.slice(old..pending);
        }
    }
}

impl HeadSource {
    /// The source of a target's head.
    pub(crate) fn new(spec: &HeadSpec, context: usize, most: usize) -> HeadSource {
        let kind = if spec.is_block() { SourceKind::Dflash } else { SourceKind::Mtp };
        let reach = spec.reach().min(most);
        HeadSource { kind, reach, context, answers: HashMap::new() }
    }

    /// Lets the head take in what is pending of some answers: whose, all their tokens, their sequences.
    fn read(&mut self, target: &mut Runner, of: &mut [(AnswerId, &[u32], &mut Sequence)]) {
        let mut all = Vec::new();
        for (id, tokens, sequence) in of.iter_mut() {
            let Some(follower) = self.answers.get(id) else { continue };
            let count = follower.pending.rows();
            if count > 0 && follower.len == sequence.len() {
                let tokens = &tokens[sequence.len() - count..sequence.len()];
                let (features, before) = (&follower.pending, &follower.before);
                all.push(HeadTokens { sequence, tokens, features, before });
            }
        }
        if all.is_empty() {
            return;
        }
        target.head_take_in(&mut all);
        for (id, ..) in of {
            if let Some(follower) = self.answers.get_mut(id) {
                follower.before = follower.last();
                follower.pending = Features::default();
            }
        }
    }
}

impl Source for HeadSource {
    fn kind(&self) -> SourceKind {
        self.kind
    }

    fn offer(&mut self, id: AnswerId, tokens: &[u32], most: usize) -> Option<Offer> {
        let follower = self.answers.get(&id).filter(|follower| follower.len + 1 == tokens.len())?;
        let behind = follower.pending.rows();
        // A block has a row for the token that is known, too.
        let room = self.context.saturating_sub(tokens.len());
        let most = most.min(self.reach).min(room);
        (most > 0).then_some(Offer { source: self.kind, most, behind, bucket: None })
    }

    fn draft(&mut self, target: &mut Runner, wanted: &mut [Wanted<'_>]) -> Result<()> {
        let mut of: Vec<(AnswerId, &[u32], &mut Sequence)> =
            wanted.iter_mut().map(|w| (w.id, w.tokens, &mut *w.sequence)).collect();
        self.read(target, &mut of);
        let mut drafts = Vec::with_capacity(wanted.len());
        let mut choices = Vec::with_capacity(wanted.len());
        let last =
            |w: &Wanted<'_>| self.answers.get(&w.id).map_or_else(Features::default, Follower::last);
        let features: Vec<Features> = wanted.iter().map(last).collect();
        for (wanted, feature) in wanted.iter_mut().zip(&features) {
            let Wanted { tokens, sequence, count, choose, draft, .. } = wanted;
            let token = tokens.last().copied().unwrap_or(0);
            drafts.push(HeadDraft { sequence, token, feature, count: *count });
            choices.push((*choose, draft));
        }
        target.head_draft(&mut drafts, |index, logits| {
            let (choose, draft) = &mut choices[index];
            let (token, probability) = choose(logits, draft.tokens.len());
            draft.push(token, bucket(probability));
            (token, probability)
        });
        Ok(())
    }

    fn observe_rows(&mut self, target: &mut Runner, passed: &mut [ObservedRows<'_>]) {
        for passed in passed.iter() {
            let follower = self.answers.entry(passed.id).or_default();
            let len = passed.sequence.len();
            if follower.len + passed.features.rows() != len {
                // It rested: what is known is not what comes before this.
                follower.pending = Features::default();
                follower.before = Features::default();
            }
            follower.pending.append(&passed.features);
            follower.len = len;
        }
        for passed in passed.iter().filter(|passed| !passed.is_prompt) {
            let Some(follower) = self.answers.get_mut(&passed.id) else { continue };
            follower.forget_old(KEPT);
        }
        let mut of: Vec<(AnswerId, &[u32], &mut Sequence)> = passed
            .iter_mut()
            .filter(|passed| passed.is_prompt)
            .map(|passed| (passed.id, passed.tokens, &mut *passed.sequence))
            .collect();
        self.read(target, &mut of);
    }

    fn catch_up(
        &mut self,
        target: &mut Runner,
        id: AnswerId,
        tokens: &[u32],
        sequence: &mut Sequence,
    ) {
        self.read(target, &mut [(id, tokens, sequence)]);
    }

    fn forget(&mut self, id: AnswerId, _tokens: &[u32]) {
        self.answers.remove(&id);
    }
}
