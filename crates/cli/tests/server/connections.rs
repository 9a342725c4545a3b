//! More connections than there may be, of clients that send or read next to nothing: others are answered all the same.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ending::begin;
use super::http::{self, Reply};
use super::served::{Served, endless};

/// More than a server takes at once.
pub(crate) const CONNECTIONS: usize = 1100;
/// Patience of the server in these tests.
const PATIENCE: &str = "5";
/// A client would wait so long. Each of these attacks kept others out for 30 s or more.
const PROMPT: Duration = Duration::from_secs(15);

/// Whether this process may have so many connections, for some tests in parallel.
pub(crate) fn can_open_many() -> bool {
    let wanted = 6 * CONNECTIONS as u64;
    let files = machine::descriptors::ask_for(wanted);
    let can = files.is_none_or(|files| files >= wanted);
    if !can {
        println!("skipped: the system lets a program open {files:?} files, this needs {wanted}");
    }
    can
}

/// So many connections that send as much of this as is taken, and read nothing.
pub(crate) fn flood(served: &Served, count: usize, request: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = served.connect();
        stream.set_nonblocking(true).unwrap();
        let mut rest = request;
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It does not read, or has closed the connection already.
                Err(_) => break,
            }
        }
        stream
    };
    (0..count).map(connect).collect()
}

/// Checks that new connections are answered, whatever they request.
#[track_caller]
fn check_prompt(served: &Served) {
    let prompt = |what: &str, ask: &dyn Fn()| {
        let start = Instant::now();
        ask();
        assert!(start.elapsed() < PROMPT, "{what} took {:?}", start.elapsed());
    };
    for _ in 0..3 {
        prompt("/health", &|| assert_eq!(served.get("/health").good()["status"], "ok"));
        prompt("/metrics", &|| assert_eq!(served.get("/metrics").status, 200));
    }
    prompt("a chat", &|| served.check_answers());
    prompt("/health", &|| assert_eq!(served.get("/health").status, 200));
}

/// Connections that the server has open; none where the system does not report them.
fn open_connections(served: &Served) -> usize {
    let Ok(files) = std::fs::read_dir(format!("/proc/{}/fd", served.process())) else { return 0 };
    let targets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// Checks that the server closes them all by itself, but for those that it needs.
#[track_caller]
fn check_closed(served: &Served) {
    let start = Instant::now();
    while open_connections(served) > 20 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{} connections are open",
            open_connections(served)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn pipelines_that_are_not_read_do_not_keep_others_out() {
    if !can_open_many() {
        return;
    }
    let served = Served::start(&["--patience", PATIENCE]);
    let files = flood(&served, CONNECTIONS, &http::get("/style.css", &[]).repeat(600));
    check_prompt(&served);
    // More than may be open without a request slot.
    let numbers = flood(&served, CONNECTIONS / 3, &http::get("/metrics", &[]).repeat(200));
    check_prompt(&served);
    check_closed(&served);
    drop((files, numbers));
    served.check_answers();
}

#[test]
fn bodies_that_do_not_come_do_not_keep_others_out() {
    if !can_open_many() {
        return;
    }
    // With all the patience there is by default.
    let served = Served::start(&[]);
    let head = http::head("POST", "/v1/chat/completions", &[("content-length", "1000")]);
    let _attack = flood(&served, CONNECTIONS, (head + "\r\n{").as_bytes());
    check_prompt(&served);
}

#[test]
fn idle_connections_give_way_and_answers_do_not() {
    if !can_open_many() {
        return;
    }
    let served = Served::start(&[]);
    let mut stream = begin(&served, &endless(300));
    let _silent = flood(&served, CONNECTIONS / 2, b"");
    let _half = flood(&served, CONNECTIONS / 2, b"GET /health HTTP/1.1\r\nhost: ");
    check_prompt(&served);
    let mut last = String::new();
    while let Some(data) = stream.next_data().unwrap() {
        last = data;
    }
    assert_eq!(last, "[DONE]");
}

/// The address of this machine by which others reach it; none where it has but its own loop.
fn own_address() -> Option<IpAddr> {
    // Nothing is sent: the system only says from where it would be.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// One address has half of the request slots at most, however well it behaves on each connection.
#[test]
fn one_address_leaves_slots_to_others() {
    let Some(address) = own_address() else {
        println!("skipped: this machine has no address but its own loop");
        return;
    };
    if !can_open_many() {
        return;
    }
    let served = Served::start(&["--host", "0.0.0.0"]);
    let connect = |_| {
        let mut stream = TcpStream::connect((address, served.port)).unwrap();
        stream.set_nonblocking(true).unwrap();
        let head =
            http::head("POST", "/v1/chat/completions", &[("content-length", "60000")]) + "\r\n{";
        let _ = stream.write(head.as_bytes());
        stream
    };
    let mut attack: Vec<TcpStream> = (0..CONNECTIONS).map(connect).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A little faster than a body has to come.
            while !is_over.load(Ordering::Relaxed) {
                attack.iter_mut().for_each(|stream| drop(stream.write(&[b' '; 1280])));
                std::thread::sleep(Duration::from_millis(250));
            }
        });
        check_prompt(&served);
        is_over.store(true, Ordering::Relaxed);
    });
}

