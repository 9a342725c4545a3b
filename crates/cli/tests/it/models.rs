//! `plan`, `show`, `list` and `doctor`.

use super::{Home, assert_has, repository};

/// Arguments of a plan that is the same on every machine.
fn plan<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["plan", model, "--memory", "1G", "--context", "256", "--threads", "2"], more].concat()
}

#[test]
fn plans_are_tables() {
    let home = Home::new();
    home.copy_model("testdata/models/qwen3_5_moe-4bit");
    let ran = home.run(&plan("./model", &[]));
    assert_eq!(ran.stderr, "");
    insta::assert_snapshot!("plan", ran.good());
    let ran =
        home.run(&["plan", "./model", "--memory", "1M", "--context", "256", "--threads", "2"]);
    assert_has(&ran.stderr, &["hint: --memory "]);
    insta::assert_snapshot!("plan_too_large", ran.good());
    // Pebble is inside the program: there is no disk to try.
    let ran = home.run(&plan("pebble", &["--expert-slots", "64"]));
    insta::assert_snapshot!("plan_streamed", ran.good());
}

#[test]
fn plans_are_json() {
    let home = Home::new();
    home.copy_model("testdata/models/qwen3_5_moe-4bit");
    insta::assert_json_snapshot!("plan_json", home.run(&plan("./model", &["--json"])).json());
}

#[test]
fn a_streamed_plan_says_what_to_expect() {
    let home = Home::new();
    home.copy_model("models/pebble");
    let arguments = plan("./model", &["--expert-slots", "64"]);
    let json = home.run(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!(json["streaming"]["slots"], 48);
    assert_eq!(json["streaming"]["staging_slots"], 16);
    assert_eq!(json["streaming"]["kept_share"], 48.0 / 256.0);
    assert_eq!(json["streaming"]["hit_rate"][0], 48.0 / 256.0);
    assert!(json["total_bytes"].as_u64().unwrap() <= json["budget_bytes"].as_u64().unwrap());
    assert!(["direct", "buffered"].contains(&json["disk"]["access"].as_str().unwrap()), "{json}");
    assert!(json["disk"]["depth"].as_u64().unwrap() >= 4);
    // So small a model may not have been timed.
    let timed = json["disk"]["bytes_per_second"].as_f64().is_some();
    match json["expected_tok_s"].as_array() {
        Some(range) => {
            let [slow, fast] = [&range[0], &range[1]].map(|rate| rate.as_f64().unwrap());
            assert!(timed && 0.0 < slow && slow <= fast, "{json}");
        }
        None => assert!(!timed, "{json}"),
    }
    let text = home.run(&arguments).good();
    assert_has(&text, &["expert slots", "48 kept of 256, 16 to pass through", "\nDisk: "]);
    // All in memory: nothing is tried.
    let json = home.run(&plan("./model", &["--json"])).json();
    assert!(json["disk"].is_null() && json["expected_tok_s"].is_null(), "{json}");
    assert!(json["streaming"].is_null());
}

#[test]
fn a_second_plan_knows_what_the_first_has_measured() {
    let home = Home::new();
    home.copy_model("models/pebble");
    let streamed = ["--expert-slots", "64"];
    let arguments = plan("./model", &["--expert-slots", "64", "--json"]);
    let first = home.run(&arguments).json();
    let cache = home.path().join(".cache/millstream/measured.json");
    let kept = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(&cache).unwrap()).unwrap()
    };
    assert_eq!(kept()["disks"][0]["bytes_per_second"], first["disk"]["bytes_per_second"]);
    assert_eq!(kept()["memories"][0]["bytes_per_second"], first["memory"]["bytes_per_second"]);
    // The same figures to the last digit: nothing was tried again.
    assert_eq!(home.run(&arguments).json(), first);
    let text = home.run(&plan("./model", &streamed)).good();
    let date = first["disk"]["measured"].as_str().unwrap();
    assert_has(&text, &[&format!("; measured {date}.\nMemory: "), " by 2 threads; ", "Expect "]);
    // A run tries the disk anew, and what it finds is the next plan's.
    std::fs::write(&cache, "damaged").unwrap();
    let run = ["logits", "./model", "--tokens", "1", "--out", "logits"];
    home.run(&[&run[..], &streamed].concat()).good();
    assert_eq!(kept()["memories"].as_array().unwrap().len(), 0);
    let third = home.run(&arguments).json();
    assert_eq!(third["disk"]["bytes_per_second"], kept()["disks"][0]["bytes_per_second"]);
    // Without the file it is measured again; where there is no place for it, plans are made too.
    std::fs::remove_dir_all(home.path().join(".cache")).unwrap();
    home.write(".cache", "not a folder");
    assert!(home.run(&arguments).json()["disk"]["bytes_per_second"].is_number());
}

