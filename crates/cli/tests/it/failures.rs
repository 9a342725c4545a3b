//! What goes wrong, and how it is said.

use super::{Home, assert_has};

#[test]
fn a_wrong_flag_is_a_usage_error_with_a_hint() {
    let home = Home::new();
    let stderr = home.run(&["run", "hi", "--temprature", "0"]).bad(2);
    assert_has(
        &stderr,
        &["error: unexpected argument '--temprature'", "hint: ", "'--temperature'"],
    );
    for flag in ["--model", "--modle", "-m"] {
        let stderr = home.run(&["run", flag, "pebble", "hi"]).bad(2);
        assert_has(
            &stderr,
            &["unexpected argument", "hint: the model is no option", "comes first"],
        );
    }
    let stderr = home.run(&["completions", "--model", "pebble"]).bad(2);
    assert!(!stderr.contains("the model is no option"), "{stderr}");
    let stderr = home.run(&["serve", "--isa", "avx2"]).bad(2);
    assert_has(&stderr, &["'--isa'", "hint: `--isa` is an option of bench, logits, perplexity\n"]);
    for arguments in [["--kv", "f32", "plan"], ["list", "--kv", "f32"]] {
        let stderr = home.run(&arguments).bad(2);
        assert_has(
            &stderr,
            &["'--kv'", "hint: `--kv` is an option of run, serve, plan, bench, logits, perplexity"],
        );
        assert_eq!(stderr.contains("comes after the command"), arguments[0] == "--kv");
    }
    let stderr = home.run(&["run", "hi", "--flash-attn"]).bad(2);
    assert_has(&stderr, &["unexpected argument '--flash-attn'", "hint: try '--help'"]);
    assert!(!stderr.contains("as a value"), "{stderr}");
    assert_has(&home.run(&["run", "-5 + 3"]).bad(2), &["hint: to pass '-5", "use '-- -5"]);
    assert_has(
        &home.run(&["plann"]).bad(2),
        &["unrecognized subcommand 'plann'", "hint: ", "'plan'"],
    );
    assert_has(
        &home.run(&["rnu"]).bad(2),
        &["unrecognized subcommand 'rnu'", "hint: try '--help'"],
    );
    let stderr = home.run(&["run", "hi", "--temperature", "9"]).bad(2);
    assert_has(&stderr, &["error: temperature must be 0 to 2, got 9\n", "hint: "]);
    for (option, value, expected) in [
        ("--seed", "-1", "a whole number from 0"),
        ("--max-tokens", "many", "a whole number from 1"),
        ("--temperature", "hot", "a number"),
    ] {
        let stderr = home.run(&["run", "hi", &format!("{option}={value}")]).bad(2);
        assert_has(
            &stderr,
            &[&format!("invalid value '{value}'"), &format!(": expected {expected}\n")],
        );
    }
    assert_has(&home.run(&["plan", "--memory", "lots"]).bad(2), &["`lots` is not a size"]);
    assert_has(&home.run(&["bench", "--isa", "mmx"]).bad(2), &["invalid value 'mmx'", "avx512"]);
}

#[test]
fn sizes_and_numbers_of_experts_that_make_no_sense_are_reported() {
    let home = Home::new();
    home.copy_model("testdata/models/llama-4bit");
    for option in ["--memory", "--expert-cache"] {
        let stderr = home.run(&["plan", option, "0"]).bad(2);
        assert_has(
            &stderr,
            &["invalid value '0'", "nothing fits into no memory; without the option"],
        );
    }
    let stderr = home.run(&["plan", "pebble", "--expert-cache", "9k"]).bad(1);
    assert_has(
        &stderr,
        &["9.2 kB for experts is too little: a token needs 4", "hint: --expert-cache 1M"],
    );
    let warning = |arguments: &[&str]| {
        let ran = home.run(&[&["plan"], arguments].concat());
        let stderr = ran.stderr.clone();
        ran.good();
        stderr
    };
    let stderr = warning(&["pebble", "--experts-per-token", "5"]);
    assert_has(
        &stderr,
        &["each token uses 4 experts of a layer: --experts-per-token 5 changes nothing"],
    );
    assert_eq!(warning(&["pebble", "--experts-per-token", "4"]), "");
    let stderr = warning(&["./model", "--stream-experts", "always"]);
    assert_has(&stderr, &["there are no experts: --stream-experts always changes nothing"]);
    // Only once the memory would be taken.
    let much = ["pebble", "hi", "--max-tokens", "1", "--memory", "900TB"];
    let ran = home.run(&[&["run"], &much[..]].concat());
    assert_has(&ran.stderr, &["--memory 900.0 TB is more than there is"]);
    ran.good();
}

