//! Names and pages that a server is reached by: tables of what is accepted, wherever it listens and whether it has a key.

use super::super::http;
use super::super::served::{COLD, Served, question};
use super::{CHAT, check_error};

const KEY: (&str, &str) = ("authorization", "Bearer secret");

/// Servers that listen here and everywhere, without a key and with one.
fn each(options: &[&str], check: impl Fn(&Served, &str)) {
    for listen in ["127.0.0.1", "0.0.0.0"] {
        for key in [&[][..], &["--api-key", "secret"]] {
            let served = Served::start(&[&["--host", listen], key, options].concat());
            check(&served, &format!("{listen} {key:?}"));
        }
    }
}

/// The status of a request to an API path and to the open one, and the code of the error.
fn ask(served: &Served, headers: &[(&str, &str)]) -> (u16, Option<String>) {
    let headers = [&[KEY][..], headers].concat();
    let reply = served.send(&http::get("/v1/models", &headers));
    let status = reply.status;
    let code = reply.json()["error"]["code"].as_str().map(str::to_owned);
    let open = served.send(&http::get("/health", &headers));
    assert_eq!(open.status, status, "/health is accepted where {headers:?} is not");
    (status, code)
}

#[test]
fn a_name_that_was_rebound_is_refused_wherever_the_server_listens() {
    each(&["--allow-host", "chat.example,*.apps.example"], |served, about| {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "192.168.7.7:8080",
            "0.0.0.0:8080",
            "localhost",
            "LOCALHOST:8080",
            "localhost.:80",
            "a.localhost",
            "host.docker.internal:8080",
            "printer.local",
            "chat.example",
            "chat.example:443",
            "a.apps.example",
        ] {
            assert_eq!(ask(served, &[("host", host)]), (200, None), "{host} at {about}");
        }
        let refused = (403, Some("host_not_allowed".to_owned()));
        for host in [
            "rebound.example",
            "rebound.example:8080",
            "127.0.0.1.rebound.example",
            "localhost.rebound.example",
            "xlocalhost.example",
            "apps.example",
            "achat.example",
            "www.chat.example",
            "host.docker.internal.example",
            "localhost:80@rebound.example",
        ] {
            assert_eq!(ask(served, &[("host", host)]), refused, "{host} at {about}");
        }
        for nothing in ["", " "] {
            let invalid = (400, Some("invalid_host".to_owned()));
            assert_eq!(ask(served, &[("host", nothing)]), invalid, "{nothing:?} at {about}");
        }
    });
}

#[test]
fn the_name_is_checked_before_anything_else_and_the_hint_says_what_helps() {
    let served = Served::start(&["--host", "0.0.0.0"]);
    let body = question(COLD).to_string();
    for path in [CHAT, "/v1/messages", "/api/chat"] {
        let request = http::post(path, &[("host", "rebound.example")], body.as_bytes());
        check_error(path, served.send(&request), 403, "", "a name that was rebound");
        let text = served.send(&request).text();
        assert!(text.contains("--allow-host") && text.contains("rebound.example"), "{text}");
    }
    let any = Served::start(&["--allow-host", "*"]);
    assert_eq!(ask(&any, &[("host", "whatever.example")]), (200, None));
}

