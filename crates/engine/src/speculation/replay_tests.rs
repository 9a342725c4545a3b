//! The controller driven by recorded logs: every `tests/data/speculation/*.jsonl`, one round a line.
//!
//! A log fixes what was verified, so the controller only watches; then it is asked. Its forecasts must
//! fit the log it has seen: the cost of a pass, the acceptance, and a decision that follows from both.
//! `made-by-hand.jsonl` is no recording: the measured curve of twelve layers with drawn acceptance.

use std::path::Path;

use serde::Deserialize;

use super::SourceKind;
use super::controller::{Controller, DraftCost, Drafted, Offer, Pass, Settings, Verdict};

/// One sequence's round; in plain rounds nothing drafts.
#[derive(Deserialize)]
struct Line {
    source: Option<SourceKind>,
    buckets: Vec<u8>,
    accepted: usize,
    rows: usize,
    sequences: usize,
    missed_bytes: u64,
    seconds: f64,
    draft_seconds: f64,
}

fn watch(controller: &mut Controller, line: &Line) {
    controller.plan(&[Vec::new()]);
    if let Some(source) = line.source {
        let (tokens, seconds) = (line.buckets.len(), line.draft_seconds);
        controller.observe_draft(&DraftCost { source, sequences: 1, tokens, read: 0, seconds });
        controller.trim(&[Some(Drafted { source, buckets: &line.buckets })]);
        let (buckets, accepted) = (&line.buckets[..], line.accepted);
        controller.observe_verdict(&Verdict { source, buckets, accepted });
    }
    controller.observe_pass(&Pass {
        rows: line.rows,
        sequences: line.sequences,
        missed_bytes: line.missed_bytes,
        wanted_bytes: 0,
        missed_by_depth: &[],
        seconds: line.seconds,
    });
}

/// The middle of the seconds of the passes with so many rows, drafting included.
fn usual(lines: &[Line], rows: usize) -> Option<f64> {
    let of_rows = lines.iter().filter(|line| line.rows == rows && line.sequences == 1);
    let mut seconds: Vec<f64> = of_rows.map(|line| line.seconds + line.draft_seconds).collect();
    seconds.sort_by(f64::total_cmp);
    (seconds.len() >= 5).then(|| seconds[seconds.len() / 2])
}

#[track_caller]
fn check(name: &str, lines: &[Line]) {
    let mut controller = Controller::new(Settings::default());
    lines.iter().for_each(|line| watch(&mut controller, line));

    // What was told adds up.
    let report = controller.report();
    let verified: usize = lines.iter().map(|line| line.buckets.len()).sum();
    let accepted: usize = lines.iter().map(|line| line.accepted).sum();
    assert_eq!(report.sources.iter().map(|s| s.verified).sum::<u64>(), verified as u64, "{name}");
    assert_eq!(report.sources.iter().map(|s| s.accepted).sum::<u64>(), accepted as u64, "{name}");

    // The gain it tells is that of the log, by the middle times of its passes.
    let single: Vec<&Line> = lines.iter().filter(|line| line.sequences == 1).collect();
    let plain = usual(lines, 1).expect("a log has plain passes");
    let mut taken = 0.0;
    for line in &single {
        taken += usual(lines, line.rows).unwrap_or(line.seconds + line.draft_seconds);
    }
    let tokens: usize = single.iter().map(|line| 1 + line.accepted).sum();
    let gain = tokens as f64 * plain / taken;
    assert!((report.gain / gain - 1.0).abs() < 0.1, "{name}: told {}, is {gain}", report.gain);

    // Asked now, it speculates where the log's own figures say that this is clearly faster.
    let Some((source, bucket)) =
        lines.iter().rev().find_map(|line| line.source.zip(line.buckets.first().copied()))
    else {
        return;
    };
    let of_length = |n: usize| {
        let drafted = single.iter().filter(|line| line.buckets.len() >= n).count();
        let kept: usize = single.iter().filter(|l| l.buckets.len() >= n && l.accepted >= n).count();
        if drafted == 0 { 0.0 } else { kept as f64 / drafted as f64 }
    };
    let mut best: f64 = 1.0;
    let mut all = 1.0;
    for n in 1..=16 {
        all += of_length(n);
        if let Some(seconds) = usual(lines, n + 1) {
            best = best.max(all * plain / seconds);
        }
    }
    let offer = Offer { source, most: 16, behind: 0, bucket: Some(bucket) };
    // The first may be a trial: the second of three counts.
    let picks: Vec<bool> = (0..3).map(|_| controller.plan(&[vec![offer]])[0].is_some()).collect();
    if best > 1.15 {
        assert!(picks[1], "{name}: gains {best:.3}, decided {picks:?}");
    }
    println!("{name}: gain {gain:.3}, best {best:.3}, decided {picks:?}");
}

#[test]
fn recorded_logs_are_understood() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/speculation");
    let mut logs = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder of logs") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a log");
        let lines: Vec<Line> =
            text.lines().map(|line| serde_json::from_str(line).expect("a round a line")).collect();
        assert!(lines.len() >= 50, "{} has {} rounds", path.display(), lines.len());
        check(&path.display().to_string(), &lines);
        logs += 1;
    }
    assert!(logs > 0, "no log in {}", folder.display());
}
