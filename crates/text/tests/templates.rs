//! Our renderings against real Jinja2, byte for byte, and real tokenizers.
//!
//! Needs `MILLSTREAM_TEST_PYTHON`, a Python with jinja2, and for the real templates and tokenizers
//! `MILLSTREAM_TEST_TEMPLATES`, a folder filled by `support/fetch_templates.py`; without them a test
//! prints a line beginning `skipped:`. Conversations and constructs are in `support/*.json`, read by
//! both sides. Where Jinja2 fails we must fail, with words of our own.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value};
use text::{ChatRequest, ChatTemplate, Detokenizer, TemplateFiles, Tokenizer, eos_ids};

/// 2026-11-15 13:14:15, the clock of `render_templates.py`.
const NOW_UNIX_S: i64 = 1_794_748_455;

/// Constructs where we knowingly differ; each is explained in the head of `src/template.rs`.
const KNOWN_DIFFERENCES: [&str; 5] = [
    "filters for pages",
    "float concatenation beyond plain digits",
    "namespace from a dict",
    "macro varargs",
    "string multiplication by negative",
];

fn support(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(name)
}

fn environment_path(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {variable} is not set");
    }
    path
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file of the test")).expect("valid JSON")
}

/// Runs Jinja2 over everything.
fn reference(python: &Path, templates: Option<&Path>) -> Value {
    let mut command = Command::new(python);
    command.args([
        support("render_templates.py"),
        support("cases.json"),
        support("constructs.json"),
    ]);
    command.args(templates);
    let output = command.output().expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("valid JSON")
}

/// Failures of Jinja2 that we do not repeat: what we write instead is what the author meant.
const LENIENCES: [&str; 3] = [
    "'NoneType' object is not iterable",
    "Object of type generator is not JSON serializable",
    "requires string as left operand",
];

/// Both texts, or both failures; otherwise a line that says where they part.
fn difference(name: &str, expect: &Value, got: Result<String, text::Error>) -> Option<String> {
    match (expect["ok"].as_str(), got) {
        (Some(expect), Ok(got)) if expect == got => None,
        (Some(expect), Ok(got)) => {
            let same = expect.chars().zip(got.chars()).take_while(|(a, b)| a == b).count();
            let near = |text: &str| {
                text.chars().skip(same.saturating_sub(40)).take(100).collect::<String>()
            };
            Some(format!("{name}\n  jinja2 …{:?}\n  ours   …{:?}", near(expect), near(&got)))
        }
        (Some(_), Err(error)) => Some(format!("{name}\n  jinja2 renders\n  ours   {error}")),
        (None, Err(_)) => None,
        (None, Ok(_)) => {
            let error = expect["error"].as_str().unwrap_or_default();
            let lenient = LENIENCES.iter().any(|lenience| error.contains(lenience));
            (!lenient).then(|| format!("{name}\n  jinja2 {error}\n  ours   renders"))
        }
    }
}