/// An answer that no buffers hold.
fn torrent(tokens: usize) -> Vec<u8> {
    let mut body = endless(tokens);
    body["logprobs"] = true.into();
    body["top_logprobs"] = 20.into();
    let close = [("connection", "close")];
    http::post("/v1/chat/completions", &close, body.to_string().as_bytes())
}

#[test]
fn a_client_that_reads_nothing_is_given_up_and_a_slow_one_is_not() {
    let served = Served::start(&["--patience", "2"]);
    let mut silent = served.connect();
    silent.write_all(&torrent(1000)).unwrap();
    let mut slow = served.send(&torrent(500)).into_socket();
    let mut answer = Vec::new();
    let mut piece = vec![0; 32 << 10];
    loop {
        std::thread::sleep(Duration::from_millis(100));
        match slow.read(&mut piece).unwrap() {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"), "{} bytes", answer.len());
    served.wait_for("requests_active", 0.0);
    let mut rest = Vec::new();
    // What was written may still come; the end does not.
    let _ = silent.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("data: [DONE]"), "it was not given up");
}

/// Seconds without a token are nothing that the client can help.
#[test]
fn a_slow_answer_is_no_slow_client() {
    let served = Served::start(&["--patience", "1", "--parallel", "1"]);
    let before = served.send(&torrent(1200));
    // It waits for longer than the patience, and reads all the while.
    let mut waiting = served.connect();
    waiting
        .write_all(&http::post("/v1/chat/completions", &[], endless(8).to_string().as_bytes()))
        .unwrap();
    let reader = std::thread::spawn(move || before.text());
    let text = Reply::read(waiting).unwrap().text();
    assert!(text.contains("data: [DONE]"), "{text}");
    assert!(reader.join().unwrap().contains("data: [DONE]"));
}

#[test]
fn pipelined_answers_come_in_order_and_complete() {
    const ROUNDS: usize = 120;
    let served = Served::start(&[]);
    let mut stream = served.connect();
    let mut requests = Vec::new();
    for index in 0..ROUNDS {
        requests.extend_from_slice(&http::get("/style.css", &[]));
        requests.extend_from_slice(&http::get(&format!("/nowhere/{index}"), &[]));
        requests.extend_from_slice(&http::post(
            "/tokenize",
            &[],
            format!("{{\"content\": \"{index}\"}}").as_bytes(),
        ));
    }
    requests.extend_from_slice(&http::get("/health", &[("connection", "close")]));
    stream.write_all(&requests).unwrap();
    // Far more than buffers hold waits to be read now.
    std::thread::sleep(Duration::from_millis(500));
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let all = String::from_utf8_lossy(&all);
    let mut from = 0;
    for index in 0..ROUNDS {
        let wanted = format!("there is no /nowhere/{index} here");
        from += all[from..].find(&wanted).unwrap_or_else(|| panic!("{wanted} is not in its place"));
    }
    assert_eq!(all.matches("HTTP/1.1 200").count(), 2 * ROUNDS + 1);
    assert!(all[from..].contains("\"status\":\"ok\""));
}

/// Out of files, the server closes connections that are idle for those that are new.
#[cfg(target_os = "linux")]
#[test]
fn a_server_without_files_still_takes_connections() {
    let served = Served::start(&[]);
    served.check_answers();
    let process = served.process().to_string();
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let limit = format!("--nofile={}:{}", open + 20, open + 20);
    let set = std::process::Command::new("prlimit").args(["--pid", &process, &limit]).status();
    if !set.is_ok_and(|status| status.success()) {
        println!("skipped: prlimit cannot be run");
        return;
    }
    let _idle: Vec<_> = (0..60).map(|_| served.connect()).collect();
    check_prompt(&served);
}
