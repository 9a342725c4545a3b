//! What an Anthropic client requests.
//!
//! What the server cannot do (images, tools that Anthropic itself runs) is refused by name, unless it is past; what makes no
//! difference to an answer (`cache_control`, `metadata`, betas) is ignored, for Claude Code sends all of it.
//! An image or a document that a tool returned is left out and said to be: it comes again with every later request.

use std::borrow::Cow;

use engine::session::{AnswerRequest, Input};
use grammar::Grammar;
use serde_json::Value;

use super::tools;
use crate::conversation::{Conversation, DOCUMENT_LEFT_OUT, IMAGE_LEFT_OUT};
use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};
use crate::request::read_stop;

/// A line that Claude Code puts into its system prompt for Anthropic's accounts. It changes with every request,
/// so that nothing behind it could ever be remembered, and says nothing to a model.
const BILLING: &str = "x-anthropic-billing-header:";

/// What Anthropic's own tools and changes of its models left in the assistant's turns. This server cannot continue it, and
/// refused, it would lock a conversation that was begun there.
const FOREIGN: [&str; 12] = [
    "advisor_tool_result",
    "bash_code_execution_tool_result",
    "code_execution_tool_result",
    "fallback",
    "mcp_tool_listing",
    "mcp_tool_result",
    "mcp_tool_use",
    "server_tool_use",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "web_fetch_tool_result",
    "web_search_tool_result",
];

/// Why a conversation is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To answer it.
    Answer,
    /// To count its tokens.
    Count,
}

/// A request that was understood.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    pub(crate) request: AnswerRequest,
    /// Whether the answer is streamed.
    pub(crate) streams: bool,
    /// Whether thinking is shown, or only that there was some.
    pub(crate) shows_thinking: bool,
    /// What the assistant has said of its answer already.
    pub(crate) begun: Option<String>,
}

/// Reads a request.
pub(crate) fn read(body: &Value, purpose: Purpose) -> Result<MessagesRequest> {
    let fields = Fields::of_body(body)?;
    fields.string("model")?;
    if purpose == Purpose::Answer {
        fields.required("max_tokens")?;
    }
    // A request for no tokens is there to have its prompt remembered.
    let max_tokens = fields.count("max_tokens")?;
    let mut conversation = Conversation::default();
    if let Some(system) = fields.get("system") {
        read_texts(system, "system", Block::only_text, |text| {
            if !text.starts_with(BILLING) {
                conversation.instructed(text);
            }
        })?;
    }
    fields.required("messages")?;
    let messages = without_empty_end(fields.array("messages")?.unwrap_or_default());
    for (index, message) in messages.iter().enumerate() {
        read_message(&Fields::of(message, format!("messages[{index}]"))?, &mut conversation)?;
    }
    check_question(messages, &conversation)?;
    if conversation.is_empty() {
        return Err(fields.error("messages", "there are no messages"));
    }
    let begun = read_begun(&conversation)?;

    let mut request = AnswerRequest::new(Input::Chat(conversation.into_messages()));
    request.max_tokens = max_tokens;
    request.sampling.temperature = read_temperature(&fields)?;
    request.sampling.top_p = fields.number("top_p")?;
    request.sampling.top_k = fields.count("top_k")?;
    request.stop = read_stop(&fields, "stop_sequences")?;
    tools::read(&fields, &mut request)?;
    request.thinking = Some(read_thinking(&fields)?);
    let shows_thinking = read_display(&fields)?;
    request.grammar = read_format(&fields)?;
    let is_short = fields.get("output_format").is_some();
    let field = if is_short { "output_format" } else { "output_config.format" };
    field.clone_into(&mut request.grammar_field);
    let streams = fields.bool("stream")?.unwrap_or(false);
    Ok(MessagesRequest { request, streams, shows_thinking, begun })
}

/// A last message by the assistant that says nothing is as good as none; of all messages this one may be empty.
fn without_empty_end(messages: &[Value]) -> &[Value] {
    match messages {
        [before @ .., last] if last["role"] == "assistant" && says_nothing(last) => before,
        messages => messages,
    }
}

