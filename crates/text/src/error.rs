//! The one error type of this crate. Each variant carries the facts a person needs to act on it:
//! which file, which message, which line of the template.

/// What can go wrong between strings and tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // === Tokenizer ===
    /// `tokenizer.json` is not a tokenizer the `tokenizers` crate can read.
    #[error("tokenizer.json cannot be read: {reason}")]
    TokenizerFile {
        /// What the tokenizers crate said.
        reason: String,
    },
    /// A GGUF file's tokenizer is of a kind that is not supported, or contradicts itself.
    #[error("the tokenizer of the GGUF file: {reason}")]
    Vocabulary {
        /// What is wrong with it.
        reason: String,
    },
    /// Text could not be turned into tokens.
    #[error("text of {bytes} bytes cannot be encoded: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizers crate said.
        reason: String,
    },
    /// A text has more tokens than there is room for.
    #[error("the text has at least {at_least} tokens, more than {most}")]
    TooManyTokens {
        /// Tokens that it has, or has at least where they were not counted to the end.
        at_least: usize,
        /// Tokens that it may have.
        most: usize,
    },
    /// Tokens could not be turned into text.
    #[error("{tokens} tokens cannot be decoded: {reason}")]
    Decode {
        /// How many tokens were decoded together.
        tokens: usize,
        /// What the tokenizers crate said.
        reason: String,
    },

    // === Files ===
    /// A model that cannot be talked to.
    #[error("the checkpoint has no tokenizer.json")]
    NoTokenizer,
    /// A JSON file of the model does not parse.
    #[error("{file} is not valid JSON")]
    Json {
        /// Name of the file inside the model's folder.
        file: &'static str,
        /// Where it stops being JSON.
        #[source]
        source: serde_json::Error,
    },
    /// A text file of the model is not UTF-8.
    #[error("{file} is not UTF-8")]
    Utf8 {
        /// Name of the file inside the model's folder.
        file: &'static str,
    },

    // === Chat templates ===
    /// The chat template does not parse.
    #[error("the chat template does not parse: {reason}")]
    TemplateSyntax {
        /// What the template engine said, with the line.
        reason: String,
    },
    /// The chat template failed on this conversation.
    #[error("the chat template failed: {reason}")]
    TemplateRender {
        /// What the template engine said, with the line.
        reason: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// The template author's words.
        message: String,
    },
    /// The template takes more, of time or memory, than a prompt for this context can use.
    #[error("{template}{}: {limit}", line.map_or_else(String::new, |line| format!(", line {line}")))]
    TemplateLimit {
        /// Which of the model's templates.
        template: String,
        /// The line that went past the limit, from 1, where it is known.
        line: Option<usize>,
        /// What it did, and how much of that it may.
        limit: String,
    },
    /// Rendering would take more memory than there is for it.
    #[error("the chat template would take {bytes} bytes")]
    NoMemory {
        /// What it could take.
        bytes: usize,
    },
    /// A message cannot be given to a template.
    #[error("message {index}: {reason}")]
    Message {
        /// Position in the conversation, from 0.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },

    // === Tools ===
    /// The tools of a request cannot be offered or forced.
    #[error("tools: {reason}")]
    Tool {
        /// What is wrong with them.
        reason: String,
    },
}

/// A result whose error is this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
