//! `--memory` holds whatever is requested: requests that would take more are refused, and what they took is released.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::connections::{CONNECTIONS, can_open_many, flood};
use crate::http::{self, Reply};
use crate::served::{COLD, Served, question};
use crate::watched::{ANSWER_TOKENS, ANSWERS, Watched};

/// What connections may take together: the row of the plan, and as much again for what the server keeps of each.
const FLOOD_MIB: u64 = 32;
/// How long a client may have to wait for a request slot during a flood.
const GIVES_WAY: Duration = Duration::from_secs(15);

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";

/// Many small objects, about this many bytes of them.
fn objects(bytes: usize) -> String {
    format!("[{}]", vec!["{\"a\":0}"; bytes / 8].join(","))
}

fn chat_with(field: &str, json: &str) -> String {
    format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}],\"max_tokens\":1,\"{field}\":{json}}}"
    )
}

fn chat_of(messages: &str) -> String {
    format!("{{\"messages\":[{messages}],\"max_tokens\":1}}")
}

fn list(item: &str, count: usize) -> String {
    vec![item; count].join(",")
}

fn tool(parameters: &str) -> String {
    format!(
        "[{{\"type\":\"function\",\"function\":{{\"name\":\"f\",\"parameters\":{parameters}}}}}]"
    )
}

fn called(arguments: &str) -> String {
    let text = Value::from(arguments).to_string();
    chat_of(&format!(
        "{{\"role\":\"user\",\"content\":\"hi\"}},{{\"role\":\"assistant\",\"content\":null,\"tool_calls\":\
         [{{\"id\":\"c\",\"type\":\"function\",\"function\":{{\"name\":\"f\",\"arguments\":{text}}}}}]}}"
    ))
}

/// One server for all of them: to fill a context takes longer than most of what is done with it.
#[test]
fn requests_one_after_another_take_no_more_than_the_memory() {
    let watched = Watched::start();
    no_request_takes_more_than_the_memory(&watched);
    floods_of_connections_take_no_more_than_is_planned_for_them(&watched);
    unfinished_bodies_take_no_more_than_the_memory(&watched);
    requests_within_the_budget_take_no_more_than_the_memory_together(&watched);
    requests_of_agents_pass(&watched);
}

