//! What came of drafting, as the server reports it: in `/metrics`, in `/health`, and to viewers.
//!
//! The engine counts; here its numbers get names. Without speculation there is nothing to report, and nothing is
//! reported: names are absent rather than zero.

use std::collections::BTreeMap;

use engine::Engine;
use runtime::ExpertUnion;
use serde_json::{Value, json};
use speculation::{Report as SpeculationReport, SourceKind, SourceReport};

use crate::metrics::Exposition;

/// Rows of the largest pass whose union of experts is reported: drafts are 16 tokens at most unless options request
/// longer ones.
const MOST_ROWS: usize = 17;

/// Speculation up to a moment.
#[derive(Clone, Debug)]
pub(crate) struct Speculating {
    /// Where drafts may come from, whether any did or not.
    pub(crate) sources: Vec<SourceKind>,
    pub(crate) report: SpeculationReport,
    /// How many experts several rows want together.
    pub(crate) unions: Vec<ExpertUnion>,
}

impl Speculating {
    /// Of an engine that speculates.
    pub(crate) fn of(engine: &Engine) -> Option<Speculating> {
        let report = engine.speculation()?;
        let unions = engine.runner().expert_unions();
        Some(Speculating { sources: engine.draft_sources(), report, unions })
    }

    /// Drafted tokens that were verified, and those of them that were right.
    fn totals(&self) -> (u64, u64) {
        let sources = self.report.sources.iter();
        sources.fold((0, 0), |sum, source| (sum.0 + source.verified, sum.1 + source.accepted))
    }

    /// Share of the verified tokens that were right, if there were any.
    fn acceptance(&self) -> Option<f64> {
        let (verified, accepted) = self.totals();
        (verified > 0).then(|| accepted as f64 / verified as f64)
    }

    /// Every source, in the order of their kinds: those that have drafted, and those that may.
    fn every_source(&self) -> impl Iterator<Item = SourceReport> {
        let idle = |&source: &SourceKind| SourceReport {
            source,
            rounds: 0,
            drafted: 0,
            verified: 0,
            accepted: 0,
            first_accepted: 0.0,
        };
        let mut all: BTreeMap<SourceKind, SourceReport> =
            self.sources.iter().map(|source| (*source, idle(source))).collect();
        all.extend(self.report.sources.iter().map(|source| (source.source, source.clone())));
        all.into_values()
    }

    /// What `/health` says.
    pub(crate) fn health(&self) -> Value {
        let share = |part: f64, whole: u64| (whole > 0).then(|| part / whole as f64);
        let source = |source: SourceReport| {
            json!({
                "source": source.source,
                "drafted": source.drafted,
                "verified": source.verified,
                "accepted": source.accepted,
                "acceptance": share(source.accepted as f64, source.verified),
                "first_acceptance": (source.rounds > 0).then_some(source.first_accepted),
            })
        };
        json!({
            "mode": "auto",
            "sources": self.every_source().map(source).collect::<Vec<_>>(),
            "acceptance": self.acceptance(),
            "mean_verified": self.report.mean_verified,
            "gain": self.report.gain,
        })
    }

    /// What the page shows; nothing before the first draft was verified.
    pub(crate) fn sample(&self) -> Option<Value> {
        let acceptance = self.acceptance()?;
        Some(json!({"acceptance": acceptance, "gain": self.report.gain}))
    }

