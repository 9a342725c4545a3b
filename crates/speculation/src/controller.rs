//! Decides each round which source drafts for each sequence and how many tokens are verified.
//!
//! A round is `plan` → draft → `trim` → pass → `observe_*`; it is settled when the next is planned.
//! Three parts estimate (acceptance, cost of a pass, cost of a draft), one searches, one guards.
//! The invariant: over any stretch, decoding is slower than plain decoding by no more than
//! the guard's allowance, whatever the estimates say.

use super::SourceKind;
use super::acceptance::{Acceptance, POSITIONS};
use super::choice::{self, Candidate, Choice, Costs, Value};
use super::draft_cost::DraftCosts;
use super::pass_cost::PassCost;
use super::report::{PassFit, Report, SourceReport};
use super::time_account::{SettledRound, TimeAccount};

mod rounds;

const SOURCES: usize = SourceKind::ALL.len();
/// No draft is longer, whatever the user allows.
const LONGEST: usize = 64;
/// Plain passes measured before the first draft.
const WARM_UP: u64 = 6;
/// Expected gain to begin speculating, and to stay at it.
const GAIN: (f64, f64) = (1.03, 1.01);
/// Rounds after which an unused source is tried; and, times the square of the gain, a plain pass.
const REFRESH: u32 = 64;
/// Sooner if little is lost by it: expected losses of trying are held to this share of the time.
const TRYING_SHARE: f64 = 0.004;
const SOONEST: u32 = 4;
/// What trying other lengths may cost against the best known: a share of all rounds, and rounds at first.
const CURIOUS_SHARE: f64 = 0.008;
const CURIOUS_CREDIT: f64 = 4.0;
const LONGEST_REFRESH: u32 = 256;
/// Drafts judged before a source counts as known; until then it is tried this often.
const KNOWN: f64 = 8.0;
const REFRESH_UNKNOWN: u32 = 12;
/// A streamed model that misses more of its experts than this in plain passes …
const MISSED_SHARE: f64 = 0.3;
/// … verifies this many tokens of an n-gram and of other drafts at most,
const MISSING_LIMIT: (usize, usize) = (4, 1);
/// unless more were measured to be this much better.
const CLEAR_MARGIN: f64 = 1.1;

/// What the user chose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Drafted tokens a sequence and round, at most.
    pub(crate) most: usize,
    /// Whether experts are streamed.
    pub(crate) streams: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { most: 16, streams: false }
    }
}

/// What a source could propose to one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) source: SourceKind,
    /// Tokens at most: room in the context, rest of the answer, reach of the source.
    pub(crate) most: usize,
    /// Tokens the source has to read before it can draft.
    pub(crate) behind: usize,
    /// Confidence, 0 to 7, if it is known before drafting.
    pub(crate) bucket: Option<u8>,
}

/// The offer to take, by index, and the tokens to draft (at least 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) offer: usize,
    pub(crate) count: usize,
}

/// A finished draft of one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drafted<'a> {
    pub(crate) source: SourceKind,
    /// The confidence of each token, 0 to 7.
    pub(crate) buckets: &'a [u8],
}

/// What drafting by one source took this round, all its sequences together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftCost {
    pub(crate) source: SourceKind,
    pub(crate) sequences: usize,
    /// Tokens of the longest draft.
    pub(crate) tokens: usize,
    /// Tokens read to catch up.
    pub(crate) read: usize,
    pub(crate) seconds: f64,
}

/// A pass without prompt rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass<'a> {
    pub(crate) rows: usize,
    pub(crate) sequences: usize,
    pub(crate) missed_bytes: u64,
    /// Bytes of the experts the pass wanted, missed or not; 0 if nothing is streamed.
    pub(crate) wanted_bytes: u64,
    /// Bytes first wanted by the i-th row of a sequence; index 0 is the row that is no draft.
    pub(crate) missed_by_depth: &'a [u64],
    pub(crate) seconds: f64,
}

