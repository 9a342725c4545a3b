//! Pebble under grammars: every answer fits, within the tokens that its schema allows.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use checkpoint::Checkpoint;
use engine::{Engine, Event, FinishReason, Request, SamplingParams};
use grammar::{Before, ConstraintError, Grammar, Grammars, Unlimited};
use runtime::{Options, Runner};
use serde_json::{Value, json};
use text::{ChatRequest, ModelText};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn evaluation() -> Value {
    let path = root().join("testdata/pebble/eval.json");
    serde_json::from_slice(&std::fs::read(path).expect("eval.json")).expect("JSON")
}

struct Pebble {
    text: ModelText,
    grammars: Grammars,
    engine: Engine,
}

/// One for all tests: several at once would compete for the cores.
fn pebble() -> MutexGuard<'static, Pebble> {
    static PEBBLE: OnceLock<Mutex<Pebble>> = OnceLock::new();
    let pebble = PEBBLE.get_or_init(|| Mutex::new(open()));
    pebble.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open() -> Pebble {
    let checkpoint = Checkpoint::open(&root().join("models/pebble")).expect("pebble");
    let text = engine::open_text(&checkpoint).expect("text");
    let options = Options { context: 4096, sequences: 16, ..Options::default() };
    let runner = Runner::load(&checkpoint, &options, &|_, _| {}).expect("model");
    let vocabulary = runner.spec().vocab;
    let grammars =
        Grammars::new(&text.tokenizer.grammar_tokens(vocabulary), &text.eos, Arc::new(Unlimited))
            .expect("grammars");
    Pebble { text, grammars, engine: Engine::new(runner) }
}

impl Pebble {
    fn request(&self, say: &str, grammar: &Grammar, max_tokens: usize, seed: u64) -> Request {
        let mut chat = ChatRequest::new([json!({"role": "user", "content": say})]);
        chat.enable_thinking = Some(false);
        let greedy = seed.is_multiple_of(2);
        let temperature = if greedy { 0.0 } else { 1.0 };
        Request {
            prompt: self.text.prompt(&chat).expect("prompt").tokens,
            max_tokens,
            stop_tokens: self.text.eos.clone(),
            sampling: SamplingParams { temperature, seed, ..SamplingParams::default() },
            constraint: Some(self.grammars.compile(grammar, Before::Nothing).expect("grammar")),
            ..Request::default()
        }
    }

    /// Serves requests all at once; every one must end by itself.
    fn serve(&mut self, requests: Vec<Request>) -> Vec<String> {
        let ids: Vec<_> = requests
            .into_iter()
            .map(|request| self.engine.submit(request).expect("request"))
            .collect();
        let mut answers = vec![Vec::new(); ids.len()];
        let index = |id| ids.iter().position(|other| *other == id).expect("known");
        while !self.engine.is_idle() {
            for event in self.engine.step().expect("step") {
                match event {
                    Event::Token { id, sampled } => answers[index(id)].push(sampled.token),
                    Event::Finished { id, reason, .. } => {
                        let text = self.text.tokenizer.decode(&answers[index(id)], false);
                        assert_eq!(reason, FinishReason::Stop, "{text:?}");
                    }
                    Event::Failed { error, .. } => panic!("{error}"),
                    Event::Prefill { .. } => {}
                }
            }
        }
        let tokenizer = &self.text.tokenizer;
        answers.iter().map(|tokens| tokenizer.decode(tokens, false).expect("text")).collect()
    }
}

/// Whether a value satisfies a schema of the few keywords used here; others are a mistake of the test.
fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    let wrong = || Err(format!("{value} does not satisfy {schema}"));
    let number = |key: &str| schema[key].as_i64();
    let length = |key: &str| schema[key].as_u64().map(|length| length as usize);
    let right = schema.as_object().expect("an object").iter().all(|(keyword, rule)| match keyword
        .as_str()
    {
        "type" => match rule.as_str().expect("a type") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            other => panic!("type {other}"),
        },
        "const" => value == rule,
        "enum" => rule.as_array().expect("options").contains(value),
        "anyOf" => rule.as_array().expect("options").iter().any(|s| validate(s, value).is_ok()),
        "minimum" => value.as_i64() >= number(keyword),
        "maximum" => value.as_i64() <= number(keyword),
        "minLength" | "maxLength" => {
            let count = value.as_str().expect("a string").chars().count();
            if keyword == "minLength" {
                Some(count) >= length(keyword)
            } else {
                Some(count) <= length(keyword)
            }
        }
        "minItems" => value.as_array().map(Vec::len) >= length(keyword),
        "maxItems" => value.as_array().map(Vec::len) <= length(keyword),
        "items" => {
            value.as_array().is_some_and(|items| items.iter().all(|i| validate(rule, i).is_ok()))
        }
        "properties" => value.as_object().is_some_and(|object| {
            let rules = rule.as_object().expect("properties");
            object.iter().all(|(name, value)| {
                rules.get(name).is_some_and(|rule| validate(rule, value).is_ok())
            })
        }),
        "required" => rule
            .as_array()
            .expect("names")
            .iter()
            .all(|name| value.get(name.as_str().expect("a name")).is_some()),
        "additionalProperties" => rule == false, // "properties" looks at all of them
        "$schema" | "title" | "description" => true,
        other => panic!("keyword {other}"),
    });
    if right { Ok(()) } else { wrong() }
}

