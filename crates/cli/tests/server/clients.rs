//! The official clients, unmodified, each group of checks against a server of its own.

use std::process::Command;

use super::served::Served;
use super::{provided, repository};

/// Runs a group of a client's script; what it checked is printed.
#[track_caller]
fn check(script: &str, group: &str) {
    check_with(script, group, &[]);
}

#[track_caller]
fn check_with(script: &str, group: &str, options: &[&str]) {
    let Some(python) = provided("MILLSTREAM_TEST_CLIENTS") else { return };
    let served = Served::start(options);
    let script = repository("crates/cli/tests/server").join(script);
    let mut command = Command::new(python);
    // Written bytecode would lie among the sources; a proxy is for other servers than ours.
    command.arg("-B").arg(script).arg(served.url()).arg(group).env("NO_PROXY", "*");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("ok - "), "the group {group} has no checks");
}

#[test]
fn openai_chat() {
    check("with_openai.py", "chat");
}

#[test]
fn openai_tools() {
    check("with_openai.py", "tools");
}

#[test]
fn openai_structured_output() {
    check("with_openai.py", "structured");
}

#[test]
fn openai_responses() {
    check("with_openai.py", "responses");
}

#[test]
fn openai_errors() {
    check("with_openai.py", "errors");
}

#[test]
fn openai_cancellation() {
    check("with_openai.py", "cancellation");
}

#[test]
fn openai_key() {
    check_with("with_openai.py", "key", &["--api-key", "sesame"]);
}

#[test]
fn anthropic_messages() {
    check("with_anthropic.py", "messages");
}

#[test]
fn anthropic_tools() {
    check("with_anthropic.py", "tools");
}

#[test]
fn anthropic_errors() {
    check("with_anthropic.py", "errors");
}

#[test]
fn anthropic_key() {
    check_with("with_anthropic.py", "key", &["--api-key", "sesame"]);
}

#[test]
fn ollama_chat() {
    check("with_ollama.py", "chat");
}

#[test]
fn ollama_tools() {
    check("with_ollama.py", "tools");
}

#[test]
fn ollama_errors() {
    check("with_ollama.py", "errors");
}

#[test]
fn schemathesis_finds_nothing() {
    let Some(python) = provided("MILLSTREAM_TEST_SCHEMATHESIS") else { return };
    // Short enough that the longest answer comes within the time limit of a request.
    let served = Served::start(&["--context", "512"]);
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/schemathesis.toml");
    command.args(["-m", "schemathesis.cli", "--config-file", config]);
    command.args(["run", &format!("{}/openapi.json", served.url())]);
    command.args(["--seed", "1", "--max-examples", "15", "--no-shrink"]);
    // One worker: threads of Python 3.11 that read sources at the same time may fail ("AST constructor recursion depth
    // mismatch", https://github.com/python/cpython/issues/106905), and the tool does.
    command.args([
        "--phases",
        "examples,coverage,fuzzing",
        "--workers",
        "1",
        "--request-timeout",
        "60",
    ]);
    command.args(["--checks", "all", "--continue-on-failure"]);
    let output = command.current_dir(folder.path()).env("NO_PROXY", "*").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    served.check_answers();
}
