//! What an Ollama client requests, as an [`AnswerRequest`].

use engine::SamplingParams;
use engine::session::{AnswerRequest, Input, SamplingOverrides};
use grammar::Grammar;
use serde_json::{Map, Value};
use text::tools::Tool;

use crate::conversation::{Assistant, Conversation};
use crate::error::{ApiError, chain};
use crate::fields::{Fields, Result, wrong};
use crate::request::{add_tool, read_sampling, read_stop};

/// The most likely tokens that may be requested in place of each.
const MOST_LOGPROBS: usize = 20;

/// The highest temperature there is; Ollama takes any.
const HIGHEST_TEMPERATURE: f32 = 2.0;

/// A request.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The name it has for the model.
    pub(super) model: Option<String>,
    /// Whether lines are to come as they are ready.
    pub(super) stream: bool,
    /// `None` if the request only loads or unloads the model.
    pub(super) request: Option<AnswerRequest>,
    /// What the assistant has said of its answer already.
    pub(super) begun: Option<String>,
    /// Whether the model may go when this is done.
    pub(super) unloads: bool,
}

/// `POST /api/chat`
pub(super) fn chat(fields: &Fields<'_>) -> Result<Wanted> {
    let messages = fields.array("messages")?.unwrap_or_default();
    let conversation = conversation(fields, messages)?;
    let begun = conversation.last_assistant().and_then(Assistant::said_only);
    let begun = begun.filter(|text| !text.is_empty()).map(str::to_owned);
    let mut request = AnswerRequest::new(Input::Chat(conversation.into_messages()));
    for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let path = format!("{}[{index}]", fields.path("tools"));
        Fields::of(tool, path.as_str())?;
        let mut tool =
            Tool::from_json(tool).map_err(|error| ApiError::field(path.as_str(), chain(&error)))?;
        tool.parameters = in_usual_order(tool.parameters);
        add_tool(&mut request, tool, &path)?;
    }
    Ok(Wanted { begun, ..wanted(fields, request, messages.is_empty())? })
}

/// The keys of a schema in the order that most people write them and models have read them in: Ollama's
/// own client has `required` before `properties`.
fn in_usual_order(schema: Value) -> Value {
    let Value::Object(mut rest) = schema else { return schema };
    let usual = ["type", "properties", "required"];
    let first: Map<String, Value> =
        usual.iter().filter_map(|&key| rest.shift_remove_entry(key)).collect();
    Value::Object(first.into_iter().chain(rest).collect())
}

/// `POST /api/generate`
pub(super) fn generate(fields: &Fields<'_>) -> Result<Wanted> {
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(
            fields.error("suffix", "text cannot be filled in: only what follows is generated")
        );
    }
    if fields.string("template")?.is_some_and(|template| !template.is_empty()) {
        let message = "the model's own template is used; `raw` uses none";
        return Err(fields.error("template", message));
    }
    if fields.array("context")?.is_some_and(|context| !context.is_empty()) {
        let message =
            "earlier tokens are not taken up again: use /api/chat with the messages so far";
        return Err(fields.error("context", message));
    }
    no_images(fields)?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?.unwrap_or_default();
    let is_raw = fields.bool("raw")? == Some(true);
    let input = if is_raw {
        Input::Text(prompt.to_owned())
    } else {
        let mut conversation = Conversation::default();
        if !system.is_empty() {
            conversation.instructed(system);
        }
        conversation.asked(prompt);
        Input::Chat(conversation.into_messages())
    };
    wanted(fields, AnswerRequest { is_raw, ..AnswerRequest::new(input) }, prompt.is_empty())
}

