//! Drafts for the answers of an engine: which source is used, and what is learned from the outcome.

use std::time::Instant;

use experts::{Missed, StreamedBank};
use model::{Batch, SegmentKind};
use runtime::{Features, LOGIT_ROWS, Result, Runner};
use state::Sequence;

use super::controller::{Controller, DraftCost, Drafted, Offer, Pass, Pick, Settings, Verdict};
use super::draft_model::DraftModel;
use super::head::HeadSource;
use super::ngram::NGram;
use super::source::{Choose, Draft, Source, Wanted};
use super::{AnswerId, LoggedRound, Oracle, Report, SourceKind, Speculation};

/// Rounds without a draft after which the next few are not even thought about: where a pass takes less than a
/// millisecond, thinking would be a few percent of it.
const QUIET: usize = 24;

/// How many those are.
const NAP: usize = 15;

/// Answers in a row for which a head drafted nothing before it rests for whole answers, and how often it is given
/// another one then.
const FRUITLESS: (usize, usize) = (4, 8);

/// What is repeated as surely as this wakes it up.
const WAKING_BUCKET: u8 = 3;

/// An answer that may be drafted for.
pub struct Subject<'a> {
    /// Which one.
    pub id: AnswerId,
    /// The prompt and the answer so far.
    pub tokens: &'a [u32],
    /// The target's own memory of all of them but the last.
    pub sequence: &'a mut Sequence,
    /// Tokens at most: the context and the answer have an end.
    pub most: usize,
    /// How its tokens are chosen.
    pub choose: &'a Choose<'a>,
    /// What comes of it.
    pub draft: &'a mut Draft,
}

/// Rows that a sequence has advanced by.
pub struct ObservedRows<'a> {
    /// Of which answer.
    pub id: AnswerId,
    /// The prompt and the answer so far; the sequence holds the first of them.
    pub tokens: &'a [u32],
    /// The target's own memory.
    pub sequence: &'a mut Sequence,
    /// What the target thought of the rows.
    pub features: Features,
    /// Whether they are rows of a prompt.
    pub is_prompt: bool,
}

/// Drafts for the answers of an engine.
pub struct Drafter {
    most: usize,
    fixed: Option<usize>,
    controller: Controller,
    sources: Vec<Box<dyn Source>>,
    /// Rounds since something was drafted.
    quiet: usize,
    /// Rounds that it will not think about.
    nap: usize,
    /// Since the last answer ended: whether there was anything to draft for, and whether a head did. And how many
    /// answers ended before for which none did.
    asked: bool,
    head_drafted: bool,
    fruitless: usize,
    /// The round under way, and those before it if they are wanted.
    round: LoggedRound,
    log: Option<Vec<LoggedRound>>,
}

impl Drafter {
    /// Sets up the sources for a target.
    pub fn new(speculation: Speculation, target: &Runner) -> Result<Drafter> {
        let Speculation { most, ngram, draft_model, head, oracle, fixed } = speculation;
        let most = fixed.unwrap_or(most);
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        if ngram {
            sources.push(Box::new(NGram::default()));
        }
        if let Some(mut runner) = draft_model {
            runner.share_threads(target);
            sources.push(Box::new(DraftModel::new(runner)));
        }
        if let (Some(head), Some(most)) = (target.head(), head) {
            let context = target.options().context;
            sources.push(Box::new(HeadSource::new(head.spec(), context, most)));
        }
        if let Some(oracle) = oracle {
            sources.push(Box::new(oracle));
        }
        let streams = target.streamed().is_some();
        let controller = Controller::new(Settings { most, streams });
        Ok(Drafter {
            most,
            fixed,
            controller,
            sources,
            quiet: 0,
            nap: 0,
            asked: false,
            head_drafted: false,
            fruitless: 0,
            round: LoggedRound::default(),
            log: None,
        })
    }

