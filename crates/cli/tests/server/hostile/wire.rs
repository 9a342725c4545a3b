//! What is wrong below JSON: heads, framing, methods, origins, patience.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::super::http::{self, Reply};
use super::super::served::{COLD, Served, question};
use super::{CHAT, check_error};

/// Checks that bytes get this status, or that the connection ends without an answer where that is allowed.
#[track_caller]
fn check(served: &Served, request: &[u8], expect: &[u16], may_close: bool) {
    let mut stream = served.connect();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let about = String::from_utf8_lossy(&request[..request.len().min(80)]).into_owned();
    match Reply::read(stream) {
        None => assert!(may_close, "the connection ended without an answer to {about:?}"),
        Some(reply) => assert!(expect.contains(&reply.status), "{} to {about:?}", reply.status),
    }
}

#[test]
fn what_is_not_http_is_refused() {
    let served = Served::start(&[]);
    for garbage in [
        &b"GET /health\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /health HTTP/1.1\r\n: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nx: a\x00b\r\n\r\n",
        b"GET /health\x00 HTTP/1.1\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"\r\n\r\n\r\n\x00\x00",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n",
        // Fewer bytes than were promised.
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{\"messages\"",
    ] {
        check(&served, garbage, &[400, 501, 505], true);
    }
    served.check_answers();
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let served = Served::start(&[]);
    let long = "x".repeat(300_000);
    check(&served, &http::get("/health", &[("x-long", &long)]), &[431], false);
    check(&served, &http::get(&format!("/{long}"), &[]), &[414, 431], false);
    let names: Vec<String> = (0..500).map(|index| format!("x-{index}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    check(&served, &http::get("/health", &many), &[431], false);
    served.check_answers();
}

#[test]
fn garbage_behind_a_request_does_not_spoil_it() {
    let served = Served::start(&[]);
    let mut request = http::get("/health", &[]);
    request.extend_from_slice(b"\x00\x01garbage\r\n\r\n");
    let mut stream = served.connect();
    stream.write_all(&request).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let all = String::from_utf8_lossy(&all);
    assert!(all.starts_with("HTTP/1.1 200"), "{all}");
    assert!(!all[12..].contains("HTTP/1.1 200"), "{all}");
    // Two requests at once are answered in their order.
    let mut request = http::get("/v1/models", &[]);
    request.extend_from_slice(&http::get("/nowhere", &[("connection", "close")]));
    let mut stream = served.connect();
    stream.write_all(&request).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let (first, second) = (all.find("HTTP/1.1 200"), all.find("HTTP/1.1 404"));
    assert!(first == Some(0) && second.is_some(), "{all}");
    served.check_answers();
}

#[test]
fn methods_and_paths_that_are_not_there() {
    let served = Served::start(&[]);
    for (method, path, status) in [
        ("GET", CHAT, 405),
        ("PUT", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("BREW", CHAT, 405),
        ("GET", "/nowhere", 404),
        ("POST", "/v1/nowhere", 404),
        ("GET", "/v1", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "//etc/passwd", 404),
        ("GET", "/static/../../Cargo.toml", 404),
        ("GET", "/%00", 404),
        ("GET", "/%ff%fe", 404),
        ("GET", "/v1/models/..%2f..%2fetc", 404),
        ("POST", "/v1/chat/completions/", 404),
    ] {
        let request = http::head(method, path, &[("content-length", "0")]) + "\r\n";
        let reply = served.send(request.as_bytes());
        assert_eq!(reply.status, status, "{method} {path}");
        if status == 405 {
            assert!(
                reply.header("allow").is_some(),
                "{method} {path} does not say what is allowed"
            );
        }
        let text = reply.text();
        assert!(!text.contains("root:"), "{path}: {text}");
        serde_json::from_str::<serde_json::Value>(&text)
            .unwrap_or_else(|_| panic!("{method} {path}: {text}"));
    }
    served.check_answers();
}

#[test]
fn pages_of_others_and_names_of_others_are_kept_out() {
    let served = Served::start(&[]);
    let body = question(COLD).to_string();
    for (header, code) in [
        (("origin", "https://evil.example"), "origin_not_allowed"),
        (("origin", "null"), "origin_not_allowed"),
        (("origin", "http://localhost.evil.example"), "origin_not_allowed"),
        (("host", "evil.example"), "host_not_allowed"),
        (("host", "evil.example:80"), "host_not_allowed"),
        (("host", "127.0.0.1.evil.example"), "host_not_allowed"),
        (("host", "localhost.evil.example"), "host_not_allowed"),
    ] {
        let reply = served.send(&http::post(CHAT, &[header], body.as_bytes()));
        assert!(reply.header("access-control-allow-origin").is_none());
        assert_eq!(reply.status, 403, "{header:?}");
        assert_eq!(reply.json()["error"]["code"], code, "{header:?}");
    }
    let preflight = http::head(
        "OPTIONS",
        CHAT,
        &[("origin", "https://evil.example"), ("access-control-request-method", "POST")],
    ) + "\r\n";
    assert_eq!(served.send(preflight.as_bytes()).status, 403);

    let open = Served::start(&["--allow-origin", "https://chat.example"]);
    let origin = ("origin", "https://chat.example");
    let reply = open.send(&http::post(CHAT, &[origin], body.as_bytes()));
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (200, Some("https://chat.example"))
    );
    // As the official libraries for JavaScript send it.
    let asked = "content-type,x-stainless-lang,anthropic-dangerous-direct-browser-access";
    let asking = [
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", asked),
    ];
    let preflight = http::head("OPTIONS", CHAT, &asking) + "\r\n";
    let reply = open.send(preflight.as_bytes());
    assert_eq!((reply.status, reply.header("access-control-allow-headers")), (204, Some(asked)));
    let exposed = reply.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("x-request-id"), "{exposed}");
    let other =
        open.send(&http::post(CHAT, &[("origin", "https://evil.example")], body.as_bytes()));
    assert_eq!(other.status, 403);
}

#[test]
fn slow_heads_and_bodies_run_out_of_patience() {
    let served = Served::start(&["--patience", "1"]);
    let start = Instant::now();
    // A head that never ends, a byte at a time; a body that never ends; one that never begins.
    let slow_head = std::thread::spawn({
        let mut stream = served.connect();
        move || {
            stream.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
            for _ in 0..100 {
                if stream.write_all(b"x").is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            Reply::read(stream).map(|reply| reply.status)
        }
    });
    let mut silent = served.connect();
    let mut body = served.connect();
    body.write_all(&http::post(CHAT, &[], &[b'{'; 10])[..]).unwrap();
    let mut half = served.connect();
    let head = http::head("POST", CHAT, &[("content-length", "100")]) + "\r\n{";
    half.write_all(head.as_bytes()).unwrap();
    // Meanwhile others are served.
    served.check_answers();
    check_error(CHAT, Reply::read(half).unwrap(), 408, "", "half a body");
    assert!(matches!(slow_head.join().unwrap(), None | Some(408)));
    let mut rest = Vec::new();
    // A connection on which nothing is said is closed too.
    let _ = silent.read_to_end(&mut rest);
    assert!(start.elapsed() < Duration::from_secs(30), "it waited for {:?}", start.elapsed());
    served.check_answers();
}

#[test]
fn many_idle_connections_do_not_keep_others_out() {
    let served = Served::start(&["--patience", "2"]);
    let idle: Vec<_> = (0..200).map(|_| served.connect()).collect();
    served.check_answers();
    drop(idle);
    served.check_answers();
}

#[test]
fn nothing_of_a_prompt_is_logged() {
    let served = Served::start(&[]);
    let secret = "xyzzy-secret-words";
    served.post(CHAT, &question(secret));
    served.post(CHAT, &super::chat_with("temperature", serde_json::json!(secret)));
    served.get(&format!("/nowhere?key={secret}"));
    served.signal("TERM");
    let (_, said) = served.wait(Duration::from_secs(60));
    assert!(!said.contains(secret), "{said}");
}

#[test]
fn a_compressed_body_is_refused_by_its_encoding() {
    let served = Served::start(&[]);
    let body = question(COLD).to_string();
    let encoded = |encoding: &'static str| {
        served.send(&http::post(CHAT, &[("content-encoding", encoding)], body.as_bytes()))
    };
    let reply = encoded("gzip");
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (415, &"unsupported_encoding".into())
    );
    assert_eq!(encoded("identity").status, 200);
}

#[test]
fn without_the_page_there_is_still_a_sign_of_life() {
    let served = Served::start(&["--no-page", "--api-key", "secret"]);
    let reply = served.get("/");
    assert_eq!((reply.status, reply.text().as_str()), (200, "millstream is running\n"));
    assert_eq!(served.get("/v1/models").status, 401);
}
