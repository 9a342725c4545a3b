//! Compiling grammars, for one model's vocabulary and within the memory that is granted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory, TokenParser};

use crate::compiled::Key;
use crate::error::{compiler_error, one_line, refusal};
use crate::follower::Follower;
use crate::marker::Marker;
use crate::memory::{Allowance, Holding, Memory};
use crate::schema::limits;
use crate::state::{GrammarState, Start};
use crate::vocabulary::{Token, Vocabulary};
use crate::worker::{Standing, Workers};
use crate::{Before, Constraint, Grammar, GrammarError, lark};

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

/// Compiles grammars for one model. Clones share everything.
#[derive(Clone)]
pub struct Grammars {
    pub(crate) shared: Arc<SharedCompiler>,
}

pub(crate) struct SharedCompiler {
    factory: ParserFactory,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) workers: Workers,
    markers: Mutex<BTreeMap<String, Arc<Marker>>>,
}

impl Grammars {
    /// For a model with these tokens, one for each of its logits, of which `ends` end an answer. What grammars hold is
    /// granted by `allowance`.
    pub fn new(
        tokens: &[Token],
        ends: &BTreeSet<u32>,
        allowance: Arc<dyn Allowance>,
    ) -> Result<Grammars, GrammarError> {
        let vocabulary = Arc::new(Vocabulary::new(tokens, ends)?);
        // Nothing is forced upon the model but by the mask.
        let capabilities = InferenceCapabilities::default();
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(vocabulary.environment(), capabilities, &slices)
            .map_err(|error| GrammarError::Vocabulary { reason: one_line(&error.to_string()) })?;
        factory.quiet();
        let memory = Arc::new(Memory::new(allowance));
        *factory.limits_mut() = parser_limits(memory.step_bytes());
        let workers = Workers::new(Arc::clone(&memory));
        let shared =
            SharedCompiler { factory, vocabulary, memory, workers, markers: Mutex::default() };
        Ok(Grammars { shared: Arc::new(shared) })
    }

    /// Compiles a grammar: some milliseconds, for the worst that is allowed some hundreds. The last few are kept,
    /// for clients that send the same one repeatedly.
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

    /// Whether a grammar is refused only as long as others hold so much.
    pub fn is_for_now(&self, error: &GrammarError) -> bool {
        let most = self.shared.memory.most_bytes();
        matches!(error, GrammarError::NoMemory { bytes } if *bytes <= most)
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
            let give_way = memory.kept().keep(key, Arc::new(copy), memory.most_bytes());
            drop(give_way);
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
            let state = GrammarState::new(vocabulary, Follower::new(parser), start, opener);
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

/// Checks a grammar and writes it as the library reads it.
fn prepare(grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match grammar {
        Grammar::JsonObject => {
            let any = serde_json::json!({ "type": "object" });
            TopLevelGrammar::from_json_schema(limits::prepare(&any)?)
        }
        Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(limits::prepare(schema)?),
        Grammar::Regex(regex) => {
            limits::check_regex(regex)?;
            TopLevelGrammar::from_regex(regex)
        }
        Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark::prepare(lark)?),
    })
}

/// The library's units: it lexes some 14 units of step fuel and parses some 20 items a microsecond, so a mask
/// takes 20 ms at worst, and builds 50 units of initial fuel a microsecond. A lexer state takes 1 to 2 KB.
fn parser_limits(step_bytes: usize) -> ParserLimits {
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