#[test]
fn a_plan_that_does_not_fit_says_what_would() {
    let home = Home::new();
    let needed = home.run(&plan("pebble", &["--json"])).json()["total_bytes"].as_u64().unwrap();
    let memory = (needed - 4_000_000).to_string();
    let arguments = ["plan", "pebble", "--context", "256", "--threads", "2", "--memory", &memory];
    let ran = home.run(&[&arguments[..], &["--stream-experts", "never"]].concat());
    assert_has(&ran.stderr, &["hint: --memory ", "hint: --stream-experts auto "]);
    assert_has(&ran.good(), &["It does not fit: 4.0 MB too much.\n"]);
    let streamed = home.run(&arguments).good();
    assert_has(&streamed, &["; experts come from inside the program.\n"]);
    let stderr = home.run(&plan("pebble", &["--expert-slots", "3"])).bad(1);
    assert_has(&stderr, &["error: 3 expert slots are too few: a token needs 4 of a layer at once"]);
}

#[test]
fn a_plan_without_a_model_is_pebbles() {
    let plan = Home::new().run(&["plan", "--json"]).json();
    assert_eq!(plan["model"], "pebble");
    assert_eq!(plan["fits"], true);
    let rows = plan["rows"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert_eq!(plan["total_bytes"], sum);
}

#[test]
fn more_context_than_the_model_has_is_a_warning() {
    let ran = Home::new().run(&["plan", "--context", "1000000"]);
    assert_has(&ran.stderr, &["warning: pebble was made for 8192 positions"]);
    assert_has(&ran.good(), &["Context: 8192 of the model's 8192 positions.\n"]);
}

#[test]
fn show_describes_a_model() {
    let home = Home::new();
    insta::assert_snapshot!("show_pebble", home.run(&["show"]).good());
    home.copy_model("testdata/models/qwen3_moe-mixed");
    let facts = home.run(&["show", "./model", "--json"]).json();
    assert_eq!(facts["model_type"], "qwen3_moe");
    assert_eq!(facts["chat_template"], false);
    assert_eq!(facts["text_error"], "the checkpoint has no tokenizer.json");
    assert!(facts["weights"].as_array().unwrap().len() > 1);
    // Matrices are nearly all there is.
    let matrices: u64 = facts["weights"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| kind["bytes"].as_u64().unwrap())
        .sum();
    let size = facts["size_bytes"].as_u64().unwrap();
    assert!(matrices <= size && matrices * 10 > size * 9, "{matrices} of {size}");
}

#[test]
fn list_shows_what_is_built_in_and_what_is_cached() {
    let home = Home::new();
    let snapshot = ".cache/huggingface/hub/models--org--repo/snapshots/c0ffee";
    home.write(&format!("{snapshot}/config.json"), r#"{"model_type": "qwen3_moe"}"#);
    home.write(&format!("{snapshot}/model.safetensors"), vec![0; 1_500_000]);
    home.write(".cache/huggingface/hub/models--org--repo/refs/main", "c0ffee");
    let text = home.run(&["list"]).good();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].starts_with("NAME "), "{text}");
    assert!(lines[1].starts_with("pebble ") && lines[1].contains("built in"), "{text}");
    assert!(lines[4].starts_with("org/repo "), "{text}");
    assert_has(lines[4], &["1.5 MB", "qwen3_moe", snapshot]);

    let models = home.run(&["list", "--json"]).json();
    let names: Vec<&str> =
        models.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["pebble", "pebble-draft", "pebble-dflash", "org/repo"]);
    for model in models.as_array().unwrap() {
        assert_eq!(model["complete"], true);
        assert_eq!(model["builtin"], model["path"].is_null());
    }
}

