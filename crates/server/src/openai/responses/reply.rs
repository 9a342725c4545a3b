//! An answer as clients of `/v1/responses` read it: items, and the events that build them.
//!
//! [`Reply`] takes the updates of an answer and says which events each becomes; at the end it has the whole
//! response too, so a streamed answer and one that is not cannot differ.
//!
//! Invariant: one item is open at a time, every item that is added is done before the response is, and sequence
//! numbers count from 0 without gaps.

use engine::session::{Ending, Finish, Update};
use serde_json::{Map, Value, json};
use text::Piece;

use super::input_text::InputText;
use super::offers::{Offer, Offers};
use crate::error::ApiError;
use crate::openai::logprobs_json;
use crate::reply::{Event, EventReply};
use crate::request::call_id;

/// Clients hand back `encrypted_content` unread, and some of them nothing else of what was thought. Nothing is
/// secret here: behind this mark it is plain text.
pub(super) const THINKING: &str = "millstream:";

/// How events name a part.
#[derive(Debug)]
struct Place {
    index: &'static str,
    added: &'static str,
    done: &'static str,
}

const CONTENT: Place = Place {
    index: "content_index",
    added: "response.content_part.added",
    done: "response.content_part.done",
};
const SUMMARY: Place = Place {
    index: "summary_index",
    added: "response.reasoning_summary_part.added",
    done: "response.reasoning_summary_part.done",
};

/// What is known of a response before its answer.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    /// What all ids of this response have in common.
    pub(crate) suffix: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// What it says of the request.
    pub(crate) echo: Map<String, Value>,
}

/// What is to be in a response in addition to the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    pub(crate) logprobs: bool,
    /// Thinking in a form that clients hand back.
    pub(crate) thinking: bool,
    /// Thinking as a summary of itself: clients that request one show nothing else.
    pub(crate) summary: bool,
}

/// A response under way.
#[derive(Debug)]
pub(crate) struct Reply {
    head: ResponseHead,
    offers: Offers,
    extras: Extras,
    items: Vec<Item>,
    /// Whether the last item may grow.
    is_open: bool,
    /// Tokens whose text has not come yet.
    pending: Vec<Value>,
    outcome: Outcome,
    next_sequence: u64,
}

#[derive(Debug)]
enum Outcome {
    UnderWay,
    Ended(Ending),
    Failed(ApiError),
}

#[derive(Debug)]
struct Item {
    id: String,
    status: &'static str,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Reasoning { text: String, keep: bool, is_summary: bool },
    Message { text: String, logprobs: Option<Vec<Value>> },
    Call { call_id: String, offer: Offer, arguments: String },
    Custom { call_id: String, offer: Offer, input: InputText },
}

impl Reply {
    pub(crate) fn new(head: ResponseHead, offers: Offers, extras: Extras) -> Reply {
        Reply {
            head,
            offers,
            extras,
            items: Vec::new(),
            is_open: false,
            pending: Vec::new(),
            outcome: Outcome::UnderWay,
            next_sequence: 0,
        }
    }

    fn last_is(&self, is_meant: impl Fn(&Body) -> bool) -> bool {
        self.is_open && self.items.last().is_some_and(|item| is_meant(&item.body))
    }

    fn open(&mut self, body: Body, events: &mut Vec<Event>) {
        self.close("completed", events);
        let index = self.items.len();
        let id = format!("{}{}{index:02x}", body.prefix(), self.head.suffix);
        let item = Item { id, status: "in_progress", body };
        let (part, place) = (item.body.part(), item.body.place());
        self.tell(
            "response.output_item.added",
            json!({"output_index": index, "item": item.whole()}),
            events,
        );
        self.items.push(item);
        self.is_open = true;
        if let Some(part) = part {
            self.tell_of_last(place.added, [(place.index, json!(0)), ("part", part)], events);
        }
    }

