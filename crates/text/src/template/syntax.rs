//! Rewrites of a template's source for what the engine's parser does not know.
//!
//! - `{% generation %}…{% endgeneration %}` (transformers' mask of the assistant's words) becomes
//!   `{% with %}…{% endwith %}`: the same text, the same trimming of white space, the same scope.
//! - `'literal' % operand` becomes `'literal' |percent_format( operand)`: the engine's `%` is for numbers.
//! - `x[a:b:c]` becomes `x.python_slice(a,b,c)`: the engine's slices with a step panic on an empty list.
//! - Line ends become `\n`, as in Jinja2.
//!
//! Comments, raw blocks and strings are left alone. Source that does not scan is passed on as it is:
//! the engine's parser reports what is wrong with it.

use crate::{Error, Result};

/// Tokens in one block, a string being one. The engine compiles `1+1+1…` in quadratic time; the longest
/// block of 80 published templates has 62.
const BLOCK_TOKEN_LIMIT: usize = 2_000;

/// The source with all rewrites applied.
pub(super) fn rewrite(source: &str) -> Result<String> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut output = String::with_capacity(source.len() + 64);
    let mut rest = source.as_str();
    while let Some(start) = rest.find('{') {
        output.push_str(&rest[..start]);
        rest = &rest[start..];
        let closing = match rest.as_bytes().get(1) {
            Some(b'#') => {
                let end = rest[2..].find("#}").map_or(rest.len(), |end| end + 4);
                output.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            _ => {
                output.push('{');
                rest = &rest[1..];
                continue;
            }
        };
        let Some(block) = Block::scan(rest, closing) else { break };
        if closing == "%}" && block.first_word(rest) == Some("raw") {
            let end = end_of_raw(rest).unwrap_or(rest.len());
            output.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        if block.tokens.len() > BLOCK_TOKEN_LIMIT {
            return Err(Error::TemplateLimit { limit: "tokens in one block" });
        }
        block.write(rest, closing, &mut output);
        rest = &rest[block.end..];
    }
    output.push_str(rest);
    Ok(output)
}

/// The end of the `{% endraw %}` tag that closes the raw block at the start of `rest`.
fn end_of_raw(rest: &str) -> Option<usize> {
    rest.match_indices("{%").find_map(|(start, _)| {
        let tag = rest[start + 2..].trim_start_matches(['-', '+']).trim_start();
        let tag = tag.strip_prefix("endraw")?.trim_start().trim_start_matches(['-', '+']);
        Some(rest.len() - tag.strip_prefix("%}")?.len())
    })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Word,
    Open,
    Close,
    Sign(char),
}

#[derive(Debug, Clone, Copy)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
    /// Tells brackets apart.
    first_byte: u8,
}

/// One `{% … %}` or `{{ … }}`: its tokens and where it ends, from its opening brace.
struct Block {
    tokens: Vec<Token>,
    /// Pairs of brackets, in the order they open.
    brackets: Vec<Bracket>,
    end: usize,
}

/// A pair of brackets, by the indices of their tokens, with the colons directly inside.
struct Bracket {
    open: usize,
    close: usize,
    colons: Vec<usize>,
}

