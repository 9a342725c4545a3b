//! The steps of a round: what the sequences could have, what is tried to learn, and the settling.

use super::super::choice;
use super::{
    CLEAR_MARGIN, CURIOUS_CREDIT, CURIOUS_SHARE, Candidate, Choice, Controller, Costs, KNOWN,
    LONGEST, LONGEST_REFRESH, MISSED_SHARE, MISSING_LIMIT, Offer, POSITIONS, Pick, SOONEST,
    SOURCES, SettledRound, SourceKind, TRYING_SHARE, Value,
};

impl Controller {
    /// What the sequence's offers are expected to bring.
    pub(super) fn candidates(&self, offers: &[Offer]) -> Vec<Candidate> {
        let mut candidates = Vec::with_capacity(offers.len());
        for (index, offer) in offers.iter().enumerate() {
            let most = offer.most.min(self.settings.most).min(LONGEST);
            if most > 0 {
                let buckets = (0..most).map(|_| offer.bucket);
                let survival = self.survival(offer.source, buckets);
                let Offer { source, behind, .. } = *offer;
                candidates.push(Candidate { offer: index, source, survival, behind });
            }
        }
        candidates
    }

    /// The chance that the first 1, 2, … tokens are all accepted.
    pub(super) fn survival(
        &self,
        source: SourceKind,
        buckets: impl Iterator<Item = Option<u8>>,
    ) -> Vec<f64> {
        let mut all = 1.0;
        let chance = |(position, bucket)| {
            all *= self.acceptance.chance(source, position, bucket);
            all
        };
        buckets.enumerate().map(chance).collect()
    }

    /// What passes cost, and the drafts of these candidates.
    pub(super) fn costs(
        &self,
        sequences: usize,
        most_rows: usize,
        candidates: &[Vec<Candidate>],
    ) -> Costs {
        let mut curve = self.pass_cost.curve(most_rows.max(sequences).max(1));
        // More rows are never cheaper than a plain pass: where it looks so, one of them is measured badly.
        let plain = self.pass_cost.plain_net(sequences);
        curve[sequences.max(1)] = plain;
        curve[sequences.max(1)..].iter_mut().for_each(|seconds| *seconds = seconds.max(plain));
        let mut costs = Costs {
            sequences,
            curve,
            byte: self.pass_cost.byte(),
            missed: (0..=POSITIONS).map(|depth| self.pass_cost.missed_at(depth)).collect(),
            drafts: None,
        };
        let plain = costs.plain();
        for candidate in candidates.iter().flatten() {
            let drafts = costs.drafts.get_or_insert_default();
            let terms = &mut drafts[candidate.source.index()];
            *terms = terms.or_else(|| Some(self.draft_costs.terms(candidate.source, plain)));
        }
        costs
    }

    fn misses_much(&self) -> bool {
        self.settings.streams && self.pass_cost.missed_share() > MISSED_SHARE
    }

    /// The best choice, within the limits of a streamed model that misses much.
    pub(super) fn best(&self, candidates: &[Vec<Candidate>], costs: &Costs) -> Choice {
        let free = choice::best(candidates, costs);
        if !self.misses_much() {
            return free;
        }
        let limited: Vec<Vec<Candidate>> = candidates
            .iter()
            .map(|of_sequence| of_sequence.iter().map(limited).collect())
            .collect();
        let limited = choice::best(&limited, costs);
        let measured = self.pass_cost.evidence(free.value.rows) >= 3.0;
        let clear = free.value.rate() >= CLEAR_MARGIN * limited.value.rate();
        if measured && clear { free } else { limited }
    }

