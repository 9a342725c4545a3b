//! From a request to tokens in the engine's queue, within the request's share of memory.
//!
//! This is where a request meets the model's session, once for all dialects. It takes processor time (a long prompt, a
//! large schema), so it runs off the threads that serve connections, in turns, and the work of a cancelled request
//! stops.

use std::sync::{Arc, Weak};

use engine::Request;
use engine::session::{AnswerReader, AnswerRequest, Input};
use grammar::{Allowance, GrammarError};
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
use crate::shared::ServerState;

/// What encoding takes for each byte of text.
const ENCODE_BYTES: usize = 100;
/// What a prompt takes for each byte of its text: the text, and a token of four bytes for it at most.
const PROMPT_BYTES: usize = 5;

/// What an answer takes that is under way, without its prompt.
const ANSWER_BYTES: usize = 4 << 10;

/// What is counted and shown may have more tokens than the context holds, so that a client sees by how much; but not
/// any number, as that takes memory.
const COUNTED_CONTEXTS: usize = 2;

/// Queues requests as one: their answers are numbered through. What comes back is already under way.
pub(crate) async fn begin(
    shared: &Arc<ServerState>,
    requests: Vec<AnswerRequest>,
    share: Share,
) -> Result<Answers> {
    let engine = &shared.model()?.engine;
    if requests.iter().any(|request| !(1..=MOST_CHOICES).contains(&request.choices)) {
        return Err(ApiError::field("n", format!("must be 1 to {MOST_CHOICES}")));
    }
    let place = shared.place(requests.iter().map(|request| request.choices).sum())?;
    let (prepared, mut share) = prepared(shared, share, move |preparation| {
        let prepare = |request| preparation.answers(request);
        requests.into_iter().map(prepare).collect::<Result<Vec<_>>>()
    })
    .await?;
    let kept = prepared.iter().fold(0, |sum: usize, (_, kept)| sum.saturating_add(*kept));
    grow(shared, &mut share, kept, "with its answers")?;
    share.shrink(kept);
    let prompts = prepared.into_iter().map(|(answers, _)| answers).collect();
    Ok(Answers::begin(engine, prompts, Arc::clone(&shared.metrics), (place, share)))
}

/// The prompt a request would have: for counting and showing.
pub(crate) async fn prompt(
    shared: &Arc<ServerState>,
    mut request: AnswerRequest,
    share: Share,
) -> Result<(Prompt, Share)> {
    let prompt = move |preparation: &mut Preparation| {
        Ok(preparation.prompt(&mut request, preparation.most_counted())?.0)
    };
    prepared(shared, share, prompt).await
}

/// The tokens of a text, for counting and showing.
pub(crate) async fn tokens(
    shared: &Arc<ServerState>,
    text: String,
    with_special: bool,
    share: Share,
) -> Result<(Vec<u32>, Share)> {
    let tokens = move |preparation: &mut Preparation| {
        preparation.tokens(&text, with_special, preparation.most_counted())
    };
    prepared(shared, share, tokens).await
}

/// Prepares something when it is the turn of its request, which gets its share back with it.
async fn prepared<T: Send + 'static>(
    shared: &Arc<ServerState>,
    mut share: Share,
    work: impl FnOnce(&mut Preparation) -> Result<T> + Send + 'static,
) -> Result<(T, Share)> {
    let (shared, model) = (Arc::clone(shared), Arc::clone(shared.model()?));
    let size = share.bytes();
    // A copy of its messages, before the template reserves what it takes itself.
    let more = size.saturating_sub(share.budget().work_bytes());
    grow(&shared, &mut share, size.saturating_add(more), "to prepare")?;
    while_wanted(&Arc::clone(&shared), size, move |client| {
        let mut preparation = Preparation { shared, model, client, size, share };
        Ok((work(&mut preparation)?, preparation.share))
    })
    .await
}

/// Takes a share of at least so many bytes, or says what they were wanted for.
pub(crate) fn grow(
    shared: &ServerState,
    share: &mut Share,
    bytes: usize,
    what: &str,
) -> Result<()> {
    if bytes <= share.bytes() {
        return Ok(());
    }
    let denied = |denied| refused(shared, denied, &format!("would take {bytes} bytes {what}"));
    share.resize(bytes).map_err(denied)
}

