//! From an ask to tokens in the engine's queue: template, tokenizer, grammar, limits.
//!
//! This is where a request meets the model, once for all dialects: what it cannot do is refused here,
//! with the field named, before anything is queued. It takes processor time (a long prompt, a large
//! schema), so it runs beside the threads that serve connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::Request;
use serde_json::Value;
use text::tools::Choice;
use text::{ChatRequest, Prompt};

use crate::answers::{Answers, Hearing};
use crate::ask::{Ask, Input, MOST_CHOICES, random};
use crate::body::refused;
use crate::budget::Share;
use crate::constrain::{constraint, for_choices};
use crate::conversation::{Conversation, with_results_in_order};
use crate::error::{ApiError, context_exceeded};
use crate::fields::Result;
use crate::model::Model;
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

/// What an ask comes to.
struct Prepared {
    requests: Vec<Request>,
    hearings: Vec<Hearing>,
    /// What is kept of it until its answers are complete.
    kept_bytes: usize,
}

/// Queues an ask. What comes back is already under way.
pub(crate) async fn begin(shared: &Arc<Shared>, ask: Ask, share: Share) -> Result<Answers> {
    begin_all(shared, vec![ask], share).await
}

/// Queues several asks as one: their answers are numbered through.
pub(crate) async fn begin_all(
    shared: &Arc<Shared>,
    asks: Vec<Ask>,
    mut share: Share,
) -> Result<Answers> {
    let model = Arc::clone(shared.model()?);
    asks.iter().try_for_each(check_choices)?;
    let place = shared.place(asks.iter().map(|ask| ask.choices).sum())?;
    let size = share.bytes();
    grow_to_prepare(shared, &mut share)?;
    let (prepared, mut share) = while_wanted(shared, size, {
        let model = Arc::clone(&model);
        move |asker| {
            let mut held = Held { size, share };
            let prepare = |ask| prepare(&model, ask, asker, &mut held);
            let prepared = asks.into_iter().map(prepare).collect::<Result<Vec<_>>>()?;
            Ok((prepared, held.share))
        }
    })
    .await?;
    let kept = prepared.iter().fold(0, |sum: usize, one| sum.saturating_add(one.kept_bytes));
    grow(shared, &mut share, kept, "with its answers")?;
    share.shrink(kept);
    let (mut requests, mut hearings) = (Vec::new(), Vec::new());
    for one in prepared {
        requests.extend(one.requests);
        hearings.extend(one.hearings);
    }
    let inlet = model.desk.submit(requests);
    let (text, metrics) = (Arc::clone(&model.text), Arc::clone(&shared.metrics));
    Ok(Answers::new(inlet, hearings, text, metrics, (place, share)))
}

