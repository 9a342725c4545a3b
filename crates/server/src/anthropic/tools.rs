//! Tools that an Anthropic client offers. They may come and go in the course of a conversation: system messages and
//! summaries of what came before them bring and take some. A model here reads all tools at the start, so it is offered those
//! that are there at the end.

use std::collections::HashMap;

use engine::session::AnswerRequest;
use serde_json::Value;
use text::tools::{Choice, Tool};

use crate::fields::{Fields, Result};
use crate::request::add_tool;

/// Whether a block of this kind brings or takes a tool.
pub(super) fn is_change(kind: &str) -> bool {
    matches!(kind, "tool_addition" | "tool_removal")
}

/// Reads all that a request says about tools.
pub(super) fn read(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    let mut known = Known::default();
    for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        known.add(Fields::of(tool, format!("tools[{index}]"))?);
    }
    for (index, message) in fields.array("messages")?.unwrap_or_default().iter().enumerate() {
        known.change_all(&message["content"], &format!("messages[{index}].content"))?;
    }
    for (tool, _) in known.tools.iter().filter(|(_, is_offered)| *is_offered) {
        read_one(tool, request)?;
    }
    read_choice(fields, request)
}

/// Tools that were ever there.
#[derive(Default)]
struct Known<'a> {
    /// Each with whether it is there at this point of the conversation.
    tools: Vec<(Fields<'a>, bool)>,
    places: HashMap<&'a str, usize>,
}

impl<'a> Known<'a> {
    fn add(&mut self, tool: Fields<'a>) {
        if let Some(name) = tool.get("name").and_then(Value::as_str) {
            self.places.insert(name, self.tools.len());
        }
        self.tools.push((tool, true));
    }

    /// Follows the changes in an array of blocks.
    fn change_all(&mut self, blocks: &'a Value, path: &str) -> Result<()> {
        for (index, block) in blocks.as_array().into_iter().flatten().enumerate() {
            let path = format!("{path}[{index}]");
            match block["type"].as_str() {
                Some(kind) if is_change(kind) => {
                    let block = Fields::of(block, path)?;
                    block.required("tool")?;
                    if let Some(tool) = block.fields("tool")? {
                        self.change(kind == "tool_addition", &tool)?;
                    }
                }
                Some("compaction") => {
                    self.change_all(&block["tool_changes"], &format!("{path}.tool_changes"))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A tool is brought, by name or with all that it is, or taken.
    fn change(&mut self, is_offered: bool, tool: &Fields<'a>) -> Result<()> {
        let definition = tool.fields("definition")?;
        let named = definition.as_ref().unwrap_or(tool).string("name")?;
        if let Some((_, was_offered)) = named
            .and_then(|name| self.places.get(name))
            .and_then(|&place| self.tools.get_mut(place))
        {
            *was_offered = is_offered && definition.is_none();
        }
        definition.into_iter().for_each(|definition| self.add(definition));
        Ok(())
    }
}

fn read_one(tool: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    match tool.string("type")? {
        None | Some("custom") => {}
        Some(other) => {
            let message =
                format!("{other:?} is Anthropic's own, this server has only custom tools");
            return Err(tool.error("type", message));
        }
    }
    tool.required("name")?;
    tool.required("input_schema")?;
    let tool_read = Tool {
        name: tool.string("name")?.unwrap_or_default().to_owned(),
        description: tool.string("description")?.map(str::to_owned),
        parameters: tool.map("input_schema")?.cloned().unwrap_or_default().into(),
        is_strict: tool.bool("strict")?.unwrap_or(false),
    };
    add_tool(request, tool_read, &tool.path("name"))
}

fn read_choice(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    let Some(choice) = fields.fields("tool_choice")? else { return Ok(()) };
    choice.required("type")?;
    request.tool_choice = match choice.string("type")?.unwrap_or_default() {
        "auto" => Choice::Auto,
        "any" => Choice::Required,
        "none" => Choice::None,
        "tool" => {
            choice.required("name")?;
            Choice::Named(choice.string("name")?.unwrap_or_default().to_owned())
        }
        other => {
            let message =
                format!("expected \"auto\", \"any\", \"tool\" or \"none\", got {other:?}");
            return Err(choice.error("type", message));
        }
    };
    request.parallel_tool_calls = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    Ok(())
}
