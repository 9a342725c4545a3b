//! Calls of tools in a conversation, and the text next to them: in the form that a template shows.
//!
//! Templates differ in what they take, and show or refuse the rest: ids of nine characters, one call a message,
//! no content next to a call, thinking under another key. Nothing in a template says so, so each is tried once
//! with words to look for, and only a form that was seen to be shown replaces another. What was said, thought and
//! called is never dropped here.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::{ChatRequest, ChatTemplate};

/// Words no template contains: a call, another, what was said and what was thought next to them.
const CALL: &str = "millstream-call";
const OTHER: &str = "millstream-other";
const SAID: &str = "millstream-said";
const THOUGHT: &str = "millstream-thought";

/// The key of thinking as clients send it, and those of templates that know another.
const THINKING: &str = "reasoning_content";
const THINKING_KEYS: [&str; 3] = [THINKING, "reasoning", "thinking"];
/// Ids that every template takes have this length.
const ID_LENGTH: usize = 9;

/// What a template was seen to show of a message with calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Arguments must be JSON text: with objects the calls are not shown (DeepSeek V3's first template).
    arguments_as_text: bool,
    /// Next to `content: null` calls are shown, and no `None`.
    null: bool,
    /// Next to `content: ""` they are.
    empty: bool,
    /// Next to words they are not, but after them, in a message of their own, repeatedly (DeepSeek R1's distillates).
    /// Mistral's templates take words for a turn, of which there may not be two: they drop words next to calls.
    words_apart: bool,
    /// Ids have nine letters and digits, or the template refuses them (Mistral).
    short_ids: bool,
    /// Only one call a message (Llama 3 refuses more, gpt-oss drops them).
    single: bool,
    /// The key under which thinking is shown, if any is.
    thinking: Option<&'static str>,
    /// Thinking and words are shown together in place of thinking only (gpt-oss).
    words_with_thinking: bool,
}

impl Abilities {
    /// `content` is how the template wants words.
    pub(super) fn probe(template: &ChatTemplate, content: impl Fn(&str) -> Value) -> Self {
        let user = || json!({"role": "user", "content": content("q")});
        // Calls come where there are tools, and some models have a template of their own for that.
        let function = json!({"name": "f", "description": "f", "parameters": {"type": "object", "properties": {}}});
        let tool = template.has_tool_use.then(|| json!({"type": "function", "function": function}));
        let shows = |turn: Vec<Value>, words: &[&str]| {
            let messages = std::iter::once(user()).chain(turn);
            let tools = tool.iter().cloned().collect();
            let request = ChatRequest { tools, ..ChatRequest::new(messages) };
            let shown = template.render_exact(&request).unwrap_or_default();
            words.iter().all(|word| shown.contains(word)) && !shown.contains("None")
        };
        let call = |id: &str, name: &str, arguments: &Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let result = |id: &str, name: &str| json!({"role": "tool", "tool_call_id": id, "name": name, "content": content("r")});
        let turn = |content: &Value, calls: Vec<Value>| json!({"role": "assistant", "content": content, "tool_calls": calls});

        let (object, text) = (json!({"x": 1}), json!("{\"x\": 1}"));
        let takes = |arguments: &Value, content: &Value| {
            shows(vec![turn(content, vec![call("abcdef123", CALL, arguments)])], &[CALL])
        };
        let takes_objects = takes(&object, &Value::Null) || takes(&object, &json!(""));
        let arguments_as_text = !takes_objects && takes(&text, &Value::Null);
        let arguments = if arguments_as_text { text } else { object };
        let null = takes(&arguments, &Value::Null);
        let empty = takes(&arguments, &json!(""));
        let silence = if null { Value::Null } else { json!("") };

        let one = |id: &str| call(id, CALL, &arguments);
        let alone = |id: &str| vec![turn(&silence, vec![one(id)])];
        let long = "call_0123456789abcdef";
        let two = || turn(&silence, vec![one("abcdef123"), call("abcdef124", OTHER, &arguments)]);
        let results = || [result("abcdef123", CALL), result("abcdef124", OTHER)];
        let both = [CALL, OTHER];
        let shows_two = shows(vec![two()], &both)
            || shows(std::iter::once(two()).chain(results()).collect(), &both);
        let apart = || {
            let mut turns = alone("abcdef123");
            turns.push(result("abcdef123", CALL));
            turns.push(turn(&silence, vec![call("abcdef124", OTHER, &arguments)]));
            turns.push(result("abcdef124", OTHER));
            turns
        };

        let said = turn(&content(SAID), vec![one("abcdef123")]);
        let words = || json!({"role": "assistant", "content": content(SAID)});
        // As an agent continues: one call after another, an answer, another question.
        let words_before = || {
            let mut turns = vec![words()];
            turns.extend(alone("abcdef123"));
            turns.extend([result("abcdef123", CALL), words()]);
            turns.push(turn(&silence, vec![call("abcdef124", OTHER, &arguments)]));
            turns.extend([result("abcdef124", OTHER), words(), user()]);
            turns
        };
        let thought = |key: &str, content: &Value, thought: &str| {
            let mut turn = turn(content, vec![one("abcdef123")]);
            turn[key] = thought.into();
            turn
        };
        let thinking = THINKING_KEYS
            .into_iter()
            .find(|key| shows(vec![thought(key, &silence, THOUGHT)], &[CALL, THOUGHT]));
        let words_with_thinking = thinking.is_some_and(|key| {
            let words = [CALL, THOUGHT, SAID];
            let joined = format!("{THOUGHT}\n\n{SAID}");
            !shows(vec![thought(key, &content(SAID), THOUGHT)], &words)
                && shows(vec![thought(key, &silence, &joined)], &words)
        });
        Self {
            arguments_as_text,
            null,
            empty,
            words_apart: !shows(vec![said], &[CALL, SAID])
                && shows(words_before(), &[CALL, OTHER, SAID]),
            short_ids: !shows(alone(long), &[CALL]) && shows(alone("abcdef123"), &[CALL]),
            single: !shows_two && shows(apart(), &both),
            thinking,
            words_with_thinking,
        }
    }

