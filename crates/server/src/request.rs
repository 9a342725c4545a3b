//! What a client asks for, whatever dialect it speaks.
//!
//! A dialect fills in an [`Ask`] and judges nothing but types: what the model can do with it is decided
//! in `prepare`, once for all dialects. The limits here hold for every dialect too.

use engine::SamplingParams;
use grammar::Grammar;
use serde_json::{Map, Value};
use text::Thinking;
use text::tools::{Choice, Tool};

use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};

/// The most answers to one request.
pub(crate) const MOST_CHOICES: usize = 16;
/// The most strings that end an answer, and their longest length in bytes.
pub(crate) const MOST_STOPS: usize = 64;
const LONGEST_STOP_BYTES: usize = 1024;
/// The most tools of one request.
pub(crate) const MOST_TOOLS: usize = 512;
/// The most tokens with a bias.
pub(crate) const MOST_BIASES: usize = 4096;
/// The longest name of a tool.
const LONGEST_NAME_BYTES: usize = 256;

/// A request to generate.
#[derive(Debug)]
pub(crate) struct Ask {
    /// What comes before the answer.
    pub(crate) input: Input,
    /// Tools the model may call.
    pub(crate) tools: Vec<Tool>,
    /// The same as templates see them: `{"type": "function", "function": {…}}`.
    pub(crate) tool_definitions: Vec<Value>,
    /// Whether it may, must or must not.
    pub(crate) tool_choice: Choice,
    /// Whether it may call several in one answer.
    pub(crate) parallel_tool_calls: bool,
    /// What the answer must look like.
    pub(crate) grammar: Option<Grammar>,
    /// Where the client said so, for errors.
    pub(crate) grammar_field: String,
    /// The longest answer; until the context is full if `None`.
    pub(crate) max_tokens: Option<usize>,
    /// How tokens are chosen, where the client says so.
    pub(crate) sampling: Wishes,
    /// Texts that end an answer.
    pub(crate) stop: Vec<String>,
    /// How many answers.
    pub(crate) choices: usize,
    /// Whether the model thinks first; the template's own default if `None`.
    pub(crate) thinking: Option<bool>,
    /// More variables for the chat template.
    pub(crate) template_variables: Map<String, Value>,
    /// Whether the answer is text as the model writes it: thinking and calls are not looked for.
    pub(crate) is_raw: bool,
    /// How an answer that has begun leaves thinking, where the input is not a chat.
    pub(crate) begun: Thinking,
}

/// What comes before an answer.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// A conversation, as chat templates see messages.
    Chat(Vec<Value>),
    /// Text as it is.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<u32>),
}

/// Sampling parameters that may be absent: the model's own defaults hold then.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wishes {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: Option<u64>,
    pub(crate) logprobs: Option<usize>,
}

impl Ask {
    /// An ask with nothing but its input.
    pub(crate) fn new(input: Input) -> Ask {
        Ask {
            input,
            tools: Vec::new(),
            tool_definitions: Vec::new(),
            tool_choice: Choice::Auto,
            parallel_tool_calls: true,
            grammar: None,
            grammar_field: "response_format".to_owned(),
            max_tokens: None,
            sampling: Wishes::default(),
            stop: Vec::new(),
            choices: 1,
            thinking: None,
            template_variables: Map::new(),
            is_raw: false,
            begun: Thinking::Closed,
        }
    }

    /// Adds a tool; `path` is where it stands in the request.
    pub(crate) fn add_tool(&mut self, tool: Tool, path: &str) -> Result<()> {
        if self.tools.len() >= MOST_TOOLS {
            return Err(ApiError::field(path, format!("there are more than {MOST_TOOLS} tools")));
        }
        if tool.name.is_empty() || tool.name.len() > LONGEST_NAME_BYTES {
            let message = format!("a tool's name has 1 to {LONGEST_NAME_BYTES} bytes");
            return Err(ApiError::field(path, message));
        }
        if tool.name.chars().any(|c| c.is_control() || c.is_whitespace() || "<>\"{}".contains(c)) {
            let message = format!("{:?} cannot be the name of a tool", tool.name);
            return Err(ApiError::field(path, message));
        }
        if self.tools.iter().any(|other| other.name == tool.name) {
            let message = format!("there are two tools named {:?}", tool.name);
            return Err(ApiError::field(path, message));
        }
        self.tool_definitions.push(serde_json::json!({
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description.clone().unwrap_or_default(),
                "parameters": tool.parameters,
            },
        }));
        self.tools.push(tool);
        Ok(())
    }

    /// Sets the texts that end an answer; `key` is their field.
    pub(crate) fn set_stop(&mut self, fields: &Fields<'_>, key: &str) -> Result<()> {
        let mut stop = fields.strings(key)?;
        if stop.len() > MOST_STOPS {
            return Err(fields.error(key, format!("at most {MOST_STOPS} are allowed")));
        }
        if stop.iter().any(|text| text.len() > LONGEST_STOP_BYTES) {
            return Err(fields.error(key, format!("at most {LONGEST_STOP_BYTES} bytes each")));
        }
        // An empty text would end every answer before it begins.
        stop.retain(|text| !text.is_empty());
        self.stop = stop;
        Ok(())
    }
}

impl Wishes {
    /// Reads the fields that OpenAI's dialects share.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Wishes> {
        Ok(Wishes {
            temperature: fields.number("temperature")?,
            top_k: top_k(fields)?,
            top_p: fields.number("top_p")?,
            min_p: fields.number("min_p")?,
            repetition_penalty: fields.number("repetition_penalty")?,
            presence_penalty: fields.number("presence_penalty")?,
            frequency_penalty: fields.number("frequency_penalty")?,
            logit_bias: logit_bias(fields)?,
            seed: fields.seed("seed")?,
            logprobs: None,
        })
    }

    /// These over the model's own, for the answer of this number: each draws for itself.
    pub(crate) fn over(
        &self,
        defaults: &SamplingParams,
        seed: u64,
        choice: usize,
    ) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: seed.wrapping_add(choice as u64),
            logprobs: self.logprobs,
        }
    }
}

/// -1 is how some servers say "all".
fn top_k(fields: &Fields<'_>) -> Result<Option<usize>> {
    match fields.get("top_k").and_then(Value::as_i64) {
        Some(-1) => Ok(Some(0)),
        _ => fields.count("top_k"),
    }
}

/// `{"token id": bias}`, as OpenAI has it.
fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>> {
    let Some(map) = fields.map("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MOST_BIASES {
        return Err(fields.error("logit_bias", format!("at most {MOST_BIASES} tokens")));
    }
    map.iter()
        .map(|(token, bias)| {
            let path = format!("{}.{token}", fields.path("logit_bias"));
            let id = token.parse().map_err(|_| ApiError::field(&path, "is not a token id"))?;
            let number = bias.as_f64().ok_or_else(|| wrong(&path, "a number", bias))?;
            Ok((id, number as f32))
        })
        .collect()
}

/// A number from the system's randomness, below 2^53 so that any JSON reader can hand it back.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 11
}

/// A name for something on the wire, such as `chatcmpl-0f3a…`.
pub(crate) fn identifier(prefix: &str) -> String {
    format!("{prefix}{:013x}{:013x}", random() & 0xf_ffff_ffff_ffff, random() & 0xf_ffff_ffff_ffff)
}
