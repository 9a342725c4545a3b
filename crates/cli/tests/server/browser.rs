//! The web page: its files as they are served, its own tests under node, and a real browser against the real server.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::Command;

use super::http;
use super::served::Served;
use super::{provided, repository};

/// The folder of the page's files and tests.
const PAGE: &str = "crates/server/page";

/// Runs node in the page's folder; `None` where there is no node.
#[track_caller]
fn node(arguments: &[&str], variables: &[(&str, &std::ffi::OsStr)]) -> Option<String> {
    if Command::new("node").arg("--version").output().is_err() {
        println!("skipped: there is no node");
        return None;
    }
    let mut command = Command::new("node");
    command.args(arguments).current_dir(repository(PAGE)).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    print!("{said}");
    Some(said)
}

/// What the text of a file at a path refers to: modules that it imports, what a document loads.
fn references(path: &str, text: &str) -> Vec<String> {
    let marks: &[(&str, &str)] = match path {
        "/" => &[("href=\"", "\""), ("src=\"", "\"")],
        _ => &[(" from './", "'")],
    };
    let named = marks.iter().flat_map(|(before, after)| {
        text.split(before).skip(1).map(move |rest| rest.split_once(after).unwrap().0)
    });
    named.filter(|name| !name.starts_with('#')).map(|name| format!("/{name}")).collect()
}

#[test]
fn whatever_the_page_refers_to_is_served_without_a_key() {
    let served = Served::start(&["--api-key", "secret"]);
    let mut found = BTreeSet::new();
    let mut rest = vec!["/".to_owned()];
    while let Some(path) = rest.pop() {
        if !found.insert(path.clone()) {
            continue;
        }
        let reply = served.get(&path);
        assert_eq!(reply.status, 200, "{path}");
        let content_type = match path.rsplit_once('.') {
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert_eq!(reply.header("content-type"), Some(content_type), "{path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-cache"), "{path}");
        let tag = reply.header("etag").unwrap().to_owned();
        let length = reply.header("content-length").unwrap().to_owned();
        let text = reply.text();
        assert_eq!(length, text.len().to_string(), "{path}");

        let head = http::head("HEAD", &path, &[("connection", "close")]) + "\r\n";
        let mut stream = served.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let mut head = String::new();
        stream.read_to_string(&mut head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{path}: {head}");
        assert!(head.contains(&format!("content-length: {length}\r\n")), "{path}: {head}");
        assert!(head.contains(&format!("etag: {tag}\r\n")), "{path}: {head}");

        let again = served.send(&http::get(&path, &[("if-none-match", &tag)]));
        assert_eq!(again.status, 304, "{path}");
        rest.extend(references(&path, &text));
    }
    assert!(found.contains("/main.js") && found.contains("/sse.js"), "{found:?}");
}

#[test]
fn nothing_but_the_files_of_the_page_is_served() {
    let served = Served::start(&[]);
    for path in [
        "/index.html",
        "/main.js/",
        "/none.js",
        "/test/server.mjs",
        "/page/main.js",
        "/../page.rs",
        "/..%2fpage.rs",
        "/%2e%2e/src/page.rs",
        "//etc/passwd",
        "/./main.js",
    ] {
        let reply = served.get(path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.json()["error"].is_object(), "{path}");
    }
}

#[test]
fn the_parts_of_the_page_pass_their_tests() {
    let parts = std::fs::read_dir(repository(PAGE).join("test")).unwrap();
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
fn the_page_works_in_a_browser() {
    let Some(chromium) = provided("MILLSTREAM_TEST_CHROMIUM") else { return };
    let Some(tools) = provided("MILLSTREAM_TEST_PLAYWRIGHT") else { return };
    let served = Served::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    // Pictures are kept where they are wanted, such as docs/images.
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
