//! Refusals that come before a request is there as a whole: each can be read, in the shape of its path.

use std::io::{Read, Write};

use serde_json::Value;

use super::super::http::{self, Reply};
use super::super::served::Served;
use super::{CHAT, check_error};

const PATHS: [&str; 5] =
    [CHAT, "/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/v1/responses"];

/// Sends all of a request before anything is read.
#[track_caller]
fn sent_first(served: &Served, head: &str, body: &[u8]) -> Reply {
    let mut stream = served.connect();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    Reply::read(stream).expect("there is no answer to read")
}

#[test]
fn a_head_that_is_too_large_is_refused_in_the_shape_of_its_path() {
    let served = Served::start(&[]);
    let long = "x".repeat(300_000);
    let names: Vec<String> = (0..500).map(|index| format!("x-{index}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    for path in PATHS {
        for headers in [&[("x-long", long.as_str())][..], &many] {
            let request = http::post(path, headers, b"{}");
            check_error(path, served.send(&request), 431, "", "a head that is too large");
            // Clients send all of it before they read.
            let request = String::from_utf8(request).unwrap();
            let reply = sent_first(&served, &request, b"");
            check_error(path, reply, 431, "", "a head that is sent first");
        }
    }
    let reply = served.send(&http::get(&format!("/{long}"), &[]));
    assert!(matches!(reply.status, 414 | 431));
    assert_eq!(reply.header("connection"), Some("close"));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("64 KiB"));
    served.check_answers();
}

#[test]
fn a_head_that_is_wrong_is_refused_in_the_shape_of_its_path() {
    let served = Served::start(&[]);
    let cases = [
        ("content-length: 5\r\ncontent-length: 6\r\n", "more than once"),
        ("content-length: x\r\n", "no whole number"),
        ("content-length: -5\r\n", "no whole number"),
        ("bad header\r\n", "not valid HTTP"),
        (": x\r\n", "not valid HTTP"),
    ];
    for path in PATHS {
        for (fields, expect) in cases {
            let head = http::head("POST", path, &[]) + fields + "\r\nhello!";
            check_error(path, served.send(head.as_bytes()), 400, "", fields);
            let text = served.send(head.as_bytes()).text();
            assert!(text.contains(expect), "{text} to {fields:?}");
        }
        // The second request of a connection, too.
        let mut stream = served.connect();
        stream.write_all(&http::get("/health", &[])).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let head = http::head("POST", path, &[]) + cases[0].0 + "\r\nhello!";
        stream.write_all(head.as_bytes()).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        let second = all.find("HTTP/1.1 400").unwrap_or_else(|| panic!("{all}"));
        let (_, body) = all[second..].split_once("\r\n\r\n").unwrap();
        let error: Value = serde_json::from_str(body).unwrap();
        assert!(error.to_string().contains(cases[0].1), "{error}");
        assert_eq!(error["error"].is_string(), path.starts_with("/api/"), "{path}: {error}");
    }
    served.check_answers();
}

#[test]
fn a_body_that_is_too_large_is_refused_readably_though_all_of_it_is_sent_first() {
    let served = Served::start(&[]);
    let large = vec![b' '; 40 << 20];
    for path in PATHS {
        let head = http::head("POST", path, &[("content-length", &large.len().to_string())]);
        let reply = sent_first(&served, &(head + "\r\n"), &large);
        assert_eq!(reply.header("connection"), Some("close"));
        check_error(path, reply, 413, "", "40 MiB that are announced");
    }
    let mut chunk = format!("{:x}\r\n", large.len()).into_bytes();
    chunk.extend_from_slice(&large);
    chunk.extend_from_slice(b"\r\n0\r\n\r\n");
    let head = http::head("POST", CHAT, &[("transfer-encoding", "chunked")]) + "\r\n";
    check_error(CHAT, sent_first(&served, &head, &chunk), 413, "", "40 MiB in a chunk");
    served.check_answers();
}

#[test]
fn other_early_refusals_can_be_read_as_well() {
    let served = Served::start(&["--api-key", "secret"]);
    let large = vec![b' '; 20 << 20];
    let length = large.len().to_string();
    for (path, headers, status) in [
        (CHAT, &[][..], 401),
        ("/v1/messages", &[], 401),
        (CHAT, &[("host", "rebound.example")], 403),
        (CHAT, &[("origin", "https://evil.example")], 403),
        ("/nowhere", &[("x-api-key", "secret")], 404),
        ("/v1/models", &[("x-api-key", "secret")], 405),
        (CHAT, &[("x-api-key", "secret"), ("content-encoding", "gzip")], 415),
    ] {
        let headers = [&[("content-length", length.as_str())], headers].concat();
        let head = http::head("POST", path, &headers) + "\r\n";
        check_error(path, sent_first(&served, &head, &large), status, "", "20 MiB");
    }
}

#[test]
fn only_accepted_requests_get_a_100_continue() {
    let served = Served::start(&["--api-key", "secret"]);
    for (key, length, status) in [("secret", "99999999999", 413), ("wrong", "20", 401)] {
        let headers = [("expect", "100-continue"), ("content-length", length), ("x-api-key", key)];
        let head = http::head("POST", CHAT, &headers) + "\r\n";
        // What comes first is the answer.
        check_error(CHAT, served.send(head.as_bytes()), status, "", "a question");
    }
    // One that is accepted gets the interim response.
    let mut stream = served.connect();
    let headers = [("expect", "100-continue"), ("content-length", "2"), ("x-api-key", "secret")];
    stream.write_all((http::head("POST", CHAT, &headers) + "\r\n").as_bytes()).unwrap();
    let mut first = [0; 25];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").unwrap();
    check_error(CHAT, Reply::read(stream).unwrap(), 400, "messages", "an empty object");
}
