//! Many clients at once, a third of them disconnecting: no client gets an error or another answer than alone.
//!
//! The pool is so small that requests queue and are preempted, which must show in nothing but time. Answers
//! are greedy, so that each can be compared with the same request on an idle server.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{self, Reply};
use super::served::{Served, endless, question};
use super::turns::sentences;

const CLIENTS: u64 = 64;
const MEMORY_MIB: u64 = 266;
/// Of Pebble's layers, those with keys and values.
const ATTENTION_LAYERS: f64 = 2.0;

/// A whole answer as it was streamed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: String,
    finish: String,
    completion_tokens: u64,
}

/// How a request went.
enum Outcome {
    Answered(Answer),
    /// We left.
    Left,
}

/// What a client is connected by now.
type Connection = Mutex<Option<TcpStream>>;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Different requests: short and long prompts and answers, thinking, tools, structure.
fn requests() -> Vec<Value> {
    let mut bodies = Vec::new();
    for (index, topic) in
        ["fox", "lantern", "sailor", "garden", "storm", "mouse"].iter().enumerate()
    {
        let mut story = question(&format!("Tell me a story about a {topic}."));
        story["max_tokens"] = (20 + 20 * index).into();
        bodies.push(story);
        bodies.push(question(&format!("What is {} + {}?", 17 * index, 25 + index)));
        let mut thinking = question(&format!("What is {} + {}?", 31 * index, 14 + index));
        thinking["enable_thinking"] = true.into();
        thinking["max_tokens"] = 200.into();
        bodies.push(thinking);
        // About 10 tokens a sentence: up to 1,500 tokens.
        let text = sentences(25 * (index + 1));
        let mut long = question(&format!(
            "Text:\n\n{text}The code of the {topic} is 30{index}6.\n\nWhat is the code of the {topic}?"
        ));
        long["max_tokens"] = 40.into();
        bodies.push(long);
    }
    for topic in ["fox", "sailor", "storm"] {
        // Longer than is reckoned with when it is admitted: it, or a younger one, is preempted.
        let mut saga = endless(500);
        saga["messages"][0]["content"] = format!("Tell me all about a {topic}.").into();
        bodies.push(saga);
    }
    for stock in ["RMHF", "SBB"] {
        let mut tool = question(&format!("What is the stock price of {stock}?"));
        tool["tools"] = json!([{"type": "function", "function": {"name": "stock_price", "parameters": {
            "type": "object", "properties": {"stock": {"type": "string"}}, "required": ["stock"]}}}]);
        bodies.push(tool);
        let mut structured = question(&format!(
            "{stock} is 81 years old and lives in Prague. Return name and city as JSON."
        ));
        structured["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": {
            "type": "object", "required": ["name", "city"], "additionalProperties": false,
            "properties": {"name": {"type": "string", "maxLength": 20}, "city": {"enum": ["Prague", "Rome"]}}}}});
        structured["max_tokens"] = 300.into();
        bodies.push(structured);
    }
    for body in &mut bodies {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    bodies
}

/// Sends a request, and reads the whole stream or disconnects after so many events. The connection can be ended from outside.
fn ask(
    port: u16,
    body: &Value,
    leave_after: Option<u64>,
    connection: &Connection,
) -> Result<Outcome, String> {
    let mut stream = http::connect(port);
    *connection.lock().unwrap() = Some(stream.try_clone().unwrap());
    let request = http::post("/v1/chat/completions", &[], body.to_string().as_bytes());
    stream.write_all(&request).map_err(|error| error.to_string())?;
    if leave_after == Some(0) {
        return Ok(Outcome::Left);
    }
    let reply = Reply::read(stream).ok_or("no reply")?;
    if reply.status != 200 {
        let status = reply.status;
        return Err(format!("{status}: {}", reply.text()));
    }
    let mut events = reply.events();
    let mut answer = Answer::default();
    for count in 1.. {
        if leave_after.is_some_and(|most| count > most) {
            return Ok(Outcome::Left);
        }
        let data = events.next_data().map_err(|error| error.to_string())?;
        let data = data.ok_or("the stream ended without [DONE]")?;
        if data == "[DONE]" {
            break;
        }
        let chunk: Value =
            serde_json::from_str(&data).map_err(|error| format!("{error}: {data}"))?;
        if chunk.get("error").is_some() {
            return Err(data);
        }
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            answer.completion_tokens = tokens;
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        answer.content.push_str(delta["content"].as_str().unwrap_or_default());
        answer.reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            answer.calls.push_str(function["name"].as_str().unwrap_or_default());
            answer.calls.push_str(function["arguments"].as_str().unwrap_or_default());
        }
        answer.finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    Ok(Outcome::Answered(answer))
}

#[test]
fn many_clients_get_what_each_would_get_alone() {
    check(60, &[]);
}

