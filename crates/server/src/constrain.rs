//! What an answer must look like: the grammar that its request comes to, compiled.

use grammar::{Before, Constraint, ConstraintError, Grammar, GrammarError};
use serde_json::Value;
use text::tools::{Choice, Frame, Tool};
use text::{AnswerDecoder, Prompt};

use crate::ask::{Ask, Input};
use crate::body::refused;
use crate::budget::Denied;
use crate::error::{ApiError, chain};
use crate::fields::Result;
use crate::model::Model;
use crate::shared::Shared;

type Compiled = std::result::Result<Constraint, GrammarError>;

/// What the answer must look like: a call of a tool, no call, or what the client says; and the field that says so.
pub(crate) fn constraint<'a>(
    model: &Model,
    ask: &'a Ask,
    prompt: &Prompt,
    decoder: &AnswerDecoder,
    shared: &Shared,
) -> Result<Option<(&'a str, Constraint)>> {
    // Thinking can be switched off, and does not begin in the middle of an answer.
    let may_think = matches!(ask.input, Input::Chat(_)) && ask.thinking != Some(false);
    let opening = model.text.thinking_tokens(&prompt.text).filter(|_| may_think);
    // Thinking stays free: the grammar begins behind it.
    let before = match &model.text.reasoning {
        Some(markers) if decoder.is_reasoning() => Before::Thinking { close: &markers.close },
        Some(markers) => match &opening {
            Some(open) => Before::MaybeThinking { open, close: &markers.close },
            None => Before::Nothing,
        },
        None => Before::Nothing,
    };
    let compile = |grammar: &Grammar| model.grammars.compile(grammar, before);

    let may_call = !ask.tools.is_empty() && model.text.tools.is_some();
    let (field, compiled) = match (&ask.tool_choice, &ask.grammar) {
        (choice @ (Choice::Required | Choice::Named(_)), _) => {
            let grammar = |tools: &[Tool]| tool_grammar(model, ask, tools, choice);
            ("tool_choice", compile_calls(shared, &ask.tools, grammar, compile)?)
        }
        (choice @ Choice::None, None) if may_call => {
            ("tool_choice", compile(&tool_grammar(model, ask, &ask.tools, choice)?))
        }
        (choice, Some(grammar)) => {
            let either = |tools: &[Tool]| call_or_answer(model, ask, tools, grammar).ok_or(());
            let compiled = match choice {
                Choice::Auto if may_call => compile_calls(shared, &ask.tools, either, compile).ok(),
                _ => None,
            };
            let compiled = match compiled {
                Some(Ok(either)) => Ok(either),
                Some(Err(error)) if is_for_now(shared, &error) => Err(error),
                _ => match framed(model, ask, grammar) {
                    Some(framed) => compile(&framed),
                    None => compile(grammar),
                },
            };
            (ask.grammar_field.as_str(), compiled)
        }
        (Choice::Auto, None) if may_call => {
            let constraint = calls_in_form(model, ask, before, shared)?;
            return Ok(constraint.map(|constraint| ("tools", constraint)));
        }
        (_, None) => return Ok(None),
    };
    let constraint = compiled.map_err(|error| grammar_error(shared, field, error))?;
    Ok(Some((field, constraint)))
}

/// Why there is no constraint, said of the field that asked for it.
fn grammar_error(shared: &Shared, field: &str, error: GrammarError) -> ApiError {
    match error {
        GrammarError::NoMemory { bytes } => no_memory(shared, bytes),
        GrammarError::Vocabulary { .. } => ApiError::internal(chain(&error)),
        error => ApiError::field(field, chain(&error)),
    }
}

/// There are no so many bytes for a grammar, now or at all.
fn no_memory(shared: &Shared, bytes: usize) -> ApiError {
    let most = shared.budget().map_or(0, |budget| budget.most_bytes());
    let denied = if bytes > most { Denied::Never } else { Denied::Now };
    refused(shared, denied, &format!("would take {bytes} bytes for a grammar"))
}

/// Whether a grammar is refused only as long as other requests hold so much.
fn is_for_now(shared: &Shared, error: &GrammarError) -> bool {
    let most = shared.budget().map_or(0, |budget| budget.most_bytes());
    matches!(error, GrammarError::NoMemory { bytes } if *bytes <= most)
}

/// Compiles a grammar of calls. Where the schemas of its tools cannot be followed, it is tried without their regular
/// expressions, which come in many dialects: arguments that break one are for the tool to refuse.
fn compile_calls<E>(
    shared: &Shared,
    tools: &[Tool],
    grammar: impl Fn(&[Tool]) -> std::result::Result<Grammar, E>,
    compile: impl Fn(&Grammar) -> Compiled,
) -> std::result::Result<Compiled, E> {
    match compile(&grammar(tools)?) {
        Err(error) if !is_for_now(shared, &error) => {
            let easier: Vec<Tool> = tools.iter().map(Tool::without_expressions).collect();
            if easier == tools {
                return Ok(Err(error));
            }
            tracing::debug!("expressions in the schemas of tools are left out: {}", chain(&error));
            Ok(compile(&grammar(&easier)?).map_err(|_| error))
        }
        compiled => Ok(compiled),
    }
}

