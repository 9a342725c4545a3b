//! A connection's bytes: the pace at which they must be read, and the end of a connection.
//!
//! Unread output holds a request's slot, so a client that reads next to nothing for long is disconnected. One that has sent
//! more than was read can still read its answer: at the end the rest is read and discarded for some time, since a socket
//! that is closed with bytes unread makes the other side forget what it has not read yet.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::malformed;
use crate::metrics::Metrics;
use crate::seats::Place;

/// The least that a client has to read of an answer that waits for it, over the whole time that it is given: less than
/// the slowest modem brings.
const LEAST_BYTES_PER_S: f64 = 32.0;
/// How long the rest of a request is thrown away: after the last of its bytes, and in all.
const REST: Duration = Duration::from_secs(2);
const WHOLE_REST: Duration = Duration::from_secs(10);
/// How much of it, at most. A body that is refused for its size is larger than others.
const REST_BYTES: usize = 128 << 20;

/// A stream whose writes fail when next to nothing could be written for `unread`.
pub(crate) struct Socket<S> {
    stream: S,
    place: Place,
    metrics: Arc<Metrics>,
    unread: Duration,
    /// Bytes that the system took.
    written: u64,
    /// There while writes wait for the client.
    wait: Option<Wait>,
    /// How the request begins that is yet to come, for an answer to what is none.
    head: Vec<u8>,
    /// Such an answer, and how much of it is written.
    answer: Option<(Vec<u8>, usize)>,
    rest: Option<Rest>,
}

/// A client that is to read.
struct Wait {
    /// Goes off when it has had its time.
    alarm: Pin<Box<Sleep>>,
    /// Bytes written when that began.
    written: u64,
}

/// What a client still sends although nothing more is read.
struct Rest {
    alarm: Pin<Box<Sleep>>,
    deadline: Instant,
    left: usize,
    /// Something is known to come.
    is_expected: bool,
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, place: Place, metrics: Arc<Metrics>, unread: Duration) -> Self {
        let head = Vec::new();
        Socket {
            stream,
            place,
            metrics,
            unread,
            written: 0,
            wait: None,
            head,
            answer: None,
            rest: None,
        }
    }

    /// What came of a write, unless it has waited for too long.
    fn in_time(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        if let Poll::Ready(written) = written {
            let bytes = *written.as_ref().unwrap_or(&0);
            self.written += bytes as u64;
            self.place.moved(bytes);
            return Poll::Ready(written);
        }
        self.place.blocked();
        let (unread, written) = (self.unread, self.written);
        let wait = self
            .wait
            .get_or_insert_with(|| Wait { alarm: Box::pin(tokio::time::sleep(unread)), written });
        let least = (LEAST_BYTES_PER_S * unread.as_secs_f64()).max(1.0);
        loop {
            ready!(wait.alarm.as_mut().poll(context));
            if ((written - wait.written) as f64) < least {
                let message = format!("the client has read nothing for {} s", unread.as_secs_f32());
                return Poll::Ready(Err(Error::new(ErrorKind::TimedOut, message)));
            }
            wait.written = written;
            wait.alarm.as_mut().reset(Instant::now() + unread);
        }
    }
}

impl<S: AsyncWrite + Unpin> Socket<S> {
    fn write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        // The library answers by itself what is no request.
        if self.answer.is_none() && !self.place.is_asked() {
            let bare: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            self.answer = malformed::answer(&bare, &self.head).map(|answer| (answer, 0));
            self.metrics.responses[3].add(u64::from(self.answer.is_some()));
        }
        let Some((mut answer, mut count)) = self.answer.take() else {
            let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
            return self.in_time(context, written);
        };
        while count < answer.len() {
            let written = Pin::new(&mut self.stream).poll_write(context, &answer[count..]);
            match self.in_time(context, written) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(more)) => count += more,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.answer = Some((answer, count));
                    return Poll::Pending;
                }
            }
        }
        // It stays, as the sign that one was given.
        answer.clear();
        self.answer = Some((answer, 0));
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }
}

impl<S: AsyncRead + Unpin> Socket<S> {
    /// Throws away what the client still sends, until it has seen that nothing is read any more.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_expected = self.answer.is_some() || self.place.has_rest();
        let rest = self.rest.get_or_insert_with(|| Rest {
            alarm: Box::pin(tokio::time::sleep(REST)),
            deadline: Instant::now() + WHOLE_REST,
            left: REST_BYTES,
            is_expected,
        });
        let mut bytes = [std::mem::MaybeUninit::uninit(); 16 << 10];
        while rest.left > 0 {
            let mut buffer = ReadBuf::uninit(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    rest.left = rest.left.saturating_sub(buffer.filled().len());
                    rest.is_expected = true;
                    rest.alarm.as_mut().reset((Instant::now() + REST).min(rest.deadline));
                }
                Poll::Ready(_) => break,
                Poll::Pending if rest.is_expected => return rest.alarm.as_mut().poll(context),
                Poll::Pending => break,
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let new = &buffer.filled()[before..];
        self.place.moved(new.len());
        if !self.place.is_asked() && self.head.len() < malformed::HEAD_BYTES {
            let room = malformed::HEAD_BYTES - self.head.len();
            self.head.extend_from_slice(&new[..new.len().min(room)]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.write(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.write(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.wait = None;
        if self.place.flushed() {
            self.head.clear();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.rest.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.place.closing();
        }
        self.poll_rest(context).map(Ok)
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
