//! Reading what an answer must look like: `response_format`, and what other servers call by other names.

use engine::session::AnswerRequest;
use grammar::Grammar;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};

/// Fields that some servers have in addition to `response_format`, and their names inside `structured_outputs`.
const GUIDES: [(&str, &str); 4] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
];

/// The grammar of an answer, if it has to follow one.
pub(super) fn read(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    let mut found: Option<(String, Grammar)> = None;
    let mut keep = |path: String, grammar: Grammar| match &found {
        Some((first, _)) => {
            Err(ApiError::field(path, format!("{first} is there already: use one")))
        }
        None => {
            found = Some((path, grammar));
            Ok(())
        }
    };
    if let Some(format) = fields.fields("response_format")?
        && let Some(grammar) = response_format(&format, "json_schema")?
    {
        keep(fields.path("response_format"), grammar)?;
    }
    let structured = fields.fields("structured_outputs")?;
    for (own, inner) in GUIDES {
        let guides = [(Some(fields), own), (structured.as_ref(), inner)];
        for (fields, key) in guides {
            let Some(fields) = fields else { continue };
            if let Some(grammar) = guide(fields, key, inner)? {
                keep(fields.path(key), grammar)?;
            }
        }
    }
    if let Some((field, grammar)) = found {
        (request.grammar_field, request.grammar) = (field, Some(grammar));
    }
    Ok(())
}

/// `home` is the field of a schema in this API; both are read.
pub(super) fn response_format(format: &Fields<'_>, home: &str) -> Result<Option<Grammar>> {
    format.required("type")?;
    Ok(match format.string("type")?.unwrap_or_default() {
        "text" => None,
        "json_object" => Some(match format.map("schema")? {
            Some(schema) => json_schema(schema),
            None => Grammar::JsonObject,
        }),
        "json_schema" => {
            // Some clients leave out the object around the schema.
            let inner = format.fields("json_schema")?;
            if inner.is_none() && format.get("schema").is_none() {
                format.required(home)?;
            }
            let inner = inner.as_ref().unwrap_or(format);
            inner.string("name")?;
            inner.bool("strict")?;
            inner.required("schema")?;
            inner.map("schema")?.map(json_schema)
        }
        "regex" => {
            let key = if format.get("regex").is_some() { "regex" } else { "pattern" };
            format.required(key)?;
            guide(format, key, "regex")?
        }
        "grammar" => {
            format.required("grammar")?;
            guide(format, "grammar", "grammar")?
        }
        other => {
            let message =
                format!("must be text, json_object, json_schema, regex or grammar, got {other:?}");
            return Err(format.error("type", message));
        }
    })
}

fn json_schema(schema: &Map<String, Value>) -> Grammar {
    Grammar::JsonSchema(Value::Object(schema.clone()))
}

/// The grammar of this kind in a field.
fn guide(fields: &Fields<'_>, key: &str, kind: &str) -> Result<Option<Grammar>> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    Ok(Some(match (kind, value) {
        ("json", Value::Object(schema)) => json_schema(schema),
        ("json", Value::String(text)) => {
            let schema = serde_json::from_str(text)
                .map_err(|error| fields.error(key, format!("is not JSON: {error}")))?;
            Grammar::JsonSchema(schema)
        }
        ("json", other) => return Err(wrong(&fields.path(key), "an object", other)),
        ("choice", _) => one_of(fields, key)?,
        ("regex", Value::String(regex)) => Grammar::Regex(regex.clone()),
        ("grammar", Value::String(lark)) => Grammar::Lark(lark.clone()),
        (_, other) => return Err(wrong(&fields.path(key), "a string", other)),
    }))
}

/// Exactly one of some texts.
fn one_of(fields: &Fields<'_>, key: &str) -> Result<Grammar> {
    let choices = fields.strings(key)?;
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(fields.error(key, "needs texts to choose from, none of them empty"));
    }
    // Strings of the grammar are strings of JSON.
    let quoted: Vec<String> =
        choices.into_iter().map(|text| Value::from(text).to_string()).collect();
    Ok(Grammar::Lark(format!("start: {}\n", quoted.join(" | "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::session::Input;
    use serde_json::json;

    fn read_alone(body: &Value) -> Result<AnswerRequest> {
        let mut request = AnswerRequest::new(Input::Tokens(Vec::new()));
        read(&Fields::of_body(body).unwrap(), &mut request)?;
        Ok(request)
    }

    #[track_caller]
    fn check(body: &Value, expect: Option<&Grammar>) {
        assert_eq!(read_alone(body).unwrap().grammar.as_ref(), expect);
    }

    #[track_caller]
    fn refused(body: &Value, param: &str) {
        let error = read_alone(body).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }

    #[test]
    fn formats() {
        let schema = json!({"type": "object"});
        let followed = Grammar::JsonSchema(schema.clone());
        let expect = Some(&followed);
        let format = |format: Value| json!({"response_format": format});
        check(&json!({}), None);
        check(&format(json!(null)), None);
        check(&format(json!({"type": "text"})), None);
        check(&format(json!({"type": "json_object"})), Some(&Grammar::JsonObject));
        check(&format(json!({"type": "json_object", "schema": schema})), expect);
        let named = json!({"name": "n", "schema": schema, "strict": true});
        check(&format(json!({"type": "json_schema", "json_schema": named})), expect);
        check(&format(json!({"type": "json_schema", "schema": schema})), expect);
        let regex = Grammar::Regex("a+".to_owned());
        check(&format(json!({"type": "regex", "pattern": "a+"})), Some(&regex));
        check(&json!({"guided_regex": "a+"}), Some(&regex));
        check(&json!({"structured_outputs": {"regex": "a+"}}), Some(&regex));
        check(&json!({"guided_json": schema}), expect);
        check(&json!({"guided_json": "{\"type\": \"object\"}"}), expect);
        let lark = "start: \"a\"";
        let expect = Grammar::Lark(lark.to_owned());
        check(&json!({"guided_grammar": lark}), Some(&expect));
        check(&format(json!({"type": "grammar", "grammar": lark})), Some(&expect));
        let either = Grammar::Lark("start: \"yes\" | \"\\\"no\\\"\"\n".to_owned());
        check(&json!({"guided_choice": ["yes", "\"no\""]}), Some(&either));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let format = |format: Value| json!({"response_format": format});
        refused(&format(json!("json")), "response_format");
        refused(&format(json!({})), "response_format.type");
        refused(&format(json!({"type": "xml"})), "response_format.type");
        refused(&format(json!({"type": "json_schema"})), "response_format.json_schema");
        refused(
            &format(json!({"type": "json_schema", "json_schema": {"name": "n"}})),
            "response_format.json_schema.schema",
        );
        refused(
            &format(json!({"type": "json_schema", "json_schema": {"schema": true}})),
            "response_format.json_schema.schema",
        );
        refused(&format(json!({"type": "regex"})), "response_format.pattern");
        refused(&json!({"guided_json": 1}), "guided_json");
        refused(&json!({"guided_json": "{"}), "guided_json");
        refused(&json!({"guided_regex": ["a"]}), "guided_regex");
        refused(&json!({"guided_choice": []}), "guided_choice");
        refused(&json!({"structured_outputs": {"choice": [1]}}), "structured_outputs.choice[0]");
        refused(
            &json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}),
            "guided_regex",
        );
    }
}