    /// More text of the open item.
    fn grow(
        &mut self,
        name: &'static str,
        more: &str,
        tokens: Option<Vec<Value>>,
        events: &mut Vec<Event>,
    ) {
        let mut index = "content_index";
        if let Some(Item { body, .. }) = self.items.last_mut() {
            index = body.place().index;
            match body {
                Body::Reasoning { text, .. } => text.push_str(more),
                Body::Message { text, logprobs } => {
                    text.push_str(more);
                    if let (Some(logprobs), Some(tokens)) = (logprobs, &tokens) {
                        logprobs.extend(tokens.iter().cloned());
                    }
                }
                Body::Call { .. } | Body::Custom { .. } => {}
            }
        }
        let mut more = vec![(index, json!(0)), ("delta", json!(more))];
        more.extend(tokens.map(|tokens| ("logprobs", Value::from(tokens))));
        self.tell_of_last(name, more, events);
    }

    /// More of the open call.
    fn grow_call(&mut self, json: &str, events: &mut Vec<Event>) {
        if !self.is_open {
            return;
        }
        let (name, delta) = match self.items.last_mut().map(|item| &mut item.body) {
            Some(Body::Call { arguments, .. }) => {
                arguments.push_str(json);
                ("response.function_call_arguments.delta", json.to_owned())
            }
            Some(Body::Custom { input, .. }) => {
                ("response.custom_tool_call_input.delta", input.push(json))
            }
            _ => return,
        };
        if !delta.is_empty() {
            self.tell_of_last(name, [("delta", json!(delta))], events);
        }
    }

    /// Tokens that brought no text of their own, such as the one that ends an answer.
    fn finish_message(&mut self, events: &mut Vec<Event>) {
        if !self.pending.is_empty() && self.last_is(|body| matches!(body, Body::Message { .. })) {
            let tokens = std::mem::take(&mut self.pending);
            self.grow("response.output_text.delta", "", Some(tokens), events);
        }
    }

    fn close(&mut self, status: &'static str, events: &mut Vec<Event>) {
        if !self.is_open {
            return;
        }
        self.finish_call(events);
        self.is_open = false;
        let Some(item) = self.items.last_mut() else { return };
        item.status = status;
        let whole = item.whole();
        let (part, place) = (parts(&item.body).pop(), item.body.place());
        match &item.body {
            Body::Reasoning { text, is_summary, .. } => {
                let name = if *is_summary {
                    "response.reasoning_summary_text.done"
                } else {
                    "response.reasoning_text.done"
                };
                let more = [(place.index, json!(0)), ("text", json!(text))];
                self.tell_of_last(name, more, events);
            }
            Body::Message { text, logprobs } => {
                let (text, tokens) = (json!(text), json!(logprobs.clone().unwrap_or_default()));
                self.tell_of_last(
                    "response.output_text.done",
                    [(place.index, json!(0)), ("text", text), ("logprobs", tokens)],
                    events,
                );
            }
            Body::Call { arguments, offer, .. } => {
                let more = [("name", json!(offer.name)), ("arguments", json!(arguments))];
                self.tell_of_last("response.function_call_arguments.done", more, events);
            }
            Body::Custom { input, .. } => {
                let input = json!(input.text());
                self.tell_of_last(
                    "response.custom_tool_call_input.done",
                    [("input", input)],
                    events,
                );
            }
        }
        if let Some(part) = part {
            self.tell_of_last(place.done, [(place.index, json!(0)), ("part", part)], events);
        }
        let output_index = self.items.len() - 1;
        self.tell(
            "response.output_item.done",
            json!({"output_index": output_index, "item": whole}),
            events,
        );
    }

    /// What is still owed of an open call.
    fn finish_call(&mut self, events: &mut Vec<Event>) {
        let (name, rest) = match self.items.last_mut().map(|item| &mut item.body) {
            Some(Body::Call { arguments, .. }) if arguments.is_empty() => {
                // Clients parse arguments, and no text is no JSON.
                arguments.push_str("{}");
                ("response.function_call_arguments.delta", "{}".to_owned())
            }
            Some(Body::Custom { input, .. }) => {
                ("response.custom_tool_call_input.delta", input.finish())
            }
            _ => return,
        };
        if !rest.is_empty() {
            self.tell_of_last(name, [("delta", json!(rest))], events);
        }
    }

    fn tell_whole(&mut self, name: &'static str, events: &mut Vec<Event>) {
        let whole = self.whole();
        self.tell(name, json!({"response": whole}), events);
    }

