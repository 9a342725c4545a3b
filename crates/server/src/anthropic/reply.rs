//! An answer as Anthropic's clients read it: blocks of content, and the events that build them.
//!
//! [`Reply`] takes the updates of an answer and says which events each becomes; at the end it has the whole
//! message too, so a streamed answer and one that is not cannot differ.
//!
//! Invariant: one block is open at a time, every block that starts stops, and indexes count from 0 without gaps.

use engine::session::{Ending, Finish, Update};
use serde_json::{Value, json};
use text::Piece;

use super::cut;
use crate::error::{ApiError, ErrorShape};
use crate::reply::{Event, EventReply};
use crate::request::call_id;

/// Signs thinking, which clients send back; some take a block without a signature for none. It is not checked.
const SIGNATURE: &str = "millstream";

/// A message under way.
#[derive(Debug)]
pub(crate) struct Reply {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// Whether a client reads what was thought, or only learns that it was.
    shows_thinking: bool,
    blocks: Vec<Block>,
    /// Whether the last block may grow.
    is_open: bool,
    ending: Option<Ending>,
}

#[derive(Debug)]
enum Block {
    Thinking(String),
    Text(String),
    Tool { id: String, name: String, json: String },
}

impl Reply {
    pub(crate) fn new(
        id: String,
        model: String,
        prompt_tokens: usize,
        shows_thinking: bool,
    ) -> Reply {
        Reply {
            id,
            model,
            prompt_tokens,
            shows_thinking,
            blocks: Vec::new(),
            is_open: false,
            ending: None,
        }
    }

    fn start(&mut self, block: Block, events: &mut Vec<Event>) {
        self.stop(events);
        let index = self.blocks.len();
        let mut begun = block.whole();
        if let Block::Thinking(_) = block {
            // The signature comes last.
            begun["signature"] = "".into();
        }
        let start = json!({"type": "content_block_start", "index": index, "content_block": begun});
        events.push(("content_block_start", start));
        self.blocks.push(block);
        self.is_open = true;
    }

    fn stop(&mut self, events: &mut Vec<Event>) {
        if !self.is_open {
            return;
        }
        if let Some(Block::Thinking(_)) = self.blocks.last() {
            events.push(self.delta(&json!({"type": "signature_delta", "signature": SIGNATURE})));
        }
        let index = self.blocks.len() - 1;
        events.push(("content_block_stop", json!({"type": "content_block_stop", "index": index})));
        self.is_open = false;
    }

    /// A change of the last block.
    fn delta(&self, delta: &Value) -> Event {
        let index = self.blocks.len() - 1;
        (
            "content_block_delta",
            json!({"type": "content_block_delta", "index": index, "delta": delta}),
        )
    }

    fn stop_reason(&self) -> Option<&'static str> {
        self.ending.as_ref().map(|ending| match ending.reason {
            Finish::Stop if ending.stop_text.is_some() => "stop_sequence",
            Finish::Stop => "end_turn",
            Finish::Length => "max_tokens",
            Finish::ToolCalls => "tool_use",
        })
    }

    fn stop_sequence(&self) -> Option<&str> {
        self.ending.as_ref()?.stop_text.as_deref()
    }

    /// Tokens read from the cache are not counted among those of the input. Until the end nothing is known of
    /// the cache.
    fn usage(&self) -> Value {
        let usage = self.ending.as_ref().map(|ending| ending.usage).unwrap_or_default();
        let thinking = json!({"thinking_tokens": usage.reasoning_tokens});
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(usage.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": thinking,
        })
    }
}

impl EventReply for Reply {
    const KEEP_ALIVE: &'static str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

    fn begin(&mut self) -> Vec<Event> {
        vec![
            ("message_start", json!({"type": "message_start", "message": self.whole()})),
            ("ping", json!({"type": "ping"})),
        ]
    }

    fn take(&mut self, update: Update) -> Vec<Event> {
        let mut events = Vec::new();
        match update {
            Update::Prefill { .. } => {}
            Update::Piece(Piece::Reasoning(text), _) => {
                if text.is_empty() {
                    return events;
                }
                if !(self.is_open && matches!(self.blocks.last(), Some(Block::Thinking(_)))) {
                    self.start(Block::Thinking(String::new()), &mut events);
                }
                if !self.shows_thinking {
                    return events;
                }
                if let Some(Block::Thinking(thinking)) = self.blocks.last_mut() {
                    thinking.push_str(&text);
                }
                events.push(self.delta(&json!({"type": "thinking_delta", "thinking": text})));
            }
            Update::Piece(Piece::Content(text), _) => {
                if text.is_empty() {
                    return events;
                }
                if !(self.is_open && matches!(self.blocks.last(), Some(Block::Text(_)))) {
                    self.start(Block::Text(String::new()), &mut events);
                }
                if let Some(Block::Text(said)) = self.blocks.last_mut() {
                    said.push_str(&text);
                }
                events.push(self.delta(&json!({"type": "text_delta", "text": text})));
            }
            Update::Piece(Piece::ToolBegin { id, name, .. }, _) => {
                let id = tool_use_id(&call_id(id));
                let tool = Block::Tool { id, name, json: String::new() };
                self.start(tool, &mut events);
            }
            Update::Piece(Piece::ToolArguments { json: more, .. }, _) => {
                if let (true, Some(Block::Tool { json, .. })) =
                    (self.is_open, self.blocks.last_mut())
                {
                    json.push_str(&more);
                    events.push(
                        self.delta(&json!({"type": "input_json_delta", "partial_json": more})),
                    );
                }
            }
            Update::Piece(Piece::ToolEnd { .. }, _) => {
                if matches!(self.blocks.last(), Some(Block::Tool { .. })) {
                    self.stop(&mut events);
                }
            }
            Update::Finished(ending) => {
                self.stop(&mut events);
                self.ending = Some(ending);
                let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": self.stop_sequence()});
                let last = json!({"type": "message_delta", "delta": delta, "usage": self.usage()});
                events.push(("message_delta", last));
                events.push(("message_stop", json!({"type": "message_stop"})));
            }
        }
        events
    }

    fn fail(&mut self, error: ApiError) -> Vec<Event> {
        vec![("error", ErrorShape::Anthropic.body(&error))]
    }

    fn whole(&self) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.blocks.iter().map(Block::whole).collect::<Vec<_>>(),
            "stop_reason": self.stop_reason(),
            "stop_sequence": self.stop_sequence(),
            "usage": self.usage(),
        })
    }

    /// An error as Anthropic would say it: clients look for its words to know that a conversation must be shortened.
    fn in_own_words(error: ApiError) -> ApiError {
        match error.context {
            Some((needed, context)) => {
                let message = format!("prompt is too long: {needed} tokens > {context} maximum");
                ApiError { message, ..error }
            }
            None => error.renamed("response_format", "output_config.format"),
        }
    }
}

impl Block {
    fn whole(&self) -> Value {
        match self {
            Block::Thinking(text) => {
                json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
            }
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::Tool { id, name, json } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": cut::object(json)})
            }
        }
    }
}

/// Ids that we made up begin as Anthropic's do; a model's own ids must come back to it as they are.
fn tool_use_id(id: &str) -> String {
    match id.strip_prefix("call_") {
        Some(rest) => format!("toolu_{rest}"),
        None => id.to_owned(),
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
