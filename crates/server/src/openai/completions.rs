//! `POST /v1/completions`: text is continued as it is, without a template.
//!
//! Nothing is read into the answer either: no thinking, no tool calls. Several prompts are several requests of
//! one response; choices are numbered through, prompt by prompt.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::Usage;
use engine::session::{AnswerRequest, Input, TokenLogprob, TokenText, Update, WholeAnswer};
use serde_json::{Map, Value, json};
use text::Piece;

use super::{ResponseHead, Streaming, check_names, finish_word, finite, format, total};
use crate::body::Posted;
use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};
use crate::prepare;
use crate::request::{MOST_CHOICES, read_sampling, read_stop};
use crate::shared::ServerState;

/// The longest answer if the client does not say, as OpenAI has it.
const DEFAULT_MAX_TOKENS: usize = 16;
/// The most alternatives to a token, as OpenAI has it.
const MOST_LOGPROBS: usize = 5;
const OBJECT: &str = "text_completion";

/// A request as it was read.
#[derive(Debug)]
struct Completion {
    /// One a prompt, each with as many choices.
    requests: Vec<AnswerRequest>,
    /// Whether answers begin with their prompt.
    echo: bool,
    streaming: Option<Streaming>,
}

/// Continues texts.
pub(crate) async fn complete(
    State(shared): State<Arc<ServerState>>,
    headers: HeaderMap,
    posted: Posted,
) -> Result<Response> {
    let (Completion { requests, echo, streaming }, share) = posted.read(read)?;
    let choices = requests.first().map_or(1, |request| request.choices);
    let has_logprobs = requests.first().is_some_and(|request| request.sampling.logprobs.is_some());
    let echoed: Vec<Input> = if echo {
        requests.iter().map(|request| request.input.clone()).collect()
    } else {
        Vec::new()
    };
    let answers = prepare::begin(&shared, requests, share).await.map_err(about_prompt)?;
    let model = shared.model()?;
    // They were judged above, so that these are tokens of the model and not too many.
    let echoed = echoed.into_iter().map(|input| match input {
        Input::Tokens(tokens) => Ok(model.session.text.tokenizer.decode(&tokens, false)?),
        Input::Text(text) => Ok(text),
        Input::Chat(_) => Ok(String::new()),
    });
    let echoed: Vec<String> = echoed.collect::<Result<_>>()?;

    let head = ResponseHead::new("cmpl-", OBJECT, &model.name);
    let mut writer = Writer::new(has_logprobs, answers.count());
    let Some(streaming) = streaming else {
        let (wholes, _held) = answers.collect().await.map_err(about_prompt)?;
        return Ok(Json(response(&head, &wholes, &echoed, choices, writer)).into_response());
    };
    let echoes = echoed.iter().flat_map(|text| std::iter::repeat_n(text, choices)).enumerate();
    let opening = echoes.map(|(index, text)| choice(index, text, &Value::Null, None));
    let opening = opening.collect();
    let choice_of = move |index, update: &Update| writer.choice(index, update);
    Ok(super::stream(&shared, &headers, head, streaming, answers, choices, opening, choice_of))
}

/// What is said of messages elsewhere is about the prompt here.
fn about_prompt(error: ApiError) -> ApiError {
    match error.param.as_deref() {
        Some("messages") => ApiError { param: Some("prompt".to_owned()), ..error },
        _ => error,
    }
}

fn read(body: &Value) -> Result<Completion> {
    let fields = Fields::of_body(body)?;
    check_names(&fields)?;
    let inputs = read_prompt(&fields)?;
    let choices = fields.count("n")?.unwrap_or(1);
    if choices == 0 || choices.saturating_mul(inputs.len()) > MOST_CHOICES {
        let message = format!("prompts times n must be 1 to {MOST_CHOICES}");
        return Err(fields.error("n", message));
    }
    if fields.count("best_of")?.is_some_and(|best_of| best_of > choices) {
        return Err(fields.error("best_of", "more answers than `n` are not supported"));
    }
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.error("suffix", "is not supported: text is continued at its end only"));
    }
    let echo = fields.bool("echo")?.unwrap_or(false);
    if echo && fields.get("logprobs").is_some() {
        let message = "is not supported with `echo`: the prompt's tokens have no log-probabilities";
        return Err(fields.error("logprobs", message));
    }
    let read = |input| read_request(&fields, input, choices);
    let requests = inputs.into_iter().map(read).collect::<Result<_>>()?;
    Ok(Completion { requests, echo, streaming: Streaming::read(&fields)? })
}