#[test]
fn a_routing_log_that_cannot_be_written_is_reported_before_loading() {
    let home = Home::new();
    let run = |more: &[&str]| {
        home.run(&[&["run", "pebble", "hi", "-v", "--record-routing"], more].concat())
    };
    let stderr = run(&["no/such/folder.log", "--expert-cache", "6656k"]).bad(1);
    assert_has(&stderr, &["error: cannot write no/such/folder.log\n", "caused by: "]);
    assert!(!stderr.contains("loading"), "{stderr}");
    let stderr = run(&["routing.log"]).bad(1);
    assert_has(&stderr, &["error: --record-routing records what is read, and nothing is"]);
    assert!(!stderr.contains("loading"), "{stderr}");
}

#[test]
fn of_two_heads_it_says_which_to_leave_out() {
    let home = Home::new();
    for arguments in [["plan", "--mtp", "--dflash"], ["plan", "--dflash=pebble-dflash", "--mtp"]] {
        let stderr = home.run(&arguments).bad(2);
        assert_has(
            &stderr,
            &["error: --mtp and --dflash each", "hint: leave --mtp out to draft blocks"],
        );
    }
}

#[test]
fn a_missing_model_names_where_it_was_looked_for() {
    let home = Home::new();
    let stderr = home.run(&["run", "org/repo"]).bad(1);
    assert_has(
        &stderr,
        &[
            "error: model `org/repo` is not on this computer; looked in ",
            ".cache/huggingface/hub/models--org--repo\n",
            "hint: download it with `hf download org/repo`",
            "hint: set HF_HOME if your models are in another place\n",
            "hint: if it is a prompt, name the model too: millstream run pebble",
        ],
    );
    let stderr = home.run(&["plan", "qwen3.5-35b-a3b"]).bad(1);
    assert_has(&stderr, &["models--mlx-community--Qwen3.5-35B-A3B-4bit", "hint: "]);
    let stderr = home.run(&["show", "./nowhere"]).bad(1);
    assert_has(&stderr, &["error: ", "nowhere does not exist\n"]);
}

#[test]
fn a_mistyped_alias_is_no_prompt() {
    let stderr = Home::new().run(&["run", "peble"]).bad(1);
    assert_has(&stderr, &["error: model `peble`", "hint: did you mean `pebble`?"]);
    let stderr = Home::new().run(&["run", "qwen3.5-35b-a3b"]).bad(1);
    assert_has(
        &stderr,
        &["hint: download it with `hf download mlx-community/Qwen3.5-35B-A3B-4bit`"],
    );
}

