//! Tokenizers made from lists against the files that they stand for, and against the algorithms as their authors describe
//! them.

use proptest::prelude::*;

use super::*;
use crate::source::tests::{pebble, pebble_file};
use crate::{ModelText, Tokenizer};

/// Pebble's vocabulary, as a GGUF file would list it.
fn listed_pebble() -> Vocabulary {
    let file = pebble_file("tokenizer.json").expect("a file");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    let mut tokens = vec![String::new(); pebble().vocab_size()];
    let mut kinds = vec![1; tokens.len()];
    for (token, id) in file["model"]["vocab"].as_object().expect("a map") {
        tokens[id.as_u64().expect("an id") as usize] = token.clone();
    }
    for added in file["added_tokens"].as_array().expect("a list") {
        let id = added["id"].as_u64().expect("an id") as usize;
        tokens[id] = added["content"].as_str().expect("a text").to_owned();
        kinds[id] = if added["special"] == true { 3 } else { 4 };
    }
    let merge = |pair: &Value| {
        let parts = pair.as_array().expect("a pair").iter().map(|part| part.as_str());
        parts.collect::<Option<Vec<&str>>>().expect("texts").join(" ")
    };
    let merges = file["model"]["merges"].as_array().expect("a list").iter().map(merge).collect();
    let template =
        pebble_file("chat_template.jinja").map(|bytes| String::from_utf8(bytes).expect("text"));
    let end = tokens.iter().position(|token| token == "<|im_end|>").expect("a token");
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some("qwen35".to_owned()),
        architecture: "qwen35moe".to_owned(),
        tokens,
        kinds,
        merges,
        special: BTreeMap::from([("eos", end as u32)]),
        template,
        ..Vocabulary::default()
    }
}

fn tokenizer(vocabulary: &Vocabulary) -> Tokenizer {
    let VocabularyFiles { files, .. } = vocabulary.files().expect("files");
    Tokenizer::from_bytes(&files["tokenizer.json"]).expect("a tokenizer")
}

const TEXTS: [&str; 8] = [
    "Tell me a story about a fox and a lantern.",
    "it's 12345 o'clock, WE'LL see — don't you?",
    "  leading spaces\n\n\n and\ttabs \r\n end   ",
    "Grüße, 世界! 👩‍👩‍👧 naïve e\u{301}te\u{301}",
    "<|im_start|>user\nhi<|im_end|>\n<think>\nfn main() {}\n</think>",
    "a/b//c\\d {x: [1, 2.50]} snake_case camelCase",
    "\u{0}\u{fffd}\u{a0}ﷺ",
    "",
];

#[test]
fn a_listed_vocabulary_is_the_tokenizer_that_it_was_made_from() {
    let (own, listed) = (pebble(), tokenizer(&listed_pebble()));
    assert_eq!(listed.vocab_size(), own.vocab_size());
    for text in TEXTS {
        let ids = own.encode(text, false).expect("ids");
        assert_eq!(listed.encode(text, false).expect("ids"), ids, "{text:?}");
        assert_eq!(
            listed.decode(&ids, false).expect("text"),
            own.decode(&ids, false).expect("text")
        );
    }
    for id in 0..own.vocab_size() as u32 {
        assert_eq!(listed.token_bytes(id), own.token_bytes(id), "{id}");
        assert_eq!(listed.is_special(id), own.is_special(id), "{id}");
    }
}

#[test]
fn the_files_make_a_model_of_text() {
    let VocabularyFiles { files, warnings } = listed_pebble().files().expect("files");
    assert!(warnings.is_empty());
    let text = ModelText::open(|name| Ok::<_, Error>(files.get(name).cloned())).expect("a text");
    let own = ModelText::open(|name| Ok::<_, Error>(pebble_file(name))).expect("a text");
    assert_eq!(text.tools, own.tools);
    assert!(text.template.is_some() && text.eos.is_superset(&own.eos));
}

#[test]
fn what_is_missing_is_guessed_with_a_warning_or_refused() {
    let unnamed = |architecture: &str| Vocabulary {
        pre: None,
        architecture: architecture.to_owned(),
        ..listed_pebble()
    };
    let VocabularyFiles { warnings, .. } = unnamed("qwen3moe").files().expect("files");
    assert!(matches!(&warnings[..], [warning] if warning.contains("`qwen2`")), "{warnings:?}");
    let error = unnamed("starlight").files().expect_err("nothing to guess from").to_string();
    assert!(error.contains("`starlight`"), "{error}");
    let check = |change: &dyn Fn(&mut Vocabulary), expect: &str| {
        let mut vocabulary = listed_pebble();
        change(&mut vocabulary);
        let error = vocabulary.files().expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    };
    check(&|v| v.model = "t5".to_owned(), "`t5`");
    check(&|v| v.pre = Some("moonlight".to_owned()), "`moonlight`");
    check(&|v| v.tokens[7] = v.tokens[8].clone(), "more than once");
    check(&|v| v.tokens.clear(), "no tokens");
    check(&|v| v.merges[3] = "whole".to_owned(), "merge 3");
    check(&|v| v.model = "llama".to_owned(), "0 scores");
}

