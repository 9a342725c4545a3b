//! Tool calls out of a stream, format by format: what comes out, however the stream was cut.
//!
//! Each case is parsed whole, cut once at every character, character by character, and at random places.

#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz target")]
#[path = "support/exercise.rs"]
mod exercise;

use proptest::prelude::*;
use serde_json::{Value, json};
use text::Piece;
use text::tools::ToolFormat;

use exercise::{check_cut_off, check_events, parse, tools};

/// What is expected of an answer, in order.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Think(String),
    Say(String),
    Call(String, Option<String>, Value),
}

fn think(text: &str) -> Part {
    Part::Think(text.to_owned())
}

fn say(text: &str) -> Part {
    Part::Say(text.to_owned())
}

fn call(name: &str, arguments: Value) -> Part {
    Part::Call(name.to_owned(), None, arguments)
}

fn parts(events: &[Piece]) -> Vec<Part> {
    let mut parts = Vec::new();
    for event in events {
        match event {
            Piece::Reasoning(text) => parts.push(Part::Think(text.clone())),
            Piece::Content(text) => parts.push(Part::Say(text.clone())),
            Piece::ToolBegin { id, name, .. } => {
                parts.push(Part::Call(name.clone(), id.clone(), Value::Null));
            }
            Piece::ToolArguments { json, .. } => {
                let Some(Part::Call(_, _, arguments)) = parts.last_mut() else {
                    panic!("{events:?}")
                };
                *arguments = serde_json::from_str(json).expect("JSON");
            }
            Piece::ToolEnd { .. } => {}
        }
    }
    parts
}

#[track_caller]
fn check(format: ToolFormat, text: &str, expect: &[Part]) {
    let tools = tools();
    let whole = parse(format, &tools, text, &[]);
    assert_eq!(parts(&whole), expect, "{text}");
    check_events(format, text, &whole);
    let boundaries: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
    for &cut in &boundaries {
        assert_eq!(parse(format, &tools, text, &[cut]), whole, "cut at {cut} of {text}");
        check_cut_off(format, &tools, text, cut, &whole);
    }
    assert_eq!(parse(format, &tools, text, &boundaries), whole, "{text}");
}

fn oslo() -> Part {
    call("weather", json!({"city": "Oslo", "days": 2}))
}

const QWEN: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n\
    <parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";

#[test]
fn qwen_xml() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::QwenXml, text, expect);
    check(QWEN, &[oslo()]);
    check(&format!("Let me see.\n\n{QWEN}\n{QWEN}\n"), &[say("Let me see."), oslo(), oslo()]);
    check(&format!("{QWEN}\n\nDone."), &[oslo(), say("Done.")]);
    check(&format!("A\n{QWEN}\nB"), &[say("A"), oslo(), say("\nB")]);
    check("<tool_call>\n<function=now>\n</function>\n</tool_call>", &[call("now", json!({}))]);
    // A value keeps its own newlines and quotes; types follow the schema.
    let typed = "<tool_call><function=weather><parameter=city>\n\n a \"b\"\n\\n\n\n</parameter>\
        <parameter=metric>\nTrue\n</parameter><parameter=tags>\n[\"x\", 1]\n</parameter>\
        <parameter=note>null</parameter><parameter=any>\n7\n</parameter><parameter=new>x y</parameter></function></tool_call>";
    let expect = json!({"city": "\n a \"b\"\n\\n\n", "metric": true, "tags": ["x", 1], "note": null, "any": 7, "new": "x y"});
    check(typed, &[call("weather", expect)]);
    // Without `<tool_call>`, and without the end of the last value.
    check(
        "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>",
        &[call("weather", json!({"city": "Oslo"}))],
    );
    let unclosed =
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</function>\n</tool_call>";
    check(unclosed, &[call("weather", json!({"city": "Oslo"}))]);
    let mention = "<tool_call>\n<function=weather>\n<parameter=city>\na </function> b\n</parameter>\n</function>\n</tool_call>";
    check(mention, &[call("weather", json!({"city": "a </function> b"}))]);
    // The answer ends inside the call.
    let (cut, _) = QWEN.split_once("\n</function>").unwrap();
    check(cut, &[oslo()]);
    check(
        "<tool_call>\n<function=weather>\n<parameter=city>\nOs",
        &[call("weather", json!({"city": "Os"}))],
    );
    // No calls: nothing is lost.
    for text in [
        "plain\n",
        "a <tool_call> b",
        "<tool_call>\n",
        "<tool_call>\n<function=",
        "x <func",
        "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nand",
    ] {
        check(text, &[say(text)]);
    }
    let mixed = format!("{}\n{QWEN}", "<tool_call>\n<function=other>\n</function>\n</tool_call>");
    check(&mixed, &[say("<tool_call>\n<function=other>\n</function>\n</tool_call>"), oslo()]);
}

