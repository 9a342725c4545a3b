//! Reading tools and what a client wants done with them, and the older `functions`.

use engine::session::{AnswerRequest, Input};
use serde_json::Value;
use text::tools::{Choice, Tool};

use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};
use crate::request::add_tool;

/// Takes a body's tools over into the request. Says whether they came as `functions`: an answer has to call
/// them the older way then.
pub(super) fn read(fields: &Fields<'_>, request: &mut AnswerRequest) -> Result<bool> {
    for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, format!("tools[{index}]"))?;
        match tool.string("type")? {
            None | Some("function") => {}
            Some(other) => {
                let message = format!("only tools of type function are known, got {other:?}");
                return Err(tool.error("type", message));
            }
        }
        tool.required("function")?;
        if let Some(function) = tool.fields("function")? {
            add(&function, request)?;
        }
    }
    if let Some(choice) = fields.get("tool_choice") {
        read_choice(fields, choice, request)?;
    }
    request.parallel_tool_calls = fields.bool("parallel_tool_calls")?.unwrap_or(true);

    let (older, choice) = read_older(fields)?;
    let is_older = request.tools.is_empty() && !older.tools.is_empty();
    if is_older {
        (request.tools, request.tool_definitions) = (older.tools, older.tool_definitions);
        if let Some(choice) = choice {
            request.tool_choice = choice;
        }
        // There is room for one call in an answer of this kind.
        request.parallel_tool_calls = false;
    }
    Ok(is_older)
}

/// What the older fields say. They are read where `tools` comes before them too: what is wrong in them is named.
fn read_older(fields: &Fields<'_>) -> Result<(AnswerRequest, Option<Choice>)> {
    let mut older = AnswerRequest::new(Input::Chat(Vec::new()));
    for (index, function) in fields.array("functions")?.unwrap_or_default().iter().enumerate() {
        add(&Fields::of(function, format!("functions[{index}]"))?, &mut older)?;
    }
    let choice = fields.get("function_call").map(older_choice).transpose()?;
    Ok((older, choice))
}

fn add(function: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    function.required("name")?;
    let name = function.string("name")?.unwrap_or_default().to_owned();
    let description = function.string("description")?.map(str::to_owned);
    let parameters = function.map("parameters")?.cloned().unwrap_or_default();
    let is_strict = function.bool("strict")?.unwrap_or(false);
    let tool = Tool { name, description, parameters: Value::Object(parameters), is_strict };
    add_tool(request, tool, &function.path("name"))
}

fn read_choice(fields: &Fields<'_>, choice: &Value, request: &mut AnswerRequest) -> Result<()> {
    let Value::Object(_) = choice else {
        let word =
            choice.as_str().ok_or_else(|| wrong("tool_choice", "a string or an object", choice))?;
        request.tool_choice = match word {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "required" => Choice::Required,
            other => {
                let message = format!("must be auto, none, required or an object, got {other:?}");
                return Err(fields.error("tool_choice", message));
            }
        };
        return Ok(());
    };
    let choice = Fields::of(choice, "tool_choice")?;
    choice.required("type")?;
    match choice.string("type")?.unwrap_or_default() {
        "function" => request.tool_choice = Choice::Named(named_function(&choice)?),
        "allowed_tools" => {
            // Its members stand in an object of the same name, or next to the type.
            let allowed = choice.fields("allowed_tools")?.unwrap_or(choice);
            allow_only(&allowed, request)?;
        }
        other => {
            let message = format!("must be function or allowed_tools, got {other:?}");
            return Err(choice.error("type", message));
        }
    }
    Ok(())
}

/// `{"function": {"name": …}}`, or the name next to the type.
fn named_function(choice: &Fields<'_>) -> Result<String> {
    let inner = choice.fields("function")?;
    if inner.is_none() && choice.get("name").is_none() {
        choice.required("function")?;
    }
    let function = inner.as_ref().unwrap_or(choice);
    function.required("name")?;
    Ok(function.string("name")?.unwrap_or_default().to_owned())
}

/// All other tools are as if they were not there.
pub(super) fn allow_only(allowed: &Fields<'_>, request: &mut AnswerRequest) -> Result<()> {
    request.tool_choice = match allowed.string("mode")? {
        None | Some("auto") => Choice::Auto,
        Some("required") => Choice::Required,
        Some(other) => {
            return Err(allowed.error("mode", format!("must be auto or required, got {other:?}")));
        }
    };
    allowed.required("tools")?;
    let mut names = Vec::new();
    for (index, tool) in allowed.array("tools")?.unwrap_or_default().iter().enumerate() {
        let path = allowed.path(&format!("tools[{index}]"));
        let name = named_function(&Fields::of(tool, path.as_str())?)?;
        if !request.tools.iter().any(|tool| tool.name == name) {
            return Err(ApiError::field(path, format!("there is no tool named {name:?}")));
        }
        names.push(name);
    }
    request.tools.retain(|tool| names.contains(&tool.name));
    request.tool_definitions.retain(|tool| {
        tool["function"]["name"].as_str().is_some_and(|name| names.iter().any(|one| one == name))
    });
    Ok(())
}

fn older_choice(choice: &Value) -> Result<Choice> {
    match choice {
        Value::String(word) if word == "auto" => Ok(Choice::Auto),
        Value::String(word) if word == "none" => Ok(Choice::None),
        Value::Object(_) => {
            let function = Fields::of(choice, "function_call")?;
            function.required("name")?;
            Ok(Choice::Named(function.string("name")?.unwrap_or_default().to_owned()))
        }
        Value::String(other) => {
            let message = format!("must be auto, none or an object, got {other:?}");
            Err(ApiError::field("function_call", message))
        }
        other => Err(wrong("function_call", "a string or an object", other)),
    }
}

