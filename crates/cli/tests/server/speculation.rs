//! Speculation as a client sees it: the same answers as without, and numbers that agree with each other.
//!
//! How much is drafted depends on what passes take, and so on the machine; what is said does not. So answers are
//! compared while something is drafted in every pass, and of the numbers only what must hold whatever was drafted.

use std::io::Write;

use serde_json::{Value, json};

use super::http::{self, Reply};
use super::served::{Served, endless, question};
use super::turns::sentences;

const OFF: &[&str] = &["--speculation", "off"];
const DRAFT_MODEL: &[&str] = &["--draft-model", "pebble-draft"];

/// Pebble quotes its prompt, which is what prompt lookup is good at.
fn quoting(temperature: f64) -> Value {
    let text = sentences(12);
    let mut body = question(&format!("Repeat this text word for word:\n\n{text}"));
    body["temperature"] = temperature.into();
    body["seed"] = 11.into();
    body["max_tokens"] = 80.into();
    body
}

/// An answer of this many tokens.
fn long(tokens: usize) -> Value {
    let mut body = endless(tokens);
    body["stream"] = false.into();
    body
}

fn tool_question() -> Value {
    let mut body = question("Set the bathroom to 19 degrees.");
    body["tools"] = json!([
        {"type": "function", "function": {"name": "heating", "parameters": {
            "type": "object", "required": ["room", "degrees"],
            "properties": {"room": {"type": "string"}, "degrees": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "stock_price", "parameters": {
            "type": "object", "required": ["stock"], "properties": {"stock": {"type": "string"}}}}},
    ]);
    body
}

fn schema_question(temperature: f64) -> Value {
    let mut body =
        question("Grizumn is 81 years old and lives in Prague. Return name and city as JSON.");
    body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": {
        "type": "object", "required": ["name", "city", "tags"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 20}, "city": {"enum": ["Prague", "Rome"]},
                       "tags": {"type": "array", "items": {"enum": ["old", "young"]}, "minItems": 6, "maxItems": 6}}}}});
    body["temperature"] = temperature.into();
    body["seed"] = 5.into();
    body["max_tokens"] = 300.into();
    body
}

/// Drafted tokens that were right and wrong, as the answer's usage has them.
#[track_caller]
fn drafts(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap_or_else(|| panic!("{answer}"));
    let (accepted, rejected) =
        (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"));
    assert!(accepted <= answer["usage"]["completion_tokens"].as_u64().unwrap(), "{answer}");
    (accepted, rejected)
}

/// What was said, without names that are new for every answer.
fn said(answer: &Value) -> (Value, Value) {
    let mut choices = answer["choices"].clone();
    for choice in choices.as_array_mut().unwrap() {
        for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
            call.as_object_mut().unwrap().remove("id");
        }
    }
    (choices, answer["usage"]["completion_tokens"].clone())
}