impl Block {
    fn scan(text: &str, closing: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let mut tokens: Vec<Token> = Vec::new();
        let mut brackets = Vec::new();
        let mut unclosed: Vec<Bracket> = Vec::new();
        let mut at = 2;
        // A white space control right after the opening is no operator.
        if matches!(bytes.get(at), Some(b'-' | b'+')) {
            at += 1;
        }
        loop {
            let rest = &text[at..];
            let character = rest.chars().next()?;
            // Inside brackets `}}` closes two dicts, as in Jinja2's lexer.
            if unclosed.is_empty() && rest.starts_with(closing) {
                brackets.sort_by_key(|bracket: &Bracket| bracket.open);
                return Some(Self { tokens, brackets, end: at + 2 });
            }
            let (kind, length) = match character {
                '\'' | '"' => (Kind::Text, string_length(rest, character)?),
                '(' | '[' | '{' => (Kind::Open, 1),
                ')' | ']' | '}' => (Kind::Close, 1),
                _ if character.is_alphanumeric() || character == '_' => {
                    let word = |other: char| other.is_alphanumeric() || other == '_';
                    (Kind::Word, rest.find(|other| !word(other)).unwrap_or(rest.len()))
                }
                _ if character.is_whitespace() => {
                    at += character.len_utf8();
                    continue;
                }
                _ => (Kind::Sign(character), character.len_utf8()),
            };
            let index = tokens.len();
            match kind {
                Kind::Open => unclosed.push(Bracket { open: index, close: 0, colons: Vec::new() }),
                Kind::Close => {
                    brackets
                        .extend(unclosed.pop().map(|bracket| Bracket { close: index, ..bracket }));
                }
                Kind::Sign(':') => {
                    if let Some(bracket) = unclosed.last_mut() {
                        bracket.colons.push(index);
                    }
                }
                _ => {}
            }
            tokens.push(Token { kind, start: at, end: at + length, first_byte: bytes[at] });
            at += length;
        }
    }

    fn first_word<'source>(&self, text: &'source str) -> Option<&'source str> {
        let first = self.tokens.first().filter(|token| token.kind == Kind::Word)?;
        Some(&text[first.start..first.end])
    }

    /// Writes the block with its edits: a span of the text and what stands there instead.
    fn write(&self, text: &str, closing: &str, output: &mut String) {
        let mut edits: Vec<(usize, usize, String)> = Vec::new();
        if closing == "%}"
            && let Some(first) = self.tokens.first()
        {
            match self.first_word(text) {
                Some("generation") => edits.push((first.start, first.end, "with".to_owned())),
                Some("endgeneration") => edits.push((first.start, first.end, "endwith".to_owned())),
                _ => {}
            }
        }
        for index in 0..self.tokens.len() {
            self.edit_percent(index, &mut edits);
        }
        for bracket in &self.brackets {
            self.edit_slice(bracket, &mut edits);
        }
        edits.sort_by_key(|&(start, end, _)| (start, end));
        let mut written = 0;
        for (start, end, replacement) in edits {
            output.push_str(&text[written..start]);
            output.push_str(&replacement);
            written = end;
        }
        output.push_str(&text[written..self.end]);
    }

    /// A `%` after a string literal opens the call of a filter, which closes after the operand.
    fn edit_percent(&self, index: usize, edits: &mut Vec<(usize, usize, String)>) {
        let percent = self.tokens[index];
        let after_literal = index > 0 && self.tokens[index - 1].kind == Kind::Text;
        if percent.kind == Kind::Sign('%')
            && after_literal
            && let Some(operand_end) = self.operand_end(index + 1)
        {
            edits.push((percent.start, percent.end, "|percent_format(".to_owned()));
            edits.push((operand_end, operand_end, ")".to_owned()));
        }
    }

    /// Brackets with two colons of their own become the call of a method.
    fn edit_slice(&self, bracket: &Bracket, edits: &mut Vec<(usize, usize, String)>) {
        let &[first_colon, second_colon] = bracket.colons.as_slice() else { return };
        if self.tokens[bracket.open].first_byte != b'[' {
            return;
        }
        let mut replace = |at: usize, with: &str, next_bound_end: usize| {
            let bound = if at + 1 == next_bound_end { "none" } else { "" };
            let token = self.tokens[at];
            edits.push((token.start, token.end, format!("{with}{bound}")));
        };
        replace(bracket.open, ".python_slice(", first_colon);
        replace(first_colon, ",", second_colon);
        replace(second_colon, ",", bracket.close);
        let close = self.tokens[bracket.close];
        edits.push((close.start, close.end, ")".to_owned()));
    }

    /// Where the operand that begins at token `index` ends: a primary with its attributes, items, calls
    /// and filters, all of which bind tighter than `%`.
    fn operand_end(&self, mut index: usize) -> Option<usize> {
        while matches!(self.tokens.get(index)?.kind, Kind::Sign('-' | '+')) {
            index += 1;
        }
        let mut last = match self.tokens.get(index)?.kind {
            Kind::Text | Kind::Word => index,
            Kind::Open => self.matching_close(index)?,
            Kind::Close | Kind::Sign(_) => return None,
        };
        while let Some(next) = self.tokens.get(last + 1) {
            last = match next.kind {
                Kind::Sign('.' | '|')
                    if self.tokens.get(last + 2).is_some_and(|word| word.kind == Kind::Word) =>
                {
                    last + 2
                }
                Kind::Open => self.matching_close(last + 1)?,
                _ => break,
            };
        }
        Some(self.tokens[last].end)
    }

    fn matching_close(&self, open: usize) -> Option<usize> {
        let at = self.brackets.binary_search_by_key(&open, |bracket| bracket.open).ok()?;
        Some(self.brackets[at].close)
    }
}

