//! Grammars of tool calls, compiled by llguidance: what they accept is what the parsers read, and no more.
//!
//! Each format twice: with its markers as plain text, and with all of them as special tokens. The vocabulary
//! is one token for each byte.

#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz target")]
#[path = "support/exercise.rs"]
mod exercise;
#[path = "support/written.rs"]
mod written;

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use text::Piece;
use text::tools::{Choice, Tool, ToolFormat};

use exercise::parse;
use written::{answer, write};

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
    vec![tool("weather", parameters), tool("now", json!({}))]
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.to_owned(), description: None, parameters, is_strict: false }
}

/// A grammar and the vocabulary it was compiled for.
struct Compiled {
    format: ToolFormat,
    tools: Vec<Tool>,
    matcher: Matcher,
    specials: Vec<&'static str>,
}

impl Compiled {
    fn new(format: ToolFormat, choice: &Choice, parallel: bool, has_specials: bool) -> Compiled {
        Compiled::of(tools(), format, choice, parallel, has_specials)
    }

    fn of(
        tools: Vec<Tool>,
        format: ToolFormat,
        choice: &Choice,
        parallel: bool,
        has_specials: bool,
    ) -> Compiled {
        let specials = if has_specials { format.markers().to_vec() } else { Vec::new() };
        let special = |text: &str| {
            specials.iter().position(|marker| *marker == text).map(|at| BYTES + at as u32)
        };
        let grammar = format.grammar(&tools, choice, parallel, &special).expect("a grammar");
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
        Compiled { format, tools, matcher, specials }
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
        let events = parse(self.format, &self.tools, text, &[]);
        let mut calls: Vec<(String, Value)> = Vec::new();
        for event in events {
            match event {
                Piece::ToolBegin { name, .. } => calls.push((name, Value::Null)),
                Piece::ToolArguments { json, .. } => {
                    calls.last_mut().expect("a call").1 =
                        serde_json::from_str(&json).expect("JSON");
                }
                Piece::Content(words) => panic!("{:?}: words {words:?} in {text}", self.format),
                Piece::Reasoning(_) | Piece::ToolEnd { .. } => {}
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

/// Calls that were not required: names and form are held, and the schema only where the tool is strict.
#[test]
fn free_calls_are_held_to_names_and_form() {
    let arguments = [("tags", json!(["a", "b"])), ("days", json!(2)), ("city", json!("Oslo"))];
    let deep = json!({"a": [[1, {"b": "c"}], null]});
    let open = json!({"type": "object", "additionalProperties": true});
    let nested = json!({"type": "object", "properties": {"z": {"type": "object", "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}});
    for (format, has_specials) in variants().filter(|(format, _)| format.opener().is_some()) {
        let write =
            |name: &str, arguments: &[(&str, Value)]| write(format, has_specials, name, arguments);
        let answer = |calls: &[String]| answer(format, has_specials, calls);
        let auto =
            |tools: Vec<Tool>| Compiled::of(tools, format, &Choice::Auto, true, has_specials);
        let call = answer(&[write("weather", &arguments)]);
        if has_specials || format != ToolFormat::Pythonic {
            assert!(call.starts_with(format.opener().expect("an opener")), "{call}");
        }

        let mut free = auto(tools());
        let [tags, days, city] = &arguments;
        for order in [[tags, days, city], [city, tags, days], [days, city, tags]] {
            let order = order.map(Clone::clone);
            let expect = order.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
            let expect = ("weather", Value::Object(expect.collect()));
            let calls = [write("weather", &order), write("now", &[])];
            free.takes(&answer(&calls[..1]), std::slice::from_ref(&expect));
            free.takes(&answer(&calls), &[expect, ("now", json!({}))]);
        }
        free.refuses(&answer(&[write("other", &[])]));
        free.refuses(&call[..call.len() - 1]);
        free.refuses(&format!("{call} and more"));
        free.refuses(&format!("Well. {call}"));
        if TAGGED.contains(&format) || has_notation(format) {
            let days = days.clone();
            for wrong in [
                vec![],
                vec![tags.clone()],
                vec![city.clone(), tags.clone()],
                vec![days.clone(), tags.clone(), days.clone()],
                [vec![city.clone(), days.clone()], vec![tags.clone(); 6]].concat(),
                vec![city.clone(), ("town", json!("Oslo")), days.clone()],
                vec![city.clone(), ("days", json!("two"))],
                vec![city.clone(), days.clone(), ("unit", json!("miles"))],
            ] {
                free.refuses(&answer(&[write("weather", &wrong)]));
            }
        }

        let mut strict =
            auto(tools().into_iter().map(|tool| Tool { is_strict: true, ..tool }).collect());
        strict.refuses(&call);
        strict.takes(
            &answer(&[write("weather", &[("city", json!("Oslo")), ("days", json!(2))])]),
            &[("weather", json!({"city": "Oslo", "days": 2}))],
        );

        // Arguments that no schema names, and the parts of one in any order.
        let mut any =
            auto(vec![tool("f", open.clone()), tool("g", nested.clone()), tool("h", json!({}))]);
        any.takes(&answer(&[write("f", &[("x", json!("y"))])]), &[("f", json!({"x": "y"}))]);
        let three = [("x", json!("y")), ("y", json!("z")), ("z", json!("x"))];
        let expect = json!({"x": "y", "y": "z", "z": "x"});
        any.takes(&answer(&[write("h", &three)]), &[("h", expect)]);
        if format != ToolFormat::Pythonic {
            let z = json!({"b": 1, "c": deep});
            any.takes(&answer(&[write("g", &[("z", z.clone())])]), &[("g", json!({"z": z}))]);
        }
    }
}

/// Formats in which an argument is raw text or JSON between tags.
const TAGGED: [ToolFormat; 5] = [
    ToolFormat::QwenXml,
    ToolFormat::SeedXml,
    ToolFormat::DeepSeekXml,
    ToolFormat::Glm,
    ToolFormat::MiniMax,
];

/// What a format writes that is neither tags nor JSON.
fn has_notation(format: ToolFormat) -> bool {
    matches!(format, ToolFormat::Gemma4 | ToolFormat::Pythonic)
}

/// Which of these arguments the grammar of a schema must take, and which it must refuse.
#[track_caller]
fn check_arguments(
    formats: impl Fn(ToolFormat) -> bool,
    schema: &Value,
    right: &[Value],
    wrong: &[Value],
) {
    for (format, has_specials) in variants().filter(|(format, _)| formats(*format)) {
        let tools = vec![tool("f", schema.clone())];
        let mut required = Compiled::of(tools, format, &Choice::Required, false, has_specials);
        let write = |arguments: &Value| {
            let arguments = arguments.as_object().expect("an object");
            let arguments: Vec<(&str, Value)> =
                arguments.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
            answer(format, has_specials, &[write(format, has_specials, "f", &arguments)])
        };
        for arguments in right {
            required.takes(&write(arguments), &[("f", arguments.clone())]);
        }
        for arguments in wrong {
            required.refuses(&write(arguments));
        }
    }
}

/// The same of the only argument, `x`, which is required.
#[track_caller]
fn check_values(
    formats: impl Fn(ToolFormat) -> bool,
    schema: &Value,
    right: &[Value],
    wrong: &[Value],
) {
    let schema = json!({
        "type": "object", "properties": {"x": schema}, "required": ["x"],
        "$defs": {"Color": {"type": "string", "enum": ["red", "dark red"]}},
        "definitions": {"Old": {"const": "old"}},
    });
    let arguments = |values: &[Value]| -> Vec<Value> {
        values.iter().map(|value| json!({"x": value})).collect()
    };
    check_arguments(formats, &schema, &arguments(right), &arguments(wrong));
}

#[test]
fn strings_keep_to_their_list_wherever_it_stands() {
    let color = json!({"$ref": "#/$defs/Color"});
    let (right, wrong) =
        ([json!("red"), json!("dark red")], [json!("dark"), json!("redd"), json!("")]);
    for schema in [
        color.clone(),
        json!({"allOf": [color], "default": "red"}),
        json!({"allOf": [color, {"enum": ["red", "dark red", "green"]}]}),
        json!({"anyOf": [color]}),
        json!({"oneOf": [{"const": "red"}, {"const": "dark red"}]}),
        json!({"type": "string", "anyOf": [{"enum": ["red", 1]}, {"const": "dark red"}]}),
    ] {
        check_values(|_| true, &schema, &right, &wrong);
    }
    check_values(|_| true, &json!({"const": "a"}), &[json!("a")], &[json!("b"), json!("")]);
    let old = json!({"$ref": "#/definitions/Old"});
    check_values(|_| true, &old, &[json!("old")], &[json!("new")]);
    // Each of these begins another, or ends as the end tag begins.
    let words = json!({"enum": ["", "a", "a ", "ab", "a<", "</"]});
    check_values(
        |format| TAGGED.contains(&format),
        &words,
        &[json!(""), json!("a"), json!("a "), json!("ab"), json!("a<"), json!("</")],
        &[json!("b"), json!("aa"), json!("\n")],
    );
    let words = json!({"type": "string", "enum": ["", "a", "ab"]});
    check_values(|_| true, &words, &[json!(""), json!("a"), json!("ab")], &[json!("b")]);
    let check_many = |formats: fn(ToolFormat) -> bool, count: usize| {
        let words: Vec<String> = (0..count).map(|number| format!("word {number}")).collect();
        let right = [json!(words[0]), json!(words[count - 1])];
        let wrong = [json!(format!("word {count}")), json!("word")];
        check_values(formats, &json!({"type": "string", "enum": words}), &right, &wrong);
    };
    check_many(|_| true, 256);
    check_many(|format| !has_notation(format), 2_000);
}

#[test]
fn lists_of_several_types_are_kept_to() {
    let optional = json!({"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": null});
    let mixed = json!({"enum": ["a", 7, true, null, 1.5]});
    let is_strict = |format| !has_notation(format);
    let colors = [json!("red"), json!("dark red"), json!(null)];
    check_values(is_strict, &optional, &colors, &[json!("nul"), json!("blue"), json!(5)]);
    let values = [json!("a"), json!(7), json!(true), json!(null), json!(1.5)];
    check_values(is_strict, &mixed, &values, &[json!("b"), json!(8), json!(false)]);
    // Other notations take any value here.
    check_values(has_notation, &optional, &colors, &[]);
    check_values(has_notation, &mixed, &values, &[]);
}

#[test]
fn lists_without_strings_are_kept_to() {
    for (schema, right, wrong) in [
        (json!({"enum": [7, 8]}), json!([7, 8]), json!([9, "7 "])),
        (json!({"const": 5}), json!([5]), json!([6])),
        (json!({"enum": [true]}), json!([true]), json!([false])),
        (json!({"enum": [null]}), json!([null]), json!([0])),
    ] {
        let values = |list: &Value| list.as_array().expect("a list").clone();
        let (right, wrong) = (values(&right), values(&wrong));
        check_values(|format| !has_notation(format), &schema, &right, &wrong);
        check_values(has_notation, &schema, &right, &[]);
    }
}

#[test]
fn strings_keep_to_their_lengths() {
    let schema = json!({"type": "string", "minLength": 2, "maxLength": 4});
    let right = [json!("ab"), json!("åß日本")];
    let wrong = [json!("a"), json!(""), json!("abcde")];
    let is_strict = |format| !has_notation(format);
    check_values(is_strict, &schema, &right, &wrong);
    let least = json!({"allOf": [{"type": "string"}, {"minLength": 1}]});
    check_values(is_strict, &least, &[json!("a\nb"), json!("a < b </p>")], &[json!("")]);
    for least in [0, 1, 1_999] {
        let schema = json!({"type": "string", "minLength": least, "maxLength": 2_000});
        let right = [json!("a".repeat(least)), json!("a".repeat(2_000))];
        check_values(is_strict, &schema, &right, &[json!("a".repeat(2_001))]);
    }
    // An end that comes too early is no text.
    for least in [2, 30, 1_999] {
        let schema = json!({"type": "string", "minLength": least});
        let early = json!(format!("\n</parameter>\n{}", "a".repeat(2_000)));
        check_values(|format| format == ToolFormat::QwenXml, &schema, &[], &[early]);
    }
}

#[test]
fn patterns_are_kept_to_in_json_and_do_no_harm_in_text() {
    let schema = json!({"type": "string", "pattern": "^[a-z]{2}-[0-9]$"});
    let is_json = |format| !has_notation(format) && !TAGGED.contains(&format);
    check_values(is_json, &schema, &[json!("ab-1")], &[json!("ab"), json!("ab-12")]);
    check_values(|format| !is_json(format), &schema, &[json!("ab-1")], &[]);
}

#[test]
fn required_arguments_are_found_behind_references() {
    let object = json!({
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    });
    let definitions = json!({"Args": object});
    let part =
        |name: &str| json!({"properties": {name: object["properties"][name]}, "required": [name]});
    for schema in [
        json!({"$ref": "#/$defs/Args", "$defs": definitions}),
        json!({"$ref": "#/$defs/Args", "$defs": {"Args": {
            "properties": object["properties"], "required": ["a", "b"],
        }}}),
        json!({"allOf": [{"$ref": "#/$defs/Args"}], "$defs": definitions}),
        json!({"allOf": [part("a"), part("b")]}),
        json!({"anyOf": [{"$ref": "#/$defs/Args"}], "$defs": definitions}),
        json!({"anyOf": [{"$ref": "#/$defs/Args"}, {"type": "null"}], "$defs": definitions}),
        json!({"type": ["object", "null"], "properties": object["properties"], "required": ["a", "b"]}),
    ] {
        // Text is text even where it looks like a number.
        let right = [json!({"a": "5", "b": 5})];
        let wrong = [json!({}), json!({"a": "x"}), json!({"b": 5}), json!({"a": "x", "b": "x"})];
        check_arguments(|_| true, &schema, &right, &wrong);
    }
}

#[test]
fn references_lead_to_any_part_of_the_schema() {
    let place = json!({
        "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false,
    });
    let to = |reference: &str| {
        json!({
            "type": "object",
            "properties": {"from": {"type": "array", "items": place}, "to": {"$ref": reference}},
            "required": ["from", "to"],
            "definitions": {"List<Place>": place, "whole": {"type": "string"}},
        })
    };
    let journey = |to: Value| json!({"from": [{"x": 1}], "to": to});
    // Values in Gemma's notation and in Python's are held to their form.
    let has_schema = |format| !has_notation(format);
    let right = [journey(json!({"x": 2}))];
    let wrong = [journey(json!({"y": 2})), journey(json!({"x": "a"})), journey(json!([]))];
    for reference in ["#/properties/from/items", "#/definitions/List%3CPlace%3E"] {
        check_arguments(|_| true, &to(reference), &right, &[]);
        check_arguments(has_schema, &to(reference), &[], &wrong);
    }
    // A schema that goes into a grammar as it is has no need of copies.
    let grammar = |parameters| {
        ToolFormat::Hermes.grammar(&[tool("f", parameters)], &Choice::Required, false, &|_| None)
    };
    let length = |reference| grammar(to(reference)).expect("a grammar").len();
    assert!(length("#/properties/from/items") < length("#/definitions/List%3CPlace%3E"));
    let tree = json!({
        "type": "object",
        "properties": {"below": {"type": "object", "properties": {"below": {"$ref": "#"}}, "additionalProperties": false}},
        "additionalProperties": false,
    });
    let right = [json!({}), json!({"below": {}}), json!({"below": {"below": {"below": {}}}})];
    check_arguments(|_| true, &tree, &right, &[]);
    check_arguments(has_schema, &tree, &[], &[json!({"below": {"below": {"above": {}}}})]);
    for nowhere in ["#/$defs/none", "#anchor", "https://example.com/place.json"] {
        let schema = json!({
            "type": "object",
            "properties": {"x": {"type": "object", "properties": {"y": {"$ref": nowhere}}, "additionalProperties": false}},
        });
        let right = [json!({"x": {"y": 5}}), json!({"x": {"y": [6]}})];
        check_arguments(|_| true, &schema, &right, &[]);
        check_arguments(has_schema, &schema, &[], &[json!({"x": {"z": 5}})]);
    }
}

#[test]
fn odd_names_are_written_or_refused_by_name() {
    let schema = |name: &str, required: &[&str]| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": required});
    for name in ["Due Date", "a<b", "a\"b", "a>b", "a:b", "größe", "a.b"] {
        for (format, has_specials) in variants() {
            let tools = [tool("f", schema(name, &[name]))];
            let grammar = format.grammar(&tools, &Choice::Required, false, &|_| None);
            let is_word = name.chars().all(|c| c.is_alphanumeric() || c == '.');
            let can_name = match format {
                ToolFormat::Gemma4 | ToolFormat::Pythonic => is_word,
                ToolFormat::QwenXml | ToolFormat::SeedXml => !name.contains('>'),
                ToolFormat::MiniMax | ToolFormat::DeepSeekXml => !name.contains(['>', '"']),
                _ => true,
            };
            if can_name {
                assert!(grammar.is_ok());
                let is_this = |other| other == format;
                check_arguments(is_this, &tools[0].parameters, &[json!({name: "x"})], &[json!({})]);
            } else {
                let expect = format!(
                    "tools: \"f\" requires {name:?}, which calls of this model cannot name"
                );
                assert_eq!(grammar.unwrap_err().to_string(), expect, "{format:?}");
                // What need not come is left out.
                let tools = vec![tool("f", schema(name, &[]))];
                let mut required =
                    Compiled::of(tools, format, &Choice::Required, false, has_specials);
                let call = write(format, has_specials, "f", &[]);
                required.takes(&answer(format, has_specials, &[call]), &[("f", json!({}))]);
            }
        }
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
    let odd =
        Tool { name: "a b".to_owned(), description: None, parameters: json!({}), is_strict: false };
    assert_eq!(error(&[odd], Choice::Required), "tools: \"a b\" is no name for one");
    for schema in [
        json!({"allOf": [{"enum": ["a"]}, {"enum": ["b"]}]}),
        json!({"enum": ["</parameter>"]}),
        json!({"type": "string", "minLength": 2, "maxLength": 1}),
    ] {
        let schema = json!({"properties": {"x": schema}, "required": ["x"]});
        let tools = [tool("f", schema)];
        let error = ToolFormat::QwenXml.grammar(&tools, &Choice::Required, false, &none);
        let expect = "tools: \"f\" requires \"x\", which has no value";
        assert_eq!(error.unwrap_err().to_string(), expect);
    }
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
