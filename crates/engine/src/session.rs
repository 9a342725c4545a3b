//! Answers of one model: messages to requests of the engine, and its events to pieces of text.
//!
//! The terminal and the server both answer through it. A [`Session`] turns an [`AnswerRequest`] into requests, each with
//! the [`AnswerReader`] of its events; the caller hands the requests to the engine, steps it, and hands the events to the
//! readers. It knows nothing of HTTP, terminals or threads. What the model cannot do is refused here, before anything is
//! queued.

mod answer_request;
mod constrain;
mod reader;
mod vocabulary;

use std::sync::Arc;

use checkpoint::Checkpoint;
use grammar::{Allowance, Constraint, ConstraintError, GrammarError, Grammars};
use text::{AnswerDecoder, ChatRequest, ModelText, Prompt, VocabularyFiles};

pub use answer_request::{AnswerRequest, Input, SamplingOverrides, random};
pub use reader::{
    AnswerReader, Ending, Finish, TokenLogprob, TokenText, Update, WholeAnswer, WholeCall,
};

use crate::{Engine, Error, Request, Result, SamplingParams};

/// Reads what a checkpoint has between text and tokens.
pub fn open_text(checkpoint: &Checkpoint) -> Result<ModelText> {
    let Some(metadata) = checkpoint.gguf() else {
        return ModelText::open(|name| checkpoint.read_file(name).map_err(Error::from));
    };
    let VocabularyFiles { mut files, warnings } = vocabulary::of(metadata)?.files()?;
    for warning in warnings {
        tracing::warn!("{}: {warning}", metadata.path().display());
    }
    let config = checkpoint.config();
    let config = serde_json::json!({
        "model_type": config.model_type(),
        "max_position_embeddings": config.value("max_position_embeddings"),
    });
    files.insert("config.json", config.to_string().into_bytes());
    ModelText::open(|name| Ok(files.get(name).cloned()))
}

/// What answering takes of a loaded model.
#[derive(Debug)]
pub struct Session {
    /// Text to tokens and back.
    pub text: Arc<ModelText>,
    /// What the model's makers sample with.
    pub defaults: SamplingParams,
    /// Positions that a prompt and its answer may have.
    pub context: usize,
    /// Tokens there are.
    pub vocabulary: usize,
    grammars: Option<Grammars>,
}

impl Session {
    /// A session whose answers are free, whatever their requests say of grammars and tools.
    pub fn new(engine: &Engine, text: ModelText) -> Session {
        Session {
            defaults: SamplingParams::of_model(&text.generation_config),
            text: Arc::new(text),
            context: engine.runner().options().context,
            vocabulary: engine.runner().spec().vocab,
            grammars: None,
        }
    }

    /// The same with answers that follow grammars, whose memory is granted by `allowance`.
    pub fn with_grammars(
        mut self,
        allowance: Arc<dyn Allowance>,
    ) -> std::result::Result<Session, GrammarError> {
        let tokens = self.text.tokenizer.grammar_tokens(self.vocabulary);
        self.grammars = Some(Grammars::new(&tokens, &self.text.eos, allowance)?);
        Ok(self)
    }

    /// Refuses parameters that make no sense for this model.
    pub fn check_sampling(&self, overrides: &SamplingOverrides) -> Result<()> {
        overrides.over(&self.defaults).validate()?;
        let vocabulary = self.vocabulary;
        let mut biased = overrides.logit_bias.iter().map(|bias| bias.0);
        match biased.find(|&token| token as usize >= vocabulary) {
            Some(token) => {
                let reason =
                    format!("token {token} does not exist, the vocabulary has {vocabulary}");
                Err(Error::field("logit_bias", reason))
            }
            None => Ok(()),
        }
    }