    /// An event about the last item.
    fn tell_of_last(
        &mut self,
        name: &'static str,
        more: impl IntoIterator<Item = (&'static str, Value)>,
        events: &mut Vec<Event>,
    ) {
        let Some(item) = self.items.last() else { return };
        let mut data = json!({"item_id": item.id, "output_index": self.items.len() - 1});
        for (key, value) in more {
            data[key] = value;
        }
        self.tell(name, data, events);
    }

    fn tell(&mut self, name: &'static str, more: Value, events: &mut Vec<Event>) {
        let mut data = json!({"type": name, "sequence_number": self.next_sequence});
        self.next_sequence += 1;
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        events.push((name, data));
    }
}

impl EventReply for Reply {
    const KEEP_ALIVE: &'static str = ": keep-alive\n\n";

    fn begin(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.tell_whole("response.created", &mut events);
        self.tell_whole("response.in_progress", &mut events);
        events
    }

    fn take(&mut self, update: Update) -> Vec<Event> {
        let mut events = Vec::new();
        match update {
            Update::Prefill { .. } => {}
            Update::Piece(Piece::Reasoning(text), _) if text.is_empty() => {}
            Update::Piece(Piece::Reasoning(text), _) => {
                if !self.last_is(|body| matches!(body, Body::Reasoning { .. })) {
                    let Extras { thinking: keep, summary: is_summary, .. } = self.extras;
                    let text = String::new();
                    self.open(Body::Reasoning { text, keep, is_summary }, &mut events);
                }
                let name = if self.extras.summary {
                    "response.reasoning_summary_text.delta"
                } else {
                    "response.reasoning_text.delta"
                };
                self.grow(name, &text, None, &mut events);
            }
            Update::Piece(Piece::Content(text), logprobs) => {
                if self.extras.logprobs
                    && let Value::Array(tokens) = logprobs_json(&logprobs)["content"].take()
                {
                    self.pending.extend(tokens);
                }
                if text.is_empty() {
                    return events;
                }
                if !self.last_is(|body| matches!(body, Body::Message { .. })) {
                    let logprobs = self.extras.logprobs.then(Vec::new);
                    self.open(Body::Message { text: String::new(), logprobs }, &mut events);
                }
                let tokens = std::mem::take(&mut self.pending);
                self.grow("response.output_text.delta", &text, Some(tokens), &mut events);
            }
            Update::Piece(Piece::ToolBegin { id, name, .. }, _) => {
                let call_id = call_id(id);
                let offer = self.offers.called(&name);
                let body = if offer.is_custom {
                    Body::Custom { call_id, offer, input: InputText::default() }
                } else {
                    Body::Call { call_id, offer, arguments: String::new() }
                };
                self.open(body, &mut events);
            }
            Update::Piece(Piece::ToolArguments { json, .. }, _) => {
                self.grow_call(&json, &mut events);
            }
            Update::Piece(Piece::ToolEnd { .. }, _) => {
                if self.last_is(|body| matches!(body, Body::Call { .. } | Body::Custom { .. })) {
                    self.close("completed", &mut events);
                }
            }
            Update::Finished(ending) => {
                let is_cut = ending.reason == Finish::Length;
                self.finish_message(&mut events);
                self.close(if is_cut { "incomplete" } else { "completed" }, &mut events);
                self.outcome = Outcome::Ended(ending);
                let name = if is_cut { "response.incomplete" } else { "response.completed" };
                self.tell_whole(name, &mut events);
            }
        }
        events
    }

    fn fail(&mut self, error: ApiError) -> Vec<Event> {
        let mut events = Vec::new();
        let fault = json!({"code": error.code, "message": error.message, "param": error.param});
        self.tell("error", fault, &mut events);
        self.outcome = Outcome::Failed(error);
        self.tell_whole("response.failed", &mut events);
        events
    }

