//! Grammars of tool calls, compiled by llguidance: what they accept is what the parsers read, and no more.
//!
//! Each format twice: with its markers as plain text, and with all of them as special tokens. The vocabulary
//! is one token for each byte.

#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz target")]
#[path = "support/exercise.rs"]
mod exercise;

use std::sync::Arc;

use exercise::parse;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use text::tools::{Choice, Tool, ToolEvent, ToolFormat};

const BYTES: u32 = 256;

fn tools() -> Vec<Tool> {
    let parameters = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
            "days": {"type": "integer", "minimum": 1},
            "place": {"$ref": "#/$defs/place"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "metric": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
        },
        "required": ["city", "days"],
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false}},
    });
    let tool = |name: &str, parameters: Value| Tool {
        name: name.to_owned(),
        description: None,
        parameters,
    };
    vec![tool("weather", parameters), tool("now", json!({}))]
}

/// A grammar and the vocabulary it was compiled for.
struct Compiled {
    format: ToolFormat,
    matcher: Matcher,
    specials: Vec<&'static str>,
}

impl Compiled {
    fn new(format: ToolFormat, choice: &Choice, parallel: bool, has_specials: bool) -> Compiled {
        let specials = if has_specials { format.markers().to_vec() } else { Vec::new() };
        let special = |text: &str| {
            specials.iter().position(|marker| *marker == text).map(|at| BYTES + at as u32)
        };
        let grammar = format.grammar(&tools(), choice, parallel, &special).expect("a grammar");
        let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        words.extend(specials.iter().map(|marker| [b"\xFF", marker.as_bytes()].concat()));
        words.push(b"\xFF<|the end|>".to_vec());
        let info = TokRxInfo::new(words.len() as u32, words.len() as u32 - 1);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        let mut factory = ParserFactory::new_simple(&environment).expect("a factory");
        factory.quiet();
        let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar.clone()));
        let matcher = Matcher::new(Ok(
            parser.unwrap_or_else(|error| panic!("{format:?}: {error}\n{grammar}"))
        ));
        Compiled { format, matcher, specials }
    }

    fn tokens(&self, mut text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        while let Some(byte) = text.bytes().next() {
            match self.specials.iter().position(|marker| text.starts_with(marker)) {
                Some(at) => {
                    tokens.push(BYTES + at as u32);
                    text = &text[self.specials[at].len()..];
                }
                None if text.is_char_boundary(1) => {
                    tokens.push(u32::from(byte));
                    text = &text[1..];
                }
                None => {
                    let length = text.chars().next().map_or(1, char::len_utf8);
                    tokens.extend(text.bytes().take(length).map(u32::from));
                    text = &text[length..];
                }
            }
        }
        tokens
    }

    /// How much of `text` the grammar takes, in tokens of how many, and whether it may end there.
    fn accept(&mut self, text: &str) -> (usize, usize, bool) {
        let tokens = self.tokens(text);
        self.matcher.reset().expect("a reset");
        let taken = self.matcher.try_consume_tokens(&tokens).expect("no failure");
        (taken, tokens.len(), self.matcher.is_accepting().expect("no failure"))
    }

    #[track_caller]
    fn takes(&mut self, text: &str, expect: &[(&str, Value)]) {
        let (taken, all, is_accepting) = self.accept(text);
        assert_eq!(
            (taken, is_accepting),
            (all, true),
            "{:?} {:?} refuses {text}",
            self.format,
            self.specials
        );
        let events = parse(self.format, &tools(), text, &[]);
        let mut calls: Vec<(String, Value)> = Vec::new();
        for event in events {
            match event {
                ToolEvent::Begin { name, .. } => calls.push((name, Value::Null)),
                ToolEvent::Arguments { json, .. } => {
                    calls.last_mut().expect("a call").1 =
                        serde_json::from_str(&json).expect("JSON");
                }
                ToolEvent::Text(words) => panic!("{:?}: words {words:?} in {text}", self.format),
                ToolEvent::Reasoning(_) | ToolEvent::End { .. } => {}
            }
        }
        let expect: Vec<(String, Value)> =
            expect.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!(calls, expect, "{text}");
    }

    #[track_caller]
    fn refuses(&mut self, text: &str) {
        let (taken, all, is_accepting) = self.accept(text);
        assert!(taken < all || !is_accepting, "{:?} {:?} takes {text}", self.format, self.specials);
    }
}

