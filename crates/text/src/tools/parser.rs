//! The stream of an answer, with tool calls taken out of it.
//!
//! Outside of calls the text is scanned for the format's openers; a [`Reader`] takes over at one. It either
//! begins calls on [`Calls`], or refuses: then all it has read since the last call is text again. White space
//! next to a call only separates, so it is dropped unless words stand on both sides of it.

use super::scan::{Next, Scan, next, scan};
use super::{
    Tool, ToolFormat, deepseek, gemma4, glm, harmony, hermes, invoke, kimi, llama3, mistral,
    pythonic, qwen_xml,
};
use crate::Piece;

/// Calls one answer may make; what looks like one after that is text.
const CALL_LIMIT: usize = 1024;

/// Steps a reader may take from state to state without reading on: more than any has states.
const IDLE_LIMIT: usize = 32;

/// Reads the calls of one format.
pub(super) trait Reader: Send + std::fmt::Debug {
    /// Texts that open a block of calls anywhere.
    fn openers(&self) -> &'static [&'static str];
    /// Texts that open one only as the first words of an answer.
    fn first_openers(&self) -> &'static [&'static str] {
        &[]
    }
    /// Whether the whole answer is one block, its words included.
    fn is_always_open(&self) -> bool {
        false
    }
    /// A block begins: this opener has passed.
    fn open(&mut self, opener: &str);
    /// Reads on. `last`: no more text will come.
    fn read(&mut self, text: &str, last: bool, calls: &mut Calls) -> Step;
    /// The answer is over: completes a call that is open.
    fn finish(&mut self, calls: &mut Calls);
}

/// What a [`Reader`] made of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// So many bytes are read.
    Take(usize),
    /// More text is needed.
    Wait,
    /// The block is over after so many bytes.
    Close(usize),
    /// What was read since the last call, these bytes too, is no call.
    Refuse(usize),
}

/// Where a [`Reader`] puts what it finds.
#[derive(Debug)]
pub(super) struct Calls {
    tools: Vec<Tool>,
    events: Vec<Piece>,
    count: usize,
    /// Which of `tools` the open call is of.
    open: Option<usize>,
    has_arguments: bool,
    /// Something was put here since the reader was last read.
    touched: bool,
}

impl Calls {
    /// Whether the request has such a tool.
    pub(super) fn has(&self, name: &str) -> bool {
        self.count < CALL_LIMIT && self.tools.iter().any(|tool| tool.name == name)
    }

    /// Begins a call, if the request has such a tool.
    pub(super) fn begin(&mut self, name: &str, id: Option<&str>) -> bool {
        let tool = self.tools.iter().position(|tool| tool.name == name);
        let Some(tool) = tool.filter(|_| self.count < CALL_LIMIT) else { return false };
        assert!(self.open.is_none(), "a call begins inside another");
        (self.open, self.has_arguments, self.touched) = (Some(tool), false, true);
        let (id, name) = (id.map(str::to_owned), name.to_owned());
        self.events.push(Piece::ToolBegin { index: self.count, id, name });
        true
    }

    /// JSON schema of the open call's arguments.
    pub(super) fn parameters(&self) -> &serde_json::Value {
        self.open.map_or(&serde_json::Value::Null, |tool| &self.tools[tool].parameters)
    }

    /// More of the open call's arguments.
    pub(super) fn arguments(&mut self, json: &str) {
        if json.is_empty() {
            return;
        }
        assert!(self.open.is_some(), "arguments outside of a call");
        (self.has_arguments, self.touched) = (true, true);
        if let Some(Piece::ToolArguments { json: before, .. }) = self.events.last_mut() {
            before.push_str(json);
        } else {
            self.events.push(Piece::ToolArguments { index: self.count, json: json.to_owned() });
        }
    }

    /// Ends the open call.
    pub(super) fn end(&mut self) {
        if !self.has_arguments {
            self.arguments("{}");
        }
        self.events.push(Piece::ToolEnd { index: self.count });
        self.count += 1;
        (self.open, self.touched) = (None, true);
    }

