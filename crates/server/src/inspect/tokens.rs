//! Text to tokens and back, and conversations to prompts: what a model will see, without running it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use engine::session::AnswerRequest;
use serde_json::{Value, json};

use crate::body::Posted;
use crate::error::{ApiError, chain};
use crate::fields::{Fields, Result, wrong};
use crate::openai::chat;
use crate::prepare;
use crate::shared::ServerState;

/// `POST /tokenize`
pub(crate) async fn tokenize(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Response> {
    let model = Arc::clone(shared.model()?);
    let (asked, share) = posted.read(|body| Tokenize::read(&Fields::of_body(body)?))?;
    let Tokenize { text, add_special, with_pieces } = asked;
    let size = share.bytes();
    let tokens = prepare::tokens(&shared, text, add_special, share).await;
    let (tokens, share) = tokens.map_err(|error| error.renamed("messages", "content"))?;
    prepare::in_turn(&shared, size, move || {
        let tokenizer = &model.session.text.tokenizer;
        // As text, piece by piece: values would take some hundred bytes for each.
        let mut answer = String::from("{\"tokens\":[");
        for (index, &id) in tokens.iter().enumerate() {
            answer.push_str(if index == 0 { "" } else { "," });
            match with_pieces {
                true => {
                    let piece = json!({"id": id, "piece": piece(tokenizer.token_bytes(id))});
                    answer.push_str(&piece.to_string());
                }
                false => answer.push_str(&id.to_string()),
            }
        }
        answer.push_str("]}");
        drop(share);
        Ok(([(header::CONTENT_TYPE, "application/json")], answer).into_response())
    })
    .await
}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Json<Value>> {
    let model = Arc::clone(shared.model()?);
    let vocabulary = model.facts.vocabulary;
    let (tokens, share) = posted.read(|body| token_list(&Fields::of_body(body)?, vocabulary))?;
    let answer = prepare::in_turn(&shared, share.bytes(), move || {
        let decoded = model.session.text.tokenizer.decode(&tokens, false);
        drop(share);
        decoded.map_err(|error| of_field("tokens", &error))
    });
    Ok(Json(json!({"content": answer.await?})))
}

/// `POST /apply-template`
pub(crate) async fn apply_template(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Json<Value>> {
    let (request, share) = posted.read(templated)?;
    let (prompt, _share) = prepare::prompt(&shared, request, share).await?;
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

/// The request that chat would make, so that what is shown is what it would send; and whether an answer is opened, which chat
/// leaves to the variables of the template.
fn templated(body: &Value) -> Result<AnswerRequest> {
    let mut request = chat::read(body)?.request;
    if let Some(open) = Fields::of_body(body)?.bool("add_generation_prompt")? {
        let variable = request.template_variables.entry("add_generation_prompt");
        variable.or_insert(open.into());
    }
    Ok(request)
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

    /// A conversation, and these fields in addition to it.
    fn with(more: &Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
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
        #[track_caller]
        fn check(more: &Value, expect: &Value) {
            assert_eq!(Value::Object(templated(&with(more)).unwrap().template_variables), *expect);
        }
        check(&json!({}), &json!({}));
        check(
            &json!({"add_generation_prompt": false, "chat_template_kwargs": {"x": 1}}),
            &json!({"add_generation_prompt": false, "x": 1}),
        );
        // The more exact one wins.
        let open = json!({"add_generation_prompt": true});
        check(&json!({"add_generation_prompt": false, "chat_template_kwargs": open}), &open);
    }

    #[test]
    fn a_shown_prompt_is_the_one_of_chat() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let (f, g) = (tool("f"), tool("g"));
        let allowed = json!({"type": "allowed_tools", "tools": [g]});
        for more in [
            json!({}),
            json!({"reasoning_effort": "high"}),
            json!({"reasoning_effort": "none", "enable_thinking": true}),
            json!({"tools": [f, g], "tool_choice": "none"}),
            json!({"tools": [f, g], "tool_choice": allowed}),
            json!({"functions": [{"name": "f"}]}),
            json!({"chat_template_kwargs": {"enable_thinking": false, "x": 1}}),
        ] {
            let body = with(&more);
            let (shown, sent) = (templated(&body).unwrap(), chat::read(&body).unwrap().request);
            assert_eq!(format!("{shown:?}"), format!("{sent:?}"));
        }
    }

    #[test]
    fn what_a_template_cannot_take_is_named() {
        #[track_caller]
        fn refused(more: &Value, param: &str) {
            let error = templated(&with(more)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
        }
        refused(&json!({"messages": null}), "messages");
        refused(&json!({"messages": [1]}), "messages[0]");
        refused(&json!({"messages": [{"content": "x"}]}), "messages[0].role");
        refused(&json!({"messages": []}), "messages");
        refused(&json!({"tools": [{}]}), "tools[0].function");
        refused(&json!({"tool_choice": 5}), "tool_choice");
        refused(&json!({"temperature": "hot"}), "temperature");
        refused(&json!({"reasoning_effort": "banana"}), "reasoning_effort");
        refused(&json!({"add_generation_prompt": "x"}), "add_generation_prompt");
        refused(&json!({"chat_template_kwargs": 1}), "chat_template_kwargs");
        refused(&json!({"chat_template_kwargs": {"tools": [1]}}), "chat_template_kwargs.tools");
    }
}
