//! `--memory` holds whatever is asked: requests that would take more are refused, and what they took is given back.

use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::group::Group;
use crate::http::{self, Reply};
use crate::served::{Served, question};

const MEMORY_MIB: u64 = 500;
/// What the kernel has to leave besides: page tables, file cache.
const ALLOWANCE_MIB: u64 = 64;
/// What a server may keep more of after hostile requests than after an ordinary one.
const KEPT_MIB: u64 = 32;
const PATIENCE: Duration = Duration::from_secs(60);
/// The most answers to one request, and their length in tests of many answers.
const ANSWERS: usize = 16;
const ANSWER_TOKENS: usize = 40;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";

/// A server in a control group, and what it holds after a request that fills the context.
struct Watched {
    // Before the group: that can only be removed when it is empty.
    served: Served,
    group: Group,
    usual_bytes: u64,
}

impl Watched {
    fn start() -> Option<Watched> {
        let group = Group::new((MEMORY_MIB + ALLOWANCE_MIB) << 20)?;
        let memory = format!("{MEMORY_MIB}M");
        let served = Served::start_in(&group, &["--memory", &memory]);
        // 6,000 words and their answer, of 8,192 tokens.
        let mut full = question(&"word ".repeat(6000));
        full["max_tokens"] = 8.into();
        served.chat(&full);
        let usual_bytes = served.resident_bytes().0;
        Some(Watched { served, group, usual_bytes })
    }

    /// What it holds after many ordinary answers as well: slots, pages and rows of a batch are planned, but become
    /// resident when they are first written.
    fn after_many_answers(mut self) -> Watched {
        let served = &self.served;
        std::thread::scope(|scope| {
            for index in 0..4 {
                let mut body = question(&format!("word{index} ").repeat(1500));
                body["n"] = ANSWERS.into();
                body["max_tokens"] = ANSWER_TOKENS.into();
                scope.spawn(move || served.chat(&body));
            }
        });
        self.usual_bytes = self.served.resident_bytes().0;
        self
    }

    /// Sends a body; the reply must be one of refusal or an answer.
    #[track_caller]
    fn send(&self, path: &str, body: &str, about: &str) -> u16 {
        let reply = self.served.send(&http::post(path, &[], body.as_bytes()));
        let status = reply.status;
        let text = reply.text();
        let short: String = text.chars().take(300).collect();
        assert!(matches!(status, 200 | 400 | 413 | 503), "{about}: {status} {short}");
        self.check_peak(about);
        status
    }

    #[track_caller]
    fn check_peak(&self, about: &str) {
        let peak = self.served.resident_bytes().1 >> 20;
        assert!(peak <= MEMORY_MIB, "{peak} MiB were resident of {MEMORY_MIB} after {about}");
        assert_eq!(self.group.kills(), 0, "killed for memory after {about}");
    }

    /// It still answers, and has given back what it took.
    #[track_caller]
    fn check_returned(&self) {
        self.served.check_answers();
        let start = Instant::now();
        loop {
            let more = self.served.resident_bytes().0.saturating_sub(self.usual_bytes) >> 20;
            if more <= KEPT_MIB {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{more} MiB more than after an ordinary request");
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

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

#[test]
fn no_request_takes_more_than_the_memory() {
    let Some(watched) = Watched::start() else { return };
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

#[test]
fn requests_within_the_budget_take_no_more_than_the_memory_together() {
    let Some(watched) = Watched::start() else { return };
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
    let watched = &watched;
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
    let Some(watched) = Watched::start().map(Watched::after_many_answers) else { return };
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

#[test]
fn unfinished_bodies_take_no_more_than_the_memory() {
    let Some(watched) = Watched::start() else { return };
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

#[test]
fn requests_of_agents_pass() {
    let Some(watched) = Watched::start() else { return };
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
fn a_prompt_on_standard_input_takes_no_more_than_the_memory() {
    let memory = format!("{MEMORY_MIB}M");
    let Some(group) = Group::new((MEMORY_MIB + ALLOWANCE_MIB) << 20) else { return };
    let run = |prompt: &str| {
        let home = tempfile::tempdir().unwrap();
        let mut command = group.wrap(env!("CARGO_BIN_EXE_millstream"));
        command.args(["run", "pebble", "--threads", "1", "--max-tokens", "4", "--memory", &memory]);
        command.current_dir(home.path()).env_clear().env("HOME", home.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A program that has refused already may not read to the end.
        let _ = child.stdin.take().unwrap().write_all(prompt.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (words, expect) in [
        (9000, "tokens do not fit in a context of 8192"),
        (100_000, "tokens do not fit in a context of 8192"),
        (1_500_000, "far more than a context of 8192 tokens holds"),
        (6_000_000, "which no context holds"),
    ] {
        let (code, said) = run(&"word ".repeat(words));
        assert_eq!(code, Some(1), "{words} words: {said}");
        assert!(said.contains(expect), "{words} words: {said}");
    }
    let (code, said) = run(&"word ".repeat(6000));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(group.kills(), 0);
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
