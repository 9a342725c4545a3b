//! Chat templates: a conversation in, the prompt's text out, byte for byte what Jinja2 set up by the
//! transformers library gives.
//!
//! The engine is minijinja; what it does otherwise than Jinja2 is made up for in the modules below:
//! `syntax` (rewrites of the source), `python` (methods of str, list and dict), `filters`
//! (filters, tests and printing), `json` (`tojson`), `time` (`strftime_now`), `content` (text or parts).
//! Templates are untrusted: instructions, recursion and output are limited, and a render has a
//! thread of its own, so that neither a deep value nor a panic reaches the engine.
//!
//! Known differences from Jinja2: `schema.items` without a call gives the item of that name, not the
//! method; a float joined with `~` or `join` prints in Rust's form (`1e+16` as `10000000000000000.0`);
//! `%` formats only where its left side is a string literal; integers beyond 64 bits in JSON become
//! floats; generators print as lists; methods of the sandboxed environment that change a list or a
//! dict fail in both, with other words; memory of intermediate values is bounded only by fuel.

mod content;
mod filters;
mod json;
mod python;
mod syntax;
mod time;

use std::io;
use std::sync::OnceLock;
use std::thread;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value as JinjaValue};
use serde_json::{Map, Value};

use crate::message::normalise;
use crate::source::TemplateFiles;
use crate::{ChatRequest, Error, Result};
use content::Abilities;

/// Instructions one render may take before it is stopped, plus a share for each message: the longest
/// of the published templates takes about 400 instructions a message.
const FUEL_BASE: u64 = 500_000;
const FUEL_PER_MESSAGE: u64 = 5_000;
/// Bytes one render may write, beyond four times its input.
const OUTPUT_LIMIT_BYTES: usize = 64 << 20;
const RECURSION_LIMIT: usize = 100;
/// Only touched pages cost memory. A value nested once every few instructions must still be dropped
/// without overflowing the stack: 500,000 instructions nest about 80,000 deep.
const STACK_BYTES: usize = 256 << 20;

const DEFAULT_NAME: &str = "default";
const TOOL_USE_NAME: &str = "tool_use";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Map<String, Value>,
    has_tool_use: bool,
    abilities: OnceLock<Abilities>,
}

/// The words of `raise_exception`, carried through the engine's own error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template's source. `bos` and `eos` become its `bos_token` and `eos_token`.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let mut special_tokens = Map::new();
        for (name, token) in [("bos_token", bos), ("eos_token", eos)] {
            if let Some(token) = token {
                special_tokens.insert(name.to_owned(), Value::from(token));
            }
        }
        Self::from_files(&TemplateFiles {
            default: source.to_owned(),
            tool_use: None,
            special_tokens,
        })
    }

    /// Compiles what [`TemplateFiles::find`] found in a model's files.
    pub fn from_files(files: &TemplateFiles) -> Result<Self> {
        let mut environment = environment()?;
        let sources = [(DEFAULT_NAME, Some(&files.default)), (TOOL_USE_NAME, files.tool_use.as_ref())];
        for (name, source) in sources {
            if let Some(source) = source {
                environment
                    .add_template_owned(name, syntax::rewrite(source))
                    .map_err(|error| Error::TemplateSyntax { reason: error.to_string() })?;
            }
        }
        Ok(Self {
            environment,
            special_tokens: files.special_tokens.clone(),
            has_tool_use: files.tool_use.is_some(),
            abilities: OnceLock::new(),
        })
    }

    /// The prompt for a conversation. Encode it without adding special tokens: the template has them.
    pub fn render(&self, request: &ChatRequest) -> Result<String> {
        let messages = normalise(&request.messages)?;
        let messages = content::adapt(messages, || self.abilities())?;
        self.render_exact(&ChatRequest { messages, ..request.clone() })
    }

    /// Renders messages exactly as they are given, as the transformers library would.
    pub fn render_exact(&self, request: &ChatRequest) -> Result<String> {
        let tool_use = self.has_tool_use && !request.tools.is_empty();
        let name = if tool_use { TOOL_USE_NAME } else { DEFAULT_NAME };
        let now_unix_s = request.now_unix_s.unwrap_or_else(time::now_unix_s);
        let tools = if request.tools.is_empty() { Value::Null } else { request.tools.clone().into() };

        let mut variables = Map::new();
        variables.insert("messages".to_owned(), Value::Array(request.messages.clone()));
        variables.insert("tools".to_owned(), tools);
        variables.insert("documents".to_owned(), Value::Null);
        variables.insert("add_generation_prompt".to_owned(), request.add_generation_prompt.into());
        if let Some(enable_thinking) = request.enable_thinking {
            variables.insert("enable_thinking".to_owned(), enable_thinking.into());
        }
        variables.extend(self.special_tokens.clone());
        variables.extend(request.kwargs.clone());

        self.render_variables(name, variables, request.messages.len(), now_unix_s)
    }

    fn render_variables(
        &self,
        name: &str,
        variables: Map<String, Value>,
        message_count: usize,
        now_unix_s: i64,
    ) -> Result<String> {
        let work = || {
            let mut environment = self.environment.clone();
            let fuel = FUEL_BASE + FUEL_PER_MESSAGE * message_count as u64;
            environment.set_fuel(Some(fuel));
            environment.add_function("strftime_now", move |format: &str| {
                time::strftime(format, now_unix_s)
            });
            let template = environment.get_template(name).map_err(render_error)?;
            let context = JinjaValue::from_pairs(
                variables.into_iter().map(|(name, value)| (name, JinjaValue::from(Serde(value)))),
            );
            let mut output = LimitedOutput { bytes: Vec::new() };
            template.render_captured_to(context, &mut output).map_err(render_error)?;
            String::from_utf8(output.bytes)
                .map_err(|error| Error::TemplateRender { reason: error.to_string() })
        };
        thread::scope(|scope| {
            let worker = thread::Builder::new()
                .name("chat-template".to_owned())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, work)
                .map_err(|error| Error::TemplateRender { reason: error.to_string() })?;
            worker.join().unwrap_or_else(|_| {
                Err(Error::TemplateRender { reason: "the template engine panicked".to_owned() })
            })
        })
    }

    /// What this template takes as content, found out by rendering once and remembered.
    fn abilities(&self) -> Abilities {
        *self.abilities.get_or_init(|| Abilities::probe(self))
    }
}

fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| Error::TemplateSyntax { reason: error.to_string() })?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python::call_method);
    environment.add_function("raise_exception", raise_exception);
    environment.remove_global("debug");
    filters::register(&mut environment);
    Ok(environment)
}

fn raise_exception(message: &JinjaValue) -> std::result::Result<JinjaValue, minijinja::Error> {
    let message = filters::python_str(message)?;
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception was called")
        .with_source(Raised(message)))
}

fn render_error(error: minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Error::TemplateRaised { message: message.clone() };
        }
        if let Some(minijinja) = current.downcast_ref::<minijinja::Error>()
            && minijinja.kind() == ErrorKind::OutOfFuel
        {
            return Error::TemplateLimit { limit: "instructions" };
        }
        if let Some(io_error) = current.downcast_ref::<io::Error>()
            && io_error.kind() == io::ErrorKind::FileTooLarge
        {
            return Error::TemplateLimit { limit: "output bytes" };
        }
        cause = current.source();
    }
    Error::TemplateRender { reason: error.to_string() }
}

/// A writer that refuses to grow without bound.
struct LimitedOutput {
    bytes: Vec<u8>,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_LIMIT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