/// What became of one sequence's draft.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict<'a> {
    pub(crate) source: SourceKind,
    /// The confidence of each verified token.
    pub(crate) buckets: &'a [u8],
    pub(crate) accepted: usize,
}

/// How long a source was not used although it had an offer.
#[derive(Clone, Copy)]
struct Idle {
    rounds: u32,
    until: u32,
}

#[derive(Default)]
struct Counts {
    rounds: u64,
    drafted: u64,
    verified: u64,
    accepted: u64,
    first_accepted: u64,
}

/// The round under way.
#[derive(Default)]
struct Round {
    sequences: usize,
    /// What to verify of each draft where that is not left to `trim`.
    fixed: Vec<Option<usize>>,
    /// Taken to learn, or on little evidence.
    trial: bool,
    /// The source tried for a refresh.
    refreshes: Option<SourceKind>,
    /// Tokens a second expected when it was planned, and the seconds.
    rate: f64,
    seconds: f64,
    /// Taken to measure another length.
    curious: bool,
    costs: Option<Costs>,
    draft_seconds: f64,
    pass_seconds: Option<f64>,
    rows: usize,
    /// Drafted tokens verified, by sequence.
    counts: Vec<usize>,
    verified: usize,
    accepted: usize,
}

/// The controller; see the head of this file.
pub(crate) struct Controller {
    settings: Settings,
    acceptance: Acceptance,
    pass_cost: PassCost,
    draft_costs: DraftCosts,
    account: TimeAccount,
    speculating: bool,
    idle: [Idle; SOURCES],
    /// Speculative rounds since a plain pass was measured.
    since_plain: u32,
    /// Plain rounds since a speculative one.
    since_speculative: u32,
    /// Rounds' worth of time that trying other lengths may still lose.
    curiosity: f64,
    counts: [Counts; SOURCES],
    rounds: u64,
    speculative_rounds: u64,
    verified_drafts: u64,
    round: Round,
}

impl Controller {
    pub(crate) fn new(settings: Settings) -> Controller {
        Controller {
            settings,
            acceptance: Acceptance::default(),
            pass_cost: PassCost::default(),
            draft_costs: DraftCosts::default(),
            account: TimeAccount::default(),
            speculating: false,
            idle: [Idle { rounds: REFRESH, until: REFRESH_UNKNOWN }; SOURCES],
            since_plain: 0,
            since_speculative: 0,
            curiosity: CURIOUS_CREDIT,
            counts: Default::default(),
            rounds: 0,
            speculative_rounds: 0,
            verified_drafts: 0,
            round: Round::default(),
        }
    }

    /// A round begins. [`Controller::plan`] does this; it is for callers that draft without planning.
    pub(crate) fn begin(&mut self, sequences: usize) {
        self.settle();
        self.round = Round { sequences, ..Round::default() };
    }

