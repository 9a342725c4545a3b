//! What a regular expression of a tokenizer.json may cost, computed before it is compiled.
//!
//! The engine unrolls counted repetitions, each part of an expression up to 10 MB, and does not add them up.
//! Here an expression's size is reckoned from its text: characters and classes, times the counts around them.
//! The syntax is not checked; compiling does that.

/// The longest pattern. Real ones have up to 3 KB, where they list ranges of characters.
const LONGEST_BYTES: usize = 16 << 10;

/// The most characters and classes once counts are unrolled. Real patterns have some hundreds.
const LARGEST: usize = 4096;

/// Refuses a pattern that would take much memory to compile.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    if pattern.len() > LONGEST_BYTES {
        return Err(format!("a pattern of {} bytes, more than {LONGEST_BYTES}", pattern.len()));
    }
    if size(pattern) > LARGEST {
        return Err(format!("a pattern that repeats more than {LARGEST} characters"));
    }
    Ok(())
}

/// Characters and classes of a pattern with its counts unrolled, or a little more.
fn size(pattern: &str) -> usize {
    let characters: Vec<char> = pattern.chars().collect();
    // What groups that are still open had before them.
    let mut outer: Vec<usize> = Vec::new();
    let (mut whole, mut last, mut place) = (0_usize, 0_usize, 0_usize);
    while let Some(&character) = characters.get(place) {
        let mut next = place + 1;
        match character {
            '\\' => {
                (whole, last) = (whole.saturating_add(1), 1);
                next += 1;
                // `\p{…}`, `\x{…}`, `\k<…>` name one thing.
                let takes_name = matches!(characters.get(place + 1), Some('p' | 'P' | 'x' | 'u'));
                if takes_name && characters.get(next) == Some(&'{') {
                    next = after(&characters, next, '}');
                }
            }
            '[' => {
                (whole, last) = (whole.saturating_add(1), 1);
                next = after_class(&characters, place);
            }
            '(' => {
                outer.push(whole);
                (whole, last) = (0, 0);
            }
            ')' => {
                last = whole;
                whole = outer.pop().unwrap_or(0).saturating_add(last);
            }
            '{' => {
                let end = after(&characters, place, '}');
                let counts: String =
                    characters[next..end.saturating_sub(1).max(next)].iter().collect();
                if let Some(count) = count(&counts) {
                    whole = whole.saturating_add(last.saturating_mul(count.saturating_sub(1)));
                    last = last.saturating_mul(count);
                    next = end;
                } else {
                    (whole, last) = (whole.saturating_add(1), 1);
                }
            }
            _ => (whole, last) = (whole.saturating_add(1), 1),
        }
        place = next;
    }
    // Groups that never end are refused when they are compiled.
    outer.into_iter().fold(whole, usize::saturating_add)
}

/// The larger number of `n`, `n,` or `n,m`; nothing if these are no counts.
fn count(counts: &str) -> Option<usize> {
    let is_count = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == ' ');
    let number = |text: &str| match text.trim() {
        "" => 0,
        // More digits than fit are more than enough.
        digits => digits.parse().unwrap_or(usize::MAX),
    };
    let (least, most) = counts.split_once(',').unwrap_or((counts, counts));
    (is_count(least) && is_count(most) && counts.contains(|c: char| c.is_ascii_digit()))
        .then(|| number(least).max(number(most)))
}

/// The place after the next `end`.
fn after(characters: &[char], place: usize, end: char) -> usize {
    let found = characters[place..].iter().position(|&character| character == end);
    found.map_or(characters.len(), |found| place + found + 1)
}

/// The place after a class that begins here. Classes hold classes, and a bracket that comes first is a character.
fn after_class(characters: &[char], begin: usize) -> usize {
    let (mut depth, mut place) = (0, begin);
    while let Some(&character) = characters.get(place) {
        let mut next = place + 1;
        match character {
            '\\' => next += 1,
            '[' => {
                depth += 1;
                next += usize::from(characters.get(next) == Some(&'^'));
                next += usize::from(characters.get(next) == Some(&']'));
            }
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return next;
        }
        place = next;
    }
    characters.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_unrolled() {
        for (pattern, expect) in [
            ("", 0),
            ("abc", 3),
            ("a{3}", 3),
            ("ab{2,5}", 6),
            ("(ab){10}c", 21),
            ("((a{10}){10}){10}", 1000),
            ("[a-z0-9]{4}", 4),
            ("[]a]{4}", 4),
            ("[^]a[b]]{4}", 4),
            (r"[\]a]{4}", 4),
            (r"\p{L}{3}", 3),
            (r"\p{L}+|\d{1,3}", 6),
            ("a{,7}", 7),
            ("a{7,}", 7),
            ("a{x}b{", 6),
            ("a{99999999999999999999999}", usize::MAX),
            ("((a", 1),
        ] {
            assert_eq!(size(pattern), expect, "{pattern}");
        }
    }

    #[test]
    fn patterns_of_published_tokenizers_are_small() {
        for pattern in [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
        ] {
            assert!(size(pattern) < 100, "{}", size(pattern));
            check(pattern).unwrap();
        }
        for pattern in [r"(?=a)\w{5000}", "(((a{20}){20}){20}){20}", &"a".repeat(20_000)] {
            assert!(check(pattern).is_err(), "{pattern}");
        }
    }
}