#[test]
fn constructs_render_as_in_jinja2() {
    let Some(python) = environment_path("MILLSTREAM_TEST_PYTHON") else { return };
    let reference = reference(&python, None);
    let constructs = read_json(&support("constructs.json"));
    let mut differences = Vec::new();
    for (name, source) in constructs["constructs"].as_object().unwrap() {
        let rendered =
            ChatTemplate::new(source.as_str().unwrap(), None, None).and_then(|template| {
                let kwargs = constructs["variables"].as_object().unwrap().clone();
                let now_unix_s = Some(NOW_UNIX_S);
                template.render_exact(&ChatRequest { kwargs, now_unix_s, ..ChatRequest::default() })
            });
        let different = difference(name, &reference["constructs"][name], rendered);
        if KNOWN_DIFFERENCES.contains(&name.as_str()) {
            assert!(different.is_some(), "{name} no longer differs: take it off the list");
        } else {
            differences.extend(different);
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn real_templates_render_as_in_jinja2() {
    let Some(python) = environment_path("MILLSTREAM_TEST_PYTHON") else { return };
    let Some(folder) = environment_path("MILLSTREAM_TEST_TEMPLATES") else { return };
    let reference = reference(&python, Some(&folder));
    let cases = read_json(&support("cases.json"));
    let (mut differences, mut compared) = (Vec::new(), 0);
    for (name, rendered) in reference["templates"].as_object().unwrap() {
        let read = |file: &str| std::fs::read(folder.join(name).join(file)).ok();
        let files = TemplateFiles::find(read).unwrap().expect(name);
        let template = ChatTemplate::from_files(&files);
        for case in cases.as_array().unwrap() {
            let case_name = case["name"].as_str().unwrap();
            let got = match &template {
                Ok(template) => template.render_exact(&request(case)),
                Err(error) => Err(text::Error::TemplateSyntax { reason: error.to_string() }),
            };
            let label = format!("{name}: {case_name}");
            differences.extend(difference(&label, &rendered[case_name], got));
            compared += 1;
        }
    }
    println!("{compared} renderings compared");
    assert!(compared > 0, "no templates under {}", folder.display());
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

fn request(case: &Value) -> ChatRequest {
    ChatRequest {
        messages: case["messages"].as_array().cloned().unwrap_or_default(),
        tools: case["tools"].as_array().cloned().unwrap_or_default(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
        enable_thinking: case["enable_thinking"].as_bool(),
        kwargs: case["kwargs"].as_object().cloned().unwrap_or_else(Map::new),
        now_unix_s: Some(NOW_UNIX_S),
    }
}

/// Text with many scripts, emoji, code and odd white space.
const MIXED_TEXT: &str = "The quick brown fox. Größe, naïve café – “quotes”… Привет, мир! 你好，世界。\
    こんにちは 안녕하세요 مرحبا שלום नमस्ते ไทย 👩‍👩‍👧‍👦 🏳️‍🌈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 1234567 3.14159\n\
    fn main() {\n    println!(\"{}\", x << 2);\n}\n\n\n  don't  we'LL\t tabs  end";

#[test]
fn real_tokenizers_round_trip() {
    let Some(folder) = environment_path("MILLSTREAM_TEST_TEMPLATES") else { return };
    let mut tested = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap().path();
        let Ok(bytes) = std::fs::read(entry.join("tokenizer.json")) else { continue };
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        let tokenizer = Tokenizer::from_bytes(&bytes).unwrap();
        let ids = tokenizer.encode(MIXED_TEXT, false).unwrap();
        let whole = tokenizer.decode(&ids, true).unwrap();
        assert_eq!(whole, MIXED_TEXT, "{name}: decode(encode(text))");

        let mut detokenizer = Detokenizer::new(&tokenizer);
        let mut streamed: String = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
        streamed.push_str(&detokenizer.finish().unwrap());
        assert_eq!(streamed, whole, "{name}: streamed");

        // Long enough to be judged before it is encoded.
        let long = "The quick brown fox jumps over the lazy dog. ".repeat(2000) + MIXED_TEXT;
        let all = tokenizer.encode(&long, false).unwrap();
        let limited = tokenizer.encode_up_to(&long, false, all.len()).unwrap();
        assert!(limited == all, "{name}: a limit changes tokens");
        assert!(tokenizer.encode_up_to(&long, false, all.len() / 4).is_err(), "{name}");

        let bytes: Vec<u8> =
            ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).collect();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.trim_start(), MIXED_TEXT, "{name}: token bytes");

        let read = |file: &str| std::fs::read(entry.join(file)).ok();
        assert!(!eos_ids(read, &tokenizer).unwrap().is_empty(), "{name}: no end token");
        tested += 1;
    }
    assert!(tested > 0, "no tokenizer.json under {}", folder.display());
    println!("{tested} tokenizers tested");
}