    /// Whether a call is open.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Words of the answer.
    pub(super) fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(Piece::Content(before)) = self.events.last_mut() {
            before.push_str(text);
        } else {
            self.events.push(Piece::Content(text.to_owned()));
        }
    }

    /// Thinking.
    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(Piece::Reasoning(before)) = self.events.last_mut() {
            before.push_str(text);
        } else {
            self.events.push(Piece::Reasoning(text.to_owned()));
        }
    }
}

/// Incremental parser of one answer.
#[derive(Debug)]
pub struct ToolParser {
    /// `None`: everything is text.
    reader: Option<Box<dyn Reader>>,
    calls: Calls,
    /// Text that is not decided yet.
    held: String,
    /// Inside a block: what was read since the last call, with the white space before the block.
    raw: String,
    is_inside: bool,
    /// Calls there were when the block opened.
    calls_before: usize,
    /// Nothing but white space has come.
    is_start: bool,
    /// Words have been emitted.
    has_spoken: bool,
    /// A call was the last thing.
    is_after_call: bool,
}

impl ToolParser {
    /// A parser for the tools of a request. Without tools everything is text, but in harmony, where channels
    /// are more than calls.
    pub fn new(format: ToolFormat, tools: &[Tool]) -> Self {
        let is_needed = !tools.is_empty() || format == ToolFormat::Harmony;
        let reader = is_needed.then(|| reader(format));
        let is_inside = reader.as_ref().is_some_and(|reader| reader.is_always_open());
        let calls = Calls {
            tools: tools.to_vec(),
            events: Vec::new(),
            count: 0,
            open: None,
            has_arguments: false,
            touched: false,
        };
        Self {
            reader,
            calls,
            held: String::new(),
            raw: String::new(),
            is_inside,
            calls_before: 0,
            is_start: true,
            has_spoken: false,
            is_after_call: false,
        }
    }

