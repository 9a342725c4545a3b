//! Answers as Ollama writes them: lines under way, the last line with what it took, or all in one.

use std::time::{Duration, Instant};

use engine::session::{Ending, Finish, TokenLogprob, TokenText, WholeAnswer, WholeCall};
use serde_json::{Map, Value, json};

use crate::request::call_id;
use crate::time::now_rfc3339;

/// What stands for "never" where JSON has no infinity.
const LEAST_LOGPROB: f32 = -9999.0;

/// Which path is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message.
    Chat,
    /// A text.
    Generate,
}

/// What is the same in all lines of an answer.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) kind: Kind,
    pub(super) model: String,
    pub(super) started: Instant,
}

impl Reply {
    /// A piece of thinking.
    pub(super) fn thinking(&self, text: &str) -> Value {
        self.line("", text, Vec::new(), false)
    }

    /// A piece of what is said.
    pub(super) fn content(&self, text: &str, logprobs: &[TokenLogprob]) -> Value {
        let mut line = self.line(text, "", Vec::new(), false);
        add_logprobs(&mut line, logprobs);
        line
    }

    /// A call of a tool.
    pub(super) fn tool_call(&self, call: Value) -> Value {
        self.line("", "", vec![call], false)
    }

    /// The last line.
    pub(super) fn last(&self, ending: &Ending) -> Value {
        let mut line = self.line("", "", Vec::new(), true);
        self.add_ending(&mut line, ending);
        line
    }

    /// All in one.
    pub(super) fn whole(&self, whole: &WholeAnswer) -> Value {
        let mut calls = Calls::default();
        let call = |call: &WholeCall| {
            calls.begin(call_id(call.id.clone()), call.name.clone());
            calls.more(&call.arguments);
            calls.end()
        };
        let calls = whole.tool_calls.iter().filter_map(call).collect();
        let mut line = self.line(&whole.content, &whole.reasoning, calls, true);
        add_logprobs(&mut line, &whole.logprobs);
        if let Some(ending) = &whole.ending {
            self.add_ending(&mut line, ending);
        }
        line
    }

    /// The answer to a request that only loads or unloads the model.
    pub(super) fn nothing(&self, unloads: bool) -> Value {
        let mut line = self.line("", "", Vec::new(), true);
        line["done_reason"] = if unloads { "unload" } else { "load" }.into();
        line
    }

    fn line(&self, content: &str, thinking: &str, calls: Vec<Value>, done: bool) -> Value {
        let mut said = Map::new();
        let key = match self.kind {
            Kind::Chat => {
                said.insert("role".to_owned(), "assistant".into());
                "content"
            }
            Kind::Generate => "response",
        };
        said.insert(key.to_owned(), content.into());
        if !thinking.is_empty() {
            said.insert("thinking".to_owned(), thinking.into());
        }
        if !calls.is_empty() {
            said.insert("tool_calls".to_owned(), calls.into());
        }
        let mut line = json!({"model": self.model, "created_at": now_rfc3339()});
        match self.kind {
            Kind::Chat => line["message"] = said.into(),
            Kind::Generate => said.into_iter().for_each(|(key, value)| line[key] = value),
        }
        line["done"] = done.into();
        line
    }

    fn add_ending(&self, line: &mut Value, ending: &Ending) {
        let usage = &ending.usage;
        line["done_reason"] = match ending.reason {
            Finish::Length => "length",
            Finish::Stop | Finish::ToolCalls => "stop",
        }
        .into();
        line["total_duration"] = nanoseconds(self.started.elapsed()).into();
        // It was loaded before the request came.
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = seconds(usage.prefill_seconds).into();
        line["eval_count"] = usage.completion_tokens.into();
        line["eval_duration"] = seconds(usage.decode_seconds).into();
    }
}

/// Calls of tools, which Ollama's clients get whole.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: Option<(String, String, String)>,
    count: usize,
}

impl Calls {
    pub(super) fn begin(&mut self, id: String, name: String) {
        self.open = Some((id, name, String::new()));
    }

    pub(super) fn more(&mut self, json: &str) {
        if let Some((_, _, arguments)) = &mut self.open {
            arguments.push_str(json);
        }
    }

    /// The call, unless its arguments were cut off: half an object is none.
    pub(super) fn end(&mut self) -> Option<Value> {
        let (id, name, arguments) = self.open.take()?;
        let arguments: Map<String, Value> = serde_json::from_str(&arguments).ok()?;
        let index = self.count;
        self.count += 1;
        Some(json!({"id": id, "function": {"index": index, "name": name, "arguments": arguments}}))
    }
}

