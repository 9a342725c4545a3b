//! What users type, against one small world: a cache below a home folder and a working folder.

use super::*;
use crate::fixture::{WHOLE, folder};

const CACHE: &str = "home/.cache/huggingface/hub";

fn world() -> (tempfile::TempDir, Environment) {
    let qwen = format!("{CACHE}/models--mlx-community--Qwen3.5-35B-A3B-4bit");
    let half = format!("{CACHE}/models--org--half");
    let files = [
        (format!("{qwen}/refs/main"), "aaaaaaaa1"),
        (format!("{qwen}/refs/tuned"), "bbbbbbbb2"),
        (format!("{qwen}/snapshots/aaaaaaaa1/config.json"), "{}"),
        (format!("{qwen}/snapshots/aaaaaaaa1/model.safetensors"), WHOLE),
        (format!("{qwen}/snapshots/bbbbbbbb2/config.json"), "{}"),
        (format!("{qwen}/snapshots/bbbbbbbb2/model.safetensors"), WHOLE),
        (format!("{half}/refs/main"), "cccccccc3"),
        (format!("{half}/snapshots/cccccccc3/config.json"), "{}"),
        (
            format!("{half}/snapshots/cccccccc3/model.safetensors.index.json"),
            r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#,
        ),
        (format!("{half}/snapshots/cccccccc3/model-00001-of-00002.safetensors"), WHOLE),
        ("here/local/config.json".to_owned(), "{}"),
        ("here/local/model.safetensors".to_owned(), ""),
        ("here/local/notes.txt".to_owned(), ""),
        ("here/pebble/config.json".to_owned(), "{}"),
        ("here/pebble/model.safetensors".to_owned(), ""),
        ("here/org/here/config.json".to_owned(), "{}"),
        ("here/org/here/model.safetensors".to_owned(), ""),
        ("here/empty/readme".to_owned(), ""),
        ("here/other/model-Q4_K_M.gguf".to_owned(), ""),
        ("here/other/config.json".to_owned(), "{}"),
        ("here/both/model.gguf".to_owned(), ""),
        ("here/both/config.json".to_owned(), "{}"),
        ("here/both/model.safetensors".to_owned(), ""),
        (format!("{CACHE}/models--org--gguf/refs/main"), "dddddddd4"),
        (format!("{CACHE}/models--org--gguf/snapshots/dddddddd4/model.gguf"), ""),
        ("here/blobs/sha256-0123".to_owned(), "GGUF\u{3}"),
        ("home/mine/config.json".to_owned(), "{}"),
        ("home/mine/model.safetensors".to_owned(), ""),
    ];
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let world = folder(&files);
    let environment = Environment {
        home: Some(world.path().join("home")),
        current_folder: world.path().join("here"),
        ..Environment::default()
    };
    (world, environment)
}

#[track_caller]
fn check(name: &str, expected: &str) {
    let (world, environment) = world();
    let expected = match expected.strip_prefix("builtin:") {
        Some("pebble") => Location::Builtin("pebble"),
        Some("pebble-draft") => Location::Builtin("pebble-draft"),
        _ => Location::Folder(world.path().join(expected)),
    };
    assert_eq!(resolve(name, &environment).unwrap(), expected);
}

/// Expects an error whose text has all of these, with `WORLD` for the temporary folder.
#[track_caller]
fn check_error(name: &str, message: &[&str], hint: &[&str]) {
    let (world, environment) = world();
    let error = resolve(name, &environment).unwrap_err();
    let world = world.path().display().to_string();
    let shown = error.to_string().replace(&world, "WORLD");
    for part in message {
        assert!(shown.contains(part), "{shown:?} does not contain {part:?}");
    }
    let shown = error.hint().unwrap_or_default().replace(&world, "WORLD");
    assert_eq!(shown.is_empty(), hint.is_empty(), "{shown:?}");
    for part in hint {
        assert!(shown.contains(part), "{shown:?} does not contain {part:?}");
    }
}

const QWEN: &str = "home/.cache/huggingface/hub/models--mlx-community--Qwen3.5-35B-A3B-4bit";

#[test]
fn built_in_models() {
    check("pebble", "builtin:pebble");
    check("Pebble", "builtin:pebble");
    check(" pebble ", "builtin:pebble");
    check("pebble-draft", "builtin:pebble-draft");
}

#[test]
fn aliases_lead_to_the_cache() {
    check("qwen3.5-35b-a3b", &format!("{QWEN}/snapshots/aaaaaaaa1"));
    check("qwen3.5-35b-a3b@tuned", &format!("{QWEN}/snapshots/bbbbbbbb2"));
}

#[test]
fn cached_names_and_revisions() {
    let name = "mlx-community/Qwen3.5-35B-A3B-4bit";
    check(name, &format!("{QWEN}/snapshots/aaaaaaaa1"));
    check(&format!("{name}@main"), &format!("{QWEN}/snapshots/aaaaaaaa1"));
    check(&format!("{name}:tuned"), &format!("{QWEN}/snapshots/bbbbbbbb2"));
    check(&format!("{name}@bbbbbbb"), &format!("{QWEN}/snapshots/bbbbbbbb2"));
}

