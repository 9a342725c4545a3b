//! The web page: its own tests under node, and in a real browser against the real server.

use std::process::Command;

use super::served::Served;
use super::{provided, repository};

/// Runs node in the page's folder; `None` where there is no node.
#[track_caller]
fn node(arguments: &[&str], variables: &[(&str, &std::ffi::OsStr)]) -> Option<String> {
    if Command::new("node").arg("--version").output().is_err() {
        println!("skipped: there is no node");
        return None;
    }
    let mut command = Command::new("node");
    command.args(arguments).current_dir(repository("webui")).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    print!("{said}");
    Some(said)
}

#[test]
fn the_parts_of_the_page_pass_their_tests() {
    let parts = std::fs::read_dir(repository("webui/test")).unwrap();
    let names = parts.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let tests: Vec<String> = names
        .filter(|name| name.ends_with(".test.mjs"))
        .map(|name| format!("test/{name}"))
        .collect();
    assert!(!tests.is_empty());
    let arguments: Vec<&str> =
        std::iter::once("--test").chain(tests.iter().map(String::as_str)).collect();
    node(&arguments, &[]);
}

#[test]
fn the_page_that_is_built_in_is_the_one_of_the_sources() {
    node(&["build.mjs", "--check"], &[]);
}

#[test]
fn the_page_works_in_a_browser() {
    let Some(chromium) = provided("MILLSTREAM_TEST_CHROMIUM") else { return };
    let Some(tools) = provided("MILLSTREAM_TEST_PLAYWRIGHT") else { return };
    let served = Served::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    // Pictures are kept where somebody asks for them, such as docs/.
    let pictures =
        std::env::var_os("MILLSTREAM_TEST_SCREENSHOTS").unwrap_or_else(|| folder.path().into());
    let said = node(
        &["test/browser.mjs"],
        &[
            ("MILLSTREAM_TEST_URL", served.url().as_ref()),
            ("MILLSTREAM_TEST_CHROMIUM", chromium.as_os_str()),
            ("MILLSTREAM_TEST_PLAYWRIGHT", tools.as_os_str()),
            ("MILLSTREAM_TEST_SCREENSHOTS", &pictures),
        ],
    );
    let Some(said) = said else { return };
    assert!(said.contains("ok - "), "nothing was checked:\n{said}");
}