#[test]
fn so_they_do_when_experts_come_from_the_disk() {
    let streaming = check(15, &["--stream-experts", "always"]);
    assert_eq!(streaming.get("/health").good()["mode"], "streaming");
}

/// How many times as long a busy machine may take.
const LONGEST_TIMES: u64 = 10;

/// Runs clients for so many seconds, or minutes in the long tests. The server has a pool of 4,096 positions for
/// eight requests at once.
#[track_caller]
fn check(seconds: u64, more: &[&str]) -> Served {
    let is_long = std::env::var_os("MILLSTREAM_LONG_TESTS").is_some();
    let seconds = if is_long { 5 * seconds } else { seconds };
    let memory = format!("{MEMORY_MIB}M");
    let options = ["--parallel", "8", "--context", "4096", "--memory", &memory, "--queue", "64"];
    let served = Served::start(&[&options, more].concat());
    let bodies = requests();
    let alone: Vec<Answer> = bodies
        .iter()
        .map(|body| match ask(served.port, body, None, &Connection::default()) {
            Ok(Outcome::Answered(answer)) => answer,
            Ok(Outcome::Left) => unreachable!("no client was to disconnect"),
            Err(error) => panic!("{error} to {body}"),
        })
        .collect();
    for (answer, body) in alone.iter().zip(&bodies) {
        assert!(answer.completion_tokens > 0 && !answer.finish.is_empty(), "{answer:?} to {body}");
    }

    let (answered, left) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    let is_over = AtomicBool::new(false);
    let mut resident = Vec::new();
    let connections: Vec<Connection> = (0..CLIENTS).map(|_| Connection::default()).collect();
    let client = |number: u64| {
        let mut random = Random(number);
        while !is_over.load(Ordering::Acquire) {
            let index = random.below(bodies.len() as u64) as usize;
            let leave_after = (random.below(3) == 0).then(|| random.below(40));
            match ask(served.port, &bodies[index], leave_after, &connections[number as usize]) {
                Ok(Outcome::Answered(answer)) if answer == alone[index] => {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Outcome::Answered(answer)) => {
                    return Err(format!(
                        "alone {:?}, now {answer:?} to {}",
                        alone[index], bodies[index]
                    ));
                }
                Ok(Outcome::Left) => {
                    left.fetch_add(1, Ordering::Relaxed);
                }
                // All leave at once at the end.
                Err(_) if is_over.load(Ordering::Acquire) => {}
                Err(error) => return Err(format!("{error} to {}", bodies[index])),
            }
        }
        Ok(())
    };
    let client = &client;
    let failures: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        // A busy machine gets the time that it needs for enough answers to have been many at once.
        let is_enough =
            || answered.load(Ordering::Relaxed) >= 8 && left.load(Ordering::Relaxed) >= 4;
        let is_long = |times: u64| start.elapsed() >= Duration::from_secs(times * seconds);
        while !is_long(1) || !(is_enough() || is_long(LONGEST_TIMES)) {
            resident.push((start.elapsed().as_secs_f64(), served.resident_bytes().0));
            std::thread::sleep(Duration::from_millis(250));
        }
        is_over.store(true, Ordering::Release);
        for connection in connections.iter().filter_map(|one| one.lock().unwrap().take()) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        clients.into_iter().filter_map(|client| client.join().unwrap().err()).collect()
    });
    assert!(
        failures.is_empty(),
        "{} clients of {CLIENTS} failed; the first: {}",
        failures.len(),
        failures[0]
    );

    let total = start.elapsed().as_secs_f64();
    let most = |from: f64, to: f64| {
        let within = resident.iter().filter(|(at, _)| (from..to).contains(&(at / total)));
        within.map(|(_, bytes)| *bytes).max().unwrap_or_default()
    };
    let (early, late, peak) = (most(0.25, 0.5), most(0.75, 1.0), served.resident_bytes().1);
    let set_back = served.metric("requests_preempted_total");
    println!(
        "{} answered, {} left, {set_back} preempted in {total:.0} s; resident {early} bytes, later {late}, at most {peak}",
        answered.load(Ordering::Relaxed),
        left.load(Ordering::Relaxed),
    );
    assert!(peak <= MEMORY_MIB << 20, "{peak} bytes were resident, --memory is {memory}");
    assert!(late <= early + early / 20, "memory grows: {early} bytes, later {late}");
    assert!(answered.load(Ordering::Relaxed) >= 8 && left.load(Ordering::Relaxed) >= 4);

    served.wait_for("requests_active", 0.0);
    served.wait_for("requests_waiting", 0.0);
    assert_eq!(served.metric("requests_refused_total"), 0.0);
    assert_eq!(served.metric("requests_failed_total"), 0.0);
    // What is not free belongs to the cache: a state for each of its entries, and no more pages than they list.
    let held = |what: &str| served.metric(what) - served.metric(&format!("{what}_free"));
    let (entries, tokens) = (served.metric("cache_entries"), served.metric("cache_tokens"));
    assert_eq!(held("states"), entries, "states are lost");
    assert!(held("pages") <= ATTENTION_LAYERS * (tokens / 64.0 + entries), "pages are lost");
    served.check_answers();
    served
}

