//! `millstream run` with a prompt.

use std::io::Read;
use std::process::Stdio;

use super::{Home, assert_has, with_input};

const OPPOSITE: &str = "What's the opposite of cold?";
const STORY: &str = "Tell me a story about a fox and a lantern";

#[test]
fn pebble_answers_a_prompt_without_a_model() {
    let ran = Home::new().run(&["run", OPPOSITE, "--temperature", "0"]);
    assert_has(
        &ran.stderr,
        &["pebble: 20 prompt tokens at ", " tok/s, 8 answer tokens at ", " memory"],
    );
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert_eq!(ran.good(), "The opposite of cold is hot.\n");
}

#[test]
fn a_draft_that_cannot_pay_is_left_out_in_numbers() {
    let home = Home::new();
    let options = ["--context", "256", "--threads", "2"];
    let plan = home.run(&[&["plan", "pebble", "--json"], &options[..]].concat()).json();
    // Room for the model alone, then for a few experts less: the draft fits in neither case.
    let alone = plan["total_bytes"].as_u64().unwrap() + 1_000_000;
    for bytes in [alone, alone - 6_000_000] {
        let memory = bytes.to_string();
        let asked = ["--memory", &memory, "--draft-model", "pebble-draft", "--temperature", "0"];
        let ran = home.run(&[&["run", OPPOSITE], &options[..], &asked].concat());
        assert_has(
            &ran.stderr,
            &["warning: continuing without pebble-draft: pebble takes ", ", together ", " MB of "],
        );
        assert_eq!(ran.good(), "The opposite of cold is hot.\n");
    }
}

#[test]
fn a_model_can_be_named_or_a_folder() {
    let home = Home::new();
    home.copy_model("models/pebble");
    for model in ["pebble", "PEBBLE", "model", "./model", "./model/config.json"] {
        let ran = home.run(&["run", model, OPPOSITE, "--temperature", "0"]);
        assert_eq!(ran.good(), "The opposite of cold is hot.\n", "{model}");
    }
}

#[test]
fn a_word_alone_is_a_prompt_unless_it_is_a_model() {
    let home = Home::new();
    let answer = home.run(&["run", "Hello", "--temperature", "0", "--json"]).json();
    assert_eq!(answer["model"], "pebble");
    assert_eq!(answer["finish_reason"], "stop");
    // `pebble` alone is the model, and so there is no prompt.
    assert_has(&home.run(&["run", "pebble"]).bad(2), &["error: there is no prompt", "hint: "]);
    assert_has(&home.run(&["run"]).bad(2), &["error: there is no prompt"]);
}

#[test]
fn a_prompt_may_look_a_little_like_a_path() {
    let home = Home::new();
    for prompt in ["What is 1/2 of ten?", "...and then?", "~ what is this"] {
        home.run(&["run", prompt, "--max-tokens", "1"]).good();
    }
}

#[test]
fn the_prompt_may_come_from_standard_input() {
    let home = Home::new();
    for arguments in [&["run", "--temperature", "0"][..], &["run", "pebble", "--temperature", "0"]]
    {
        let ran = with_input(home.command(arguments), format!("{OPPOSITE}\n").as_bytes());
        assert_eq!(ran.good(), "The opposite of cold is hot.\n");
    }
}

#[test]
fn standard_input_comes_after_the_argument() {
    let home = Home::new();
    let prompt = "Reverse the word:";
    let piped = with_input(home.command(&["run", prompt, "-vv", "--temperature", "0"]), b"stone\n");
    assert_has(&piped.stderr, &["Reverse the word:\\n\\nstone<|im_end|>"]);
    let bad = with_input(home.command(&["run"]), b"\xff\xfe").bad(1);
    assert_has(&bad, &["error: standard input is not UTF-8", "caused by: "]);
}

