//! Answers sent piece by piece: server-sent events and lines of JSON.
//!
//! [`stream`] answers at once with headers; the body is written as the connection requests more of it, by the connection's
//! own task: a client that is gone, or given up for reading nothing, ends the writing, and with it the request.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use engine::session::Update;
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use crate::answers::Answers;
use crate::fields;

/// How pieces are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `data: {…}` and a blank line.
    Events,
    /// `{…}` and a line end.
    Lines,
}

/// What a silent stream says, and how often.
#[derive(Clone, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) every: Duration,
    /// `None` says nothing: lines of JSON have no comments.
    pub(crate) frame: Option<&'static str>,
}

/// The writing end of a streamed response.
pub(crate) struct Wire {
    /// What the connection has not taken yet.
    written: Arc<Mutex<String>>,
    framing: Framing,
    keep_alive: KeepAlive,
    /// When something was last written. What happens meanwhile and is not written (a prompt that is read, chunk by chunk)
    /// is silence to the client.
    last: Instant,
    /// Goes off when there may have been silence for long: set again then, not with every frame.
    alarm: Pin<Box<Sleep>>,
}

/// A response whose body `run` writes.
pub(crate) fn stream<F>(
    framing: Framing,
    keep_alive: KeepAlive,
    run: impl FnOnce(Wire) -> F,
) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let body = Written::new(framing, keep_alive, run);
    let mut response = Response::new(Body::from_stream(body));
    let kind = match framing {
        Framing::Events => "text/event-stream",
        Framing::Lines => "application/x-ndjson",
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies would gather the stream otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Wire {
    fn new(written: Arc<Mutex<String>>, framing: Framing, keep_alive: KeepAlive) -> Wire {
        let last = Instant::now();
        let alarm = Box::pin(tokio::time::sleep_until(last + keep_alive.every));
        Wire { written, framing, keep_alive, last, alarm }
    }

    /// One JSON value: an event without a name, or a line.
    pub(crate) fn json(&mut self, value: &Value) {
        self.text(&value.to_string());
    }

    /// The same, written already.
    pub(crate) fn text(&mut self, json: &str) {
        match self.framing {
            Framing::Events => self.write(&["data: ", json, "\n\n"]),
            Framing::Lines => self.write(&[json, "\n"]),
        }
    }

    /// An event with a name.
    pub(crate) fn event(&mut self, name: &str, value: &Value) {
        self.write(&["event: ", name, "\ndata: ", &value.to_string(), "\n\n"]);
    }

    /// The end of an OpenAI stream.
    pub(crate) fn done(&mut self) {
        self.write(&["data: [DONE]\n\n"]);
    }

    /// What is new of an answer, as [`Answers::next`], keeping the connection alive meanwhile.
    pub(crate) async fn next(
        &mut self,
        answers: &mut Answers,
    ) -> Option<(usize, Vec<fields::Result<Update>>)> {
        self.alive_until(answers.next()).await
    }

    async fn alive_until<T>(&mut self, happens: impl Future<Output = T>) -> T {
        let mut happens = std::pin::pin!(happens);
        loop {
            tokio::select! {
                biased;
                value = &mut happens => return value,
                () = self.alarm.as_mut() => {}
            }
            let (now, due) = (Instant::now(), self.last + self.keep_alive.every);
            if now < due {
                self.alarm.as_mut().reset(due);
                continue;
            }
            self.alarm.as_mut().reset(now + self.keep_alive.every);
            self.last = now;
            if let Some(frame) = self.keep_alive.frame {
                self.write(&[frame]);
            }
        }
    }

    fn write(&mut self, parts: &[&str]) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.reserve(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| written.push_str(part));
        self.last = Instant::now();
    }
}

/// The reading end, as a body wants it: what is written when the connection polls. The writer waits for answers, which
/// wait for it, so little can pile up while the connection does not poll.
struct Written {
    writer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    written: Arc<Mutex<String>>,
}

impl Written {
    fn new<F>(framing: Framing, keep_alive: KeepAlive, run: impl FnOnce(Wire) -> F) -> Written
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let written = Arc::default();
        let writer = run(Wire::new(Arc::clone(&written), framing, keep_alive));
        Written { writer: Some(Box::pin(writer)), written }
    }
}

impl tokio_stream::Stream for Written {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(writer) = &mut self.writer
            && writer.as_mut().poll(context).is_ready()
        {
            self.writer = None;
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if !written.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut *written).into())));
        }
        if self.writer.is_some() { Poll::Pending } else { Poll::Ready(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt as _;

    fn written<F>(run: impl FnOnce(Wire) -> F) -> Written
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let keep_alive = KeepAlive { every: Duration::from_millis(40), frame: Some("alive") };
        Written::new(Framing::Events, keep_alive, run)
    }

    async fn all(mut body: Written) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        while let Some(Ok(piece)) = body.next().await {
            pieces.push(piece);
        }
        pieces
    }

    /// Claude Code was seen to wait 87 s for a sign of life, while the prompt was read in chunks of half a second.
    #[tokio::test]
    async fn a_stream_is_kept_alive_during_events_that_are_not_sent() {
        let body = written(|mut wire| async move {
            for _ in 0..20 {
                wire.alive_until(tokio::time::sleep(Duration::from_millis(10))).await;
            }
            // A stream that is written to is alive.
            wire.done();
            wire.alive_until(tokio::time::sleep(Duration::from_millis(1))).await;
        });
        let mut pieces = all(body).await;
        assert_eq!(pieces.pop().unwrap(), "data: [DONE]\n\n");
        assert!(pieces.len() >= 2, "{} signs of life in 200 ms", pieces.len());
        assert!(pieces.iter().all(|piece| piece == "alive"));
    }

    #[tokio::test]
    async fn what_is_written_goes_out_before_more_is_awaited_and_at_the_end() {
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let mut body = written(|mut wire| async move {
            wire.text("1");
            wire.json(&Value::from(2));
            let _ = gone.await;
            wire.event("three", &Value::from(3));
            wire.done();
        });
        assert_eq!(body.next().await.unwrap().unwrap(), "data: 1\n\ndata: 2\n\n");
        go.send(()).unwrap();
        let rest = all(body).await.concat();
        assert_eq!(rest, b"event: three\ndata: 3\n\ndata: [DONE]\n\n");
    }

    #[tokio::test]
    async fn a_body_that_is_dropped_ends_the_writing() {
        let (held, dropped) = tokio::sync::oneshot::channel::<()>();
        let mut body = written(|mut wire| async move {
            let _held = held;
            wire.text("1");
            std::future::pending::<()>().await;
        });
        assert!(body.next().await.is_some());
        drop(body);
        assert!(dropped.await.is_err());
    }
}
