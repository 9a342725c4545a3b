//! From a request to tokens in the engine's queue, within the request's share of memory.
//!
//! This is where a request meets the model's session, once for all dialects. It takes processor time (a long prompt, a
//! large schema), so it runs off the threads that serve connections, in turns, and the work of a cancelled request
//! stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::Request;
use engine::session::{AnswerReader, AnswerRequest, Input};
use grammar::GrammarError;
use serde_json::Value;
use text::{ChatRequest, Prompt};

use crate::answers::Answers;
use crate::body::refused;
use crate::budget::{Denied, Share};
use crate::conversation::{Conversation, with_results_in_order};
use crate::error::ApiError;
use crate::fields::Result;
use crate::model::Model;
use crate::request::MOST_CHOICES;
use crate::shared::Shared;
use crate::weight;

/// What preparing a request takes besides what the request holds: values for the template, and its text, some times over;
/// and what a template may write and keep whatever it is given.
const WORK_TIMES: usize = 3;
const RENDER_BYTES: usize = 1 << 20;
const RENDER_BYTES_PER_TOKEN: usize = 64;

/// What encoding takes for each byte of text.
const ENCODE_BYTES: usize = 100;

/// What an answer takes that is under way, besides its prompt.
const ANSWER_BYTES: usize = 4 << 10;

/// What is counted and shown may have more tokens than the context holds, so that a client sees by how much; but not
/// any number, as that takes memory.
const COUNTED_CONTEXTS: usize = 2;

/// What a request comes to.
struct Prepared {
    answers: Vec<(Request, AnswerReader)>,
    /// What is kept of it until its answers are complete.
    kept_bytes: usize,
}

/// Queues a request. What comes back is already under way.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    request: AnswerRequest,
    share: Share,
) -> Result<Answers> {
    begin_all(shared, vec![request], share).await
}

/// Queues several requests as one: their answers are numbered through.
pub(crate) async fn begin_all(
    shared: &Arc<Shared>,
    requests: Vec<AnswerRequest>,
    mut share: Share,
) -> Result<Answers> {
    let model = Arc::clone(shared.model()?);
    requests.iter().try_for_each(check_choices)?;
    let place = shared.place(requests.iter().map(|request| request.choices).sum())?;
    let size = share.bytes();
    grow_to_prepare(shared, &mut share)?;
    let (prepared, mut share) = while_wanted(shared, size, {
        let model = Arc::clone(&model);
        move |preparation| {
            let mut held = Held { size, share };
            let prepare = |request| prepare(&model, request, preparation, &mut held);
            let prepared = requests.into_iter().map(prepare).collect::<Result<Vec<_>>>()?;
            Ok((prepared, held.share))
        }
    })
    .await?;
    let kept = prepared.iter().fold(0, |sum: usize, one| sum.saturating_add(one.kept_bytes));
    grow(shared, &mut share, kept, "with its answers")?;
    share.shrink(kept);
    let prompts = prepared.into_iter().map(|one| one.answers).collect();
    Ok(Answers::begin(&model.engine, prompts, Arc::clone(&shared.metrics), (place, share)))
}

/// The prompt a request would have: for counting and showing.
pub(crate) async fn prompt(
    shared: &Arc<Shared>,
    request: AnswerRequest,
    mut share: Share,
) -> Result<(Prompt, Share)> {
    let model = Arc::clone(shared.model()?);
    let most = most_counted(&model);
    let size = share.bytes();
    grow_to_prepare(shared, &mut share)?;
    while_wanted(shared, size, move |preparation| {
        let (mut request, mut held) = (request, Held { size, share });
        let (prompt, _) = prompt_of(&model, &mut request, most, preparation, &mut held)?;
        drop(request);
        Ok((prompt, held.share))
    })
    .await
}

/// The tokens of a text, for counting and showing.
pub(crate) async fn tokens(
    shared: &Arc<Shared>,
    text: String,
    with_special: bool,
    mut share: Share,
) -> Result<(Vec<u32>, Share)> {
    let model = Arc::clone(shared.model()?);
    let size = share.bytes();
    grow_to_prepare(shared, &mut share)?;
    while_wanted(shared, size, move |preparation| {
        let (most, mut held) = (most_counted(&model), Held { size, share });
        let tokens = encoded(&model, &text, with_special, most, preparation, &mut held)?;
        drop(text);
        Ok((tokens, held.share))
    })
    .await
}

/// What a request holds while it is prepared.
struct Held {
    /// What was made of its body.
    size: usize,
    share: Share,
}

