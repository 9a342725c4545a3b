//! Chat templates: a conversation in, the prompt's text out, byte for byte what Jinja2 set up by the
//! transformers library gives.
//!
//! The engine is minijinja; what it does otherwise than Jinja2 is made up for in the modules below:
//! `syntax` (rewrites of the source), `python` (methods of str, list and dict), `filters`
//! (filters, tests and printing), `json` (`tojson`), `time` (`strftime_now`), `content` (text or parts), `calls`
//! (turns with calls of tools).
//!
//! Templates are untrusted, and so is what they are given. Instructions and recursion are limited by the engine.
//! What a template makes is limited by `meter`, from the context that the model is loaded with
//! ([`ChatTemplate::set_context`]) and the size of the conversation: every operator, literal, filter and method that
//! can make much of little asks the meter before it makes it (`operators`, `builtins`, `formatting`, `python`), containers
//! know the size of all they hold (`containers`), and what is written is counted. A render has a thread of its
//! own, so that neither a deep value nor a panic takes the process down.
//!
//! # Memory of one render
//! With *j* what the conversation takes as JSON ([`crate::Weight`]), *i* its bytes (text, and 24 to 96 for each field and
//! item of a list) and *p* those of the prompt: an honest template takes 2 × *j* for the messages, as JSON and as values
//! of the engine, and up to 3 × *p* for the prompt, which grows by doubling. No template takes more than 2 × *j* and
//! 8 × *v*, and no prompt has more than 2 × *v* bytes, where *v* is 512 KiB + 32 bytes for each token of the context, or
//! 2 × *i* if that is more. [`ChatTemplate::render_within`] reserves that much before it takes it.
//!
//! # Known differences from Jinja2
//! `KNOWN_DIFFERENCES` and `LENIENCES` in `tests/templates.rs` hold those that a comparison shows.
//! - A float joined with `~` prints plain digits where Python has an exponent (from 1e16, below 1e-4).
//! - `%` formats only after a string literal; a string times a negative number fails.
//! - `schema.items` without a call is the item of that name, not the method.
//! - We render where Jinja2 fails: a loop over `none` is empty, generators are lists (`tojson`, printing,
//!   `length`), `1 in 'a1'` compares text, `{% do %}` exists.
//! - `varargs` and `kwargs` in macros, `namespace(dict, key=…)`, `cycler`, `lipsum` and filters made for
//!   pages (`truncate`, `center`, `wordcount`, `wordwrap`, `urlize`, `xmlattr`) are missing; `escape` has
//!   other entities.
//! - Integers beyond 64 bits in JSON become floats; `strftime_now` is UTC unless the caller says otherwise.
//! - `{% include %}` and its like fail when the template is read: there is no other template. A namespace cannot be
//!   part of a list, a dict or another namespace.

mod builtins;
mod calls;
mod containers;
mod content;
mod filters;
mod formatting;
mod json;
mod meter;
mod operators;
mod python;
mod syntax;
mod time;

use std::io;
use std::sync::OnceLock;
use std::thread;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value as JinjaValue};
use serde_json::{Map, Value};

use self::meter::{Limit, Measure, Meter};
use crate::message::normalize;
use crate::source::TemplateFiles;
use crate::{ChatRequest, Error, Result, weight};

/// Instructions one render may take, and a share for each message and tool: 80 published templates took
/// up to 640 for each (`tests/support/cases.json`, November 2026).
const FUEL_BASE: u64 = 500_000;
const FUEL_PER_INPUT: u64 = 5_000;
/// Tokens of the context where nothing says how many it has.
const CONTEXT_TOKENS: usize = 128 << 10;
const RECURSION_LIMIT: usize = 100;
/// The largest published template has 17 KB.
const SOURCE_LIMIT_BYTES: usize = 256 << 10;
/// Only touched pages cost memory. The engine parses, compiles and drops recursively: a source within its limit
/// nests what its parser does not count, such as `not not …`, about 60,000 deep.
const STACK_BYTES: usize = 256 << 20;

const DEFAULT_NAME: &str = "default";
const TOOL_USE_NAME: &str = "tool_use";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    special_tokens: Map<String, Value>,
    has_tool_use: bool,
    context_tokens: usize,
    contents: OnceLock<content::Abilities>,
    calls: OnceLock<calls::Abilities>,
}

/// How a prompt ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// With the opening of the assistant's turn.
    pub(crate) is_answer: bool,
    /// `ChatRequest::enable_thinking`.
    pub(crate) enable_thinking: Option<bool>,
}

