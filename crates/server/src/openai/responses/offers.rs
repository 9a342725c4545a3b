//! Tools of a request, under the names the model sees and the names the client knows.
//!
//! To a model every tool is a function. A custom tool becomes one with a single text; tools of a namespace get
//! its name in front. Tools that OpenAI itself runs are left out: this server cannot run them.

use std::collections::BTreeMap;

use engine::session::AnswerRequest;
use serde_json::{Value, json};
use text::tools::{Choice, Tool};

use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};
use crate::openai::tools::allow_only;
use crate::request::add_tool;

/// Items of a conversation that offer tools.
pub(super) const OFFERING: [&str; 2] = ["additional_tools", "tool_search_output"];

/// All tools, by the names the model sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers(BTreeMap<String, Offer>);

/// Where tools stand in a request.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    namespace: Option<&'a str>,
    /// Among the items of a conversation, which may offer a tool again.
    is_item: bool,
}

/// A tool as the client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    /// Whether it takes text instead of an object.
    pub(crate) is_custom: bool,
}

impl Offers {
    /// Reads `tools`, those among the items of `input`, and `tool_choice`.
    pub(crate) fn read(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<Offers> {
        let mut offers = Offers::default();
        offers.read_tools(fields, Place { namespace: None, is_item: false }, request)?;
        let items = fields.get("input").and_then(Value::as_array);
        for (index, item) in items.into_iter().flatten().enumerate() {
            if item["type"].as_str().is_some_and(|kind| OFFERING.contains(&kind)) {
                let item = Fields::of(item, format!("input[{index}]"))?;
                offers.read_tools(&item, Place { namespace: None, is_item: true }, request)?;
            }
        }
        offers.read_choice(fields, request)?;
        request.parallel_tool_calls = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        Ok(offers)
    }

    /// What the model means by a name.
    pub(crate) fn called(&self, seen: &str) -> Offer {
        let unknown = || Offer { name: seen.to_owned(), namespace: None, is_custom: false };
        self.0.get(seen).cloned().unwrap_or_else(unknown)
    }

    fn read_tools(
        &mut self,
        fields: &Fields<'_>,
        place: Place<'_>,
        request: &mut AnswerRequest,
    ) -> Result<()> {
        for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
            let tool = Fields::of(tool, fields.path(&format!("tools[{index}]")))?;
            match required(&tool, "type")? {
                "function" => {
                    let parameters = tool.map("parameters")?.cloned().unwrap_or_default();
                    self.add(&tool, place, None, parameters.into(), request)?;
                }
                "custom" => {
                    let description = custom_description(&tool)?;
                    self.add(&tool, place, Some(description), custom_parameters(), request)?;
                }
                "namespace" if place.namespace.is_none() => {
                    let namespace = Some(required(&tool, "name")?);
                    self.read_tools(&tool, Place { namespace, ..place }, request)?;
                }
                // Run by OpenAI or not at all: web_search, local_shell, image_generation and more.
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds a tool; a description makes it a custom one.
    fn add(
        &mut self,
        tool: &Fields<'_>,
        place: Place<'_>,
        custom: Option<String>,
        parameters: Value,
        request: &mut AnswerRequest,
    ) -> Result<()> {
        let name = required(tool, "name")?;
        let seen = seen_as(place.namespace, name);
        if place.is_item && self.0.contains_key(&seen) {
            return Ok(());
        }
        let offer = Offer {
            name: name.to_owned(),
            namespace: place.namespace.map(str::to_owned),
            is_custom: custom.is_some(),
        };
        let is_strict = custom.is_some() || tool.bool("strict")?.unwrap_or(false);
        let description = match custom {
            Some(description) => Some(description),
            None => tool.string("description")?.map(str::to_owned),
        };
        let read = Tool { name: seen.clone(), description, parameters, is_strict };
        add_tool(request, read, &tool.path("name"))?;
        self.0.insert(seen, offer);
        Ok(())
    }

    fn read_choice(&self, fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
        request.tool_choice = match fields.get("tool_choice") {
            None => Choice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "auto" => Choice::Auto,
                "none" => Choice::None,
                "required" => Choice::Required,
                other => {
                    let message =
                        format!("must be auto, none, required or an object, got {other:?}");
                    return Err(fields.error("tool_choice", message));
                }
            },
            Some(Value::Object(_)) => return self.read_choice_object(fields, request),
            Some(other) => return Err(wrong("tool_choice", "a string or an object", other)),
        };
        Ok(())
    }

    fn read_choice_object(&self, fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
        let Some(choice) = fields.fields("tool_choice")? else { return Ok(()) };
        match required(&choice, "type")? {
            "function" | "custom" => {
                let name = required(&choice, "name")?;
                request.tool_choice = Choice::Named(seen_as(choice.string("namespace")?, name));
                Ok(())
            }
            "allowed_tools" => allow_only(&choice, request),
            other => {
                let message = format!("{other:?} cannot be run here");
                Err(choice.error("type", message))
            }
        }
    }
}

/// What a model sees of a name in a namespace.
pub(super) fn seen_as(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        Some(namespace) if namespace.ends_with('_') => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

fn custom_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The whole input, as plain text"}},
        "required": ["input"],
        "additionalProperties": false,
    })
}

/// A model that is not held to a tool's grammar needs it in the prompt.
fn custom_description(tool: &Fields<'_>) -> Result<String> {
    let mut description = tool.string("description")?.unwrap_or_default().to_owned();
    if let Some(format) = tool.fields("format")?
        && let Some(definition) = format.string("definition")?
    {
        let syntax = format.string("syntax")?.unwrap_or("lark");
        description
            .push_str(&format!("\n\nThe input follows this {syntax} grammar:\n{definition}"));
    }
    Ok(description)
}

/// A string that must be there.
pub(super) fn required<'a>(fields: &Fields<'a>, key: &str) -> Result<&'a str, ApiError> {
    fields.required(key)?;
    Ok(fields.string(key)?.unwrap_or_default())
}
