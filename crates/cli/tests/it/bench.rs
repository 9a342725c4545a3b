//! `bench`: what it says of experts that come from the disk. How fast anything is is not a matter for a test.

use super::{Home, assert_has};

/// A short run in which experts come from the disk.
const STREAMED: [&str; 11] = [
    "bench",
    "./model",
    "--expert-slots",
    "40",
    "--prompt-tokens",
    "8",
    "--gen-tokens",
    "3",
    "--repeat",
    "2",
    "--threads=2",
];

#[test]
fn a_streamed_run_says_what_was_read_and_what_time_went_into() {
    let home = Home::new();
    home.copy_model("models/pebble");
    let report = home.run(&[&STREAMED[..], &["--json", "--trace", "trace.json"]].concat()).json();
    let run = &report["runs"][0];
    let number = |key: &str| run[key].as_f64().unwrap();
    assert!((0.0..1.0).contains(&number("hit_rate")), "{run}");
    assert!(number("read_bytes_per_token") > 0.0 && number("read_share") > 0.0, "{run}");
    let shares = number("computing_share") + number("waiting_share");
    assert!((shares - 1.0).abs() < 1e-6 || number("waiting_share") > 1.0, "{run}");
    // The trace is of the run that is reported: as many bytes, read for experts that exist.
    let trace = std::fs::read_to_string(home.path().join("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    let mut bytes = 0;
    for event in trace["traceEvents"].as_array().unwrap() {
        if event["name"] != "read" {
            continue;
        }
        let about = &event["args"];
        bytes += about["bytes"].as_u64().unwrap();
        assert!(about["layer"].as_u64().unwrap() < 8, "{event}");
        assert!(about["expert"].as_u64().unwrap() < 32, "{event}");
    }
    let reported = number("read_bytes_per_token") * 3.0;
    assert!(
        (bytes as f64 - reported).abs() < 0.05 * reported,
        "{bytes} bytes, {reported} reported"
    );
}

#[test]
fn comma_separated_values_have_a_column_for_everything_that_is_read() {
    let home = Home::new();
    home.copy_model("models/pebble");
    let resident =
        ["bench", "./model", "--prompt-tokens", "8", "--gen-tokens", "2", "--repeat", "1"];
    for (arguments, is_streamed) in [(&STREAMED[..], true), (&resident[..], false)] {
        let text = home.run(&[arguments, &["--csv"]].concat()).good();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        let [header, row] = &rows[..] else { panic!("{text}") };
        assert_eq!(header.len(), row.len(), "{text}");
        assert_has(&text, &["hit_rate,read_bytes_per_token,", ",computing_share,waiting_share,"]);
        let column = header.iter().position(|name| *name == "hit_rate").unwrap();
        assert_eq!(!row[column].is_empty(), is_streamed, "{text}");
    }
}
