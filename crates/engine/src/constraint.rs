//! Answers that follow a grammar: JSON, a JSON schema, a regular expression, or Lark.
//!
//! [`Grammars`] compiles a grammar for one model's vocabulary, through `llguidance`. A [`Constraint`] is one
//! answer under it: before each token its [`Mask`] says which tokens may come, and each token that came is
//! accepted. The next mask is computed by a worker thread while the model computes the next logits. A grammar may
//! also wait for a token that the model is free to write or not ([`Grammars::compile_from`]).
//!
//! It does not sample, and knows nothing of HTTP or of tool formats.
//!
//! Invariant: a mask is a function of the grammar and the accepted tokens alone. What a grammar costs is bounded in
//! time, and its memory is granted by an [`Allowance`] before it is taken; what goes wrong fails its own request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory, TokenParser};
use serde_json::Value;
use text::Tokenizer;

use compiled::Key;
use follower::Follower;
use marker::Marker;
use memory::{Holding, Memory};
use state::{Start, State};
use vocabulary::Vocabulary;
use worker::{Settled, Slot, Standing, Workers};

mod compiled;
mod follower;
mod intersections;
mod lark;
mod marker;
mod mask;
mod memory;
mod schema;
mod state;
mod vocabulary;
mod worker;

pub use mask::Mask;
pub use memory::{Allowance, Unlimited};

/// The longest JSON schema and the longest Lark grammar.
const LONGEST_GRAMMAR_BYTES: usize = 256 << 10;
/// The longest regular expression.
const LONGEST_REGEX_BYTES: usize = 16 << 10;
/// The library's compiler is recursive, and `schema` and `lark` bound its depth by this. Only what is used
/// of it becomes memory.
const COMPILER_STACK_BYTES: usize = 128 << 20;
/// A grammar is compiled with little fuel, and with so many times more where that is not enough, up to the most.
const LEAST_COMPILER_FUEL: usize = 20_000;
const MORE_COMPILER_FUEL: usize = 4;
const MOST_COMPILER_FUEL: usize = 1_280_000;
/// What the library takes for a unit of fuel at most.
const FUEL_BYTES: usize = 100;
/// The least fuel for each symbol of a grammar.
const FUEL_OF_SYMBOL: usize = 4;
/// Fuel for a step of the lexer, if there is memory for it, and in any case.
const MOST_STEP_FUEL: usize = 200_000;
const LEAST_STEP_FUEL: usize = 20_000;
/// Markers that are kept ready.
const MARKERS: usize = 16;
/// The longest reason that is handed on.
const LONGEST_REASON_CHARACTERS: usize = 300;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that satisfies a schema.
    JsonSchema(Value),
    /// The whole answer matches, in the syntax of the `regex` crate.
    Regex(String),
    /// Lark, in `llguidance`'s dialect; its `%json` blocks are treated as [`Grammar::JsonSchema`].
    Lark(String),
}

/// What may stand before the grammar begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before<'a> {
    /// Nothing: it begins with the first token.
    Nothing,
    /// Thinking, which the prompt has opened: everything up to and including `close` is free, and up to two newline
    /// tokens may follow it.
    Thinking {
        /// Such as `</think>`.
        close: &'a str,
    },
    /// The same if the answer opens it, with exactly these tokens; else the grammar begins at once. Where the grammar
    /// itself may begin with the first of them, it does.
    MaybeThinking {
        /// Such as those of `<think>`.
        open: &'a [u32],
        /// Such as `</think>`.
        close: &'a str,
    },
}

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

/// Why an answer cannot go on.
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

/// Compiles grammars for one model. Clones share everything.
#[derive(Clone)]
pub struct Grammars {
    shared: Arc<Shared>,
}

struct Shared {
    factory: ParserFactory,
    vocabulary: Arc<Vocabulary>,
    memory: Arc<Memory>,
    workers: Workers,
    markers: Mutex<BTreeMap<String, Arc<Marker>>>,
}

