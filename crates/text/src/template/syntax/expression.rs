//! Finds the operators and literals of one block that can make much of little, and gives the edits that put
//! metered ones in their place.
//!
//! The grammar is the engine's own, with its precedence; nothing is evaluated and no line moves. A block that
//! is not understood gives no edits: such a template is refused, so that nothing runs unmetered.
//!
//! - `a ~ b`, `a + b`, `a * b` become `a|metered_concat(b)`, `a|metered_add(b)`, `a|metered_mul(b)`.
//! - `[a, b]`, `(a, b)`, `{a: b}` become `metered_list(a, b)`, `metered_tuple(a, b)`, `metered_dict(a, b)`,
//!   unless all they hold is literal.
//! - `a[b:c:d]` becomes `a.python_slice(b,c,d)`: the engine's slices are lazy, and panic on an empty list.
//! - `'literal' % a` becomes `'literal' |percent_format( a)`: the engine's `%` is for numbers.
//! - Operands of comparisons, keys and `*arguments` pass through filters that look at their size.

use super::tag::Nesting;
use super::{Block, Kind};

/// Deeper blocks are refused: the engine's parser stops at 150.
const DEPTH_LIMIT: usize = 150;

/// Names that only rewritten source may call.
const RESERVED: [&str; 3] = ["metered_list", "metered_tuple", "metered_dict"];

/// A span of a block's text and what stands there instead.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) text: String,
    /// Among edits at one place: what ends there, what begins there, what replaces it.
    rank: (u8, isize),
}

/// The edits of one block, in their order, and what it does to the nesting; `None` if it is not understood.
pub(super) fn edits(block: &Block, text: &str, closing: &str) -> Option<(Vec<Edit>, Nesting)> {
    let mut tokens: &[super::Token] = &block.tokens;
    // White space control before the closing is no operator.
    if let [rest @ .., last] = tokens
        && matches!(last.kind, Kind::Sign('-' | '+'))
        && last.end + closing.len() == block.end
    {
        tokens = rest;
    }
    let mut parser = Parser { text, tokens, at: 0, depth: 0, edits: Vec::new() };
    if (0..tokens.len()).any(|at| parser.word_at(at).is_some_and(|word| RESERVED.contains(&word))) {
        return None;
    }
    let nesting = if closing == "%}" {
        parser.tag()?
    } else {
        parser.expression()?;
        Nesting::Same
    };
    if parser.at != tokens.len() {
        return None;
    }
    parser.edits.sort_by_key(|edit| (edit.start, edit.rank));
    Some((parser.edits, nesting))
}

/// A parsed part of an expression, by its first and last token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operand {
    first: usize,
    last: usize,
    /// A filter after it applies to all of it.
    tight: bool,
    /// Its value is written in the source.
    pub(super) literal: bool,
}

pub(super) struct Parser<'a> {
    text: &'a str,
    pub(super) tokens: &'a [super::Token],
    pub(super) at: usize,
    depth: usize,
    edits: Vec<Edit>,
}

