//! Absurd schemas, expressions and grammars: refused before anything is generated, and quickly enough.

use serde_json::{Value, json};

use super::super::served::Served;
use super::{CHAT, chat_with, refused, short};

fn format(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
}

/// A schema nested this deep.
fn deep(depth: usize) -> Value {
    (0..depth).fold(
        json!({"type": "string"}),
        |inner, _| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]}),
    )
}

#[test]
fn schemas_that_cannot_be_followed_are_refused() {
    let served = Served::start(&[]);
    let cases = [
        json!({"type": "frob"}),
        json!({"type": 5}),
        json!({"$ref": "http://example.com/schema.json"}),
        json!({"$ref": "file:///etc/passwd"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"$ref": "#"}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"type": "string", "minLength": 5, "maxLength": 2}),
        json!({"type": "integer", "minimum": 10, "maximum": 1}),
        json!({"type": "array", "items": {"type": "null"}, "minItems": 4, "maxItems": 1}),
        json!({"enum": []}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "string", "minLength": 1e15}),
        json!({"enum": (0..20_000).map(|index| format!("{index:0>50}")).collect::<Vec<_>>()}),
        json!({"type": "object", "properties": "x"}),
        json!({"type": "object", "required": 5}),
    ];
    for schema in cases {
        let body = chat_with("response_format", format(&schema));
        let reply = served.post(CHAT, &body);
        let status = reply.status;
        let error = reply.json();
        assert_eq!(status, 400, "{error} to {}", short(&schema.to_string()));
        let param = error["error"]["param"].as_str().unwrap_or_default();
        assert!(param.starts_with("response_format"), "{error} to {}", short(&schema.to_string()));
    }
    // These can be begun, at least: whatever the outcome, it costs other requests nothing.
    let wide: serde_json::Map<String, Value> =
        (0..500).map(|index| (format!("p{index}"), deep(5))).collect();
    for schema in [
        deep(50),
        json!({"type": "object", "properties": wide}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        json!({"type": "string", "pattern": "^(a{1000}){1000}$"}),
        json!({"type": "string", "pattern": "^((((a*)*)*)*)*b{60000}$"}),
        json!({"type": "array", "minItems": 1_000_000_000, "items": {}}),
    ] {
        let status = served.post(CHAT, &chat_with("response_format", format(&schema))).status;
        assert!(matches!(status, 200 | 400), "{status} to {}", short(&schema.to_string()));
    }
    served.check_answers();
}

#[test]
fn formats_that_are_none_are_refused() {
    let served = Served::start(&[]);
    for (value, param) in [
        (json!({}), "response_format.type"),
        (json!({"type": "xml"}), "response_format.type"),
        (json!({"type": "json_schema"}), "response_format.json_schema"),
        (
            json!({"type": "json_schema", "json_schema": {"name": "x"}}),
            "response_format.json_schema.schema",
        ),
        (
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}),
            "response_format.json_schema.schema",
        ),
    ] {
        refused(&served, CHAT, &chat_with("response_format", value), param);
    }
    for (field, value) in [
        ("guided_regex", json!("(")),
        ("guided_regex", json!("(?<name>a)\\k<name>")),
        ("guided_grammar", json!("start: nothing_here")),
        ("guided_grammar", json!("start: start")),
        ("guided_grammar", json!("%import common.NOPE")),
        ("guided_choice", json!([])),
        ("guided_json", json!("{")),
    ] {
        let body = chat_with(field, value.clone());
        let reply = served.post(CHAT, &body);
        let status = reply.status;
        assert_eq!(status, 400, "{field}: {value}: {}", reply.text());
    }
    served.check_answers();
}

#[test]
fn schemas_of_tools_are_untrusted_too() {
    let served = Served::start(&[]);
    for parameters in [
        json!({"type": "frob"}),
        json!({"$ref": "file:///etc/passwd"}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(a{1000}){1000}"}}, "required": ["a"]}),
    ] {
        let mut body = chat_with(
            "tools",
            json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]),
        );
        // Shown to the model; what cannot be enforced of it is left to the model.
        for choice in ["auto", "required"] {
            body["tool_choice"] = choice.into();
            let status = served.post(CHAT, &body).status;
            assert!(matches!(status, 200 | 400), "{status} to {}", short(&parameters.to_string()));
        }
    }
    served.check_answers();
}

#[test]
fn expressions_that_are_too_much_do_not_keep_a_tool_from_being_called() {
    let served = Served::start(&[]);
    let pattern = |pattern: &str| json!({"type": "array", "items": {"type": "string", "pattern": pattern, "maxLength": 9}, "maxItems": 3});
    for odd in [
        pattern("(a{1000}){1000}"),
        pattern("^(?!a).*$"),
        // As JavaScript writes it.
        pattern("^[^[\\]]+$"),
        pattern(&"lantern ".repeat(2_200)),
        json!({"type": "object", "patternProperties": {"^(?!_)": {}, "a": {"type": "string"}}, "additionalProperties": false}),
    ] {
        let parameters = json!({
            "type": "object", "properties": {"odd": odd, "size": {"enum": ["big"]}}, "required": ["size"],
        });
        let mut body = chat_with(
            "tools",
            json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]),
        );
        body["tool_choice"] = "required".into();
        body["max_tokens"] = 400.into();
        let reply: Value = serde_json::from_str(&served.post(CHAT, &body).text()).expect("JSON");
        let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments = call["arguments"].as_str().unwrap_or_else(|| panic!("{reply}"));
        let arguments: Value =
            serde_json::from_str(arguments).unwrap_or_else(|_| panic!("{reply}"));
        assert_eq!(arguments["size"], "big", "{reply}");
    }
}

/// What no compiler notices: an array must have an item, and an item is what an item is.
#[test]
fn a_grammar_that_ends_in_nothing_is_refused_by_its_field() {
    let served = Served::start(&[]);
    let circle = json!({
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
        "required": ["a"],
        "$defs": {"a": {"$ref": "#/$defs/a"}},
    });
    let mut body = chat_with(
        "tools",
        json!([{"type": "function", "function": {"name": "f", "parameters": circle}}]),
    );
    body["tool_choice"] = "required".into();
    body["max_tokens"] = 400.into();
    refused(&served, CHAT, &body, "tool_choice");
    body = chat_with("response_format", format(&circle));
    body["max_tokens"] = 400.into();
    refused(&served, CHAT, &body, "response_format");
    served.check_answers();
}
