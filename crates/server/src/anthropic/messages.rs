//! `POST /v1/messages` and `/v1/messages/count_tokens`.
//!
//! A last message by the assistant is continued: the prompt is rendered with a mark behind its text and cut
//! there, so that it ends inside the turn whatever the template writes around it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::reply::Reply;
use super::request::{Asked, Purpose, read};
use crate::answers::{Answers, Part};
use crate::app::Posted;
use crate::ask::{Ask, Input, identifier};
use crate::error::ApiError;
use crate::fields::Result;
use crate::openai::wants_progress;
use crate::prepare::{self, blocking};
use crate::shared::Shared;
use crate::wire::{self, Framing, KeepAlive};

/// What Anthropic's clients take as a sign of life.
const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// Answers a conversation.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Posted(body): Posted,
) -> Result<Response> {
    let asked = read(&body, Purpose::Answer)?;
    let streams = asked.streams;
    let model = shared.model()?.name.clone();
    let ask = ready(&shared, asked).await?;
    let in_own_words = |error: ApiError| error.renamed("response_format", "output_config.format");
    let answers = prepare::begin(&shared, ask).await.map_err(in_own_words)?;
    let reply = Reply::new(identifier("msg_"), model, answers.prompt_tokens);
    if streams {
        Ok(stream(&shared, wants_progress(&headers), reply, answers))
    } else {
        Ok(Json(collect(reply, answers).await?).into_response())
    }
}

/// How many tokens a conversation has.
pub(crate) async fn count_tokens(
    State(shared): State<Arc<Shared>>,
    Posted(body): Posted,
) -> Result<Json<Value>> {
    let asked = read(&body, Purpose::Count)?;
    let ask = ready(&shared, asked).await?;
    let prompt = prepare::prompt(&shared, ask).await?;
    Ok(Json(json!({"input_tokens": prompt.tokens.len()})))
}

fn stream(
    shared: &Shared,
    shows_progress: bool,
    mut reply: Reply,
    mut answers: Answers,
) -> Response {
    let keep_alive = KeepAlive {
        every: shared.options.keep_alive,
        frame: Some(PING),
        unread: shared.options.unread,
    };
    wire::stream(Framing::Events, keep_alive, move |mut wire| async move {
        for (name, data) in reply.begin() {
            wire.event(name, &data).await?;
        }
        while let Some((_, parts)) = wire.next(&mut answers).await? {
            for part in parts {
                if let Part::Prefill { done, total, cached } = part
                    && shows_progress
                {
                    let progress = json!({"done": done, "total": total, "cached": cached});
                    wire.event("prefill_progress", &progress).await?;
                }
                for (name, data) in reply.take(part) {
                    wire.event(name, &data).await?;
                }
            }
        }
        Ok(())
    })
}

async fn collect(mut reply: Reply, mut answers: Answers) -> Result<Value> {
    while let Some((_, parts)) = answers.next().await {
        for part in parts {
            if let Part::Failed(error) = part {
                return Err(error);
            }
            reply.take(part);
        }
    }
    Ok(reply.whole())
}

/// The ask, with a text to continue in its prompt.
async fn ready(shared: &Shared, asked: Asked) -> Result<Ask> {
    let Asked { mut ask, prefill, .. } = asked;
    let Some(prefill) = prefill else { return Ok(ask) };
    let mark = identifier("continue-");
    let rendered = prepare::prompt(shared, marked(&ask, &mark)).await?.text;
    let text = cut(&rendered, &mark, &prefill)?.to_owned();
    let dialect = Arc::clone(&shared.model()?.dialect);
    // The template has written the beginning-of-text token already.
    let encode = move || dialect.tokenizer.encode(&text, false).map_err(ApiError::from);
    ask.input = Input::Tokens(blocking(encode).await?);
    Ok(ask)
}

/// The same conversation with a mark at its end, and no further turn opened.
fn marked(ask: &Ask, mark: &str) -> Ask {
    let mut marked = Ask::new(ask.input.clone());
    if let Input::Chat(messages) = &mut marked.input
        && let Some(Value::String(content)) = messages.last_mut().map(|last| &mut last["content"])
    {
        content.push_str(mark);
    }
    marked.tools.clone_from(&ask.tools);
    marked.tool_definitions.clone_from(&ask.tool_definitions);
    marked.tool_choice.clone_from(&ask.tool_choice);
    marked.thinking = ask.thinking;
    marked.template_variables.clone_from(&ask.template_variables);
    marked.template_variables.insert("add_generation_prompt".to_owned(), false.into());
    marked
}

/// The prompt up to the mark, if the template shows the text to continue as it is.
fn cut<'a>(rendered: &'a str, mark: &str, prefill: &str) -> Result<&'a str> {
    match rendered.split_once(mark) {
        // Templates strip what a message begins with; what it ends with is what is continued.
        Some((prompt, after))
            if !after.contains(mark) && prompt.ends_with(prefill.trim_start()) =>
        {
            Ok(prompt)
        }
        _ => {
            let message = "this model's chat template cannot continue a message of the assistant: \
                           end with one of the user";
            Err(ApiError::field("messages", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_ends_where_the_text_to_continue_ends() {
        #[track_caller]
        fn check(rendered: &str, prefill: &str, expect: Option<&str>) {
            assert_eq!(cut(rendered, "MARK", prefill).ok(), expect);
        }
        check("<a>The answer is (MARK</a>", "The answer is (", Some("<a>The answer is ("));
        check("<a>so MARK</a>", "  so ", Some("<a>so "));
        // A template that strips, repeats or drops the text.
        check("<a>soMARK</a>", "so ", None);
        check("<a>soMARK</a><b>soMARK</b>", "so", None);
        check("<a></a>", "so", None);
    }

    #[test]
    fn the_mark_stands_behind_the_last_text_only() {
        let messages = vec![
            json!({"role": "user", "content": "q"}),
            json!({"role": "assistant", "content": "a"}),
        ];
        let mut ask = Ask::new(Input::Chat(messages));
        ask.thinking = Some(true);
        let marked = marked(&ask, "MARK");
        let Input::Chat(messages) = marked.input else { panic!("it was a chat") };
        assert_eq!(messages[0]["content"], "q");
        assert_eq!(messages[1]["content"], "aMARK");
        assert_eq!(marked.thinking, Some(true));
        assert_eq!(marked.template_variables["add_generation_prompt"], false);
    }
}