fn no_request_takes_more_than_the_memory(watched: &Watched) {
    let many = objects(2_000_000);
    let schema = format!("{{\"type\":\"object\",\"x\":{many}}}");
    let properties: String =
        (0..40_000).map(|index| format!("\"p{index}\":{{\"type\":\"string\"}},")).collect();
    let wide =
        format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", properties.trim_end_matches(','));
    let format = |schema: &str| {
        let format = format!(
            "{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"n\",\"schema\":{schema}}}}}"
        );
        chat_with("response_format", &format)
    };
    let spaces = " ".repeat(30_000_000);
    let bias: Vec<String> = (0..1_000_000).map(|token| format!("\"{token}\":1")).collect();
    let image = format!("data:image/png;base64,{}", "A".repeat(20_000_000));
    let user = |content: &str| format!("{{\"role\":\"user\",\"content\":{content}}}");
    let text = |text: &str| Value::from(text).to_string();
    let object = |bytes: usize| format!("{{\"x\":{}}}", objects(bytes));
    let bodies = [
        ("arguments of 6 MB", CHAT, called(&object(6_000_000))),
        ("arguments of 30 MB", CHAT, called(&object(22_000_000))),
        ("variables", CHAT, chat_with("chat_template_kwargs", &format!("{{\"x\":{many}}}"))),
        ("tools", CHAT, chat_with("tools", &tool(&schema))),
        ("wide tools", CHAT, chat_with("tools", &tool(&wide))),
        ("a schema", CHAT, format(&schema)),
        ("a wide schema", CHAT, format(&wide)),
        ("a schema as text", CHAT, chat_with("guided_json", &text(&schema))),
        (
            "a grammar",
            CHAT,
            chat_with("guided_grammar", &text(&format!("start: {}", list("\"a\" | ", 100_000)))),
        ),
        (
            "JSON in a grammar",
            CHAT,
            chat_with(
                "guided_grammar",
                &text(&format!("start: %json {{\"enum\":{}}}", objects(250_000))),
            ),
        ),
        ("an expression", CHAT, chat_with("guided_regex", &text(&"(a|b)?".repeat(500_000)))),
        (
            "depth",
            CHAT,
            chat_with("x", &format!("{}{}", "[".repeat(5_000_000), "]".repeat(5_000_000))),
        ),
        (
            "depth of many",
            CHAT,
            chat_with("x", &format!("[{}]", list("[[[[[[[[0]]]]]]]]", 300_000))),
        ),
        ("stop texts", CHAT, chat_with("stop", &format!("[{}]", list("\"a\"", 1_000_000)))),
        ("biases", CHAT, chat_with("logit_bias", &format!("{{{}}}", bias.join(",")))),
        ("messages", CHAT, chat_of(&list(&user("\"a\""), 200_000))),
        (
            "parts",
            CHAT,
            chat_of(&user(&format!("[{}]", list("{\"type\":\"text\",\"text\":\"a\"}", 300_000)))),
        ),
        ("spaces", CHAT, chat_of(&user(&text(&spaces)))),
        (
            "an image",
            CHAT,
            chat_of(&user(&format!(
                "[{{\"type\":\"image_url\",\"image_url\":{{\"url\":\"{image}\"}}}}]"
            ))),
        ),
        (
            "blocks",
            MESSAGES,
            format!(
                "{{\"max_tokens\":1,\"messages\":[{}]}}",
                user(&format!("[{}]", list("{\"type\":\"text\",\"text\":\"a\"}", 300_000)))
            ),
        ),
        (
            "inputs",
            MESSAGES,
            format!(
                "{{\"max_tokens\":1,\"messages\":[{},{{\"role\":\"assistant\",\"content\":[{{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":{}}}]}}]}}",
                user("\"hi\""),
                object(6_000_000)
            ),
        ),
        (
            "Anthropic's spaces",
            "/v1/messages/count_tokens",
            format!("{{\"messages\":[{}]}}", user(&text(&spaces))),
        ),
        (
            "Ollama's messages",
            OLLAMA,
            format!("{{\"messages\":[{}]}}", list(&user("\"a\""), 200_000)),
        ),
        ("Ollama's prompt", "/api/generate", format!("{{\"prompt\":{}}}", text(&spaces))),
        ("a prompt", COMPLETIONS, format!("{{\"prompt\":{}}}", text(&"word ".repeat(6_000_000)))),
        ("a prompt of tokens", COMPLETIONS, format!("{{\"prompt\":[{}]}}", list("5", 5_000_000))),
        ("items", RESPONSES, format!("{{\"input\":[{}]}}", list(&user("\"a\""), 200_000))),
        (
            "text to tokens",
            "/tokenize",
            format!("{{\"content\":{},\"with_pieces\":true}}", text(&"word ".repeat(6_000_000))),
        ),
        (
            "dense text to tokens",
            "/tokenize",
            format!("{{\"content\":{},\"with_pieces\":true}}", text(&"aé世".repeat(2_000))),
        ),
        ("tokens to text", "/detokenize", format!("{{\"tokens\":[{}]}}", list("5", 5_000_000))),
        ("a template", "/apply-template", chat_of(&user(&text(&"word ".repeat(1_000_000))))),
        ("nothing but brackets", "/v1/embeddings", list("[[],[],[]]", 1_000_000)),
    ];
    let mut refused = 0;
    for (about, path, body) in &bodies {
        refused += usize::from(watched.send(path, body, about) != 200);
    }
    assert!(refused > bodies.len() / 2, "{refused} of {} were refused", bodies.len());
    watched.check_returned();
}

fn requests_within_the_budget_take_no_more_than_the_memory_together(watched: &Watched) {
    // As large as one may be, or nearly so.
    let sizes = [100_000, 200_000, 300_000, 400_000];
    let body = |bytes: usize| {
        [
            called(&format!("{{\"x\":{}}}", objects(bytes / 8))),
            chat_with("chat_template_kwargs", &format!("{{\"x\":{}}}", objects(bytes / 8))),
            chat_of(&format!("{{\"role\":\"user\",\"content\":{}}}", json!("word ".repeat(bytes)))),
        ]
    };
    let bodies: Vec<String> = sizes.into_iter().flat_map(body).collect();
    std::thread::scope(|scope| {
        for body in &bodies {
            scope.spawn(move || {
                for _ in 0..2 {
                    watched.send(CHAT, body, "many at once");
                }
            });
        }
    });
    watched.check_returned();
}

