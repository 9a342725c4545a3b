//! A connection that is closed when its client reads nothing for long: whatever waits to be read holds a request's place.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes fail when nothing could be written for `unread`.
pub(crate) struct Socket<S> {
    stream: S,
    unread: Duration,
    /// Goes off when the client has had its time; there while a write waits for it.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, unread: Duration) -> Socket<S> {
        Socket { stream, unread, alarm: None }
    }

    /// What came of a write, unless it has waited for too long.
    fn in_time(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        if written.is_ready() {
            self.alarm = None;
            return written;
        }
        let unread = self.unread;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(unread)));
        alarm.as_mut().poll(context).map(|()| {
            let message = format!("the client has read nothing for {} s", unread.as_secs_f32());
            Err(Error::new(ErrorKind::TimedOut, message))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// Writes 64 bytes to a client that has room for 16, and takes a byte at a time after that, so many times.
    async fn written_to(reads: usize, between: Duration) -> Result<()> {
        let (server, mut client) = duplex(16);
        let mut socket = Socket::new(server, Duration::from_millis(200));
        let reader = tokio::spawn(async move {
            for _ in 0..reads {
                tokio::time::sleep(between).await;
                client.read_u8().await.unwrap();
            }
            // It stays, and reads no more.
            std::future::pending::<()>().await;
        });
        let written = socket.write_all(&[7; 64]).await;
        reader.abort();
        written
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_for_long_is_given_up() {
        let between = Duration::from_millis(10);
        for reads in [0, 20] {
            let error = written_to(reads, between).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_slowly_is_not() {
        written_to(48, Duration::from_millis(10)).await.unwrap();
    }
}