impl Opening {
    /// As a request says.
    pub(crate) fn of(request: &ChatRequest) -> Self {
        Self { is_answer: request.add_generation_prompt, enable_thinking: request.enable_thinking }
    }
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
        let sources =
            [(DEFAULT_NAME, Some(&files.default)), (TOOL_USE_NAME, files.tool_use.as_ref())];
        for (name, source) in sources {
            let Some(source) = source else { continue };
            if source.len() > SOURCE_LIMIT_BYTES {
                let limit = Limit { measure: Measure::Source, most: SOURCE_LIMIT_BYTES };
                return Err(limit.error(title(name), None));
            }
            on_large_stack(|| {
                let rewritten = syntax::rewrite(title(name), source)?;
                environment
                    .add_template_owned(name, rewritten.source)
                    .map_err(|error| Error::TemplateSyntax { reason: error.to_string() })?;
                match rewritten.unknown_line {
                    None => Ok(()),
                    Some(line) => Err(Error::TemplateSyntax {
                        reason: format!("this block is not known to be safe (in {name}:{line})"),
                    }),
                }
            })?;
        }
        Ok(Self {
            environment,
            source: files.default.clone(),
            special_tokens: files.special_tokens.clone(),
            has_tool_use: files.tool_use.is_some(),
            context_tokens: CONTEXT_TOKENS,
            contents: OnceLock::new(),
            calls: OnceLock::new(),
        })
    }

    /// Limits what a render may make to what a context of so many tokens can use.
    pub fn set_context(&mut self, tokens: usize) {
        self.context_tokens = tokens;
    }

    /// The template as its makers wrote it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Finds out now what the template takes, which else the first render does.
    pub(crate) fn probe(&self) {
        self.calls();
    }

    /// The prompt for a conversation. Encode it without adding special tokens: the template has them.
    pub fn render(&self, request: &ChatRequest) -> Result<String> {
        self.render_within(request, Opening::of(request), &mut |_| true)
    }

    /// The same, opened so, unless the memory is not granted that it takes at most in addition to the request. What a copy of
    /// the messages takes is held before it is requested.
    pub(crate) fn render_within(
        &self,
        request: &ChatRequest,
        opening: Opening,
        grant: &mut dyn FnMut(usize) -> bool,
    ) -> Result<String> {
        let messages = normalize(&request.messages)?;
        let messages = calls::adapt(messages, || self.calls());
        let messages = content::adapt(messages, || self.contents())?;
        let bytes = self.most_bytes(&messages, request);
        if !grant(bytes) {
            return Err(Error::NoMemory { bytes });
        }
        self.render_messages(messages, request, opening)
    }

    /// Renders messages exactly as they are given, as the transformers library would.
    pub fn render_exact(&self, request: &ChatRequest) -> Result<String> {
        self.render_messages(request.messages.clone(), request, Opening::of(request))
    }

    /// What rendering a short conversation takes at most.
    pub(crate) fn least_bytes(&self) -> usize {
        meter::most_held_bytes(self.context_tokens, 0)
    }

    /// What rendering takes at most.
    fn most_bytes(&self, messages: &[Value], request: &ChatRequest) -> usize {
        let input = || messages.iter().chain(&request.tools).chain(request.kwargs.values());
        let json_bytes = input().map(weight::of_value).fold(0, usize::saturating_add);
        let input_bytes = input().map(containers::json_bytes).fold(0, usize::saturating_add);
        let made_bytes = meter::most_held_bytes(self.context_tokens, input_bytes);
        json_bytes.saturating_mul(2).saturating_add(made_bytes)
    }

    /// Renders these messages with all else that is in a request.
    fn render_messages(
        &self,
        messages: Vec<Value>,
        request: &ChatRequest,
        opening: Opening,
    ) -> Result<String> {
        let tool_use = self.has_tool_use && !request.tools.is_empty();
        let name = if tool_use { TOOL_USE_NAME } else { DEFAULT_NAME };
        let now_unix_s = request.now_unix_s.unwrap_or_else(time::now_unix_s);
        let tools =
            if request.tools.is_empty() { Value::Null } else { request.tools.clone().into() };
        let input_count = messages.len() + request.tools.len();

        let mut variables = Map::new();
        variables.insert("messages".to_owned(), Value::Array(messages));
        variables.insert("tools".to_owned(), tools);
        variables.insert("documents".to_owned(), Value::Null);
        variables.insert("add_generation_prompt".to_owned(), opening.is_answer.into());
        if let Some(enable_thinking) = opening.enable_thinking {
            variables.insert("enable_thinking".to_owned(), enable_thinking.into());
        }
        variables.extend(self.special_tokens.clone());
        variables.extend(request.kwargs.clone());
        self.render_variables(name, variables, input_count, now_unix_s)
    }

    fn render_variables(
        &self,
        name: &str,
        variables: Map<String, Value>,
        input_count: usize,
        now_unix_s: i64,
    ) -> Result<String> {
        on_large_stack(|| {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(FUEL_BASE + FUEL_PER_INPUT * input_count as u64));
            environment.add_function("strftime_now", move |format: &str| {
                meter::value(format.len().saturating_mul(time::LONGEST_BYTES))?;
                meter::text(time::strftime(format, now_unix_s))
            });
            let template =
                environment.get_template(name).map_err(|error| render_error(&error, name))?;
            let mut input_bytes = 0_usize;
            let variables = variables.into_iter().map(|(name, value)| {
                let (value, size) = containers::from_json(value);
                input_bytes = input_bytes.saturating_add(size.bytes);
                (name, value)
            });
            let context = JinjaValue::from_pairs(variables);
            let meter = Meter::new(self.context_tokens, input_bytes, input_count);
            let most = meter.written_most();
            meter.install();
            let mut output = LimitedOutput { bytes: Vec::new(), most };
            template
                .render_captured_to(context, &mut output)
                .map_err(|error| render_error(&error, name))?;
            output.bytes.shrink_to_fit();
            String::from_utf8(output.bytes)
                .map_err(|error| Error::TemplateRender { reason: error.to_string() })
        })
    }

    /// What this template takes as content, found out by rendering once and remembered.
    fn contents(&self) -> content::Abilities {
        *self.contents.get_or_init(|| content::Abilities::probe(self))
    }

    /// The same of calls.
    fn calls(&self) -> calls::Abilities {
        let contents = self.contents();
        *self.calls.get_or_init(|| calls::Abilities::probe(self, |text| contents.content(text)))
    }
}