/// The fields that both have.
fn wanted(fields: &Fields<'_>, mut request: AnswerRequest, is_empty: bool) -> Result<Wanted> {
    if let Some(options) = fields.fields("options")? {
        request.sampling = sampling(&options)?;
        request.max_tokens = most_tokens(&options)?;
        request.stop = read_stop(&options, "stop")?;
    }
    request.grammar = format(fields)?;
    request.grammar_field = fields.path("format");
    think(fields, &mut request)?;
    let top = fields.count("top_logprobs")?.unwrap_or(0);
    if top > MOST_LOGPROBS {
        return Err(fields.error("top_logprobs", format!("at most {MOST_LOGPROBS}, got {top}")));
    }
    request.sampling.logprobs = (fields.bool("logprobs")? == Some(true)).then_some(top);
    Ok(Wanted {
        model: name(fields)?,
        stream: fields.bool("stream")?.unwrap_or(true),
        request: (!is_empty).then_some(request),
        begun: None,
        unloads: unloads(fields)?,
    })
}

/// The name a request gives the model; older clients call it `name`.
pub(super) fn name(fields: &Fields<'_>) -> Result<Option<String>> {
    let name = fields.string("model")?.or(fields.string("name")?);
    Ok(name.filter(|name| !name.is_empty()).map(str::to_owned))
}

/// Whether the model is to be kept for no time at all: 0 seconds, or a text such as `0s` or `0h0m`.
fn unloads(fields: &Fields<'_>) -> Result<bool> {
    match fields.get("keep_alive") {
        None => Ok(false),
        Some(Value::Number(seconds)) => Ok(seconds.as_f64() == Some(0.0)),
        Some(Value::String(text)) if text.is_empty() => Ok(false),
        Some(Value::String(text)) if is_duration(text) => {
            Ok(!text.contains(|c: char| c.is_ascii_digit() && c != '0'))
        }
        Some(Value::String(text)) => {
            let message = format!("must be a duration such as 5m or 1h30m, got {text:?}");
            Err(fields.error("keep_alive", message))
        }
        Some(other) => {
            Err(wrong(&fields.path("keep_alive"), "a number of seconds or a duration", other))
        }
    }
}

/// Whether Go could read this as a time, such as `1h30m` or `-1.5s`, or would, had it a unit: Ollama's own settings need none.
fn is_duration(text: &str) -> bool {
    // Milliseconds before minutes, for one begins as the other does.
    const UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let is_number = |text: &str| text.chars().all(is_part) && text.parse::<f64>().is_ok();
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if is_number(rest) {
        return true;
    }
    loop {
        let (number, after) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        let unit = UNITS.iter().find_map(|unit| after.strip_prefix(unit));
        match unit.filter(|_| is_number(number)) {
            Some("") => return true,
            Some(more) => rest = more,
            None => return false,
        }
    }
}

fn sampling(options: &Fields<'_>) -> Result<SamplingOverrides> {
    let mut sampling = read_sampling(options)?;
    let penalty = options.number("repeat_penalty")?;
    sampling.repetition_penalty = penalty.or(sampling.repetition_penalty);
    sampling.temperature = sampling.temperature.map(|value| value.min(HIGHEST_TEMPERATURE));
    // -1 is how Ollama says "any".
    if options.get("seed").and_then(Value::as_f64).is_some_and(|seed| seed < 0.0) {
        sampling.seed = None;
    }
    // Here, where the options' own names are known, and so also in a request without a prompt.
    sampling.over(&SamplingParams::default()).validate().map_err(|error| {
        let error = ApiError::from(error);
        let Some(field) = error.param.clone() else { return error };
        let is_renamed = field == "repetition_penalty" && penalty.is_some();
        error.renamed(&field, &options.path(if is_renamed { "repeat_penalty" } else { &field }))
    })?;
    Ok(sampling)
}

/// -1 and -2 are how Ollama says "until the context is full", and 0 comes to the same.
fn most_tokens(options: &Fields<'_>) -> Result<Option<usize>> {
    let number = options.get("num_predict").and_then(Value::as_f64);
    if number.is_some_and(|number| number <= 0.0 && number.fract() == 0.0) {
        return Ok(None);
    }
    options.count("num_predict")
}