#[test]
fn a_truncated_file_is_named() {
    let home = Home::new();
    let file = home.copy_model("testdata/models/qwen3_moe-4bit").join("model.safetensors");
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    for command in ["run", "plan", "show"] {
        let prompt = if command == "run" { &["hi"][..] } else { &[] };
        let stderr = home.run(&[&[command, "./model"][..], prompt].concat()).bad(1);
        assert_has(
            &stderr,
            &[
                "error: ",
                "model.safetensors: tensor ",
                "(truncated?)\n",
                "hint: the file is shorter than its header says: download it again\n",
            ],
        );
    }
    std::fs::write(&file, b"").unwrap();
    assert_has(&home.run(&["plan", "./model"]).bad(1), &["error: ", "model.safetensors"]);
    let config = file.with_file_name("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, &text[..text.len() / 2]).unwrap();
    for command in [&["run", "./model", "hi"][..], &["plan", "./model"], &["show", "./model"]] {
        let expect = ["error: ", "config.json: EOF", "hint: if it was not edited, it is damaged"];
        assert_has(&home.run(command).bad(1), &expect);
    }
}

#[test]
fn an_unknown_architecture_is_named_with_those_there_are() {
    let home = Home::new();
    let config = home.copy_model("testdata/models/qwen3_moe-4bit").join("config.json");
    let text = std::fs::read_to_string(&config).unwrap().replace("qwen3_moe", "rwkv9");
    std::fs::write(&config, text).unwrap();
    let stderr = home.run(&["plan", "./model"]).bad(1);
    assert_has(&stderr, &["config.json: model_type `rwkv9` is not supported", "qwen3_5_moe"]);
}

#[test]
fn a_model_without_a_tokenizer_says_so() {
    let home = Home::new();
    home.copy_model("testdata/models/qwen3_moe-4bit");
    let stderr = home.run(&["run", "./model", "hi"]).bad(1);
    assert_has(
        &stderr,
        &["error: the checkpoint has no tokenizer.json\n", "hint: `millstream logits`"],
    );
}

#[test]
fn files_that_are_cut_off_or_empty_are_reported_with_a_hint() {
    let home = Home::new();
    let tokenizer = home.copy_model("models/pebble").join("tokenizer.json");
    home.write("empty", "");
    #[track_caller]
    fn check(home: &Home, arguments: &[&str], expected: &str, hint: &str) {
        assert_has(&home.run(arguments).bad(1), &[expected, &format!("hint: {hint}")]);
    }
    check(
        &home,
        &["perplexity", "./model", "empty"],
        "error: empty has 0 token(s); there is nothing to predict\n",
        "give a file with a text",
    );
    check(
        &home,
        &["bench", "./model", "--pairs", "1", "--prompts", "empty"],
        "error: empty has no prompts\n",
        "write one prompt on each line",
    );
    check(
        &home,
        &["simulate", "empty"],
        "line 1 of the routing log: the file is empty\n",
        "`millstream run MODEL PROMPT --record-routing FILE` writes a routing log",
    );
    let whole = std::fs::read(&tokenizer).unwrap();
    std::fs::write(&tokenizer, &whole[..whole.len() / 2]).unwrap();
    check(
        &home,
        &["run", "./model", "hi"],
        "error: tokenizer.json cannot be read: ",
        "if it was not edited, it is damaged: download it again",
    );
}

#[test]
fn a_config_that_lies_about_its_bits_is_a_warning() {
    let home = Home::new();
    let config = home.copy_model("models/pebble").join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let lie = text.replacen("\"bits\": 4", "\"bits\": 2", 1);
    assert_ne!(text, lie);
    std::fs::write(&config, lie).unwrap();
    let ran = home.run(&["run", "./model", "What's the opposite of cold?", "--temperature", "0"]);
    let warnings: Vec<&str> =
        ran.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(warnings.len(), 1, "{}", ran.stderr);
    assert_has(warnings[0], &["config.json says affine 2-bit", "other tensors differ too"]);
    assert_eq!(ran.good(), "The opposite of cold is hot.\n");
    let quiet = home.run(&["plan", "./model", "--log-level", "error"]);
    assert_eq!(quiet.stderr, "");
    let shown = home.run(&["show", "./model"]).good();
    assert_has(&shown, &["warning: tensor "]);
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_loaded() {
    let stderr = Home::new().run(&["run", "hi", "--memory", "64M"]).bad(1);
    assert_has(&stderr, &["error: pebble needs ", "the budget is 67.1 MB\n", "hint: --memory "]);
    let fitting = stderr.lines().find_map(|line| line.strip_prefix("hint: --memory ")).unwrap();
    let size = fitting.split(' ').next().unwrap();
    Home::new().run(&["run", "hi", "--memory", size]).good();
}

#[test]
fn a_prompt_that_is_too_long_says_what_would_help() {
    let prompt = "one two three four ".repeat(40);
    let stderr = Home::new().run(&["run", &prompt, "--context", "64"]).bad(1);
    assert_has(&stderr, &["tokens do not fit in a context of 64\n", "hint: --context "]);
}

#[test]
fn errors_have_no_colour_without_a_terminal() {
    let stderr = Home::new().run(&["show", "./nowhere"]).bad(1);
    assert!(!stderr.contains('\u{1b}'), "{stderr:?}");
    let stderr = Home::new().run(&["rnu"]).bad(2);
    assert!(!stderr.contains('\u{1b}'), "{stderr:?}");
}

// Windows has no signal that one program could send another.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_program_with_130() {
    use std::os::unix::process::ExitStatusExt;
    let home = Home::new();
    // Long enough to be read when the signal comes; if it comes before the handler is there, the
    // signal itself ends the program.
    let prompt = "one two three four five six ".repeat(1000);
    let mut child =
        home.command(&["run", &prompt]).stdout(std::process::Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let Ok(sent) = sent else {
        println!("skipped: there is no `kill` here");
        child.wait().unwrap();
        return;
    };
    assert!(sent.success());
    let status = child.wait().unwrap();
    assert!(status.code() == Some(130) || status.signal() == Some(2), "{status:?}");
}

#[test]
fn logits_of_a_token_that_is_not_there_leave_no_file() {
    let home = Home::new();
    home.write("old", "mine");
    for out in ["new", "old"] {
        let arguments = ["logits", "pebble", "--tokens", "1 99999", "--out", out];
        let stderr = home.run(&arguments).bad(1);
        assert_has(&stderr, &["error: token 99999 is outside the vocabulary of "]);
    }
    // A folder is no place to write a file to.
    std::fs::create_dir(home.path().join("folder")).unwrap();
    home.run(&["logits", "pebble", "--tokens", "1", "--out", "folder"]).bad(1);
    let mut left: Vec<_> = std::fs::read_dir(home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["folder", "old"]);
    assert_eq!(std::fs::read(home.path().join("old")).unwrap(), b"mine");
}

#[test]
fn gguf_files_are_distinguished_from_models() {
    let home = Home::new();
    home.write("gguf/model.gguf", "GGUF");
    let stderr = home.run(&["run", "./gguf", "hi"]).bad(1);
    let expect = ["gguf holds GGUF files and no other weights\n", "hint: ", "gguf/model.gguf"];
    assert_has(&stderr, &expect);
    let stderr = home.run(&["run", "gguf/model.gguf", "hi"]).bad(1);
    assert_has(&stderr, &["model.gguf: byte 4: the version: ", "(truncated?)"]);
}

#[test]
fn negative_numbers_are_values_that_may_be_wrong() {
    let home = Home::new();
    #[track_caller]
    fn check(home: &Home, option: &str, value: &str, expect: &str) {
        let stderr = home.run(&["run", "hi", option, value]).bad(2);
        assert_has(&stderr, &[expect]);
        assert!(!stderr.contains("unexpected argument"), "{stderr}");
    }
    check(&home, "--temperature", "-1", "temperature must be 0 to 2");
    check(&home, "--min-p", "-0.5", "min_p must be 0 to 1");
    check(&home, "--seed", "-1", "invalid value '-1' for '--seed <NUMBER>'");
    check(&home, "--context", "-1", "expected a whole number from 1");
    check(&home, "--memory", "-1", "`-1` is not a size");
}