#[test]
fn a_preempted_request_continues_unchanged() {
    let served = Served::start(&["--parallel", "8", "--context", "1024", "--memory", "276M"]);
    // Longer than is reckoned with when it is admitted, and together more than the pool holds.
    let saga = |number: usize| {
        let mut body = endless(600);
        body["messages"][0]["content"] = format!("Tell me story {number}.").into();
        body
    };
    let ask = |body: &Value| match ask(served.port, body, None, &Connection::default()) {
        Ok(Outcome::Answered(answer)) => answer,
        Ok(Outcome::Left) => unreachable!("no client was to disconnect"),
        Err(error) => panic!("{error}"),
    };
    let bodies: Vec<Value> = (0..6).map(saga).collect();
    let together: Vec<Answer> = std::thread::scope(|scope| {
        let clients: Vec<_> = bodies.iter().map(|body| scope.spawn(|| ask(body))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert!(served.metric("requests_preempted_total") > 0.0, "the pool is too large for this test");
    for (body, answer) in bodies.iter().zip(&together).take(3) {
        assert_eq!(*answer, ask(body));
    }
}

#[test]
fn one_more_than_may_wait_gets_a_retry_after() {
    let served = Served::start(&["--parallel", "1", "--queue", "2"]);
    let body = endless(2000);
    let request = http::post("/v1/chat/completions", &[], body.to_string().as_bytes());
    let taken: Vec<_> = (0..3).map(|_| served.send(&request)).collect();
    assert!(taken.iter().all(|reply| reply.status == 200));
    for (path, kind) in
        [("/v1/chat/completions", "openai"), ("/v1/messages", "anthropic"), ("/api/chat", "ollama")]
    {
        let refused = served.post(path, &question("x"));
        assert_eq!(refused.status, 503);
        assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        let error = refused.json();
        match kind {
            "openai" => assert_eq!(error["error"]["code"], "queue_full"),
            "anthropic" => assert_eq!(error["error"]["type"], "overloaded_error"),
            _ => assert!(error["error"].is_string()),
        }
    }
    drop(taken);
    served.wait_for("requests_active", 0.0);
    served.wait_for("requests_waiting", 0.0);
    served.check_answers();
    assert_eq!(served.metric("requests_refused_total"), 3.0);
}

#[test]
fn each_answer_takes_a_place() {
    let served = Served::start(&["--parallel", "1", "--queue", "4"]);
    let wanting = |answers: usize| {
        let mut body = endless(2000);
        body["n"] = answers.into();
        served.post("/v1/chat/completions", &body)
    };
    // It is alone, and may want more than there are places.
    let all = wanting(16);
    assert_eq!(all.status, 200);
    assert_eq!(wanting(1).status, 503);
    // Until the engine has taken it up, the numbers are those from before.
    served.wait_for("requests_active", 1.0);
    drop(all);
    served.wait_for("requests_active", 0.0);
    served.wait_for("requests_waiting", 0.0);
    let three = wanting(3);
    assert_eq!(three.status, 200);
    assert_eq!(wanting(3).status, 503);
    let two = wanting(2);
    assert_eq!(two.status, 200);
    assert_eq!(wanting(1).status, 503);
    assert_eq!(served.metric("requests_refused_total"), 3.0);
    drop((three, two));
    served.wait_for("requests_active", 0.0);
    served.wait_for("requests_waiting", 0.0);
    served.check_answers();
}

#[test]
fn a_short_answer_does_not_wait_for_all_answers_to_another() {
    let served = Served::start(&["--parallel", "1"]);
    let mut many = endless(400);
    many["n"] = 16.into();
    let many = served.post("/v1/chat/completions", &many);
    assert_eq!(many.status, 200);
    served.check_answers();
    // The others have hardly begun.
    assert!(served.metric("requests_waiting") >= 8.0);
    drop(many);
    served.wait_for("requests_waiting", 0.0);
}

#[test]
fn a_client_that_left_the_queue_gives_its_place_back() {
    let served = Served::start(&["--parallel", "1", "--queue", "1"]);
    let body = endless(3000).to_string();
    let request = http::post("/v1/chat/completions", &[], body.as_bytes());
    let first = served.send(&request);
    assert_eq!(first.status, 200);
    for _ in 0..20 {
        // Each waits behind the first, and leaves.
        let mut waiting = served.connect();
        waiting.write_all(&request).unwrap();
        let start = Instant::now();
        while served.metric("requests_waiting") != 1.0 {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not wait");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(waiting);
        served.wait_for("requests_waiting", 0.0);
    }
    drop(first);
    served.check_answers();
}