fn read_request(fields: &Fields<'_>, input: Input, choices: usize) -> Result<AnswerRequest> {
    let mut request = AnswerRequest::new(input);
    request.is_raw = true;
    request.choices = choices;
    request.max_tokens = Some(match fields.count("max_tokens")? {
        Some(0) => return Err(fields.error("max_tokens", "must be at least 1, got 0")),
        most => most.unwrap_or(DEFAULT_MAX_TOKENS),
    });
    request.stop = read_stop(fields, "stop")?;
    request.sampling = read_sampling(fields)?;
    request.sampling.logprobs = fields.count("logprobs")?;
    if let Some(top) = request.sampling.logprobs.filter(|&top| top > MOST_LOGPROBS) {
        return Err(fields.error("logprobs", format!("must be 0 to {MOST_LOGPROBS}, got {top}")));
    }
    format::read(fields, &mut request)?;
    Ok(request)
}

/// A text, several, tokens, or several lists of them.
fn read_prompt(fields: &Fields<'_>) -> Result<Vec<Input>> {
    let items = match fields.required("prompt")? {
        Value::String(text) => return Ok(vec![Input::Text(text.clone())]),
        Value::Array(items) => items,
        other => return Err(wrong("prompt", "a string or an array", other)),
    };
    match items.first() {
        None => Err(fields.error("prompt", "is empty")),
        Some(Value::Number(_)) => Ok(vec![Input::Tokens(tokens(items, "prompt")?)]),
        Some(_) if items.len() > MOST_CHOICES => {
            Err(fields.error("prompt", format!("at most {MOST_CHOICES} prompts at once")))
        }
        Some(_) => {
            let read = |(index, item): (usize, &Value)| {
                let path = format!("prompt[{index}]");
                match item {
                    Value::String(text) => Ok(Input::Text(text.clone())),
                    Value::Array(items) => tokens(items, &path).map(Input::Tokens),
                    other => Err(wrong(&path, "a string or an array of tokens", other)),
                }
            };
            items.iter().enumerate().map(read).collect()
        }
    }
}

fn tokens(items: &[Value], path: &str) -> Result<Vec<u32>> {
    if items.is_empty() {
        return Err(ApiError::field(path, "has no tokens"));
    }
    let read = |(index, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| match item {
            Value::Number(_) => ApiError::field(format!("{path}[{index}]"), "is not a token id"),
            other => wrong(&format!("{path}[{index}]"), "a token id", other),
        })
    };
    items.iter().enumerate().map(read).collect()
}

fn response(
    head: &ResponseHead,
    wholes: &[WholeAnswer],
    echoed: &[String],
    choices: usize,
    mut writer: Writer,
) -> Value {
    let usages: Vec<Usage> = wholes
        .iter()
        .map(|whole| whole.ending.as_ref().map(|ending| ending.usage).unwrap_or_default())
        .collect();
    let write = |(index, whole): (usize, &WholeAnswer)| {
        let echo = echoed.get(index / choices.max(1)).map_or("", String::as_str);
        let text = format!("{echo}{}", whole.content);
        let reason = whole.ending.as_ref().map(|ending| finish_word(ending.reason));
        choice(index, &text, &writer.logprobs(index, &whole.logprobs), reason)
    };
    head.whole(wholes.iter().enumerate().map(write).collect(), &total(&usages, choices))
}

fn choice(index: usize, text: &str, logprobs: &Value, finish_reason: Option<&str>) -> Value {
    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason})
}

/// Turns updates into choices; it counts characters, for each token comes with its offset.
#[derive(Debug)]
struct Writer {
    has_logprobs: bool,
    /// Characters that have begun, of each choice.
    offsets: Vec<usize>,
}

impl Writer {
    fn new(has_logprobs: bool, choices: usize) -> Writer {
        Writer { has_logprobs, offsets: vec![0; choices] }
    }

    /// What an update of an answer adds, if anything.
    fn choice(&mut self, index: usize, update: &Update) -> Option<Value> {
        match update {
            Update::Piece(Piece::Content(text), logprobs) => {
                if text.is_empty() && (logprobs.is_empty() || !self.has_logprobs) {
                    return None;
                }
                Some(choice(index, text, &self.logprobs(index, logprobs), None))
            }
            Update::Finished(ending) => {
                Some(choice(index, "", &Value::Null, Some(finish_word(ending.reason))))
            }
            // The answer to a raw prompt is nothing but content.
            _ => None,
        }
    }

