//! The web page: a few files compiled into the program, served under a policy that lets them load nothing else.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::shared::Shared;

/// Scripts and styles are the page's own files; it talks to this server only, and nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

/// All files. They are built from `webui/` and committed.
static FILES: [File; 4] = [
    File {
        path: "/",
        kind: "text/html; charset=utf-8",
        bytes: include_bytes!("../page/index.html"),
    },
    File {
        path: "/app.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../page/app.js"),
    },
    File {
        path: "/style.css",
        kind: "text/css; charset=utf-8",
        bytes: include_bytes!("../page/style.css"),
    },
    File { path: "/icon.svg", kind: "image/svg+xml", bytes: include_bytes!("../page/icon.svg") },
];

/// Paths of the page.
pub(crate) fn router() -> Router<Arc<Shared>> {
    FILES.iter().fold(Router::new(), |router, file| {
        router.route(
            file.path,
            get(move |request: Request| async move { file.answer(request.headers()) }),
        )
    })
}

/// What is where the page would be: clients of Ollama look there to see whether there is a server.
pub(crate) fn sign_of_life() -> Router<Arc<Shared>> {
    Router::new().route("/", get(|| async { "millstream is running\n" }))
}

/// Whether a path is one of the page's.
pub(crate) fn is_part(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

impl File {
    fn answer(&self, asked: &HeaderMap) -> Response {
        let tag = self.tag();
        let known = asked.get_all(header::IF_NONE_MATCH).iter();
        let is_known = known
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|one| one.trim().trim_start_matches("W/") == tag);
        let mut response = if is_known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            self.bytes.into_response()
        };
        let headers = response.headers_mut();
        let mut set = |name: HeaderName, value: &'static str| {
            headers.insert(name, HeaderValue::from_static(value));
        };
        set(header::CONTENT_TYPE, self.kind);
        set(header::CONTENT_SECURITY_POLICY, POLICY);
        set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(header::REFERRER_POLICY, "no-referrer");
        // Asked for anew each time, and answered with 304: a new version is there at once.
        set(header::CACHE_CONTROL, "no-cache");
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }

    /// Changes with the content.
    fn tag(&self) -> String {
        // FNV-1a.
        let step =
            |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = self.bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
        format!("\"{hash:016x}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_paths_of_the_interface() {
        for path in ["/", "/app.js", "/style.css", "/icon.svg"] {
            assert!(is_part(path), "{path}");
        }
        for path in ["", "/index.htm", "/live", "/v1/models", "/app.js/"] {
            assert!(!is_part(path), "{path}");
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        for file in &FILES {
            let first = file.answer(&HeaderMap::new());
            assert_eq!(first.status(), StatusCode::OK);
            assert_eq!(first.headers()[header::CONTENT_TYPE], file.kind);
            assert_eq!(first.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
            let tag = first.headers()[header::ETAG].clone();
            let asked = |value: &str| {
                let mut headers = HeaderMap::new();
                headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
                file.answer(&headers).status()
            };
            let tag = tag.to_str().unwrap();
            assert_eq!(asked(tag), StatusCode::NOT_MODIFIED);
            assert_eq!(asked(&format!("\"x\", W/{tag}")), StatusCode::NOT_MODIFIED);
            assert_eq!(asked("\"x\""), StatusCode::OK);
        }
    }

    #[test]
    fn the_page_needs_nothing_but_its_files() {
        let html = std::str::from_utf8(FILES[0].bytes).unwrap();
        for reference in
            html.split(['"', '\'']).filter(|text| text.ends_with(".js") || text.ends_with(".css"))
        {
            assert!(is_part(&format!("/{}", reference.trim_start_matches('/'))), "{reference}");
        }
        assert!(
            !html.contains("http://") && !html.contains("style=\"") && !html.contains("onclick")
        );
    }
}
