//! How a model speaks: tokenizer, chat template, end tokens, and what its makers sample with.

use std::collections::BTreeSet;

use checkpoint::Checkpoint;
use serde_json::Value;
use text::{
    ChatRequest, ChatTemplate, Detokenizer, ReasoningSplitter, Segment, StopFilter, TemplateFiles,
    Tokenizer, eos_ids,
};

use crate::{Error, Result, SamplingParams};

/// Everything between text and tokens of one model.
#[derive(Debug)]
pub struct Dialect {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to text, if the model has a chat template.
    pub template: Option<ChatTemplate>,
    /// Tokens that end an answer.
    pub eos: BTreeSet<u32>,
    /// From `generation_config.json`.
    pub defaults: SamplingParams,
}

/// A rendered prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// As text, for what depends on how it ends.
    pub text: String,
    /// As the model sees it.
    pub tokens: Vec<u32>,
}

/// New text of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Thinking.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// A stop string came: nothing more will.
    pub stopped: bool,
}

impl Dialect {
    /// Reads the side files of a checkpoint.
    pub fn open(checkpoint: &Checkpoint) -> Result<Dialect> {
        let read = |name: &str| checkpoint.file(name);
        let tokenizer = read("tokenizer.json").ok_or(Error::NoTokenizer)?;
        let tokenizer = Tokenizer::from_bytes(&tokenizer)?;
        let template = match TemplateFiles::find(read)? {
            Some(files) => Some(ChatTemplate::from_files(&files)?),
            None => None,
        };
        let eos = eos_ids(read, &tokenizer)?;
        let config = read("generation_config.json");
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(Dialect { tokenizer, template, eos, defaults: defaults(config.as_ref()) })
    }

    /// The prompt of a conversation. Without a chat template, the messages' text as it is.
    pub fn prompt(&self, request: &ChatRequest) -> Result<Prompt> {
        let text = match &self.template {
            Some(template) => template.render(request)?,
            None => {
                let texts: Vec<&str> =
                    request.messages.iter().filter_map(|m| m["content"].as_str()).collect();
                texts.join("\n")
            }
        };
        // A template writes its own beginning-of-text token; plain text needs the tokenizer's.
        let tokens = self.tokenizer.encode(&text, self.template.is_none())?;
        Ok(Prompt { text, tokens })
    }

    /// Turns the tokens of an answer to `prompt` into text, piece by piece.
    pub fn listener(&self, prompt: &str, stops: Vec<String>) -> Listener {
        Listener {
            detokenizer: Detokenizer::new(&self.tokenizer),
            splitter: ReasoningSplitter::for_prompt(prompt),
            stop: StopFilter::new(stops),
            stopped: false,
        }
    }
}

fn defaults(config: Option<&Value>) -> SamplingParams {
    let mut params = SamplingParams::default();
    let Some(config) = config else { return params };
    let number = |key: &str| config[key].as_f64().map(|value| value as f32);
    if config["do_sample"].as_bool() == Some(false) {
        params.temperature = 0.0;
    } else if let Some(temperature) = number("temperature") {
        params.temperature = temperature;
    }
    if let Some(top_p) = number("top_p") {
        params.top_p = top_p;
    }
    if let Some(top_k) = config["top_k"].as_u64() {
        params.top_k = top_k as usize;
    }
    if let Some(min_p) = number("min_p") {
        params.min_p = min_p;
    }
    if let Some(penalty) = number("repetition_penalty") {
        params.repetition_penalty = penalty;
    }
    // A file may say anything; what makes no sense is not taken over.
    if params.validate().is_ok() { params } else { SamplingParams::default() }
}

/// The text of one answer as it arrives.
#[derive(Debug)]
pub struct Listener {
    detokenizer: Detokenizer,
    splitter: ReasoningSplitter,
    stop: StopFilter,
    stopped: bool,
}

impl Listener {
    /// Takes the next token and returns what can be shown.
    pub fn push(&mut self, token: u32) -> Result<Heard> {
        let text = self.detokenizer.push(token)?;
        let segments = self.splitter.push(&text);
        Ok(self.hear(segments))
    }

    /// Ends the answer and returns what was held back.
    pub fn finish(&mut self) -> Result<Heard> {
        let text = self.detokenizer.finish()?;
        let mut segments = self.splitter.push(&text);
        segments.extend(self.splitter.finish());
        let mut heard = self.hear(segments);
        if !self.stopped {
            heard.content.push_str(&self.stop.finish());
        }
        Ok(heard)
    }

    /// Stop strings are looked for in the answer, not in the thinking.
    fn hear(&mut self, segments: Vec<Segment>) -> Heard {
        let mut heard = Heard::default();
        for segment in segments {
            match segment {
                Segment::Reasoning(text) => heard.reasoning.push_str(&text),
                Segment::Content(text) => {
                    let passed = self.stop.push(&text);
                    heard.content.push_str(&passed.text);
                    self.stopped |= passed.stop.is_some();
                }
            }
        }
        heard.stopped = self.stopped;
        heard
    }
}