    fn whole(&self) -> Value {
        let ResponseHead { suffix, created, model, echo } = &self.head;
        let (status, error, incomplete, usage) = match &self.outcome {
            Outcome::UnderWay => ("in_progress", Value::Null, Value::Null, Value::Null),
            Outcome::Failed(error) => ("failed", error_json(error), Value::Null, Value::Null),
            Outcome::Ended(ending) if ending.reason == Finish::Length => {
                let why = json!({"reason": "max_output_tokens"});
                ("incomplete", Value::Null, why, usage_json(ending))
            }
            Outcome::Ended(ending) => ("completed", Value::Null, Value::Null, usage_json(ending)),
        };
        let mut whole = json!({
            "id": format!("resp_{suffix}"),
            "object": "response",
            "created_at": created,
            "status": status,
            "model": model,
            "output": self.items.iter().map(Item::whole).collect::<Vec<_>>(),
            "error": error,
            "incomplete_details": incomplete,
            "usage": usage,
        });
        if let Value::Object(whole) = &mut whole {
            whole.extend(echo.clone());
        }
        whole
    }

    /// Names fields as this path does: what chat calls `messages` is `input` here.
    fn in_own_words(error: ApiError) -> ApiError {
        error.renamed("messages", "input").renamed("response_format", "text.format")
    }
}

impl Item {
    fn whole(&self) -> Value {
        let Item { id, status, body } = self;
        match body {
            Body::Reasoning { text, keep, is_summary } => {
                let (none, all) = (Vec::new(), parts(body));
                let (summary, content) = if *is_summary { (all, none) } else { (none, all) };
                let mut item = json!({
                    "id": id, "type": "reasoning", "summary": summary, "content": content,
                });
                if *keep {
                    item["encrypted_content"] = format!("{THINKING}{text}").into();
                }
                item
            }
            Body::Message { .. } => json!({
                "id": id, "type": "message", "role": "assistant", "status": status, "content": parts(body),
            }),
            Body::Call { call_id, offer, arguments } => {
                let mut item = json!({
                    "id": id, "type": "function_call", "status": status,
                    "call_id": call_id, "name": offer.name, "arguments": arguments,
                });
                name_space(&mut item, offer);
                item
            }
            Body::Custom { call_id, offer, input } => {
                let mut item = json!({
                    "id": id, "type": "custom_tool_call", "status": status,
                    "call_id": call_id, "name": offer.name, "input": input.text(),
                });
                name_space(&mut item, offer);
                item
            }
        }
    }
}

impl Body {
    /// What an item's id begins with.
    fn prefix(&self) -> &'static str {
        match self {
            Body::Reasoning { .. } => "rs_",
            Body::Message { .. } => "msg_",
            Body::Call { .. } => "fc_",
            Body::Custom { .. } => "ctc_",
        }
    }

    /// Where its part stands.
    fn place(&self) -> &'static Place {
        match self {
            Body::Reasoning { is_summary: true, .. } => &SUMMARY,
            _ => &CONTENT,
        }
    }

    /// The part of an item that has parts.
    fn part(&self) -> Option<Value> {
        match self {
            Body::Reasoning { text, is_summary, .. } => {
                let kind = if *is_summary { "summary_text" } else { "reasoning_text" };
                Some(json!({"type": kind, "text": text}))
            }
            Body::Message { text, logprobs } => {
                let mut part = json!({"type": "output_text", "text": text, "annotations": []});
                if let Some(logprobs) = logprobs {
                    part["logprobs"] = logprobs.clone().into();
                }
                Some(part)
            }
            Body::Call { .. } | Body::Custom { .. } => None,
        }
    }
}

/// An item that is just added has no part yet: clients append it when it is announced.
fn parts(body: &Body) -> Vec<Value> {
    let is_empty = match body {
        Body::Reasoning { text, .. } | Body::Message { text, .. } => text.is_empty(),
        Body::Call { .. } | Body::Custom { .. } => true,
    };
    if is_empty { Vec::new() } else { body.part().into_iter().collect() }
}

fn name_space(item: &mut Value, offer: &Offer) {
    if let Some(namespace) = &offer.namespace {
        item["namespace"] = namespace.as_str().into();
    }
}

/// Codes that programs know; what is the server's own fault is worth another try.
fn error_json(error: &ApiError) -> Value {
    let code = if error.status.is_server_error() { "server_error" } else { error.code };
    json!({"code": code, "message": error.message})
}

fn usage_json(ending: &Ending) -> Value {
    let usage = &ending.usage;
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        // OpenAI's own has no word for drafts here; clients take further fields as chat names them.
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_drafts,
            "rejected_prediction_tokens": usage.rejected_drafts,
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