#[test]
fn seed_xml() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::SeedXml, text, expect);
    // As Seed-OSS's template instructs the model to write.
    let one = "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n\
        <parameter=days>2</parameter>\n</function>\n</seed:tool_call>";
    check(one, &[oslo()]);
    check(&format!("So.\n{one}\n{one}"), &[say("So."), oslo(), oslo()]);
    let lines = "<seed:tool_call>\n<function=weather>\n<parameter=city>a\nb</parameter>\n</function>\n</seed:tool_call>";
    check(lines, &[call("weather", json!({"city": "a\nb"}))]);
    for text in ["<seed:tool_call>\n", "<tool_call>", "a <seed:tool_call> b"] {
        check(text, &[say(text)]);
    }
}

#[test]
fn hermes() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Hermes, text, expect);
    let one = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}
</tool_call>"#;
    check(one, &[oslo()]);
    check(&format!("So:\n{one}\n{one}"), &[say("So:"), oslo(), oslo()]);
    check(
        r#"<tool_call>{"arguments": {"city": "Oslo", "days": 2}, "name": "weather"}</tool_call> ok"#,
        &[oslo(), say("ok")],
    );
    check(
        r#"<tool_call>{"name": "weather", "arguments": "{\"city\": \"Oslo\", \"days\": 2}"}</tool_call>"#,
        &[oslo()],
    );
    check(r#"<tool_call>{"name": "now"}</tool_call>"#, &[call("now", json!({}))]);
    check(
        r#"<tool_call>{"name": "now", "arguments": null}}</tool_call>"#,
        &[call("now", json!({}))],
    );
    check(
        r#"<tool_call>{"name": "weather", "arguments": {"city": "</tool_call> é\n😀"}}</tool_call>"#,
        &[call("weather", json!({"city": "</tool_call> é\n😀"}))],
    );
    // Broken after it began: closed, the rest dropped.
    check(
        r#"<tool_call>{"name": "weather", "arguments": {"city": "Oslo" "days"}}</tool_call>after"#,
        &[call("weather", json!({"city": "Oslo"})), say("after")],
    );
    check(r#"<tool_call>{"name": "weather", "arguments": {"city": "Oslo", "days": 2"#, &[oslo()]);
    for text in [
        r#"<tool_call>{"name": "other", "arguments": {}}</tool_call>"#,
        r#"<tool_call>{"city": "Oslo"}</tool_call>"#,
        r#"<tool_call>{"name": "weather", "arguments": [1]}</tool_call>"#,
        r#"<tool_call>{"name": "weather""#,
        "<tool_call>weather</tool_call>",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn gemma4() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Gemma4, text, expect);
    check(r#"<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>"#, &[oslo()]);
    let nested = r#"ok <|tool_call>call:weather{city:<|"|>{a}, "b": <<|"|>,where:{x:[1,2.5],y:{z:<|"|><|"|>}},metric:true}<tool_call|><|tool_call>call:now{}<tool_call|>"#;
    let expect =
        json!({"city": "{a}, \"b\": <", "where": {"x": [1, 2.5], "y": {"z": ""}}, "metric": true});
    check(nested, &[say("ok"), call("weather", expect), call("now", json!({}))]);
    check(
        r#"<|tool_call>call:weather{city:<|"|>Oslo<tool_call|>x"#,
        &[call("weather", json!({"city": "Oslo"})), say("x")],
    );
    check(r#"<|tool_call>call:weather{city:<|"|>Os"#, &[call("weather", json!({"city": "Os"}))]);
    for text in [
        "<|tool_call>call:other{}<tool_call|>",
        "<|tool_call>weather{}",
        "<|tool_call>call:weather",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn harmony() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Harmony, text, expect);
    let thought = "<|channel|>analysis<|message|>Hm. Weather.<|end|>";
    let answer = "<|start|>assistant<|channel|>final<|message|>It is <b>cold</b>.<|return|>";
    check(&format!("{thought}{answer}"), &[think("Hm. Weather."), say("It is <b>cold</b>.")]);
    let header =
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>";
    let arguments = r#"{"city":"Oslo","days":2}"#;
    check(&format!("{thought}{header}{arguments}<|call|>"), &[think("Hm. Weather."), oslo()]);
    check(&format!("{thought}{header}{arguments}"), &[think("Hm. Weather."), oslo()]);
    let role = "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>";
    check(&format!("{thought}{role}{arguments}<|call|>"), &[think("Hm. Weather."), oslo()]);
    // A preamble, a call of another tool, words without any channel.
    check("<|channel|>commentary<|message|>I will look.<|end|>", &[say("I will look.")]);
    check("<|channel|>commentary to=python<|message|>1+1<|call|>", &[say("1+1")]);
    check("Just words.<|return|>", &[say("Just words.")]);
    check("<|channel|>analysis", &[]);
    // A header that never ends is none.
    let endless = "x ".repeat(200);
    check(&format!("<|channel|>{endless}"), &[say(&endless)]);
    check(&format!("{header}{{\"city\": \"Os"), &[call("weather", json!({"city": "Os"}))]);
}

#[test]
fn deepseek() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::DeepSeek, text, expect);
    let call_new = r#"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo", "days": 2}<｜tool▁call▁end｜>"#;
    check(
        &format!("ok<｜tool▁calls▁begin｜>{call_new}{call_new}<｜tool▁calls▁end｜>"),
        &[say("ok"), oslo(), oslo()],
    );
    let call_old = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\", \"days\": 2}\n```<｜tool▁call▁end｜>";
    check(
        &format!("<｜tool▁calls▁begin｜>{call_old}\n{call_old}<｜tool▁calls▁end｜>"),
        &[oslo(), oslo()],
    );
    check(&format!("{call_old} and"), &[oslo(), say("and")]);
    check(call_new.split_once('}').unwrap().0, &[oslo()]);
    for text in [
        "<｜tool▁calls▁begin｜>hello",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn deepseek_xml() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::DeepSeekXml, text, expect);
    let text = "ok\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n\
        <｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    check(text, &[say("ok"), oslo()]);
    check(
        "<｜DSML｜tool_calls><｜DSML｜invoke name=\"now\"></｜DSML｜invoke></｜DSML｜tool_calls>",
        &[call("now", json!({}))],
    );
}

#[test]
fn minimax() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::MiniMax, text, expect);
    let invoke = "<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n";
    check(
        &format!("\n<minimax:tool_call>\n{invoke}{invoke}</minimax:tool_call>"),
        &[oslo(), oslo()],
    );
    check(
        "<minimax:tool_call><invoke name=weather><parameter name='city'>a < b",
        &[call("weather", json!({"city": "a < b"}))],
    );
    for text in [
        "<minimax:tool_call>\nno",
        "<minimax:tool_call><invoke name=\"other\"></invoke></minimax:tool_call>",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn glm() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Glm, text, expect);
    let lines = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>";
    check(&format!("\n{lines}\n{lines}"), &[oslo(), oslo()]);
    check(&lines.replace('\n', ""), &[oslo()]);
    check("<tool_call>now</tool_call>", &[call("now", json!({}))]);
    check(
        "<tool_call>weather<arg_key>tags</arg_key><arg_value>[\"a\"]",
        &[call("weather", json!({"tags": ["a"]}))],
    );
    for text in ["<tool_call>other</tool_call>", "<tool_call>weather", "a <tool_call> b\nc"] {
        check(text, &[say(text)]);
    }
}

