//! Rewrites of a template's source: for what the engine's parser does not know, and so that what a template makes
//! is metered where it is made.
//!
//! - `{% generation %}…{% endgeneration %}` (transformers' mask of the assistant's words) becomes
//!   `{% with %}…{% endwith %}`: the same text, the same trimming of white space, the same scope.
//! - Operators, literals and slices are rewritten as `expression` says.
//! - Text that may be written often (`raw`) is announced to the meter by `{{ 37|metered_text }}`.
//! - Line ends become `\n`, as in Jinja2. Nothing else moves to another line, so errors name the author's lines.
//!
//! Comments, raw blocks and strings are left alone. Source that does not scan is passed on as it is: the
//! engine's parser reports what is wrong with it. A block that scans and is not understood is remembered by its
//! line, and its template refused even if the engine would take it.

mod expression;
mod raw;
mod tag;

use self::raw::Edge;
use self::tag::Nesting;
use super::meter::{Limit, Measure};
use crate::Result;

/// Tokens in one block, a string being one. The engine compiles long expressions in quadratic time; the longest
/// block of 80 published templates has 62.
const BLOCK_TOKEN_LIMIT: usize = 2_000;

/// A source with all rewrites applied.
#[derive(Debug, Default)]
pub(super) struct Rewritten {
    pub(super) source: String,
    /// Line of the first block that is not understood, from 1.
    pub(super) unknown_line: Option<usize>,
}

/// Rewrites the source of the template of this name.
pub(super) fn rewrite(template: &str, source: &str) -> Result<Rewritten> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut rewritten = Rewritten::default();
    let output = &mut rewritten.source;
    output.reserve(source.len() + source.len() / 4);
    // How many blocks that may run often, or are kept as values, are open; and the tag before the text.
    let (mut nesting, mut before) = (0_usize, Edge::Outside);
    let (mut text_start, mut at) = (0, 0);
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        let rest = &source[start..];
        let closing = match rest.as_bytes().get(1) {
            Some(b'#') => "#}",
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            _ => {
                at = start + 1;
                continue;
            }
        };
        let (end, block) = if closing == "#}" {
            (rest[2..].find("#}").map_or(rest.len(), |end| end + 4), None)
        } else {
            match Block::scan(rest, closing) {
                Some(block) => (block.end, Some(block)),
                None => break,
            }
        };
        let tag = &rest[..end];
        raw::write(&source[text_start..start], nesting > 0, before, Edge::at_start(tag), output);
        let line = || 1 + source[..start].matches('\n').count();
        let is_raw = block
            .as_ref()
            .is_some_and(|block| closing == "%}" && block.first_word(rest) == Some("raw"));
        let end = match block {
            _ if is_raw => {
                let end = end_of_raw(rest).unwrap_or(rest.len());
                if !raw::write_block(&rest[..end], tag.len(), nesting > 0, output) {
                    rewritten.unknown_line.get_or_insert_with(line);
                }
                end
            }
            None => {
                output.push_str(tag);
                end
            }
            Some(block) => {
                if block.tokens.len() > BLOCK_TOKEN_LIMIT {
                    let limit = Limit { measure: Measure::BlockTokens, most: BLOCK_TOKEN_LIMIT };
                    return Err(limit.error(template, Some(line())));
                }
                match expression::edits(&block, rest, closing) {
                    Some((edits, change)) => {
                        let mut written = 0;
                        for edit in edits {
                            output.push_str(&rest[written..edit.start]);
                            output.push_str(&edit.text);
                            written = edit.end;
                        }
                        output.push_str(&rest[written..end]);
                        match change {
                            Nesting::Opens => nesting += 1,
                            Nesting::Closes => nesting = nesting.saturating_sub(1),
                            Nesting::Same => {}
                        }
                    }
                    None => {
                        rewritten.unknown_line.get_or_insert_with(line);
                        output.push_str(tag);
                    }
                }
                end
            }
        };
        before = Edge::at_end(&rest[..end]);
        at = start + end;
        text_start = at;
    }
    raw::write(&source[text_start..], nesting > 0, before, Edge::Outside, output);
    Ok(rewritten)
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
    /// Distinguishes brackets.
    first_byte: u8,
}

