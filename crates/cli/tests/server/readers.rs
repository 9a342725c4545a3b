//! Backpressure: clients that read slowly or not at all pause their own answer and no other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::http::{self, Reply};
use super::served::{Served, endless};

/// An answer of so many bytes that no system buffers hold it.
fn torrent() -> Value {
    let mut body = endless(1000);
    body["logprobs"] = true.into();
    body["top_logprobs"] = 20.into();
    body
}

/// Requests a very long answer and reads the head of the reply.
#[track_caller]
fn open(served: &Served) -> TcpStream {
    let mut stream = served.connect();
    let body = torrent().to_string();
    let request = http::post("/v1/chat/completions", &[("connection", "close")], body.as_bytes());
    stream.write_all(&request).unwrap();
    let reply = Reply::read(stream).unwrap();
    assert_eq!(reply.status, 200);
    reply.into_socket()
}

#[test]
fn as_many_slow_readers_as_slots_delay_no_other_request() {
    let served = Served::start(&["--parallel", "2"]);
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (mut stream, stop) = (open(&served), Arc::clone(&stop));
            std::thread::spawn(move || {
                // A byte a second, until stopped.
                while !stop.load(Ordering::Relaxed) {
                    stream.read_exact(&mut [0]).unwrap();
                    for _ in 0..20 {
                        if !stop.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(50));
                        }
                    }
                }
                stream
            })
        })
        .collect();
    served.wait_for("pauses_total", 2.0);
    // They have all places, and yet others are answered.
    for _ in 0..10 {
        served.check_answers();
    }
    assert_eq!(served.metric("requests_paused"), 2.0);
    // A client that continues to read gets the rest.
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        let mut stream = reader.join().unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(
            String::from_utf8_lossy(&rest).contains("data: [DONE]"),
            "{} bytes came",
            rest.len()
        );
    }
    served.wait_for("requests_active", 0.0);
}

#[test]
fn a_client_that_disconnects_while_paused_frees_everything() {
    let served = Served::start(&["--parallel", "2"]);
    let streams = [open(&served), open(&served)];
    served.wait_for("pauses_total", 2.0);
    drop(streams);
    served.wait_for("requests_active", 0.0);
    served.check_answers();
}
