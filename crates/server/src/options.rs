//! Options of a server when it starts. Everything has a sensible default.

use std::time::Duration;

/// Choices of a [`crate::Server`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Address or name to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Keys of which every request must show one; none means no key is needed.
    pub api_keys: Vec<String>,
    /// Names that requests may reach the server by, in addition to addresses and this computer's own: `chat.example`,
    /// `*.chat.example`; `*` is all.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the server, such as `https://chat.example`, in addition to its own and those on this
    /// computer; `*` is all.
    pub allowed_origins: Vec<String>,
    /// Queue length: answers that may wait in addition to those being written.
    pub queue: usize,
    /// The largest request body.
    pub body_bytes: usize,
    /// How long requests may continue after a signal to end.
    pub drain: Duration,
    /// Whether the web page is served.
    pub page: bool,
    /// Connections at once; three quarters of them may have a request, and half of those may come from one address.
    pub connections: usize,
    /// How long a client may take to send the headers, and then the body, of a request; how long that may wait for a slot.
    pub patience: Duration,
    /// How long a client may read next to nothing of what waits to be written.
    pub unread: Duration,
    /// How often a silent stream says that it is alive.
    pub keep_alive: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            queue: 256,
            body_bytes: 32 << 20,
            drain: Duration::from_secs(30),
            page: true,
            connections: 1024,
            patience: Duration::from_secs(30),
            unread: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
        }
    }
}