/// The prompt an ask would have: for counting and showing.
pub(crate) async fn prompt(
    shared: &Arc<Shared>,
    ask: Ask,
    mut share: Share,
) -> Result<(Prompt, Share)> {
    let model = Arc::clone(shared.model()?);
    let most = most_counted(&model);
    let size = share.bytes();
    grow_to_prepare(shared, &mut share)?;
    while_wanted(shared, size, move |asker| {
        let (mut ask, mut held) = (ask, Held { size, share });
        let (prompt, _) = prompt_of(&model, &mut ask, most, asker, &mut held)?;
        drop(ask);
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
    while_wanted(shared, size, move |asker| {
        let (most, mut held) = (most_counted(&model), Held { size, share });
        let tokens = encoded(&model, &text, with_special, most, asker, &mut held)?;
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
    asker: &Asker,
    held: &mut Held,
) -> Result<()> {
    let length = model.text.tokenizer.check_length(text, most);
    length.map_err(|error| too_long(error, model.facts.context))?;
    let work = text.len().saturating_mul(ENCODE_BYTES);
    let more = work.saturating_sub(held.share.budget().work_bytes());
    let needed = held.size.saturating_add(more);
    grow(&asker.shared, &mut held.share, needed, "to encode")
}

/// The tokens of a text, if there are no more than `most`.
fn encoded(
    model: &Model,
    text: &str,
    with_special: bool,
    most: usize,
    asker: &Asker,
    held: &mut Held,
) -> Result<Vec<u32>> {
    grow_to_encode(model, text, most, asker, held)?;
    let tokens = model.text.tokenizer.encode_up_to(text, with_special, most);
    tokens.map_err(|error| too_long(error, model.facts.context))
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
    work: impl FnOnce(&Asker) -> Result<T> + Send + 'static,
) -> Result<T> {
    let is_large = shared.budget().is_ok_and(|budget| size > budget.small_bytes());
    let turn = shared.turns.take(size, is_large).await;
    let turn = turn.ok_or_else(|| ApiError::internal("the server is shutting down"))?;
    let waiting = Waiting::default();
    let asker = Asker { is_over: Arc::clone(&waiting.is_over), shared: Arc::clone(shared) };
    // The client may go away; the work goes on until it notices, and so does its turn.
    let work = move || {
        let _turn = turn;
        asker.check()?;
        work(&asker)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!("preparing a request failed: {error}");
            Err(ApiError::internal("the request could not be prepared"))
        }
    }
}

/// Held while a result is waited for.
#[derive(Default)]
struct Waiting {
    is_over: Arc<AtomicBool>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// The request that waits for a result.
struct Asker {
    is_over: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Asker {
    /// An error, which will not be read, if it was cancelled.
    fn check(&self) -> Result<()> {
        match self.is_over.load(Ordering::Acquire) {
            true => Err(ApiError::internal("request cancelled")),
            false => Ok(()),
        }
    }
}

fn check_choices(ask: &Ask) -> Result<()> {
    if ask.choices == 0 || ask.choices > MOST_CHOICES {
        return Err(ApiError::field("n", format!("must be 1 to {MOST_CHOICES}")));
    }
    Ok(())
}

fn prepare(model: &Model, mut ask: Ask, asker: &Asker, held: &mut Held) -> Result<Prepared> {
    let seed = ask.sampling.seed.unwrap_or_else(random);
    let sampling = ask.sampling.over(&model.defaults, seed, 0);
    sampling.validate()?;
    let vocabulary = model.facts.vocabulary;
    if let Some((token, _)) = ask.sampling.logit_bias.iter().find(|b| b.0 as usize >= vocabulary) {
        let message = format!("token {token} does not exist, the vocabulary has {vocabulary}");
        return Err(ApiError::field("logit_bias", message));
    }
    let context = model.facts.context;
    let (prompt, stable) = prompt_of(model, &mut ask, context, asker, held)?;
    let ask = &ask;
    if prompt.tokens.is_empty() {
        let field = if matches!(ask.input, Input::Chat(_)) { "messages" } else { "prompt" };
        return Err(ApiError::field(field, "the prompt is empty"));
    }
    if prompt.tokens.len() >= context {
        return Err(context_exceeded(prompt.tokens.len() + 1, context));
    }
    asker.check()?;
    // Where no tool may be called, nothing is read as a call.
    let tools = match ask.tool_choice {
        Choice::None => &[][..],
        _ => &ask.tools[..],
    };
    let decoder = || {
        let stop = ask.stop.clone();
        if ask.is_raw {
            model.text.plain_decoder(stop)
        } else {
            model.text.decoder(prompt.thinking, stop, tools)
        }
    };
    let first = decoder();
    let (field, constraint) = constraint(model, ask, &prompt, &first, &asker.shared)?.unzip();
    let mut constraints = for_choices(constraint, ask.choices, &asker.shared)?.into_iter();
    let max_tokens = ask.max_tokens.unwrap_or(usize::MAX);
    let mut request = |choice: usize| Request {
        prompt: prompt.tokens.clone(),
        max_tokens,
        stop_tokens: model.text.stop_tokens(!tools.is_empty()),
        sampling: ask.sampling.over(&model.defaults, seed, choice),
        checkpoints: stable.into_iter().collect(),
        constraint: constraints.next(),
    };
    let requests = (0..ask.choices).map(&mut request).collect();
    let decoders = std::iter::once(first).chain((1..ask.choices).map(|_| decoder()));
    let hearing = |(choice, decoder)| Hearing {
        decoder,
        prompt_tokens: prompt.tokens.len(),
        is_first: choice == 0,
        calls_once: !ask.parallel_tool_calls,
        grammar_field: field.map(str::to_owned),
    };
    let hearings = decoders.enumerate().map(hearing).collect();
    let tools = tools.iter().map(|tool| weight::of_value(&tool.parameters));
    let answer = tools.fold(ANSWER_BYTES + 4 * prompt.tokens.len(), usize::saturating_add);
    Ok(Prepared { requests, hearings, kept_bytes: answer.saturating_mul(ask.choices) })
}

/// Tokens that are counted or shown.
fn most_counted(model: &Model) -> usize {
    model.facts.context.saturating_mul(COUNTED_CONTEXTS)
}

/// What is wrong with a prompt, where there is more of it than was allowed.
fn too_long(error: text::Error, context: usize) -> ApiError {
    match error {
        text::Error::TooManyTokens { at_least, .. } => context_exceeded(at_least + 1, context),
        error => error.into(),
    }
}

/// The prompt, if it has no more than `most` tokens, and how much of it the next turn of the conversation will likely
/// begin with. The ask's messages, definitions and variables are gone afterwards: the template has them.
fn prompt_of(
    model: &Model,
    ask: &mut Ask,
    most: usize,
    asker: &Asker,
    held: &mut Held,
) -> Result<(Prompt, Option<usize>)> {
    let model_text = &model.text;
    let context = model.facts.context;
    match &mut ask.input {
        Input::Chat(messages) => {
            if messages.is_empty() {
                return Err(ApiError::field("messages", "there are no messages"));
            }
            if model_text.template.is_none() {
                let message = "this model has no chat template: use /v1/completions";
                return Err(ApiError::bad_request("no_chat_template", message));
            }
            // Nearly every template writes some tokens for a message and for a call; rendering takes a while for each.
            let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
            let turns: usize = messages.iter().map(|message| 1 + calls(message)).sum();
            if turns > most {
                return Err(context_exceeded(turns + 1, context));
            }
            let messages = with_results_in_order(std::mem::take(messages));
            let mut chat = ChatRequest::new(messages);
            let definitions = std::mem::take(&mut ask.tool_definitions);
            if ask.tool_choice != Choice::None {
                chat.tools = definitions;
            }
            chat.enable_thinking = ask.thinking;
            chat.kwargs = std::mem::take(&mut ask.template_variables);
            let rendered = match model_text.rendered(&chat) {
                // Many templates insist on one system message, in front, and on turns; clients do not.
                Err(error @ text::Error::TemplateRaised { .. }) => {
                    chat.messages = Conversation::of_messages(&chat.messages).into_messages();
                    model_text.rendered(&chat).map_err(|_| error)?
                }
                rendered => rendered?,
            };
            asker.check()?;
            grow_to_encode(model, &rendered, most, asker, held)?;
            let prompt = model_text.prompt_of(&chat, rendered, most);
            let prompt = prompt.map_err(|error| too_long(error, context))?;
            asker.check()?;
            let stable = model_text.stable_prefix(&chat, &prompt);
            Ok((prompt, Some(stable)))
        }
        Input::Text(text) => {
            let tokens = encoded(model, text, true, most, asker, held)?;
            Ok((Prompt { text: std::mem::take(text), tokens, thinking: ask.begun }, None))
        }
        Input::Tokens(tokens) => {
            if tokens.len() > most {
                return Err(context_exceeded(tokens.len() + 1, context));
            }
            let vocabulary = model.facts.vocabulary;
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
                let message =
                    format!("token {token} does not exist, the vocabulary has {vocabulary}");
                return Err(ApiError::field("prompt", message));
            }
            let text = model_text.tokenizer.decode(tokens, false)?;
            Ok((Prompt { text, tokens: std::mem::take(tokens), thinking: ask.begun }, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_that_nobody_waits_for_stops_and_gives_its_turn_back() {
        let (began, has_begun) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let work = move |asker: &Asker| -> Result<()> {
            let _ = began.send(());
            let error = loop {
                match asker.check() {
                    Ok(()) => std::thread::yield_now(),
                    Err(error) => break error,
                }
            };
            let _ = ended.send(());
            Err(error)
        };
        let shared = Arc::new(Shared::new(Options::default()));
        let client = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move { while_wanted(&shared, 1, work).await }
        });
        has_begun.await.unwrap();
        client.abort();
        has_ended.await.unwrap();
        // All turns are free, sooner or later.
        let _all = (shared.turns.take(1, false).await, shared.turns.take(1, false).await);
    }

    #[tokio::test]
    async fn work_that_is_waited_for_is_done() {
        let shared = Arc::new(Shared::new(Options::default()));
        assert_eq!(while_wanted(&shared, 1, |asker| asker.check().map(|()| 5)).await, Ok(5));
        assert_eq!(in_turn(&shared, 1, || Ok(6)).await, Ok(6));
    }
}
