//! What an answer must look like: the grammar that its request comes to, compiled.

use grammar::{Before, Constraint, Grammar, GrammarError, Grammars};
use serde_json::Value;
use text::tools::{Choice, Frame, Tool};
use text::{AnswerDecoder, Prompt};

use super::{AnswerRequest, Input, Session};
use crate::{Error, Result};

type Compiled = std::result::Result<Constraint, GrammarError>;

impl Session {
    /// What the answer must look like: a call of a tool, no call, or what the client says; and the field that says so.
    pub(super) fn constraint<'a>(
        &self,
        request: &'a AnswerRequest,
        prompt: &Prompt,
        decoder: &AnswerDecoder,
    ) -> Result<Option<(&'a str, Constraint)>> {
        let Some(grammars) = &self.grammars else { return Ok(None) };
        // Thinking can be switched off, and does not begin in the middle of an answer.
        let may_think = matches!(request.input, Input::Chat(_)) && request.thinking != Some(false);
        let opening = self.text.thinking_tokens(&prompt.text).filter(|_| may_think);
        // Thinking stays free: the grammar begins behind it.
        let before = match &self.text.reasoning {
            Some(markers) if decoder.is_reasoning() => Before::Thinking { close: &markers.close },
            Some(markers) => match &opening {
                Some(open) => Before::MaybeThinking { open, close: &markers.close },
                None => Before::Nothing,
            },
            None => Before::Nothing,
        };
        let compile = |grammar: &Grammar| grammars.compile(grammar, before);

        let may_call = !request.tools.is_empty() && self.text.tools.is_some();
        let (field, compiled) = match (&request.tool_choice, &request.grammar) {
            (choice @ (Choice::Required | Choice::Named(_)), _) => {
                let grammar =
                    |tools: &[Tool]| self.tool_rules(request, tools, choice).map(Grammar::Lark);
                ("tool_choice", compile_calls(grammars, &request.tools, grammar, compile)?)
            }
            (choice @ Choice::None, None) if may_call => {
                let rules = self.tool_rules(request, &request.tools, choice)?;
                ("tool_choice", compile(&Grammar::Lark(rules)))
            }
            (choice, Some(grammar)) => {
                let either =
                    |tools: &[Tool]| self.call_or_answer(request, tools, grammar).ok_or(());
                let compiled = match choice {
                    Choice::Auto if may_call => {
                        compile_calls(grammars, &request.tools, either, compile).ok()
                    }
                    _ => None,
                };
                let compiled = match compiled {
                    Some(Ok(either)) => Ok(either),
                    Some(Err(error)) if grammars.is_for_now(&error) => Err(error),
                    _ => match self.framed(request, grammar) {
                        Some(framed) => compile(&framed),
                        None => compile(grammar),
                    },
                };
                (request.grammar_field.as_str(), compiled)
            }
            (Choice::Auto, None) if may_call => {
                let constraint = self.calls_in_form(grammars, request, before)?;
                return Ok(constraint.map(|constraint| ("tools", constraint)));
            }
            (_, None) => return Ok(None),
        };
        Ok(Some((field, compiled.map_err(|error| of_field(field, error))?)))
    }

    /// Holds the calls in a free answer to their form; `None` where that cannot be done, since no client requires it.
    fn calls_in_form(
        &self,
        grammars: &Grammars,
        request: &AnswerRequest,
        before: Before<'_>,
    ) -> Result<Option<Constraint>> {
        let opener = self.text.tools.and_then(|format| format.opener());
        let opener = opener.and_then(|opener| self.text.tokenizer.token_to_id(opener));
        let Some(opener) = opener else { return Ok(None) };
        let grammar =
            |tools: &[Tool]| self.tool_rules(request, tools, &Choice::Auto).map(Grammar::Lark);
        let compile = |grammar: &Grammar| grammars.compile_from(opener, grammar, before);
        match compile_calls(grammars, &request.tools, grammar, compile) {
            Ok(Ok(constraint)) => Ok(Some(constraint)),
            Ok(Err(error)) if grammars.is_for_now(&error) => Err(of_field("tools", error)),
            Ok(Err(error)) => {
                tracing::debug!("calls are free: {error}");
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// Calls of tools, or JSON that follows the client's grammar, as the model likes; `None` if the two do not
    /// go together.
    fn call_or_answer(
        &self,
        request: &AnswerRequest,
        tools: &[Tool],
        grammar: &Grammar,
    ) -> Option<Grammar> {
        let schema = schema_of(grammar)?;
        let calls = self.tool_rules(request, tools, &Choice::Required).ok()?;
        let calls = calls.strip_prefix("start: ")?;
        // The rules that a frame names are those of the calls too.
        let head = self.frame().map_or_else(String::new, |frame| frame.head);
        let answer = format!("{head} %json {schema}");
        Some(Grammar::Lark(format!("start: answer | calls\nanswer: {answer}\ncalls: {calls}")))
    }

    /// JSON inside what the model's format puts around every answer; `None` where that is nothing.
    fn framed(&self, request: &AnswerRequest, grammar: &Grammar) -> Option<Grammar> {
        if request.is_raw {
            return None;
        }
        let Frame { head, rules } = self.frame()?;
        let schema = schema_of(grammar)?;
        Some(Grammar::Lark(format!("start: answer\nanswer: {head} %json {schema}\n{rules}")))
    }

    fn frame(&self) -> Option<Frame> {
        self.text.tools?.frame(&|text: &str| self.text.special_token(text))
    }

    /// A grammar that enforces a choice, in Lark.
    fn tool_rules(
        &self,
        request: &AnswerRequest,
        tools: &[Tool],
        choice: &Choice,
    ) -> Result<String> {
        if tools.is_empty() {
            return Err(Error::field("tool_choice", "there are no tools to choose from"));
        }
        if let Choice::Named(name) = choice
            && !tools.iter().any(|tool| tool.name == *name)
        {
            return Err(Error::field("tool_choice", format!("there is no tool named {name:?}")));
        }
        let Some(format) = self.text.tools else {
            let reason = "this model does not say how it calls tools: only `auto` and `none` work";
            return Err(Error::field("tool_choice", reason));
        };
        let special = |text: &str| self.text.special_token(text);
        let lark = format.grammar(tools, choice, request.parallel_tool_calls, &special);
        lark.map_err(|error| Error::field("tools", error.to_string()))
    }
}

/// An error that the grammar of this field is to blame for, or the model and its memory.
fn of_field(field: &str, error: GrammarError) -> Error {
    match error {
        GrammarError::NoMemory { .. } | GrammarError::Vocabulary { .. } => Error::Grammar(error),
        error => Error::field(field, error.to_string()),
    }
}

/// Compiles a grammar of calls. Where the schemas of its tools cannot be followed, it is tried without their regular
/// expressions, which come in many dialects: arguments that break one are for the tool to refuse.
fn compile_calls<E>(
    grammars: &Grammars,
    tools: &[Tool],
    grammar: impl Fn(&[Tool]) -> std::result::Result<Grammar, E>,
    compile: impl Fn(&Grammar) -> Compiled,
) -> std::result::Result<Compiled, E> {
    match compile(&grammar(tools)?) {
        Err(error) if !grammars.is_for_now(&error) => {
            let easier: Vec<Tool> = tools.iter().map(Tool::without_expressions).collect();
            if easier == tools {
                return Ok(Err(error));
            }
            tracing::debug!("expressions in the schemas of tools are left out: {error}");
            Ok(compile(&grammar(&easier)?).map_err(|_| error))
        }
        compiled => Ok(compiled),
    }
}

/// The schema of an answer in JSON.
fn schema_of(grammar: &Grammar) -> Option<Value> {
    match grammar {
        Grammar::JsonObject => Some(serde_json::json!({"type": "object"})),
        Grammar::JsonSchema(schema) => Some(schema.clone()),
        Grammar::Regex(_) | Grammar::Lark(_) => None,
    }
}
