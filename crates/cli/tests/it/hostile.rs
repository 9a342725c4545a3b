//! Files of a model that were made to do harm, one kind at a time: the program says what is wrong, where, and ends.

use serde_json::{Value, json};

use super::mutants::limited;
use super::{Home, Ran, assert_has, repository};

/// Seconds of processor and KiB of memory.
const ROOM: &str = "-t 10 -d 2097152";

/// A home with a small model, Pebble's tokenizer and template, as `./model`.
fn home() -> Home {
    let home = Home::new();
    for name in ["config.json", "model.safetensors"] {
        let bytes = std::fs::read(repository("testdata/models/llama-2bit").join(name)).unwrap();
        home.write(&format!("model/{name}"), bytes);
    }
    for name in ["tokenizer.json", "chat_template.jinja", "generation_config.json"] {
        let bytes = std::fs::read(repository("models/pebble").join(name)).unwrap();
        home.write(&format!("model/{name}"), bytes);
    }
    home
}

/// Changes a JSON file of the model.
fn edit(home: &Home, name: &str, change: impl FnOnce(&mut Value)) {
    let path = home.path().join("model").join(name);
    let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

#[track_caller]
fn ran(home: &Home, limits: &str, arguments: &[&str]) -> Ran {
    let ran = Ran::from(limited(home, limits, arguments).output().unwrap());
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert!(matches!(ran.code, Some(0 | 1)), "{:?}: {}", ran.code, ran.stderr);
    ran
}

#[track_caller]
fn show(home: &Home) -> Ran {
    ran(home, ROOM, &["show", "./model"])
}

#[test]
fn a_size_that_no_model_has_is_named_with_its_maximum() {
    for (key, value, most) in [
        ("head_dim", json!(9_007_199_254_740_992_u64), 4096),
        ("head_dim", json!(1_073_741_824), 4096),
        ("hidden_size", json!(4_294_967_296_u64), 262_144),
        ("hidden_size", json!(4_294_967_296.0), 262_144),
        ("vocab_size", json!(u64::MAX), 2_097_152),
        ("num_hidden_layers", json!(1_000_000_000), 1024),
        ("num_attention_heads", json!(-4), 1024),
        ("intermediate_size", json!("wide"), 262_144),
    ] {
        let home = home();
        edit(&home, "config.json", |config| config[key] = value.clone());
        for arguments in [
            &["show", "./model"][..],
            &["plan", "./model"],
            &["logits", "./model", "--tokens", "1", "--out", "out"],
        ] {
            let stderr = ran(&home, ROOM, arguments).bad(1);
            let expected = format!("a whole number from 0 to {most}");
            assert_has(&stderr, &["config.json", &format!("`{key}` is {value}"), &expected]);
        }
    }
}

#[test]
fn a_tokenizer_that_breaks_its_library_is_refused_by_its_part() {
    let charsmap = |map: &str| json!({"type": "Precompiled", "precompiled_charsmap": map});
    let replace = json!({"type": "Replace", "pattern": {"String": ""}, "content": "a"});
    let mut nested = json!({"type": "Sequence", "normalizers": []});
    for _ in 0..40 {
        nested = json!({"type": "Sequence", "normalizers": [nested]});
    }
    for (section, value, expected) in [
        ("normalizer", charsmap("AAAA"), "normalizer: Precompiled: precompiled_charsmap: it ends"),
        (
            "normalizer",
            charsmap("/////wAAAAA="),
            "precompiled_charsmap: a tree of 4294967295 bytes",
        ),
        ("normalizer", replace.clone(), "normalizer: Replace: its pattern is empty"),
        ("decoder", replace, "decoder: Replace: its pattern is empty"),
        ("normalizer", nested, "normalizer: values more than 24 deep"),
        (
            "model",
            json!({"type": "BPE", "vocab": {"a": 0, "b": u32::MAX}, "merges": []}),
            "model: vocab: \"b\" has the id 4294967295",
        ),
        (
            "model",
            json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a".repeat(300_000), -1.0]]}),
            "model: vocab: \"aaaa",
        ),
        (
            "model",
            json!({"type": "Unigram", "unk_id": 3, "vocab": [["a", 0.0]]}),
            "model or added_tokens: ",
        ),
        (
            "pre_tokenizer",
            json!({"type": "FixedLength", "length": 0}),
            "FixedLength: a length of 0",
        ),
        ("post_processor", json!({"type": "Nothing"}), "post_processor: "),
    ] {
        let home = home();
        edit(&home, "tokenizer.json", |tokenizer| tokenizer[section] = value);
        assert_has(&show(&home).good(), &["tokenizer.json cannot be read: ", expected]);
    }
}

#[test]
fn padding_and_truncation_of_a_training_run_cost_nothing() {
    let home = home();
    edit(&home, "tokenizer.json", |tokenizer| {
        tokenizer["padding"] = json!({"strategy": {"Fixed": 1_000_000_000}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"});
    });
    assert_has(&show(&home).good(), &["4096 tokens, ends at <|endoftext|> <|im_end|>"]);
}

#[test]
fn a_token_may_be_longer_than_a_line() {
    let home = home();
    let long = "a".repeat(70_000);
    edit(&home, "tokenizer.json", |tokenizer| {
        tokenizer["model"]["vocab"][&long] = json!(4100);
        // What a terminal would obey.
        tokenizer["model"]["vocab"]["\u{1b}[2J"] = json!(4101);
    });
    edit(&home, "generation_config.json", |config| {
        config["eos_token_id"] = (4100..4200).collect();
    });
    let shown = show(&home).good();
    assert_has(&shown, &[&format!("{}…", "a".repeat(40)), "\\u{1b}[2J", "more\n"]);
    assert!(!shown.contains('\u{1b}') && !shown.contains(&"a".repeat(50)), "{shown}");
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_no_file_is_reported_and_not_read() {
    for name in [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "chat_template.jinja",
        "chat_template.json",
        "generation_config.json",
        "tokenizer_config.json",
    ] {
        let home = home();
        let path = home.path().join("model").join(name);
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let ran = show(&home);
        let all = ran.stdout + &ran.stderr;
        assert_has(&all, &[name]);
        assert!(all.contains("not a plain file") || all.contains("missing config.json"), "{all}");
    }
}

#[test]
fn a_side_file_of_gigabytes_is_reported() {
    for name in ["chat_template.jinja", "tokenizer.json", "generation_config.json"] {
        let home = home();
        let file = std::fs::File::create(home.path().join("model").join(name)).unwrap();
        file.set_len(3 << 30).unwrap();
        assert_has(&show(&home).good(), &[name, "more than ", "the limit for such a file"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_cannot_be_opened_is_not_a_file_that_is_missing() {
    let home = home();
    let mut named = 0;
    // The fewest files with which the headers can be read differ, so one more after the other.
    for files in 3..12 {
        let limits = format!("{ROOM} -n {files}");
        let ran = Ran::from(limited(&home, &limits, &["show", "./model"]).output().unwrap());
        let all = ran.stdout + &ran.stderr;
        assert!(!all.contains("no tokenizer.json") && !all.contains("missing"), "{files}: {all}");
        named += usize::from(all.contains("tokenizer.json: cannot open: Too many open files"));
    }
    assert!(named > 0, "no number of files is enough for the weights and not for the tokenizer");
}
