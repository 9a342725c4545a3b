//! Rust source without its comments and the insides of its strings, line for line.
//!
//! Enough of Rust's lexical rules to look for words in code: nested block comments, strings, byte
//! and raw strings, characters as against lifetimes. What is taken out becomes spaces, so lines and
//! columns stay where they were.

/// The same text with comments and literals blanked.
pub(super) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// Where the comment or literal that begins here ends, or the same place when none begins.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1);
    let in_word = at > 0 && is_word(chars[at - 1]);
    match (chars[at], next) {
        ('/', Some('/')) => find(chars, at, |c| c == '\n'),
        ('/', Some('*')) => block_comment_end(chars, at),
        ('"', _) => quoted_end(chars, at, '"'),
        ('r', _) if !in_word => raw_string_end(chars, at),
        ('b' | 'c', Some('r')) if !in_word => match raw_string_end(chars, at + 1) {
            end if end == at + 1 => at,
            end => end,
        },
        // A character, not a lifetime: escaped, or closed after one.
        ('\'', Some('\\')) => quoted_end(chars, at, '\''),
        ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|at| wanted(chars[*at])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Of `r"…"` or `r#"…"#`; a raw identifier such as `r#type` is none.
fn raw_string_end(chars: &[char], from: usize) -> usize {
    let open = find(chars, from + 1, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return from;
    }
    let hashes = open - from - 1;
    let closes = |at: &usize| {
        let end = at + 1 + hashes;
        chars[*at] == '"' && end <= chars.len() && chars[at + 1..end].iter().all(|c| *c == '#')
    };
    (open + 1..chars.len()).find(closes).map_or(chars.len(), |at| at + 1 + hashes)
}

/// Whether a whole word, followed by `then`, is in a line.
pub(super) fn has_word(line: &str, word: &str, then: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let after = &line[at + word.len()..];
        !line[..at].ends_with(is_word) && !after.starts_with(is_word) && after.starts_with(then)
    })
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expect: &str) {
        let squeezed: Vec<String> = code_only(source)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(squeezed.join("\n"), expect);
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("a // b", "a");
        check("a /* b /* c */ d */ e", "a e");
        check("a /* b\nc */ d", "a\nd");
        check(r#"f("a \" b", 1)"#, "f( , 1)");
        check(r##"f(r#"a " b"#, 1)"##, "f( , 1)");
        check(r#"f(br"a\", 1)"#, "f( , 1)");
        check("r#type = bread", "r#type = bread");
        check(r"['a', '\'', '\u{1F600}', b'x']", "[ , , , b ]");
        check("fn f<'a>(x: &'a str) -> &'a str", "fn f<'a>(x: &'a str) -> &'a str");
        check("'\"' /* */ x", "x");
        check("\"never closed", "");
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("if word {", "word", ""));
        assert!(!has_word("if my_word {", "word", ""));
        assert!(!has_word("words", "word", ""));
        assert!(has_word("word!()", "word", "!"));
        assert!(!has_word("word()", "word", "!"));
    }
}