impl<'a> Parser<'a> {
    pub(super) fn word_at(&self, at: usize) -> Option<&'a str> {
        let token = self.tokens.get(at).filter(|token| token.kind == Kind::Word)?;
        Some(&self.text[token.start..token.end])
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        self.word_at(self.at) == Some(word)
    }

    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let taken = self.is_word(word);
        self.at += usize::from(taken);
        taken
    }

    pub(super) fn is_sign(&self, at: usize, sign: char) -> bool {
        self.tokens.get(at).is_some_and(|token| token.kind == Kind::Sign(sign))
    }

    /// Two signs without a gap, such as `**`.
    fn is_pair(&self, at: usize, first: char, second: char) -> bool {
        self.is_sign(at, first)
            && self.is_sign(at + 1, second)
            && self.tokens[at].end == self.tokens[at + 1].start
    }

    pub(super) fn take_sign(&mut self, sign: char) -> bool {
        let taken = self.is_sign(self.at, sign);
        self.at += usize::from(taken);
        taken
    }

    /// `=`, but not `==`.
    pub(super) fn is_assignment(&self, at: usize) -> bool {
        self.is_sign(at, '=') && !self.is_pair(at, '=', '=')
    }

    pub(super) fn is_bracket(&self, at: usize, bracket: u8) -> bool {
        self.tokens.get(at).is_some_and(|token| {
            matches!(token.kind, Kind::Open | Kind::Close) && token.first_byte == bracket
        })
    }

    pub(super) fn take_bracket(&mut self, bracket: u8) -> bool {
        let taken = self.is_bracket(self.at, bracket);
        self.at += usize::from(taken);
        taken
    }

    pub(super) fn replace(&mut self, token: usize, text: impl Into<String>) {
        self.replace_span(self.tokens[token].start, self.tokens[token].end, text.into());
    }

    fn replace_span(&mut self, start: usize, end: usize, text: String) {
        self.edits.push(Edit { start, end, text, rank: (2, 0) });
    }

    pub(super) fn open_before(&mut self, token: usize, text: &str) {
        let (at, order) = (self.tokens[token].start, -(self.edits.len() as isize));
        self.edits.push(Edit { start: at, end: at, text: text.to_owned(), rank: (1, order) });
    }

    pub(super) fn close_after(&mut self, token: usize, text: &str) {
        let (at, order) = (self.tokens[token].end, self.edits.len() as isize);
        self.edits.push(Edit { start: at, end: at, text: text.to_owned(), rank: (0, order) });
    }

    /// Makes a filter that comes next apply to all of an operand.
    fn tighten(&mut self, operand: Operand) {
        if !operand.tight {
            self.open_before(operand.first, "(");
            self.close_after(operand.last, ")");
        }
    }

    /// Passes an operand through a filter.
    pub(super) fn filter(&mut self, operand: Operand, filter: &str) {
        self.tighten(operand);
        self.close_after(operand.last, filter);
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == DEPTH_LIMIT {
            return None;
        }
        self.depth += 1;
        let parsed = parse(self)?;
        self.depth -= 1;
        Some(parsed)
    }

    // From the loosest operator to the tightest.

    pub(super) fn expression(&mut self) -> Option<Operand> {
        self.deeper(Self::conditional)
    }

    fn conditional(&mut self) -> Option<Operand> {
        let mut operand = self.either()?;
        while self.take_word("if") {
            let mut last = self.either()?;
            if self.take_word("else") {
                last = self.expression()?;
            }
            operand = Operand { last: last.last, tight: false, literal: false, ..operand };
        }
        Some(operand)
    }

    pub(super) fn either(&mut self) -> Option<Operand> {
        let mut operand = self.both()?;
        while self.take_word("or") {
            let last = self.both()?.last;
            operand = Operand { last, tight: false, literal: false, ..operand };
        }
        Some(operand)
    }

    fn both(&mut self) -> Option<Operand> {
        let mut operand = self.negation()?;
        while self.take_word("and") {
            let last = self.negation()?.last;
            operand = Operand { last, tight: false, literal: false, ..operand };
        }
        Some(operand)
    }

    fn negation(&mut self) -> Option<Operand> {
        let first = self.at;
        while self.take_word("not") {}
        let operand = self.comparison()?;
        if self.at > first && operand.first > first {
            return Some(Operand { first, last: operand.last, tight: false, literal: false });
        }
        Some(operand)
    }

    fn comparison(&mut self) -> Option<Operand> {
        let first = self.sum()?;
        let mut left = (first, false);
        let mut compared = false;
        loop {
            let containment = if self.take_word("in") {
                true
            } else if self.is_word("not") && self.word_at(self.at + 1) == Some("in") {
                self.at += 2;
                true
            } else if self.is_pair(self.at, '=', '=')
                || self.is_pair(self.at, '!', '=')
                || self.is_pair(self.at, '<', '=')
                || self.is_pair(self.at, '>', '=')
            {
                self.at += 2;
                false
            } else if self.take_sign('<') || self.take_sign('>') {
                false
            } else {
                break;
            };
            let mut right = (self.sum()?, false);
            compared = true;
            if containment {
                left.1 |= !left.0.literal;
                right.1 = !right.0.literal;
            } else {
                right.1 = !left.0.literal && !right.0.literal;
            }
            if left.1 {
                self.filter(left.0, "|metered_compared");
            }
            left = right;
        }
        if left.1 {
            self.filter(left.0, "|metered_compared");
        }
        if !compared {
            return Some(first);
        }
        Some(Operand { first: first.first, last: left.0.last, tight: false, literal: false })
    }

    /// An operator becomes a filter with the right side as its argument.
    fn metered(
        &mut self,
        left: Operand,
        name: &str,
        right: impl FnOnce(&mut Self) -> Option<Operand>,
    ) -> Option<Operand> {
        self.tighten(left);
        self.replace(self.at, format!("|{name}("));
        self.at += 1;
        let last = right(self)?.last;
        self.close_after(last, ")");
        Some(Operand { first: left.first, last, tight: true, literal: false })
    }

    fn sum(&mut self) -> Option<Operand> {
        let mut left = self.concatenation()?;
        loop {
            if self.is_sign(self.at, '+') {
                left = self.metered(left, "metered_add", Self::concatenation)?;
            } else if self.take_sign('-') {
                let last = self.concatenation()?.last;
                left = Operand { last, tight: false, literal: false, ..left };
            } else {
                return Some(left);
            }
        }
    }

    fn concatenation(&mut self) -> Option<Operand> {
        let mut left = self.product()?;
        while self.is_sign(self.at, '~') {
            left = self.metered(left, "metered_concat", Self::product)?;
        }
        Some(left)
    }

    fn product(&mut self) -> Option<Operand> {
        let mut left = self.power()?;
        loop {
            if self.is_sign(self.at, '*') {
                left = self.metered(left, "metered_mul", Self::power)?;
            } else if self.is_sign(self.at, '%')
                && self.at > 0
                && self.tokens[self.at - 1].kind == Kind::Text
            {
                left = self.metered(left, "percent_format", Self::power)?;
            } else if self.is_sign(self.at, '%') || self.is_sign(self.at, '/') {
                self.at += if self.is_pair(self.at, '/', '/') { 2 } else { 1 };
                let last = self.power()?.last;
                left = Operand { last, tight: false, literal: false, ..left };
            } else {
                return Some(left);
            }
        }
    }

    fn power(&mut self) -> Option<Operand> {
        let mut left = self.unary()?;
        while self.is_pair(self.at, '*', '*') {
            self.at += 2;
            let last = self.unary()?.last;
            left = Operand { last, tight: false, literal: false, ..left };
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<Operand> {
        let mut operand = self.unfiltered()?;
        if self.filters()? {
            operand = Operand { last: self.at - 1, literal: false, ..operand };
        }
        Some(operand)
    }

    fn unfiltered(&mut self) -> Option<Operand> {
        let first = self.at;
        while self.take_sign('-') {}
        let mut operand = self.primary()?;
        if self.postfix()? {
            operand = Operand { last: self.at - 1, tight: true, literal: false, ..operand };
        }
        Some(Operand { first, ..operand })
    }

    fn primary(&mut self) -> Option<Operand> {
        let first = self.at;
        let token = *self.tokens.get(first)?;
        let literal = match token.kind {
            Kind::Text => {
                while self.tokens.get(self.at).is_some_and(|token| token.kind == Kind::Text) {
                    self.at += 1;
                }
                true
            }
            Kind::Word => {
                self.at += 1;
                let word = &self.text[token.start..token.end];
                let constant = ["true", "True", "false", "False", "none", "None"].contains(&word);
                // `1.5` is three tokens.
                if token.first_byte.is_ascii_digit()
                    && self.is_sign(self.at, '.')
                    && self.tokens.get(self.at + 1).is_some_and(|t| t.first_byte.is_ascii_digit())
                {
                    self.at += 2;
                }
                constant || token.first_byte.is_ascii_digit()
            }
            Kind::Open => {
                self.at += 1;
                match token.first_byte {
                    b'(' => self.deeper(|parser| parser.grouping(first))?,
                    b'[' => self.deeper(|parser| parser.items(first, b']', "metered_list("))?,
                    _ => self.deeper(|parser| parser.pairs(first))?,
                }
            }
            Kind::Close | Kind::Sign(_) => return None,
        };
        Some(Operand { first, last: self.at - 1, tight: true, literal })
    }

    /// What is in parentheses: one expression, or a tuple.
    fn grouping(&mut self, open: usize) -> Option<bool> {
        if self.take_bracket(b')') {
            return Some(true);
        }
        let mut literal = self.expression()?.literal;
        if self.take_bracket(b')') {
            return Some(literal);
        }
        while self.take_sign(',') {
            if !self.is_bracket(self.at, b')') {
                literal &= self.expression()?.literal;
            }
        }
        self.take_bracket(b')').then_some(())?;
        if !literal {
            self.replace(open, "metered_tuple(");
        }
        Some(literal)
    }

    fn items(&mut self, open: usize, close: u8, name: &str) -> Option<bool> {
        let mut literal = true;
        while !self.is_bracket(self.at, close) {
            literal &= self.expression()?.literal;
            if !self.take_sign(',') && !self.is_bracket(self.at, close) {
                return None;
            }
        }
        if !literal {
            self.replace(open, name);
            self.replace(self.at, ")");
        }
        self.at += 1;
        Some(literal)
    }

    fn pairs(&mut self, open: usize) -> Option<bool> {
        let (mut literal, mut colons) = (true, Vec::new());
        while !self.is_bracket(self.at, b'}') {
            literal &= self.expression()?.literal;
            colons.push(self.at);
            self.take_sign(':').then_some(())?;
            literal &= self.expression()?.literal;
            if !self.take_sign(',') && !self.is_bracket(self.at, b'}') {
                return None;
            }
        }
        if !literal {
            self.replace(open, "metered_dict(");
            for colon in colons {
                self.replace(colon, ",");
            }
            self.replace(self.at, ")");
        }
        self.at += 1;
        Some(literal)
    }

    /// Attributes, items, slices and calls; whether there were any.
    fn postfix(&mut self) -> Option<bool> {
        let before = self.at;
        loop {
            if self.is_sign(self.at, '.') {
                self.word_at(self.at + 1)?;
                self.at += 2;
            } else if self.is_bracket(self.at, b'[') {
                self.deeper(Self::subscript)?;
            } else if self.is_bracket(self.at, b'(') {
                self.deeper(Self::arguments)?;
            } else {
                return Some(self.at > before);
            }
        }
    }

    fn subscript(&mut self) -> Option<()> {
        let open = self.at;
        self.at += 1;
        let mut key = None;
        if !self.is_sign(self.at, ':') {
            key = Some(self.expression()?);
        }
        if self.take_bracket(b']') {
            let key = key?;
            if !key.literal {
                self.filter(key, "|metered_key");
            }
            return Some(());
        }
        let none = if key.is_none() { "none" } else { "" };
        self.replace(open, format!(".python_slice({none}"));
        for _ in 0..2 {
            let colon = self.at;
            if !self.take_sign(':') {
                break;
            }
            let absent = self.is_sign(self.at, ':') || self.is_bracket(self.at, b']');
            if !absent {
                self.expression()?;
            }
            self.replace(colon, if absent { ",none" } else { "," });
        }
        let close = self.at;
        self.take_bracket(b']').then_some(())?;
        self.replace(close, ")");
        Some(())
    }

    fn arguments(&mut self) -> Option<()> {
        self.at += 1;
        while !self.take_bracket(b')') {
            let spread = self.is_sign(self.at, '*');
            if spread {
                self.at += if self.is_pair(self.at, '*', '*') { 2 } else { 1 };
            } else if self.word_at(self.at).is_some() && self.is_assignment(self.at + 1) {
                self.at += 2;
            }
            let argument = self.expression()?;
            if spread {
                self.filter(argument, "|metered_spread");
            }
            if !self.take_sign(',') && !self.is_bracket(self.at, b')') {
                return None;
            }
        }
        Some(())
    }

    pub(super) fn filter_name(&mut self) -> Option<()> {
        self.word_at(self.at)?;
        self.at += 1;
        while self.is_sign(self.at, '.') && self.word_at(self.at + 1).is_some() {
            self.at += 2;
        }
        if self.is_bracket(self.at, b'(') {
            self.deeper(Self::arguments)?;
        }
        Some(())
    }

    /// Filters and tests; whether there were any.
    pub(super) fn filters(&mut self) -> Option<bool> {
        let before = self.at;
        loop {
            if self.take_sign('|') {
                self.filter_name()?;
            } else if self.take_word("is") {
                self.take_word("not");
                let called = self.at;
                self.filter_name()?;
                let has_arguments = self.is_bracket(self.at - 1, b')') && self.at > called + 1;
                let argument = self.tokens.get(self.at).is_some_and(|token| match token.kind {
                    Kind::Text => true,
                    Kind::Word => {
                        !["and", "or", "else", "is"].contains(&&self.text[token.start..token.end])
                    }
                    Kind::Sign(sign) => matches!(sign, '+' | '-'),
                    Kind::Open => token.first_byte != b'(',
                    Kind::Close => false,
                });
                if !has_arguments && argument {
                    self.deeper(Self::unfiltered)?;
                }
            } else {
                return Some(self.at > before);
            }
        }
    }
}