/// Holds calls that a free answer comes to to their form; `None` where that cannot be done, as no client asks for it.
fn calls_in_form(
    model: &Model,
    ask: &Ask,
    before: Before<'_>,
    shared: &Shared,
) -> Result<Option<Constraint>> {
    let opener = model.text.tools.and_then(|format| format.opener());
    let opener = opener.and_then(|opener| model.text.tokenizer.token_to_id(opener));
    let Some(opener) = opener else { return Ok(None) };
    let grammar = |tools: &[Tool]| tool_grammar(model, ask, tools, &Choice::Auto);
    let compile = |grammar: &Grammar| model.grammars.compile_from(opener, grammar, before);
    match compile_calls(shared, &ask.tools, grammar, compile) {
        Ok(Ok(constraint)) => Ok(Some(constraint)),
        Ok(Err(error)) if is_for_now(shared, &error) => Err(grammar_error(shared, "tools", error)),
        Ok(Err(error)) => {
            tracing::debug!("calls are free: {}", chain(&error));
            Ok(None)
        }
        Err(_) => Ok(None),
    }
}

/// Calls of tools, or JSON that follows the client's grammar, as the model likes; `None` if the two do not
/// go together.
fn call_or_answer(model: &Model, ask: &Ask, tools: &[Tool], grammar: &Grammar) -> Option<Grammar> {
    let schema = schema_of(grammar)?;
    let calls = tool_rules(model, ask, tools, &Choice::Required).ok()?;
    let calls = calls.strip_prefix("start: ")?;
    let special = |text: &str| model.text.special_token(text);
    let frame = model.text.tools.and_then(|format| format.frame(&special));
    // The rules that a frame names are those of the calls too.
    let head = frame.map_or_else(String::new, |frame| frame.head);
    let answer = format!("{head} %json {schema}");
    Some(Grammar::Lark(format!("start: answer | calls\nanswer: {answer}\ncalls: {calls}")))
}

/// JSON inside what the model's format puts around every answer; `None` where that is nothing.
fn framed(model: &Model, ask: &Ask, grammar: &Grammar) -> Option<Grammar> {
    if ask.is_raw {
        return None;
    }
    let special = |text: &str| model.text.special_token(text);
    let Frame { head, rules } = model.text.tools?.frame(&special)?;
    let schema = schema_of(grammar)?;
    Some(Grammar::Lark(format!("start: answer\nanswer: {head} %json {schema}\n{rules}")))
}

/// The schema of an answer in JSON.
fn schema_of(grammar: &Grammar) -> Option<Value> {
    match grammar {
        Grammar::JsonObject => Some(serde_json::json!({"type": "object"})),
        Grammar::JsonSchema(schema) => Some(schema.clone()),
        Grammar::Regex(_) | Grammar::Lark(_) => None,
    }
}

/// A grammar that enforces a choice.
fn tool_grammar(model: &Model, ask: &Ask, tools: &[Tool], choice: &Choice) -> Result<Grammar> {
    tool_rules(model, ask, tools, choice).map(Grammar::Lark)
}

/// The same, in Lark.
fn tool_rules(model: &Model, ask: &Ask, tools: &[Tool], choice: &Choice) -> Result<String> {
    if tools.is_empty() {
        return Err(ApiError::field("tool_choice", "there are no tools to choose from"));
    }
    if let Choice::Named(name) = choice
        && !tools.iter().any(|tool| tool.name == *name)
    {
        return Err(ApiError::field("tool_choice", format!("there is no tool named {name:?}")));
    }
    let Some(format) = model.text.tools else {
        let message = "this model does not say how it calls tools: only `auto` and `none` work";
        return Err(ApiError::field("tool_choice", message));
    };
    let special = |text: &str| model.text.special_token(text);
    let lark = format.grammar(tools, choice, ask.parallel_tool_calls, &special);
    lark.map_err(|error| ApiError::field("tools", chain(&error)))
}

/// A constraint for each choice, if there is one.
pub(crate) fn for_choices(
    constraint: Option<Constraint>,
    choices: usize,
    shared: &Shared,
) -> Result<Vec<Constraint>> {
    let Some(constraint) = constraint else { return Ok(Vec::new()) };
    let forks = (1..choices).map(|_| constraint.fork()).collect::<std::result::Result<Vec<_>, _>>();
    let mut forks = forks.map_err(|error| match error {
        ConstraintError::NoMemory { bytes } => no_memory(shared, bytes),
        error => ApiError::from(engine::Error::from(error)),
    })?;
    forks.push(constraint);
    Ok(forks)
}
