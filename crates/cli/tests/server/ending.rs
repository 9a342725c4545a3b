//! How a server begins and ends: loading is said, answers under way finish, the deadline holds.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::http::{self, Events, Reply};
use super::served::{COLD, HOT, Served, endless, question};

/// Long enough for any answer here on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A stream whose first event is there.
#[track_caller]
pub(crate) fn begin(served: &Served, body: &Value) -> Events {
    let mut stream = served.connect();
    stream
        .write_all(&http::post("/v1/chat/completions", &[], body.to_string().as_bytes()))
        .unwrap();
    let reply = Reply::read(stream).unwrap();
    assert_eq!(reply.status, 200);
    let mut events = reply.events();
    assert!(events.next_data().unwrap().is_some());
    events
}

/// The rest of a stream: its last event with a choice, and whether it ended as it should.
fn finish(mut events: Events) -> (Option<Value>, bool) {
    let mut last = None;
    while let Ok(Some(data)) = events.next_data() {
        if data == "[DONE]" {
            return (last, true);
        }
        last = Some(serde_json::from_str(&data).unwrap());
    }
    (last, false)
}

#[test]
fn the_ready_line_says_what_a_parent_needs() {
    let served = Served::start(&["--parallel", "3", "--context", "1024"]);
    let ready = &served.ready;
    assert_eq!(
        (&ready["model"], &ready["parallel"], &ready["context"]),
        (&"pebble".into(), &3.into(), &1024.into())
    );
    let health = served.get("/health").good();
    assert_eq!(health["status"], "ok", "{health}");
    served.check_answers();
}

#[test]
fn a_signal_lets_answers_finish_and_takes_no_more() {
    let served = Served::start(&["--drain", "600"]);
    let streams: Vec<Events> = (0..3).map(|_| begin(&served, &endless(400))).collect();
    served.signal("TERM");
    // New connections are now refused, by the server or by the system.
    let refused = |served: &Served| match TcpStream::connect(("127.0.0.1", served.port)) {
        Err(_) => true,
        Ok(mut stream) => {
            let request =
                http::post("/v1/chat/completions", &[], question(COLD).to_string().as_bytes());
            let _ = stream.write_all(&request);
            Reply::read(stream).is_none_or(|reply| reply.status == 503)
        }
    };
    let start = std::time::Instant::now();
    while !refused(&served) {
        assert!(start.elapsed() < SOON, "requests are still taken");
    }
    for stream in streams {
        let (last, done) = finish(stream);
        assert!(done, "a stream was cut");
        assert_eq!(last.unwrap()["choices"][0]["finish_reason"], "length");
    }
    let (status, said) = served.wait(SOON);
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn whole_answers_finish_too() {
    let served = Served::start(&["--drain", "600"]);
    let mut body = endless(400);
    body["stream"] = false.into();
    let mut stream = served.connect();
    stream
        .write_all(&http::post("/v1/chat/completions", &[], body.to_string().as_bytes()))
        .unwrap();
    served.wait_for("requests_active", 1.0);
    served.signal("INT");
    let answer = Reply::read(stream).unwrap().good();
    assert_eq!(answer["usage"]["completion_tokens"], 400);
    let (status, said) = served.wait(SOON);
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn the_deadline_ends_what_does_not_finish() {
    let served = Served::start(&["--drain", "1"]);
    // More than a debug build writes in a second.
    let mut body = endless(3500);
    body["n"] = 8.into();
    let stream = begin(&served, &body);
    served.signal("TERM");
    let (status, said) = served.wait(SOON);
    assert_eq!(status.code(), Some(0), "{said}");
    let (_, done) = finish(stream);
    assert!(!done || said.contains("deadline"), "it should not have had the time:\n{said}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let served = Served::start(&["--drain", "600"]);
    let mut body = endless(3500);
    body["n"] = 8.into();
    let _stream = begin(&served, &body);
    served.signal("TERM");
    std::thread::sleep(Duration::from_millis(200));
    served.signal("TERM");
    let (status, said) = served.wait(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn a_port_in_use_is_reported_before_anything_is_loaded() {
    let served = Served::start(&[]);
    let port = served.port.to_string();
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["serve", "--port", &port])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(second.stdout.is_empty());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains(&port) && said.contains("hint: --port 0"), "{said}");
    assert_eq!(served.chat(&question(COLD))["choices"][0]["message"]["content"], HOT);
}

/// A log on a full disk, or whose reader has ended, costs a line and nothing else: not a request, not the deadline.
#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_costs_nothing() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let options = ["-v", "--drain", "1"];
    let served = Served::start_logging(&options, tempfile::tempdir().unwrap(), full);
    assert_eq!(served.get("/health").good()["status"], "ok");
    served.check_answers();
    let mut body = endless(3500);
    body["n"] = 8.into();
    let _stream = begin(&served, &body);
    served.signal("TERM");
    let (status, _) = served.wait(SOON);
    assert_eq!(status.code(), Some(0));
}
