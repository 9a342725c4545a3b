//! OpenAI's dialect: chat, raw completions, responses, models.
//!
//! What these share is here: the head of a response, usage and timings, tokens with their
//! log-probabilities, and the loop that streams chunks. Which chunk an update of an answer becomes is a pure
//! function in the file of each path, so that it can be tested without a server.

pub(crate) mod chat;
pub(crate) mod completions;
mod effort;
mod format;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod responses;
mod tools;

use std::time::SystemTime;

use axum::http::HeaderMap;
use axum::response::Response;
use engine::Usage;
use engine::session::{Finish, TokenLogprob, TokenText, Update};
use serde_json::{Map, Value, json};

use crate::answers::Answers;
use crate::error::ErrorShape;
use crate::fields::{Fields, Result};
use crate::request::identifier;
use crate::shared::ServerState;
use crate::time::unix_seconds;
use crate::wire::{self, Framing, KeepAlive};

/// Which build answered.
const FINGERPRINT: &str = concat!("millstream-", env!("CARGO_PKG_VERSION"));
/// What JSON, which knows no infinity, has in its place: OpenAI's number for a token that cannot be.
const IMPOSSIBLE: f32 = -9999.0;

/// What every chunk of a response begins with.
#[derive(Clone, Debug)]
pub(crate) struct ResponseHead {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    /// The JSON of a chunk up to its choice: the same for each.
    beginning: String,
}

impl ResponseHead {
    /// A new response; `prefix` begins its id.
    fn new(prefix: &str, object: &'static str, model: &str) -> ResponseHead {
        ResponseHead::of(identifier(prefix), object, now_unix_s(), model)
    }

    fn of(id: String, object: &'static str, created: u64, model: &str) -> ResponseHead {
        let (model, beginning) = (model.to_owned(), String::new());
        let mut head = ResponseHead { id, object, created, model, beginning };
        let without = Value::Object(head.with(Vec::new())).to_string();
        head.beginning = without.strip_suffix("]}").expect("choices are last").to_owned();
        head
    }

    /// A response or a chunk of one with these choices.
    fn with(&self, choices: Vec<Value>) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("id".to_owned(), Value::from(self.id.as_str()));
        body.insert("object".to_owned(), Value::from(self.object));
        body.insert("created".to_owned(), Value::from(self.created));
        body.insert("model".to_owned(), Value::from(self.model.as_str()));
        body.insert("system_fingerprint".to_owned(), Value::from(FINGERPRINT));
        body.insert("choices".to_owned(), Value::Array(choices));
        body
    }

    /// A whole response.
    fn whole(&self, choices: Vec<Value>, usage: &Usage) -> Value {
        let mut body = self.with(choices);
        body.insert("usage".to_owned(), usage_json(usage));
        body.insert("timings".to_owned(), timings_json(usage));
        Value::Object(body)
    }
}

/// Checks what makes no difference to an answer: the model that is loaded answers every request.
fn check_names(fields: &Fields<'_>) -> Result<()> {
    fields.string("model")?;
    fields.string("user")?;
    Ok(())
}

/// How a response is to be streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// Whether a last chunk says what it took.
    include_usage: bool,
}

impl Streaming {
    /// How, if at all.
    fn read(fields: &Fields<'_>) -> Result<Option<Streaming>> {
        let is_wanted = fields.bool("stream")?.unwrap_or(false);
        let options = fields.fields("stream_options")?;
        let include_usage = match options {
            Some(options) => options.bool("include_usage")?.unwrap_or(false),
            None => false,
        };
        Ok(is_wanted.then_some(Streaming { include_usage }))
    }

    /// A chunk, as JSON: where usage comes at the end, it is announced on the way.
    fn chunk(self, head: &ResponseHead, choice: &Value) -> String {
        let usage = if self.include_usage { ",\"usage\":null" } else { "" };
        [&head.beginning, &choice.to_string(), "]", usage, "}"].concat()
    }

    /// What comes after the last choice has ended.
    fn last(self, head: &ResponseHead, usage: &Usage) -> Option<Value> {
        self.include_usage.then(|| head.whole(Vec::new(), usage))
    }
}

