//! Masks against languages small enough to list, the stretch before a grammar, and grammars that are refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::marker::Marker;

/// These tokens, two control tokens, `<|end|>` and `<|tool|>`, and three logits that belong to no token.
fn with_control_tokens(tokens: &[Vec<u8>]) -> Vec<Token> {
    let text = tokens.iter().map(|bytes| Token { bytes: bytes.clone(), is_special: false });
    let control = ["<|end|>", "<|tool|>"];
    let control = control.map(|name| Token { bytes: name.as_bytes().to_vec(), is_special: true });
    text.chain(control).chain(std::iter::repeat_n(Token::default(), 3)).collect()
}

struct Toy {
    tokens: Vec<Vec<u8>>,
    grammars: Grammars,
}

impl Toy {
    /// In addition to the tokens: `<|end|>`, `<|tool|>`, which ends an answer as well if `two_ends`, and three rows
    /// that belong to no token.
    fn new(tokens: impl IntoIterator<Item = Vec<u8>>, two_ends: bool) -> Toy {
        let tokens: BTreeSet<Vec<u8>> = tokens.into_iter().collect();
        let tokens: Vec<Vec<u8>> = tokens.into_iter().collect();
        let count = tokens.len() as u32;
        let ends = BTreeSet::from([count, count + u32::from(two_ends)]);
        let grammars =
            Grammars::new(&with_control_tokens(&tokens), &ends, Arc::new(Unlimited)).unwrap();
        Toy { tokens, grammars }
    }

    fn of(tokens: &[&str]) -> Toy {
        Toy::new(tokens.iter().map(|token| token.as_bytes().to_vec()), false)
    }

    fn id(&self, token: &str) -> u32 {
        let names = self.tokens.iter().map(Vec::as_slice);
        let names = names.chain([b"<|end|>".as_slice(), b"<|tool|>"]);
        names.into_iter().position(|bytes| bytes == token.as_bytes()).unwrap() as u32
    }
}

/// All ways to cut the words into short tokens are open; the mask says exactly which of them lead to a word.
#[track_caller]
fn check_language(grammar: &Grammar, words: &BTreeSet<String>, seed: u64) {
    let mut seed = seed;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let mut tokens: BTreeSet<Vec<u8>> =
        words.iter().flat_map(|w| w.iter().map(|&b| vec![b])).collect();
    for _ in 0..60 {
        let word = words[random(words.len())];
        let from = random(word.len());
        let to = word.len().min(from + 1 + random(5));
        tokens.insert(word[from..to].to_vec());
        tokens.insert([&word[from..to], b"x"].concat()); // mostly wrong
    }
    tokens.insert(b"<|end|".to_vec());
    tokens.insert(vec![0xFF]);
    let toy = Toy::new(tokens, random(2) == 1);
    let ends = &toy.grammars.shared.vocabulary.ends;
    let compiled = toy.grammars.compile(grammar, Before::Nothing).unwrap();

    for _ in 0..20 {
        let mut constraint = compiled.clone();
        let mut text: Vec<u8> = Vec::new();
        loop {
            let begins = |text: &[u8]| words.iter().any(|word| word.starts_with(text));
            let mut want: BTreeSet<u32> = (0u32..)
                .zip(&toy.tokens)
                .filter(|(_, token)| begins(&[text.as_slice(), token].concat()))
                .map(|(id, _)| id)
                .collect();
            if words.contains(&text.as_slice()) {
                want.extend(ends);
            }
            let got: BTreeSet<u32> = constraint.mask().unwrap().unwrap().tokens().collect();
            assert_eq!(got, want, "after {:?}", String::from_utf8_lossy(&text));
            assert_eq!(constraint.is_complete().unwrap(), want.iter().all(|id| ends.contains(id)));
            let choices: Vec<u32> = want.into_iter().collect();
            let token = choices[random(choices.len())];
            constraint.accept(token);
            if ends.contains(&token) {
                assert!(constraint.is_complete().unwrap());
                assert_eq!(constraint.mask().unwrap().unwrap().tokens().collect::<Vec<_>>(), *ends);
                break;
            }
            text.extend(&toy.tokens[token as usize]);
        }
    }
}

