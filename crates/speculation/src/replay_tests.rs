//! The controller driven by recorded logs: every `testdata/speculation/*.csv`, which `bench --rounds` wrote with drafts
//! of several lengths. [The folder](../../../../testdata/speculation/README.md) says how.
//!
//! First it watches a log, and its forecasts must fit what it saw. Then it decides: what it drafts and verifies
//! costs and brings what the log says of such a round, and over the whole it may not be slower than plain decoding by more
//! than 3 %, and must find most of what the best length would have gained.

use std::collections::BTreeMap;
use std::path::Path;

use super::SourceKind;
use super::controller::{Controller, DraftCost, Drafted, Offer, Pass, Settings, Verdict};
use super::log::{HEADER, LoggedRound};

/// Drafts shorter than this say too little about longer ones.
const LONG: usize = 4;

/// Slower than plain decoding by this much at most.
const SLOWER: f64 = 1.03;

/// Where the best length gains this much, most of it has to be found.
const WORTH_FINDING: f64 = 1.15;

/// A log, and what it says of rounds that might have been.
struct Log {
    name: String,
    streams: bool,
    rounds: Vec<LoggedRound>,
    /// Passes by rows.
    passes: BTreeMap<usize, Vec<LoggedRound>>,
    /// Seconds of drafting by tokens, the usual catching up included, and by a token to catch up with.
    drafting: BTreeMap<usize, f64>,
    reading: f64,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// The middle value.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// What lies at a key, straight between its neighbours if nothing does.
fn along(points: &BTreeMap<usize, f64>, at: usize) -> f64 {
    let below = points.range(..=at).next_back();
    let above = points.range(at..).next();
    match (below, above) {
        (Some((&low, &a)), Some((&high, &b))) if high > low => {
            a + (b - a) * (at - low) as f64 / (high - low) as f64
        }
        (Some((_, &value)), _) | (_, Some((_, &value))) => value,
        (None, None) => 0.0,
    }
}

impl Log {
    fn read(path: &Path) -> Log {
        let text = std::fs::read_to_string(path).expect("a log");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(HEADER), "{}", path.display());
        let rounds: Vec<LoggedRound> =
            lines.map(|line| line.parse().unwrap_or_else(|error| panic!("{error}"))).collect();
        let mut passes: BTreeMap<usize, Vec<LoggedRound>> = BTreeMap::new();
        let mut lengths: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for round in &rounds {
            passes.entry(round.rows()).or_default().push(round.clone());
            if !round.buckets.is_empty() {
                lengths.entry(round.buckets.len()).or_default().push(round.draft_seconds);
            }
        }
        // One pass says nothing of others: a length at the end of an answer, mostly.
        passes.retain(|_, of_rows| of_rows.len() >= 5);
        lengths.retain(|_, of_length| of_length.len() >= 5);
        let usual = |seconds: &Vec<f64>| middle(seconds.iter().copied());
        let drafting: BTreeMap<usize, f64> = lengths.iter().map(|(&n, s)| (n, usual(s))).collect();
        let late = rounds.iter().filter(|round| round.behind >= 32 && !round.buckets.is_empty());
        let reading = middle(late.map(|round| {
            let more = round.draft_seconds - along(&drafting, round.buckets.len());
            more.max(0.0) / round.behind as f64
        }));
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let streams = rounds.iter().any(|round| round.wanted_bytes > 0);
        Log { name, streams, rounds, passes, drafting, reading }
    }

    fn controller(&self) -> Controller {
        Controller::new(Settings { streams: self.streams, ..Settings::default() })
    }

    /// Mean seconds of a plain pass.
    fn plain(&self) -> f64 {
        mean(self.passes[&1].iter().map(|round| round.pass_seconds))
    }

    fn source(&self) -> SourceKind {
        self.rounds.iter().find_map(|round| round.source).expect("a source drafted")
    }

    /// Rounds that say what was offered: drafts that are long enough, or that prompt lookup found nothing.
    fn offers(&self) -> Vec<&LoggedRound> {
        let is_lookup = self.source() == SourceKind::NGram;
        let tells = |round: &&LoggedRound| match round.source {
            Some(_) => round.buckets.len() >= LONG,
            None => is_lookup,
        };
        self.rounds.iter().filter(tells).collect()
    }