/// Streams answers. `opening` are choices that are sent at once; `choice_of` says what an update becomes;
/// every `group` answers share a prompt.
fn stream(
    shared: &ServerState,
    headers: &HeaderMap,
    head: ResponseHead,
    streaming: Streaming,
    mut answers: Answers,
    group: usize,
    opening: Vec<Value>,
    mut choice_of: impl FnMut(usize, &Update) -> Option<Value> + Send + 'static,
) -> Response {
    let shows_progress = wants_progress(headers);
    let keep_alive =
        KeepAlive { every: shared.options.keep_alive, frame: Some(": keep-alive\n\n") };
    wire::stream(Framing::Events, keep_alive, move |mut wire| async move {
        for choice in opening {
            wire.text(&streaming.chunk(&head, &choice));
        }
        let mut usages = vec![Usage::default(); answers.count()];
        while let Some((index, updates)) = wire.next(&mut answers).await {
            for update in updates {
                match &update {
                    // Further answers to a prompt wait for the first to read it.
                    &Ok(Update::Prefill { done, total, cached })
                        if shows_progress && index % group == 0 =>
                    {
                        let progress = json!({"done": done, "total": total, "cached": cached});
                        wire.event("prefill_progress", &progress);
                    }
                    Ok(Update::Finished(ending)) => usages[index] = ending.usage,
                    Ok(_) => {}
                    Err(error) => {
                        wire.json(&ErrorShape::OpenAi.body(error));
                        return wire.done();
                    }
                }
                if let Some(choice) = update.ok().and_then(|update| choice_of(index, &update)) {
                    wire.text(&streaming.chunk(&head, &choice));
                }
            }
        }
        if let Some(last) = streaming.last(&head, &total(&usages, group)) {
            wire.json(&last);
        }
        wire.done();
    })
}

/// Whether the client requested the progress of its prompt.
pub(crate) fn wants_progress(headers: &HeaderMap) -> bool {
    let value = headers.get("x-prefill-progress").and_then(|value| value.to_str().ok());
    let words = ["1", "true", "on", "yes"];
    value.is_some_and(|value| words.iter().any(|word| value.trim().eq_ignore_ascii_case(word)))
}

/// What all answers took together. A prompt counts once for its `group` answers, and what it took is what
/// the first to read it took.
fn total(usages: &[Usage], group: usize) -> Usage {
    let mut sum = Usage::default();
    for prompt in usages.chunks(group.max(1)) {
        if let Some(reader) = prompt.iter().min_by_key(|usage| usage.cached_tokens) {
            sum.prompt_tokens += reader.prompt_tokens;
            sum.cached_tokens += reader.cached_tokens;
            sum.prefill_seconds += reader.prefill_seconds;
            sum.queue_seconds = sum.queue_seconds.max(reader.queue_seconds);
        }
    }
    for usage in usages {
        sum.completion_tokens += usage.completion_tokens;
        sum.reasoning_tokens += usage.reasoning_tokens;
        sum.accepted_drafts += usage.accepted_drafts;
        sum.rejected_drafts += usage.rejected_drafts;
        // They decode side by side.
        sum.decode_seconds = sum.decode_seconds.max(usage.decode_seconds);
    }
    sum
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_drafts,
            "rejected_prediction_tokens": usage.rejected_drafts,
        },
    })
}

fn timings_json(usage: &Usage) -> Value {
    let rate = |tokens: usize, seconds: f64| {
        if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
    };
    let read = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    json!({
        "queue_seconds": usage.queue_seconds,
        "prefill_seconds": usage.prefill_seconds,
        "prefill_tok_s": rate(read, usage.prefill_seconds),
        "decode_seconds": usage.decode_seconds,
        "decode_tok_s": rate(usage.completion_tokens, usage.decode_seconds),
    })
}

fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
    }
}

