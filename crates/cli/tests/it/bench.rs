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

#[test]
fn a_model_in_no_file_is_measured_like_the_one_that_synth_writes() {
    let home = Home::new();
    home.run(&["synth", "--like", "tiny-qwen3-moe", "model"]).good();
    let short =
        ["--json", "--prompt-tokens", "8", "--gen-tokens", "2", "--repeat", "1", "--threads=2"];
    let report = |model: &[&str]| home.run(&[&["bench"], model, &short].concat()).json();
    let (made, written) = (report(&["--synthetic", "tiny-qwen3-moe"]), report(&["./model"]));
    assert_eq!(made["model"], "4 layers of tiny-qwen3-moe");
    for key in ["model_type", "weight_bytes", "threads"] {
        assert_eq!(made[key], written[key], "{key}");
    }
    let per_token = |report: &serde_json::Value| report["runs"][0]["bytes_per_token"].clone();
    assert_eq!(per_token(&made), per_token(&written));
    let fewer = report(&["--synthetic", "tiny-qwen3-moe", "--layers", "2"]);
    assert!(per_token(&fewer).as_u64().unwrap() < per_token(&made).as_u64().unwrap());
    let streamed = report(&["--synthetic", "tiny-qwen3-moe", "--expert-slots", "24"]);
    assert!(streamed["runs"][0]["read_bytes_per_token"].as_u64().unwrap() > 0, "{streamed}");
}

#[test]
fn an_unknown_shape_is_reported() {
    let home = Home::new();
    let stderr = home.run(&["bench", "--synthetic", "qwen9"]).bad(1);
    assert_has(&stderr, &["there is no shape `qwen9`", "hint: the shapes are ", "gpt-oss-20b"]);
    let stderr = home.run(&["bench", "./model", "--synthetic", "tiny-llama"]).bad(2);
    assert_has(&stderr, &["'--synthetic <SHAPE>'", "cannot be used with", "'[MODEL]'"]);
    assert_has(&home.run(&["bench", "--layers", "2"]).bad(2), &["--synthetic <SHAPE>"]);
}