/// Length of the string literal at the start of `text`, quotes included.
fn string_length(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::rewrite;
    use proptest::prelude::*;

    #[track_caller]
    fn check(source: &str, expect: &str) {
        assert_eq!(rewrite(source).unwrap(), expect);
    }

    #[test]
    fn generation_tags_become_scopes() {
        check("a{%- generation -%} b {% endgeneration %}", "a{%- with -%} b {% endwith %}");
        check("{% generation_prompt %}", "{% generation_prompt %}");
        check("{# {% generation %} #}", "{# {% generation %} #}");
        check("{% raw %}{% generation %}{% endraw %}x", "{% raw %}{% generation %}{% endraw %}x");
        check("{{ '{% generation %}' }}", "{{ '{% generation %}' }}");
    }

    #[test]
    fn percent_after_a_literal_formats() {
        check("{{ '%s' % x }}", "{{ '%s' |percent_format( x) }}");
        check("{{ '%s-%s' % (a, b) ~ c }}", "{{ '%s-%s' |percent_format( (a, b)) ~ c }}");
        check("{{ '%d'%m['a'].b(1)|int + 1 }}", "{{ '%d'|percent_format(m['a'].b(1)|int) + 1 }}");
        check("{% set a = 'x%' %}", "{% set a = 'x%' %}");
        check("{% if a == 'x'%}", "{% if a == 'x'%}");
        check("{{ a % 2 }}{% if i % 2 == 0 %}", "{{ a % 2 }}{% if i % 2 == 0 %}");
        check("{{ {'a': {'b': '%s' % c}} }}", "{{ {'a': {'b': '%s' |percent_format( c)}} }}");
    }

    #[test]
    fn slices_with_a_step_become_calls() {
        check("{{ a[::-1][0] }}", "{{ a.python_slice(none,none,-1)[0] }}");
        check("{{ a[1:b[2]:c] }}", "{{ a.python_slice(1,b[2],c) }}");
        check(
            "{{ '%s' % a[x[::2]:y:] }}",
            "{{ '%s' |percent_format( a.python_slice(x.python_slice(none,none,2),y,none)) }}",
        );
        check("{{ a[1:] ~ [{'b': 1, 'c': 2}] }}", "{{ a[1:] ~ [{'b': 1, 'c': 2}] }}");
    }

    #[test]
    fn broken_source_is_left_to_the_parser() {
        for source in [
            "{{ 'open",
            "{% if",
            "{# never closed",
            "{",
            "{{",
            "{% raw %} no end",
            "{{ '%s' % }}",
            "{{ a[::",
        ] {
            check(source, source);
        }
    }

    proptest! {
        #[test]
        fn any_source_scans_without_a_panic(source in "[{}%#'\"\\\\a ()\\[\\]:é|.-]{0,40}") {
            rewrite(&source).unwrap();
        }
    }
}