    /// How much faster than plain decoding it is to draft the same number of tokens whenever something can be drafted,
    /// for the best such number.
    fn best_gain(&self) -> (usize, f64) {
        let offers = self.offers();
        let mut best = (0, 1.0);
        for (&rows, passes) in self.passes.range(2..) {
            let pass = mean(passes.iter().map(|round| round.pass_seconds));
            let (mut tokens, mut seconds) = (0.0, 0.0);
            for offer in &offers {
                let count = offer.buckets.len().min(rows - 1);
                tokens += 1.0 + offer.accepted.min(count) as f64;
                seconds += match count {
                    0 => self.plain(),
                    _ => pass + along(&self.drafting, count),
                };
            }
            let gain = tokens * self.plain() / seconds;
            if gain > best.1 {
                best = (rows - 1, gain);
            }
        }
        best
    }
}

/// What a controller made of a log.
#[derive(Debug, Default)]
struct Sum {
    tokens: f64,
    seconds: f64,
    verified: usize,
    speculative: usize,
}

impl Sum {
    fn gain(&self, log: &Log) -> f64 {
        self.tokens * log.plain() / self.seconds
    }
}

/// Takes one after the other, again and again.
struct Turns(BTreeMap<usize, usize>);

impl Turns {
    fn next<'a>(
        &mut self,
        passes: &'a BTreeMap<usize, Vec<LoggedRound>>,
        rows: usize,
    ) -> &'a LoggedRound {
        let of_rows = &passes[&rows];
        let turn = self.0.entry(rows).or_default();
        *turn += 1;
        &of_rows[(*turn - 1) % of_rows.len()]
    }

    /// A recorded pass of so many rows, or one between those of fewer and of more.
    fn pass(&mut self, log: &Log, rows: usize) -> (f64, u64, Vec<u64>) {
        let below = log.passes.range(..=rows).next_back().map(|(&rows, _)| rows);
        let above = log.passes.range(rows..).next().map(|(&rows, _)| rows);
        let (low, high) = (below.or(above).expect("a pass"), above.or(below).expect("a pass"));
        let share = if high > low { (rows - low) as f64 / (high - low) as f64 } else { 0.0 };
        let low = self.next(&log.passes, low);
        if share == 0.0 {
            return (low.pass_seconds, low.wanted_bytes, low.missed_bytes.clone());
        }
        let high = self.next(&log.passes, high);
        let seconds = low.pass_seconds + share * (high.pass_seconds - low.pass_seconds);
        let wanted =
            low.wanted_bytes as f64 + share * (high.wanted_bytes as f64 - low.wanted_bytes as f64);
        let missed = high.missed_bytes.iter().take(rows).copied().collect();
        (seconds, wanted as u64, missed)
    }
}

/// Lets the controller decide as many rounds as it is given turns of the log.
fn decide(log: &Log, controller: &mut Controller, times: usize) -> Sum {
    let (mut sum, mut turns) = (Sum::default(), Turns(BTreeMap::new()));
    let mut lag = 0;
    for round in log.offers().iter().cycle().take(times * log.offers().len()) {
        lag += round.behind;
        let offer = round.source.map(|source| Offer {
            source,
            most: round.buckets.len(),
            behind: lag,
            bucket: (source == SourceKind::NGram).then(|| round.buckets[0]),
        });
        let pick = controller.plan(&[Vec::from_iter(offer)])[0];
        let mut drafted = None;
        if let (Some(pick), Some(offer)) = (pick, offer) {
            let (source, tokens) = (offer.source, pick.count);
            let more = lag.saturating_sub(round.behind.min(32)) as f64 * log.reading;
            let seconds = along(&log.drafting, tokens) + more;
            controller.observe_draft(&DraftCost {
                source,
                sequences: 1,
                tokens,
                read: lag,
                seconds,
            });
            sum.seconds += seconds;
            lag = 0;
            drafted = Some(Drafted { source, buckets: &round.buckets[..tokens] });
        }
        let count = controller.trim(&[drafted])[0];
        let accepted = round.accepted.min(count);
        let (seconds, wanted_bytes, missed) = turns.pass(log, 1 + count);
        controller.observe_pass(&Pass {
            rows: 1 + count,
            sequences: 1,
            missed_bytes: missed.iter().sum(),
            wanted_bytes,
            missed_by_depth: &missed,
            seconds,
        });
        if let Some(Drafted { source, buckets }) = drafted.filter(|_| count > 0) {
            controller.observe_verdict(&Verdict { source, buckets: &buckets[..count], accepted });
        }
        sum.tokens += 1.0 + accepted as f64;
        sum.seconds += seconds;
        sum.verified += count;
        sum.speculative += usize::from(count > 0);
    }
    sum
}

