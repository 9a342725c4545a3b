//! The library's parser behind a boundary: a panic is an error, and what has failed is freed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, TokenParser};

use crate::ConstraintError;
use crate::error::one_line;

/// What a parser takes whatever its grammar is.
const BASE_BYTES: usize = 16 << 10;
/// The library counts the contents of its tables, which have room for twice as many.
const TABLE_TIMES: usize = 2;
const EXPRESSION_BYTES: usize = 2 << 10;
const NODE_BYTES: usize = 100;
/// An item of a row of the parser, and what is kept of each byte of the answer, with the room that lists have left.
const ITEM_BYTES: usize = 16;
const ANSWER_BYTES: usize = 48;

pub(crate) struct Follower {
    /// None after a failure or [`Follower::end`].
    parser: Option<Box<TokenParser>>,
    cancellation: CancellationHandle,
}

impl Follower {
    /// A parser that has seen nothing.
    pub(crate) fn new(mut parser: TokenParser) -> Follower {
        parser.start_without_prompt();
        let cancellation = parser.enable_cancellation();
        Follower { parser: Some(Box::new(parser)), cancellation }
    }

    /// A copy that shares nothing that changes, the caches of the lexer included.
    pub(crate) fn fork(&self) -> Follower {
        let parser = self.parser.as_ref().map(|parser| Box::new(parser.deep_clone()));
        let own = parser.as_ref().and_then(|parser| parser.cancellation_handle());
        Follower { parser, cancellation: own.unwrap_or_default() }
    }

    /// Ends the work of this parser from outside.
    pub(crate) fn cancellation(&self) -> CancellationHandle {
        self.cancellation.clone()
    }

    /// Frees the parser.
    pub(crate) fn end(&mut self) {
        self.parser = None;
    }

    /// An estimate of what it holds, rather too much than too little.
    pub(crate) fn bytes(&self) -> usize {
        let Some(parser) = &self.parser else { return 0 };
        let lexer = parser.parser.lexer_stats();
        let stats = parser.parser.stats();
        BASE_BYTES
            + TABLE_TIMES * lexer.num_bytes
            + EXPRESSION_BYTES * lexer.num_regexps
            + NODE_BYTES * lexer.num_ast_nodes
            + ITEM_BYTES * stats.all_items
            + ANSWER_BYTES * stats.definitive_bytes
    }

    /// Whether nothing but an end token can come.
    pub(crate) fn is_stopped(&self) -> bool {
        self.parser.as_ref().is_some_and(|parser| parser.stopped())
    }

    /// Which tokens can come.
    pub(crate) fn mask(&mut self) -> Result<SimpleVob, ConstraintError> {
        self.guarded(|parser| match parser.stopped() {
            true => Ok(parser.token_env.tok_trie().eos_token_set()),
            false => parser.compute_mask(),
        })
    }

    /// Takes in a token.
    pub(crate) fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.guarded(|parser| {
            parser.consume_token(token)?;
            parser.check_stop().map(drop)
        })
    }

    /// After an error there is no parser any more: its state cannot be trusted.
    fn guarded<T, E: ToString>(
        &mut self,
        work: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, ConstraintError> {
        let Some(parser) = &mut self.parser else { return Err(failure("it has failed before")) };
        let result = catch_unwind(AssertUnwindSafe(|| work(parser).map_err(|e| e.to_string())));
        let result = result.unwrap_or_else(|_| Err("the library broke down".to_owned()));
        result.map_err(|message| {
            self.parser = None;
            failure(&message)
        })
    }
}

fn failure(message: &str) -> ConstraintError {
    if message.contains("NoExtension") {
        return ConstraintError::Stuck;
    }
    ConstraintError::Failed { reason: one_line(message) }
}