    /// A turn of the assistant and the results of its calls.
    fn adapt(self, mut turn: Map<String, Value>, results: Vec<Value>) -> Vec<Value> {
        if let Some(key) = self.thinking.filter(|&key| key != THINKING)
            && let Some(thought) = turn.remove(THINKING)
        {
            turn.entry(key).or_insert(thought);
        }
        let Some(Value::Array(mut calls)) = turn.remove("tool_calls") else {
            return std::iter::once(turn.into()).chain(results).collect();
        };
        if self.arguments_as_text {
            calls.iter_mut().for_each(arguments_to_text);
        }
        let mut adapted = Vec::new();
        if is_silent(&turn) {
            self.silence(&mut turn);
        } else if !calls.is_empty() {
            self.make_room_for_words(&mut turn, &mut adapted);
        }
        if !self.single || calls.len() < 2 {
            turn.insert("tool_calls".to_owned(), calls.into());
            adapted.push(turn.into());
            adapted.extend(results);
            return adapted;
        }
        let mut results = results_by_call(&calls, results).into_iter();
        for call in calls {
            turn.insert("tool_calls".to_owned(), vec![call].into());
            adapted.push(turn.into());
            adapted.extend(results.next().unwrap_or_default());
            turn = Map::from_iter([("role".to_owned(), "assistant".into())]);
            turn.insert("content".to_owned(), Value::Null);
            self.silence(&mut turn);
        }
        adapted
    }

    /// Nothing was said: in the form next to which calls are shown.
    fn silence(self, turn: &mut Map<String, Value>) {
        let is_null = turn.get("content").is_none_or(Value::is_null);
        if is_null && !self.null {
            turn.insert("content".to_owned(), "".into());
        } else if !is_null && !self.empty && self.null {
            turn.insert("content".to_owned(), Value::Null);
        }
    }