/// The longest JSON text that satisfies a schema, in bytes; no token is shorter than one.
fn longest(schema: &Value) -> usize {
    let count = |key: &str| schema[key].as_u64().expect("a bound") as usize;
    let most = |options: &Value, length: fn(&Value) -> usize| {
        let options = options.as_array().expect("options");
        options.iter().map(length).max().expect("an option")
    };
    if let Some(constant) = schema.get("const") {
        return constant.to_string().len();
    }
    if let Some(options) = schema.get("enum") {
        return most(options, |option| option.to_string().len());
    }
    if let Some(options) = schema.get("anyOf") {
        return most(options, longest);
    }
    match schema["type"].as_str().expect("a type") {
        // A control character takes six bytes, any other at most four.
        "string" => 2 + 6 * count("maxLength"),
        "integer" => {
            1 + schema["minimum"].to_string().len().max(schema["maximum"].to_string().len())
        }
        "boolean" => 5,
        "null" => 4,
        "array" => 2 + count("maxItems") * (longest(&schema["items"]) + 2),
        "object" => {
            let properties = schema["properties"].as_object().expect("properties");
            let pair = |(name, rule): (&String, &Value)| name.len() + 2 + 2 + longest(rule) + 2;
            2 + properties.iter().map(pair).sum::<usize>()
        }
        other => panic!("type {other}"),
    }
}

/// Any schema with a bound, the same for the same seed.
struct Generator(u64);

impl Generator {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn constant(&mut self) -> Value {
        match self.below(6) {
            0 => json!(["red", "grün", "日本", "\"quoted\"", "a\\b\n"][self.below(5)]),
            1 => json!(["yes", "no", "", "🙂", "null"][self.below(5)]),
            2 => json!(self.below(2000) as i64 - 1000),
            3 => json!(self.below(2) == 0),
            4 => Value::Null,
            _ => json!(format!("item {}", self.below(100))),
        }
    }

    fn schema(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 10 }) {
            0 => {
                let least = self.below(4);
                json!({"type": "string", "minLength": least, "maxLength": least + self.below(12)})
            }
            1 => {
                let least = self.below(500) as i64 - 250;
                let most = least + self.below(10_000) as i64;
                json!({"type": "integer", "minimum": least, "maximum": most})
            }
            2 => json!({"type": "boolean"}),
            3 => {
                let mut options = vec![self.constant()];
                for _ in 0..self.below(4) {
                    let option = self.constant();
                    if !options.contains(&option) {
                        options.push(option);
                    }
                }
                json!({"enum": options})
            }
            4 => json!({"const": self.constant()}),
            5 => json!({"type": "null"}),
            6 => {
                let least = self.below(3);
                let items = self.schema(depth - 1);
                json!({"type": "array", "items": items, "minItems": least, "maxItems": least + self.below(3)})
            }
            7 => json!({"anyOf": [self.schema(depth - 1), self.schema(depth - 1)]}),
            _ => self.object(depth),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut properties = serde_json::Map::new();
        let mut required = Vec::new();
        for _ in 0..1 + self.below(4) {
            let name = ["name", "age", "größe", "is ok", "tags", "x"][self.below(6)];
            if self.below(3) > 0 && !required.contains(&json!(name)) {
                required.push(json!(name));
            }
            properties.insert(name.to_owned(), self.schema(depth - 1));
        }
        json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        })
    }
}

#[test]
fn answers_to_random_schemas_validate_within_their_bound() {
    let mut pebble = pebble();
    let mut generator = Generator(4);
    let mut schemas = Vec::new();
    while schemas.len() < 100 {
        let schema = generator.object(3);
        if longest(&schema) <= 1200 {
            schemas.push(schema);
        }
    }
    let requests = schemas.iter().zip(0..).map(|(schema, seed)| {
        let grammar = Grammar::JsonSchema(schema.clone());
        pebble.request("Tell me about the weather.", &grammar, longest(schema) + 1, seed)
    });
    let requests = requests.collect();
    for (schema, answer) in schemas.iter().zip(pebble.serve(requests)) {
        let value: Value =
            serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        validate(schema, &value).unwrap();
        assert!(answer.len() <= longest(schema), "{answer} is longer than {schema} allows");
    }
}