impl Grammars {
    /// For a model with these tokens, of which `ends` end an answer, and `vocabulary` logits: as many as the
    /// tokenizer has tokens, or more. What grammars hold is granted by `allowance`.
    pub fn new(
        tokenizer: &Tokenizer,
        ends: &BTreeSet<u32>,
        vocabulary: usize,
        allowance: Arc<dyn Allowance>,
    ) -> Result<Grammars, GrammarError> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, ends, vocabulary)?);
        // Nothing is forced upon the model but by the mask.
        let capabilities = InferenceCapabilities::default();
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(vocabulary.environment(), capabilities, &slices)
            .map_err(|error| GrammarError::Vocabulary { reason: one_line(&error.to_string()) })?;
        factory.quiet();
        let memory = Arc::new(Memory::new(allowance));
        *factory.limits_mut() = limits(memory.step_bytes());
        let workers = Workers::new(Arc::clone(&memory));
        let shared = Shared { factory, vocabulary, memory, workers, markers: Mutex::default() };
        Ok(Grammars { shared: Arc::new(shared) })
    }

    /// Compiles a grammar: some milliseconds, for the worst that is allowed some hundreds. The last few are kept,
    /// for clients that ask for the same again and again.
    pub fn compile(
        &self,
        grammar: &Grammar,
        before: Before<'_>,
    ) -> Result<Constraint, GrammarError> {
        self.compiled(grammar, before, None)
    }

    /// Compiles a grammar that begins with the token `opener`, for an answer that is free until that token comes
    /// outside of thinking, and may end without it. Where such a grammar cannot be followed, the answer is free again.
    pub fn compile_from(
        &self,
        opener: u32,
        grammar: &Grammar,
        before: Before<'_>,
    ) -> Result<Constraint, GrammarError> {
        self.compiled(grammar, before, Some(opener))
    }

    fn compiled(
        &self,
        grammar: &Grammar,
        before: Before<'_>,
        opener: Option<u32>,
    ) -> Result<Constraint, GrammarError> {
        let memory = &self.shared.memory;
        let key = Key::of(grammar, before, opener);
        let kept = memory.kept().get(&key);
        if let Some(standing) = kept {
            return Ok(Constraint::new(&self.shared, standing.fork(memory).map_err(refusal)?));
        }
        let standing = self.compile_anew(grammar, before, opener)?;
        if key.is_short()
            && let Ok(copy) = standing.fork(memory)
        {
            let gives_way = memory.kept().keep(key, Arc::new(copy));
            drop(gives_way);
        }
        Ok(Constraint::new(&self.shared, standing))
    }

    fn compile_anew(
        &self,
        grammar: &Grammar,
        before: Before<'_>,
        opener: Option<u32>,
    ) -> Result<Standing, GrammarError> {
        let start = match before {
            Before::Nothing => Start::Inside,
            Before::Thinking { close } => Start::Free(self.marker(close)?),
            Before::MaybeThinking { open, close } => Start::Maybe(open.into(), self.marker(close)?),
        };
        let memory = &self.shared.memory;
        let vocabulary = Arc::clone(&self.shared.vocabulary);
        let build = || {
            let (parser, mut holding) = self.parser(grammar)?;
            let state = State::new(vocabulary, Follower::new(parser), start, opener);
            let state = state.map_err(refusal)?;
            memory.resize(&mut holding, state.bytes()).map_err(refusal)?;
            Standing::new(state, holding).map_err(refusal)
        };
        let broken = |reason: String| GrammarError::TooComplex { reason };
        thread::scope(|scope| {
            let builder = thread::Builder::new().stack_size(COMPILER_STACK_BYTES);
            let thread = builder.name("grammar".to_owned()).spawn_scoped(scope, build);
            let thread = thread.map_err(|error| broken(error.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(broken("its compiler broke down".to_owned())))
        })
    }

    /// A parser that has seen nothing, and the memory that its compiler could have taken.
    fn parser(&self, grammar: &Grammar) -> Result<(TokenParser, Holding), GrammarError> {
        let mut fuel = LEAST_COMPILER_FUEL;
        loop {
            let holding = self.shared.memory.hold(fuel * FUEL_BYTES).map_err(refusal)?;
            match self.parser_within(fuel, grammar) {
                Err(GrammarError::TooComplex { .. }) if fuel < MOST_COMPILER_FUEL => {
                    fuel *= MORE_COMPILER_FUEL;
                }
                parser => return Ok((parser?, holding)),
            }
        }
    }

    fn parser_within(&self, fuel: usize, grammar: &Grammar) -> Result<TokenParser, GrammarError> {
        let factory = &self.shared.factory;
        let init = GrammarInit::Serialized(prepare(grammar)?);
        let mut limits = factory.limits().clone();
        limits.initial_lexer_fuel = fuel as u64;
        limits.max_grammar_size = limits.max_grammar_size.min(fuel / FUEL_OF_SYMBOL);
        let capabilities = InferenceCapabilities::default();
        let parser =
            factory.create_parser_from_init_ext(init, Logger::new(0, 0), capabilities, limits);
        parser.map_err(|error| compiler_error(&format!("{error:#}")))
    }

    fn marker(&self, text: &str) -> Result<Arc<Marker>, GrammarError> {
        let markers = || self.shared.markers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(marker) = markers().get(text) {
            return Ok(Arc::clone(marker));
        }
        let marker = Arc::new(Marker::new(text, &self.shared.vocabulary)?);
        let mut markers = markers();
        if markers.len() < MARKERS {
            markers.insert(text.to_owned(), Arc::clone(&marker));
        }
        Ok(marker)
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vocabulary = self.shared.vocabulary.len();
        formatter.debug_struct("Grammars").field("vocabulary", &vocabulary).finish_non_exhaustive()
    }
}

