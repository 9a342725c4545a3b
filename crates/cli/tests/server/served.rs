//! A running server: the real binary in an empty home folder, stopped when the test ends.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::group::Group;
use crate::http::{self, Reply};

/// A question to which Pebble knows the answer.
pub(crate) const COLD: &str = "What's the opposite of cold?";
pub(crate) const HOT: &str = "The opposite of cold is hot.";

/// How long a busy machine may take to come to a state that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pebble's tokens that end an answer. A bias against them makes answers as long as the limit.
const ENDS: [&str; 2] = ["4080", "4082"];

/// A server that takes requests.
pub(crate) struct Served {
    child: Child,
    pub(crate) port: u16,
    pub(crate) ready: Value,
    home: TempDir,
}

impl Served {
    /// Starts `millstream serve` with these options and waits until it is ready.
    #[track_caller]
    pub(crate) fn start(options: &[&str]) -> Served {
        let home = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(home.path().join("stderr")).unwrap();
        Served::start_logging(options, home, log)
    }

    /// The same with another file for its log.
    #[track_caller]
    pub(crate) fn start_logging(options: &[&str], home: TempDir, log: std::fs::File) -> Served {
        Served::spawn(Command::new(env!("CARGO_BIN_EXE_millstream")), options, home, log)
    }

    /// The same in a control group.
    #[track_caller]
    pub(crate) fn start_in(group: &Group, options: &[&str]) -> Served {
        let command = group.wrap(env!("CARGO_BIN_EXE_millstream"));
        Served::start_by(command, options, tempfile::tempdir().unwrap())
    }

    /// The same by a command that becomes the program with the arguments that follow.
    #[track_caller]
    pub(crate) fn start_by(command: Command, options: &[&str], home: TempDir) -> Served {
        let log = std::fs::File::create(home.path().join("stderr")).unwrap();
        Served::spawn(command, options, home, log)
    }

    #[track_caller]
    fn spawn(mut command: Command, options: &[&str], home: TempDir, log: std::fs::File) -> Served {
        // Tests run in parallel: several programs whose threads wait for one another on the same cores
        // would mostly wait. One thread is fast enough for Pebble, and no answer depends on it.
        command.args(["serve", "--port", "0", "--threads", "1"]).args(options);
        command.current_dir(home.path()).env_clear();
        command.env("HOME", home.path()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            let _ = child.kill();
            let said = std::fs::read_to_string(home.path().join("stderr")).unwrap_or_default();
            panic!("no ready line but {line:?}; it said:\n{said}");
        };
        assert_eq!(ready["event"], "ready");
        assert_eq!(ready["pid"], child.id());
        let url = ready["url"].as_str().unwrap();
        let port = url.strip_prefix("http://127.0.0.1:").unwrap().parse().unwrap();
        Served { child, port, ready, home }
    }

    pub(crate) fn url(&self) -> &str {
        self.ready["url"].as_str().unwrap()
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        http::connect(self.port)
    }

    /// The reply to these bytes; there must be one.
    #[track_caller]
    pub(crate) fn send(&self, request: &[u8]) -> Reply {
        http::exchange(self.port, request).unwrap()
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send(&http::get(path, &[]))
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(&http::post(path, &[], body.to_string().as_bytes()))
    }

    /// The answer to a chat.
    #[track_caller]
    pub(crate) fn chat(&self, body: &Value) -> Value {
        self.post("/v1/chat/completions", body).good()
    }

    /// Whether it still does what it is there for.
    #[track_caller]
    pub(crate) fn check_answers(&self) {
        let answer = self.chat(&question(COLD));
        assert_eq!(answer["choices"][0]["message"]["content"], HOT);
    }

    /// One number of `/metrics`.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let wanted = format!("millstream_{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(wanted.as_str()));
        line.unwrap_or_else(|| panic!("/metrics has no {name}:\n{text}")).parse().unwrap()
    }

    /// Waits until a number of `/metrics` is what it should become.
    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str, expect: f64) {
        let start = Instant::now();
        loop {
            let value = self.metric(name);
            if value == expect {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{name} is {value} after {PATIENCE:?}, expected {expect}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Bytes of its memory that are resident, and the most there ever were.
    pub(crate) fn resident_bytes(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process())).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    /// Sends a signal by its name.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([format!("-{name}"), self.process().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end; what it said on standard error comes with the exit status.
    #[track_caller]
    pub(crate) fn wait(mut self, limit: Duration) -> (ExitStatus, String) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.said());
            }
            assert!(start.elapsed() < limit, "it did not end within {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.home.path().join("stderr")).unwrap_or_default()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("the server said:\n{}", self.said());
        }
    }
}

/// A chat with one question, answered greedily.
pub(crate) fn question(text: &str) -> Value {
    json!({"model": "pebble", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 64})
}

/// A streamed answer of exactly this many tokens.
pub(crate) fn endless(tokens: usize) -> Value {
    let bias: serde_json::Map<String, Value> =
        ENDS.iter().map(|&token| (token.to_owned(), json!(-100))).collect();
    let mut body = question("Tell me a story about a fox and a lantern.");
    body["max_tokens"] = tokens.into();
    body["stream"] = true.into();
    body["logit_bias"] = bias.into();
    body
}