    fn logprobs(&mut self, index: usize, tokens: &[TokenLogprob]) -> Value {
        if !self.has_logprobs {
            return Value::Null;
        }
        let offset = &mut self.offsets[index];
        let mut offsets = Vec::with_capacity(tokens.len());
        for one in tokens {
            offsets.push(*offset);
            // A character may be cut by tokens: it counts where it begins.
            *offset += one.token.bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
        }
        let texts: Vec<Cow<'_, str>> = tokens.iter().map(|one| shown(&one.token)).collect();
        let chosen: Vec<f32> = tokens.iter().map(|one| finite(one.logprob)).collect();
        let top: Vec<Value> = tokens.iter().map(alternatives).collect();
        json!({"tokens": texts, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets})
    }
}

/// The likeliest tokens by their text, the chosen one always among them.
fn alternatives(one: &TokenLogprob) -> Value {
    let mut map = Map::new();
    let chosen = std::iter::once((&one.token, one.logprob));
    for (token, logprob) in one.top.iter().map(|(token, logprob)| (token, *logprob)).chain(chosen) {
        // Of two tokens with one text the likelier came first.
        map.entry(shown(token)).or_insert_with(|| Value::from(finite(logprob)));
    }
    Value::Object(map)
}

/// A token's text. Where its bytes are no whole characters they are spelled out, as OpenAI does: otherwise all such
/// tokens would look alike.
fn shown(token: &TokenText) -> Cow<'_, str> {
    match std::str::from_utf8(&token.bytes) {
        Ok(_) => Cow::Borrowed(&token.text),
        Err(_) => Cow::Owned(format!("bytes:{}", token.bytes.escape_ascii())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{ending, head, logprob, piece, token, usage};
    use super::*;
    use engine::session::{Ending, Finish};

    #[test]
    fn prompts_are_text_or_tokens() {
        #[track_caller]
        fn check(prompt: &Value, expect: &str) {
            let body = json!({"prompt": prompt});
            let inputs: Vec<Input> =
                read(&body).unwrap().requests.into_iter().map(|request| request.input).collect();
            assert_eq!(format!("{inputs:?}"), expect);
        }
        check(&json!("a"), "[Text(\"a\")]");
        check(&json!(["a", "b"]), "[Text(\"a\"), Text(\"b\")]");
        check(&json!([1, 2]), "[Tokens([1, 2])]");
        check(&json!([[1, 2], [3]]), "[Tokens([1, 2]), Tokens([3])]");
        check(&json!(["a", [3]]), "[Text(\"a\"), Tokens([3])]");
    }

    #[test]
    fn fields_are_read_for_every_prompt() {
        let body = json!({
            "prompt": ["a", "b"], "n": 3, "best_of": 3, "stop": "x", "logprobs": 2, "seed": 4,
            "suffix": "", "temperature": 0, "stream": true, "guided_regex": "a",
        });
        let Completion { requests, echo, streaming } = read(&body).unwrap();
        assert_eq!(requests.len(), 2);
        assert!(!echo);
        assert_eq!(streaming, Some(Streaming { include_usage: false }));
        for request in &requests {
            assert_eq!((request.choices, request.max_tokens), (3, Some(DEFAULT_MAX_TOKENS)));
            assert_eq!(request.stop, ["x"]);
            assert_eq!((request.sampling.logprobs, request.sampling.seed), (Some(2), Some(4)));
            assert_eq!(request.sampling.temperature, Some(0.0));
            assert!(request.grammar.is_some());
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        #[track_caller]
        fn refused(more: &Value, param: &str) {
            let mut body = json!({"prompt": "a"});
            for (key, value) in more.as_object().unwrap() {
                body[key] = value.clone();
            }
            let error = read(&body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
            assert_eq!(error.status.as_u16(), 400);
        }
        refused(&json!({"prompt": null}), "prompt");
        refused(&json!({"prompt": 1}), "prompt");
        refused(&json!({"prompt": {}}), "prompt");
        refused(&json!({"prompt": []}), "prompt");
        refused(&json!({"prompt": [[]]}), "prompt[0]");
        refused(&json!({"prompt": [1, "a"]}), "prompt[1]");
        refused(&json!({"prompt": [1, -1]}), "prompt[1]");
        refused(&json!({"prompt": [1.5]}), "prompt[0]");
        refused(&json!({"prompt": ["a", 1]}), "prompt[1]");
        refused(&json!({"prompt": ["a", [1, null]]}), "prompt[1][1]");
        refused(&json!({"prompt": [[5_000_000_000u64]]}), "prompt[0][0]");
        refused(&json!({"prompt": vec!["a"; 17]}), "prompt");
        refused(&json!({"prompt": ["a", "b"], "n": 9}), "n");
        refused(&json!({"n": 0}), "n");
        refused(&json!({"n": u64::MAX}), "n");
        refused(&json!({"max_tokens": 0}), "max_tokens");
        refused(&json!({"max_tokens": -1}), "max_tokens");
        refused(&json!({"best_of": 2}), "best_of");
        refused(&json!({"suffix": "b"}), "suffix");
        refused(&json!({"suffix": 1}), "suffix");
        refused(&json!({"echo": 1}), "echo");
        refused(&json!({"echo": true, "logprobs": 0}), "logprobs");
        refused(&json!({"logprobs": true}), "logprobs");
        refused(&json!({"logprobs": 6}), "logprobs");
        refused(&json!({"stop": {}}), "stop");
        refused(&json!({"temperature": []}), "temperature");
        refused(&json!({"stream": 1}), "stream");
        refused(&json!({"model": 5}), "model");
        refused(&json!({"user": []}), "user");
    }

    #[test]
    fn parts_become_choices() {
        let mut writer = Writer::new(false, 2);
        let content = piece(Piece::Content("a".to_owned()));
        assert_eq!(
            writer.choice(1, &content),
            Some(json!({"index": 1, "text": "a", "logprobs": null, "finish_reason": null}))
        );
        assert_eq!(
            writer.choice(1, &Update::Finished(ending(Finish::Length))),
            Some(json!({"index": 1, "text": "", "logprobs": null, "finish_reason": "length"}))
        );
        let nothing = piece(Piece::Content(String::new()));
        assert_eq!(writer.choice(0, &nothing), None);
        assert_eq!(writer.choice(0, &Update::Prefill { done: 1, total: 2, cached: 0 }), None);
    }

    #[test]
    fn offsets_count_characters_and_continue() {
        let mut writer = Writer::new(true, 2);
        // Two tokens that share the bytes of `é`, then one more character.
        let cut = [logprob(b"a\xC3"), logprob(b"\xA9"), logprob(b"b")];
        let first = writer.logprobs(1, &cut);
        assert_eq!(first["text_offset"], json!([0, 2, 2]));
        assert_eq!(first["tokens"], json!(["bytes:a\\xc3", "bytes:\\xa9", "b"]));
        assert_eq!(first["token_logprobs"], json!([-0.5, -0.5, -0.5]));
        assert_eq!(first["top_logprobs"][2], json!({"b": -0.5, "x": -9999.0}));
        assert_eq!(writer.logprobs(1, &[logprob(b"c")])["text_offset"], json!([3]));
        assert_eq!(writer.logprobs(0, &[logprob(b"c")])["text_offset"], json!([0]));
    }

    #[test]
    fn the_chosen_token_is_always_listed() {
        let mut one = logprob(b"a");
        one.top = vec![(one.top[1].0.clone(), -0.25)];
        assert_eq!(alternatives(&one), json!({"x": -0.25, "a": -0.5}));
        one.top.clear();
        assert_eq!(alternatives(&one), json!({"a": -0.5}));
    }

    #[test]
    fn tokens_that_are_no_characters_are_distinguished() {
        let mut one = logprob(b"\xC3");
        one.top = vec![(token(b"\xE2\x80"), -0.25), (token(b"\xEF\xBF\xBD"), -1.0)];
        assert_eq!(
            alternatives(&one),
            json!({"bytes:\\xe2\\x80": -0.25, "\u{fffd}": -1.0, "bytes:\\xc3": -0.5})
        );
    }

    #[test]
    fn whole_answers_begin_with_an_echoed_prompt() {
        let whole = |text: &str, cached: usize| WholeAnswer {
            content: text.to_owned(),
            ending: Some(Ending { usage: usage(cached, 2), ..ending(Finish::Stop) }),
            ..WholeAnswer::default()
        };
        let wholes = [whole("1", 0), whole("2", 9), whole("3", 0), whole("4", 9)];
        let echoed = ["p ".to_owned(), "q ".to_owned()];
        let body = response(&head(OBJECT), &wholes, &echoed, 2, Writer::new(false, 4));
        let texts: Vec<&str> = body["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["p 1", "p 2", "q 3", "q 4"]);
        assert_eq!(body["object"], json!("text_completion"));
        assert_eq!(body["choices"][3]["index"], json!(3));
        assert_eq!(body["choices"][3]["finish_reason"], json!("stop"));
        assert_eq!(body["usage"]["prompt_tokens"], json!(20));
        assert_eq!(body["usage"]["completion_tokens"], json!(8));
        assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], json!(0));
    }
}