/// One `{% … %}` or `{{ … }}`: its tokens and where it ends, from its opening brace.
struct Block {
    tokens: Vec<Token>,
    end: usize,
}

impl Block {
    fn scan(text: &str, closing: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let mut tokens: Vec<Token> = Vec::new();
        let mut unclosed = 0_usize;
        let mut at = 2;
        // A white space control right after the opening is no operator.
        if matches!(bytes.get(at), Some(b'-' | b'+')) {
            at += 1;
        }
        loop {
            let rest = &text[at..];
            let character = rest.chars().next()?;
            // Inside brackets `}}` closes two dicts, as in Jinja2's lexer.
            if unclosed == 0 && rest.starts_with(closing) {
                return Some(Self { tokens, end: at + 2 });
            }
            let (kind, length) = match character {
                '\'' | '"' => (Kind::Text, string_length(rest, character)?),
                '(' | '[' | '{' => (Kind::Open, 1),
                ')' | ']' | '}' => (Kind::Close, 1),
                _ if character.is_alphanumeric() || character == '_' => {
                    (Kind::Word, word_length(rest))
                }
                _ if character.is_whitespace() => {
                    at += character.len_utf8();
                    continue;
                }
                _ => (Kind::Sign(character), character.len_utf8()),
            };
            match kind {
                Kind::Open => unclosed += 1,
                Kind::Close => unclosed = unclosed.saturating_sub(1),
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
}

/// Length of the word or number at the start of `text`; `1e-5` is one.
fn word_length(text: &str) -> usize {
    let is_word = |other: char| other.is_alphanumeric() || other == '_';
    let length = |text: &str| text.find(|other| !is_word(other)).unwrap_or(text.len());
    let word = &text[..length(text)];
    let exponent = word.strip_suffix(['e', 'E']).is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
    });
    let rest = &text[word.len()..];
    match rest.strip_prefix(['-', '+']) {
        Some(digits) if exponent && digits.starts_with(|c: char| c.is_ascii_digit()) => {
            word.len() + 1 + length(digits)
        }
        _ => word.len(),
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
        let rewritten = rewrite("template", source).unwrap();
        assert_eq!((rewritten.source.as_str(), rewritten.unknown_line), (expect, None));
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
        check(
            "{{ '%s-%s' % (a, b) ~ c }}",
            "{{ '%s-%s' |percent_format( metered_tuple(a, b)) |metered_concat( c) }}",
        );
        check(
            "{{ '%d'%m['a'].b(1)|int + 1 }}",
            "{{ '%d'|percent_format(m['a'].b(1)|int) |metered_add( 1) }}",
        );
        check("{% set a = 'x%' %}", "{% set a = 'x%' %}");
        check("{% if a == 'x'%}", "{% if a == 'x'%}");
        check("{{ a % 2 }}{% if i % 2 == 0 %}", "{{ a % 2 }}{% if i % 2 == 0 %}");
    }

    #[test]
    fn slices_become_calls() {
        check("{{ a[::-1][0] }}", "{{ a.python_slice(none,none,-1)[0] }}");
        check("{{ a[1:b[2]:c] }}", "{{ a.python_slice(1,b[2],c) }}");
        check(
            "{{ '%s' % a[x[::2]:y:] }}",
            "{{ '%s' |percent_format( a.python_slice(x.python_slice(none,none,2),y,none)) }}",
        );
        check(
            "{{ a[1:] ~ b[:n] }}",
            "{{ a.python_slice(1,none) |metered_concat( b.python_slice(none,n)) }}",
        );
    }

    #[test]
    fn operators_keep_their_precedence() {
        check("{{ a + b * c + d }}", "{{ a |metered_add( b |metered_mul( c)) |metered_add( d) }}");
        check("{{ a - b + c }}", "{{ (a - b) |metered_add( c) }}");
        check(
            "{{ a ~ b if c else d+e -}}",
            "{{ a |metered_concat( b) if c else d|metered_add(e) -}}",
        );
        check(
            "{{ -a ** 2 * b|f(c ~ d) }}",
            "{{ (-a ** 2) |metered_mul( b|f(c |metered_concat( d))) }}",
        );
        check("{{ 2 * 1e+5 * 1.5 }}", "{{ 2 |metered_mul( 1e+5) |metered_mul( 1.5) }}");
        check("{{ not a == b + c }}", "{{ not a == b |metered_add( c)|metered_compared }}");
        check(
            "{{ 'x' in a and b not in ['y'] }}",
            "{{ 'x' in a|metered_compared and b|metered_compared not in ['y'] }}",
        );
        check("{{ x is none and a ~ b }}", "{{ x is none and a |metered_concat( b) }}");
        check("{{ a == 'x' or a != 1 }}", "{{ a == 'x' or a != 1 }}");
        check("{{ f(*a, **b - c) }}", "{{ f(*a|metered_spread, **(b - c)|metered_spread) }}");
    }

    #[test]
    fn literals_that_hold_values_are_made_by_functions() {
        check(
            "{{ [1, 'a', [-2]] }}{{ {'a': {1: none}} }}",
            "{{ [1, 'a', [-2]] }}{{ {'a': {1: none}} }}",
        );
        check("{{ [a][0] }}", "{{ metered_list(a)[0] }}");
        check(
            "{{ {'a': {'b': '%s' % c}} }}",
            "{{ metered_dict('a', metered_dict('b', '%s' |percent_format( c))) }}",
        );
        check(
            "{% for a, b in [(1, c),] %}",
            "{% for a, b in metered_list(metered_tuple(1, c),) %}",
        );
        check("{% set a, b = c, d %}", "{% set a, b = metered_tuple(c, d) %}");
        check("{% set a.b = c if d else e %}", "{% set a.b = (c if d else e)|metered_held %}");
        check("{{ (a)[b] }}", "{{ (a)[b|metered_key] }}");
        check("{% macro m(a, b=[c]) %}", "{% macro m(a, b=metered_list(c)) %}");
    }

    #[test]
    fn text_that_is_written_often_is_announced() {
        let long = "some text to announce";
        check(long, long);
        let within = |text: &str| format!("{{% for a in b %}}{text}{{% endfor %}}{long}");
        check(&within(long), &within("{{21|metered_text}}some text to announce"));
        check(
            &within("\n    some text to announce\n  "),
            &within("\n    {{29|metered_text}}some text to announce\n  "),
        );
        let spaces = " ".repeat(20);
        check(&within(&format!("\n{spaces}")), &within(&format!("\n{spaces}")));
        check(&within(&spaces), &within(&format!(" {{{{20|metered_text}}}}{}", &spaces[1..])));
        check(
            "{% set a %}{% raw %} {{ some text }}{% endraw %}{% endset %}",
            "{% set a %}{% raw %} {%+ endraw +%}{{37|metered_text}}{%+ raw +%}{{ some text }}{% endraw %}{% endset %}",
        );
    }

    #[test]
    fn broken_source_is_left_to_the_parser() {
        for source in
            ["{{ 'open", "{% if", "{# never closed", "{", "{{", "{% raw %} no end", "{{ a[::"]
        {
            check(source, source);
        }
        for source in [
            "{{ '%s' % }}",
            "a\n{{ a b }}",
            "\n{% include 'a' %}",
            "\n{{ metered_list(a) }}",
            "\n{% for a in b %}{% raw %}                                                                         {% endraw %}",
        ] {
            let rewritten = rewrite("template", source).unwrap();
            assert_eq!(rewritten.unknown_line, Some(1 + source.matches('\n').count()), "{source}");
        }
    }

    proptest! {
        #[test]
        fn any_source_scans_without_a_panic(source in "[{}%#'\"\\\\a ()\\[\\]:é|.+*~=,-]{0,40}") {
            rewrite("template", &source).unwrap();
        }
    }
}