#[test]
fn json_is_one_object_with_everything() {
    let arguments = ["run", OPPOSITE, "--temperature", "0", "--seed", "7", "--json"];
    let answer = Home::new().run(&arguments).json();
    // Times and memory differ from run to run.
    let mut steady = answer.clone();
    steady["timings"].as_object_mut().unwrap().values_mut().for_each(|value| *value = 0.into());
    steady["peak_bytes"] = 0.into();
    steady["memory"].as_object_mut().unwrap().values_mut().for_each(|value| *value = 0.into());
    insta::assert_json_snapshot!(steady, @r#"
    {
      "model": "pebble",
      "text": "The opposite of cold is hot.",
      "reasoning": null,
      "finish_reason": "stop",
      "seed": 7,
      "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 8,
        "total_tokens": 28
      },
      "timings": {
        "load_seconds": 0,
        "prefill_seconds": 0,
        "prefill_tok_s": 0,
        "decode_seconds": 0,
        "decode_tok_s": 0
      },
      "peak_bytes": 0,
      "memory": {
        "resident_bytes": 0,
        "peak_resident_bytes": 0,
        "anonymous_bytes": 0,
        "file_bytes": 0,
        "swap_bytes": 0,
        "group_file_bytes": 0
      }
    }
    "#);
    for key in ["prefill_seconds", "prefill_tok_s", "decode_seconds", "decode_tok_s"] {
        assert!(answer["timings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert!(answer["peak_bytes"].as_u64().unwrap() > 16_000_000);
}

#[test]
fn a_seed_decides_the_answer_and_without_one_answers_differ() {
    let home = Home::new();
    let ask = |seed: &[&str]| {
        let arguments =
            ["run", STORY, "--temperature", "1.5", "--top-k", "0", "--top-p", "1", "--json"];
        home.run(&[&arguments[..], seed].concat()).json()
    };
    let (first, again) = (ask(&["--seed", "11"]), ask(&["--seed", "11"]));
    assert_eq!(first["text"], again["text"]);
    let (one, other) = (ask(&[]), ask(&[]));
    assert_ne!(one["seed"], other["seed"]);
    assert_ne!(one["text"], other["text"]);
    // The seed that is reported is the one that was used.
    let seed = one["seed"].to_string();
    assert_eq!(ask(&["--seed", &seed])["text"], one["text"]);
}

#[test]
fn no_part_of_a_stop_text_leaks() {
    let home = Home::new();
    let whole = home.run(&["run", STORY, "--temperature", "0"]).good();
    // Parts of the answer itself: within a word, over several words, over the end of a line.
    let line_end = whole.trim_end().find('\n').unwrap();
    for stop in [&whole[20..23], &whole[60..90], &whole[line_end - 3..line_end + 4]] {
        let at = whole.find(stop).unwrap();
        let answer =
            home.run(&["run", STORY, "--temperature", "0", "--stop", stop, "--json"]).json();
        assert_eq!(answer["text"], whole[..at]);
        assert_eq!(answer["finish_reason"], "stop");
    }
    // Two of them: the one that comes first counts.
    let stops = ["run", STORY, "--temperature", "0", "--stop", "lantern", "--stop", "fox"];
    let answer = home.run(&stops).good();
    let first = whole.find("fox").unwrap().min(whole.find("lantern").unwrap());
    assert_eq!(answer.trim_end(), whole[..first].trim_end());
}

#[test]
fn the_longest_length_ends_an_answer() {
    let home = Home::new();
    let arguments = ["run", STORY, "--temperature", "0", "--max-tokens", "5", "--json"];
    let answer = home.run(&arguments).json();
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 5);
}

#[test]
fn instructions_reach_the_model() {
    let home = Home::new();
    let ran = home.run(&["run", "hi", "--system", "Be brief.", "--temperature", "0", "-vv"]);
    assert_has(&ran.stderr, &["<|im_start|>system\\nBe brief.<|im_end|>"]);
}

#[test]
fn thinking_is_kept_out_of_the_answer() {
    let home = Home::new();
    let prompt = "What is 17 + 25?";
    let thought = home.run(&["run", prompt, "--temperature", "0", "--thinking", "--json"]).json();
    assert!(!thought["reasoning"].as_str().unwrap().trim().is_empty());
    assert_has(thought["text"].as_str().unwrap(), &["42"]);
    assert!(!thought["text"].as_str().unwrap().contains("think>"));
    let plain = home.run(&["run", prompt, "--temperature", "0", "--no-thinking", "--json"]).json();
    assert!(plain["reasoning"].is_null());
    // Standard error is no terminal here, so thinking is not shown.
    let ran = home.run(&["run", prompt, "--temperature", "0", "--thinking"]);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert_eq!(ran.stdout.trim_end(), thought["text"].as_str().unwrap().trim_end());
}

#[test]
fn answers_do_not_depend_on_threads_memory_or_the_precision_of_the_cache() {
    let home = Home::new();
    let precise = ["run", OPPOSITE, "--temperature", "0", "--kv", "f32"];
    let threads = ["run", OPPOSITE, "--temperature", "0", "--threads", "1", "--memory", "2G"];
    for arguments in [&precise[..], &threads] {
        assert_eq!(home.run(arguments).good(), "The opposite of cold is hot.\n");
    }
}

#[test]
fn logits_are_the_same_on_every_instruction_set_that_a_person_would_force() {
    let home = Home::new();
    let logits = |isa: &[&str]| {
        let arguments = ["logits", "pebble", "--tokens", "1 2 3 40 5", "--out", "logits"];
        home.run(&[&arguments, isa].concat()).good();
        std::fs::read(home.path().join("logits")).unwrap()
    };
    assert!(logits(&[]) == logits(&["--isa", "scalar"]));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let home = Home::new();
    let mut command = home.command(&["run", STORY, "--temperature", "0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 8];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn a_model_without_a_chat_template_says_so() {
    let home = Home::new();
    let model = home.copy_model("models/pebble");
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let arguments = ["run", "./model", "Once", "--max-tokens", "1", "--temperature", "0"];
    let ran = home.run(&arguments);
    assert_has(&ran.stderr, &["warning: ./model has no chat template", ", 1 answer token, "]);
    ran.good();
}
