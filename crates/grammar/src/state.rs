//! Where an answer stands: before its grammar, inside it, or at its end.
//!
//! The state is a function of the tokens that were accepted, and of nothing else.

use std::sync::Arc;

use llguidance::CancellationHandle;

use crate::follower::Follower;
use crate::marker::{Marker, Progress};
use crate::vocabulary::Vocabulary;
use crate::{ConstraintError, Mask};

/// Newline tokens that may stand between the marker and the grammar.
const NEWLINE_TOKENS: usize = 2;
/// Tokens of an answer that are tried when a grammar is compiled.
const REHEARSED_TOKENS: usize = 8;

/// Where an answer begins.
pub(crate) enum Start {
    /// In the grammar.
    Inside,
    /// In thinking.
    Free(Arc<Marker>),
    /// In the grammar, or with these tokens in thinking.
    Maybe(Arc<[u32]>, Arc<Marker>),
}

#[derive(Clone)]
enum Phase {
    /// So many tokens of what opens thinking have come; without any, the grammar may begin instead.
    Opening {
        open: Arc<[u32]>,
        came: usize,
        marker: Arc<Marker>,
    },
    /// So many bytes of the marker are matched.
    Free {
        marker: Arc<Marker>,
        matched: usize,
    },
    /// After the marker: so many newline tokens may still come, or the grammar begins.
    Blank {
        left: usize,
    },
    /// Free words, until the opener comes.
    Words,
    Inside,
    /// Permanently unconstrained: the grammar could not be followed.
    Released,
}

pub(crate) struct GrammarState {
    vocabulary: Arc<Vocabulary>,
    follower: Follower,
    phase: Phase,
    /// The token that the grammar waits for, where the answer is free without it.
    opener: Option<u32>,
    /// What the grammar allows to begin with.
    first: Arc<Mask>,
}

impl GrammarState {
    /// The state before the first token.
    pub(crate) fn new(
        vocabulary: Arc<Vocabulary>,
        mut follower: Follower,
        start: Start,
        opener: Option<u32>,
    ) -> Result<GrammarState, ConstraintError> {
        let first = grammar_mask(&mut follower, &vocabulary)?;
        if opener.is_some_and(|token| !first.allows(token)) {
            return Err(ConstraintError::Stuck);
        }
        let inside = GrammarState { vocabulary, follower, phase: Phase::Inside, opener, first };
        inside.rehearse()?;
        let phase = match start {
            Start::Free(marker) => Phase::Free { marker, matched: 0 },
            Start::Maybe(open, marker)
                if open.first().is_some_and(|&token| !inside.first.allows(token)) =>
            {
                Phase::Opening { open, came: 0, marker }
            }
            Start::Inside | Start::Maybe(..) if opener.is_some() => Phase::Words,
            Start::Inside | Start::Maybe(..) => Phase::Inside,
        };
        Ok(GrammarState { phase, ..inside })
    }

    /// A copy that shares nothing that changes. The caches of the library's lexer are copied too: whether
    /// one answer runs into a limit must not depend on what another has cached.
    pub(crate) fn fork(&self) -> GrammarState {
        GrammarState {
            vocabulary: Arc::clone(&self.vocabulary),
            follower: self.follower.fork(),
            phase: self.phase.clone(),
            opener: self.opener,
            first: Arc::clone(&self.first),
        }
    }

    /// Ends the work on this state from outside.
    pub(crate) fn cancellation(&self) -> CancellationHandle {
        self.follower.cancellation()
    }

    /// An estimate of what it holds, rather too much than too little.
    pub(crate) fn bytes(&self) -> usize {
        2 * self.first.bytes() + self.follower.bytes()
    }

    /// Takes in tokens.
    pub(crate) fn accept(&mut self, tokens: &[u32]) -> Result<(), ConstraintError> {
        tokens.iter().try_for_each(|&token| self.step(token))
    }

    /// Takes in a token if it is one of the free words before an opener, and says so.
    pub(crate) fn stays_free(&mut self, token: u32) -> bool {
        let Some(opener) = self.opener else { return false };
        match &mut self.phase {
            Phase::Opening { open, came, marker } if token == open[*came] => {
                *came += 1;
                if *came == open.len() {
                    self.phase = Phase::Free { marker: Arc::clone(marker), matched: 0 };
                }
            }
            Phase::Free { marker, matched } => {
                match marker.advance(*matched, self.vocabulary.bytes(token)) {
                    Progress::Awaited(bytes) => *matched = bytes,
                    Progress::Passed(_) => self.phase = Phase::Words,
                }
            }
            Phase::Opening { .. } | Phase::Blank { .. } | Phase::Words => {
                self.phase = Phase::Words;
                return token != opener;
            }
            Phase::Released => {}
            Phase::Inside => return false,
        }
        true
    }