    /// The prompt of a conversation that the template rendered to this text, if it has no more than `most` tokens, and if
    /// the memory is granted that rendering it again may take.
    pub fn prompt_of_chat(
        &self,
        chat: &ChatRequest,
        rendered: String,
        most: usize,
        grant: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Prompt> {
        self.text.prompt_of(chat, rendered, most, grant).map_err(|error| self.too_long(error))
    }

    /// The prompt of a request whose tokens are known.
    pub fn prompt_of_tokens(
        &self,
        request: &AnswerRequest,
        tokens: Vec<u32>,
        most: usize,
    ) -> Result<Prompt> {
        if tokens.len() > most {
            return Err(self.exceeded(tokens.len()));
        }
        let vocab = self.vocabulary;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(runtime::Error::Token { token, vocab }.into());
        }
        let text = self.text.tokenizer.decode(&tokens, false)?;
        Ok(Prompt { text, tokens, thinking: request.begun })
    }

    /// The tokens of a text, if there are no more than `most`.
    pub fn tokens(&self, text: &str, with_special: bool, most: usize) -> Result<Vec<u32>> {
        let tokens = self.text.tokenizer.encode_up_to(text, with_special, most);
        tokens.map_err(|error| self.too_long(error))
    }

    /// Refuses a text that has more than `most` tokens by its length alone.
    pub fn check_length(&self, text: &str, most: usize) -> Result<()> {
        self.text.tokenizer.check_length(text, most).map_err(|error| self.too_long(error))
    }

    /// That a prompt has at least so many tokens, which is more than the context holds.
    pub fn exceeded(&self, tokens: usize) -> Error {
        runtime::Error::Context { needed: tokens + 1, context: self.context }.into()
    }

    fn too_long(&self, error: text::Error) -> Error {
        match error {
            text::Error::TooManyTokens { at_least, .. } => self.exceeded(at_least),
            error => error.into(),
        }
    }

    /// All answers to a prompt: requests for the engine, each with the reader of its events. `checkpoint` is how much of
    /// the prompt the next turn of the conversation will likely begin with.
    pub fn begin(
        &self,
        request: &AnswerRequest,
        prompt: &Prompt,
        checkpoint: Option<usize>,
    ) -> Result<Vec<(Request, AnswerReader)>> {
        if prompt.tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.tokens.len() >= self.context {
            return Err(self.exceeded(prompt.tokens.len()));
        }
        let tools = request.callable_tools();
        let decoder = || {
            let stop = request.stop.clone();
            if request.is_raw {
                self.text.plain_decoder(stop)
            } else {
                self.text.decoder(prompt.thinking, stop, tools)
            }
        };
        let first = decoder();
        let constraint = self.constraint(request, prompt, &first)?;
        let field = constraint.as_ref().map(|(field, _)| *field);
        let constraints = constraint.map(|(_, one)| forks(one, request.choices));
        let mut constraints = constraints.transpose()?.unwrap_or_default().into_iter();
        let decoders = std::iter::once(first).chain((1..request.choices).map(|_| decoder()));
        let sampling = request.sampling.over(&self.defaults);
        let answer = |(choice, decoder): (usize, AnswerDecoder)| {
            // Each answer draws for itself.
            let seed = sampling.seed.wrapping_add(choice as u64);
            let request_of_engine = Request {
                prompt: prompt.tokens.clone(),
                max_tokens: request.max_tokens.unwrap_or(usize::MAX),
                stop_tokens: self.text.stop_tokens(!tools.is_empty()),
                sampling: SamplingParams { seed, ..sampling.clone() },
                checkpoints: checkpoint.into_iter().collect(),
                constraint: constraints.next(),
            };
            let calls_once = !request.parallel_tool_calls;
            let field = field.map(str::to_owned);
            (request_of_engine, AnswerReader::new(&self.text, decoder, calls_once, field))
        };
        Ok(decoders.enumerate().map(answer).collect())
    }
}

/// A constraint for each choice.
fn forks(constraint: Constraint, choices: usize) -> Result<Vec<Constraint>> {
    let forks = (1..choices).map(|_| constraint.fork()).collect::<std::result::Result<Vec<_>, _>>();
    let mut forks = forks.map_err(|error| match error {
        ConstraintError::NoMemory { bytes } => Error::Grammar(GrammarError::NoMemory { bytes }),
        error => error.into(),
    })?;
    forks.push(constraint);
    Ok(forks)
}
