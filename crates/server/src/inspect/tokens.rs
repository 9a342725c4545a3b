//! Text to tokens and back, and conversations to prompts: what a model will see, without running it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};
use text::tools::Tool;

use crate::app::Posted;
use crate::ask::{Ask, Input};
use crate::error::{ApiError, chain};
use crate::fields::{Fields, Result, wrong};
use crate::openai::messages;
use crate::prepare;
use crate::shared::Shared;

/// `POST /tokenize`
pub(crate) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    Posted(body): Posted,
) -> Result<Json<Value>> {
    let model = Arc::clone(shared.model()?);
    let Tokenize { text, add_special, with_pieces } = Tokenize::read(&Fields::of_body(&body)?)?;
    let answer = prepare::blocking(move || {
        let tokenizer = &model.dialect.tokenizer;
        let tokens =
            tokenizer.encode(&text, add_special).map_err(|error| of_field("content", &error))?;
        if !with_pieces {
            return Ok(json!({"tokens": tokens}));
        }
        let piece = |&id: &u32| json!({"id": id, "piece": piece(tokenizer.token_bytes(id))});
        Ok(json!({"tokens": tokens.iter().map(piece).collect::<Vec<_>>()}))
    });
    Ok(Json(answer.await?))
}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    Posted(body): Posted,
) -> Result<Json<Value>> {
    let model = Arc::clone(shared.model()?);
    let tokens = token_list(&Fields::of_body(&body)?, model.facts.vocabulary)?;
    let answer = prepare::blocking(move || {
        let decoded = model.dialect.tokenizer.decode(&tokens, false);
        decoded.map_err(|error| of_field("tokens", &error))
    });
    Ok(Json(json!({"content": answer.await?})))
}

/// `POST /apply-template`
pub(crate) async fn apply_template(
    State(shared): State<Arc<Shared>>,
    Posted(body): Posted,
) -> Result<Json<Value>> {
    let ask = templated(&Fields::of_body(&body)?)?;
    let prompt = prepare::prompt(&shared, ask).await?;
    Ok(Json(json!({"prompt": prompt.text, "tokens": prompt.tokens.len()})))
}

#[derive(Debug, PartialEq, Eq)]
struct Tokenize {
    text: String,
    add_special: bool,
    with_pieces: bool,
}

impl Tokenize {
    fn read(fields: &Fields<'_>) -> Result<Tokenize> {
        // Servers differ in what they call it.
        let keys = ["content", "text", "prompt"];
        let key = keys.into_iter().find(|key| fields.get(key).is_some()).unwrap_or(keys[0]);
        fields.required(key)?;
        Ok(Tokenize {
            text: fields.string(key)?.unwrap_or_default().to_owned(),
            add_special: fields.bool("add_special")?.unwrap_or(false),
            with_pieces: fields.bool("with_pieces")?.unwrap_or(false),
        })
    }
}

/// The bytes of a token as text, or as a list where they are not whole characters.
fn piece(bytes: Option<Vec<u8>>) -> Value {
    match String::from_utf8(bytes.unwrap_or_default()) {
        Ok(text) => text.into(),
        Err(error) => error.into_bytes().into(),
    }
}

fn token_list(fields: &Fields<'_>, vocabulary: usize) -> Result<Vec<u32>> {
    fields.required("tokens")?;
    let tokens = fields.array("tokens")?.unwrap_or_default().iter().enumerate();
    let token = |(index, value): (usize, &Value)| {
        let path = format!("tokens[{index}]");
        // Some clients have no integers.
        let whole = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
        let number = value.as_u64().or(value.as_f64().filter(whole).map(|number| number as u64));
        let number = number.ok_or_else(|| wrong(&path, "a token id", value))?;
        match u32::try_from(number) {
            Ok(id) if (id as usize) < vocabulary => Ok(id),
            _ => {
                let message =
                    format!("token {number} does not exist, the vocabulary has {vocabulary}");
                Err(ApiError::field(path, message))
            }
        }
    };
    tokens.map(token).collect()
}