#[test]
fn grammars_take_no_more_than_the_memory() {
    let watched = Watched::start().after_many_answers();
    let pattern = |index: usize| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{}}}$", 50 + index)});
    let properties = |count: usize| -> serde_json::Map<String, Value> {
        (0..count).map(|index| (format!("p{index}"), pattern(index))).collect()
    };
    let schema = |count: usize| json!({"type": "object", "properties": properties(count), "required": ["p0"]});
    let hello = json!([{"role": "user", "content": "hi"}]);
    let ask = |index: usize| {
        let mut body = json!({"messages": hello, "max_tokens": ANSWER_TOKENS, "n": ANSWERS});
        match index % 3 {
            0 => body["guided_json"] = schema(40 + index),
            1 => body["guided_regex"] = json!(format!("(a|b)*a(a|b){{{}}}", 500 + index)),
            _ => {
                body["tools"] = json!([{"type": "function", "function": {"name": format!("f{index}"),
                    "parameters": schema(60)}}]);
                body["tool_choice"] = "required".into();
            }
        }
        body.to_string()
    };
    let watched = &watched;
    std::thread::scope(|scope| {
        for index in 0..12 {
            let body = ask(index);
            scope.spawn(move || watched.send(CHAT, &body, "many grammars"));
        }
    });
    watched.check_returned();
}

fn unfinished_bodies_take_no_more_than_the_memory(watched: &Watched) {
    for (bytes, announced) in [(31_000_000, true), (9_000_000, true), (31_000_000, false)] {
        let framing = if announced {
            format!("content-length: {bytes}\r\n")
        } else {
            "transfer-encoding: chunked\r\n".to_owned()
        };
        let start = || -> TcpStream {
            let mut stream = watched.served.connect();
            let head = format!("{}{framing}\r\n", http::head("POST", CHAT, &[]));
            let chunk = format!("{:x}\r\n", bytes - 1);
            let chunk = if announced { "" } else { chunk.as_str() };
            // All but the last byte; one that was refused may not read it.
            let sent =
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(chunk.as_bytes()));
            let part = vec![b' '; 1_000_000];
            let mut left = if sent.is_ok() { bytes - 1 } else { 0 };
            while left > 0 && stream.write_all(&part[..left.min(part.len())]).is_ok() {
                left = left.saturating_sub(part.len());
            }
            stream
        };
        let bodies: Vec<TcpStream> = (0..80).map(|_| start()).collect();
        watched.check_peak("unfinished bodies");
        // A quarter of what there is for requests is for small ones.
        watched.served.check_answers();
        drop(bodies);
        watched.check_returned();
    }
}

fn requests_of_agents_pass(watched: &Watched) {
    // They are too long for Pebble: that is said, and not that they are too heavy.
    let property = json!({"type": "string", "description": "What to look for, as an expression."});
    let tool = |index: usize| {
        json!({"type": "function", "function": {"name": format!("tool_{index}"), "description": "Finds. ".repeat(40),
            "parameters": {"type": "object", "required": ["a"], "properties": {"a": property, "b": property, "c": property}}}})
    };
    let turn = json!({"role": "assistant", "content": "I shall look. ".repeat(40), "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "tool_1", "arguments": "{\"a\": \"x\"}"}}]});
    let result =
        json!({"role": "tool", "tool_call_id": "c", "content": "fn main() {}\n".repeat(40)});
    let mut messages = vec![json!({"role": "user", "content": "hi"})];
    (0..120).for_each(|_| messages.extend([turn.clone(), result.clone()]));
    let tools: Vec<Value> = (0..60).map(tool).collect();
    let long = json!({"messages": messages, "tools": tools, "max_tokens": 1});
    assert!(long.to_string().len() > 150_000);
    let reply = watched.served.post(CHAT, &long);
    let (status, text) = (reply.status, reply.text());
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("context_length_exceeded"), "{text}");
    // Several of ordinary length at once, each as soon as it comes.
    let few = json!({"messages": [{"role": "user", "content": "word ".repeat(300)}],
        "tools": tools[..12], "max_tokens": 1});
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let send = || scope.spawn(|| watched.served.post(CHAT, &few).status);
        let sent: Vec<_> = (0..12).map(|_| send()).collect();
        sent.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses, [200; 12]);
    watched.check_peak("requests of agents");
}