/// Runs the engine where neither deep recursion nor a panic of its own can take the process down.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
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
    builtins::register(&mut environment);
    filters::register(&mut environment);
    operators::register(&mut environment);
    Ok(environment)
}

fn raise_exception(message: &JinjaValue) -> std::result::Result<JinjaValue, minijinja::Error> {
    let message = filters::python_str(message)?;
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception was called")
        .with_source(Raised(message)))
}

/// What a template is called in an error.
fn title(name: &str) -> &'static str {
    if name == TOOL_USE_NAME { "chat template tool_use" } else { "chat template" }
}

/// What went wrong, of what the engine says went wrong in the template of this name.
fn render_error(error: &minijinja::Error, name: &str) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut line = None;
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Error::TemplateRaised { message: message.clone() };
        }
        if let Some(limit) = current.downcast_ref::<Limit>() {
            return limit.error(title(name), line);
        }
        if let Some(minijinja) = current.downcast_ref::<minijinja::Error>() {
            line = minijinja.line().or(line);
            if minijinja.kind() == ErrorKind::OutOfFuel {
                let most = FUEL_BASE as usize;
                return Limit { measure: Measure::Instructions, most }.error(title(name), line);
            }
        }
        cause = match current.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => current.source(),
        };
    }
    Error::TemplateRender { reason: error.to_string() }
}

/// A writer that refuses to grow without bound.
struct LimitedOutput {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
            return Err(io::Error::other(Limit { measure: Measure::Output, most: self.most }));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use serde_json::json;

    fn render(source: &str) -> Result<String> {
        let template = ChatTemplate::new(source, Some("<s>"), None)?;
        template.render(&ChatRequest::new([Message::new("user", "hi")]))
    }

    #[track_caller]
    fn check(source: &str, expect: &str) {
        assert_eq!(render(source).unwrap(), expect);
    }

    #[test]
    fn variables_are_those_of_transformers() {
        check("{{ bos_token }}{{ eos_token is defined }}{{ tools is none }}", "<s>FalseTrue");
        check("{{ enable_thinking is defined }}{{ add_generation_prompt }}", "FalseTrue");
        check("{{ messages[0].content }}{{ strftime_now('%Y')|length }}", "hi4");
    }

    #[test]
    fn kwargs_win() {
        let template = ChatTemplate::new("{{ bos_token }}{{ effort }}", Some("<s>"), None).unwrap();
        let kwargs = json!({"bos_token": "x", "effort": "high"}).as_object().unwrap().clone();
        let request = ChatRequest { kwargs, ..ChatRequest::default() };
        assert_eq!(template.render(&request).unwrap(), "xhigh");
    }

    #[test]
    fn the_tool_template_is_used_with_tools() {
        let files = TemplateFiles {
            default: "default".to_owned(),
            tool_use: Some("{{ tools|length }} tools".to_owned()),
            special_tokens: Map::new(),
        };
        let template = ChatTemplate::from_files(&files).unwrap();
        let mut request = ChatRequest::new([Message::new("user", "hi")]);
        assert_eq!(template.render(&request).unwrap(), "default");
        request.tools = vec![json!({"name": "f"})];
        assert_eq!(template.render(&request).unwrap(), "1 tools");
    }

