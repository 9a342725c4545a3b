//! Which requests are accepted: by the name that they reach the server by, the page that makes them, and the key they show.
//!
//! In this order, and before a body is read. Refusals for want of a request slot are answered here too, so that they
//! have the shape of their path. What a name or a page must be to pass is in `hosts`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;
use crate::hosts::is_local_origin;
use crate::page;
use crate::shared::ServerState;

/// Requests that browsers of allowed origins may make.
const CORS_METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";
/// What their pages may look at in addition to the body.
const CORS_EXPOSED: &str = "x-request-id, request-id, retry-after";
/// What answers depend on, for caches.
const VARIES: &str = "Origin, Access-Control-Request-Headers";
/// How browsers say which page makes a request, where they send no origin.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The headers of a browser's preflight request, and of its answer, for a page of another network (private network access).
const ASKED_PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Lets a request through, or answers it.
pub(crate) async fn guard(
    State(shared): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(error) = request.extensions_mut().remove::<ApiError>() {
        return error.into_response();
    }
    let page = match check_host(&shared, &request).and_then(|()| check_origin(&shared, &request)) {
        Ok(origin) => origin,
        Err(error) => return varied(error.into_response()),
    };
    let headers = request.headers();
    // Pages of an allowed origin may send what they like: clients' libraries have many headers of their own.
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let asks_private = headers.contains_key(ASKED_PRIVATE);
    let response = if request.method() == Method::OPTIONS && page.is_some() {
        // Browsers send no key with a preflight request.
        StatusCode::NO_CONTENT.into_response()
    } else if let Err(error) = check_key(&shared, request.uri().path(), headers) {
        error.into_response()
    } else {
        next.run(request).await
    };
    let mut response = varied(response);
    if let Some(origin) = page {
        let headers = response.headers_mut();
        let text = HeaderValue::from_static;
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, text(CORS_METHODS));
        if let Some(asked) = asked {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        }
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, text(CORS_EXPOSED));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, text("600"));
        if asks_private {
            headers.insert(ALLOW_PRIVATE, text("true"));
        }
    }
    response
}

fn varied(mut response: Response) -> Response {
    response.headers_mut().insert(header::VARY, HeaderValue::from_static(VARIES));
    response
}

/// The name that a request reached the server by: of its target if that is a whole address, or else of its only `Host`.
/// HTTP/1.0 has no such header, and no browser speaks it.
fn host_of(request: &Request) -> Result<Option<&str>, ApiError> {
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.as_str()));
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() == Version::HTTP_10 => Ok(None),
        (Some(host), None) if !host.is_empty() => {
            let host = host.to_str().map_err(|_| ());
            host.map(Some).map_err(|()| invalid_host("Host is not a name"))
        }
        (Some(_), None) => Err(invalid_host("Host is empty")),
        (Some(_), Some(_)) => Err(invalid_host("Host is given more than once")),
        (None, _) => Err(invalid_host("there is no Host")),
    }
}

fn invalid_host(what: &str) -> ApiError {
    ApiError::bad_request("invalid_host", format!("{what}: a request names the server it is for"))
}

