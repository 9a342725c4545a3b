//! Why a grammar or an answer under it fails, and what the library's messages mean.

/// The longest reason that is handed on.
const LONGEST_REASON_CHARACTERS: usize = 300;

/// Why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A limit of ours.
    #[error("the grammar is too large: {got} {what}, at most {limit}")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A limit of the library: time or memory.
    #[error("the grammar is too complex: {reason}")]
    TooComplex {
        /// Which.
        reason: String,
    },
    /// It is right, but the library cannot follow it.
    #[error("the grammar uses what is not supported: {keyword}")]
    Unsupported {
        /// The keyword, or what is wrong with it.
        keyword: String,
    },
    /// It is wrong, or nothing satisfies it.
    #[error("the grammar is not valid: {reason}")]
    Invalid {
        /// Why.
        reason: String,
    },
    /// What is left of the memory for grammars is too little.
    #[error("the grammar needs {bytes} bytes of memory, more than there are for it now")]
    NoMemory {
        /// How many are needed at once.
        bytes: usize,
    },
    /// The model cannot be constrained at all.
    #[error("the model's vocabulary cannot be constrained: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
}

/// Why an answer cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The grammar wants bytes that no token has.
    #[error("no token of the vocabulary continues the grammar")]
    Stuck,
    /// A token was accepted that the mask forbade.
    #[error("token {token} does not continue the grammar")]
    Rejected {
        /// The token.
        token: u32,
    },
    /// The grammar is too complex here.
    #[error("the grammar cannot be followed: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// What is left of the memory for grammars is too little.
    #[error("the grammar needs {bytes} bytes of memory, more than there are for it now")]
    NoMemory {
        /// How many are needed at once.
        bytes: usize,
    },
}

/// What stands in the way of an answer's first step, said of its grammar.
pub(crate) fn refusal(error: ConstraintError) -> GrammarError {
    match error {
        ConstraintError::NoMemory { bytes } => GrammarError::NoMemory { bytes },
        ConstraintError::Failed { reason } => GrammarError::TooComplex { reason },
        _ => invalid("nothing that the model can write satisfies it"),
    }
}

/// Sorts what the library's compiler says.
pub(crate) fn compiler_error(message: &str) -> GrammarError {
    let after = |text: &str| message.split_once(text).map(|(_, rest)| rest.trim());
    let unsupported = |keyword: &str| GrammarError::Unsupported { keyword: one_line(keyword) };
    let says = |text: &str| message.contains(text);
    if let Some(keys) = after("Unimplemented keys:") {
        let keys = keys.split(']').next().unwrap_or_default();
        return unsupported(&keys.replace(['[', '"'], ""));
    }
    if let Some(format) = after("Unknown format:") {
        return unsupported(&format!("format {}", format.split(':').next().unwrap_or_default()));
    }
    if says("oneOf constraints are not supported") {
        return unsupported("oneOf");
    }
    if says("min/maxProperties only supported") {
        return unsupported("minProperties and maxProperties together with optional properties");
    }
    if says("circular references with sibling keys") {
        return unsupported("a circular $ref with sibling keywords");
    }
    if says("look-around") || says("backreferences are not supported") {
        return unsupported("look-around and backreferences in a regular expression");
    }
    if says("are not disjoint") || says("can't determine if patternProperty") {
        return unsupported("patternProperties that overlap");
    }
    let limits = [
        "too large",
        "too complex",
        "too many",
        "fuel",
        "limit",
        "exceed",
        "stack level",
        "Unable to determine if regex is empty",
    ];
    let reason = match after("regex parse error:").and_then(|_| after("error: ")) {
        Some(error) => one_line(&format!("in a regular expression: {error}")),
        None => one_line(message),
    };
    if limits.iter().any(|limit| message.contains(limit)) {
        GrammarError::TooComplex { reason }
    } else {
        GrammarError::Invalid { reason }
    }
}

/// What the library says, without the pictures and stacks it adds on further lines.
pub(crate) fn one_line(message: &str) -> String {
    let first = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut line: String = first.chars().filter(|character| !character.is_control()).collect();
    if let Some((end, _)) = line.char_indices().nth(LONGEST_REASON_CHARACTERS - 1) {
        line.truncate(end);
        line.push('…');
    }
    line
}

pub(crate) fn at_most(what: &'static str, got: usize, limit: usize) -> Result<(), GrammarError> {
    if got > limit { Err(GrammarError::TooLarge { what, got, limit }) } else { Ok(()) }
}

pub(crate) fn invalid(reason: &str) -> GrammarError {
    GrammarError::Invalid { reason: reason.to_owned() }
}