#[test]
fn kimi() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Kimi, text, expect);
    let one = |count: usize| {
        format!(
            "<|tool_call_begin|>functions.weather:{count}<|tool_call_argument_begin|>{{\"city\": \"Oslo\", \"days\": 2}}<|tool_call_end|>"
        )
    };
    let with_id = |count: usize| {
        Part::Call(
            "weather".to_owned(),
            Some(format!("functions.weather:{count}")),
            json!({"city": "Oslo", "days": 2}),
        )
    };
    let text =
        format!("ok<|tool_calls_section_begin|>{}{}<|tool_calls_section_end|>", one(0), one(1));
    check(&text, &[say("ok"), with_id(0), with_id(1)]);
    check(&one(12), &[with_id(12)]);
    for text in [
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.other:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn mistral() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Mistral, text, expect);
    let new = r#"[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 2}"#;
    check(new, &[oslo()]);
    check(&format!("ok{new}{new}"), &[say("ok"), oslo(), oslo()]);
    let with_id = Part::Call(
        "weather".to_owned(),
        Some("abc123def".to_owned()),
        json!({"city": "Oslo", "days": 2}),
    );
    check(r#"[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Oslo", "days": 2}"#, &[with_id]);
    let old = r#"[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo", "days": 2}, "id": "abc123def"}, {"name": "now", "arguments": {}}]"#;
    check(old, &[oslo(), call("now", json!({}))]);
    for text in [
        "[TOOL_CALLS]other[ARGS]{}",
        "[TOOL_CALLS] [1, 2]",
        "[TOOL_CALLS][{\"name\": \"other\"}]",
        "[TOOL_CALLS]weather",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn llama3() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Llama3, text, expect);
    let one = r#"{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}"#;
    check(one, &[oslo()]);
    check(&format!("\n<|python_tag|>{one}; {one}"), &[oslo(), oslo()]);
    check(
        r#"{"type": "function", "name": "weather", "parameters": {"city": "Oslo", "days": 2}}"#,
        &[oslo()],
    );
    check(r#"{"name": "weather", "parameters": {"city": "Oslo", "days": 2"#, &[oslo()]);
    for text in [
        r#"{"city": "Oslo"}"#,
        r#"I would say {"name": "weather", "parameters": {}}"#,
        r#"{"name": "other", "parameters": {}}"#,
        "<|python_tag|>print(1)",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn pythonic() {
    let check = |text: &str, expect: &[Part]| check(ToolFormat::Pythonic, text, expect);
    check(r#"[weather(city="Oslo", days=2)]"#, &[oslo()]);
    check(
        r#"<|tool_call_start|>[weather(city='Oslo', days=2), now()]<|tool_call_end|>ok"#,
        &[oslo(), call("now", json!({})), say("ok")],
    );
    let typed = r#"[weather(city='it\'s "x"', where={'a': [1, None], "b": True}, tags=["a", 'b'], metric=False, any=-1.5)]"#;
    let expect = json!({"city": "it's \"x\"", "where": {"a": [1, null], "b": true}, "tags": ["a", "b"], "metric": false, "any": -1.5});
    check(typed, &[call("weather", expect)]);
    check(
        r#"<|tool_call_start|>[{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]<|tool_call_end|>"#,
        &[oslo()],
    );
    check(r#"<|tool_call_start|>weather(city="Oslo", days=2)<|tool_call_end|>"#, &[oslo()]);
    check(r#"[weather(city="Os"#, &[call("weather", json!({"city": "Os"}))]);
    for text in [
        "[1, 2, 3]",
        "[weather]",
        "[other(a=1)]",
        "see [weather(city=\"Oslo\")]",
        "[",
        "[link](https://x.y)",
    ] {
        check(text, &[say(text)]);
    }
}

#[test]
fn without_tools_markers_are_words() {
    for format in ToolFormat::ALL.into_iter().filter(|format| *format != ToolFormat::Harmony) {
        let events = parse(format, &[], QWEN, &[5, 20]);
        assert_eq!(events, [Piece::Content(QWEN.to_owned())], "{format:?}");
    }
    let events = parse(
        ToolFormat::Harmony,
        &[],
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
        &[],
    );
    assert_eq!(events, [Piece::Reasoning("a".to_owned()), Piece::Content("b".to_owned())]);
}

/// Pieces that answers are made of, in addition to the markers of a format.
const SHARDS: [&str; 40] = [
    "<function=weather>",
    "<function=",
    "</function>",
    "<parameter=city>",
    "<parameter=days>",
    "</parameter>",
    "call:",
    "weather",
    "now",
    "{",
    "}",
    "[",
    "]",
    "city",
    ":",
    "analysis",
    "final",
    "commentary",
    " to=functions.weather",
    "assistant",
    "function",
    "```json\n",
    "functions.weather:0",
    "<invoke name=\"weather\">",
    "</invoke>",
    "<｜DSML｜invoke name=\"now\">",
    "<｜DSML｜function_calls>",
    "{\"name\": \"weather\"",
    "\"name\": \"now\"",
    "\"arguments\": ",
    "\"parameters\": {",
    "\"city\": \"Oslo\"",
    ", ",
    "\n",
    "weather(city=",
    "[now(",
    ")",
    "é \"",
    "<",
    "1",
];

fn stream() -> impl Strategy<Value = (ToolFormat, String)> {
    prop::sample::select(&ToolFormat::ALL[..]).prop_flat_map(|format| {
        let shard =
            prop_oneof![prop::sample::select(format.markers()), prop::sample::select(&SHARDS[..])];
        prop::collection::vec(shard, 0..25).prop_map(move |shards| (format, shards.concat()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn any_stream_is_read_the_same_however_it_is_cut(
        (format, text) in stream(),
        cuts in prop::collection::vec(0usize..300, 0..20),
    ) {
        let whole = parse(format, &tools(), &text, &[]);
        check_events(format, &text, &whole);
        prop_assert_eq!(parse(format, &tools(), &text, &cuts), whole);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tools");
    let entries = std::fs::read_dir(folder).expect("the seeds");
    entries.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a seed")).collect()
}

/// Good answers of all formats, and these with bytes changed, taken out, doubled, and tails of others put on.
#[test]
fn mutated_answers_are_read_without_loss() {
    let seeds = seeds();
    assert!(seeds.len() >= ToolFormat::ALL.len());
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % limit.max(1) as u64) as usize
    };
    seeds.iter().for_each(|seed| exercise::answer(seed));
    for round in 0..6000 {
        let mut input = seeds[round % seeds.len()].clone();
        for _ in 0..=below(3) {
            // The first byte chooses the format.
            let at = 1 + below(input.len() - 1);
            match below(5) {
                0 => input[at] = below(256) as u8,
                1 => drop(input.drain(at..(at + 1 + below(20)).min(input.len()))),
                2 => {
                    let copy = input[at..(at + 1 + below(30)).min(input.len())].to_vec();
                    input.splice(at..at, copy);
                }
                3 => input.truncate(at.max(2)),
                _ => {
                    let other = &seeds[below(seeds.len())];
                    input.extend_from_slice(&other[1 + below(other.len() - 1)..]);
                }
            }
            if input.len() < 3 {
                break;
            }
        }
        exercise::answer(&input);
    }
}