/// A last message by the user that says nothing would leave the assistant to continue what it said before. Earlier ones
/// do no harm, and some agents send them.
fn check_question(messages: &[Value], conversation: &Conversation) -> Result<()> {
    match messages {
        [before @ .., last] if last["role"] == "user" => {
            if says_nothing(last) || conversation.last_assistant().is_some() {
                let path = format!("messages[{}].content", before.len());
                return Err(ApiError::field(path, "the last message must not be empty"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether a message has neither words nor anything else.
fn says_nothing(message: &Value) -> bool {
    match &message["content"] {
        Value::String(text) => text.is_empty(),
        Value::Array(blocks) => {
            blocks.iter().all(|block| block["type"] == "text" && block["text"] == "")
        }
        _ => false,
    }
}

/// A last message by the assistant is the beginning of the answer.
fn read_begun(conversation: &Conversation) -> Result<Option<String>> {
    let Some(assistant) = conversation.last_assistant() else { return Ok(None) };
    match assistant.said_only() {
        Some("") => Err(ApiError::field("messages", "the last message has no text to continue")),
        Some(text) => Ok(Some(text.to_owned())),
        None => {
            let message = "the last message calls tools, and no tool_result follows";
            Err(ApiError::field("messages", message))
        }
    }
}

fn read_message(message: &Fields<'_>, conversation: &mut Conversation) -> Result<()> {
    message.required("role")?;
    let role = message.string("role")?.unwrap_or_default();
    // Instructions may consist of settings alone.
    if role == "system"
        && message.get("content").is_none()
        && message.get("output_config").is_some()
    {
        return Ok(());
    }
    let content = message.required("content")?;
    let path = message.path("content");
    match role {
        "user" => read_blocks(content, &path, conversation, Conversation::asked, read_user_block),
        "assistant" => {
            // Even one that says nothing is a turn.
            conversation.said("");
            read_blocks(content, &path, conversation, Conversation::said, read_assistant_block)
        }
        "system" => read_texts(content, &path, Block::instruction, |text| {
            if !text.is_empty() {
                conversation.instructed(text);
            }
        }),
        other => {
            Err(message.error("role", format!("expected \"user\" or \"assistant\", got {other:?}")))
        }
    }
}

/// A string is one block of text.
fn read_blocks(
    content: &Value,
    path: &str,
    conversation: &mut Conversation,
    say: impl Fn(&mut Conversation, &str),
    read: impl Fn(&Block<'_>, &mut Conversation) -> Result<()>,
) -> Result<()> {
    match content {
        Value::String(text) => {
            say(conversation, text);
            Ok(())
        }
        Value::Array(blocks) => blocks.iter().enumerate().try_for_each(|(index, block)| {
            read(&Block::of(block, format!("{path}[{index}]"))?, conversation)
        }),
        other => Err(wrong(path, "a string or an array of blocks", other)),
    }
}

fn read_user_block(block: &Block<'_>, conversation: &mut Conversation) -> Result<()> {
    match block.kind {
        "text" => conversation.asked(block.text("text")?),
        "document" => match block.document() {
            Some(text) => conversation.asked(&text),
            None => return Err(block.refused("in a message by the user")),
        },
        "search_result" => conversation.asked(&block.search_result()?),
        "compaction" => read_summary(block, conversation)?,
        "tool_result" => {
            let id = block.text("tool_use_id")?;
            let mut texts = Vec::new();
            if let Some(content) = block.fields.get("content") {
                let take = |text: &str| texts.push(text.to_owned());
                read_texts(content, &block.fields.path("content"), Block::result, take)?;
            }
            let mut text = texts.join("\n\n");
            if block.fields.bool("is_error")?.unwrap_or(false) {
                text.insert_str(0, "Error: ");
            }
            conversation.returned(id, text);
        }
        _ => return Err(block.refused("in a message by the user")),
    }
    Ok(())
}

fn read_assistant_block(block: &Block<'_>, conversation: &mut Conversation) -> Result<()> {
    match block.kind {
        "text" => conversation.said(block.text("text")?),
        "thinking" => conversation.thought(block.text("thinking")?),
        // Encrypted for Anthropic's own models.
        "redacted_thinking" => {}
        "compaction" => read_summary(block, conversation)?,
        "tool_use" => {
            block.fields.required("input")?;
            let input = block.fields.map("input")?.cloned().unwrap_or_default();
            conversation.called(block.text("id")?, block.text("name")?, input);
        }
        kind if FOREIGN.contains(&kind) => {}
        _ => return Err(block.refused("in a message by the assistant")),
    }
    Ok(())
}

/// What stands for all before it. It has no text if summing up failed, and then it stands for nothing.
fn read_summary(block: &Block<'_>, conversation: &mut Conversation) -> Result<()> {
    let summary = block.fields.string("content")?.unwrap_or_default();
    if !summary.trim().is_empty() {
        conversation.summed_up(summary);
    }
    Ok(())
}

/// Texts of a string or of an array of blocks.
fn read_texts<'a>(
    content: &'a Value,
    path: &str,
    text_of: impl Fn(&Block<'a>) -> Result<Cow<'a, str>>,
    mut take: impl FnMut(&str),
) -> Result<()> {
    match content {
        Value::String(text) => take(text),
        Value::Array(blocks) => {
            for (index, block) in blocks.iter().enumerate() {
                take(&text_of(&Block::of(block, format!("{path}[{index}]"))?)?);
            }
        }
        other => return Err(wrong(path, "a string or an array of text blocks", other)),
    }
    Ok(())
}

/// A block of content.
struct Block<'a> {
    kind: &'a str,
    fields: Fields<'a>,
}

impl<'a> Block<'a> {
    fn of(block: &'a Value, path: String) -> Result<Block<'a>> {
        let fields = Fields::of(block, path)?;
        fields.required("type")?;
        Ok(Block { kind: fields.string("type")?.unwrap_or_default(), fields })
    }

    /// A string that must be there.
    fn text(&self, key: &str) -> Result<&'a str> {
        self.fields.required(key)?;
        Ok(self.fields.string(key)?.unwrap_or_default())
    }

    /// The text of a block that may be of no other kind.
    fn only_text(&self) -> Result<Cow<'a, str>> {
        match self.kind {
            "text" => self.text("text").map(Cow::Borrowed),
            _ => Err(self.refused("here, only \"text\" is")),
        }
    }

    /// What a system message says; tools that it brings or takes are no words.
    fn instruction(&self) -> Result<Cow<'a, str>> {
        if tools::is_change(self.kind) { Ok("".into()) } else { self.only_text() }
    }

    /// What a tool returned.
    fn result(&self) -> Result<Cow<'a, str>> {
        match self.kind {
            "image" => Ok(IMAGE_LEFT_OUT.into()),
            "document" => Ok(self.document().unwrap_or(DOCUMENT_LEFT_OUT.into())),
            "search_result" => self.search_result().map(Cow::Owned),
            // Every tool of a request is offered from the start.
            "tool_reference" => {
                Ok(format!("The tool {} is there.", self.text("tool_name")?).into())
            }
            _ => self.only_text(),
        }
    }

    /// Something found, with where it is from.
    fn search_result(&self) -> Result<String> {
        let mut texts = vec![format!("{}\n{}", self.text("title")?, self.text("source")?)];
        let content = self.fields.required("content")?;
        let take = |text: &str| texts.push(text.to_owned());
        read_texts(content, &self.fields.path("content"), Block::only_text, take)?;
        Ok(texts.join("\n\n"))
    }

    /// The words of a document, if it is nothing but words.
    fn document(&self) -> Option<Cow<'a, str>> {
        let source = self.fields.get("source")?;
        match (source["type"].as_str()?, &source["content"]) {
            ("text", _) => source["data"].as_str().map(Cow::Borrowed),
            ("content", Value::String(text)) => Some(text.into()),
            ("content", Value::Array(blocks)) => {
                let texts: Option<Vec<&str>> =
                    blocks.iter().map(|block| block["text"].as_str()).collect();
                texts.map(|texts| texts.join("\n\n").into())
            }
            _ => None,
        }
    }

    /// This kind of block is not supported `there`.
    fn refused(&self, there: &str) -> ApiError {
        let message = match self.kind {
            "image" | "document" => format!("this model reads text only, not {}", self.kind),
            kind => format!("{kind:?} is not supported {there}"),
        };
        self.fields.error("type", message)
    }
}

fn read_temperature(fields: &Fields<'_>) -> Result<Option<f32>> {
    let temperature = fields.number("temperature")?;
    match temperature {
        Some(value) if !(0.0..=1.0).contains(&value) => {
            Err(fields.error("temperature", format!("must be 0 to 1, got {value}")))
        }
        temperature => Ok(temperature),
    }
}

/// A request that does not request thinking gets none: clients of this dialect take the first block for the answer.
fn read_thinking(fields: &Fields<'_>) -> Result<bool> {
    let Some(thinking) = fields.fields("thinking")? else { return Ok(false) };
    thinking.required("type")?;
    thinking.count("budget_tokens")?;
    match thinking.string("type")?.unwrap_or_default() {
        "enabled" | "adaptive" | "between_tools" => Ok(true),
        "disabled" => Ok(false),
        other => {
            let message =
                format!("expected \"enabled\", \"adaptive\" or \"disabled\", got {other:?}");
            Err(thinking.error("type", message))
        }
    }
}

/// Whether thinking is shown: Anthropic sums it up, here it comes as it is. It is done in either case.
fn read_display(fields: &Fields<'_>) -> Result<bool> {
    let Some(thinking) = fields.fields("thinking")? else { return Ok(true) };
    match thinking.string("display")? {
        None | Some("summarized" | "updates") => Ok(true),
        Some("omitted") => Ok(false),
        Some(other) => {
            let message =
                format!("expected \"summarized\", \"updates\" or \"omitted\", got {other:?}");
            Err(thinking.error("display", message))
        }
    }
}

/// `output_config.format`, and `output_format` as it was called before.
fn read_format(fields: &Fields<'_>) -> Result<Option<Grammar>> {
    let config = fields.fields("output_config")?;
    let format = match config {
        Some(config) => config.fields("format")?,
        None => None,
    };
    let format = match format {
        Some(format) => format,
        None => match fields.fields("output_format")? {
            Some(format) => format,
            None => return Ok(None),
        },
    };
    format.required("type")?;
    match format.string("type")?.unwrap_or_default() {
        "json_schema" => {
            format.required("schema")?;
            let schema = format.map("schema")?.cloned().unwrap_or_default();
            Ok(Some(Grammar::JsonSchema(schema.into())))
        }
        other => Err(format.error("type", format!("expected \"json_schema\", got {other:?}"))),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