/// Tokens with their log-probabilities, as chat has them.
fn logprobs_json(logprobs: &[TokenLogprob]) -> Value {
    let entry = |token: &TokenText, logprob: f32| json!({"token": token.text, "logprob": finite(logprob), "bytes": token.bytes});
    let content: Vec<Value> = logprobs
        .iter()
        .map(|one| {
            let mut full = entry(&one.token, one.logprob);
            full["top_logprobs"] =
                one.top.iter().map(|(token, logprob)| entry(token, *logprob)).collect();
            full
        })
        .collect();
    json!({"content": content, "refusal": null})
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

fn now_unix_s() -> u64 {
    unix_seconds(SystemTime::now())
}

/// What the tests of this dialect begin with.
#[cfg(test)]
mod fixtures {
    use super::*;
    use engine::session::Ending;
    use text::Piece;

    pub(super) fn head(object: &'static str) -> ResponseHead {
        ResponseHead::of("id-1".to_owned(), object, 7, "m")
    }

    pub(super) fn usage(cached_tokens: usize, completion_tokens: usize) -> Usage {
        Usage {
            prompt_tokens: 10,
            cached_tokens,
            completion_tokens,
            reasoning_tokens: 1,
            accepted_drafts: 2,
            rejected_drafts: 3,
            prefill_seconds: 0.5,
            decode_seconds: 2.0,
            queue_seconds: 0.25,
            ..Usage::default()
        }
    }

    pub(super) fn ending(reason: Finish) -> Ending {
        Ending { reason, stop_text: None, usage: usage(4, 8) }
    }

    pub(super) fn token(bytes: &[u8]) -> TokenText {
        let text = String::from_utf8_lossy(bytes).into_owned();
        TokenText { text, bytes: bytes.to_vec() }
    }

    pub(super) fn piece(piece: Piece) -> Update {
        Update::Piece(piece, Vec::new())
    }

    /// A token that was chosen before another.
    pub(super) fn logprob(bytes: &[u8]) -> TokenLogprob {
        let (token, other) = (token(bytes), token(b"x"));
        TokenLogprob {
            token: token.clone(),
            logprob: -0.5,
            top: vec![(token, -0.5), (other, f32::NEG_INFINITY)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{head, usage};
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_prompt_counts_once_for_all_its_answers() {
        // Two prompts of two answers each; the second answer finds the prompt in the cache.
        let usages = [usage(4, 8), usage(9, 5), usage(0, 1), usage(9, 2)];
        let sum = total(&usages, 2);
        assert_eq!((sum.prompt_tokens, sum.cached_tokens, sum.completion_tokens), (20, 4, 16));
        assert_eq!((sum.prefill_seconds, sum.decode_seconds, sum.queue_seconds), (1.0, 2.0, 0.25));
        assert_eq!(
            usage_json(&sum),
            json!({
                "prompt_tokens": 20, "completion_tokens": 16, "total_tokens": 36,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 4, "accepted_prediction_tokens": 8,
                                              "rejected_prediction_tokens": 12},
            })
        );
        assert_eq!(
            timings_json(&sum),
            json!({"queue_seconds": 0.25, "prefill_seconds": 1.0, "prefill_tok_s": 16.0,
                   "decode_seconds": 2.0, "decode_tok_s": 8.0})
        );
        assert_eq!(timings_json(&Usage::default())["decode_tok_s"], json!(0.0));
    }

    #[test]
    fn usage_comes_only_when_requested() {
        #[track_caller]
        fn check(body: &Value, expect: Option<Streaming>) {
            assert_eq!(Streaming::read(&Fields::of_body(body).unwrap()).unwrap(), expect);
        }
        check(&json!({}), None);
        check(&json!({"stream": false, "stream_options": {"include_usage": true}}), None);
        let plain = Streaming { include_usage: false };
        let counting = Streaming { include_usage: true };
        check(&json!({"stream": true}), Some(plain));
        check(&json!({"stream": true, "stream_options": null}), Some(plain));
        check(&json!({"stream": true, "stream_options": {"include_usage": true}}), Some(counting));

        let head = head("chat.completion.chunk");
        let chunk = |streaming: Streaming| -> Value {
            serde_json::from_str(&streaming.chunk(&head, &json!({"index": 0}))).expect("JSON")
        };
        let expect = json!({"id": "id-1", "choices": [{"index": 0}]});
        assert_eq!(
            (&chunk(plain)["id"], &chunk(plain)["choices"]),
            (&expect["id"], &expect["choices"])
        );
        assert!(chunk(plain).get("usage").is_none());
        assert!(plain.last(&head, &usage(0, 1)).is_none());
        assert_eq!(chunk(counting).get("usage"), Some(&Value::Null));
        let last = counting.last(&head, &usage(0, 1)).unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["total_tokens"], json!(11));
        assert_eq!(last["id"], json!("id-1"));
    }

    #[test]
    fn progress_is_opt_in() {
        #[track_caller]
        fn check(value: Option<&'static str>, expect: bool) {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert("x-prefill-progress", HeaderValue::from_static(value));
            }
            assert_eq!(wants_progress(&headers), expect, "{value:?}");
        }
        check(None, false);
        check(Some("0"), false);
        check(Some(""), false);
        check(Some("1"), true);
        check(Some("True"), true);
        check(Some(" on "), true);
        check(Some("yes"), true);
    }
}