/// One answer under a grammar.
pub struct Constraint {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    mask: Option<Arc<Mask>>,
}

impl Constraint {
    fn new(shared: &Arc<Shared>, standing: Standing) -> Constraint {
        Constraint::of(shared, Slot::new(standing))
    }

    fn of(shared: &Arc<Shared>, slot: Slot) -> Constraint {
        Constraint { shared: Arc::clone(shared), slot: Arc::new(slot), mask: None }
    }

    /// Another answer that goes on from here on its own: compile once, fork for every choice.
    pub fn fork(&self) -> Result<Constraint, ConstraintError> {
        let standing = self.shared.workers.fork(&self.slot)?;
        Ok(Constraint::new(&self.shared, standing))
    }

    /// Which tokens may come next, `None` if all may; waits for the worker if it is not done. End tokens are among them
    /// exactly if the answer may end here. After an error there is never a mask again.
    pub fn mask(&mut self) -> Result<Option<&Mask>, ConstraintError> {
        self.mask = self.settled()?.mask;
        Ok(self.mask.as_deref())
    }

    /// Notes the token that came, and has the next mask computed meanwhile. What is wrong with the token is
    /// told by the next [`Constraint::mask`].
    pub fn accept(&mut self, token: u32) {
        if self.slot.accept(token) {
            self.shared.workers.send(&self.slot);
        }
    }

    /// Whether nothing can follow but the end; waits like [`Constraint::mask`].
    pub fn is_complete(&self) -> Result<bool, ConstraintError> {
        Ok(self.settled()?.is_complete)
    }

    fn settled(&self) -> Result<Settled, ConstraintError> {
        self.shared.workers.settled(&self.slot)
    }
}

impl Clone for Constraint {
    /// The same as [`Constraint::fork`]; where that fails, the copy says so when a mask is wanted.
    fn clone(&self) -> Constraint {
        let over = |error| Constraint::of(&self.shared, Slot::over(error));
        self.fork().unwrap_or_else(over)
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Constraint").field("mask", &self.mask).finish_non_exhaustive()
    }
}

/// Checks a grammar and writes it as the library reads it.
fn prepare(grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match grammar {
        Grammar::JsonObject => {
            let any = serde_json::json!({ "type": "object" });
            TopLevelGrammar::from_json_schema(schema::prepare(&any)?)
        }
        Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema::prepare(schema)?),
        Grammar::Regex(regex) => {
            schema::check_regex(regex)?;
            TopLevelGrammar::from_regex(regex)
        }
        Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark::prepare(lark)?),
    })
}

/// The library's units: it lexes some 14 units of step fuel and parses some 20 items a microsecond, so a mask
/// takes 20 ms at worst, and builds 50 units of initial fuel a microsecond. A lexer state takes 1 to 2 KB.
fn limits(step_bytes: usize) -> ParserLimits {
    let step_fuel = (step_bytes / FUEL_BYTES).clamp(LEAST_STEP_FUEL, MOST_STEP_FUEL);
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: MOST_COMPILER_FUEL as u64,
        step_lexer_fuel: step_fuel as u64,
        step_max_items: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// What stands in the way of an answer's first step, said of its grammar.
fn refusal(error: ConstraintError) -> GrammarError {
    match error {
        ConstraintError::NoMemory { bytes } => GrammarError::NoMemory { bytes },
        ConstraintError::Failed { reason } => GrammarError::TooComplex { reason },
        _ => schema::invalid("nothing that the model can write satisfies it"),
    }
}

/// Sorts what the library's compiler says.
fn compiler_error(message: &str) -> GrammarError {
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
        return unsupported("minProperties and maxProperties beside optional properties");
    }
    if says("circular references with sibling keys") {
        return unsupported("a circular $ref with keywords beside it");
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
fn one_line(message: &str) -> String {
    let first = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut line: String = first.chars().filter(|character| !character.is_control()).collect();
    if let Some((end, _)) = line.char_indices().nth(LONGEST_REASON_CHARACTERS - 1) {
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
#[path = "constraint_tests.rs"]
mod tests;