#[test]
fn a_request_names_its_host_once() {
    let served = Served::start(&[]);
    #[track_caller]
    fn check(served: &Served, request: &str, expect: u16) {
        let reply = served.send(request.as_bytes());
        assert_eq!(reply.status, expect, "{request:?}");
        reply.json();
    }
    check(&served, "GET /v1/models HTTP/1.1\r\n\r\n", 400);
    check(&served, "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400);
    // No browser speaks it, and programs that do send no name.
    check(&served, "GET /v1/models HTTP/1.0\r\n\r\n", 200);
    check(&served, "GET /v1/models HTTP/1.0\r\nhost: rebound.example\r\n\r\n", 403);
    // Of a target that is a whole address, the name there counts.
    check(&served, "GET http://localhost/v1/models HTTP/1.1\r\nhost: rebound.example\r\n\r\n", 200);
    check(&served, "GET http://rebound.example/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", 403);
}

#[test]
fn pages_on_this_computer_may_use_the_interface_and_others_may_not() {
    each(&["--allow-origin", "https://chat.example"], |served, about| {
        for origin in [
            "http://localhost",
            "http://localhost:3000",
            "https://localhost:3000",
            "http://127.0.0.1:5173",
            "http://[::1]:3000",
            "app://obsidian.md",
            "file://",
            "tauri://localhost",
            "vscode-webview://0abc",
            "https://chat.example",
        ] {
            let headers = [KEY, ("host", "127.0.0.1"), ("origin", origin)];
            let reply = served.send(&http::get("/v1/models", &headers));
            let allowed = reply.header("access-control-allow-origin");
            assert_eq!((reply.status, allowed), (200, Some(origin)), "{origin} at {about}");
            assert!(reply.header("vary").unwrap().contains("Origin"));
            // Browsers send no key with a preflight request.
            let asking = [
                ("host", "127.0.0.1"),
                ("origin", origin),
                ("access-control-request-method", "POST"),
                ("access-control-request-headers", "authorization,content-type"),
                ("access-control-request-private-network", "true"),
            ];
            let reply = served.send((http::head("OPTIONS", CHAT, &asking) + "\r\n").as_bytes());
            assert_eq!(reply.status, 204, "{origin} at {about}");
            for (name, expect) in [
                ("access-control-allow-origin", origin),
                ("access-control-allow-headers", "authorization,content-type"),
                ("access-control-allow-private-network", "true"),
            ] {
                assert_eq!(reply.header(name), Some(expect), "{origin} at {about}");
            }
            assert!(reply.header("access-control-allow-methods").unwrap().contains("POST"));
        }
        for origin in [
            "null",
            "https://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://192.168.7.7:3000",
            "https://chat.example.evil",
            "http://chat.example",
            "chrome-extension://abc",
        ] {
            let reply = served.send(&http::get("/v1/models", &[KEY, ("origin", origin)]));
            assert_eq!(reply.status, 403, "{origin} at {about}");
            assert_eq!(reply.header("access-control-allow-origin"), None);
            assert!(reply.header("vary").unwrap().contains("Origin"));
            assert_eq!(reply.json()["error"]["code"], "origin_not_allowed");
        }
        // Caches have to know, also where no page sent the request.
        let reply = served.send(&http::get("/v1/models", &[KEY]));
        assert!(reply.header("vary").unwrap().contains("Origin"));
    });
}

#[test]
fn an_error_can_be_read_by_the_page_that_caused_it() {
    let served = Served::start(&["--api-key", "secret"]);
    let reply = served.send(&http::get("/v1/models", &[("origin", "http://localhost:3000")]));
    let allowed = reply.header("access-control-allow-origin");
    assert_eq!((reply.status, allowed), (401, Some("http://localhost:3000")));
}

#[test]
fn the_stream_of_the_page_is_for_the_page_alone() {
    each(&["--allow-origin", "https://chat.example"], |served, about| {
        let own = format!("http://localhost:{}", served.port);
        let host = format!("localhost:{}", served.port);
        for (header, expect) in [
            (("origin", own.as_str()), 200),
            (("origin", "https://chat.example"), 200),
            (("sec-fetch-site", "same-origin"), 200),
            (("x", "a program"), 200),
            (("origin", "http://localhost:3000"), 403),
            (("origin", "app://obsidian.md"), 403),
            (("origin", "https://evil.example"), 403),
            // As an image of a page elsewhere, of which sixteen would take all places.
            (("sec-fetch-site", "cross-site"), 403),
            (("sec-fetch-site", "same-site"), 403),
        ] {
            let headers = [KEY, ("host", host.as_str()), header];
            let reply = served.send(&http::get("/live", &headers));
            assert_eq!(reply.status, expect, "{header:?} at {about}");
        }
    });
}

#[test]
fn what_is_no_name_cannot_be_allowed() {
    for wrong in
        ["https://chat.example", "chat.example:443", "chat.example/v1", "a*.example", "*.", ""]
    {
        let serve = std::process::Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["serve", "--port", "0", "--allow-host", wrong])
            .output()
            .unwrap();
        assert_eq!(serve.status.code(), Some(2), "{wrong:?}");
        let said = String::from_utf8_lossy(&serve.stderr);
        assert!(said.contains("chat.example"), "{said}");
    }
}