    /// Something was said next to calls, which not every template shows.
    fn make_room_for_words(self, turn: &mut Map<String, Value>, before: &mut Vec<Value>) {
        let said = turn.get("content").and_then(words);
        let thought = self.thinking.and_then(|key| turn.get_mut(key));
        match (said, thought) {
            (Some(said), Some(Value::String(thought)))
                if self.words_with_thinking && !thought.is_empty() =>
            {
                *thought = format!("{thought}\n\n{said}");
                turn.insert("content".to_owned(), "".into());
            }
            _ if self.words_apart => {
                before.push(turn.clone().into());
                turn.remove(self.thinking.unwrap_or(THINKING));
                turn.insert("content".to_owned(), Value::Null);
            }
            _ => return,
        }
        self.silence(turn);
    }
}

/// Brings turns of the assistant to a form that the template shows. `abilities` is called only when it matters.
pub(super) fn adapt(messages: Vec<Value>, abilities: impl Fn() -> Abilities) -> Vec<Value> {
    let matters =
        |message: &Value| message["tool_calls"].is_array() || message[THINKING].is_string();
    if !messages.iter().any(matters) {
        return messages;
    }
    let abilities = abilities();
    let mut adapted = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(message) = messages.next() {
        match message {
            Value::Object(turn) if turn.get("role").is_some_and(|role| role == "assistant") => {
                let is_result = |message: &Value| message["role"] == "tool";
                let results = std::iter::from_fn(|| messages.next_if(is_result)).collect();
                adapted.extend(abilities.adapt(turn, results));
            }
            message => adapted.push(message),
        }
    }
    if abilities.short_ids {
        adapted.iter_mut().for_each(shorten_ids);
    }
    adapted
}

fn is_silent(turn: &Map<String, Value>) -> bool {
    match turn.get("content") {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(parts)) => parts.is_empty(),
        Some(_) => false,
    }
}

/// The words of a content that has nothing else.
fn words(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str()).collect(),
        _ => None,
    }
}

/// The results of each call: those that name it, or if that does not identify all of them, in their order.
fn results_by_call(calls: &[Value], results: Vec<Value>) -> Vec<Vec<Value>> {
    let ids =
        calls.iter().enumerate().filter_map(|(index, call)| Some((call["id"].as_str()?, index)));
    let places: HashMap<&str, usize> = ids.collect();
    let named = |result: &Value| places.get(result["tool_call_id"].as_str()?).copied();
    let by_name =
        places.len() == calls.len() && results.iter().all(|result| named(result).is_some());
    let mut of_calls = vec![Vec::new(); calls.len()];
    for (index, result) in results.into_iter().enumerate() {
        let call = named(&result).filter(|_| by_name).unwrap_or(index.min(calls.len() - 1));
        of_calls[call].push(result);
    }
    of_calls
}

fn arguments_to_text(call: &mut Value) {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && arguments.is_object()
    {
        *arguments = Value::from(arguments.to_string());
    }
}

fn shorten_ids(message: &mut Value) {
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        calls.iter_mut().filter_map(|call| call.get_mut("id")).for_each(shorten);
    }
    message.get_mut("tool_call_id").into_iter().for_each(shorten);
}

