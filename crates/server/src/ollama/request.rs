//! What an Ollama client asks for, as an [`Ask`].

use engine::{Grammar, SamplingParams};
use serde_json::{Map, Value};
use text::tools::Tool;

use crate::ask::{Ask, Input, Wishes};
use crate::conversation::Conversation;
use crate::error::{ApiError, chain};
use crate::fields::{Fields, Result, wrong};

/// The most likely tokens that may be asked for in place of each.
const MOST_LOGPROBS: usize = 20;

/// A request.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The name it has for the model.
    pub(super) model: Option<String>,
    /// Whether lines are to come as they are ready.
    pub(super) stream: bool,
    /// `None` if nothing is asked but that the model be there.
    pub(super) ask: Option<Ask>,
}

/// `POST /api/chat`
pub(super) fn chat(fields: &Fields<'_>) -> Result<Wanted> {
    let messages = fields.array("messages")?.unwrap_or_default();
    let mut ask = Ask::new(Input::Chat(conversation(fields, messages)?));
    for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let path = format!("{}[{index}]", fields.path("tools"));
        Fields::of(tool, path.as_str())?;
        let mut tool =
            Tool::from_json(tool).map_err(|error| ApiError::field(path.as_str(), chain(&error)))?;
        tool.parameters = in_usual_order(tool.parameters);
        ask.add_tool(tool, &path)?;
    }
    wanted(fields, ask, messages.is_empty())
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
    wanted(fields, Ask { is_raw, ..Ask::new(input) }, prompt.is_empty())
}

/// The fields that both have.
fn wanted(fields: &Fields<'_>, mut ask: Ask, is_empty: bool) -> Result<Wanted> {
    if let Some(options) = fields.fields("options")? {
        ask.sampling = wishes(&options)?;
        ask.max_tokens = most_tokens(&options)?;
        ask.set_stop(&options, "stop")?;
    }
    ask.grammar = format(fields)?;
    ask.grammar_field = fields.path("format");
    think(fields, &mut ask)?;
    let top = fields.count("top_logprobs")?.unwrap_or(0);
    if top > MOST_LOGPROBS {
        return Err(fields.error("top_logprobs", format!("at most {MOST_LOGPROBS}, got {top}")));
    }
    ask.sampling.logprobs = (fields.bool("logprobs")? == Some(true)).then_some(top);
    // Also of a request that asks for nothing: what is wrong stays wrong.
    ask.sampling.over(&SamplingParams::default(), 0, 0).validate()?;
    Ok(Wanted {
        model: name(fields)?,
        stream: fields.bool("stream")?.unwrap_or(true),
        ask: (!is_empty).then_some(ask),
    })
}

/// The name a request gives the model; older clients call it `name`.
pub(super) fn name(fields: &Fields<'_>) -> Result<Option<String>> {
    let name = fields.string("model")?.or(fields.string("name")?);
    Ok(name.filter(|name| !name.is_empty()).map(str::to_owned))
}

fn wishes(options: &Fields<'_>) -> Result<Wishes> {
    let mut wishes = Wishes::read(options)?;
    if let Some(penalty) = options.number("repeat_penalty")? {
        wishes.repetition_penalty = Some(penalty);
    }
    // -1 is how Ollama says "any".
    if options.get("seed").and_then(Value::as_i64).is_some_and(|seed| seed < 0) {
        wishes.seed = None;
    }
    Ok(wishes)
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
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        Some(Value::String(text)) => {
            Err(fields.error("format", format!("must be json or a JSON schema, got {text:?}")))
        }
        Some(other) => Err(wrong(&fields.path("format"), "\"json\" or a JSON schema", other)),
    }
}