    /// Parts and text reach a template in the form it shows.
    #[test]
    fn content_is_converted_to_what_the_template_takes() {
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        let text = json!({"role": "user", "content": "ab"});
        let text_only = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let parts_only =
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
        let either = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
            {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
        for source in [text_only, parts_only, either] {
            let template = ChatTemplate::new(source, None, None).unwrap();
            for message in [&parts, &text] {
                let rendered = template.render(&ChatRequest::new([message.clone()])).unwrap();
                assert_eq!(rendered, "ab", "{source} with {message}");
            }
        }
        let image = json!({"role": "user", "content": [{"type": "image_url"}]});
        let template = ChatTemplate::new(text_only, None, None).unwrap();
        let error = template.render(&ChatRequest::new([image])).unwrap_err();
        assert!(error.to_string().contains("takes text only"), "{error}");
    }

    #[test]
    fn null_next_to_tool_calls_never_prints() {
        let message = json!({"role": "assistant", "content": null,
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
        let prints = "{% for m in messages %}[{{ m.content }}]{{ m.tool_calls[0].function.name }}{% endfor %}";
        let asks = "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}";
        for (source, expect) in [(prints, "[]f"), (asks, "f")] {
            let template = ChatTemplate::new(source, None, None).unwrap();
            let rendered = template.render(&ChatRequest::new([message.clone()])).unwrap();
            assert_eq!(rendered, expect);
        }
    }

    #[test]
    fn arguments_are_text_where_a_template_adds_them_to_text() {
        let adds = "{% for m in messages %}{% if m.content is none %}{% for call in m.tool_calls %}\
                    {{ call.function.name + call.function.arguments }}{% endfor %}{% endif %}{% endfor %}";
        let template = ChatTemplate::new(adds, None, None).unwrap();
        for arguments in [json!({"a": 1}), json!("{\"a\": 1}")] {
            let message = json!({"role": "assistant", "content": null,
                "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
            assert_eq!(template.render(&ChatRequest::new([message])).unwrap(), "f{\"a\":1}");
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        let syntax = ChatTemplate::new("a\n{% if %}", None, None).unwrap_err();
        assert!(
            matches!(&syntax, Error::TemplateSyntax { reason } if reason.contains(":2")),
            "{syntax}"
        );
        let raised = render("{{ raise_exception('only ' ~ 1) }}").unwrap_err();
        assert!(matches!(&raised, Error::TemplateRaised { message } if message == "only 1"));
        // Through a macro and a capture as well.
        let source = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% set x %}{{ m() }}{% endset %}";
        assert!(
            matches!(render(source), Err(Error::TemplateRaised { message }) if message == "deep")
        );
        assert!(matches!(render("{{ missing.x }}"), Err(Error::TemplateRender { .. })));
    }

    #[test]
    fn hostile_templates_end() {
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(
            matches!(render(endless), Err(Error::TemplateLimit { line: Some(1), limit, .. }) if limit.contains("instructions"))
        );
        let wide = "{% for a in range(9999) %}{{ 'x' * 1000000 }}{% endfor %}";
        assert!(
            matches!(render(wide), Err(Error::TemplateLimit { line: Some(1), limit, .. }) if limit.contains("text"))
        );
        let recursion = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(matches!(render(recursion), Err(Error::TemplateRender { .. })));
        // A value nested as deep as the fuel allows is printed as an error and dropped without a crash.
        let nested = "{% set n = namespace(x=[]) %}{% for a in range(99000) %}{% set n.x = [n.x] %}{% endfor %}";
        for source in [
            nested.to_owned(),
            format!("{nested}{{{{ n.x }}}}"),
            format!("{nested}{{{{ n.x|tojson }}}}"),
        ] {
            assert!(render(&source).is_err() || source == nested);
        }
    }

    #[test]
    fn hostile_sources_compile_or_fail() {
        let deep = format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
        assert!(render(&deep).is_err());
        // That these end without a crash is the test: some are errors, some render.
        for link in ["+1", "~a", ".b", "|string", "[a", " if a else a", " and a", "(a", "[a]"] {
            for count in [450, SOURCE_LIMIT_BYTES / link.len() - 8] {
                let _ = render(&format!("{{{{ a{} }}}}", link.repeat(count)));
            }
        }
        for link in ["-", "not ", "[", "{", "{{", "{% if a %}", "{% for a in a %}", "{% set a %}"] {
            for count in [450, SOURCE_LIMIT_BYTES / link.len() - 8] {
                let _ = render(&format!("{{{{ {} }}}}", link.repeat(count)));
                let _ = render(&link.repeat(count));
            }
        }
        let long = "a".repeat(SOURCE_LIMIT_BYTES + 1);
        assert!(
            matches!(render(&long), Err(Error::TemplateLimit { limit, .. }) if limit.contains("bytes"))
        );
    }
}