fn format(fields: &Fields<'_>) -> Result<Option<Grammar>> {
    match fields.get("format") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Grammar::JsonObject)),
        Some(schema @ Value::Object(_)) => {
            Ok(Some(Grammar::JsonSchema(grammar::schema::closed(schema))))
        }
        Some(Value::String(text)) => {
            Err(fields.error("format", format!("must be json or a JSON schema, got {text:?}")))
        }
        Some(other) => Err(wrong(&fields.path("format"), "\"json\" or a JSON schema", other)),
    }
}

fn think(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    match fields.get("think") {
        None => {}
        Some(Value::Bool(on)) => request.thinking = Some(*on),
        Some(Value::String(level))
            if ["low", "medium", "high", "max"].contains(&level.as_str()) =>
        {
            request.thinking = Some(true);
            request.template_variables.insert("reasoning_effort".to_owned(), level.as_str().into());
        }
        Some(Value::String(level)) => {
            let message = format!("must be true, false, low, medium, high or max, got {level:?}");
            return Err(fields.error("think", message));
        }
        Some(other) => return Err(wrong(&fields.path("think"), "true, false or a level", other)),
    }
    Ok(())
}

fn no_images(fields: &Fields<'_>) -> Result<()> {
    if fields.array("images")?.is_some_and(|images| !images.is_empty()) {
        return Err(fields.error("images", "this model reads text only"));
    }
    Ok(())
}

/// Messages as templates take them. Ollama's calls have no ids: a result belongs to the first call of its
/// tool that has none yet.
fn conversation(fields: &Fields<'_>, messages: &[Value]) -> Result<Conversation> {
    let mut conversation = Conversation::default();
    // Calls without a result: id and name.
    let mut open: Vec<(String, String)> = Vec::new();
    let mut calls = 0;
    for (index, message) in messages.iter().enumerate() {
        let message = Fields::of(message, format!("{}[{index}]", fields.path("messages")))?;
        no_images(&message)?;
        message.required("role")?;
        let content = message.string("content")?.unwrap_or_default();
        match message.string("role")?.unwrap_or_default() {
            "system" | "developer" => conversation.instructed(content),
            "user" => conversation.asked(content),
            "assistant" => {
                if let Some(thinking) = message.string("thinking")? {
                    conversation.thought(thinking);
                }
                conversation.said(content);
                for (call, value) in
                    message.array("tool_calls")?.unwrap_or_default().iter().enumerate()
                {
                    let path = format!("{}[{call}]", message.path("tool_calls"));
                    let (id, name, arguments) = tool_call(value, &path)?;
                    let id = id.unwrap_or_else(|| format!("call_{calls}"));
                    calls += 1;
                    conversation.called(&id, &name, arguments);
                    open.push((id, name));
                }
            }
            "tool" => {
                let id = message.string("tool_call_id")?.map(str::to_owned);
                let name = message.string("tool_name")?.or(message.string("name")?);
                let of_name = || open.iter().position(|call| Some(call.1.as_str()) == name);
                let place = match &id {
                    Some(id) => open.iter().position(|call| call.0 == *id),
                    None => of_name().or((!open.is_empty()).then_some(0)),
                };
                let called = place.map(|place| open.remove(place).0);
                let id = id.or(called).unwrap_or_else(|| "call_unknown".to_owned());
                conversation.returned(&id, content.to_owned());
            }
            role => {
                let message_text = format!("must be system, user, assistant or tool, got {role:?}");
                return Err(message.error("role", message_text));
            }
        }
    }
    Ok(conversation)
}

/// Id, name and arguments of a call.
fn tool_call(value: &Value, path: &str) -> Result<(Option<String>, String, Map<String, Value>)> {
    let call = Fields::of(value, path)?;
    call.required("function")?;
    let Some(function) = call.fields("function")? else {
        return Err(call.error("function", "is required"));
    };
    function.required("name")?;
    let name = function.string("name")?.unwrap_or_default().to_owned();
    let arguments = match function.get("arguments") {
        // What OpenAI's clients would send.
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(arguments)) => arguments,
            _ => return Err(function.error("arguments", "is not the JSON text of an object")),
        },
        _ => function.map("arguments")?.cloned().unwrap_or_default(),
    };
    Ok((call.string("id")?.map(str::to_owned), name, arguments))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