/// A page elsewhere can have its own name point to this server; only that name distinguishes it from others.
fn check_host(shared: &ServerState, request: &Request) -> Result<(), ApiError> {
    let Some(host) = host_of(request)? else { return Ok(()) };
    if shared.hosts.allows(host) {
        return Ok(());
    }
    let host: String = host.chars().take(200).collect();
    let message = format!(
        "{host:?} is no name of this server; --allow-host lets requests reach it by that name"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

/// The origin to allow, if the request comes from a page that is not the server's own.
fn check_origin(shared: &ServerState, request: &Request) -> Result<Option<HeaderValue>, ApiError> {
    let headers = request.headers();
    // What the machine does, and for how long, is for the server's own page: any other could infer requests from it.
    let is_private = request.uri().path() == "/live";
    let refused = |origin: &str| {
        let origin: String = origin.chars().take(200).collect();
        let message = format!("pages of {origin} may not use this; --allow-origin lets them");
        Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
    };
    let Some(origin) = headers.get(header::ORIGIN) else {
        let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
        return match site {
            Some(site) if is_private && !matches!(site, b"same-origin" | b"none") => {
                refused("other origins")
            }
            _ => Ok(None),
        };
    };
    let text = origin.to_str().unwrap_or_default();
    let own = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if let (Some(own), Some(host)) = (own, host_of(request)?)
        && own.eq_ignore_ascii_case(host)
    {
        return Ok(None);
    }
    let allowed = &shared.options.allowed_origins;
    let is_allowed = allowed.iter().any(|one| one == "*" || one.trim_end_matches('/') == text);
    if is_allowed || (!is_private && is_local_origin(text)) {
        return Ok(Some(origin.clone()));
    }
    refused(&format!("{text:?}"))
}

/// The page is open to all, and so is the question whether the server lives; all else needs the key.
fn check_key(shared: &ServerState, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let keys = &shared.options.api_keys;
    let is_open = matches!(path, "/" | "/health") || (shared.options.page && page::is_part(path));
    if keys.is_empty() || is_open {
        return Ok(());
    }
    // As bytes: a key may have characters that are not ASCII.
    let bearer = headers.get(header::AUTHORIZATION).map(|value| without_scheme(value.as_bytes()));
    let header = headers.get("x-api-key").map(HeaderValue::as_bytes);
    for shown in [bearer, header].into_iter().flatten() {
        // All keys, in a time that does not depend on where they differ.
        let found = |found, key: &String| found | key.as_bytes().ct_eq(shown);
        if keys.iter().fold(Choice::from(0), found).into() {
            return Ok(());
        }
    }
    let message = "this server needs a key: send `Authorization: Bearer …` or `x-api-key: …`";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
}

/// A key behind `Bearer`, or alone.
fn without_scheme(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
        _ => value,
    }
}

/// Whether the request showed a key, or needs none.
pub(crate) fn may_see_all(shared: &ServerState, headers: &HeaderMap) -> bool {
    check_key(shared, "", headers).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let value = |value: &str| HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let pair = |&(name, text)| (HeaderName::from_static(name), value(text));
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn keys_are_taken_from_either_header() {
        let keys = vec!["one".to_owned(), "another".to_owned(), "schlüssel 🔑".to_owned()];
        let shared = ServerState::new(Options { api_keys: keys, ..Options::default() });
        #[track_caller]
        fn check(
            shared: &ServerState,
            pairs: &[(&'static str, &'static str)],
            path: &str,
            expect: bool,
        ) {
            assert_eq!(check_key(shared, path, &headers(pairs)).is_ok(), expect);
        }
        check(&shared, &[], "/v1/models", false);
        check(&shared, &[("authorization", "Bearer one")], "/v1/models", true);
        check(&shared, &[("authorization", "bearer another")], "/v1/models", true);
        check(&shared, &[("authorization", "another")], "/v1/models", true);
        check(&shared, &[("x-api-key", "another")], "/v1/messages", true);
        check(&shared, &[("x-api-key", "anothe")], "/v1/messages", false);
        check(&shared, &[("x-api-key", "anotherx")], "/v1/messages", false);
        check(&shared, &[("x-api-key", "")], "/v1/messages", false);
        check(&shared, &[("authorization", "Bearer two"), ("x-api-key", "one")], "/metrics", true);
        check(&shared, &[("authorization", "Bearer schlüssel 🔑")], "/v1/models", true);
        check(&shared, &[("x-api-key", "schlüssel 🔑")], "/v1/messages", true);
        check(&shared, &[("x-api-key", "schlüssel 🔐")], "/v1/messages", false);
        check(&shared, &[("authorization", "Bearer schl")], "/v1/models", false);
        check(&shared, &[("authorization", "🔑🔑")], "/v1/models", false);
        check(&shared, &[], "/health", true);
        check(&shared, &[], "/", true);
        check(&shared, &[], "/live", false);
    }

    /// What comes of a request with these headers: the origin to allow, or the code of the error.
    fn check(
        options: Options,
        path: &str,
        pairs: &[(&'static str, &'static str)],
    ) -> Result<bool, &'static str> {
        let shared = ServerState::new(options);
        let mut request = Request::builder().uri(path).body(axum::body::Body::empty()).unwrap();
        *request.headers_mut() = headers(pairs);
        check_host(&shared, &request)
            .and_then(|()| check_origin(&shared, &request))
            .map(|origin| origin.is_some())
            .map_err(|error| error.code)
    }

    #[test]
    fn pages_are_let_in_by_their_origin() {
        #[track_caller]
        fn origin(allowed: &[&str], path: &str, origin: &'static str, expect: Result<bool, &str>) {
            let allowed_origins = allowed.iter().map(|&origin| origin.to_owned()).collect();
            let options = Options { allowed_origins, ..Options::default() };
            let pairs = [("origin", origin), ("host", "localhost:8080")];
            assert_eq!(check(options, path, &pairs), expect, "{origin} at {path}");
        }
        let refused = Err("origin_not_allowed");
        for path in ["/v1/models", "/live"] {
            origin(&[], path, "http://localhost:8080", Ok(false));
            origin(&[], path, "https://evil.example", refused);
            origin(&[], path, "null", refused);
            origin(&["https://chat.example"], path, "https://chat.example", Ok(true));
            origin(&["https://chat.example/"], path, "https://chat.example", Ok(true));
            origin(&["https://chat.example"], path, "https://chat.example.evil", refused);
            origin(&["*"], path, "https://any.example", Ok(true));
        }
        for local in ["http://localhost:3000", "app://obsidian.md", "vscode-webview://abc"] {
            origin(&[], "/v1/models", local, Ok(true));
            origin(&[], "/live", local, refused);
        }
    }

    #[test]
    fn the_stream_of_the_page_is_for_the_page() {
        let live = |pairs: &[(&'static str, &'static str)]| {
            let host = [("host", "localhost:8080")];
            check(Options::default(), "/live", &[&host[..], pairs].concat())
        };
        assert_eq!(live(&[]), Ok(false));
        assert_eq!(live(&[("sec-fetch-site", "same-origin")]), Ok(false));
        assert_eq!(live(&[("sec-fetch-site", "none")]), Ok(false));
        assert_eq!(live(&[("sec-fetch-site", "cross-site")]), Err("origin_not_allowed"));
        assert_eq!(live(&[("sec-fetch-site", "same-site")]), Err("origin_not_allowed"));
    }

    #[test]
    fn a_request_names_one_host() {
        let models =
            |pairs: &[(&'static str, &'static str)]| check(Options::default(), "/v1/models", pairs);
        assert_eq!(models(&[("host", "localhost")]), Ok(false));
        assert_eq!(models(&[]), Err("invalid_host"));
        assert_eq!(models(&[("host", "")]), Err("invalid_host"));
        assert_eq!(models(&[("host", "evil.example")]), Err("host_not_allowed"));
        // Of a target that is a whole address, the name there counts.
        let target = |target, host| check(Options::default(), target, &[("host", host)]);
        assert_eq!(target("http://evil.example/v1/models", "localhost"), Err("host_not_allowed"));
        assert_eq!(target("http://localhost/v1/models", "evil.example"), Ok(false));
    }
}