fn think(fields: &Fields<'_>, ask: &mut Ask) -> Result<()> {
    match fields.get("think") {
        None => {}
        Some(Value::Bool(on)) => ask.thinking = Some(*on),
        Some(Value::String(level)) if ["low", "medium", "high"].contains(&level.as_str()) => {
            ask.thinking = Some(true);
            ask.template_variables.insert("reasoning_effort".to_owned(), level.as_str().into());
        }
        Some(Value::String(level)) => {
            let message = format!("must be true, false, low, medium or high, got {level:?}");
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
fn conversation(fields: &Fields<'_>, messages: &[Value]) -> Result<Vec<Value>> {
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
    Ok(conversation.into_messages())
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
mod tests {
    use super::*;
    use serde_json::json;

    fn read(read: impl Fn(&Fields<'_>) -> Result<Wanted>, body: &Value) -> Result<Wanted> {
        read(&Fields::of_body(body).unwrap())
    }

    fn messages(ask: Option<Ask>) -> Value {
        match ask.unwrap().input {
            Input::Chat(messages) => messages.into(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refused(result: Result<Wanted>, param: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }

    #[test]
    fn options_are_read_where_ollama_has_them() {
        let body = json!({
            "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": false,
            "options": {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7,
                "num_predict": 20, "stop": ["x", ""], "repeat_penalty": 1.1, "presence_penalty": 0.2,
                "frequency_penalty": 0.3, "num_ctx": 2048, "mirostat": 0},
            "think": "high", "logprobs": true, "top_logprobs": 2, "keep_alive": "5m",
        });
        let wanted = read(chat, &body).unwrap();
        assert_eq!((wanted.model.as_deref(), wanted.stream), (Some("m"), false));
        let ask = wanted.ask.unwrap();
        let expect = Wishes {
            temperature: Some(0.5),
            top_k: Some(3),
            top_p: Some(0.9),
            min_p: Some(0.1),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(0.2),
            frequency_penalty: Some(0.3),
            seed: Some(7),
            logprobs: Some(2),
            ..Wishes::default()
        };
        assert_eq!(ask.sampling, expect);
        assert_eq!((ask.max_tokens, ask.stop), (Some(20), vec!["x".to_owned()]));
        assert_eq!(ask.thinking, Some(true));
        assert_eq!(ask.template_variables["reasoning_effort"], "high");
    }

    #[test]
    fn what_means_any_or_none_is_absent() {
        for (number, expect) in [(-1, None), (-2, None), (0, None), (5, Some(5))] {
            let body = json!({"prompt": "x", "options": {"num_predict": number, "seed": -1}});
            let ask = read(generate, &body).unwrap().ask.unwrap();
            assert_eq!(
                (ask.max_tokens, ask.sampling.seed, ask.sampling.logprobs),
                (expect, None, None)
            );
        }
        assert!(read(generate, &json!({"prompt": "x"})).unwrap().stream);
        // Only that the model be there.
        assert!(read(generate, &json!({"model": "m"})).unwrap().ask.is_none());
        assert!(read(generate, &json!({"prompt": ""})).unwrap().ask.is_none());
        assert!(read(chat, &json!({"messages": []})).unwrap().ask.is_none());
        assert!(read(chat, &json!({})).unwrap().ask.is_none());
    }

    #[test]
    fn formats() {
        #[track_caller]
        fn check(format: &Value, expect: Option<&Grammar>) {
            let ask = read(generate, &json!({"prompt": "x", "format": format})).unwrap().ask;
            assert_eq!(ask.unwrap().grammar.as_ref(), expect);
        }
        check(&json!(null), None);
        check(&json!(""), None);
        check(&json!("json"), Some(&Grammar::JsonObject));
        let schema = json!({"type": "object"});
        check(&schema, Some(&Grammar::JsonSchema(schema.clone())));
    }

    #[test]
    fn a_prompt_is_a_turn_of_the_user_unless_it_is_raw() {
        let body = json!({"prompt": "hi", "system": "be brief"});
        let expect = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
        ]);
        assert_eq!(messages(read(generate, &body).unwrap().ask), expect);
        let body = json!({"prompt": "hi", "system": "be brief", "raw": true});
        let ask = read(generate, &body).unwrap().ask.unwrap();
        assert!(ask.is_raw && matches!(ask.input, Input::Text(text) if text == "hi"));
    }

    #[test]
    fn results_find_their_calls() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"x": 1}}});
        let body = json!({"messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "thinking": "hm", "tool_calls": [call("f"), call("g")]},
            {"role": "tool", "tool_name": "g", "content": "2"},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "?"},
        ]});
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": {"x": 1}}});
        let expect = json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "reasoning_content": "hm",
             "tool_calls": [call("call_0", "f"), call("call_1", "g")]},
            {"role": "tool", "tool_call_id": "call_1", "content": "2", "name": "g"},
            {"role": "tool", "tool_call_id": "call_0", "content": "1", "name": "f"},
            {"role": "tool", "tool_call_id": "call_unknown", "content": "?"},
        ]);
        assert_eq!(messages(read(chat, &body).unwrap().ask), expect);
    }

    #[test]
    fn tools_are_offered() {
        let body = json!({
            "messages": [{"role": "user", "content": "q"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {
                "$defs": {}, "required": ["x"], "properties": {"x": {}}, "type": "object"}}}],
        });
        let ask = read(chat, &body).unwrap().ask.unwrap();
        assert_eq!(ask.tools[0].name, "f");
        let expect = r#"{"type":"object","properties":{"x":{}},"required":["x"],"$defs":{}}"#;
        assert_eq!(ask.tool_definitions[0]["function"]["parameters"].to_string(), expect);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |message: Value| json!({"messages": [message]});
        refused(read(chat, &json!({"messages": "hi"})), "messages");
        refused(read(chat, &message(json!("hi"))), "messages[0]");
        refused(read(chat, &message(json!({"content": "hi"}))), "messages[0].role");
        refused(read(chat, &message(json!({"role": "robot"}))), "messages[0].role");
        refused(read(chat, &message(json!({"role": "user", "content": 3}))), "messages[0].content");
        let picture = json!({"role": "user", "content": "", "images": ["AAAA"]});
        refused(read(chat, &message(picture)), "messages[0].images");
        let bad = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]});
        refused(read(chat, &message(bad)), "messages[0].tool_calls[0].function.arguments");
        let bad = json!({"role": "assistant", "tool_calls": [{}]});
        refused(read(chat, &message(bad)), "messages[0].tool_calls[0].function");
        let body = |key: &str, value: Value| {
            let mut body = json!({"prompt": "x", "messages": [{"role": "user"}]});
            body[key] = value;
            body
        };
        refused(read(chat, &body("tools", json!([1]))), "tools[0]");
        refused(read(chat, &body("tools", json!([{"function": {}}]))), "tools[0]");
        refused(read(generate, &body("suffix", json!("b"))), "suffix");
        refused(read(generate, &body("template", json!("{{ .Prompt }}"))), "template");
        refused(read(generate, &body("format", json!("xml"))), "format");
        refused(read(generate, &body("format", json!(1))), "format");
        refused(read(generate, &body("think", json!("much"))), "think");
        refused(read(generate, &body("think", json!(1))), "think");
        refused(read(generate, &body("stream", json!("yes"))), "stream");
        refused(read(generate, &body("options", json!([]))), "options");
        refused(
            read(generate, &body("options", json!({"num_predict": 1.5}))),
            "options.num_predict",
        );
        refused(read(generate, &body("options", json!({"stop": 1}))), "options.stop");
        refused(
            read(generate, &body("options", json!({"temperature": "x"}))),
            "options.temperature",
        );
        refused(read(generate, &body("top_logprobs", json!(21))), "top_logprobs");
        refused(read(generate, &body("images", json!(["AAAA"]))), "images");
    }
}
