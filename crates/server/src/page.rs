//! The web page: the files of the folder `page`, compiled into the program and served as they are written.
//!
//! The scripts are plain modules that import each other. The document names all of them for preloading, so a
//! browser requests them at once and not import by import. A policy lets the page load nothing but these files.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::shared::ServerState;

/// Scripts and styles are the page's own files, requests go to this server only, and no page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    path: &'static str,
    bytes: &'static [u8],
}

/// The document is at the root, each other file of the folder at its name.
macro_rules! files {
    ($document:literal, $($name:literal),* $(,)?) => {
        &[
            File { path: "/", bytes: include_bytes!(concat!("../page/", $document)) },
            $(File {
                path: concat!("/", $name),
                bytes: include_bytes!(concat!("../page/", $name)),
            }),*
        ]
    };
}

static FILES: &[File] = files![
    "index.html",
    "api.js",
    "chat.js",
    "connection.js",
    "conversation.js",
    "dialogs.js",
    "dom.js",
    "format.js",
    "generation.js",
    "grid.js",
    "highlight.js",
    "icon.svg",
    "inline.js",
    "library.js",
    "live.js",
    "main.js",
    "markdown.js",
    "message.js",
    "notices.js",
    "panel.js",
    "settings.js",
    "sidebar.js",
    "spark.js",
    "sse.js",
    "store.js",
    "style.css",
];

/// Paths of the page.
pub(crate) fn router() -> Router<Arc<ServerState>> {
    FILES.iter().fold(Router::new(), |router, file| {
        router.route(
            file.path,
            get(move |request: Request| async move { file.answer(request.headers()) }),
        )
    })
}

/// The root where there is no page: clients of Ollama look there to see whether there is a server.
pub(crate) fn sign_of_life() -> Router<Arc<ServerState>> {
    Router::new().route("/", get(|| async { "millstream is running\n" }))
}

/// Whether a path is one of the page's.
pub(crate) fn is_part(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

impl File {
    fn answer(&self, request: &HeaderMap) -> Response {
        let tag = self.tag();
        let is_known = request
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|known| known.trim().trim_start_matches("W/") == tag);
        let mut response = if is_known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            self.bytes.into_response()
        };
        let headers = response.headers_mut();
        let mut set = |name: HeaderName, value: &'static str| {
            headers.insert(name, HeaderValue::from_static(value));
        };
        set(header::CONTENT_TYPE, self.content_type());
        set(header::CONTENT_SECURITY_POLICY, POLICY);
        set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(header::REFERRER_POLICY, "no-referrer");
        // A browser may keep the file but checks at each use whether it has changed: no stale module runs.
        set(header::CACHE_CONTROL, "no-cache");
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }

    fn content_type(&self) -> &'static str {
        match self.path.rsplit_once('.') {
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        }
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
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The text of the file at a path.
    #[track_caller]
    fn text(path: &str) -> &'static str {
        let file = FILES.iter().find(|file| file.path == path);
        let file = file.unwrap_or_else(|| panic!("{path} is not served"));
        std::str::from_utf8(file.bytes).unwrap()
    }

    /// What stands between two marks, wherever they occur.
    fn between<'a>(text: &'a str, before: &str, after: &str) -> BTreeSet<&'a str> {
        text.split(before).skip(1).map(|rest| rest.split_once(after).unwrap().0).collect()
    }

    /// A module and all that it leads to, by path.
    fn modules_from(path: String, found: &mut BTreeSet<String>) {
        let text = text(&path);
        if found.insert(path) {
            for name in between(text, " from './", "';\n") {
                modules_from(format!("/{name}"), found);
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
        let names: BTreeSet<String> =
            files.map(|file| file.file_name().into_string().unwrap()).collect();
        let served = FILES.iter().map(|file| match file.path {
            "/" => "index.html".to_owned(),
            path => path[1..].to_owned(),
        });
        assert_eq!(served.collect::<BTreeSet<String>>(), names);
    }

    #[test]
    fn files_are_distinguished_from_paths_of_the_interface() {
        for path in ["/", "/main.js", "/style.css", "/icon.svg"] {
            assert!(is_part(path), "{path}");
        }
        for path in ["", "/index.htm", "/index.html", "/live", "/v1/models", "/main.js/"] {
            assert!(!is_part(path), "{path}");
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        for file in FILES {
            let first = file.answer(&HeaderMap::new());
            assert_eq!(first.status(), StatusCode::OK);
            assert_eq!(first.headers()[header::CONTENT_TYPE], file.content_type());
            assert_eq!(first.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
            assert_eq!(first.headers()[header::CACHE_CONTROL], "no-cache");
            let tag = first.headers()[header::ETAG].clone();
            let status = |value: &str| {
                let mut headers = HeaderMap::new();
                headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
                file.answer(&headers).status()
            };
            let tag = tag.to_str().unwrap();
            assert_eq!(status(tag), StatusCode::NOT_MODIFIED);
            assert_eq!(status(&format!("\"x\", W/{tag}")), StatusCode::NOT_MODIFIED);
            assert_eq!(status("\"x\""), StatusCode::OK);
        }
    }

    #[test]
    fn the_document_preloads_every_module_and_no_other() {
        let document = text("/");
        let mut modules = BTreeSet::new();
        modules_from("/main.js".to_owned(), &mut modules);
        let scripts = FILES.iter().map(|file| file.path).filter(|path| path.ends_with(".js"));
        assert_eq!(modules, scripts.map(str::to_owned).collect(), "a module is never imported");
        assert!(document.contains("<script type=\"module\" src=\"main.js\"></script>"));
        modules.remove("/main.js");
        let preloads = between(document, "<link rel=\"modulepreload\" href=\"", "\">");
        assert_eq!(
            preloads.iter().map(|name| format!("/{name}")).collect::<BTreeSet<_>>(),
            modules
        );
    }

    #[test]
    fn modules_are_imported_in_one_form() {
        for file in FILES.iter().filter(|file| file.path.ends_with(".js")) {
            for line in text(file.path).lines().filter(|line| line.contains("import")) {
                assert_eq!(line.starts_with("import "), line.contains(" from './"), "{line}");
                assert!(!line.contains("import('"), "{}: {line}", file.path);
            }
        }
    }

    #[test]
    fn the_page_needs_nothing_but_its_files() {
        let document = text("/");
        for attribute in ["href=\"", "src=\""] {
            for reference in between(document, attribute, "\"") {
                assert!(
                    reference.starts_with('#') || is_part(&format!("/{reference}")),
                    "{reference}"
                );
            }
        }
        assert!(!document.contains("style=\"") && !document.contains("onclick"));
        assert!(!text("/style.css").contains("url(") && !text("/style.css").contains("@import"));
        for file in FILES {
            // The name of a vocabulary is no address to load.
            let text = text(file.path).replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{}", file.path);
        }
    }
}