#[test]
fn objects_regexes_and_lark_are_followed() {
    let mut pebble = pebble();
    let regex = "[A-Z][a-z]{2,8} is (1[0-9]|[1-9]) years old\\.";
    let lark = "start: \"call \" NAME \"(\" %json {\"type\": \"integer\", \"minimum\": 3, \"maximum\": 42} \")\"\n\
        NAME: /[a-z]{3,6}/\n";
    let colours = json!({"enum": ["rot", "grün", "青い", "🟡 gelb"]});
    let mut requests = Vec::new();
    for seed in 0..6 {
        requests.push(pebble.request(
            "How old is Ann?",
            &Grammar::Regex(regex.to_owned()),
            60,
            seed,
        ));
        requests.push(pebble.request("Call it.", &Grammar::Lark(lark.to_owned()), 60, seed));
        requests.push(pebble.request("A colour?", &Grammar::JsonSchema(colours.clone()), 60, seed));
    }
    // Nothing bounds an object, but Pebble knows where this one ends.
    let say = "Make a JSON object with name and age for Ruby (59).";
    requests.push(pebble.request(say, &Grammar::JsonObject, 200, 0));
    let answers = pebble.serve(requests);
    for answer in answers.chunks(3).take(6) {
        let (name, age) = answer[0].split_once(" is ").expect("a sentence");
        assert!(
            name.len() >= 3
                && name.len() <= 9
                && name.starts_with(|c: char| c.is_ascii_uppercase())
        );
        let age: usize =
            age.strip_suffix(" years old.").expect("an age").parse().expect("a number");
        assert!((1..20).contains(&age));
        let argument = answer[1]
            .strip_prefix("call ")
            .and_then(|call| call.split_once('('))
            .expect("a call")
            .1;
        let argument: i64 = argument.strip_suffix(')').expect("an end").parse().expect("a number");
        assert!((3..=42).contains(&argument));
        validate(&colours, &serde_json::from_str(&answer[2]).expect("JSON")).unwrap();
    }
    assert_eq!(answers[18], "{\"name\": \"Ruby\", \"age\": 59}");
}

#[test]
fn what_is_right_already_stays_as_it_is() {
    let mut pebble = pebble();
    let evaluation = evaluation();
    let items = evaluation["items"].as_array().expect("items");
    let lists = items.iter().filter(|item| {
        item["task"] == "json"
            && item["expected"].as_str().is_some_and(|text| text.starts_with('['))
    });
    let lists: Vec<&Value> = lists.take(5).collect();
    assert_eq!(lists.len(), 5);
    let requests = lists.iter().map(|item| {
        let say = item["messages"][0]["content"].as_str().expect("text");
        let schema = json!({"type": "array", "items": {}});
        pebble.request(say, &Grammar::JsonSchema(schema), 400, 0)
    });
    let requests = requests.collect();
    for (item, answer) in lists.iter().zip(pebble.serve(requests)) {
        assert_eq!(answer, item["expected"].as_str().expect("text"));
    }
}

#[test]
fn a_grammar_that_proves_too_complex_fails_its_own_request() {
    let mut pebble = pebble();
    // Too many properties, but further on than a grammar is tried.
    let properties: serde_json::Map<String, Value> =
        (0..600).map(|index| (format!("p{index}"), json!({"type": "string"}))).collect();
    let object = json!({"type": "object", "properties": properties});
    let complex = Grammar::Lark(format!("start: /[a-z]{{60}}/ %json {object}"));
    let simple = Grammar::Regex("[a-z]{100}".to_owned());
    let complex = pebble.request("Tell me a long story.", &complex, 300, 1);
    let simple = pebble.request("Tell me a story.", &simple, 300, 1);
    let complex = pebble.engine.submit(complex).expect("request");
    let simple = pebble.engine.submit(simple).expect("request");
    let (mut failed, mut finished) = (None, None);
    while !pebble.engine.is_idle() {
        for event in pebble.engine.step().expect("step") {
            match event {
                Event::Failed { id, error } => failed = Some((id, error)),
                Event::Finished { id, reason, .. } => finished = Some((id, reason)),
                Event::Token { .. } | Event::Prefill { .. } => {}
            }
        }
    }
    let (id, error) = failed.expect("a failure");
    assert_eq!(id, complex);
    assert!(matches!(error, engine::Error::Constraint(ConstraintError::Failed { .. })), "{error}");
    assert_eq!(finished, Some((simple, FinishReason::Stop)));
}

