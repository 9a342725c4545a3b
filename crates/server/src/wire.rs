//! Answers sent piece by piece: server-sent events and lines of JSON.
//!
//! [`stream`] answers at once with headers and lets a task write the body. The task waits for the
//! answers and for the client at the same time: a silent stream says that it is alive, a client that is
//! gone ends the task, and with it the request.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, Sleep};

use crate::answers::{Answers, Part};

/// Frames that may wait for the socket.
const FRAMES: usize = 8;

/// The client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

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
    /// How long the client may leave what was written unread.
    pub(crate) unread: Duration,
}

/// The writing end of a streamed response.
pub(crate) struct Wire {
    sender: mpsc::Sender<Bytes>,
    framing: Framing,
    keep_alive: KeepAlive,
    /// When something was last written. What happens meanwhile and is not told (a prompt that is read, chunk by chunk)
    /// is silence to the client.
    written: Instant,
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
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(FRAMES);
    let task = run(Wire::new(sender, framing, keep_alive));
    tokio::spawn(async move {
        let _ = task.await;
    });
    let mut response = Response::new(Body::from_stream(Frames(receiver)));
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
    fn new(sender: mpsc::Sender<Bytes>, framing: Framing, keep_alive: KeepAlive) -> Wire {
        let written = Instant::now();
        let alarm = Box::pin(tokio::time::sleep_until(written + keep_alive.every));
        Wire { sender, framing, keep_alive, written, alarm }
    }

    /// One JSON value: an event without a name, or a line.
    pub(crate) async fn json(&mut self, value: &Value) -> Result<(), Gone> {
        self.text(&value.to_string()).await
    }

    /// The same, written already.
    pub(crate) async fn text(&mut self, json: &str) -> Result<(), Gone> {
        let frame = match self.framing {
            Framing::Events => ["data: ", json, "\n\n"].concat(),
            Framing::Lines => [json, "\n"].concat(),
        };
        self.write(frame.into()).await
    }

    /// An event with a name.
    pub(crate) async fn event(&mut self, name: &str, value: &Value) -> Result<(), Gone> {
        self.write(format!("event: {name}\ndata: {value}\n\n").into()).await
    }

    /// The end of an OpenAI stream.
    pub(crate) async fn done(&mut self) -> Result<(), Gone> {
        self.write(Bytes::from_static(b"data: [DONE]\n\n")).await
    }

    /// The next parts of an answer, as [`Answers::next`], keeping the connection alive meanwhile.
    pub(crate) async fn next(
        &mut self,
        answers: &mut Answers,
    ) -> Result<Option<(usize, Vec<Part>)>, Gone> {
        self.alive_until(answers.next()).await
    }

    async fn alive_until<T>(&mut self, happens: impl Future<Output = T>) -> Result<T, Gone> {
        let mut happens = std::pin::pin!(happens);
        loop {
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Gone),
                value = &mut happens => return Ok(value),
                () = self.alarm.as_mut() => {}
            }
            let (now, due) = (Instant::now(), self.written + self.keep_alive.every);
            if now < due {
                self.alarm.as_mut().reset(due);
                continue;
            }
            self.alarm.as_mut().reset(now + self.keep_alive.every);
            self.written = now;
            if let Some(frame) = self.keep_alive.frame {
                self.write(Bytes::from_static(frame.as_bytes())).await?;
            }
        }
    }

    /// Waits for something else, unless the client goes.
    pub(crate) async fn until<T>(&self, happens: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::select! {
            biased;
            () = self.sender.closed() => Err(Gone),
            value = happens => Ok(value),
        }
    }

    async fn write(&mut self, frame: Bytes) -> Result<(), Gone> {
        if let Err(refused) = self.sender.try_send(frame) {
            let TrySendError::Full(frame) = refused else { return Err(Gone) };
            // A client that reads nothing for long is as good as gone.
            let sent = tokio::time::timeout(self.keep_alive.unread, self.sender.send(frame)).await;
            sent.map_err(|_| Gone)?.map_err(|_| Gone)?;
        }
        self.written = Instant::now();
        Ok(())
    }
}

/// The reading end, as a body wants it.
struct Frames(mpsc::Receiver<Bytes>);

impl tokio_stream::Stream for Frames {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claude Code was seen to wait 87 s for a sign of life, while the prompt was read in chunks of half a second.
    #[tokio::test]
    async fn a_stream_is_kept_alive_while_things_happen_that_are_not_told() {
        let (sender, mut receiver) = mpsc::channel(64);
        let keep_alive = KeepAlive {
            every: Duration::from_millis(40),
            frame: Some("alive"),
            unread: Duration::from_secs(10),
        };
        let framing = Framing::Events;
        let mut wire = Wire::new(sender, framing, keep_alive);
        for _ in 0..20 {
            wire.alive_until(tokio::time::sleep(Duration::from_millis(10))).await.unwrap();
        }
        let mut count = 0;
        while let Ok(frame) = receiver.try_recv() {
            assert_eq!(frame, "alive");
            count += 1;
        }
        assert!(count >= 2, "{count} signs of life in 200 ms");
        // Who writes is alive.
        wire.written = Instant::now();
        wire.alive_until(tokio::time::sleep(Duration::from_millis(1))).await.unwrap();
        assert!(receiver.try_recv().is_err());
        drop(receiver);
        assert_eq!(wire.alive_until(std::future::pending::<()>()).await, Err(Gone));
    }
}
