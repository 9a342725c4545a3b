//! Names under which a server may be reached, and pages that may use it although they are not its own.
//!
//! A page can have its own name point to any address ("DNS rebinding"): the browser then takes this server for a part of
//! that page, and `Host` says only by which name it was reached. So a name has to be known, wherever the server
//! listens. What cannot be rebound is let through: addresses, and names that cannot be registered.

use std::net::IpAddr;

use crate::Options;

/// What containers call the computer that they run on.
const CONTAINER_HOSTS: [&str; 2] = ["host.docker.internal", "host.containers.internal"];
/// Schemes of programs with a web page inside: pages from the network never have them.
const PROGRAM_SCHEMES: [&str; 5] = ["app", "file", "tauri", "vscode-file", "vscode-webview"];

/// The names of one server.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// This computer's name, and the one to listen on.
    own: Vec<String>,
    /// Names that were allowed, and `*.example.org`, and `*`.
    allowed: Vec<String>,
    /// Only this computer can reach the server.
    is_local: bool,
}

impl Hosts {
    /// `computer` is this computer's name.
    pub(crate) fn new(options: &Options, computer: Option<&str>) -> Hosts {
        let short = computer.and_then(|name| name.split('.').next());
        let own = [computer, short, Some(options.host.as_str())];
        Hosts {
            own: own.into_iter().flatten().map(name_of).collect(),
            allowed: options.allowed_hosts.iter().map(|name| name_of(name.trim())).collect(),
            is_local: is_loopback(&name_of(&options.host)),
        }
    }

    /// Whether a request may have reached the server by this name (and port).
    pub(crate) fn allows(&self, authority: &str) -> bool {
        let name = name_of(authority);
        let is_local = is_loopback(&name) || name.parse::<IpAddr>().is_ok();
        // Multicast DNS and names without a dot are for the own network alone.
        let is_near =
            name.ends_with(".local") || (!self.is_local && !name.is_empty() && !name.contains('.'));
        is_local
            || is_near
            || CONTAINER_HOSTS.contains(&name.as_str())
            || self.own.contains(&name)
            || self.allowed.iter().any(|pattern| matches(pattern, &name))
    }
}

/// Whether pages of this origin are on this computer: served by it, or part of a program.
pub(crate) fn is_local_origin(origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    match scheme {
        "http" | "https" => {
            let name = name_of(authority);
            is_loopback(&name)
                || name.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
        }
        _ => PROGRAM_SCHEMES.contains(&scheme),
    }
}

/// Whether a name, as [`name_of`] gives it, is this computer to itself.
fn is_loopback(name: &str) -> bool {
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether a pattern that was allowed means this name.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some("") => true,
        Some(end) => end.starts_with('.') && name.len() > end.len() && name.ends_with(end),
        None => pattern == name,
    }
}

/// A name in small letters, without port, brackets, zone and the dot at its end.
fn name_of(authority: &str) -> String {
    let host = if authority.parse::<IpAddr>().is_ok() {
        authority
    } else if let Some((host, _)) = authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .filter(|(_, rest)| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_number))
    {
        host.split_once('%').map_or(host, |(address, _)| address)
    } else {
        authority
            .rsplit_once(':')
            .filter(|(_, port)| is_number(port))
            .map_or(authority, |(name, _)| name)
    };
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(listen: &str, allowed: &[&str]) -> Hosts {
        let allowed_hosts = allowed.iter().map(|&name| name.to_owned()).collect();
        let options = Options { host: listen.to_owned(), allowed_hosts, ..Options::default() };
        Hosts::new(&options, Some("Box.lan"))
    }

    #[test]
    fn names_that_can_be_registered_are_not_known() {
        #[track_caller]
        fn check(name: &str, expect: bool) {
            for listen in ["127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "192.168.0.7"] {
                assert_eq!(hosts(listen, &[]).allows(name), expect, "{name} at {listen}");
            }
        }
        check("127.0.0.1:8080", true);
        check("127.0.0.1", true);
        check("[::1]:8080", true);
        check("[fe80::1%25eth0]:80", true);
        check("0.0.0.0:8080", true);
        check("192.168.0.7", true);
        check("localhost", true);
        check("LocalHost.:8080", true);
        check("tauri.localhost", true);
        check("box.lan:8080", true);
        check("box:8080", true);
        check("printer.local", true);
        check("host.docker.internal:8080", true);
        check("rebound.example", false);
        check("rebound.example:8080", false);
        check("localhost.evil.example", false);
        check("127.0.0.1.evil.example", false);
        check("127.0.0.1.", true);
        check("evil.example.127.0.0.1x", false);
        check("localhost:80@evil.example", false);
        check("[::1]evil.example", false);
        check("other.docker.internal", false);
        check("evillocalhost.example", false);
        check("", false);
        check(".", false);
    }

    #[test]
    fn a_name_without_a_dot_is_for_the_network() {
        assert!(hosts("0.0.0.0", &[]).allows("millstream:8080"));
        assert!(!hosts("127.0.0.1", &[]).allows("millstream:8080"));
        assert!(hosts("millstream.lan", &[]).allows("millstream.lan"));
    }

    #[test]
    fn names_can_be_allowed() {
        #[track_caller]
        fn check(allowed: &[&str], name: &str, expect: bool) {
            assert_eq!(hosts("127.0.0.1", allowed).allows(name), expect, "{name} of {allowed:?}");
        }
        check(&["chat.example"], "chat.example", true);
        check(&["Chat.Example."], "chat.example:443", true);
        check(&["chat.example"], "a.chat.example", false);
        check(&["chat.example"], "evilchat.example", false);
        check(&["*.chat.example"], "a.chat.example", true);
        check(&["*.chat.example"], "a.b.chat.example:80", true);
        check(&["*.chat.example"], "chat.example", false);
        check(&["*.chat.example"], ".chat.example", false);
        check(&["*.chat.example"], "evilchat.example", false);
        check(&["one.example", "two.example"], "two.example", true);
        check(&["*example"], "evilexample", false);
        check(&["*"], "rebound.example", true);
    }

    #[test]
    fn pages_on_this_computer_are_distinguished_from_others() {
        #[track_caller]
        fn check(origin: &str, expect: bool) {
            assert_eq!(is_local_origin(origin), expect, "{origin}");
        }
        check("http://localhost", true);
        check("https://localhost:3000", true);
        check("http://127.0.0.1:5173", true);
        check("http://[::1]:3000", true);
        check("http://0.0.0.0:3000", true);
        check("https://tauri.localhost", true);
        check("app://obsidian.md", true);
        check("file://", true);
        check("tauri://localhost", true);
        check("vscode-webview://0abc", true);
        check("null", false);
        check("", false);
        check("http://192.168.0.7:3000", false);
        check("https://chat.example", false);
        check("http://localhost.evil.example", false);
        check("http://127.0.0.1.evil.example", false);
        check("http://localhost:80@evil.example", false);
        check("https://evil.example/app://", false);
        check("chrome-extension://abc", false);
    }
}