/// Within all limits of the library, and yet it would take minutes a token; some seconds are spent to find out.
#[test]
fn a_very_ambiguous_grammar_is_ended() {
    if std::env::var_os("MILLSTREAM_LONG_TESTS").is_none() {
        return;
    }
    let grammars = pebble().grammars.clone();
    let lark = Grammar::Lark("start: x\nx: x x x | x x | /[a-z]/".to_owned());
    let mut constraint = grammars.compile(&lark, Before::Nothing).expect("grammar");
    let error = (0..1000).find_map(|_| match constraint.mask() {
        Ok(mask) => {
            let letter = mask.expect("a mask").tokens().next().expect("a letter");
            constraint.accept(letter);
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(error, Some(ConstraintError::Failed { .. })), "{error:?}");
}

/// gpt-oss may think in its channel, then writes the header of an answer, and then JSON.
#[test]
fn harmony_frames_an_answer_that_follows_a_schema() {
    let pebble = pebble();
    let frame = text::tools::ToolFormat::Harmony.frame(&|_| None).expect("a frame");
    let (head, rules) = (&frame.head, &frame.rules);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false});
    let grammar = Grammar::Lark(format!("start: answer\nanswer: {head} %json {schema}\n{rules}"));
    let accepts = |text: &str| {
        let mut constraint = pebble.grammars.compile(&grammar, Before::Nothing).expect("grammar");
        for token in pebble.text.tokenizer.encode(text, false).expect("tokens") {
            if !constraint.mask().expect("no error").expect("a mask").allows(token) {
                return false;
            }
            constraint.accept(token);
        }
        let mask = constraint.mask().expect("no error").expect("a mask");
        pebble.text.eos.iter().any(|&end| mask.allows(end))
    };
    let thinking = "<|channel|>analysis<|message|>hm {<|end|><|start|>assistant";
    let answer = "<|channel|>final<|message|>{\"a\": 1}";
    assert!(accepts(answer));
    assert!(accepts(&format!("{thinking}{answer}")));
    assert!(!accepts("{\"a\": 1}"), "a header is missing");
    assert!(!accepts(thinking), "the answer is missing");
    assert!(!accepts("<|channel|>final<|message|>no"));
    assert!(!accepts(&format!("{thinking}<|channel|>final<|message|>{{\"a\": \"x\"}}")));
}

#[test]
fn thinking_is_free_and_the_answer_is_not() {
    let mut pebble = pebble();
    let evaluation = evaluation();
    let items = evaluation["items"].as_array().expect("items");
    let thinking = items.iter().filter(|item| item["enable_thinking"] == true).take(4);
    let schema = json!({
        "type": "object", "properties": {"answer": {"type": "string", "maxLength": 20}},
        "required": ["answer"], "additionalProperties": false,
    });
    let grammar = Grammar::JsonSchema(schema.clone());
    let requests: Vec<Request> = thinking
        .map(|item| {
            let mut chat = ChatRequest::new(item["messages"].as_array().expect("messages").clone());
            chat.enable_thinking = Some(true);
            let prompt = pebble.text.prompt(&chat).expect("prompt");
            assert!(prompt.text.trim_end().ends_with("<think>"), "{:?}", prompt.text);
            let constraint = pebble
                .grammars
                .compile(&grammar, Before::Thinking { close: "</think>" })
                .expect("grammar");
            Request {
                prompt: prompt.tokens,
                max_tokens: 1000,
                stop_tokens: pebble.text.eos.clone(),
                sampling: SamplingParams::greedy(),
                constraint: Some(constraint),
                ..Request::default()
            }
        })
        .collect();
    assert_eq!(requests.len(), 4);
    for answer in pebble.serve(requests) {
        let (thought, answer) = answer.split_once("</think>").expect("an end of thinking");
        assert!(!thought.trim().is_empty());
        let newlines = answer.len() - answer.trim_start_matches('\n').len();
        assert!(newlines <= 4, "{answer:?}");
        validate(&schema, &serde_json::from_str(answer).expect("JSON")).unwrap();
    }
}

#[test]
fn a_constrained_answer_is_the_same_in_any_batch() {
    let mut pebble = pebble();
    let mut generator = Generator(77);
    let schemas: Vec<Value> = (0..6).map(|_| generator.object(2)).collect();
    let request = |pebble: &Pebble, index: usize| {
        let grammar = Grammar::JsonSchema(schemas[index].clone());
        pebble.request("A person, please.", &grammar, longest(&schemas[index]) + 1, index as u64)
    };
    let requests = (0..6).map(|index| request(&pebble, index)).collect();
    let together = pebble.serve(requests);
    for (index, answer) in together.iter().enumerate() {
        let alone = vec![request(&pebble, index)];
        assert_eq!(pebble.serve(alone).first(), Some(answer));
    }
}