    /// The choice to draft first and verify what its confidence says, for sources that report it only then:
    /// valued by what would have been verified of their last drafts.
    pub(super) fn informed(
        &self,
        offers: &[Vec<Offer>],
        candidates: &[Vec<Candidate>],
        costs: &Costs,
        most_rows: usize,
    ) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        let plain = costs.value(&[], &[]);
        for source in SourceKind::ALL {
            let untold = |c: &Candidate, of_sequence: &[Offer]| {
                c.source == source && of_sequence[c.offer].bucket.is_none()
            };
            let taken: Vec<Option<usize>> = (candidates.iter().zip(offers))
                .map(|(c, of_sequence)| c.iter().position(|c| untold(c, of_sequence)))
                .collect();
            let first = (candidates.iter().zip(&taken)).find_map(|(c, t)| t.map(|t| &c[t]));
            let last = self.acceptance.last_drafts(source);
            let Some(first) = first.filter(|_| last.len() >= 4) else { continue };
            // Of each draft, the length that brings most over plain decoding, as drafts get longer.
            let drafts: Vec<Vec<f64>> = (last.iter())
                .map(|buckets| self.survival(source, buckets.iter().map(|&b| Some(b))))
                .collect();
            let mut kept = vec![plain; drafts.len()];
            let mut grown = kept.clone();
            let mut bytes = costs.plain_bytes();
            let limit = if self.misses_much() {
                limit(source).max(most_rows - plain.rows)
            } else {
                LONGEST
            };
            for count in 1..=first.survival.len().min(limit) {
                bytes += costs.missed_at(count);
                let seconds = costs.pass(plain.rows + count, bytes);
                let (mut tokens, mut passes) = (0.0, 0.0);
                for (draft, (grown, kept)) in drafts.iter().zip(grown.iter_mut().zip(&mut kept)) {
                    if let Some(&chance) = draft.get(count - 1) {
                        grown.tokens += chance;
                        (grown.rows, grown.seconds) = (plain.rows + count, seconds);
                        let won = grown.tokens - kept.tokens;
                        if won > costs.plain_rate() * (grown.seconds - kept.seconds) {
                            *kept = *grown;
                        }
                    }
                    tokens += kept.tokens / drafts.len() as f64;
                    passes += kept.seconds / drafts.len() as f64;
                }
                let drafting = costs.value(&[Some(first)], &[count]).seconds - seconds;
                let rows = kept.iter().map(|value| value.rows).max().unwrap_or(plain.rows);
                let value = Value { tokens, rows, seconds: passes + drafting.max(0.0) };
                if best.as_ref().is_none_or(|best| value.rate() > best.value.rate()) {
                    let picks = (taken.iter().zip(candidates))
                        .map(|(taken, c)| taken.map(|t| (t, count.min(c[t].survival.len()))))
                        .collect();
                    best = Some(Choice { picks, value });
                }
            }
        }
        best
    }

    /// Now and then, another length than the best known: one whose cost is not known well and that would
    /// be better if it were cheap.
    pub(super) fn longer(
        &mut self,
        candidates: &[Vec<Candidate>],
        costs: &Costs,
        choice: &mut Choice,
    ) {
        self.curiosity = (self.curiosity + CURIOUS_SHARE).min(CURIOUS_CREDIT);
        let counts: Vec<usize> = choice.picks.iter().map(|p| p.map_or(0, |p| p.1)).collect();
        let longest = (0..counts.len()).max_by_key(|&i| counts[i]);
        let Some((sequence, (taken, count))) =
            longest.and_then(|i| choice.picks[i].map(|pick| (i, pick)))
        else {
            return;
        };
        if self.curiosity <= 0.0 || !self.speculative_rounds.is_multiple_of(4) {
            return;
        }
        let chosen: Vec<Option<&Candidate>> = (choice.picks.iter().zip(candidates))
            .map(|(pick, of_sequence)| pick.map(|(taken, _)| &of_sequence[taken]))
            .collect();
        let (rate, row) = (choice.value.rate(), self.pass_cost.line().row);
        let mut promising: Option<(usize, f64)> = None;
        for other in (1..=candidates[sequence][taken].survival.len()).filter(|&n| n != count) {
            let mut counts = counts.clone();
            counts[sequence] = other;
            let feared = costs.value(&chosen, &counts);
            let mut hoped = feared;
            let evidence = self.pass_cost.evidence(feared.rows);
            if evidence < 2.5 {
                // Hardly measured: rows beyond the next smaller count that is known may cost a third of
                // what rows did so far, whatever this one and larger counts seem to cost. There may be a
                // step between, and a slow pass or two may have been bad luck.
                let below = self.pass_cost.known_below(feared.rows).max(costs.sequences);
                let cheap = costs.curve[below] + (feared.rows - below) as f64 * row / 3.0;
                hoped.seconds -= (costs.curve[feared.rows] - cheap).max(0.0);
            } else if evidence < 10.0 {
                // Two standard errors of timings that scatter by ± 20 %.
                hoped.seconds *= 1.0 - 0.25 / evidence.sqrt();
            } else {
                continue;
            }
            let could = hoped.rate();
            let better = could > 1.02 * rate && promising.is_none_or(|(_, best)| could > best);
            let lost = (feared.seconds - feared.tokens / rate) / choice.value.seconds;
            let affordable = self.account.affords(feared.seconds - costs.plain());
            if better && affordable && lost < self.curiosity {
                promising = Some((other, could));
            }
        }
        if let Some((other, _)) = promising {
            self.round.curious = true;
            choice.picks[sequence] = Some((taken, other));
            self.round.fixed[sequence] = Some(other);
            self.round.trial = true;
        }
    }

    /// Tries a source that was not used for long, on one sequence, if the bank affords the loss.
    pub(super) fn refresh(
        &mut self,
        candidates: &[Vec<Candidate>],
        costs: &Costs,
        choice: &mut Choice,
    ) {
        let mut offered = [false; SOURCES];
        let mut used = [false; SOURCES];
        for (of_sequence, pick) in candidates.iter().zip(&choice.picks) {
            of_sequence.iter().for_each(|c| offered[c.source.index()] = true);
            if let Some((taken, _)) = pick {
                used[of_sequence[*taken].source.index()] = true;
            }
        }
        for source in 0..SOURCES {
            let idle = &mut self.idle[source];
            idle.rounds += u32::from(offered[source] && idle.rounds < LONGEST_REFRESH);
        }
        let mut due: Option<(u32, usize, usize, usize)> = None;
        for source in SourceKind::ALL {
            let idle = self.idle[source.index()];
            let sooner = due.is_some_and(|(rounds, ..)| rounds >= idle.rounds);
            if !offered[source.index()] || used[source.index()] || sooner {
                continue;
            }
            let Some((sequence, taken)) = likeliest(candidates, source) else { continue };
            let candidate = &candidates[sequence][taken];
            let count = if source == SourceKind::NGram { 2 } else { 1 };
            let count = count.min(candidate.survival.len());
            let value = costs.value(&[Some(candidate)], &[count]);
            // What is expected to be lost against the best known decides how soon; what is lost
            // when nothing is accepted has to be in the bank.
            let expected = value.seconds - value.tokens / choice.value.rate();
            let soon = (expected / (TRYING_SHARE * costs.plain())).max(f64::from(SOONEST));
            let worst = value.seconds - costs.plain();
            let risk = worst + 0.25 * costs.plain();
            if f64::from(idle.rounds) < soon.min(f64::from(idle.until)) {
                continue;
            }
            if self.account.affords(risk) {
                due = Some((idle.rounds, sequence, taken, count));
            } else if self.acceptance.evidence(source) == 0.0 {
                self.account.save_for(1.1 * risk);
            }
        }
        if let Some((_, sequence, taken, count)) = due {
            choice.picks[sequence] = Some((taken, count));
            self.round.fixed[sequence] = Some(count);
            self.round.refreshes = Some(candidates[sequence][taken].source);
            self.round.trial = true;
        }
    }

    /// Turns a choice into picks, and marks a round that rests on little evidence.
    pub(super) fn draw(
        &mut self,
        offers: &[Vec<Offer>],
        candidates: &[Vec<Candidate>],
        costs: &Costs,
        choice: &Choice,
    ) -> Vec<Option<Pick>> {
        let mut picks = vec![None; offers.len()];
        let mut lag = 0.0;
        for (sequence, pick) in choice.picks.iter().enumerate() {
            let Some((taken, count)) = *pick else { continue };
            let candidate = &candidates[sequence][taken];
            let read = costs.drafts.map_or(0.0, |drafts| {
                drafts[candidate.source.index()].map_or(0.0, |terms| terms[3])
            });
            lag += read * candidate.behind as f64;
            if !self.account.affords(lag) {
                // It would pay in the long run, but how long the answer is is not known.
                self.round.fixed[sequence] = None;
                continue;
            }
            self.round.trial |= self.acceptance.evidence(candidate.source) < KNOWN;
            let most = candidate.survival.len();
            let count = if candidate.source.is_one_shot() { most } else { count };
            picks[sequence] = Some(Pick { offer: candidate.offer, count });
        }
        self.round.trial |= self.pass_cost.evidence(choice.value.rows) < 3.0;
        picks
    }

    /// Rows of the pass at each depth, from what was verified.
    pub(super) fn rows_by_depth(&self, rows: usize, sequences: usize) -> Vec<usize> {
        let mut by_depth = vec![0; POSITIONS + 1];
        by_depth[0] = sequences;
        let counts = &self.round.counts;
        if counts.iter().sum::<usize>().checked_add(sequences) == Some(rows) {
            for depth in 1..=POSITIONS {
                by_depth[depth] = counts.iter().filter(|&&count| count >= depth).count();
            }
        }
        by_depth
    }

    /// Books the round that is over.
    pub(super) fn settle(&mut self) {
        let round = std::mem::take(&mut self.round);
        let speculative = round.verified > 0 || round.draft_seconds > 0.0;
        if round.sequences == 0 || (round.pass_seconds.is_none() && !speculative) {
            return;
        }
        let plain = self.pass_cost.plain(round.sequences);
        let pass = round.pass_seconds.unwrap_or_else(|| {
            // It went along with prompt rows: what it would have taken alone.
            let bytes = round.sequences as f64 * self.pass_cost.missed_at(0);
            self.pass_cost.seconds(round.sequences + round.verified, bytes)
        });
        if round.curious {
            let tokens = (round.sequences + round.accepted) as f64;
            let lost = pass + round.draft_seconds - tokens / round.rate;
            self.curiosity -= lost / round.seconds;
        }
        self.rounds += 1;
        self.speculative_rounds += u64::from(round.verified > 0);
        self.since_plain += u32::from(round.verified > 0);
        self.since_speculative = if round.verified > 0 { 0 } else { self.since_speculative + 1 };
        self.account.settle(&SettledRound {
            plain,
            seconds: pass + round.draft_seconds,
            worth: 1.0 + round.accepted as f64 / round.sequences as f64,
            speculative,
            trial: round.trial,
        });
    }
}

/// The sequence and candidate where a source is most likely to be right after the least catching up.
fn likeliest(candidates: &[Vec<Candidate>], source: SourceKind) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize, f64)> = None;
    for (sequence, of_sequence) in candidates.iter().enumerate() {
        for (taken, candidate) in of_sequence.iter().enumerate() {
            let hope = candidate.survival[0] / (1.0 + candidate.behind as f64);
            if candidate.source == source && best.is_none_or(|(_, _, most)| hope > most) {
                best = Some((sequence, taken, hope));
            }
        }
    }
    best.map(|(sequence, taken, _)| (sequence, taken))
}

/// Tokens verified of a source's draft at most while much is missed.
fn limit(source: SourceKind) -> usize {
    match source {
        SourceKind::NGram => MISSING_LIMIT.0,
        _ => MISSING_LIMIT.1,
    }
}

fn limited(candidate: &Candidate) -> Candidate {
    let limit = limit(candidate.source);
    Candidate {
        offer: candidate.offer,
        source: candidate.source,
        survival: candidate.survival.iter().copied().take(limit).collect(),
        behind: candidate.behind,
    }
}