#[test]
fn answers_are_the_same_whichever_source_drafts() {
    let plain = Served::start(OFF);
    // So many tokens are drafted in every pass, whether it pays or not.
    let others = [
        Served::start(&["--fixed-draft", "4", "--draft-model", "pebble-draft"]),
        Served::start(&["--fixed-draft", "2", "--mtp"]),
        Served::start(&["--fixed-draft", "7", "--dflash"]),
    ];
    let mut bodies = vec![
        quoting(0.0),
        quoting(0.8),
        tool_question(),
        schema_question(0.0),
        schema_question(1.0),
    ];
    let mut several = long(30);
    several["n"] = 3.into();
    several["temperature"] = 1.into();
    several["seed"] = 3.into();
    several["frequency_penalty"] = 0.5.into();
    bodies.push(several);
    let mut stopped = quoting(0.0);
    stopped["stop"] = json!(["harbour", "noon"]);
    bodies.push(stopped);
    let mut measured = quoting(0.0);
    measured["logprobs"] = true.into();
    measured["top_logprobs"] = 3.into();
    measured["max_tokens"] = 20.into();
    bodies.push(measured);
    let mut thinking = question("What is 17 + 25?");
    thinking["enable_thinking"] = true.into();
    thinking["max_tokens"] = 100.into();
    bodies.push(thinking);
    let alone: Vec<Value> = bodies.iter().map(|body| plain.chat(body)).collect();
    assert!(alone.iter().all(|answer| drafts(answer) == (0, 0)));
    for other in &others {
        let (mut accepted, mut rejected) = (0, 0);
        for (body, alone) in bodies.iter().zip(&alone) {
            let answer = other.chat(body);
            assert_eq!(said(&answer), said(alone), "{body}");
            let (right, wrong) = drafts(&answer);
            accepted += right;
            rejected += wrong;
        }
        assert!(accepted > 0 && rejected > 0, "{accepted} drafts were right, {rejected} wrong");
    }
    // What is the same is also as it should be.
    for (body, answer) in bodies.iter().zip(&alone) {
        let choice = &answer["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap_or_default();
        if body.get("response_format").is_some() {
            let value: Value = serde_json::from_str(content).unwrap();
            assert_eq!(value["tags"].as_array().unwrap().len(), 6, "{content}");
            assert!(["Prague", "Rome"].contains(&value["city"].as_str().unwrap()), "{content}");
        }
        if body.get("stop").is_some() {
            assert!(!content.contains("harbour") && !content.contains("noon"), "{content}");
            assert_eq!(choice["finish_reason"], "stop");
        }
        if body.get("tools").is_some() {
            assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "heating");
        }
    }
}

#[test]
fn every_number_agrees_with_the_others() {
    let served = Served::start(DRAFT_MODEL);
    let (mut accepted, mut rejected) = (0, 0);
    let mut add = |answer: &Value, details: &Value| {
        let count = |name: &str| details[name].as_u64().unwrap_or_else(|| panic!("{answer}"));
        accepted += count("accepted_prediction_tokens");
        rejected += count("rejected_prediction_tokens");
    };
    for body in [long(150), quoting(0.0)] {
        let answer = served.chat(&body);
        add(&answer, &answer["usage"]["completion_tokens_details"]);
    }
    let prompt = json!({"prompt": sentences(20), "temperature": 0, "max_tokens": 40, "n": 2});
    let answer = served.post("/v1/completions", &prompt).good();
    add(&answer, &answer["usage"]["completion_tokens_details"]);
    let input =
        json!({"input": quoting(0.0)["messages"], "temperature": 0, "max_output_tokens": 40});
    let answer = served.post("/v1/responses", &input).good();
    add(&answer, &answer["usage"]["output_tokens_details"]);
    let mut streamed = quoting(0.5);
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let mut events = served.post("/v1/chat/completions", &streamed).events();
    while let Some(data) = events.next_data().unwrap() {
        let chunk: Value = serde_json::from_str(&data).unwrap_or_default();
        if chunk["usage"].is_object() {
            add(&chunk, &chunk["usage"]["completion_tokens_details"]);
        }
    }
    assert!(accepted + rejected > 0, "nothing was drafted");

    // The outcome of the last pass is reported a moment after its tokens.
    served.wait_for("requests_active", 0.0);
    let health = served.get("/health").good()["speculation"].clone();
    assert_eq!(health["mode"], "auto");
    let sources = health["sources"].as_array().unwrap();
    let names: Vec<&str> =
        sources.iter().map(|source| source["source"].as_str().unwrap()).collect();
    assert_eq!(names, ["n_gram", "draft_model"]);
    let sum = |name: &str| sources.iter().map(|s| s[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("accepted"), sum("verified")), (accepted, accepted + rejected), "{health}");
    assert!(sum("drafted") >= sum("verified"));
    let acceptance = accepted as f64 / (accepted + rejected) as f64;
    assert!((health["acceptance"].as_f64().unwrap() - acceptance).abs() < 1e-9, "{health}");
    assert!(health["gain"].as_f64().unwrap() > 0.0, "{health}");

    for source in sources {
        let name = source["source"].as_str().unwrap();
        for count in ["drafted", "verified", "accepted"] {
            let line = format!("speculation_{count}_tokens_total{{source=\"{name}\"}}");
            assert_eq!(served.metric(&line), source[count].as_f64().unwrap(), "{line}");
        }
        let first =
            served.metric(&format!("speculation_first_accepted_share{{source=\"{name}\"}}"));
        assert!((0.0..=1.0).contains(&first), "{first}");
    }
    assert!(served.metric("speculation_rounds_total{kind=\"plain\"}") > 0.0);
    assert!(served.metric("speculation_rounds_total{kind=\"speculative\"}") > 0.0);
    let mean = served.metric("speculation_verified_tokens_mean");
    assert!((1.0..=16.0).contains(&mean), "{mean}");
    // Reading a float from JSON may be off by its last bit.
    let gain = served.metric("speculation_gain") - health["gain"].as_f64().unwrap();
    assert!(gain.abs() < 1e-9, "{gain}");
    assert!((0.0..=1.0).contains(&served.metric("speculation_exploration_share")));
    assert!(served.metric("speculation_pauses_total") >= 0.0);
    // One row wants what it wants; two rows of one answer may want the same.
    assert_eq!(served.metric("speculation_expert_union{rows=\"1\"}"), 1.0);
    let text = served.get("/metrics").text();
    let unions = text.lines().filter_map(|line| {
        let line = line.strip_prefix("millstream_speculation_expert_union{rows=\"")?;
        let (rows, factor) = line.split_once("\"} ")?;
        Some((rows.parse::<usize>().unwrap(), factor.parse::<f64>().unwrap()))
    });
    let unions: Vec<(usize, f64)> = unions.collect();
    assert!(unions.len() > 1, "{text}");
    for (rows, factor) in unions {
        assert!(rows <= 17 && (1.0..=rows as f64).contains(&factor), "{rows} rows: {factor}");
    }

    // A viewer receives it with the first beat.
    let mut live = served.get("/live").events();
    let beat = loop {
        let event: Value = serde_json::from_str(&live.next_data().unwrap().unwrap()).unwrap();
        if event.get("t").is_some() {
            break event;
        }
    };
    assert!((beat["speculation"]["acceptance"].as_f64().unwrap() - acceptance).abs() < 1e-9);
    assert!(beat["speculation"]["gain"].is_number(), "{beat}");
}

