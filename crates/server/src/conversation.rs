//! A conversation as chat templates take it, gathered from smaller things.
//!
//! OpenAI's items and Anthropic's blocks are finer than a template's messages: what the assistant thought,
//! said and called comes one by one, and several users' texts may follow each other. A [`Conversation`] joins
//! what belongs together, for many templates insist on turns.
//!
//! Invariant: there is at most one system message and it comes first. Instructions that come later are said by
//! the user, since most templates refuse a system message in the middle.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// What stands in a conversation for what a tool returned and no model here can see. Refused, it would lock a session:
/// the next request brings it again.
pub(crate) const IMAGE_LEFT_OUT: &str = "[image left out: this model reads text only]";
pub(crate) const DOCUMENT_LEFT_OUT: &str = "[document left out: this model reads text only]";

/// Between texts that were apart.
const BETWEEN: &str = "\n\n";

/// Messages under way.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    system: String,
    turns: Vec<Turn>,
    /// Names of called tools by the calls' ids.
    called: HashMap<String, String>,
}

#[derive(Debug)]
enum Turn {
    User(String),
    Assistant(Assistant),
    Tool { id: String, name: Option<String>, text: String },
}

/// One turn of the assistant.
#[derive(Debug, Default)]
pub(crate) struct Assistant {
    reasoning: String,
    content: String,
    calls: Vec<Value>,
}

impl Conversation {
    /// Messages that are not in turns, or not all of them.
    pub(crate) fn of_messages(messages: &[Value]) -> Conversation {
        let mut conversation = Conversation::default();
        for message in messages {
            let text = text_of(&message["content"]);
            match message["role"].as_str() {
                Some("system") => conversation.instructed(&text),
                Some("assistant") => {
                    conversation.thought(message["reasoning_content"].as_str().unwrap_or_default());
                    conversation.said(&text);
                    let calls = message["tool_calls"].as_array();
                    conversation.assistant().calls.extend(calls.into_iter().flatten().cloned());
                }
                Some("tool") => {
                    let id = message["tool_call_id"].as_str().unwrap_or_default();
                    conversation.returned(id, text);
                }
                _ => conversation.asked(&text),
            }
        }
        conversation
    }

    /// An instruction.
    pub(crate) fn instructed(&mut self, text: &str) {
        if self.turns.is_empty() { append(&mut self.system, text) } else { self.asked(text) }
    }

    /// The user said this.
    pub(crate) fn asked(&mut self, text: &str) {
        match self.turns.last_mut() {
            Some(Turn::User(before)) => append(before, text),
            _ => self.turns.push(Turn::User(text.to_owned())),
        }
    }

    /// The assistant thought this.
    pub(crate) fn thought(&mut self, text: &str) {
        append(&mut self.assistant().reasoning, text);
    }

    /// The assistant said this.
    pub(crate) fn said(&mut self, text: &str) {
        append(&mut self.assistant().content, text);
    }

    /// The assistant called a tool.
    pub(crate) fn called(&mut self, id: &str, name: &str, arguments: Map<String, Value>) {
        self.called.insert(id.to_owned(), name.to_owned());
        self.assistant().calls.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": Value::Object(arguments)},
        }));
    }

    /// The tool answered that call.
    pub(crate) fn returned(&mut self, id: &str, text: String) {
        let name = self.called.get(id).cloned();
        self.turns.push(Turn::Tool { id: id.to_owned(), name, text });
    }

    /// All that was said so far comes to this.
    pub(crate) fn summed_up(&mut self, summary: &str) {
        self.turns.clear();
        self.asked(summary);
    }

    /// The assistant's turn, if it is the last.
    pub(crate) fn last_assistant(&self) -> Option<&Assistant> {
        match self.turns.last() {
            Some(Turn::Assistant(assistant)) => Some(assistant),
            _ => None,
        }
    }

    /// Whether there are only instructions.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The messages.
    pub(crate) fn into_messages(self) -> Vec<Value> {
        let system =
            (!self.system.is_empty()).then(|| json!({"role": "system", "content": self.system}));
        let turns = self.turns.into_iter().map(|turn| match turn {
            Turn::User(text) => json!({"role": "user", "content": text}),
            Turn::Assistant(assistant) => assistant.into_message(),
            Turn::Tool { id, name, text } => {
                let mut message = json!({"role": "tool", "tool_call_id": id, "content": text});
                if let Some(name) = name {
                    message["name"] = name.into();
                }
                message
            }
        });
        system.into_iter().chain(turns).collect()
    }

    fn assistant(&mut self) -> &mut Assistant {
        if !matches!(self.turns.last(), Some(Turn::Assistant(_))) {
            self.turns.push(Turn::Assistant(Assistant::default()));
        }
        match self.turns.last_mut() {
            Some(Turn::Assistant(assistant)) => assistant,
            _ => unreachable!("it was pushed above"),
        }
    }
}

impl Assistant {
    /// What was said, unless a tool was called too.
    pub(crate) fn said_only(&self) -> Option<&str> {
        self.calls.is_empty().then_some(self.content.as_str())
    }

    /// A message keeps absent what is absent: templates check which keys there are.
    fn into_message(self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        message
    }
}