/// Runs what takes processor time for a request of this size, when it is its turn.
pub(crate) async fn in_turn<T: Send + 'static>(
    shared: &Arc<ServerState>,
    size: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    while_wanted(shared, size, move |_| work()).await
}

/// Runs what takes processor time, and may stop early.
async fn while_wanted<T: Send + 'static>(
    shared: &Arc<ServerState>,
    size: usize,
    work: impl FnOnce(Client) -> Result<T> + Send + 'static,
) -> Result<T> {
    let is_large = shared.budget().is_ok_and(|budget| size > budget.quick_bytes());
    let turn = shared.turns.take(size, is_large).await;
    let turn = turn.ok_or_else(|| ApiError::internal("the server is shutting down"))?;
    // Dropped with this future if the client goes away; the work continues until it notices, and keeps its slot until then.
    let waiting = Arc::new(());
    let client = Client(Arc::downgrade(&waiting));
    let work = move || {
        let _turn = turn;
        client.check()?;
        work(client)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!("preparing a request failed: {error}");
            Err(ApiError::internal("the request could not be prepared"))
        }
    }
}

/// The client that waits for a result.
struct Client(Weak<()>);

impl Client {
    /// An error, which will not be read, if the request was cancelled.
    fn check(&self) -> Result<()> {
        match self.0.strong_count() {
            0 => Err(ApiError::internal("request cancelled")),
            _ => Ok(()),
        }
    }
}

/// A request that is prepared.
struct Preparation {
    shared: Arc<ServerState>,
    model: Arc<Model>,
    client: Client,
    /// What was made of its body.
    size: usize,
    share: Share,
}

impl Preparation {
    /// All answers to a request, and how many bytes are kept of it until they are complete.
    fn answers(
        &mut self,
        mut request: AnswerRequest,
    ) -> Result<(Vec<(Request, AnswerReader)>, usize)> {
        self.model.session.check_sampling(&request.sampling)?;
        let (prompt, checkpoint) = self.prompt(&mut request, self.model.session.context)?;
        self.client.check()?;
        let answers = self.model.session.begin(&request, &prompt, checkpoint);
        let answers = answers.map_err(|error| self.refusal(&request, error))?;
        let tools = request.callable_tools().iter().map(|tool| text::weight_of(&tool.parameters));
        let answer = tools.fold(ANSWER_BYTES + 4 * prompt.tokens.len(), usize::saturating_add);
        Ok((answers, answer.saturating_mul(request.choices)))
    }

    /// Why a prompt gets no answers.
    fn refusal(&self, request: &AnswerRequest, error: engine::Error) -> ApiError {
        match error {
            engine::Error::EmptyPrompt if !matches!(request.input, Input::Chat(_)) => {
                ApiError::field("prompt", "the prompt is empty")
            }
            engine::Error::Grammar(GrammarError::NoMemory { bytes }) => {
                let most = self.share.budget().most_bytes();
                let denied = if bytes > most { Denied::Never } else { Denied::Now };
                refused(&self.shared, denied, &format!("would take {bytes} bytes for a grammar"))
            }
            error => error.into(),
        }
    }

    /// Tokens that are counted or shown.
    fn most_counted(&self) -> usize {
        self.model.session.context.saturating_mul(COUNTED_CONTEXTS)
    }

    /// The prompt, if it has no more than `most` tokens, and how much of it the next turn of the conversation will likely
    /// begin with. The request's messages, definitions and variables are gone afterwards: the template has them.
    fn prompt(
        &mut self,
        request: &mut AnswerRequest,
        most: usize,
    ) -> Result<(Prompt, Option<usize>)> {
        let prompt = match &mut request.input {
            Input::Chat(messages) => {
                self.check_messages(messages, most)?;
                let messages = with_results_in_order(std::mem::take(messages));
                let mut chat = request.take_chat(messages);
                let rendered = self.rendered(&mut chat)?;
                self.client.check()?;
                self.grow_to_encode(&rendered, most)?;
                // What is rendered again comes in addition to the prompt.
                let held = rendered.len().saturating_mul(PROMPT_BYTES);
                let model = Arc::clone(&self.model);
                let prompt = self.granted("to render", |grant| {
                    let grant = &mut |bytes: usize| grant(bytes.saturating_add(held));
                    model.session.prompt_of_chat(&chat, rendered, most, grant)
                })?;
                self.client.check()?;
                let grant = &mut |bytes: usize| {
                    let wanted = self.beside(bytes.saturating_add(held));
                    wanted <= self.share.bytes() || self.share.resize(wanted).is_ok()
                };
                let checkpoint = model.session.text.stable_prefix(&chat, &prompt, grant);
                return Ok((prompt, Some(checkpoint)));
            }
            Input::Text(text) => {
                let tokens = self.tokens(text, true, most)?;
                Prompt { text: std::mem::take(text), tokens, thinking: request.begun }
            }
            Input::Tokens(tokens) => {
                let tokens = std::mem::take(tokens);
                self.model.session.prompt_of_tokens(request, tokens, most)?
            }
        };
        Ok((prompt, None))
    }