    /// After drafting without a decision of the controller: all of each draft is verified.
    pub(crate) fn take_whole(&mut self, drafts: &[Option<Drafted<'_>>]) -> Vec<usize> {
        drafts.iter().flatten().for_each(|draft| self.count_drafted(draft));
        self.round.counts = drafts.iter().map(|d| d.map_or(0, |d| d.buckets.len())).collect();
        self.round.counts.clone()
    }

    fn count_drafted(&mut self, draft: &Drafted<'_>) {
        self.acceptance.drafted(draft.source, draft.buckets);
        self.counts[draft.source.index()].drafted += draft.buckets.len() as u64;
    }

    /// Before drafting: the source and the number of tokens for each sequence, none for plain decoding.
    pub(crate) fn plan(&mut self, offers: &[Vec<Offer>]) -> Vec<Option<Pick>> {
        self.begin(offers.len());
        self.round.fixed = vec![None; offers.len()];
        let nothing = vec![None; offers.len()];
        let pausing = self.account.pausing();
        if pausing || self.pass_cost.passes() < WARM_UP || offers.is_empty() {
            return nothing;
        }
        let candidates: Vec<Vec<Candidate>> =
            offers.iter().map(|offers| self.candidates(offers)).collect();
        if candidates.iter().all(Vec::is_empty) {
            return nothing;
        }
        let longest = |c: &Vec<Candidate>| c.iter().map(|c| c.survival.len()).max().unwrap_or(0);
        let most_rows = candidates.iter().map(|c| 1 + longest(c)).sum();
        let costs = self.costs(offers.len(), most_rows, &candidates);
        let mut choice = self.best(&candidates, &costs);
        if let Some(informed) = self.informed(offers, &candidates, &costs, choice.value.rows)
            && informed.value.rate() > choice.value.rate()
        {
            choice = informed;
        }
        let gain = choice.value.rate() / costs.plain_rate();
        self.speculating = gain >= if self.speculating { GAIN.1 } else { GAIN.0 };
        let known = 4.0 * self.pass_cost.plain_evidence(offers.len());
        let measure_plain = (f64::from(REFRESH) * (gain * gain).min(8.0)).min(known.max(8.0));
        if !self.speculating && gain > 1.0 && self.since_speculative >= SOONEST {
            // Too little to be sure: worth a look now and then.
            self.round.trial = true;
        } else if !self.speculating {
            choice = Choice { picks: vec![None; offers.len()], value: costs.value(&[], &[]) };
        } else if f64::from(self.since_plain) >= measure_plain {
            // What speculation is compared with must not grow old.
            return nothing;
        }
        self.round.rate = choice.value.rate().max(costs.plain_rate());
        self.round.seconds = choice.value.seconds;
        if self.speculating {
            self.longer(&candidates, &costs, &mut choice);
        }
        self.refresh(&candidates, &costs, &mut choice);
        let picks = self.draw(offers, &candidates, &costs, &choice);
        self.round.costs = Some(costs);
        picks
    }

    /// After drafting: how many tokens of each draft to verify.
    pub(crate) fn trim(&mut self, drafts: &[Option<Drafted<'_>>]) -> Vec<usize> {
        let mut candidates = Vec::with_capacity(drafts.len());
        for draft in drafts {
            candidates.push(draft.map(|draft| {
                self.count_drafted(&draft);
                let most = draft.buckets.len().min(self.settings.most).min(LONGEST);
                let buckets = draft.buckets[..most].iter().map(|&bucket| Some(bucket));
                let survival = self.survival(draft.source, buckets);
                Candidate { offer: 0, source: draft.source, survival, behind: 0 }
            }));
        }
        let chosen: Vec<Option<&Candidate>> = candidates.iter().map(Option::as_ref).collect();
        let rows = chosen.iter().map(|c| 1 + c.map_or(0, |c| c.survival.len())).sum();
        let planned = self.round.costs.take();
        let planned = planned.filter(|c| c.sequences == drafts.len() && c.curve.len() > rows);
        let mut costs = planned.unwrap_or_else(|| self.costs(drafts.len(), rows, &[]));
        costs.drafts = None;
        // Drafting is paid: what counts is whether a row brings more tokens than its time does elsewhere.
        let rate = self.round.rate.max(costs.plain_rate());
        let mut counts = choice::scan(&chosen, &costs, |v| v.tokens - rate * v.seconds);
        for (count, fixed) in counts.iter_mut().zip(&self.round.fixed) {
            *count = fixed.unwrap_or(*count);
        }
        for (count, candidate) in counts.iter_mut().zip(&chosen) {
            *count = (*count).min(candidate.map_or(0, |candidate| candidate.survival.len()));
        }
        self.round.counts.clone_from(&counts);
        counts
    }

    /// Takes note of what drafting took.
    pub(crate) fn observe_draft(&mut self, draft: &DraftCost) {
        let plain = self.pass_cost.plain(self.round.sequences.max(1));
        let DraftCost { source, sequences, tokens, read, seconds } = *draft;
        let expected = self.draft_costs.seconds(source, tokens, sequences, read, plain);
        self.draft_costs.observe(source, tokens, sequences, read, seconds, plain);
        if seconds > 0.0 {
            // One slow moment of the machine is not the draft's fault.
            self.round.draft_seconds += seconds.min(3.0 * expected + plain);
        }
    }

    /// Takes note of a decode or verify pass without prompt rows, plain ones too.
    pub(crate) fn observe_pass(&mut self, pass: &Pass<'_>) {
        if self.round.pass_seconds.is_some() {
            self.settle();
        }
        let Pass { rows, sequences, seconds, .. } = *pass;
        self.pass_cost.observe(rows, sequences, pass.missed_bytes, seconds);
        if rows == sequences {
            self.pass_cost.observe_share(pass.missed_bytes, pass.wanted_bytes);
            self.since_plain = 0;
        }
        let by_depth = self.rows_by_depth(rows, sequences);
        self.pass_cost.observe_missed(pass.missed_by_depth, &by_depth);
        if seconds > 0.0 && seconds.is_finite() {
            let usual = self.pass_cost.seconds(rows, pass.missed_bytes as f64);
            self.round.pass_seconds = Some(seconds.min(2.5 * usual));
            self.round.rows = rows;
            self.round.sequences = sequences;
        }
    }

    /// Takes note of what became of one sequence's draft.
    pub(crate) fn observe_verdict(&mut self, verdict: &Verdict<'_>) {
        let Verdict { source, buckets, accepted } = *verdict;
        let accepted = accepted.min(buckets.len());
        if buckets.is_empty() {
            return;
        }
        let unexpected = self.acceptance.chance(source, 0, Some(buckets[0])) < 0.5;
        self.acceptance.judged(source, buckets, accepted);
        let counts = &mut self.counts[source.index()];
        counts.rounds += 1;
        counts.verified += buckets.len() as u64;
        counts.accepted += accepted as u64;
        counts.first_accepted += u64::from(accepted > 0);
        self.verified_drafts += 1;
        self.round.verified += buckets.len();
        self.round.accepted += accepted;
        let known = self.acceptance.evidence(source) >= KNOWN;
        let idle = &mut self.idle[source.index()];
        idle.rounds = 0;
        idle.until = match self.round.refreshes == Some(source) {
            // Better than thought: look again at once, the estimate follows in a few rounds.
            true if accepted > 0 && unexpected => 2,
            true if known => (2 * idle.until).clamp(REFRESH, LONGEST_REFRESH),
            _ if known => REFRESH,
            _ => REFRESH_UNKNOWN,
        };
    }

    /// What was done and learned so far.
    pub(crate) fn report(&self) -> Report {
        let sources = SourceKind::ALL.iter().zip(&self.counts).filter(|(_, c)| c.drafted > 0);
        let sources = sources.map(|(&source, counts)| SourceReport {
            source,
            rounds: counts.rounds,
            drafted: counts.drafted,
            verified: counts.verified,
            accepted: counts.accepted,
            first_accepted: counts.first_accepted as f64 / counts.rounds.max(1) as f64,
        });
        let verified: u64 = self.counts.iter().map(|counts| counts.verified).sum();
        let line = self.pass_cost.line();
        let taken = self.account.seconds;
        let share = |seconds: f64| if taken > 0.0 { seconds / taken } else { 0.0 };
        Report {
            rounds: self.rounds,
            speculative_rounds: self.speculative_rounds,
            sources: sources.collect(),
            mean_verified: verified as f64 / self.verified_drafts.max(1) as f64,
            gain: if taken > 0.0 { self.account.plain_seconds / taken } else { 1.0 },
            seconds: taken,
            exploration_share: share(self.account.trial_seconds.max(0.0)),
            pauses: self.account.pauses,
            fit: PassFit {
                base_seconds: line.base,
                row_seconds: line.row,
                byte_seconds: line.byte,
            },
        }
    }
}
