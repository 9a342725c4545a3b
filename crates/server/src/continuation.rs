//! Continuing a last message by the assistant.
//!
//! The prompt is rendered with a mark behind the message's text and cut there, so that it ends inside the turn
//! whatever the template writes around it.

use std::sync::Arc;

use engine::session::{AnswerRequest, Input};
use serde_json::Value;

use crate::budget::Share;
use crate::error::ApiError;
use crate::fields::Result;
use crate::prepare;
use crate::request::identifier;
use crate::shared::ServerState;

/// The request with a prompt that ends where the answer has `begun`: with the text of the last message.
pub(crate) async fn continued(
    shared: &Arc<ServerState>,
    mut request: AnswerRequest,
    begun: Option<String>,
    mut share: Share,
) -> Result<(AnswerRequest, Share)> {
    let Some(begun) = begun else { return Ok((request, share)) };
    let begun = begun.as_str();
    let mark = identifier("continue-");
    // For some time there are two copies of the conversation.
    let held = share.bytes();
    prepare::grow(shared, &mut share, held.saturating_mul(2), "to continue its last message")?;
    let (prompt, share) = prepare::prompt(shared, marked(&request, &mark), share).await?;
    let text = cut(&prompt.text, &mark, begun)?.to_owned();
    drop(prompt);
    let model = shared.model()?;
    let before = text.strip_suffix(begun.trim_start()).unwrap_or_default();
    let left =
        model.session.text.reasoning.as_ref().map(|marks| marks.left_by_answer(before, begun));
    request.begun = left.unwrap_or_default();
    // The template has written the beginning-of-text token already.
    let (tokens, mut share) = prepare::tokens(shared, text, false, share).await?;
    request.input = Input::Tokens(tokens);
    share.shrink(held);
    Ok((request, share))
}

/// The same conversation with a mark at its end, and no further turn opened.
fn marked(request: &AnswerRequest, mark: &str) -> AnswerRequest {
    let mut marked = request.clone();
    if let Input::Chat(messages) = &mut marked.input
        && let Some(Value::String(content)) = messages.last_mut().map(|last| &mut last["content"])
    {
        content.push_str(mark);
    }
    marked.template_variables.insert("add_generation_prompt".to_owned(), false.into());
    marked
}

/// The prompt up to the mark, if the template shows the text to continue as it is.
fn cut<'a>(rendered: &'a str, mark: &str, begun: &str) -> Result<&'a str> {
    match rendered.split_once(mark) {
        // Templates strip what a message begins with; what it ends with is what is continued.
        Some((prompt, after)) if !after.contains(mark) && prompt.ends_with(begun.trim_start()) => {
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
    use serde_json::json;

    #[test]
    fn a_prompt_ends_where_the_text_to_continue_ends() {
        #[track_caller]
        fn check(rendered: &str, begun: &str, expect: Option<&str>) {
            assert_eq!(cut(rendered, "MARK", begun).ok(), expect);
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
        let mut request = AnswerRequest::new(Input::Chat(messages));
        request.thinking = Some(true);
        let marked = marked(&request, "MARK");
        let Input::Chat(messages) = marked.input else { panic!("it was a chat") };
        assert_eq!(messages[0]["content"], "q");
        assert_eq!(messages[1]["content"], "aMARK");
        assert_eq!(marked.thinking, Some(true));
        assert_eq!(marked.template_variables["add_generation_prompt"], false);
    }
}
