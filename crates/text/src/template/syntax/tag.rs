//! The statements of `{% … %}`: where their expressions are, and which of them open a block.

use super::expression::Parser;

/// What a tag does to the nesting of blocks that may run often or be kept as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nesting {
    Opens,
    Closes,
    Same,
}

impl Parser<'_> {
    pub(super) fn tag(&mut self) -> Option<Nesting> {
        let word = self.word_at(self.at)?;
        self.at += 1;
        match word {
            "for" => {
                while !self.is_word("in") {
                    self.tokens.get(self.at)?;
                    self.at += 1;
                }
                self.at += 1;
                self.either()?;
                if self.take_word("if") {
                    self.expression()?;
                }
                self.take_word("recursive");
                return Some(Nesting::Opens);
            }
            "if" | "elif" | "do" | "autoescape" => {
                self.expression()?;
            }
            "set" => return self.set(),
            "with" => {
                while self.at < self.tokens.len() {
                    while !self.is_assignment(self.at) {
                        self.tokens.get(self.at)?;
                        self.at += 1;
                    }
                    self.at += 1;
                    self.expression()?;
                    self.take_sign(',');
                }
            }
            "macro" => {
                self.word_at(self.at)?;
                self.at += 1;
                self.parameters()?;
                return Some(Nesting::Opens);
            }
            "call" => {
                if self.is_bracket(self.at, b'(') {
                    self.parameters()?;
                }
                self.expression()?;
                return Some(Nesting::Opens);
            }
            "filter" => {
                self.filter_name()?;
                self.filters()?;
                return Some(Nesting::Opens);
            }
            "generation" | "endgeneration" => {
                let with = if word == "generation" { "with" } else { "endwith" };
                self.replace(self.at - 1, with);
            }
            "block" => {
                self.at = self.tokens.len();
                return Some(Nesting::Opens);
            }
            "endfor" | "endmacro" | "endcall" | "endfilter" | "endset" | "endblock" => {
                self.at = self.tokens.len();
                return Some(Nesting::Closes);
            }
            // There is no other template to fetch, and what the engine does not know it refuses.
            "include" | "import" | "from" | "extends" => return None,
            _ => self.at = self.tokens.len(),
        }
        Some(Nesting::Same)
    }

    fn set(&mut self) -> Option<Nesting> {
        let mut dotted = false;
        while self.at < self.tokens.len()
            && !self.is_assignment(self.at)
            && !self.is_sign(self.at, '|')
        {
            dotted |= self.is_sign(self.at, '.');
            self.at += 1;
        }
        if self.take_sign('=') {
            let first = self.at;
            let value = self.expression()?;
            if self.is_sign(self.at, ',') {
                while self.take_sign(',') {
                    if self.at < self.tokens.len() {
                        self.expression()?;
                    }
                }
                self.open_before(first, "metered_tuple(");
                self.close_after(self.at - 1, ")");
            } else if dotted && !value.literal {
                self.filter(value, "|metered_held");
            }
            return Some(Nesting::Same);
        }
        if self.take_sign('|') {
            self.filter_name()?;
            self.filters()?;
        }
        Some(Nesting::Opens)
    }

    /// Parameters of a macro with their defaults.
    fn parameters(&mut self) -> Option<()> {
        self.take_bracket(b'(').then_some(())?;
        while !self.take_bracket(b')') {
            self.word_at(self.at)?;
            self.at += 1;
            if self.is_assignment(self.at) {
                self.at += 1;
                self.expression()?;
            }
            if !self.take_sign(',') && !self.is_bracket(self.at, b')') {
                return None;
            }
        }
        Some(())
    }
}