/// Takes a share of what encoding needs and the places of preparation do not have, unless the text is too long anyway.
fn grow_to_encode(
    model: &Model,
    text: &str,
    most: usize,
    preparation: &Preparation,
    held: &mut Held,
) -> Result<()> {
    model.session.check_length(text, most)?;
    let work = text.len().saturating_mul(ENCODE_BYTES);
    let more = work.saturating_sub(held.share.budget().work_bytes());
    let needed = held.size.saturating_add(more);
    grow(&preparation.shared, &mut held.share, needed, "to encode")
}

/// The tokens of a text, if there are no more than `most`.
fn encoded(
    model: &Model,
    text: &str,
    with_special: bool,
    most: usize,
    preparation: &Preparation,
    held: &mut Held,
) -> Result<Vec<u32>> {
    grow_to_encode(model, text, most, preparation, held)?;
    Ok(model.session.tokens(text, with_special, most)?)
}

/// Takes a share of what preparing needs and the places of preparation do not have.
fn grow_to_prepare(shared: &Shared, share: &mut Share) -> Result<()> {
    let context = shared.model()?.facts.context;
    let render = RENDER_BYTES.saturating_add(RENDER_BYTES_PER_TOKEN.saturating_mul(context));
    let work = share.bytes().saturating_mul(WORK_TIMES).saturating_add(render);
    let more = work.saturating_sub(share.budget().work_bytes());
    let needed = share.bytes().saturating_add(more);
    grow(shared, share, needed, "to prepare")
}

/// Takes a share of at least so many bytes, or says what they were wanted for.
pub(crate) fn grow(shared: &Shared, share: &mut Share, bytes: usize, what: &str) -> Result<()> {
    if bytes <= share.bytes() {
        return Ok(());
    }
    let denied = |denied| refused(shared, denied, &format!("would take {bytes} bytes {what}"));
    share.resize(bytes).map_err(denied)
}

/// Runs what takes processor time for a request of this size, when it is its turn.
pub(crate) async fn in_turn<T: Send + 'static>(
    shared: &Arc<Shared>,
    size: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    while_wanted(shared, size, move |_| work()).await
}

/// Runs what takes processor time, and may stop early.
async fn while_wanted<T: Send + 'static>(
    shared: &Arc<Shared>,
    size: usize,
    work: impl FnOnce(&Preparation) -> Result<T> + Send + 'static,
) -> Result<T> {
    let is_large = shared.budget().is_ok_and(|budget| size > budget.small_bytes());
    let turn = shared.turns.take(size, is_large).await;
    let turn = turn.ok_or_else(|| ApiError::internal("the server is shutting down"))?;
    let cancelled = CancelOnDrop::default();
    let preparation =
        Preparation { is_cancelled: Arc::clone(&cancelled.0), shared: Arc::clone(shared) };
    // The client may go away; the work goes on until it notices, and so does its turn.
    let work = move || {
        let _turn = turn;
        preparation.check()?;
        work(&preparation)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!("preparing a request failed: {error}");
            Err(ApiError::internal("the request could not be prepared"))
        }
    }
}