/// Messages in which tools answer in the order of the calls. Clients send results as they come and name the call; most
/// templates show no names, and a model would take one result for another.
pub(crate) fn with_results_in_order(mut messages: Vec<Value>) -> Vec<Value> {
    let mut start = 0;
    while start < messages.len() {
        let is_result = |message: &&Value| message["role"] == "tool";
        let run = messages[start..].iter().take_while(is_result).count();
        if run == 0 {
            start += 1;
            continue;
        }
        let (before, results) = messages.split_at_mut(start);
        let calls = before.last().and_then(|message| message["tool_calls"].as_array());
        let ids = calls.into_iter().flatten().map(|call| call["id"].as_str()).enumerate();
        let mut places = HashMap::new();
        for (place, id) in ids.filter_map(|(place, id)| Some((place, id?))) {
            places.entry(id).or_insert(place);
        }
        let place = |result: &Value| places.get(result["tool_call_id"].as_str()?).copied();
        // A result that names no call, or one that is not there, says nothing about the order of any.
        let results = &mut results[..run];
        if results.iter().all(|result| place(result).is_some()) {
            results.sort_by_key(place);
        }
        start += run;
    }
    messages
}

/// The text of a content, parts or not.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Texts that were apart stay apart, unless one of them brings its own space: some clients cut a sentence in two.
fn append(text: &mut String, more: &str) {
    let has_space = text.ends_with(char::is_whitespace) || more.starts_with(char::is_whitespace);
    if !text.is_empty() && !more.is_empty() && !has_space {
        text.push_str(BETWEEN);
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(talk: impl FnOnce(&mut Conversation), expect: &Value) {
        let mut conversation = Conversation::default();
        talk(&mut conversation);
        assert_eq!(Value::from(conversation.into_messages()), *expect);
    }

    #[test]
    fn results_come_in_the_order_of_their_calls() {
        let calls = |ids: &[&str]| {
            let calls: Vec<Value> = ids.iter().map(|id| json!({"id": id})).collect();
            json!({"role": "assistant", "tool_calls": calls})
        };
        let result =
            |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let user = json!({"role": "user", "content": "a"});
        #[track_caller]
        fn check(messages: &[Value], expect: &[usize]) {
            let expect: Vec<Value> = expect.iter().map(|&index| messages[index].clone()).collect();
            assert_eq!(with_results_in_order(messages.to_vec()), expect);
        }
        let (one, two, three) = (result("1", "a"), result("2", "b"), result("3", "c"));
        check(&[user.clone(), calls(&["1", "2"]), two.clone(), one.clone()], &[0, 1, 3, 2]);
        let twice = [calls(&["3", "1"]), one.clone(), three, calls(&["1", "2"]), two.clone(), one];
        check(&twice, &[0, 2, 1, 3, 5, 4]);
        let unnamed = json!({"role": "tool", "content": "b"});
        check(&[calls(&["1", "2"]), two.clone(), unnamed], &[0, 1, 2]);
        check(&[calls(&["1"]), two, result("1", "a"), user], &[0, 1, 2, 3]);
        check(&[], &[]);
    }

    #[test]
    fn neighbours_of_a_kind_become_one_message() {
        check(|_| {}, &json!([]));
        check(
            |talk| {
                talk.instructed("a");
                talk.instructed("b");
                talk.asked("c");
                talk.asked("d");
                talk.instructed("e");
                talk.asked("");
                talk.asked(" f");
            },
            &json!([
                {"role": "system", "content": "a\n\nb"},
                {"role": "user", "content": "c\n\nd\n\ne f"},
            ]),
        );
    }

    #[test]
    fn a_turn_of_the_assistant_is_one_message_and_results_know_their_tools() {
        let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let one = json!({"x": 1}).as_object().unwrap().clone();
        check(
            |talk| {
                talk.asked("q");
                talk.thought("hm");
                talk.said("let me see");
                talk.called("1", "f", one.clone());
                talk.called("2", "g", Map::new());
                talk.returned("2", "two".to_owned());
                talk.returned("1", "one".to_owned());
                talk.returned("3", "who?".to_owned());
                talk.said("so");
            },
            &json!([
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "let me see", "reasoning_content": "hm",
                 "tool_calls": [call("1", "f", json!({"x": 1})), call("2", "g", json!({}))]},
                {"role": "tool", "tool_call_id": "2", "content": "two", "name": "g"},
                {"role": "tool", "tool_call_id": "1", "content": "one", "name": "f"},
                {"role": "tool", "tool_call_id": "3", "content": "who?"},
                {"role": "assistant", "content": "so"},
            ]),
        );
    }

    #[test]
    fn messages_in_any_order_become_turns() {
        let call =
            json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}});
        let parts = json!([{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]);
        let messages = [
            json!({"role": "system", "content": "a"}),
            json!({"role": "system", "content": "b"}),
            json!({"role": "user", "content": parts}),
            json!({"role": "system", "content": "e"}),
            json!({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "r"}),
        ];
        assert_eq!(
            Value::from(Conversation::of_messages(&messages).into_messages()),
            json!([
                {"role": "system", "content": "a\n\nb"},
                {"role": "user", "content": "cd\n\ne"},
                {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "r"},
            ])
        );
    }

    #[test]
    fn a_text_to_continue_is_known_from_a_call_that_waits() {
        let mut conversation = Conversation::default();
        assert!(conversation.is_empty() && conversation.last_assistant().is_none());
        conversation.asked("q");
        assert!(conversation.last_assistant().is_none());
        conversation.said("so far");
        assert_eq!(conversation.last_assistant().unwrap().said_only(), Some("so far"));
        conversation.called("1", "f", Map::new());
        assert_eq!(conversation.last_assistant().unwrap().said_only(), None);
    }
}