#[test]
fn a_draft_head_does_not_answer_alone() {
    let ran = Home::new().run(&["run", "pebble-dflash", "Hello"]);
    assert_eq!(ran.code, Some(1));
    assert_has(&ran.stderr, &["error: ", "DFlash draft", "--dflash"]);
}

#[test]
fn doctor_judges_and_its_exit_code_says_so() {
    let home = Home::new();
    let ran = home.run(&["doctor"]);
    let code = ran.code;
    for line in ran.stdout.lines() {
        let status = line.split_whitespace().next().unwrap();
        assert!(["ok", "warn", "fail", "hint:"].contains(&status), "{line}");
    }
    assert_has(&ran.stdout, &["cores: ", "instruction sets: ", "memory: ", "disk: "]);
    let failed = ran.stdout.lines().any(|line| line.starts_with("fail"));
    assert_eq!(code, Some(i32::from(failed)));

    let ran = home.run(&["doctor", "--json"]);
    assert_eq!(ran.code, code);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["ready"], !failed);
    assert!(report["machine"]["core_count"].as_u64().unwrap() > 0);
}

#[test]
fn every_test_model_can_be_planned_and_shown() {
    let home = Home::new();
    let folder = repository("testdata/models");
    for entry in std::fs::read_dir(folder).unwrap() {
        let model = entry.unwrap().path();
        let model = model.to_str().unwrap();
        home.run(&["plan", model]).good();
        home.run(&["show", model]).good();
    }
}

#[test]
fn gguf_files_are_shown_by_type() {
    let home = Home::new();
    home.run(&["synth", "--like", "tiny-qwen3.5-moe", "--format", "gguf", "model.gguf"]).good();
    let text = home.run(&["show", "model.gguf"]).good();
    assert_has(&text, &["qwen3_5_moe", "  file ", "model.gguf\n", "  Q4_1 ", "  F32 ", " tensors"]);
    assert_has(&text, &["  tokenizer        4096 tokens"]);
    let json = home.run(&["show", "model.gguf", "--json"]).json();
    assert_eq!(json["weights"][0]["encoding"], "Q4_1");
    let tensors = json["tensors"].as_array().unwrap();
    let of = |key: &str| tensors.iter().map(|kind| kind[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(json["size_bytes"], of("bytes"));
    assert_eq!(tensors.iter().map(|kind| &kind["type"]).collect::<Vec<_>>(), ["Q4_1", "F32"]);
    home.run(&plan("./model.gguf", &[])).good();
    // The same from memory and from the disk.
    let logits = |out: &str, more: &[&str]| {
        let arguments = ["logits", "model.gguf", "--tokens", "1,2,3,4,5", "--out", out];
        home.run(&[&arguments[..], more].concat()).good();
        std::fs::read(home.path().join(out)).unwrap()
    };
    let resident = logits("resident", &[]);
    assert_eq!(
        logits("streamed", &["--stream-experts", "always", "--expert-slots", "4"]),
        resident
    );
    home.run(&["run", "model.gguf", "hi", "--max-tokens", "3"]).good();
    let stderr = home.run(&["repack", "model.gguf", "copy"]).bad(1);
    assert_has(&stderr, &["model.gguf is a GGUF file, which is not repacked", "hint: "]);
}
