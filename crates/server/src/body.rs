//! The JSON body of a request, within limits of size, time and memory.
//!
//! The share that a body needs is taken before its first byte is read: by its announced length, or step by step where
//! none is announced. Then it is weighed, and what reading it takes is added before anything is made of it. Keys and
//! origins were checked before. A body has to come at some pace: a client that stops sending loses its connection long
//! before the time for a whole body is over.
//!
//! Invariant: nothing waits while it holds a share, except for the client's own bytes and for its turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use grammar::Allowance;
use serde_json::Value;
use text::Weight;
use tokio_stream::{Stream, StreamExt};

use crate::budget::{Denied, Share};
use crate::error::ApiError;
use crate::fields::Result;
use crate::prepare;
use crate::shared::ServerState;

/// How long a body may pause, and the rate that it has to keep in addition.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const LEAST_BYTES_PER_SECOND: u64 = 4 << 10;
/// The first share of a body whose length is not announced; it doubles as the body grows.
const FIRST_BYTES: usize = 64 << 10;
/// A body up to this length is read at once: it takes no longer than handing it over would.
const READ_AT_ONCE_BYTES: usize = 64 << 10;

/// A body that was read, and the share that its request has of the memory for all.
#[derive(Debug)]
pub(crate) struct Posted {
    body: Value,
    weight: Weight,
    share: Share,
}

impl Posted {
    /// What a dialect makes of the body. The body is gone afterwards, and the share is what was made of it.
    pub(crate) fn read<T>(mut self, read: impl FnOnce(&Value) -> Result<T>) -> Result<(T, Share)> {
        let asked = read(&self.body)?;
        drop(self.body);
        self.share.shrink(self.weight.held_bytes());
        Ok((asked, self.share))
    }
}

impl FromRequest<Arc<ServerState>> for Posted {
    type Rejection = ApiError;

    async fn from_request(request: Request, shared: &Arc<ServerState>) -> Result<Posted> {
        let headers = request.headers();
        check_encoding(headers)?;
        let length = announced(headers);
        let most = shared.options.body_bytes;
        if length.is_some_and(|length| length > most as u64) {
            return Err(too_large(most));
        }
        let length = length.and_then(|length| usize::try_from(length).ok());
        let first = length.unwrap_or(FIRST_BYTES.min(most));
        let share = shared.budget()?.take(first);
        let mut share = share.map_err(|denied| refused(shared, denied, &body_words(first)))?;
        let frames = request.into_body().into_data_stream();
        let bytes = receive(frames, length, most, &mut share, shared).await?;
        if bytes.is_empty() {
            return Err(ApiError::bad_request("invalid_json", "the body is empty, expected JSON"));
        }
        let size = bytes.len();
        let posted = {
            let shared = Arc::clone(shared);
            move || parse(bytes, share, &shared)
        };
        if size <= READ_AT_ONCE_BYTES {
            return posted();
        }
        prepare::in_turn(shared, size, posted).await
    }
}

fn check_encoding(headers: &HeaderMap) -> Result<()> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            let message = "bodies are read as they are, without a Content-Encoding";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            Err(ApiError::new(status, "unsupported_encoding", message))
        }
        _ => Ok(()),
    }
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(most: usize) -> ApiError {
    let message = format!("the body is larger than {most} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

/// Receives a body of this length, if one was announced. The share grows with one that was not.
async fn receive(
    mut frames: impl Stream<Item = std::result::Result<Bytes, axum::Error>> + Unpin,
    length: Option<usize>,
    most: usize,
    share: &mut Share,
    shared: &ServerState,
) -> Result<Vec<u8>> {
    let started = Instant::now();
    let mut bytes = Vec::with_capacity(length.unwrap_or(0));
    loop {
        let left = time_left(started.elapsed(), bytes.len(), shared.options.patience);
        let late = |_| {
            let message = "the body did not arrive in time";
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
        };
        let frame = tokio::time::timeout(left, frames.next()).await.map_err(late)?;
        let frame = match frame {
            None => return Ok(bytes),
            Some(Ok(frame)) => frame,
            Some(Err(_)) => {
                return Err(ApiError::bad_request("incomplete_body", "the body ended too early"));
            }
        };
        let needed = bytes.len() + frame.len();
        if needed > most {
            return Err(too_large(most));
        }
        if needed > share.bytes() {
            let next = needed.max(2 * bytes.len()).min(most);
            share.resize(next).map_err(|denied| refused(shared, denied, &body_words(next)))?;
        }
        if needed > bytes.capacity() {
            bytes.reserve_exact(share.bytes().min(most) - bytes.len());
        }
        bytes.extend_from_slice(&frame);
    }
}

/// How long the next bytes of a body may take.
fn time_left(elapsed: Duration, received: usize, patience: Duration) -> Duration {
    let earned = Duration::from_millis(1000 * received as u64 / LEAST_BYTES_PER_SECOND);
    let until = patience.min(LONGEST_PAUSE.saturating_add(earned));
    until.saturating_sub(elapsed)
}

/// Reads a body within its share, which grows to what reading takes.
fn parse(bytes: Vec<u8>, mut share: Share, shared: &ServerState) -> Result<Posted> {
    let weight = Weight::of(&bytes);
    let needed = weight.reading_bytes(bytes.capacity());
    share.resize(needed).map_err(|denied| {
        let Weight { values, text_bytes, .. } = weight;
        let words = format!(
            "with {values} values and {text_bytes} bytes of text would take {needed} bytes to read"
        );
        refused(shared, denied, &words)
    })?;
    let body = serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::bad_request("invalid_json", format!("the body is not valid JSON: {error}"))
    })?;
    drop(bytes);
    share.shrink(weight.reading_bytes(0));
    Ok(Posted { body, weight, share })
}

fn body_words(bytes: usize) -> String {
    format!("has a body of {bytes} bytes")
}

/// Why a request gets no share; `words` say what it wanted one for.
pub(crate) fn refused(shared: &ServerState, denied: Denied, words: &str) -> ApiError {
    shared.metrics.requests_refused.add(1);
    match denied {
        Denied::Now => {
            let seconds = shared.metrics.seconds_until_a_place();
            let message = format!(
                "the memory for requests is in use, and this request {words}: try again in {seconds} s"
            );
            ApiError::unavailable("memory_in_use", message, seconds)
        }
        Denied::Never => {
            let context = shared.model().map_or(0, |model| model.facts.context);
            let most = shared.budget().map_or(0, |budget| budget.most_bytes());
            let message = format!(
                "This request {words}, more than any may: one request may hold {most} bytes, which is enough for every \
                 prompt that fits. This model's maximum context length is {context} tokens. Please reduce the \
                 length of the messages, or start the server with a larger --memory."
            );
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_to_keep_its_pace() {
        #[track_caller]
        fn check(elapsed_ms: u64, received: usize, patience_s: u64, expect_ms: u64) {
            let left = time_left(
                Duration::from_millis(elapsed_ms),
                received,
                Duration::from_secs(patience_s),
            );
            assert_eq!(left, Duration::from_millis(expect_ms));
        }
        check(0, 0, 30, 5000);
        check(4000, 10, 30, 1002);
        check(5000, 10, 30, 2);
        check(6000, 100, 30, 0);
        // A second for every four kilobytes, but no more than all are given.
        check(6000, 8192, 30, 1000);
        check(29_000, 32 << 20, 30, 1000);
        check(31_000, 32 << 20, 30, 0);
        check(0, 0, 1, 1000);
    }
}
