//! The prefix cache as a client sees it: what was said before is not read again.

use serde_json::{Value, json};

use super::served::{COLD, HOT, Served, question};

fn cached_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// So many sentences that a tokenizer has something to do.
pub(crate) fn sentences(count: usize) -> String {
    let who = ["The teacher", "A visitor", "My neighbour", "The old wolf", "Nobody"];
    let what =
        ["looked at the lantern", "walked to the harbour", "bought some pears", "slept until noon"];
    let when = ["on Monday", "in the morning", "again"];
    let sentence = |index: usize| {
        let pick = |words: &[&'static str], step: usize| words[index * step % words.len()];
        format!("{} {} {}. ", pick(&who, 3), pick(&what, 7), pick(&when, 5))
    };
    (0..count).map(sentence).collect()
}

#[test]
fn a_second_turn_reads_only_what_is_new() {
    let served = Served::start(&[]);
    let mut messages = vec![json!({
        "role": "user",
        "content": format!("Please read this.\n\n{}The code of the yellow locker is 3076. {}\n\nWhat is the code of the yellow locker?",
                           sentences(150), sentences(90)),
    })];
    let ask = |messages: &[Value]| {
        served.chat(&json!({"messages": messages, "temperature": 0, "max_tokens": 64}))
    };
    let first = ask(&messages);
    let first_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(
        (1900..3000).contains(&first_tokens),
        "{first_tokens} tokens are not what this test is about"
    );
    assert_eq!(cached_tokens(&first), 0);
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": COLD}));
    let second = ask(&messages);
    let cached = cached_tokens(&second);
    assert!(
        cached * 100 >= first_tokens * 95,
        "{cached} tokens of the first turn's {first_tokens} were remembered"
    );
    // A third turn remembers the second, its answer too.
    messages.push(second["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "And of hot?"}));
    let second_tokens = second["usage"]["prompt_tokens"].as_u64().unwrap();
    let third = ask(&messages);
    assert!(cached_tokens(&third) * 100 >= second_tokens * 95, "{third}");
    // What is remembered changes no answer.
    let cold = Served::start(&[]);
    let body =
        json!({"messages": &messages[..3], "temperature": 0, "max_tokens": 64, "logprobs": true});
    let (fresh, warm) = (cold.chat(&body), served.chat(&body));
    assert_eq!((cached_tokens(&fresh), fresh["choices"].clone()), (0, warm["choices"].clone()));
    assert!(cached_tokens(&warm) > 0);
}

#[test]
fn requests_with_the_same_beginning_share_it() {
    let served = Served::start(&["--parallel", "4"]);
    let start = format!("Text:\n\n{}", sentences(60));
    let ask = |end: &str| served.chat(&question(&format!("{start}\n\n{end}")));
    let first = ask("Who slept until noon?");
    assert_eq!(cached_tokens(&first), 0);
    // Branches off after the text, which is most of it.
    let other = ask(COLD);
    let tokens = other["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached_tokens(&other) > tokens / 2, "{other}");
    // The same again: all but the end is there.
    let again = ask(COLD);
    assert!(cached_tokens(&again) > tokens * 9 / 10, "{again}");
    assert_eq!(again["choices"], other["choices"]);
    assert_ne!(served.chat(&question("hello"))["usage"]["prompt_tokens"], json!(0));
    assert_eq!(served.chat(&question(COLD))["choices"][0]["message"]["content"], HOT);
}