    /// Frees an answer that would be free without an opener; says whether it is one.
    pub(crate) fn let_go(&mut self) -> bool {
        if self.opener.is_some() {
            self.phase = Phase::Released;
            self.follower.end();
        }
        self.opener.is_some()
    }

    /// What may come next; `None` if everything may.
    pub(crate) fn mask(&mut self) -> Result<Option<Arc<Mask>>, ConstraintError> {
        let is_free = self.opener.is_some() && !matches!(self.phase, Phase::Inside);
        if is_free { Ok(None) } else { self.bounds().map(Some) }
    }

    /// What may come next where not everything may.
    fn bounds(&mut self) -> Result<Arc<Mask>, ConstraintError> {
        match &self.phase {
            Phase::Opening { open, came: 0, .. } => {
                let mut mask = Mask::clone(&self.first);
                mask.set(open[0], true);
                Ok(Arc::new(mask))
            }
            Phase::Opening { open, came, .. } => {
                Ok(Arc::new(Mask::of(self.vocabulary.len(), [open[*came]])))
            }
            Phase::Free { marker, matched } => Ok(Arc::clone(marker.mask(*matched))),
            Phase::Blank { left: 0 } => Ok(Arc::clone(&self.first)),
            Phase::Blank { .. } => {
                let mut mask = Mask::clone(&self.first);
                for &newline in &self.vocabulary.newlines {
                    mask.set(newline, true);
                }
                Ok(Arc::new(mask))
            }
            Phase::Words | Phase::Released | Phase::Inside => {
                grammar_mask(&mut self.follower, &self.vocabulary)
            }
        }
    }

    /// Whether nothing can follow but the end.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Inside) && self.follower.is_stopped()
    }

    /// Follows the grammar for some tokens, the first that may come each time: what is too complex to begin
    /// with is refused rather than failed later.
    fn rehearse(&self) -> Result<(), ConstraintError> {
        let mut rehearsal = self.fork();
        for _ in 0..REHEARSED_TOKENS {
            let mask = match rehearsal.bounds() {
                Ok(mask) => mask,
                Err(error @ ConstraintError::Failed { .. }) => return Err(error),
                Err(_) => break,
            };
            let ends = &self.vocabulary.ends;
            let Some(token) = mask.tokens().find(|token| !ends.contains(token)) else { break };
            rehearsal.step(token)?;
        }
        Ok(())
    }

    fn step(&mut self, token: u32) -> Result<(), ConstraintError> {
        let rejected = Err(ConstraintError::Rejected { token });
        if self.stays_free(token) {
            return Ok(());
        }
        if matches!(self.phase, Phase::Words) {
            self.phase = Phase::Inside;
        }
        if let Phase::Opening { open, came, marker } = &mut self.phase {
            if token == open[*came] {
                *came += 1;
                if *came == open.len() {
                    self.phase = Phase::Free { marker: Arc::clone(marker), matched: 0 };
                }
                return Ok(());
            }
            if *came > 0 || !self.first.allows(token) {
                return rejected;
            }
            self.phase = Phase::Inside;
        }
        if let Phase::Free { marker, matched } = &mut self.phase {
            if !marker.mask(*matched).allows(token) {
                return rejected;
            }
            match marker.advance(*matched, self.vocabulary.bytes(token)) {
                Progress::Awaited(bytes) => *matched = bytes,
                Progress::Passed(rest) => {
                    self.phase = Phase::Blank { left: NEWLINE_TOKENS - usize::from(rest > 0) };
                }
            }
            return Ok(());
        }
        if let Phase::Blank { left } = &mut self.phase {
            if !self.first.allows(token) {
                if *left == 0 || !self.vocabulary.newlines.contains(&token) {
                    return rejected;
                }
                *left -= 1;
                return Ok(());
            }
            self.phase = Phase::Inside;
        }
        if self.follower.is_stopped() {
            // The end may be accepted again and again.
            return if self.vocabulary.ends.contains(&token) { Ok(()) } else { rejected };
        }
        self.follower.accept(token)
    }
}

fn grammar_mask(
    follower: &mut Follower,
    vocabulary: &Vocabulary,
) -> Result<Arc<Mask>, ConstraintError> {
    let mut mask = Mask::from_words(follower.mask()?.as_slice(), vocabulary.len());
    // A grammar may name tokens by number, and with them rows that no token belongs to.
    mask.retain(&vocabulary.known);
    if mask.count() == 0 { Err(ConstraintError::Stuck) } else { Ok(Arc::new(mask)) }
}