    /// Refuses a conversation before the template is rendered, which takes some time for each message and each call: nearly
    /// every template writes some tokens for one.
    fn check_messages(&self, messages: &[Value], most: usize) -> Result<()> {
        if messages.is_empty() {
            return Err(ApiError::field("messages", "there are no messages"));
        }
        if self.model.session.text.template.is_none() {
            let message = "this model has no chat template: use /v1/completions";
            return Err(ApiError::bad_request("no_chat_template", message));
        }
        let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
        let turns: usize = messages.iter().map(|message| 1 + calls(message)).sum();
        if turns > most {
            return Err(self.model.session.exceeded(turns).into());
        }
        Ok(())
    }

    /// The text of a conversation. Many templates insist on one system message, in front, and on turns; clients do not.
    fn rendered(&mut self, chat: &mut ChatRequest) -> Result<String> {
        let model = Arc::clone(&self.model);
        self.granted("to render", |grant| match model.session.text.rendered(chat, grant) {
            Err(error @ text::Error::TemplateRaised { .. }) => {
                chat.messages = Conversation::of_messages(&chat.messages).into_messages();
                model.session.text.rendered(chat, grant).map_err(|_| error)
            }
            rendered => rendered,
        })
    }

    /// The result of work that reserves memory in addition to the request's own, or why there is none.
    fn granted<T, E>(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut dyn FnMut(usize) -> bool) -> std::result::Result<T, E>,
    ) -> Result<T>
    where
        ApiError: From<E>,
    {
        let mut refusal = None;
        let result = work(&mut |bytes| {
            let wanted = self.beside(bytes);
            refusal = grow(&self.shared, &mut self.share, wanted, what).err();
            refusal.is_none()
        });
        result.map_err(|error| refusal.unwrap_or_else(|| error.into()))
    }

    /// The share for so many bytes in addition to what was made of the body and what the slots of preparation have.
    fn beside(&self, bytes: usize) -> usize {
        let more = bytes.saturating_sub(self.share.budget().work_bytes());
        self.size.saturating_add(more)
    }

    /// The tokens of a text, if there are no more than `most`.
    fn tokens(&mut self, text: &str, with_special: bool, most: usize) -> Result<Vec<u32>> {
        self.grow_to_encode(text, most)?;
        Ok(self.model.session.tokens(text, with_special, most)?)
    }

    /// Takes a share of what encoding needs and the slots of preparation do not have, unless the text is too long anyway.
    fn grow_to_encode(&mut self, text: &str, most: usize) -> Result<()> {
        self.model.session.check_length(text, most)?;
        let wanted = self.beside(text.len().saturating_mul(ENCODE_BYTES));
        grow(&self.shared, &mut self.share, wanted, "to encode")
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
        let work = move |client: Client| -> Result<()> {
            let _ = began.send(());
            let error = loop {
                match client.check() {
                    Ok(()) => std::thread::yield_now(),
                    Err(error) => break error,
                }
            };
            let _ = ended.send(());
            Err(error)
        };
        let shared = Arc::new(ServerState::new(Options::default()));
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
        let shared = Arc::new(ServerState::new(Options::default()));
        assert_eq!(while_wanted(&shared, 1, |client| client.check().map(|()| 5)).await, Ok(5));
        assert_eq!(in_turn(&shared, 1, || Ok(6)).await, Ok(6));
    }
}
