//! Grammars that are refused, each for its reason, and grammars that are taken; for Pebble's vocabulary.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use checkpoint::Checkpoint;
use grammar::{Before, Grammar, GrammarError, Grammars, Unlimited};
use serde_json::{Value, json};

fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pebble");
        let text = engine::open_text(&Checkpoint::open(&folder).expect("pebble")).expect("text");
        let vocabulary = text.tokenizer.vocab_size();
        Grammars::new(&text.tokenizer.grammar_tokens(vocabulary), &text.eos, Arc::new(Unlimited))
            .expect("grammars")
    })
}

/// The grammar is refused for this reason, in a line that holds these words.
#[track_caller]
fn check(grammar: &Grammar, kind: &str, words: &str) {
    let error = match grammars().compile(grammar, Before::Nothing) {
        Ok(_) => panic!("{grammar:?} was taken"),
        Err(error) => error,
    };
    let got = match &error {
        GrammarError::TooLarge { .. } => "too large",
        GrammarError::TooComplex { .. } => "too complex",
        GrammarError::Unsupported { .. } => "unsupported",
        GrammarError::Invalid { .. } => "invalid",
        _ => "other",
    };
    let message = error.to_string();
    println!("{message}");
    assert_eq!(got, kind, "{message}");
    assert!(message.contains(words), "{message}");
    assert!(message.chars().count() <= 400 && message.lines().count() == 1, "{message}");
    assert!(!message.contains("backtrace") && !message.contains("panic"), "{message}");
}

fn nested(depth: usize, inner: Value) -> Value {
    (0..depth).fold(inner, |inner, _| json!({"type": "array", "items": inner}))
}