#[test]
fn a_small_request_does_not_wait_for_large_ones() {
    let served = Served::start(&["--memory", "6G"]);
    let large =
        json!({"messages": [{"role": "user", "content": " ".repeat(6_000_000)}], "max_tokens": 1});
    let large = http::post("/v1/messages/count_tokens", &[], large.to_string().as_bytes());
    let mut clients: Vec<TcpStream> = (0..6).map(|_| served.connect()).collect();
    clients.iter_mut().for_each(|client| client.write_all(&large).unwrap());
    // All were sent before, and it is answered before most of them are.
    served.check_answers();
    clients.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    let is_answered = |client: &&TcpStream| client.peek(&mut [0]).is_ok();
    let answered = clients.iter().filter(is_answered).count();
    assert!(answered <= 3, "{answered} large requests were answered first");
    for client in clients {
        client.set_nonblocking(false).unwrap();
        let reply = Reply::read(client).unwrap();
        assert!(matches!(reply.status, 200 | 400), "{}", reply.status);
    }
}

/// However a body comes, it is as large as it is: one that does not state its length is not small for that.
#[test]
fn bodies_of_30_megabytes_do_not_hold_small_requests_up() {
    const PROMPT: Duration = Duration::from_secs(3);
    let served = Served::start(&["--memory", "6G"]);
    let spaces =
        json!({"messages": [{"role": "user", "content": " ".repeat(30_000_000)}], "max_tokens": 1});
    let (spaces, path) = (spaces.to_string(), "/v1/messages/count_tokens");
    let mut chunked = http::head("POST", path, &[("transfer-encoding", "chunked")]) + "\r\n";
    chunked.push_str(&format!("{:x}\r\n{spaces}\r\n0\r\n\r\n", spaces.len()));
    for large in [http::post(path, &[], spaces.as_bytes()), chunked.into_bytes()] {
        let is_over = AtomicBool::new(false);
        let median = std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        // Refused, the rest of it may find nothing that reads.
                        let Some(reply) = http::exchange(served.port, &large) else { continue };
                        assert!(matches!(reply.status, 200 | 400 | 413 | 503), "{}", reply.status);
                    }
                });
            }
            let small = || {
                let start = Instant::now();
                served.check_answers();
                start.elapsed()
            };
            let mut times: Vec<Duration> = (0..5).map(|_| small()).collect();
            is_over.store(true, Ordering::Relaxed);
            times.sort();
            times[2]
        });
        assert!(median < PROMPT, "{median:?} for a small request");
    }
}

fn floods_of_connections_take_no_more_than_is_planned_for_them(watched: &Watched) {
    if !can_open_many() {
        return;
    }
    let head = |bytes: usize| http::head("GET", "/health", &[("x-long", &"x".repeat(bytes))]);
    for (about, request) in [
        ("unfinished heads", head(15 << 10).into_bytes()),
        ("unfinished heads that are too long", head(60 << 10).into_bytes()),
        ("answers that are not read", http::get("/style.css", &[]).repeat(600)),
    ] {
        let before = watched.served.resident_bytes().0;
        let attack = flood(&watched.served, CONNECTIONS, &request);
        // Connections of slow clients of the same address are closed, a moment later.
        let start = Instant::now();
        while watched.served.post(CHAT, &question(COLD)).status == 503 {
            assert!(start.elapsed() < GIVES_WAY, "no answer during {about}");
            std::thread::sleep(Duration::from_millis(250));
        }
        let more = watched.served.resident_bytes().0.saturating_sub(before) >> 20;
        assert!(more <= FLOOD_MIB, "{more} MiB for {about}");
        watched.check_peak(about);
        drop(attack);
        watched.check_returned();
    }
}

#[test]
fn a_body_that_stops_coming_is_given_up() {
    let served = Served::start(&[]);
    let start = Instant::now();
    let mut slow = served.connect();
    let head = http::head("POST", CHAT, &[("content-length", "1000")]) + "\r\n{";
    slow.write_all(head.as_bytes()).unwrap();
    assert_eq!(Reply::read(slow).unwrap().status, 408);
    assert!(start.elapsed() < Duration::from_secs(20), "after {:?}", start.elapsed());
}
