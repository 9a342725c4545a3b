//! `simulate`: a log of a run, replayed at other sizes.

use super::{Home, assert_has};

const HEADER: &str = r#"{"millstream_routing":1,"layers":[{"experts":16,"experts_per_token":2,"expert_bytes":900000,"slot_bytes":1000000},null,{"experts":16,"experts_per_token":2,"expert_bytes":900000,"slot_bytes":1000000}],"slots":{"classes":[{"kept":8,"staging":2}],"bytes":10000000},"fixed_bytes":300000000}"#;

/// A prompt of 40 tokens and 60 tokens after it, which prefer some experts.
fn log() -> String {
    let mut log = format!("{HEADER}\n0 40 3 1 4 15 9 2 6\n2 40 5 8 7\n");
    for token in 0..60 {
        let (favourite, other) = (token / 8 % 4, 4 + token * 5 % 12);
        for layer in [0, 2] {
            log.push_str(&format!("{layer} 1 {favourite} {other}\n"));
        }
    }
    log
}

#[test]
fn a_log_is_replayed_at_many_sizes() {
    let home = Home::new();
    home.write("routing.log", log());
    let ran = home.run(&["simulate", "routing.log"]);
    assert_eq!(ran.stderr, "");
    insta::assert_snapshot!("simulate", ran.good());
    let report = home.run(&["simulate", "routing.log", "--json"]).json();
    assert_eq!(report["decode_tokens"], 60);
    assert_eq!(report["prompt_tokens"], 40);
    let sizes = report["sizes"].as_array().unwrap();
    assert_eq!(sizes.iter().filter(|size| size["recorded"] == true).count(), 1);
    assert!(sizes.iter().all(|size| size["asked"] == false));
    let mut last = 0.0;
    for size in sizes {
        let hits = |policy: &str| size["policies"][policy]["hit_rate"].as_f64().unwrap();
        assert!(hits("belady") >= hits("lru") && hits("belady") >= hits("layered"), "{size}");
        assert!(hits("belady") >= last, "{size}");
        last = hits("belady");
        assert_eq!(
            size["memory_bytes"].as_u64().unwrap(),
            300_000_000 + size["slots_bytes"].as_u64().unwrap()
        );
        // 2 layers × 2 experts × 1 MB, less what was in memory.
        let read = size["policies"]["layered"]["read_bytes_per_token"].as_f64().unwrap();
        assert!((read - 4e6 * (1.0 - hits("layered"))).abs() < 1.0, "{size}");
    }
}

#[test]
fn the_requested_memory_gets_a_line() {
    let home = Home::new();
    home.write("routing.log", log());
    let asked = |arguments: &[&str]| {
        let all = [&["simulate", "routing.log", "--json"], arguments].concat();
        let report = home.run(&all).json();
        let sizes = report["sizes"].as_array().unwrap();
        let asked: Vec<_> = sizes.iter().filter(|size| size["asked"] == true).cloned().collect();
        assert_eq!(asked.len(), 1, "{arguments:?}: {report}");
        asked[0].clone()
    };
    // 300 MB are for everything else.
    let size = asked(&["--memory", "316MB"]);
    assert_eq!((size["kept"].as_u64(), size["slots"].as_u64()), (Some(12), Some(16)));
    assert_eq!(asked(&["--expert-cache", "16MB"]), size);
    assert_eq!(asked(&["--expert-slots", "16"]), size);
    let recorded = asked(&["--expert-slots", "10"]);
    assert_eq!(recorded["recorded"], true);
    let text = home.run(&["simulate", "routing.log", "--expert-slots", "16"]).good();
    assert_eq!(text.matches("asked for").count(), 1, "{text}");
}

#[test]
fn a_memory_too_small_for_a_token_is_refused() {
    let home = Home::new();
    home.write("routing.log", log());
    let stderr = home.run(&["simulate", "routing.log", "--memory", "301MB"]).bad(1);
    assert_has(&stderr, &["error: --memory 301.0 MB has no room", "hint: --memory 289M would\n"]);
    home.run(&["simulate", "routing.log", "--memory", "289M"]).good();
    let stderr = home.run(&["simulate", "routing.log", "--expert-slots", "1"]).bad(1);
    assert_has(&stderr, &["error: 1 expert slots are too few: a token needs 2"]);
}

#[test]
fn what_is_no_log_is_refused() {
    let home = Home::new();
    let check = |content: &str, parts: &[&str]| {
        home.write("file", content);
        assert_has(&home.run(&["simulate", "file"]).bad(1), parts);
    };
    check("", &["error: cannot read file\n", "line 1 of the routing log: the file is empty\n"]);
    check("# A page\n", &["caused by: line 1 of the routing log: no routing log"]);
    check(&format!("{HEADER}\n"), &["error: file ends after line 1", "hint: ", "--record-routing"]);
    let cut = log();
    check(&cut[..cut.len() - 2], &["line 123 of the routing log: cut off"]);
    check(&format!("{HEADER}\n0 1 3 99\n"), &["line 2 of the routing log: expert 99 of 16\n"]);
    let stderr = home.run(&["simulate", "nowhere"]).bad(1);
    assert_has(&stderr, &["error: cannot open nowhere\ncaused by: "]);
}

#[test]
fn a_recorded_run_can_be_replayed() {
    let home = Home::new();
    // 64 slots.
    let record =
        ["--stream-experts", "always", "--expert-cache", "6656k", "--record-routing", "log"];
    let prompt = "Tell me about a fox.";
    let answer = ["run", "pebble", prompt, "--temperature", "0", "--max-tokens", "12"];
    home.run(&[&answer[..], &record].concat()).good();
    let report = home.run(&["simulate", "log", "--json"]).json();
    assert_eq!(report["layers"], 8);
    assert_eq!(report["experts"], 256);
    assert_eq!(report["experts_per_token"], 32);
    let sizes = report["sizes"].as_array().unwrap();
    let recorded = sizes.iter().find(|size| size["recorded"] == true).unwrap();
    assert_eq!(recorded["slots"], 64);
    assert_eq!(sizes.last().unwrap()["kept"], 256);
    // Without a disk there is nothing to record.
    let never = ["--stream-experts", "never", "--record-routing", "log"];
    assert_has(
        &home.run(&[&answer[..], &never].concat()).bad(1),
        &["hint: --stream-experts always"],
    );
}