fn add_logprobs(line: &mut Value, logprobs: &[TokenLogprob]) {
    let one = |token: &TokenText, logprob: f32| {
        let logprob = logprob.max(LEAST_LOGPROB);
        json!({"token": token.text, "logprob": logprob, "bytes": token.bytes})
    };
    if !logprobs.is_empty() {
        let list = logprobs.iter().map(|logprob| {
            let mut entry = one(&logprob.token, logprob.logprob);
            if !logprob.top.is_empty() {
                entry["top_logprobs"] =
                    logprob.top.iter().map(|(token, p)| one(token, *p)).collect();
            }
            entry
        });
        line["logprobs"] = list.collect();
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(seconds: f64) -> u64 {
    // A float that is too large, or no number, becomes a number all the same.
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Usage;

    fn reply(kind: Kind) -> Reply {
        Reply { kind, model: "m:latest".to_owned(), started: Instant::now() }
    }

    /// Without what differs from run to run.
    #[track_caller]
    fn check(mut line: Value, expect: &Value) {
        let line = line.as_object_mut().unwrap();
        let created = line.remove("created_at").unwrap();
        assert!(created.as_str().unwrap().ends_with('Z'));
        if let Some(total) = line.remove("total_duration") {
            assert!(total.is_u64());
        }
        assert_eq!(Value::Object(line.clone()), *expect);
    }

    fn ending(reason: Finish) -> Ending {
        let usage = Usage {
            prompt_tokens: 9,
            completion_tokens: 4,
            prefill_seconds: 0.5,
            decode_seconds: 2.0,
            ..Usage::default()
        };
        Ending { reason, stop_text: None, usage }
    }

    #[test]
    fn lines_of_a_chat() {
        let reply = reply(Kind::Chat);
        check(
            reply.content("hi", &[]),
            &json!({"model": "m:latest", "message": {"role": "assistant", "content": "hi"}, "done": false}),
        );
        check(
            reply.thinking("hm"),
            &json!({"model": "m:latest", "done": false,
                "message": {"role": "assistant", "content": "", "thinking": "hm"}}),
        );
        check(
            reply.last(&ending(Finish::Length)),
            &json!({"model": "m:latest", "message": {"role": "assistant", "content": ""}, "done": true,
                "done_reason": "length", "load_duration": 0, "prompt_eval_count": 9,
                "prompt_eval_duration": 500_000_000, "eval_count": 4, "eval_duration": 2_000_000_000}),
        );
        for (unloads, reason) in [(false, "load"), (true, "unload")] {
            check(
                reply.nothing(unloads),
                &json!({"model": "m:latest", "message": {"role": "assistant", "content": ""}, "done": true,
                    "done_reason": reason}),
            );
        }
    }

    #[test]
    fn a_text_stands_where_generate_has_it() {
        let token = TokenText { text: "a".to_owned(), bytes: vec![97] };
        let logprob = TokenLogprob {
            token: token.clone(),
            logprob: -0.5,
            top: vec![(token, f32::NEG_INFINITY)],
        };
        check(
            reply(Kind::Generate).content("a", &[logprob]),
            &json!({"model": "m:latest", "response": "a", "done": false, "logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97],
                 "top_logprobs": [{"token": "a", "logprob": -9999.0, "bytes": [97]}]}]}),
        );
    }

    #[test]
    fn calls_come_whole_and_half_ones_not_at_all() {
        let call = |name: &str, arguments: &str| WholeCall {
            id: Some(format!("id_{name}")),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let whole = WholeAnswer {
            reasoning: "hm".to_owned(),
            tool_calls: vec![
                call("f", "{\"x\": 1}"),
                call("g", "{}"),
                call("h", "{\"x\":"),
                call("i", ""),
            ],
            ending: Some(ending(Finish::ToolCalls)),
            ..WholeAnswer::default()
        };
        let line = reply(Kind::Chat).whole(&whole);
        let expect = json!([
            {"id": "id_f", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
            {"id": "id_g", "function": {"index": 1, "name": "g", "arguments": {}}},
        ]);
        assert_eq!(line["message"]["tool_calls"], expect);
        assert_eq!((&line["done"], &line["done_reason"]), (&json!(true), &json!("stop")));
        assert_eq!(line["message"]["thinking"], "hm");
    }
}