/// Every way to join one of each, in order.
fn products(parts: &[&[&str]]) -> BTreeSet<String> {
    parts.iter().fold(BTreeSet::from([String::new()]), |words, part| {
        words.iter().flat_map(|word| part.iter().map(move |end| format!("{word}{end}"))).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn masks_of_a_regex_are_exact(seed: u64) {
        let words = products(&[&["ab", "abc", "b", "bb", "bbb", "ü"], &["", "x", "yz"]]);
        check_language(&Grammar::Regex("(ab|abc|b{1,3}|ü)(x|yz)?".to_owned()), &words, seed);
    }

    #[test]
    fn masks_of_a_schema_are_exact(seed: u64) {
        let schema = json!({
            "type": "object",
            "properties": {
                "k": {"enum": ["é世", "a\"b", 1, true, null]},
                "n": {"type": "array", "items": {"type": "integer", "minimum": 8, "maximum": 11}, "maxItems": 2},
            },
            "required": ["k"],
            "additionalProperties": false,
        });
        let numbers = ["8", "9", "10", "11"];
        let mut lists = BTreeSet::from(["[]".to_owned()]);
        lists.extend(products(&[&["["], &numbers, &["]"]]));
        lists.extend(products(&[&["["], &numbers, &[",", ", "], &numbers, &["]"]]));
        let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
        let constants = ["\"é世\"", "\"a\\\"b\"", "1", "true", "null"];
        let (comma, colon) = ([",", ", "], [":", ": "]);
        let mut words = products(&[&["{\"k\""], &colon, &constants, &["}"]]);
        words.extend(products(&[
            &["{\"k\""], &colon, &constants, &comma, &["\"n\""], &colon, &lists, &["}"],
        ]));
        check_language(&Grammar::JsonSchema(schema), &words, seed);
    }

    #[test]
    fn masks_of_lark_are_exact(seed: u64) {
        let lark = "start: greeting \" \" NAME ending?\ngreeting: \"hi\" | \"hello\"\n\
            NAME: \"Bob\" | \"Ann\"  // (((\nending: \"!\" ~ 1..2 | %json {\"enum\": [1, \"a\"]}\n";
        let words =
            products(&[&["hi", "hello"], &[" "], &["Bob", "Ann"], &["", "!", "!!", "1", "\"a\""]]);
        check_language(&Grammar::Lark(lark.to_owned()), &words, seed);
    }
}

#[test]
fn control_tokens_come_only_if_they_are_named() {
    let toy = Toy::of(&["a", "<", "|", "tool", ">", "<|tool|", "end"]);
    #[track_caller]
    fn check(toy: &Toy, grammar: &str, begin: &[&str], want: &[&str]) {
        let mut constraint =
            toy.grammars.compile(&Grammar::Lark(grammar.to_owned()), Before::Nothing).unwrap();
        begin.iter().for_each(|token| constraint.accept(toy.id(token)));
        let want = Mask::of(toy.tokens.len() + 5, want.iter().map(|token| toy.id(token)));
        assert_eq!(constraint.mask().unwrap().unwrap(), &want);
    }
    check(&toy, "start: \"a\" <|tool|> \"a\"", &["a"], &["<|tool|>"]);
    check(&toy, "start: \"a\" <|tool|> \"a\"", &["a", "<|tool|>"], &["a"]);
    check(&toy, "start: \"a<|tool|>\"", &["a"], &["<", "<|tool|"]);
    check(
        &toy,
        "start: /(.|\\n)*/",
        &[],
        &["a", "<", "|", "tool", ">", "<|tool|", "end", "<|end|>"],
    );
    // By number, whatever there is; the rows past the tokens are nothing.
    let all = ["a", "<", "|", "tool", ">", "<|tool|", "end", "<|end|>", "<|tool|>"];
    check(&toy, "start: <[*]>", &[], &all);
}

const FREE: [&str; 14] = [
    "a",
    "\n",
    "\n\n",
    "\n\n\n",
    "</think>",
    "</think>\n",
    "</think>\n\n\n",
    "</think>1",
    "</",
    "<",
    "think>",
    "think>1",
    ">\n\n",
    "1",
];

/// With `[0-9]` after `</think>`: what may follow these tokens, of [`FREE`] and `<|end|>`.
#[track_caller]
fn check_after(tokens: &[&str], forbidden: &[&str]) {
    let toy = Toy::of(&FREE);
    let grammar = Grammar::Regex("[0-9]".to_owned());
    let mut constraint =
        toy.grammars.compile(&grammar, Before::Thinking { close: "</think>" }).unwrap();
    tokens.iter().for_each(|token| constraint.accept(toy.id(token)));
    let mask = constraint.mask().unwrap().unwrap();
    let got: BTreeSet<&str> =
        FREE.into_iter().chain(["<|end|>"]).filter(|token| !mask.allows(toy.id(token))).collect();
    assert_eq!(got, forbidden.iter().copied().collect());
}

#[test]
fn all_is_free_until_the_marker() {
    let never = ["<|end|>", "</think>1", "</think>\n\n\n"];
    let all_but = |allowed: &[&'static str]| -> Vec<&str> {
        FREE.into_iter().chain(["<|end|>"]).filter(|token| !allowed.contains(token)).collect()
    };
    check_after(&[], &never);
    check_after(&["a", "1", "think>", "<"], &never);
    // The marker in several tokens: one that completes it may hold no more than newlines.
    check_after(&["</"], &[never.as_slice(), &["think>1"]].concat());
    check_after(&["</", "</"], &[never.as_slice(), &["think>1"]].concat());
    check_after(&["</", "a"], &never);
    // After it, two newline tokens or the grammar.
    check_after(&["</think>"], &all_but(&["1", "\n", "\n\n"]));
    check_after(&["</", "think>"], &all_but(&["1", "\n", "\n\n"]));
    check_after(&["a", "</think>", "\n"], &all_but(&["1", "\n", "\n\n"]));
    check_after(&["</think>\n"], &all_but(&["1", "\n", "\n\n"]));
    check_after(&["</think>\n", "\n\n"], &all_but(&["1"]));
    check_after(&["</think>", "\n\n", "\n"], &all_but(&["1"]));
    check_after(&["</think>", "1"], &all_but(&["<|end|>"]));
    check_after(&["</think>", "\n", "1"], &all_but(&["<|end|>"]));
}

/// With `[0-9]` alone or after `<`, `think>`, …, `</think>`: what may follow these tokens.
#[track_caller]
fn check_maybe(tokens: &[&str], allowed: &[&str]) {
    let toy = Toy::of(&FREE);
    let open = [toy.id("<"), toy.id("think>")];
    let before = Before::MaybeThinking { open: &open, close: "</think>" };
    let mut constraint = toy.grammars.compile(&Grammar::Regex("[0-9]".to_owned()), before).unwrap();
    tokens.iter().for_each(|token| constraint.accept(toy.id(token)));
    let mask = constraint.mask().unwrap().unwrap();
    let got: BTreeSet<&str> =
        FREE.into_iter().chain(["<|end|>"]).filter(|token| mask.allows(toy.id(token))).collect();
    assert_eq!(got, allowed.iter().copied().collect());
}

#[test]
fn thinking_may_be_opened_by_the_answer_and_need_not_be() {
    check_maybe(&[], &["<", "1"]);
    check_maybe(&["1"], &["<|end|>"]);
    check_maybe(&["<"], &["think>"]);
    let never = ["<|end|>", "</think>1", "</think>\n\n\n"];
    let free: Vec<&str> = FREE.into_iter().filter(|token| !never.contains(token)).collect();
    check_maybe(&["<", "think>"], &free);
    check_maybe(&["<", "think>", "a", "1"], &free);
    check_maybe(&["<", "think>", "a", "</think>"], &["1", "\n", "\n\n"]);
    check_maybe(&["<", "think>", "a", "</think>", "\n", "1"], &["<|end|>"]);
}

#[test]
fn a_grammar_that_begins_like_thinking_is_followed() {
    let toy = Toy::of(&FREE);
    let open = [toy.id("<"), toy.id("think>")];
    let before = Before::MaybeThinking { open: &open, close: "</think>" };
    let grammar = Grammar::Regex("<1".to_owned());
    let mut constraint = toy.grammars.compile(&grammar, before).unwrap();
    constraint.accept(toy.id("<"));
    assert_eq!(constraint.mask().unwrap().unwrap().tokens().collect::<Vec<_>>(), [toy.id("1")]);
}

/// With `<1` from `<` on: what may follow these tokens; `None` if everything may.
#[track_caller]
fn check_from(before: Before<'_>, tokens: &[&str], allowed: Option<&[&str]>) {
    let toy = Toy::of(&FREE);
    let grammar = Grammar::Regex("<1".to_owned());
    let mut constraint = toy.grammars.compile_from(toy.id("<"), &grammar, before).unwrap();
    tokens.iter().for_each(|token| constraint.accept(toy.id(token)));
    let mask = constraint.mask().unwrap();
    let got: Option<BTreeSet<&str>> = mask.map(|mask| {
        FREE.into_iter().chain(["<|end|>"]).filter(|token| mask.allows(toy.id(token))).collect()
    });
    assert_eq!(got, allowed.map(|allowed| allowed.iter().copied().collect()), "{tokens:?}");
    let fork = constraint.clone().mask().unwrap().cloned();
    assert_eq!(fork.as_ref(), constraint.mask().unwrap());
}

#[test]
fn words_are_free_until_the_opener() {
    let thinking = Before::Thinking { close: "</think>" };
    let toy = Toy::of(&FREE);
    let open = [toy.id("1"), toy.id("think>")];
    let maybe = Before::MaybeThinking { open: &open, close: "</think>" };
    for before in [Before::Nothing, maybe] {
        check_from(before, &[], None);
        check_from(before, &["a", "1", "\n", "</think>"], None);
        check_from(before, &["<"], Some(&["1"]));
        check_from(before, &["a", "1", "<"], Some(&["1"]));
        check_from(before, &["a", "<", "1"], Some(&["<|end|>"]));
        check_from(before, &["1", "<"], Some(&["1"]));
        check_from(before, &["a", "1", "think>", "<"], Some(&["1"]));
    }
    // While thinking, a model may write what it likes, an opener too, and may end there.
    check_from(thinking, &[], None);
    check_from(thinking, &["<", "a"], None);
    check_from(thinking, &["a", "</think>"], None);
    check_from(thinking, &["a", "</", "think>", "a"], None);
    check_from(thinking, &["<", "</think>", "\n\n", "<"], Some(&["1"]));
    check_from(thinking, &["<", "</think>1", "<", "1"], Some(&["<|end|>"]));
    check_from(maybe, &["1", "think>", "<"], None);
    check_from(maybe, &["1", "think>", "<", "</think>", "<"], Some(&["1"]));
}

#[test]
fn an_answer_that_was_free_is_not_failed_by_a_grammar() {
    // No token has the next letter.
    let toy = Toy::of(&["<", "a"]);
    let grammar = Grammar::Regex("<é".to_owned());
    let compile = |opener| toy.grammars.compile_from(opener, &grammar, Before::Nothing);
    let mut constraint = compile(toy.id("<")).unwrap();
    for token in ["a", "<", "a", "<", "<|end|>"] {
        constraint.accept(toy.id(token));
        assert_eq!(constraint.mask().unwrap(), None);
    }
    // A grammar that begins with something else is never begun.
    compile(toy.id("a")).unwrap_err();
    let mut held = toy.grammars.compile(&grammar, Before::Nothing).unwrap();
    held.accept(toy.id("<"));
    held.mask().unwrap_err();
}

#[test]
fn what_was_compiled_is_kept_for_the_next_and_unchanged_by_the_last() {
    let toy = Toy::of(&["a", "b"]);
    let kept = || toy.grammars.shared.memory.kept().len();
    let grammar = Grammar::Regex("ab".to_owned());
    let first =
        |constraint: &mut Constraint| constraint.mask().unwrap().unwrap().tokens().next().unwrap();
    for _ in 0..3 {
        let mut constraint = toy.grammars.compile(&grammar, Before::Nothing).unwrap();
        assert_eq!(first(&mut constraint), toy.id("a"));
        constraint.accept(toy.id("a"));
        assert_eq!(first(&mut constraint), toy.id("b"));
        assert_eq!(kept(), 1);
    }
    // What comes before is part of it, and so is the order of a schema's properties.
    toy.grammars.compile(&grammar, Before::Thinking { close: "b" }).unwrap();
    assert_eq!(kept(), 2);
    toy.grammars.compile_from(toy.id("a"), &grammar, Before::Nothing).unwrap();
    assert_eq!(kept(), 3);
    for count in 1..40 {
        toy.grammars.compile(&Grammar::Regex(format!("a{{{count}}}")), Before::Nothing).unwrap();
    }
    assert_eq!(kept(), 16);
    let refused = Grammar::Regex("c".to_owned());
    for _ in 0..2 {
        toy.grammars.compile(&refused, Before::Nothing).unwrap_err();
    }
}

/// So much for one answer.
struct Most(usize);

impl Allowance for Most {
    fn resize(&self, _from: usize, to: usize) -> bool {
        to <= self.0
    }

    fn most_bytes(&self) -> usize {
        self.0
    }

    fn step_bytes(&self) -> usize {
        usize::MAX
    }
}

#[test]
fn what_is_kept_is_a_small_part_of_what_answers_may_have() {
    let tokens = with_control_tokens(&[b"a".to_vec(), b"b".to_vec()]);
    let ends = BTreeSet::from([2]);
    let compile = |most: usize| {
        let grammars = Grammars::new(&tokens, &ends, Arc::new(Most(most))).unwrap();
        for count in 1..12 {
            let regex = Grammar::Regex(format!("(a|b)*a(a|b){{{count}}}"));
            grammars.compile(&regex, Before::Nothing).unwrap();
        }
        let kept = grammars.shared.memory.kept();
        (kept.len(), kept.held_bytes())
    };
    let (all, bytes) = compile(usize::MAX);
    assert_eq!(all, 11);
    // Room for half of them.
    let most = 4 * (bytes / 2);
    let (some, held) = compile(most);
    assert!(some > 0 && some < all && held <= most / 4, "{some} of {all}, {held} of {bytes} bytes");
}

#[test]
fn newlines_that_the_grammar_wants_are_its_own() {
    let toy = Toy::of(&["</think>", "\n", "1"]);
    let grammar = Grammar::Regex("\\n1".to_owned());
    let mut constraint =
        toy.grammars.compile(&grammar, Before::Thinking { close: "</think>" }).unwrap();
    constraint.accept(toy.id("</think>"));
    constraint.accept(toy.id("\n"));
    assert_eq!(constraint.mask().unwrap().unwrap().tokens().collect::<Vec<_>>(), [toy.id("1")]);
}

proptest! {
    /// The marker is found wherever it is cut, as a search in the whole text finds it.
    #[test]
    fn a_marker_is_found_however_the_text_is_cut(
        text in "[ab]{0,12}",
        marker in "[ab]{1,4}",
        cuts in prop::collection::vec(1..4usize, 12),
    ) {
        let toy = Toy::of(&["a", "b"]);
        let pattern = marker;
        let marker = Marker::new(&pattern, &toy.grammars.shared.vocabulary).unwrap();
        let (mut matched, mut at, mut found) = (0, 0, None);
        for cut in cuts {
            let end = text.len().min(at + cut);
            match marker.advance(matched, &text.as_bytes()[at..end]) {
                marker::Progress::Awaited(bytes) => matched = bytes,
                marker::Progress::Passed(rest) => {
                    found = Some(end - rest);
                    break;
                }
            }
            at = end;
        }
        let text = &text[..found.unwrap_or(at)];
        let want = text.find(&pattern).map(|start| start + pattern.len());
        prop_assert_eq!(found, want);
    }
}

#[test]
fn a_forbidden_token_fails_its_own_answer_for_good() {
    let toy = Toy::of(&["a", "b"]);
    let fresh =
        toy.grammars.compile(&Grammar::Regex("a{1,5}".to_owned()), Before::Nothing).unwrap();
    let mut right = fresh.clone();
    let mut wrong = fresh.clone();
    right.accept(toy.id("a"));
    wrong.accept(toy.id("b"));
    wrong.accept(toy.id("a"));
    for _ in 0..2 {
        let error = wrong.mask().unwrap_err();
        assert!(matches!(error, ConstraintError::Failed { .. }), "{error}");
        assert_eq!(wrong.clone().mask().unwrap_err(), error);
    }
    assert!(right.mask().unwrap().unwrap().allows(toy.id("<|end|>")));
    assert!(!fresh.clone().mask().unwrap().unwrap().allows(toy.id("<|end|>")));
    let past = {
        let mut constraint =
            toy.grammars.compile(&Grammar::Regex("a".to_owned()), Before::Nothing).unwrap();
        constraint.accept(toy.id("a"));
        constraint.accept(toy.id("a"));
        constraint.mask().unwrap_err()
    };
    assert_eq!(past, ConstraintError::Rejected { token: toy.id("a") });
}

#[test]
fn bytes_without_a_token_are_an_error() {
    let toy = Toy::of(&["a"]);
    let grammar = Grammar::Regex("ab".to_owned());
    let mut constraint = toy.grammars.compile(&grammar, Before::Nothing).unwrap();
    constraint.accept(toy.id("a"));
    assert_eq!(constraint.mask().unwrap_err(), ConstraintError::Stuck);
    let error = toy.grammars.compile(&Grammar::Regex("b".to_owned()), Before::Nothing).unwrap_err();
    assert!(matches!(error, GrammarError::Invalid { .. }), "{error}");
}

#[test]
fn a_model_without_an_end_cannot_be_constrained() {
    let tokens = &with_control_tokens(&[b"a".to_vec()])[..3];
    for ends in [BTreeSet::new(), BTreeSet::from([3])] {
        let error = Grammars::new(tokens, &ends, Arc::new(Unlimited)).unwrap_err();
        assert!(matches!(error, GrammarError::Vocabulary { .. }), "{error}");
    }
}

#[test]
fn grammars_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Grammars>();
    sent::<Constraint>();
}