    /// Takes the next text and returns what is certain, in order.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        self.advance(false);
        std::mem::take(&mut self.calls.events)
    }

    /// Ends an answer that the model has ended: an open call is completed, what was held back comes out.
    pub fn finish(&mut self) -> Vec<Piece> {
        self.advance(true);
        if self.is_inside {
            self.finish_block();
        }
        self.held.clear();
        std::mem::take(&mut self.calls.events)
    }

    /// Ends an answer that was cut off: words that were held back come out. Half a value is none, so an open call stays open,
    /// and what might have become a call is nothing.
    pub fn cut(&mut self) -> Vec<Piece> {
        let is_always_open = self.reader.as_ref().is_some_and(|reader| reader.is_always_open());
        if !self.is_inside || (is_always_open && !self.calls.is_open()) {
            return self.finish();
        }
        self.held.clear();
        self.raw.clear();
        std::mem::take(&mut self.calls.events)
    }

    /// Whether a call has begun so far.
    pub fn has_called(&self) -> bool {
        self.calls.count > 0 || self.calls.is_open()
    }

    fn advance(&mut self, last: bool) {
        let Some(mut reader) = self.reader.take() else {
            let text = std::mem::take(&mut self.held);
            self.calls.text(&text);
            return;
        };
        let held = std::mem::take(&mut self.held);
        let (mut at, mut idle) = (0, 0);
        loop {
            let rest = &held[at..];
            let taken = if self.is_inside {
                self.advance_block(reader.as_mut(), rest, last)
            } else {
                self.advance_text(reader.as_mut(), rest, last)
            };
            match taken {
                Some(bytes) => {
                    at += bytes;
                    idle = if bytes == 0 { idle + 1 } else { 0 };
                    assert!(idle < IDLE_LIMIT, "a reader goes in circles: {reader:?}");
                }
                None => break,
            }
        }
        held[at..].clone_into(&mut self.held);
        self.reader = Some(reader);
    }

    /// Bytes that are decided, or `None` when more text must come.
    fn advance_block(&mut self, reader: &mut dyn Reader, rest: &str, last: bool) -> Option<usize> {
        self.calls.touched = false;
        let step = reader.read(rest, last, &mut self.calls);
        let touched = self.calls.touched;
        if touched {
            self.raw.clear();
        }
        match step {
            Step::Wait => None,
            Step::Take(bytes) => {
                if !touched && !self.calls.is_open() && !reader.is_always_open() {
                    self.raw.push_str(&rest[..bytes]);
                }
                Some(bytes)
            }
            Step::Close(bytes) if self.calls.count > self.calls_before => {
                self.raw.clear();
                (self.is_inside, self.is_after_call) = (false, true);
                Some(bytes)
            }
            Step::Close(bytes) | Step::Refuse(bytes) => {
                self.raw.push_str(&rest[..bytes]);
                self.is_inside = false;
                let raw = std::mem::take(&mut self.raw);
                // A call before the refused one still separates.
                self.is_after_call |= self.calls.count > self.calls_before;
                self.speak(&raw);
                Some(bytes)
            }
        }
    }

    fn advance_text(&mut self, reader: &mut dyn Reader, rest: &str, last: bool) -> Option<usize> {
        if self.is_start {
            let openers = reader.first_openers();
            match next(rest, openers, last, &[]) {
                Next::Is { marker, end } => {
                    self.open_block(reader, openers[marker], &rest[..end]);
                    return Some(end);
                }
                Next::Open => return None,
                Next::Other => {}
            }
        }
        let openers = reader.openers();
        match scan(rest, openers, last) {
            Scan::Found { at, marker } => {
                let words = rest[..at].trim_end();
                self.speak(words);
                let end = at + openers[marker].len();
                self.open_block(reader, openers[marker], &rest[words.len()..end]);
                Some(end)
            }
            Scan::Missing { safe } => {
                let words = if last { rest } else { rest[..safe].trim_end() };
                if words.is_empty() || (self.is_after_call && words.trim().is_empty()) {
                    return None;
                }
                self.speak(words);
                Some(words.len())
            }
        }
    }

    fn open_block(&mut self, reader: &mut dyn Reader, opener: &str, raw: &str) {
        reader.open(opener);
        raw.clone_into(&mut self.raw);
        (self.is_inside, self.is_start) = (true, false);
        self.calls_before = self.calls.count;
    }

    fn speak(&mut self, words: &str) {
        let words = if self.is_after_call && !self.has_spoken { words.trim_start() } else { words };
        if words.is_empty() {
            return;
        }
        self.calls.text(words);
        self.is_after_call = false;
        self.has_spoken |= !words.trim().is_empty();
        self.is_start &= !self.has_spoken;
    }

    /// The answer ended inside a block.
    fn finish_block(&mut self) {
        let Some(mut reader) = self.reader.take() else { return };
        if self.calls.is_open() || reader.is_always_open() {
            reader.finish(&mut self.calls);
        } else {
            let raw = std::mem::take(&mut self.raw) + &self.held;
            self.is_after_call |= self.calls.count > self.calls_before;
            if !(self.is_after_call && raw.trim().is_empty()) {
                self.speak(&raw);
            }
        }
        assert!(!self.calls.is_open(), "a call was left open");
        self.is_inside = false;
        self.reader = Some(reader);
    }
}

fn reader(format: ToolFormat) -> Box<dyn Reader> {
    match format {
        ToolFormat::Hermes => Box::new(hermes::Hermes::default()),
        ToolFormat::QwenXml => Box::new(qwen_xml::QwenXml::default()),
        ToolFormat::SeedXml => Box::new(qwen_xml::QwenXml::seed()),
        ToolFormat::Gemma4 => Box::new(gemma4::Gemma4::default()),
        ToolFormat::Harmony => Box::new(harmony::Harmony::default()),
        ToolFormat::DeepSeek => Box::new(deepseek::DeepSeek::default()),
        ToolFormat::DeepSeekXml => Box::new(invoke::Invoke::deepseek()),
        ToolFormat::Glm => Box::new(glm::Glm::default()),
        ToolFormat::Kimi => Box::new(kimi::Kimi::default()),
        ToolFormat::MiniMax => Box::new(invoke::Invoke::minimax()),
        ToolFormat::Mistral => Box::new(mistral::Mistral::default()),
        ToolFormat::Llama3 => Box::new(llama3::Llama3::default()),
        ToolFormat::Pythonic => Box::new(pythonic::Pythonic::default()),
    }
}