#[test]
fn every_known_way_to_split_is_one_that_the_crate_takes() {
    for pre in [
        "gpt-2",
        "starcoder",
        "llama-bpe",
        "glm4",
        "qwen2",
        "qwen35",
        "gpt-4o",
        "tekken",
        "kimi-k2",
        "deepseek-v3",
        "bailingmoe",
        "seed-coder",
        "falcon",
        "minicpm5",
    ] {
        let vocabulary = Vocabulary { pre: Some(pre.to_owned()), ..listed_pebble() };
        let tokenizer = tokenizer(&vocabulary);
        for text in TEXTS {
            let ids = tokenizer.encode(text, false).expect("ids");
            // Accents are composed by Qwen's.
            let back = tokenizer.decode(&ids, false).expect("text");
            assert!(
                back == text || text.contains('\u{301}'),
                "{pre}: {text:?} came back as {back:?}"
            );
        }
    }
}

#[test]
fn texts_begin_and_end_as_the_file_says() {
    let mut vocabulary = listed_pebble();
    vocabulary.special.insert("bos", 5);
    let ids = |vocabulary: &Vocabulary| tokenizer(vocabulary).encode("fox", true).expect("ids");
    let plain = ids(&vocabulary);
    let eos = vocabulary.special["eos"];
    vocabulary.add_bos = Some(true);
    assert_eq!(ids(&vocabulary), [&[5], &plain[..]].concat());
    vocabulary.add_eos = Some(true);
    assert_eq!(ids(&vocabulary), [&[5], &plain[..], &[eos]].concat());
    // Llama 3's begin so of themselves.
    let llama = Vocabulary {
        pre: Some("llama-bpe".to_owned()),
        add_bos: None,
        add_eos: None,
        ..vocabulary
    };
    assert_eq!(ids(&llama)[0], 5);
}

#[test]
fn parts_of_answers_are_no_ends() {
    let ends = |tokens: &[&str]| {
        let tokens = tokens.iter().map(|&token| token.to_owned()).collect();
        ends::of(&Vocabulary { tokens, ..Vocabulary::default() })
    };
    assert_eq!(ends(&["a", "<|end|>", "</s>"]), BTreeSet::from([1, 2]));
    assert_eq!(ends(&["<|call|>", "<|end|>", "<|return|>"]), BTreeSet::from([0, 2]));
    assert_eq!(ends(&["</s>", "<|tool_response>", "<turn|>"]), BTreeSet::from([1, 2]));
    let special = BTreeMap::from([("eos", 1), ("eom", 9)]);
    let vocabulary = Vocabulary {
        tokens: vec!["x".to_owned(), "y".to_owned()],
        special,
        ends: vec![0],
        ..Vocabulary::default()
    };
    assert_eq!(ends::of(&vocabulary), BTreeSet::from([0, 1]));
}

/// Sentencepiece as its authors describe it: the adjacent pair whose piece has the highest score is joined, the leftmost
/// of several, until there is none.
fn joined(text: &str, scores: &BTreeMap<String, f32>) -> Vec<String> {
    let mut pieces: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 0..pieces.len().saturating_sub(1) {
            let score = scores.get(&format!("{}{}", pieces[at], pieces[at + 1]));
            if let Some(&score) = score
                && best.is_none_or(|(most, _)| score > most)
            {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { return pieces };
        let right = pieces.remove(at + 1);
        pieces[at] += &right;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pieces_are_joined_by_score(
        words in prop::collection::btree_set("[abc]{2,5}", 1..40),
        order in any::<u64>(),
        text in "[abc ]{0,30}",
    ) {
        let mut tokens: Vec<String> = ["<unk>", "a", "b", "c", SPACE].map(String::from).to_vec();
        tokens.extend(words);
        // Scores are distinct, as those of trained vocabularies are.
        let score = |id: usize| -(((id as u64).wrapping_mul(order | 1) % 65_521) as f32 + id as f32 / 1000.0);
        let scores: Vec<f32> = (0..tokens.len()).map(score).collect();
        let known = tokens.iter().cloned().zip(scores.iter().copied()).skip(1).collect();
        let vocabulary = Vocabulary {
            model: "llama".to_owned(),
            kinds: vec![2],
            special: BTreeMap::from([("unknown", 0)]),
            tokens,
            scores,
            ..Vocabulary::default()
        };
        let tokenizer = tokenizer(&vocabulary);
        let ids = tokenizer.encode(&text, false).expect("ids");
        let pieces = ids.iter().map(|&id| vocabulary.tokens[id as usize].clone());
        let prefixed = if text.is_empty() { String::new() } else { format!("{SPACE}{}", text.replace(' ', SPACE)) };
        prop_assert_eq!(pieces.collect::<Vec<_>>(), joined(&prefixed, &known));
    }
}
