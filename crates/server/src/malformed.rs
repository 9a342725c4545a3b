//! Answers to what is not a request: the HTTP library refuses it with a bare status, which gives a client no information.
//!
//! Its answer gets the body that other errors have, in the dialect of the path as far as the path can be read.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::account::{ANTHROPIC_REQUEST_ID, REQUEST_ID};
use crate::error::{ApiError, ErrorShape};
use crate::request::identifier;

/// How such an answer ends.
const BARE: &str = "content-length: 0\r\n";
/// Bytes of a request's head that are looked at.
pub(crate) const HEAD_BYTES: usize = 4096;

/// The whole answer in place of a bare one; `None` if it is no such answer. `head` is how the request begins.
pub(crate) fn answer(bare: &[u8], head: &[u8]) -> Option<Vec<u8>> {
    let bare = std::str::from_utf8(bare).ok()?;
    let status = bare.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5))?;
    let error = error(StatusCode::from_bytes(status.as_bytes()).ok()?, head)?;
    let (start, end) = bare.split_once(BARE)?;
    let head = String::from_utf8_lossy(head);
    let shape = ErrorShape::of(path(&head).unwrap_or_default(), &version(&head));
    let id = identifier("req_");
    let mut body = shape.body(&error);
    let mut names = vec![REQUEST_ID];
    if shape == ErrorShape::Anthropic {
        body["request_id"] = id.as_str().into();
        names.push(ANTHROPIC_REQUEST_ID);
    }
    let body = body.to_string();
    let ids: String = names.iter().map(|name| format!("{name}: {id}\r\n")).collect();
    tracing::info!("{id} {} {}", status, error.message);
    let length = body.len();
    let kind = "content-type: application/json\r\n";
    Some(format!("{start}{kind}content-length: {length}\r\n{ids}{end}{body}").into_bytes())
}

/// What is wrong, by the status that the library found.
fn error(status: StatusCode, head: &[u8]) -> Option<ApiError> {
    let (code, message) = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => (
            "header_too_large",
            "the head of the request has more than 64 KiB or 100 fields: send less in the address and in headers",
        ),
        StatusCode::URI_TOO_LONG => {
            ("uri_too_long", "the address of the request has more than 64 KiB: send it in the body")
        }
        StatusCode::BAD_REQUEST => ("invalid_http", explain(&String::from_utf8_lossy(head))),
        _ => return None,
    };
    Some(ApiError::new(status, code, message))
}

/// What is wrong with a head that is not HTTP.
fn explain(head: &str) -> &'static str {
    let field = |name: &'static str| {
        head.lines().skip(1).filter_map(move |line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut lengths = field("content-length").flat_map(|value| value.split(',')).map(str::trim);
    if path(head).is_none() {
        "this is not HTTP/1.1: the first line is no request (the server speaks no TLS)"
    } else if field("content-length").any(|value| !value.split(',').map(str::trim).all(is_number)) {
        "Content-Length is no whole number of bytes"
    } else if lengths.next().is_some_and(|first| lengths.any(|other| other != first)) {
        "Content-Length is given more than once, with different lengths"
    } else if field("transfer-encoding").next().is_some() {
        "Transfer-Encoding can only be `chunked`, in HTTP/1.1 and without Content-Length"
    } else {
        "the head of the request is not valid HTTP/1.1: a header has a name or a value that it must not have"
    }
}

/// The path of a head's first line, if that is a request of HTTP/1.
fn path(head: &str) -> Option<&str> {
    let mut words = head.trim_start().lines().next()?.split(' ');
    let (_method, target) = (words.next()?, words.next()?);
    // A target longer than what is looked at ends here.
    let is_request = words.next().is_none_or(|version| version.starts_with("HTTP/1."));
    let path = target.split(['?', '#']).next().unwrap_or_default();
    (is_request && target.starts_with('/')).then_some(path)
}

/// The headers that distinguish dialects.
fn version(head: &str) -> HeaderMap {
    const VERSION: HeaderName = HeaderName::from_static("anthropic-version");
    let names = head.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    let found = names.filter(|name| name.eq_ignore_ascii_case(VERSION.as_str()));
    found.map(|_| (VERSION, HeaderValue::from_static(""))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The head and the body of an answer.
    #[track_caller]
    fn parts(status: &str, head: &str) -> (String, Value) {
        let bare = format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n"
        );
        let answer = String::from_utf8(answer(bare.as_bytes(), head.as_bytes()).unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(
            head.contains("connection: close") && head.contains("x-request-id: req_"),
            "{head}"
        );
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }

    #[test]
    fn a_bare_answer_gets_the_body_of_its_path() {
        let chat = "POST /v1/chat/completions HTTP/1.1\r\nx: y";
        let (_, body) = parts("431 Request Header Fields Too Large", chat);
        assert_eq!(body["error"]["code"], "header_too_large");
        let (head, body) = parts("400 Bad Request", "POST /v1/messages?beta=true HTTP/1.1\r\n");
        assert_eq!(
            (&body["type"], &body["error"]["type"]),
            (&"error".into(), &"invalid_request_error".into())
        );
        assert!(head.contains("\r\nrequest-id: req_"), "{head}");
        let models = "GET /v1/models HTTP/1.1\r\nAnthropic-Version: 2023-06-01\r\n";
        assert_eq!(parts("400 Bad Request", models).1["type"], "error");
        let (_, body) = parts("431 x", "GET /api/tags HTTP/1.1");
        assert!(body["error"].is_string(), "{body}");
        let (_, body) = parts("400 Bad Request", "\x16\x03\x01");
        assert_eq!(body["error"]["code"], "invalid_http");
    }

    #[test]
    fn other_answers_are_left_alone() {
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "data: 400",
        ] {
            assert_eq!(answer(other.as_bytes(), b""), None, "{other}");
        }
    }

    #[test]
    fn the_message_says_what_is_wrong() {
        #[track_caller]
        fn check(fields: &str, expect: &str) {
            let message =
                explain(&format!("POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n\r\n"));
            assert!(message.contains(expect), "{message}");
        }
        check("content-length: 5\r\ncontent-length: 6", "more than once");
        check("Content-Length: 5, 6", "more than once");
        check("content-length: 5\r\nContent-Length: 5x", "no whole number");
        check("content-length: -5", "no whole number");
        check("content-length: ", "no whole number");
        check("transfer-encoding: gzip", "chunked");
        check("bad header", "a name or a value");
        assert!(explain("hello").contains("no TLS"));
    }
}