/// One call as each format writes it. `quoted` are arguments as JSON texts, in the schema's order.
fn write(
    format: ToolFormat,
    has_specials: bool,
    name: &str,
    arguments: &[(&str, Value)],
) -> String {
    let object = || {
        let pairs: Vec<String> =
            arguments.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        format!("{{{}}}", pairs.join(", "))
    };
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let each = |write: &dyn Fn(&str, &Value) -> String, separator: &str| {
        let parts: Vec<String> = arguments.iter().map(|(key, value)| write(key, value)).collect();
        parts.join(separator)
    };
    match format {
        ToolFormat::Hermes => format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {}}}\n</tool_call>",
            object()
        ),
        ToolFormat::Llama3 => format!("{{\"name\": \"{name}\", \"parameters\": {}}}", object()),
        ToolFormat::Mistral if has_specials => format!("[TOOL_CALLS]{name}[ARGS]{}", object()),
        ToolFormat::Mistral => format!("{{\"name\": \"{name}\", \"arguments\": {}}}", object()),
        ToolFormat::DeepSeek => {
            format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{}<｜tool▁call▁end｜>", object())
        }
        ToolFormat::Kimi => format!(
            "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
            object()
        ),
        ToolFormat::Harmony => format!(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{}<|call|>",
            object()
        ),
        ToolFormat::QwenXml => {
            let parameters = each(
                &|key, value| format!("<parameter={key}>\n{}\n</parameter>\n", plain(value)),
                "",
            );
            format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
        }
        ToolFormat::SeedXml => {
            let parameters =
                each(&|key, value| format!("<parameter={key}>{}</parameter>\n", plain(value)), "");
            format!(
                "<seed:tool_call>\n<function={name}>\n{parameters}</function>\n</seed:tool_call>"
            )
        }
        ToolFormat::Glm => {
            let parameters = each(
                &|key, value| {
                    format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", plain(value))
                },
                "",
            );
            format!("<tool_call>{name}\n{parameters}</tool_call>")
        }
        ToolFormat::MiniMax => {
            let parameters = each(
                &|key, value| format!("<parameter name=\"{key}\">{}</parameter>\n", plain(value)),
                "",
            );
            format!("<invoke name=\"{name}\">\n{parameters}</invoke>\n")
        }
        ToolFormat::DeepSeekXml => {
            let parameters = each(
                &|key, value| {
                    let flag = value.is_string();
                    format!(
                        "<｜DSML｜parameter name=\"{key}\" string=\"{flag}\">{}</｜DSML｜parameter>\n",
                        plain(value)
                    )
                },
                "",
            );
            format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>\n")
        }
        ToolFormat::Gemma4 => {
            fn gemma(value: &Value) -> String {
                match value {
                    Value::String(text) => format!("<|\"|>{text}<|\"|>"),
                    Value::Array(items) => {
                        format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(","))
                    }
                    Value::Object(entries) => {
                        let pairs: Vec<String> = entries
                            .iter()
                            .map(|(key, value)| format!("{key}:{}", gemma(value)))
                            .collect();
                        format!("{{{}}}", pairs.join(","))
                    }
                    other => other.to_string(),
                }
            }
            let parameters = each(&|key, value| format!("{key}:{}", gemma(value)), ",");
            format!("<|tool_call>call:{name}{{{parameters}}}<tool_call|>")
        }
        ToolFormat::Pythonic => {
            let python = |key: &str, value: &Value| match value {
                Value::Bool(flag) => format!("{key}={}", if *flag { "True" } else { "False" }),
                Value::Array(_) | Value::Object(_) => format!(
                    "{key}={}",
                    value.to_string().replace("\":", "\": ").replace("\",\"", "\", \"")
                ),
                value => format!("{key}={value}"),
            };
            format!("{name}({})", each(&python, ", "))
        }
    }
}