/// The same id always becomes the same: a call and its result know each other by it, and the next turn's prompt begins with
/// this one's.
fn shorten(id: &mut Value) {
    let Value::String(text) = id else { return };
    if text.len() == ID_LENGTH && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return;
    }
    // FNV-1a.
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let digits = std::iter::repeat_with(|| {
        let digit = char::from_digit((hash % 36) as u32, 36);
        hash /= 36;
        digit.unwrap_or('0')
    });
    *text = digits.take(ID_LENGTH).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn of the assistant with calls of `a`, `b`, … and their results, by a template for a message `m`.
    #[track_caller]
    fn check(message: &str, turn: Value, calls: usize, expect: &str) {
        let source = format!(
            "{{% for m in messages %}}{{% if m.role == 'tool' %}}={{{{ m.content }}}};\
             {{% elif m.role == 'assistant' %}}{message}{{% endif %}}{{% endfor %}}"
        );
        let template = ChatTemplate::new(&source, None, None).unwrap();
        let id = |number: usize| format!("call_{number}_of_many");
        let name = |number: usize| char::from(b'a' + number as u8).to_string();
        let call = |number: usize| json!({"id": id(number), "type": "function", "function": {"name": name(number), "arguments": {}}});
        let mut turn = turn;
        turn["role"] = "assistant".into();
        turn["tool_calls"] = (0..calls).map(call).collect();
        let result = |number: usize| json!({"role": "tool", "tool_call_id": id(number), "content": name(number)});
        let messages = std::iter::once(turn).chain((0..calls).map(result));
        assert_eq!(template.render(&ChatRequest::new(messages)).unwrap(), expect);
    }

    const CALLS: &str = "{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}";

    #[test]
    fn calls_come_one_by_one_where_only_one_is_shown() {
        let first = "{{ m.content }}[{{ m.tool_calls[0].function.name }}]";
        check(first, json!({"content": "so "}), 3, "so [a]=a;[b]=b;[c]=c;");
        let refuses = format!(
            "{{% if m.tool_calls|length != 1 %}}{{{{ raise_exception('one') }}}}{{% endif %}}{CALLS}"
        );
        check(&refuses, json!({"content": null}), 2, "[a]=a;[b]=b;");
        check(CALLS, json!({"content": null}), 2, "[a][b]=a;=b;");
    }

    #[test]
    fn results_that_name_no_call_are_matched_by_their_order() {
        let calls = [json!({"id": "1"}), json!({"id": "2"})];
        let result = |id: &str| json!({"tool_call_id": id});
        let by_call = |ids: &[&str]| {
            results_by_call(&calls, ids.iter().map(|id| result(id)).collect())
                .into_iter()
                .map(|results| results.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(by_call(&["2"]), [0, 1]);
        assert_eq!(by_call(&["2", "1", "2"]), [1, 2]);
        assert_eq!(by_call(&["x"]), [1, 0]);
        assert_eq!(by_call(&["x", "1", "2"]), [1, 2]);
        assert_eq!(by_call(&[]), [0, 0]);
        let (calls, results) =
            ([json!({"id": "0"}), json!({"id": "0"})], [result("0"), result("0")]);
        assert!(results_by_call(&calls, results.into()).iter().all(|results| results.len() == 1));
    }

    #[test]
    fn ids_are_short_where_long_ones_are_refused() {
        let refuses = "{% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('id') }}{% endif %}\
                       [{{ c.function.name }}]{% endfor %}";
        check(refuses, json!({"content": null}), 2, "[a][b]=a;=b;");
        let mut message = json!({"tool_calls": [{"id": "call_1"}, {"id": "abcDEF123"}], "tool_call_id": "call_1"});
        shorten_ids(&mut message);
        let id = message["tool_calls"][0]["id"].as_str().unwrap();
        assert!(id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(
            (&message["tool_call_id"], &message["tool_calls"][1]["id"]),
            (&json!(id), &json!("abcDEF123"))
        );
    }

    #[test]
    fn thinking_comes_under_the_key_that_is_shown() {
        let turn = |said: &str| json!({"content": said, "reasoning_content": "hm"});
        let thinking = format!("({{{{ m.thinking }}}}){{{{ m.content }}}}{CALLS}");
        check(&thinking, turn("so"), 1, "(hm)so[a]=a;");
        // Like gpt-oss: one of the two.
        let either = format!(
            "{{% if m.thinking and m.content %}}{{{{ raise_exception('both') }}}}{{% endif %}}\
             ({{{{ m.thinking or m.content }}}}){CALLS}"
        );
        check(&either, turn("so"), 1, "(hm\n\nso)[a]=a;");
        check(&either, turn(""), 1, "(hm)[a]=a;");
        check(&either, json!({"content": "so"}), 1, "(so)[a]=a;");
    }

    #[test]
    fn silence_and_words_stand_next_to_calls_as_the_template_wants_them() {
        let only_null = format!(
            "{{% if m.content is none %}}{CALLS}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
        );
        check(&only_null, json!({"content": ""}), 1, "[a]=a;");
        check(&only_null, json!({"content": "so"}), 2, "so[a][b]=a;=b;");
        let prints = format!("{{{{ m.content }}}}{CALLS}");
        check(&prints, json!({"content": null}), 1, "[a]=a;");
        check(&prints, json!({"content": ""}), 1, "[a]=a;");
        // Nothing is known of a template that shows no calls: messages stay as they are.
        check("{{ m.content }}", json!({"content": "so"}), 2, "so=a;=b;");
    }
}