#[test]
fn switched_off_there_is_nothing_to_tell() {
    let served = Served::start(OFF);
    assert_eq!(drafts(&served.chat(&quoting(0.0))), (0, 0));
    assert_eq!(served.get("/health").good()["speculation"], Value::Null);
    let text = served.get("/metrics").text();
    assert!(!text.contains("speculation"), "{text}");
}

#[test]
fn in_a_crowd_that_comes_and_goes_answers_stay_the_same() {
    let plain = Served::start(OFF);
    // Others decide what pays, here it is always drafted.
    let served =
        Served::start(&["--draft-model", "pebble-draft", "--fixed-draft", "3", "--parallel", "6"]);
    let bodies = [quoting(0.0), quoting(0.7), long(60), tool_question(), schema_question(0.6)];
    let alone: Vec<_> = bodies.iter().map(|body| said(&plain.chat(body))).collect();
    std::thread::scope(|scope| {
        for client in 0..2 {
            for round in 0..bodies.len() {
                let index = (client + round) % bodies.len();
                let (served, body, alone) = (&served, &bodies[index], &alone[index]);
                scope.spawn(move || assert_eq!(said(&served.chat(body)), *alone, "{body}"));
            }
        }
        for events in [0, 1, 3, 7] {
            let port = served.port;
            scope.spawn(move || {
                let mut stream = http::connect(port);
                let body = endless(2000).to_string();
                stream
                    .write_all(&http::post("/v1/chat/completions", &[], body.as_bytes()))
                    .unwrap();
                let mut read = Reply::read(stream).unwrap().events();
                for _ in 0..events {
                    assert!(read.next_data().unwrap().is_some());
                }
            });
        }
    });
    served.wait_for("requests_active", 0.0);
    served.check_answers();
}