#[test]
fn paths() {
    check("local", "here/local");
    check("./local", "here/local");
    check("local/", "here/local");
    check("./pebble", "here/pebble");
    check("local/model.safetensors", "here/local");
    check("local/config.json", "here/local");
    check("~/mine", "home/mine");
    check("org/here", "here/org/here");
    let (world, environment) = world();
    let absolute = world.path().join("here/local");
    let found = resolve(absolute.to_str().unwrap(), &environment).unwrap();
    assert_eq!(found, Location::Folder(absolute));
    // A repository folder of the cache stands for its main snapshot, and a snapshot for itself.
    for path in [QWEN.to_owned(), format!("{QWEN}/snapshots/aaaaaaaa1")] {
        let path = world.path().join(path);
        let found = resolve(path.to_str().unwrap(), &environment).unwrap();
        let expected = world.path().join(QWEN).join("snapshots/aaaaaaaa1");
        assert_eq!(found, Location::Folder(expected));
    }
}

#[test]
fn a_cache_elsewhere() {
    let (world, mut environment) = world();
    environment.hf_hub_cache =
        environment.home.take().map(|home| home.join(&CACHE["home/".len()..]));
    let expected = world.path().join(QWEN).join("snapshots/aaaaaaaa1");
    assert_eq!(resolve("qwen3.5-35b-a3b", &environment).unwrap(), Location::Folder(expected));
}

#[test]
fn missing_models_say_where_they_were_looked_for() {
    check_error(
        "org/absent",
        &[
            "`org/absent` is not on this computer",
            "WORLD/here/org/absent",
            "WORLD/home/.cache/huggingface/hub/models--org--absent",
        ],
        &["hf download org/absent`", "HF_HOME"],
    );
    check_error("org/absent@v2", &["`org/absent@v2`"], &["hf download org/absent --revision v2`"]);
    check_error(
        "gpt-oss-20b",
        &["`gpt-oss-20b`", "models--mlx-community--gpt-oss-20b-MXFP4-Q4"],
        &["hf download mlx-community/gpt-oss-20b-MXFP4-Q4`"],
    );
    check_error("nosuchthing", &["models--nosuchthing"], &["org/repo"]);
}

#[test]
fn mistyped_names_get_suggestions() {
    check_error("peble", &["`peble`"], &["did you mean `pebble`?"]);
    check_error("qwen3.5-35b-a3", &[], &["did you mean `qwen3.5-35b-a3b`"]);
    check_error(
        "mlx-comunity/Qwen3.5-35B-A3B-4bit",
        &[],
        &["did you mean `mlx-community/Qwen3.5-35B-A3B-4bit`?", "hf download"],
    );
    check_error(
        "./locl",
        &["WORLD/here/locl does not exist"],
        &["did you mean `WORLD/here/local`?"],
    );
}

#[test]
fn incomplete_models_name_the_missing_files() {
    check_error(
        "org/half",
        &["incomplete; missing model-00002-of-00002.safetensors"],
        &["hf download org/half`"],
    );
    check_error("org/half@main", &["missing"], &["hf download org/half --revision main`"]);
    check_error("empty", &["WORLD/here/empty", "config.json, model.safetensors"], &["needs"]);
}

#[test]
fn things_that_are_no_models() {
    check_error("", &["empty"], &["pebble"]);
    check_error("  ", &["empty"], &["pebble"]);
    check_error("local/notes.txt", &["notes.txt is not a model"], &[]);
    check_error("a b", &["`a b` is neither"], &["org/repo"]);
    check_error("org/repo@../../x", &["neither"], &["org/repo"]);
    check_error("/nonexistent/model", &["/nonexistent/model does not exist"], &["config.json"]);
    check_error("x/y/z", &["WORLD/here/x/y/z does not exist"], &["org/repo"]);
}

#[test]
fn gguf_files_are_taken_where_they_are_named() {
    let (world, environment) = world();
    let found = resolve("other/model-Q4_K_M.gguf", &environment).unwrap();
    assert_eq!(found, Location::File(world.path().join("here/other/model-Q4_K_M.gguf")));
    let blob = world.path().join("here/blobs/sha256-0123");
    let found = resolve("blobs/sha256-0123", &environment).unwrap();
    assert_eq!(found, Location::File(blob));
    let only = "holds GGUF files and no other weights";
    let other = format!("WORLD/here/other {only}");
    check_error("other", &[&other], &["name the file itself", "other/model-Q4_K_M.gguf"]);
    check_error("org/gguf", &["dddddddd4", only], &["dddddddd4/model.gguf"]);
    check("both", "here/both");
}

#[test]
fn an_alias_that_is_not_on_disk_says_what_it_stands_for_and_nothing_else() {
    let (_world, environment) = world();
    for (name, first) in [
        ("qwen3-30b-a3b", "`qwen3-30b-a3b` stands for "),
        ("qwen3-30b-a3b@v2", "`qwen3-30b-a3b` stands for "),
        ("org/absent", "download it with "),
    ] {
        let hint = resolve(name, &environment).unwrap_err().hint().unwrap();
        assert!(hint.starts_with(first), "{hint}");
        assert!(hint.contains("hf download ") && !hint.contains("did you mean"), "{hint}");
    }
}

#[test]
fn unknown_revisions() {
    check_error(
        "mlx-community/Qwen3.5-35B-A3B-4bit@v9",
        &["has no revision `v9`"],
        &["aaaaaaaa1, bbbbbbbb2", "--revision v9"],
    );
}

#[test]
fn without_a_home_only_the_path_was_looked_at() {
    let environment = Environment { current_folder: "/nowhere".into(), ..Environment::default() };
    let message = resolve("org/repo", &environment).unwrap_err().to_string();
    assert!(message.ends_with("looked in /nowhere/org/repo"), "{message}");
}