/// Calls with what the format puts around and between them.
fn answer(format: ToolFormat, has_specials: bool, calls: &[String]) -> String {
    let (open, separator, close) = match format {
        ToolFormat::Hermes | ToolFormat::QwenXml | ToolFormat::SeedXml | ToolFormat::Glm => {
            ("", "\n", "")
        }
        ToolFormat::Gemma4 | ToolFormat::Harmony | ToolFormat::Llama3 => ("", "", ""),
        ToolFormat::Mistral if has_specials => ("", "", ""),
        ToolFormat::Mistral => ("[TOOL_CALLS][", ", ", "]"),
        ToolFormat::DeepSeek => ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
        ToolFormat::DeepSeekXml => ("<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>"),
        ToolFormat::Kimi => ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
        ToolFormat::MiniMax => ("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
        ToolFormat::Pythonic if has_specials => {
            ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")
        }
        ToolFormat::Pythonic => ("[", ", ", "]"),
    };
    format!("{open}{}{close}", calls.join(separator))
}

/// Every format, with its markers as text and as tokens.
fn variants() -> impl Iterator<Item = (ToolFormat, bool)> {
    ToolFormat::ALL.into_iter().flat_map(|format| [(format, false), (format, true)])
}

#[test]
fn right_calls_are_taken_and_read_back() {
    let short: Vec<(&str, Value)> =
        vec![("city", json!("São Paulo <b> \"x\"")), ("days", json!(2))];
    let long: Vec<(&str, Value)> = vec![
        ("city", json!("Oslo")),
        ("unit", json!("kelvin")),
        ("days", json!(12)),
        ("place", json!({"x": 3})),
        ("tags", json!(["a", "b"])),
        ("metric", json!(true)),
        ("note", json!("so")),
    ];
    for (format, has_specials) in variants() {
        let mut required = Compiled::new(format, &Choice::Required, true, has_specials);
        for arguments in [&short, &long] {
            // Python and Gemma write strings without these quotes' escapes in the test, not in the grammar.
            let expect: Value = Value::Object(
                arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
            );
            let one = write(format, has_specials, "weather", arguments);
            required.takes(
                &answer(format, has_specials, std::slice::from_ref(&one)),
                &[("weather", expect.clone())],
            );
            required.takes(
                &format!(
                    "\n\n{}",
                    answer(format, has_specials, &[write(format, has_specials, "now", &[])])
                ),
                &[("now", json!({}))],
            );
            if !matches!(format, ToolFormat::Llama3 | ToolFormat::Harmony) {
                let now = write(format, has_specials, "now", &[]);
                required.takes(
                    &answer(format, has_specials, &[one, now]),
                    &[("weather", expect), ("now", json!({}))],
                );
            }
        }
    }
}

#[test]
fn wrong_calls_are_refused() {
    for (format, has_specials) in variants() {
        let mut required = Compiled::new(format, &Choice::Required, false, has_specials);
        let write =
            |name: &str, arguments: &[(&str, Value)]| write(format, has_specials, name, arguments);
        let answer = |calls: &[String]| answer(format, has_specials, calls);
        let good = write("weather", &[("city", json!("Oslo")), ("days", json!(2))]);
        required.refuses("Hello");
        required.refuses("");
        required.refuses(&answer(&[write("other", &[])]));
        required.refuses(&answer(&[write("weather", &[("days", json!(2))])]));
        required.refuses(&answer(&[write("weather", &[("city", json!("Oslo"))])]));
        required.refuses(&answer(&[write(
            "weather",
            &[("city", json!("Oslo")), ("days", json!("two"))],
        )]));
        let unit = write(
            "weather",
            &[("city", json!("Oslo")), ("unit", json!("miles")), ("days", json!(2))],
        );
        required.refuses(&answer(&[unit]));
        required.refuses(&answer(&[good.clone(), good.clone()]));
        required.refuses(
            &answer(std::slice::from_ref(&good))
                .replacen(": ", ":   ", 1)
                .replacen("\n", "\n\n\n", 1)
                .replacen("(", "(  ", 1)
                .replacen("{c", "{  c", 1),
        );
        required.refuses(&format!("{}x", answer(std::slice::from_ref(&good))));

        let mut named =
            Compiled::new(format, &Choice::Named("now".to_owned()), false, has_specials);
        named.takes(&answer(&[write("now", &[])]), &[("now", json!({}))]);
        named.refuses(&answer(&[good]));
    }
}

#[test]
fn without_a_call_there_are_only_words() {
    for (format, has_specials) in variants() {
        let mut words = Compiled::new(format, &Choice::None, false, has_specials);
        let call = answer(format, has_specials, &[write(format, has_specials, "now", &[])]);
        words.refuses(&call);
        let text = "Words, \"quotes\" and <b>marks</b>.\n";
        let text = match format {
            ToolFormat::Harmony => format!(
                "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>{text}"
            ),
            _ => text.to_owned(),
        };
        let (taken, all, is_accepting) = words.accept(&text);
        assert_eq!((taken, is_accepting), (all, true), "{format:?} {has_specials}");
    }
}

#[test]
fn what_cannot_be_forced_is_named() {
    let none = |_: &str| None;
    let error = |tools: &[Tool], choice: Choice| {
        ToolFormat::Hermes.grammar(tools, &choice, false, &none).unwrap_err().to_string()
    };
    assert_eq!(error(&tools(), Choice::Named("x".to_owned())), "tools: there is none called \"x\"");
    assert_eq!(error(&[], Choice::Required), "tools: there are none to choose from");
    let odd = Tool { name: "a b".to_owned(), description: None, parameters: json!({}) };
    assert_eq!(error(&[odd], Choice::Required), "tools: \"a b\" is no name for one");
}

#[test]
fn harmony_may_think_first() {
    for has_specials in [false, true] {
        let mut required =
            Compiled::new(ToolFormat::Harmony, &Choice::Required, false, has_specials);
        let call = write(ToolFormat::Harmony, has_specials, "now", &[]);
        required.takes(
            &format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}"),
            &[("now", json!({}))],
        );
    }
}

#[test]
fn deepseek_may_write_its_older_form() {
    let text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    for has_specials in [false, true] {
        let mut required =
            Compiled::new(ToolFormat::DeepSeek, &Choice::Required, false, has_specials);
        required.takes(text, &[("now", json!({}))]);
    }
}