#[test]
fn bad_schemas_are_refused() {
    let check =
        |schema: Value, kind: &str, words: &str| check(&Grammar::JsonSchema(schema), kind, words);
    // Not schemas.
    check(json!([1, 2]), "invalid", "JSON object");
    check(json!("string"), "invalid", "JSON object");
    check(json!(true), "invalid", "JSON object");
    check(json!({"type": "colour"}), "invalid", "colour");
    check(json!({"type": 7}), "invalid", "type");
    check(json!({"type": ["string", 7]}), "invalid", "type");
    check(json!({"type": "object", "properties": [1]}), "invalid", "properties");
    check(json!({"type": "object", "required": "name"}), "invalid", "required");
    check(json!({"type": "string", "maxLength": -1}), "invalid", "maxLength");
    check(json!({"type": "string", "pattern": "(["}), "invalid", "");
    check(json!({"type": "integer", "minimum": "one"}), "invalid", "minimum");
    check(json!({"enum": 3}), "invalid", "enum");
    check(json!({"anyOf": {}}), "invalid", "anyOf");
    // Nothing satisfies them.
    check(json!({"type": "integer", "minimum": 5, "maximum": 4}), "invalid", "5");
    check(json!({"type": "string", "minLength": 5, "maxLength": 4}), "invalid", "minLength");
    check(
        json!({"type": "array", "items": {}, "minItems": 2, "maxItems": 1}),
        "invalid",
        "minItems",
    );
    check(json!({"enum": []}), "invalid", "");
    check(json!({"allOf": [{"type": "string"}, {"type": "null"}]}), "invalid", "");
    let circle = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    check(circle, "invalid", "");
    // References.
    check(json!({"$ref": "https://example.com/schema.json"}), "unsupported", "$ref");
    check(json!({"$ref": "file:///etc/passwd"}), "unsupported", "$ref");
    check(json!({"$ref": "#/$defs/none"}), "invalid", "leads nowhere");
    check(json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}}), "unsupported", "a~1b");
    // Keywords.
    check(json!({"type": "array", "uniqueItems": true}), "unsupported", "uniqueItems");
    check(json!({"not": {"type": "string"}}), "unsupported", "not");
    check(json!({"if": {}, "then": {}, "else": {}}), "unsupported", "if");
    check(
        json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
        "unsupported",
        "dependentRequired",
    );
    check(json!({"type": "string", "format": "regex"}), "unsupported", "format regex");
    check(
        json!({"type": "object", "propertyNames": {"minLength": 2}}),
        "unsupported",
        "propertyNames",
    );
    check(json!({"type": "string", "pattern": "(?=a)b"}), "unsupported", "look-around");
    let either =
        json!({"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]});
    check(either, "unsupported", "oneOf");
    // Too much.
    check(nested(70, json!({})), "too large", "levels");
    check(json!({"enum": (0..3000).collect::<Vec<_>>()}), "too large", "enum");
    check(json!({"const": "x".repeat(300 << 10)}), "too large", "bytes");
    check(json!({"const": vec![0; 25_000]}), "too large", "values");
    let options = vec![json!({"type": "string"}); 600];
    check(json!({"anyOf": options}), "too large", "options");
    let properties: serde_json::Map<String, Value> =
        (0..2000).map(|index| (format!("p{index}"), json!(true))).collect();
    check(json!({"type": "object", "properties": properties}), "too large", "properties");
    check(
        json!({"type": "string", "pattern": "ab".repeat(10 << 10)}),
        "too large",
        "regular expression",
    );
    let patterns: serde_json::Map<String, Value> =
        (0..200).map(|index| (format!("^p{index}$"), json!({}))).collect();
    let patterns = json!({"type": "object", "patternProperties": patterns});
    check(patterns.clone(), "too large", "patterns");
    // What a reference leads to is a schema, whatever it is where it stands.
    let led_to = |schema: &Value| {
        [
            json!({"properties": {"x": {"$ref": "#/default"}}, "default": schema}),
            json!({"$ref": "#/$defs/0", "$defs": [{"$ref": "#/$defs/1"}, schema]}),
            json!({"$ref": "#/properties", "properties": {"$ref": "#/enum/0"}, "enum": [schema]}),
        ]
    };
    for schema in led_to(&patterns) {
        check(schema, "too large", "patterns");
    }
    for schema in led_to(&json!({"enum": (0..3000).collect::<Vec<_>>()})) {
        check(schema, "too large", "enum");
    }
    let [data, listed, _] = led_to(&json!({"oneOf": [{"minimum": 3}, {"maximum": 5}]}));
    check(data, "unsupported", "oneOf");
    check(listed, "unsupported", "oneOf");
    let chain: serde_json::Map<String, Value> = (0..6000)
        .map(|index| {
            (format!("{index}"), json!({"$ref": format!("#/$defs/{}", (index + 1) % 6000)}))
        })
        .collect();
    check(json!({"$defs": chain, "$ref": "#/$defs/0"}), "too large", "levels through references");
    let properties: serde_json::Map<String, Value> =
        (0..600).map(|index| (format!("p{index}"), json!({"type": "string"}))).collect();
    check(json!({"type": "object", "properties": properties}), "too complex", "items");
    // Expressions that one text must match, side by side or through references and merged objects.
    let met = |index: usize| json!({"pattern": format!("^.*({}){index}.*$", "ab|".repeat(60))});
    check(json!({"allOf": [met(1), met(2), met(3)]}), "too large", "must match");
    let properties = |index: usize| json!({"properties": {"x": met(index)}});
    check(
        json!({"allOf": [properties(1), {"$ref": "#/$defs/a"}, properties(3)], "$defs": {"a": properties(2)}}),
        "too large",
        "must match",
    );
    let lists = |index: usize| json!({"items": {"anyOf": [{"const": 1}, met(index)]}});
    check(json!({"allOf": [lists(1), lists(2), lists(3)]}), "too large", "must match");
    let names: serde_json::Map<String, Value> = ["a", "b"]
        .map(|name| (format!("^{name}({}c)*$", "a?".repeat(2000)), json!({})))
        .into_iter()
        .collect();
    check(json!({"type": "object", "patternProperties": names}), "too large", "must match");
    // Each definition is copied twice into the one before: 2⁴⁰ values.
    let bomb: serde_json::Map<String, Value> = (0..40)
        .map(|index| {
            let next = json!({"type": "object", "$ref": format!("#/$defs/{}", index + 1)});
            (format!("{index}"), json!({"properties": {"a": next, "b": next}}))
        })
        .chain([("40".to_owned(), json!({"type": "object"}))])
        .collect();
    check(json!({"$defs": bomb, "$ref": "#/$defs/0"}), "too large", "references followed");
}

#[test]
fn bad_expressions_are_refused() {
    let regex =
        |text: &str, kind: &str, words: &str| check(&Grammar::Regex(text.to_owned()), kind, words);
    regex("", "invalid", "empty");
    regex("a\\", "invalid", "backslash");
    regex("(a", "invalid", "");
    regex("a{3,1}", "invalid", "");
    regex("(?=a)b", "unsupported", "look-around");
    regex(&"a|".repeat(9 << 10), "too large", "bytes");
    regex(&"(".repeat(5000), "invalid", "");
    let lark =
        |text: &str, kind: &str, words: &str| check(&Grammar::Lark(text.to_owned()), kind, words);
    lark("", "invalid", "");
    lark("start: nothing", "invalid", "nothing");
    lark("start: \"a", "invalid", "");
    lark("start: <|no_such_token|>", "invalid", "no_such_token");
    lark("start: %json {\"type\": ", "invalid", "JSON");
    lark("start: %json {\"type\": \"colour\"}", "invalid", "colour");
    lark("start: %json {\"uniqueItems\": true}", "unsupported", "uniqueItems");
    lark(&format!("start: {}", "(".repeat(100_000)), "too large", "brackets");
    lark(&format!("start: <\"> {} \"", "(".repeat(100_000)), "too large", "brackets");
    lark(&"a".repeat(300 << 10), "too large", "bytes");
    let tokens: String = (0..60).map(|index| format!("T{index}: /.*{index}.*/\n")).collect();
    let names: Vec<String> = (0..60).map(|index| format!("T{index}")).collect();
    lark(&format!("start: T\nT: {}\n{tokens}", names.join(" & ")), "too large", "intersection");
    let text = "(a|b)*a(a|b)".repeat(100);
    lark(&format!("start: T\nT: /{text}a/ & /{text}b/"), "too large", "intersection");
    let rules: String = (0..5000).map(|index| format!("r{index}: r{}\n", index + 1)).collect();
    lark(&format!("start: r0\n{rules}"), "too large", "rules");
}

#[test]
fn usual_schemas_are_taken() {
    let take = |schema: Value| {
        grammars()
            .compile(&Grammar::JsonSchema(schema.clone()), Before::Nothing)
            .unwrap_or_else(|e| panic!("{e}: {schema}"));
    };
    take(json!({}));
    take(
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}, "description": "a string"}),
    );
    // As generators for TypeScript write it.
    take(json!({
        "$ref": "#/definitions/Record%3Cstring%2Cnumber%3E",
        "definitions": {"Record<string,number>": {"type": "object", "additionalProperties": {"type": "number"}}},
    }));
    // Expressions for different values do not meet.
    let pattern = |index: usize| json!({"type": "string", "pattern": format!("^[a-z]{{{index}}}(-[0-9]+)*$")});
    let properties: serde_json::Map<String, Value> =
        (1..40).map(|index| (format!("p{index}"), pattern(index))).collect();
    take(json!({"type": "object", "properties": properties}));
    take(json!({"allOf": [{"pattern": "^a.*$"}, {"pattern": "^.*b$"}, {"maxLength": 10}]}));
    // Data that looks like a reference.
    take(json!({
        "type": "object", "default": {"$ref": "#/none"}, "properties": {"default": {"const": {"$ref": "#/none"}}},
    }));
    // A tree, and options that a constant distinguishes behind references.
    take(json!({
        "$defs": {"tree": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"type": "integer"}},
        }},
        "$ref": "#/$defs/tree",
    }));
    let kind = |name: &str| json!({"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]});
    take(json!({
        "$defs": {"cat": kind("cat"), "dog": kind("dog")},
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"type": "null"}],
    }));
    take(nested(20, json!({"type": "string", "format": "date-time"})));
    // What constrains nothing, as zod and pydantic write it; properties may have these names.
    let notes = json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {
        "anyOf": [{"type": "string", "format": "cuid", "pattern": "^c"}, {"type": "array", "items": {"format": "path"}}]}});
    take(json!({"type": "object", "$defs": {"a": notes}, "properties": {
        "format": {"type": "string", "format": "binary"}, "propertyNames": {"$ref": "#/$defs/a"}}}));
    take(json!({"enum": (0..2000).map(|index| format!("option {index}")).collect::<Vec<_>>()}));
    let properties: serde_json::Map<String, Value> = (0..300)
        .map(|index| (format!("p{index}"), json!({"type": "string", "maxLength": 1000})))
        .collect();
    take(json!({"type": "object", "properties": properties}));
    take(json!({"type": "array", "items": {"type": "number"}, "maxItems": 1_000_000_000}));
}