/// A call as an assistant's message has it.
pub(super) fn call_json(id: &str, name: &str, arguments: &str) -> Value {
    serde_json::json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::MOST_TOOLS;
    use serde_json::json;

    fn read_body(body: &Value) -> Result<(AnswerRequest, bool)> {
        let mut request = AnswerRequest::new(Input::Chat(Vec::new()));
        let is_older = read(&Fields::of_body(body).unwrap(), &mut request)?;
        Ok((request, is_older))
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[track_caller]
    fn check(body: &Value, tools: &[&str], choice: &Choice) {
        let (request, _) = read_body(body).unwrap();
        let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((names.as_slice(), &request.tool_choice), (tools, choice));
        let definitions = request.tool_definitions.iter();
        let defined: Vec<&str> =
            definitions.map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(defined, tools);
    }

    #[track_caller]
    fn refused(body: &Value, param: &str) {
        let error = read_body(body).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }

    #[test]
    fn tools_and_choices() {
        check(&json!({}), &[], &Choice::Auto);
        check(&json!({"tools": null, "tool_choice": "none"}), &[], &Choice::None);
        let two = json!([tool("f"), tool("g")]);
        let with = |choice: Value| json!({"tools": two, "tool_choice": choice});
        check(&with(json!(null)), &["f", "g"], &Choice::Auto);
        check(&with(json!("required")), &["f", "g"], &Choice::Required);
        let named = Choice::Named("g".to_owned());
        check(&with(json!({"type": "function", "function": {"name": "g"}})), &["f", "g"], &named);
        check(&with(json!({"type": "function", "name": "g"})), &["f", "g"], &named);
        let allowed = json!({"mode": "required", "tools": [tool("g")]});
        check(
            &with(json!({"type": "allowed_tools", "allowed_tools": allowed})),
            &["g"],
            &Choice::Required,
        );
        check(
            &json!({"tools": [{"function": {"name": "f", "strict": true}}]}),
            &["f"],
            &Choice::Auto,
        );
    }

    #[test]
    fn absent_parameters_are_empty() {
        let body = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": false});
        let (request, is_older) = read_body(&body).unwrap();
        assert_eq!(request.tools[0].parameters, json!({}));
        assert!(!request.parallel_tool_calls && !is_older);
    }

    #[test]
    fn functions_are_tools() {
        let body = json!({"functions": [{"name": "f"}], "function_call": {"name": "f"}});
        check(&body, &["f"], &Choice::Named("f".to_owned()));
        let (request, is_older) = read_body(&body).unwrap();
        assert!(is_older && !request.parallel_tool_calls);
        refused(
            &json!({"functions": [{"name": "f"}], "function_call": "required"}),
            "function_call",
        );
        refused(&json!({"functions": [{"name": "f"}], "function_call": 1}), "function_call");
        refused(&json!({"functions": [{}]}), "functions[0].name");
        // Tools come first, and what is wrong after them is named all the same.
        let both =
            json!({"tools": [tool("g")], "functions": [{"name": "f"}], "function_call": "none"});
        check(&both, &["g"], &Choice::Auto);
        refused(&json!({"tools": [tool("g")], "functions": [5]}), "functions[0]");
        refused(&json!({"tools": [tool("g")], "function_call": 5}), "function_call");
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        refused(&json!({"tools": {}}), "tools");
        refused(&json!({"tools": [1]}), "tools[0]");
        refused(&json!({"tools": [tool("f"), {"type": "web_search"}]}), "tools[1].type");
        refused(&json!({"tools": [{"type": "function"}]}), "tools[0].function");
        refused(&json!({"tools": [{"function": {}}]}), "tools[0].function.name");
        refused(&json!({"tools": [tool("")]}), "tools[0].function.name");
        refused(&json!({"tools": [tool("a b")]}), "tools[0].function.name");
        refused(&json!({"tools": [tool("f"), tool("f")]}), "tools[1].function.name");
        let schema = json!({"function": {"name": "f", "parameters": [1]}});
        refused(&json!({"tools": [schema]}), "tools[0].function.parameters");
        let strict = json!({"function": {"name": "f", "strict": "yes"}});
        refused(&json!({"tools": [strict]}), "tools[0].function.strict");
        refused(&json!({"parallel_tool_calls": "no"}), "parallel_tool_calls");
        refused(&json!({"tool_choice": "sometimes"}), "tool_choice");
        refused(&json!({"tool_choice": 1}), "tool_choice");
        refused(&json!({"tool_choice": {"type": "function"}}), "tool_choice.function");
        refused(
            &json!({"tool_choice": {"type": "function", "function": {}}}),
            "tool_choice.function.name",
        );
        refused(&json!({"tool_choice": {"type": "custom"}}), "tool_choice.type");
        let allowed = json!({"tools": [tool("g")]});
        refused(
            &json!({"tools": [tool("f")], "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}),
            "tool_choice.allowed_tools.tools[0]",
        );
        let many: Vec<Value> = (0..=MOST_TOOLS).map(|index| tool(&format!("f{index}"))).collect();
        refused(&json!({"tools": many}), &format!("tools[{MOST_TOOLS}].function.name"));
    }
}
