//! Grammars take no more memory than they are granted, whatever they request.
//!
//! A binary of its own, since its allocator counts.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use checkpoint::Checkpoint;
use grammar::{Allowance, Before, ConstraintError, Grammar, GrammarError, Grammars};
use serde_json::{Map, Value, json};
use text::ModelText;

use counting::peak_of;

#[path = "../../text/tests/counting/mod.rs"]
mod counting;

const PURSE_BYTES: usize = 48 << 20;
const STEP_BYTES: usize = 3 << 20;
/// Two steps, the text of the grammar some times over, threads.
const BESIDE_BYTES: usize = 2 * STEP_BYTES + (6 << 20);

/// Tests take turns as a whole: what one prepares would count in the peak of another.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many bytes for all grammars together.
struct Purse {
    all: usize,
    used: AtomicUsize,
}

impl Purse {
    fn new(all: usize) -> Arc<Purse> {
        Arc::new(Purse { all, used: AtomicUsize::new(0) })
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What was taken is released when the threads that follow grammars have noticed the end.
    fn wait_until_used(&self, bytes: usize) {
        while self.used() != bytes {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Allowance for Purse {
    fn resize(&self, from: usize, to: usize) -> bool {
        let change =
            |used: usize| Some(used - from + to).filter(|&used| to <= from || used <= self.all);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    fn step_bytes(&self) -> usize {
        STEP_BYTES
    }
}

fn grammars(purse: &Arc<Purse>) -> (Grammars, ModelText) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pebble");
    let text = engine::open_text(&Checkpoint::open(&folder).expect("pebble")).expect("text");
    let vocabulary = text.tokenizer.vocab_size();
    let purse = Arc::clone(purse) as Arc<dyn Allowance>;
    let grammars = Grammars::new(&text.tokenizer.grammar_tokens(vocabulary), &text.eos, purse)
        .expect("grammars");
    (grammars, text)
}

/// Compiles, follows the first token that may come, again and again, and says how that ended.
fn follow(grammars: &Grammars, grammar: &Grammar, ends: impl Fn(u32) -> bool) -> String {
    let mut constraint = match grammars.compile(grammar, Before::Nothing) {
        Ok(constraint) => constraint,
        Err(error) => return error.to_string(),
    };
    for count in 0..200 {
        let token = match constraint.mask() {
            Ok(mask) => mask.and_then(|mask| mask.tokens().find(|&token| !ends(token))),
            Err(error) => return format!("{error} after {count} tokens"),
        };
        let Some(token) = token else { return format!("ended after {count} tokens") };
        constraint.accept(token);
    }
    "followed".to_owned()
}

#[track_caller]
fn check(name: &str, grammar: &Grammar) {
    let purse = Purse::new(PURSE_BYTES);
    let (grammars, text) = grammars(&purse);
    let (outcome, peak) = peak_of(|| follow(&grammars, grammar, |token| text.eos.contains(&token)));
    println!("{name}: {outcome}; {peak} bytes, {} counted", purse.used());
    assert!(peak <= PURSE_BYTES + BESIDE_BYTES, "{name}: {peak} bytes");
    drop(grammars);
    purse.wait_until_used(0);
}

fn object(properties: impl Iterator<Item = (String, Value)>) -> Value {
    json!({"type": "object", "properties": properties.collect::<Map<_, _>>()})
}

#[test]
fn hostile_schemas_stay_within_the_memory() {
    let _turn = turn();
    let check = |name, schema| check(name, &Grammar::JsonSchema(schema));
    let text = json!({"type": "string"});
    check("500 properties", object((0..500).map(|i| (format!("p{i}"), text.clone()))));
    let wide = json!({"type": "string", "pattern": "^(a|b)*a(a|b){400}$"});
    check("an exponential pattern", wide.clone());
    let many = (0..100).map(|i| {
        (
            format!("p{i}"),
            json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{}}}$", 50 + i)}),
        )
    });
    check("100 exponential patterns", object(many));
    check(
        "a long bounded string",
        json!({"type": "string", "minLength": 10_000, "maxLength": 1_000_000}),
    );
    check(
        "a long enum",
        json!({"enum": (0..2000).map(|i| "x".repeat(i % 100) + &i.to_string()).collect::<Vec<_>>()}),
    );
    check("a long constant", json!({"const": "x".repeat(200 << 10)}));
    check(
        "a deep array",
        (0..60).fold(text.clone(), |inner, _| json!({"type": "array", "items": inner})),
    );
    let options: Vec<Value> =
        (0..400).map(|i| object(std::iter::once((format!("k{i}"), wide.clone())))).collect();
    check("400 options", json!({"anyOf": options}));
    let patterns: Map<String, Value> =
        (0..90).map(|i| (format!("^{i}[a-z]{{1,200}}$"), text.clone())).collect();
    check("90 patterns of names", json!({"type": "object", "patternProperties": patterns}));
    check(
        "long arrays",
        json!({"type": "array", "items": {"enum": [1, 2]}, "minItems": 5000, "maxItems": 100_000}),
    );
    check("a great number", json!({"type": "integer", "minimum": 1, "maximum": 1e300}));
    check("a multiple", json!({"type": "number", "multipleOf": 0.000_1}));
}

#[test]
fn hostile_expressions_stay_within_the_memory() {
    let _turn = turn();
    let regex = |name, text: &str| check(name, &Grammar::Regex(text.to_owned()));
    regex("nested repeats", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}");
    regex("an exponential expression", "(a|b)*a(a|b){1000}");
    regex("alternatives", &(0..2000).map(|i| format!("x{i}y")).collect::<Vec<_>>().join("|"));
    regex("wide classes", &"[\\p{L}\\p{N}]{1,50}".repeat(100));
    regex("words in any order", &"(\\w+ ){0,500}".repeat(20));
    let lark = |name, text: &str| check(name, &Grammar::Lark(text.to_owned()));
    lark("an ambiguous rule", "start: a\na: a a | \"x\" | \"xx\" | a a a\n");
    let rules: String =
        (0..1900).map(|i| format!("r{i}: \"a{i}\" r{} | \"b\"\n", (i + 1) % 1900)).collect();
    lark("1,900 rules", &format!("start: r0\n{rules}"));
    let tokens: String = (0..900).map(|i| format!("T{i}: /(a|b)*a(a|b){{{i}}}/\n")).collect();
    let names: Vec<String> = (0..900).map(|i| format!("T{i}")).collect();
    lark("900 exponential tokens", &format!("start: {}\n{tokens}", names.join(" | ")));
    lark("a complement", "start: T\nT: ~/.*(a.*b|c.*d|e.*f|g.*h).*/\n");
    lark("a great repeat", "start: (\"a\" | \"b\"){1,1000000}\n");
}

#[test]
fn the_memory_of_a_long_answer_is_counted() {
    let _turn = turn();
    let purse = Purse::new(usize::MAX / 2);
    let (grammars, text) = grammars(&purse);
    let item = json!({"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name", "size"], "additionalProperties": false});
    let schema = Grammar::JsonSchema(json!({"type": "array", "items": item}));
    let mut constraint = grammars.compile(&schema, Before::Nothing).expect("a grammar");
    let answer =
        format!("[{}", "{\"name\": \"a name of some length\", \"size\": 12345}, ".repeat(500));
    let tokens = text.tokenizer.encode(&answer, false).expect("tokens");
    let counted = purse.used();
    let ((), peak) = peak_of(|| {
        for &token in &tokens {
            assert!(constraint.mask().expect("a mask").expect("bounds").allows(token));
            constraint.accept(token);
        }
        constraint.mask().expect("a mask");
    });
    let counted = purse.used() - counted;
    println!("{} tokens: {peak} bytes, {counted} counted", tokens.len());
    assert!(counted + (256 << 10) >= peak, "{counted} bytes are counted, {peak} are taken");
    assert!(counted <= 4 * peak, "{counted} bytes are counted, {peak} are taken");
}

#[test]
fn without_room_a_grammar_is_refused_and_an_answer_fails() {
    let _turn = turn();
    let purse = Purse::new(4 << 20);
    let (grammars, _) = grammars(&purse);
    let schema = |index: usize| Grammar::JsonSchema(json!({"const": format!("text {index}")}));
    // Cached grammars of these are evicted for new ones.
    for index in 0..100 {
        let compiled = grammars.compile(&schema(index), Before::Nothing);
        assert!(compiled.is_ok(), "{index}: {compiled:?}");
    }
    let mut held = Vec::new();
    let refused = loop {
        match grammars.compile(&schema(held.len()), Before::Nothing) {
            Ok(constraint) => held.push(constraint),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, GrammarError::NoMemory { .. }), "{refused}");
    assert!(held.len() > 10, "{} fit", held.len());
    // With all that is left taken, an answer cannot grow, and is freed.
    let left = purse.all - purse.used();
    assert!(purse.resize(0, left));
    let error = held[0].fork().expect_err("no room for a copy");
    assert!(matches!(error, ConstraintError::NoMemory { .. }), "{error}");
    assert_eq!(held[0].clone().mask().err(), Some(error));
    drop(held);
    drop(grammars);
    purse.wait_until_used(left);
}
