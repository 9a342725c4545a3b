//! Slow clients, answers to what is no request, and connections that end.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::seats::{Opened, Seats};

/// A socket to a client that has room for 16 bytes.
fn open() -> (Socket<DuplexStream>, DuplexStream, Opened) {
    let (server, client) = duplex(16);
    let opened = Seats::new(16).open(Ipv4Addr::LOCALHOST.into()).unwrap();
    let unread = Duration::from_millis(200);
    let socket = Socket::new(server, opened.0.clone(), Arc::default(), unread);
    (socket, client, opened)
}

/// Writes 64 bytes of an answer to a client that takes a byte at a time after the first 16, so many times.
async fn written_to(reads: usize, between: Duration) -> Result<()> {
    let (mut socket, mut client, opened) = open();
    opened.0.ask().await;
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
    for reads in [0, 20] {
        let error = written_to(reads, Duration::from_millis(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}

/// A byte in each of the times that it is given is less than the least there must be.
#[tokio::test]
async fn a_client_that_reads_next_to_nothing_is_too() {
    let error = written_to(48, Duration::from_millis(150)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_not() {
    written_to(48, Duration::from_millis(10)).await.unwrap();
}

/// The time that an answer takes to be made is none that its client needs to read.
#[tokio::test]
async fn a_slow_answer_has_all_the_time() {
    let (mut socket, mut client, opened) = open();
    opened.0.ask().await;
    for _ in 0..3 {
        socket.write_all(&[7; 16]).await.unwrap();
        socket.flush().await.unwrap();
        client.read_exact(&mut [0; 16]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    socket.write_all(&[7; 16]).await.unwrap();
}

#[tokio::test]
async fn what_is_no_request_is_answered_with_a_body() {
    let (mut socket, mut client, opened) = open();
    let exchange = tokio::spawn(async move {
        client.write_all(b"GET /api/tags HTTP/1.1\r\nbad header\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    });
    let mut head = [0; 38];
    socket.read_exact(&mut head).await.unwrap();
    let bare = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    socket.write_all(bare).await.unwrap();
    socket.shutdown().await.unwrap();
    let answer = exchange.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"].is_string());
    drop(opened);
}

#[tokio::test]
async fn a_client_that_still_sends_can_read_its_answer() {
    let (mut socket, mut client, opened) = open();
    opened.0.ask().await;
    opened.0.received(true);
    let exchange = tokio::spawn(async move {
        client.write_all(&[1; 100_000]).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    });
    socket.write_all(b"no").await.unwrap();
    socket.shutdown().await.unwrap();
    assert_eq!(exchange.await.unwrap(), b"no");
}

#[tokio::test]
async fn a_connection_that_is_idle_ends_at_once() {
    let (mut socket, client, _opened) = open();
    let start = Instant::now();
    socket.shutdown().await.unwrap();
    assert!(start.elapsed() < REST, "it waited for {:?}", start.elapsed());
    drop(client);
}