/// Held by the client's connection while it waits for a result.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A request that is prepared.
struct Preparation {
    is_cancelled: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Preparation {
    /// An error, which will not be read, if the request was cancelled.
    fn check(&self) -> Result<()> {
        match self.is_cancelled.load(Ordering::Acquire) {
            true => Err(ApiError::internal("request cancelled")),
            false => Ok(()),
        }
    }
}

fn check_choices(request: &AnswerRequest) -> Result<()> {
    if request.choices == 0 || request.choices > MOST_CHOICES {
        return Err(ApiError::field("n", format!("must be 1 to {MOST_CHOICES}")));
    }
    Ok(())
}

fn prepare(
    model: &Model,
    mut request: AnswerRequest,
    preparation: &Preparation,
    held: &mut Held,
) -> Result<Prepared> {
    let session = &model.session;
    session.check_sampling(&request.sampling)?;
    let (prompt, checkpoint) = prompt_of(model, &mut request, session.context, preparation, held)?;
    preparation.check()?;
    let answers = session.begin(&request, &prompt, checkpoint);
    let answers = answers.map_err(|error| refusal(&preparation.shared, &request, error))?;
    let tools = request.callable_tools().iter().map(|tool| weight::of_value(&tool.parameters));
    let answer = tools.fold(ANSWER_BYTES + 4 * prompt.tokens.len(), usize::saturating_add);
    Ok(Prepared { answers, kept_bytes: answer.saturating_mul(request.choices) })
}

/// Why a prompt gets no answers.
fn refusal(shared: &Shared, request: &AnswerRequest, error: engine::Error) -> ApiError {
    use engine::Error;
    match error {
        Error::EmptyPrompt if !matches!(request.input, Input::Chat(_)) => {
            ApiError::field("prompt", "the prompt is empty")
        }
        Error::Grammar { error: GrammarError::NoMemory { bytes }, .. } => {
            let most = shared.budget().map_or(0, |budget| budget.most_bytes());
            let denied = if bytes > most { Denied::Never } else { Denied::Now };
            refused(shared, denied, &format!("would take {bytes} bytes for a grammar"))
        }
        error => error.into(),
    }
}

/// Tokens that are counted or shown.
fn most_counted(model: &Model) -> usize {
    model.session.context.saturating_mul(COUNTED_CONTEXTS)
}

/// The prompt, if it has no more than `most` tokens, and how much of it the next turn of the conversation will likely
/// begin with. The request's messages, definitions and variables are gone afterwards: the template has them.
fn prompt_of(
    model: &Model,
    request: &mut AnswerRequest,
    most: usize,
    preparation: &Preparation,
    held: &mut Held,
) -> Result<(Prompt, Option<usize>)> {
    let session = &model.session;
    let prompt = match &mut request.input {
        Input::Chat(messages) => {
            check_messages(model, messages, most)?;
            let messages = with_results_in_order(std::mem::take(messages));
            let mut chat = request.take_chat(messages);
            let rendered = rendered(model, &mut chat)?;
            preparation.check()?;
            grow_to_encode(model, &rendered, most, preparation, held)?;
            let prompt = session.prompt_of_chat(&chat, rendered, most)?;
            preparation.check()?;
            let checkpoint = session.text.stable_prefix(&chat, &prompt);
            return Ok((prompt, Some(checkpoint)));
        }
        Input::Text(text) => {
            let tokens = encoded(model, text, true, most, preparation, held)?;
            Prompt { text: std::mem::take(text), tokens, thinking: request.begun }
        }
        Input::Tokens(tokens) => {
            let tokens = std::mem::take(tokens);
            session.prompt_of_tokens(request, tokens, most)?
        }
    };
    Ok((prompt, None))
}

/// Refuses a conversation before the template is rendered, which takes a while for each message and each call: nearly
/// every template writes some tokens for one.
fn check_messages(model: &Model, messages: &[Value], most: usize) -> Result<()> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there are no messages"));
    }
    if model.session.text.template.is_none() {
        let message = "this model has no chat template: use /v1/completions";
        return Err(ApiError::bad_request("no_chat_template", message));
    }
    let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
    let turns: usize = messages.iter().map(|message| 1 + calls(message)).sum();
    if turns > most {
        return Err(model.session.exceeded(turns).into());
    }
    Ok(())
}

/// The text of a conversation. Many templates insist on one system message, in front, and on turns; clients do not.
fn rendered(model: &Model, chat: &mut ChatRequest) -> Result<String> {
    match model.session.text.rendered(chat) {
        Err(error @ text::Error::TemplateRaised { .. }) => {
            chat.messages = Conversation::of_messages(&chat.messages).into_messages();
            Ok(model.session.text.rendered(chat).map_err(|_| error)?)
        }
        rendered => Ok(rendered?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_of_a_cancelled_request_stops_and_gives_its_turn_back() {
        let (began, has_begun) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let work = move |preparation: &Preparation| -> Result<()> {
            let _ = began.send(());
            let error = loop {
                match preparation.check() {
                    Ok(()) => std::thread::yield_now(),
                    Err(error) => break error,
                }
            };
            let _ = ended.send(());
            Err(error)
        };
        let shared = Arc::new(Shared::new(Options::default()));
        let request = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move { while_wanted(&shared, 1, work).await }
        });
        has_begun.await.unwrap();
        request.abort();
        has_ended.await.unwrap();
        // All turns are free, sooner or later.
        let _all = (shared.turns.take(1, false).await, shared.turns.take(1, false).await);
    }

    #[tokio::test]
    async fn work_that_is_waited_for_is_done() {
        let shared = Arc::new(Shared::new(Options::default()));
        assert_eq!(
            while_wanted(&shared, 1, |preparation| preparation.check().map(|()| 5)).await,
            Ok(5)
        );
        assert_eq!(in_turn(&shared, 1, || Ok(6)).await, Ok(6));
    }
}