    /// What `/metrics` has.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        let report = &self.report;
        let plain = report.rounds.saturating_sub(report.speculative_rounds);
        let rounds = [("plain", plain), ("speculative", report.speculative_rounds)];
        out.labelled(
            "speculation_rounds_total",
            "Decode passes without and with drafted tokens.",
            "counter",
            "kind",
            &rounds.map(|(kind, count)| (kind.to_owned(), count as f64)),
        );
        let sources: Vec<SourceReport> = self.every_source().collect();
        let mut by_source = |name: &str, help: &str, kind: &str, of: fn(&SourceReport) -> f64| {
            let values: Vec<(String, f64)> = sources
                .iter()
                .map(|source| (source.source.name().to_owned(), of(source)))
                .collect();
            out.labelled(name, help, kind, "source", &values);
        };
        by_source(
            "speculation_drafted_tokens_total",
            "Tokens that were drafted.",
            "counter",
            |source| source.drafted as f64,
        );
        by_source(
            "speculation_verified_tokens_total",
            "Those of them that were verified.",
            "counter",
            |source| source.verified as f64,
        );
        by_source(
            "speculation_accepted_tokens_total",
            "Those of them that were right.",
            "counter",
            |source| source.accepted as f64,
        );
        by_source(
            "speculation_first_accepted_share",
            "Share of the verified drafts whose first token was right.",
            "gauge",
            |source| source.first_accepted,
        );
        out.gauge(
            "speculation_verified_tokens_mean",
            "Drafted tokens of an answer that a speculative pass verifies, on average.",
            report.mean_verified,
        );
        out.gauge(
            "speculation_gain",
            "Estimated time without speculation over the time taken.",
            report.gain,
        );
        out.gauge(
            "speculation_exploration_share",
            "Share of the decode time lost by passes taken to learn.",
            report.exploration_share,
        );
        out.counter(
            "speculation_pauses_total",
            "Times that drafting was paused because it had lost time.",
            report.pauses as f64,
        );
        let unions = self.unions.iter().filter(|union| union.rows <= MOST_ROWS);
        let unions: Vec<(String, f64)> =
            unions.map(|union| (union.rows.to_string(), union.factor)).collect();
        if !unions.is_empty() {
            out.labelled(
                "speculation_expert_union",
                "Distinct experts that the rows of a pass want in a layer, as a multiple of one row's.",
                "gauge",
                "rows",
                &unions,
            );
        }
    }

    /// One that has every name, for the page of docs/reference and for tests.
    pub(crate) fn example() -> Speculating {
        let source = SourceReport {
            source: SourceKind::DraftModel,
            rounds: 4,
            drafted: 40,
            verified: 20,
            accepted: 15,
            first_accepted: 0.75,
        };
        Speculating {
            sources: vec![SourceKind::NGram, SourceKind::DraftModel],
            report: SpeculationReport {
                rounds: 10,
                speculative_rounds: 4,
                sources: vec![source],
                mean_verified: 5.0,
                gain: 1.5,
                seconds: 2.0,
                exploration_share: 0.005,
                pauses: 1,
                fit: speculation::PassFit {
                    base_seconds: 0.0,
                    row_seconds: 0.0,
                    byte_seconds: 0.0,
                },
            },
            unions: vec![
                ExpertUnion { rows: 1, factor: 1.0 },
                ExpertUnion { rows: 5, factor: 3.25 },
                ExpertUnion { rows: 18, factor: 6.0 },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_reports_sources_that_wait_too() {
        let expect = json!({
            "mode": "auto", "acceptance": 0.75, "mean_verified": 5.0, "gain": 1.5,
            "sources": [
                {"source": "n_gram", "drafted": 0, "verified": 0, "accepted": 0, "acceptance": null,
                 "first_acceptance": null},
                {"source": "draft_model", "drafted": 40, "verified": 20, "accepted": 15, "acceptance": 0.75,
                 "first_acceptance": 0.75},
            ],
        });
        assert_eq!(Speculating::example().health(), expect);
    }

    #[test]
    fn the_page_is_notified_once_drafts_were_verified() {
        let mut speculating = Speculating::example();
        assert_eq!(speculating.sample(), Some(json!({"acceptance": 0.75, "gain": 1.5})));
        speculating.report.sources[0].verified = 0;
        speculating.report.sources[0].accepted = 0;
        assert_eq!(speculating.sample(), None);
        assert_eq!(speculating.health()["acceptance"], Value::Null);
    }

    #[test]
    fn numbers_have_the_source_or_the_rows_as_their_label() {
        let mut out = Exposition::default();
        Speculating::example().expose(&mut out);
        let text = out.into_text();
        #[track_caller]
        fn check(text: &str, line: &str) {
            let line = format!("millstream_speculation_{line}");
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        check(&text, "rounds_total{kind=\"plain\"} 6");
        check(&text, "rounds_total{kind=\"speculative\"} 4");
        check(&text, "drafted_tokens_total{source=\"n_gram\"} 0");
        check(&text, "drafted_tokens_total{source=\"draft_model\"} 40");
        check(&text, "verified_tokens_total{source=\"draft_model\"} 20");
        check(&text, "accepted_tokens_total{source=\"draft_model\"} 15");
        check(&text, "first_accepted_share{source=\"draft_model\"} 0.75");
        check(&text, "verified_tokens_mean 5");
        check(&text, "gain 1.5");
        check(&text, "exploration_share 0.005");
        check(&text, "pauses_total 1");
        check(&text, "expert_union{rows=\"5\"} 3.25");
        assert!(!text.contains("rows=\"18\""));
    }
}
