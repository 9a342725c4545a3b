//! HTTP as far as the tests speak it: whole replies, streamed bodies, events.
//!
//! Written out rather than taken from a library, so that a test decides every byte that is sent and sees
//! every byte that comes. Whatever is not HTTP fails the test that reads it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Nothing here takes so long: a reply that does not come fails the test instead of stopping it.
const HANGS: Duration = Duration::from_secs(180);

/// A reply whose body is still to be read.
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

/// A body, however it is framed.
struct Body {
    stream: BufReader<TcpStream>,
    framing: Framing,
}

enum Framing {
    /// So many bytes are left.
    Length(u64),
    /// So many bytes of the chunk are left; `None` after the last.
    Chunks(Option<u64>),
    /// Until the connection ends.
    Close,
}

pub(crate) fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(HANGS)).unwrap();
    stream.set_write_timeout(Some(HANGS)).unwrap();
    stream
}

/// A request with a JSON body, as bytes.
pub(crate) fn post(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut request = head("POST", path, headers);
    request.push_str(&format!(
        "content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    let mut bytes = request.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A request without a body, as bytes.
pub(crate) fn get(path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    (head("GET", path, headers) + "\r\n").into_bytes()
}

/// Headers of our own come only where the request has none of that name.
pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head
}

impl Reply {
    /// Reads the head of a reply; `None` when the connection ends without one.
    pub(crate) fn read(stream: TcpStream) -> Option<Reply> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        // A reset is how a connection ends when bytes were left unread.
        if !matches!(stream.read_line(&mut line), Ok(count) if count > 0) {
            return None;
        }
        let status = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "));
        let status = status.and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            line.clear();
            stream.read_line(&mut line).unwrap();
            let field = line.trim_end();
            if field.is_empty() {
                break;
            }
            let (name, value) = field.split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let find = |name: &str| {
            headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
        };
        let framing = match (find("transfer-encoding"), find("content-length")) {
            (Some(coding), _) => {
                assert_eq!(coding, "chunked");
                Framing::Chunks(Some(0))
            }
            (None, Some(length)) => Framing::Length(length.parse().unwrap()),
            (None, None) if matches!(status, 204 | 304) => Framing::Length(0),
            (None, None) => Framing::Close,
        };
        Some(Reply { status, headers, body: Body { stream, framing } })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    pub(crate) fn text(mut self) -> String {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The JSON of a reply that must have gone well.
    #[track_caller]
    pub(crate) fn good(self) -> Value {
        let status = self.status;
        let value = self.json();
        assert_eq!(status, 200, "{value}");
        value
    }

    /// The data of server-sent events, one after the other.
    pub(crate) fn events(self) -> Events {
        Events { body: BufReader::with_capacity(4096, self.body) }
    }

    /// The socket below, for tests that read it themselves.
    pub(crate) fn into_socket(self) -> TcpStream {
        self.body.stream.into_inner()
    }
}

/// One request on a connection of its own, which ends with it.
#[track_caller]
pub(crate) fn exchange(port: u16, request: &[u8]) -> Option<Reply> {
    let mut stream = connect(port);
    // A server that has refused already may not read to the end.
    let _ = stream.write_all(request);
    Reply::read(stream)
}

/// Server-sent events, comments left out.
pub(crate) struct Events {
    body: BufReader<Body>,
}

impl Events {
    /// The data of the next event; `None` at the end of the stream, an error where it is cut.
    pub(crate) fn next_data(&mut self) -> std::io::Result<Option<String>> {
        let mut data = String::new();
        let mut line = String::new();
        loop {
            line.clear();
            if self.body.read_line(&mut line)? == 0 {
                return if data.is_empty() { Ok(None) } else { Err(cut()) };
            }
            let field = line.trim_end_matches(['\n', '\r']);
            if field.is_empty() && !data.is_empty() {
                return Ok(Some(data));
            }
            if let Some(value) = field.strip_prefix("data:") {
                data.push_str(value.strip_prefix(' ').unwrap_or(value));
            }
        }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.framing {
            Framing::Close => self.stream.read(buffer),
            Framing::Length(0) | Framing::Chunks(None) => Ok(0),
            Framing::Length(left) => {
                let most = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                let count = self.stream.read(&mut buffer[..most])?;
                if count == 0 {
                    return Err(cut());
                }
                *left -= count as u64;
                Ok(count)
            }
            Framing::Chunks(Some(0)) => {
                let size = line(&mut self.stream)?;
                let size = u64::from_str_radix(&size, 16).map_err(|_| cut())?;
                self.framing = Framing::Chunks((size > 0).then_some(size));
                if size == 0 {
                    line(&mut self.stream)?;
                }
                self.read(buffer)
            }
            Framing::Chunks(Some(left)) => {
                let most = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                let count = self.stream.read(&mut buffer[..most])?;
                if count == 0 {
                    return Err(cut());
                }
                *left -= count as u64;
                if *left == 0 {
                    line(&mut self.stream)?;
                }
                Ok(count)
            }
        }
    }
}

fn line(stream: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(cut());
    }
    Ok(line.trim_end().to_owned())
}

fn cut() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the body was cut")
}
