//! Strings in and out: tokenizer, incremental detokeniser, chat templates, stop strings, reasoning, tool calls.
//!
//! Everything between what a person typed and the token ids a model sees, and back again. The crate
//! knows nothing of models, files or HTTP: files arrive as bytes or through a `read` closure, and every
//! byte of them is untrusted, templates above all.
//!
//! The streaming parts ([`Detokenizer`], [`StopFilter`], [`ReasoningSplitter`], [`tools::ToolParser`], and
//! [`AnswerParser`], which puts them in a row) share one invariant: what they emit does not depend on how the
//! stream was cut, and equals the answer on the whole text.

#![forbid(unsafe_code)]

mod answer;
mod detokenize;
mod error;
mod message;
mod model_text;
mod reasoning;
mod source;
mod stop;
mod template;
mod tokenizer;
pub mod tools;
mod vocabulary;
mod weight;

pub use answer::{AnswerParser, Piece};
pub use detokenize::Detokenizer;
pub use error::{Error, Result};
pub use message::{ChatRequest, Content, FunctionCall, Message, ToolCall};
pub use model_text::{AnswerDecoder, ModelText, Prompt};
pub use reasoning::{ReasoningMarkers, ReasoningSplitter, Thinking};
pub use source::TemplateFiles;
pub use stop::{StopFilter, Stopped, eos_ids};
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;
pub use vocabulary::{Vocabulary, VocabularyFiles};
pub use weight::{Weight, of_value as weight_of};