fn templated(fields: &Fields<'_>) -> Result<Ask> {
    let mut ask = Ask::new(Input::Chat(messages::read(fields)?));
    for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let path = format!("tools[{index}]");
        let tool = Tool::from_json(tool).map_err(|error| of_field(&path, &error))?;
        ask.add_tool(tool, &path)?;
    }
    ask.thinking = fields.bool("enable_thinking")?;
    let mut variables = Map::new();
    if let Some(open) = fields.bool("add_generation_prompt")? {
        variables.insert("add_generation_prompt".to_owned(), open.into());
    }
    variables.extend(fields.map("chat_template_kwargs")?.cloned().unwrap_or_default());
    ask.template_variables = variables;
    Ok(ask)
}

fn of_field(path: &str, error: &text::Error) -> ApiError {
    ApiError::field(path, chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused<T: std::fmt::Debug>(
        read: impl Fn(&Fields<'_>) -> Result<T>,
        body: &Value,
        param: &str,
    ) {
        let error = read(&Fields::of_body(body).unwrap()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }

    #[test]
    fn text_has_several_names() {
        #[track_caller]
        fn check(body: &Value, expect: (&str, bool, bool)) {
            let got = Tokenize::read(&Fields::of_body(body).unwrap()).unwrap();
            assert_eq!((got.text.as_str(), got.add_special, got.with_pieces), expect);
        }
        check(&json!({"content": "a"}), ("a", false, false));
        check(&json!({"text": "a", "with_pieces": true}), ("a", false, true));
        check(&json!({"content": null, "prompt": "a", "add_special": true}), ("a", true, false));
        check(&json!({"content": ""}), ("", false, false));
        refused(Tokenize::read, &json!({}), "content");
        refused(Tokenize::read, &json!({"text": 1}), "text");
        refused(Tokenize::read, &json!({"text": "", "add_special": 1}), "add_special");
    }

    #[test]
    fn tokens_are_checked_one_by_one() {
        let read = |fields: &Fields<'_>| token_list(fields, 100);
        let fields = json!({"tokens": [0, 99, 7.0]});
        assert_eq!(read(&Fields::of_body(&fields).unwrap()).unwrap(), [0, 99, 7]);
        refused(read, &json!({}), "tokens");
        refused(read, &json!({"tokens": "1"}), "tokens");
        refused(read, &json!({"tokens": [1, "2"]}), "tokens[1]");
        refused(read, &json!({"tokens": [1, -2]}), "tokens[1]");
        refused(read, &json!({"tokens": [100]}), "tokens[0]");
        refused(read, &json!({"tokens": [1u64 << 40]}), "tokens[0]");
        refused(read, &json!({"tokens": [1.5]}), "tokens[0]");
    }

    #[test]
    fn half_characters_are_bytes() {
        assert_eq!(piece(Some(b"ab".to_vec())), json!("ab"));
        assert_eq!(piece(Some(vec![0xc3])), json!([0xc3]));
        assert_eq!(piece(None), json!(""));
    }

    #[test]
    fn a_template_takes_variables() {
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}], "enable_thinking": false,
            "add_generation_prompt": false, "chat_template_kwargs": {"x": 1},
            "tools": [{"type": "function", "function": {"name": "f"}}],
        });
        let ask = templated(&Fields::of_body(&body).unwrap()).unwrap();
        assert_eq!(
            Value::Object(ask.template_variables),
            json!({"add_generation_prompt": false, "x": 1})
        );
        assert_eq!((ask.thinking, ask.tools.len()), (Some(false), 1));
        refused(templated, &json!({}), "messages");
        refused(templated, &json!({"messages": [1]}), "messages[0]");
        refused(templated, &json!({"messages": [{"content": "x"}]}), "messages[0].role");
        refused(templated, &json!({"messages": []}), "messages");
        let with = |key: &str, value: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
            body[key] = value;
            body
        };
        refused(templated, &with("tools", json!([{}])), "tools[0]");
        refused(templated, &with("chat_template_kwargs", json!(1)), "chat_template_kwargs");
    }
}
