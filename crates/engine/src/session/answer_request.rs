//! A request to a model, independent of the API it came through.

use grammar::Grammar;
use serde_json::{Map, Value};
use text::tools::{Choice, Tool};
use text::{ChatRequest, Thinking};

use crate::SamplingParams;

/// A request for one answer or several to the same prompt.
#[derive(Clone, Debug)]
pub struct AnswerRequest {
    /// What comes before the answer.
    pub input: Input,
    /// Tools the model may call.
    pub tools: Vec<Tool>,
    /// The same as templates see them: `{"type": "function", "function": {…}}`.
    pub tool_definitions: Vec<Value>,
    /// Whether the model may, must or must not call tools.
    pub tool_choice: Choice,
    /// Whether one answer may hold several calls.
    pub parallel_tool_calls: bool,
    /// What the answer must look like.
    pub grammar: Option<Grammar>,
    /// The field that the grammar is from, for errors.
    pub grammar_field: String,
    /// The longest answer; until the context is full if `None`.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen, where the request says so.
    pub sampling: SamplingOverrides,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// How many answers.
    pub choices: usize,
    /// Whether the model thinks first; the template's own default if `None`.
    pub thinking: Option<bool>,
    /// More variables for the chat template.
    pub template_variables: Map<String, Value>,
    /// Whether the answer is text as the model writes it: thinking and calls are not looked for.
    pub is_raw: bool,
    /// How an answer that has begun leaves thinking, where the input is not a chat.
    pub begun: Thinking,
}

/// What comes before an answer.
#[derive(Clone, Debug)]
pub enum Input {
    /// A conversation, as chat templates see messages.
    Chat(Vec<Value>),
    /// Text as it is.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<u32>),
}

impl AnswerRequest {
    /// A request with nothing but its input.
    pub fn new(input: Input) -> AnswerRequest {
        AnswerRequest {
            input,
            tools: Vec::new(),
            tool_definitions: Vec::new(),
            tool_choice: Choice::Auto,
            parallel_tool_calls: true,
            grammar: None,
            grammar_field: "response_format".to_owned(),
            max_tokens: None,
            sampling: SamplingOverrides::default(),
            stop: Vec::new(),
            choices: 1,
            thinking: None,
            template_variables: Map::new(),
            is_raw: false,
            begun: Thinking::Closed,
        }
    }

    /// These messages with the request's tools and variables, for the chat template. The last two are gone from the
    /// request afterwards.
    pub fn take_chat<M: Into<Value>>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
    ) -> ChatRequest {
        let definitions = std::mem::take(&mut self.tool_definitions);
        let mut chat = ChatRequest::new(messages);
        if self.tool_choice != Choice::None {
            chat.tools = definitions;
        }
        chat.enable_thinking = self.thinking;
        chat.kwargs = std::mem::take(&mut self.template_variables);
        chat
    }

    /// The tools that an answer is searched for calls of: none where none may be called.
    pub fn callable_tools(&self) -> &[Tool] {
        if self.tool_choice == Choice::None { &[] } else { &self.tools }
    }
}

/// Sampling parameters that may be absent: the model's own defaults hold then, and each time another seed.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "each is a field of `SamplingParams`")]
pub struct SamplingOverrides {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: Option<u64>,
    pub logprobs: Option<usize>,
}

impl SamplingOverrides {
    /// These over the model's own.
    pub fn over(&self, defaults: &SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random),
            logprobs: self.logprobs,
        }
    }
}

/// A number from the system's randomness, which seeds the hash maps of the standard library; below 2^53, so that any JSON
/// reader can hand it back.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_where_a_request_says_nothing() {
        let defaults = SamplingParams { temperature: 0.7, top_k: 20, ..SamplingParams::default() };
        let overrides =
            SamplingOverrides { top_k: Some(5), seed: Some(3), ..SamplingOverrides::default() };
        let expect = SamplingParams { top_k: 5, seed: 3, ..defaults.clone() };
        assert_eq!(overrides.over(&defaults), expect);
        assert!(SamplingOverrides::default().over(&defaults).seed < 1 << 53);
    }

    #[test]
    fn tools_are_not_shown_where_none_may_be_called() {
        let mut request = AnswerRequest::new(Input::Chat(Vec::new()));
        request.tool_definitions = vec![Value::Null];
        assert_eq!(request.clone().take_chat([Value::Null]).tools, [Value::Null]);
        request.tool_choice = Choice::None;
        assert!(request.take_chat([Value::Null]).tools.is_empty());
    }
}