    /// Drafts for the answers whose next token is computed now.
    pub fn draft(&mut self, target: &mut Runner, subjects: &mut [Subject<'_>]) {
        let decoding = subjects.len();
        let most = self.fixed.unwrap_or(self.most);
        let room = (LOGIT_ROWS / decoding.max(1)).saturating_sub(1).min(most);
        self.asked = true;
        self.round = LoggedRound::default();
        let mut offers = Vec::with_capacity(decoding);
        for Subject { id, tokens, most, .. } in subjects.iter() {
            offers.push(self.offers(*id, tokens, room.min(*most)));
        }
        if self.nap > 0 {
            let wakes = |offer: &Offer| offer.bucket >= Some(WAKING_BUCKET);
            self.nap = if offers.iter().flatten().any(wakes) { 0 } else { self.nap - 1 };
            if self.nap > 0 {
                return;
            }
        }
        let picks = match self.fixed {
            None => self.controller.plan(&offers),
            Some(_) => {
                self.controller.begin(decoding);
                offers.iter().map(|offers| first(offers)).collect()
            }
        };
        if picks.iter().all(Option::is_none) {
            // With a fixed number of drafts it is never quiet.
            self.quiet += usize::from(self.fixed.is_none());
            self.nap = if self.quiet > QUIET { NAP + 1 } else { 0 };
            // Nor does a head receive what the model thinks, until the next prompt.
            target.rest_head(self.quiet > QUIET);
            return;
        }
        self.quiet = 0;
        for index in 0..self.sources.len() {
            let kind = self.sources[index].kind();
            let is_head = matches!(kind, SourceKind::Mtp | SourceKind::Dflash);
            let mut wanted = Vec::new();
            let mut cost =
                DraftCost { source: kind, sequences: 0, tokens: 0, read: 0, seconds: 0.0 };
            for ((subject, pick), offers) in subjects.iter_mut().zip(&picks).zip(&offers) {
                let Some(pick) = pick else { continue };
                let offer = &offers[pick.offer];
                if offer.source != kind || pick.count == 0 {
                    continue;
                }
                subject.draft.source = Some(kind);
                cost.sequences += 1;
                cost.tokens = cost.tokens.max(pick.count);
                cost.read += offer.behind;
                wanted.push(Wanted {
                    id: subject.id,
                    tokens: subject.tokens,
                    sequence: &mut *subject.sequence,
                    count: pick.count,
                    choose: subject.choose,
                    draft: &mut *subject.draft,
                });
            }
            if wanted.is_empty() {
                continue;
            }
            self.head_drafted |= is_head;
            let started = Instant::now();
            let outcome = self.sources[index].draft(target, &mut wanted);
            cost.seconds = started.elapsed().as_secs_f64();
            self.controller.observe_draft(&cost);
            (self.round.source, self.round.behind) = (Some(kind), cost.read);
            self.round.draft_seconds += cost.seconds;
            if let Err(error) = outcome {
                tracing::warn!(%error, source = ?kind, "a draft source failed and is left out from now on");
                wanted.iter_mut().for_each(|wanted| wanted.draft.clear());
                self.sources.remove(index);
                break;
            }
        }
        for subject in subjects.iter_mut() {
            // A draft model may know tokens that the target does not.
            let known = |&&token: &&u32| (token as usize) < target.spec().vocab;
            let count = subject.draft.tokens.iter().take_while(known).count();
            subject.draft.truncate(count);
        }
        let drafts: Vec<Option<Drafted<'_>>> = subjects
            .iter()
            .map(|subject| {
                let Draft { source, buckets, .. } = &subject.draft;
                source.filter(|_| !buckets.is_empty()).map(|source| Drafted { source, buckets })
            })
            .collect();
        let counts = match self.fixed {
            None => self.controller.trim(&drafts),
            Some(_) => self.controller.take_whole(&drafts),
        };
        if self.log.is_some()
            && let Some(draft) = drafts.iter().flatten().next()
        {
            self.round.buckets = draft.buckets.to_vec();
        }
        self.round.verified = counts.iter().sum();
        for (subject, count) in subjects.iter_mut().zip(counts) {
            subject.draft.truncate(count);
        }
    }

    /// A prompt is being read: what was learned of the answers before it does not hold any more.
    pub fn wake(&mut self, target: &mut Runner) {
        (self.quiet, self.nap) = (0, 0);
        let (few, period) = FRUITLESS;
        target.rest_head(self.fruitless >= few && !self.fruitless.is_multiple_of(period));
    }

    fn offers(&mut self, id: AnswerId, tokens: &[u32], most: usize) -> Vec<Offer> {
        if most == 0 {
            return Vec::new();
        }
        // Only what is repeated can wake it up.
        let naps = self.nap > 1;
        let asked =
            self.sources.iter_mut().filter(|source| !naps || source.kind() == SourceKind::NGram);
        asked.filter_map(|source| source.offer(id, tokens, most)).collect()
    }

    /// What a pass without rows of prompts took. Others are not reported, but what they read is forgotten.
    pub fn observe_pass(&mut self, target: &Runner, batch: &Batch, seconds: f64) {
        let missed = target.streamed().map(StreamedBank::take_missed).unwrap_or_default();
        let prefills = batch.segments.iter().any(|segment| segment.kind == SegmentKind::Prefill);
        if let Some(log) = self.log.as_mut().filter(|_| !prefills && batch.segments.len() == 1) {
            let mut round = std::mem::take(&mut self.round);
            round.pass_seconds = seconds;
            if missed.wanted > 0 {
                let depths = round.rows().min(missed.bytes.len());
                round.missed_bytes = missed.bytes[..depths].to_vec();
                round.wanted_bytes = wanted_bytes(&missed);
            }
            log.push(round);
        }
        // In a nap nothing is learned either, but while the last nap's round is being thought about.
        if prefills || (self.nap > 0 && self.nap <= NAP) {
            return;
        }
        self.controller.observe_pass(&Pass {
            rows: batch.tokens.len(),
            sequences: batch.segments.len(),
            missed_bytes: missed.total_bytes(),
            wanted_bytes: wanted_bytes(&missed),
            missed_by_depth: &missed.bytes,
            seconds,
        });
    }

    /// What the target thought of rows that are right.
    pub fn observe_rows(&mut self, target: &mut Runner, passed: &mut [ObservedRows<'_>]) {
        self.sources.iter_mut().for_each(|source| source.observe_rows(target, passed));
    }

    /// A sequence is about to be kept for later requests: what belongs into it and is not in yet goes in now.
    pub fn catch_up(
        &mut self,
        target: &mut Runner,
        id: AnswerId,
        tokens: &[u32],
        sequence: &mut Sequence,
    ) {
        self.sources.iter_mut().for_each(|source| source.catch_up(target, id, tokens, sequence));
    }

    /// How many tokens of a draft were right.
    pub fn observe_verdict(&mut self, id: AnswerId, draft: &Draft, accepted: usize) {
        let Draft { source: Some(source), buckets, tokens } = draft else { return };
        let source = *source;
        if let Some(round) = self.log.as_mut().and_then(|log| log.last_mut()) {
            round.accepted = accepted;
        }
        self.controller.observe_verdict(&Verdict { source, buckets, accepted });
        let own = self.sources.iter_mut().filter(|own| own.kind() == source);
        own.for_each(|own| own.observe(id, tokens.len(), accepted));
    }

    /// Another oracle in place of the one there is.
    pub fn tell_oracle(&mut self, oracle: Oracle) {
        let place = self.sources.iter_mut().find(|source| source.kind() == SourceKind::Oracle);
        if let Some(place) = place {
            *place = Box::new(oracle);
        }
    }

    /// Drafts so many tokens in every round from now on.
    pub fn fix(&mut self, count: usize) {
        self.fixed = Some(count);
    }

    /// The rounds of single answers since the last call; at the first call there are none yet.
    pub fn take_log(&mut self) -> Vec<LoggedRound> {
        self.log.replace(Vec::new()).unwrap_or_default()
    }

    /// Nothing of the past is to be remembered.
    pub fn clear(&mut self) {
        self.sources.iter_mut().for_each(|source| source.clear());
    }

    /// An answer ended or lost its sequence.
    pub fn forget(&mut self, id: AnswerId, tokens: &[u32]) {
        // An answer that was decoded without asking for drafts says nothing about the head.
        if std::mem::take(&mut self.asked) {
            self.fruitless = if self.head_drafted { 0 } else { self.fruitless + 1 };
            self.head_drafted = false;
        }
        self.sources.iter_mut().for_each(|source| source.forget(id, tokens));
    }

    /// Sources that have not failed.
    pub fn source_kinds(&self) -> Vec<SourceKind> {
        self.sources.iter().map(|source| source.kind()).collect()
    }

    /// What came of it so far.
    pub fn report(&self) -> Report {
        self.controller.report()
    }
}

/// Bytes of all experts that were wanted, which are nearly of one size.
fn wanted_bytes(missed: &Missed) -> u64 {
    let not_found = missed.wanted - missed.found;
    (missed.total_bytes() * missed.wanted).checked_div(not_found).unwrap_or(0)
}

/// All that the first source offers.
fn first(offers: &[Offer]) -> Option<Pick> {
    offers.first().map(|offer| Pick { offer: 0, count: offer.most })
}
