//! Tests of `settings.rs`.

use super::*;
use clap::FromArgMatches;

use crate::args::{Cli, Command, command};

fn parse(text: &str) -> Result<SettingsFile> {
    SettingsFile::parse(text, Path::new("config.toml"))
}

/// Expects this message, causes included.
#[track_caller]
fn refuse(text: &str, expect: &str) {
    let error = format!("{:#}", parse(text).unwrap_err());
    assert_eq!(error, expect);
}

#[track_caller]
fn cli(file: &str, model: &str, arguments: &[&str]) -> Cli {
    let overlay = parse(file).unwrap().overlay(model);
    let all = ["millstream"].iter().chain(arguments);
    let matches = with_defaults(command(), &overlay).try_get_matches_from(all).unwrap();
    Cli::from_arg_matches(&matches).unwrap()
}

#[test]
fn the_file_is_under_the_flags_and_over_the_defaults() {
    let file = "context = 512\nkv = \"f32\"\ntemperature = 0.5\nno-progress = true\n";
    let parsed = cli(file, "pebble", &["run", "hi"]);
    assert_eq!(parsed.global.context, Some(512));
    assert!(parsed.global.no_progress);
    assert_eq!(parsed.command.engine().kv, crate::args::Kv::F32);
    let Command::Run(run) = parsed.command else { panic!() };
    assert_eq!(run.sampling.temperature, Some(0.5));

    let parsed = cli(file, "pebble", &["run", "hi", "--context", "64", "--temperature", "1"]);
    assert_eq!(parsed.global.context, Some(64));
    let Command::Run(run) = parsed.command else { panic!() };
    assert_eq!(run.sampling.temperature, Some(1.0));
}

#[test]
fn a_models_table_is_over_the_top_and_known_by_alias_and_name() {
    let file = "context = 512\nthreads = 2\n[model.\"qwen3-30b-a3b\"]\ncontext = 1024\n";
    let parsed = cli(file, "pebble", &["plan"]);
    assert_eq!((parsed.global.context, parsed.global.threads), (Some(512), Some(2)));
    for name in ["qwen3-30b-a3b", "mlx-community/Qwen3-30B-A3B-4bit"] {
        let parsed = cli(file, name, &["plan"]);
        assert_eq!((parsed.global.context, parsed.global.threads), (Some(1024), Some(2)));
    }
}

#[test]
fn lists_and_truths() {
    let parsed = cli("stop = [\"a\", \"b\"]\nthinking = false\n", "pebble", &["run", "hi"]);
    let Command::Run(run) = parsed.command else { panic!() };
    assert_eq!(run.sampling.stop, ["a", "b"]);
    assert_eq!(run.sampling.enable_thinking(), Some(false));
    let parsed = cli("thinking = false\nstop = \"a\"\n", "pebble", &["run", "hi", "--thinking"]);
    let Command::Run(run) = parsed.command else { panic!() };
    assert_eq!(run.sampling.enable_thinking(), Some(true));
    assert_eq!(run.sampling.stop, ["a"]);
}

#[test]
fn other_commands_ignore_settings_of_an_answer() {
    let parsed = cli("seed = 7\n", "pebble", &["synth", "--like", "x", "out"]);
    let Command::Synth(synth) = parsed.command else { panic!() };
    assert_eq!(synth.seed, 1);
}

#[test]
fn a_server_has_settings_too_and_its_keys_are_not_shown() {
    let file = "port = 9000\nno-page = true\napi-key = [\"a\", \"b\"]\nseed = 7\n";
    let Command::Serve(serve) = cli(file, "pebble", &["serve"]).command else { panic!() };
    assert_eq!((serve.service.port, serve.service.no_page), (9000, true));
    assert_eq!(serve.service.api_key, ["a", "b"]);
    let arguments = ["serve", "--port", "9001"];
    let Command::Serve(serve) = cli(file, "pebble", &arguments).command else { panic!() };
    assert_eq!(serve.service.port, 9001);
    let Command::Run(run) = cli(file, "pebble", &["run", "hi"]).command else { panic!() };
    assert_eq!(run.sampling.seed, Some(7));

    let overlay = parse(file).unwrap().overlay("pebble");
    let command = with_defaults(command(), &overlay);
    let matches = command.try_get_matches_from(["millstream", "config", "show"]).unwrap();
    let (_, inner) = matches.subcommand().unwrap();
    let (_, inner) = inner.subcommand().unwrap();
    let shown = effective(inner, &overlay);
    let key = shown.iter().find(|setting| setting.name == "api-key").unwrap();
    assert_eq!((key.value.as_deref(), key.origin.as_str()), (Some("(set)"), "config.toml:3"));
    refuse(
        "port = 70000\n",
        "config.toml:1: bad value for `port`: invalid value '70000' for '--port <PORT>': 70000 is not in 0..=65535",
    );
}

#[test]
fn mistakes_are_named_by_line() {
    refuse("kv = \"f16\"\ncontxt = 1\n", "config.toml:2: unknown setting `contxt`");
    refuse("json = true\n", "config.toml:1: unknown setting `json`");
    refuse("config = \"x\"\n", "config.toml:1: unknown setting `config`");
    refuse("[model.a]\n\nseeds = 1\n", "config.toml:3: unknown setting `seeds`");
    refuse("model = \"pebble\"\n", "config.toml:1: `model` is not a table");
    refuse("[model]\na = 1\n", "config.toml:2: `model.a` is not a table");
    refuse("context = [1]\n", "config.toml:1: `context` cannot be a TOML array");
    refuse(
        "context = 0\n",
        "config.toml:1: bad value for `context`: invalid value '0' for '--context <TOKENS>': expected a whole number from 1",
    );
    refuse(
        "\nkv = \"f8\"\n",
        "config.toml:2: bad value for `kv`: invalid value 'f8' for '--kv <KV>' [possible values: f16, f32]",
    );
    refuse(
        "no-progress = \"maybe\"\n",
        "config.toml:1: bad value for `no-progress`: invalid value 'maybe' for '--no-progress <NO_PROGRESS>': value was not a boolean",
    );
    assert!(parse("a = \n").unwrap_err().to_string().starts_with("config.toml:1: "));
}

#[test]
fn origins_are_reported() {
    let overlay = parse("context = 512\nstop = [\"a\", \"b\"]\n").unwrap().overlay("pebble");
    let all = ["millstream", "config", "show", "--threads", "3"];
    let matches = with_defaults(command(), &overlay).try_get_matches_from(all).unwrap();
    let (_, inner) = matches.subcommand().unwrap();
    let (_, inner) = inner.subcommand().unwrap();
    let settings = effective(inner, &overlay);
    let find = |name: &str| {
        let found = settings.iter().find(|setting| setting.name == name).unwrap();
        (found.value.as_deref(), found.origin.as_str())
    };
    assert_eq!(find("threads"), (Some("3"), "command line"));
    assert_eq!(find("context"), (Some("512"), "config.toml:1"));
    assert_eq!(find("stop"), (Some("a, b"), "config.toml:2"));
    assert_eq!(find("kv"), (Some("f16"), "default"));
    assert_eq!(find("seed"), (None, "default"));
}