/// Shows a controller a log as it was, and requests no drafts.
fn watch(log: &Log) -> Controller {
    let mut controller = log.controller();
    for round in &log.rounds {
        controller.begin(1);
        let drafted = round.source.map(|source| Drafted { source, buckets: &round.buckets });
        if let Some(source) = round.source {
            let (tokens, read) = (round.buckets.len(), round.behind);
            let seconds = round.draft_seconds;
            controller.observe_draft(&DraftCost { source, sequences: 1, tokens, read, seconds });
        }
        controller.take_whole(&[drafted]);
        controller.observe_pass(&Pass {
            rows: round.rows(),
            sequences: 1,
            missed_bytes: round.missed_bytes.iter().sum(),
            wanted_bytes: round.wanted_bytes,
            missed_by_depth: &round.missed_bytes,
            seconds: round.pass_seconds,
        });
        if let Some(source) = round.source {
            let (buckets, accepted) = (&round.buckets[..], round.accepted);
            controller.observe_verdict(&Verdict { source, buckets, accepted });
        }
    }
    controller.begin(1);
    controller
}

fn logs() -> Vec<Log> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/speculation");
    let entries = std::fs::read_dir(&folder).expect("the folder of logs");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    paths.sort();
    let logs: Vec<Log> = paths.iter().map(|path| Log::read(path)).collect();
    assert!(logs.len() >= 11, "only {} logs in {}", logs.len(), folder.display());
    logs
}

#[test]
fn recorded_logs_are_understood() {
    for log in logs() {
        let report = watch(&log).report();
        let verified: usize = log.rounds.iter().map(|round| round.verified).sum();
        let accepted: usize = log.rounds.iter().map(|round| round.accepted).sum();
        let [source] = &report.sources[..] else { panic!("{}: {report:?}", log.name) };
        let told = (source.drafted, source.verified, source.accepted);
        let drafted: usize = log.rounds.iter().map(|round| round.buckets.len()).sum();
        assert_eq!(told, (drafted as u64, verified as u64, accepted as u64), "{}", log.name);

        // The gain it reports is that of the log, whose slowest moments count as little as they do for it.
        let plain = middle(log.passes[&1].iter().map(|round| round.pass_seconds));
        let usual = |round: &LoggedRound| match log.passes.get(&round.rows()) {
            Some(passes) => middle(passes.iter().map(|round| round.pass_seconds)),
            None => round.pass_seconds,
        };
        let taken: f64 = log.rounds.iter().map(|r| usual(r) + r.draft_seconds).sum();
        let tokens: usize = log.rounds.iter().map(|round| 1 + round.accepted).sum();
        let gain = tokens as f64 * plain / taken;
        println!("{}: reported a gain of {:.3}, the log says {gain:.3}", log.name, report.gain);
        let off = (report.gain / gain - 1.0).abs();
        // From the disk, a plain pass is to it what the certain row misses at present: more after long drafts, which
        // drove out what that row wants, than in the answers without.
        let tolerance = if log.streams { 0.3 } else { 0.15 };
        assert!(off < tolerance, "{}: reported {}, is {gain}", log.name, report.gain);
    }
}

#[test]
fn by_recorded_costs_it_is_never_slower_and_gains_where_there_is_a_gain() {
    let mut found = 0;
    for log in logs() {
        let (best, best_gain) = log.best_gain();
        let times = 3000_usize.div_ceil(log.offers().len());
        let mut controller = log.controller();
        let sum = decide(&log, &mut controller, times);
        let gain = sum.gain(&log);
        let late = decide(&log, &mut controller, times).gain(&log);
        println!(
            "{}: {best} tokens would gain {best_gain:.3}; gained {gain:.3}, then {late:.3}, with {:.2} tokens in {} of {} rounds",
            log.name,
            sum.verified as f64 / sum.speculative.max(1) as f64,
            sum.speculative,
            times * log.offers().len(),
        );
        assert!(gain * SLOWER >= 1.0, "{}: {gain:.4}", log.name);
        assert!(late * SLOWER >= 1.0, "{}: {late:.4}", log.name);
        if best_gain >= WORTH_FINDING {
            let least = 1.0 + 0.6 * (best_gain - 1.0);
            assert!(late >= least, "{}: {best} tokens gain {best_gain:.3}, it {late:.3}", log.name);
            found += 1;
        }
    }
    assert!(found >= 3, "only {found} logs with something to gain");
}
