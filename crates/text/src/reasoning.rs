//! Separates what a model thinks from what it says, while the text is still arriving.
//!
//! Thinking models write `<think>…</think>` before the answer. Whether the output starts inside is
//! decided by the prompt ([`Thinking`]), as far as the template wrote it: a user may ask about `<think>`. A
//! tail that may be the beginning of a marker is held back. Newlines right after a marker belong to neither
//! side. Thinking opens only before the first word of the answer: later markers are the model's own words.

use serde_json::Value;

use crate::{ChatRequest, Piece};

/// The marks a model puts around its thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Before it.
    pub open: String,
    /// After it.
    pub close: String,
}

impl ReasoningMarkers {
    /// The marks that a chat template writes, `<think>` and `</think>` if it writes none; `None` where they are
    /// no pair (harmony's channels, which its parser reads).
    pub fn detect(template: &str) -> Option<Self> {
        const PAIRS: [(&str, &str); 3] = [
            ("<|channel>thought", "<channel|>"),
            ("[THINK]", "[/THINK]"),
            ("<seed:think>", "</seed:think>"),
        ];
        if template.contains("<|channel|>") && template.contains("<|message|>") {
            return None;
        }
        let written =
            |(open, close): &(&str, &str)| template.contains(open) && template.contains(close);
        let (open, close) = PAIRS.into_iter().find(written).unwrap_or(("<think>", "</think>"));
        Some(Self { open: open.to_owned(), close: close.to_owned() })
    }

    /// How a prompt leaves thinking that only its template opens and closes: see [`Self::broken_in`].
    pub fn left_by(&self, prompt: &str) -> Thinking {
        let is_open = match (prompt.rfind(&self.open), prompt.rfind(&self.close)) {
            (Some(opened), Some(closed)) => opened > closed,
            (opened, None) => opened.is_some(),
            (None, Some(_)) => false,
        };
        self.left(is_open, prompt)
    }

    /// How an answer that has begun leaves it, behind a prompt: some templates open it in front of every answer.
    pub fn left_by_answer(&self, prompt: &str, begun: &str) -> Thinking {
        let is_open = prompt.trim_end().ends_with(&self.open);
        let start = if is_open { Thinking::JustOpened } else { Thinking::Closed };
        let mut splitter = ReasoningSplitter::new(self, start);
        splitter.push(begun);
        self.left(splitter.is_reasoning(), begun)
    }

    fn left(&self, is_open: bool, text: &str) -> Thinking {
        match is_open {
            false => Thinking::Closed,
            true if text.trim_end_matches('\n').ends_with(&self.open) => Thinking::JustOpened,
            true => Thinking::Open,
        }
    }

    /// The same request without the marks that its messages, tools and variables write; `None` where they write
    /// none. Rendered, it shows what the template itself opens and closes.
    pub fn broken_in(&self, request: &ChatRequest) -> Option<ChatRequest> {
        let mut values =
            request.messages.iter().chain(&request.tools).chain(request.kwargs.values());
        if !values.any(|value| self.is_in(value)) {
            return None;
        }
        let mut broken = request.clone();
        let values = broken.messages.iter_mut().chain(&mut broken.tools);
        values.chain(broken.kwargs.values_mut()).for_each(|value| self.break_in(value));
        Some(broken)
    }

    fn is_in(&self, value: &Value) -> bool {
        let has = |text: &str| text.contains(&self.open) || text.contains(&self.close);
        match value {
            Value::String(text) => has(text),
            Value::Array(items) => items.iter().any(|item| self.is_in(item)),
            Value::Object(map) => map.iter().any(|(key, item)| has(key) || self.is_in(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn break_in(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.broken(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.break_in(item)),
            Value::Object(map) => {
                let broken = std::mem::take(map).into_iter().map(|(key, mut item)| {
                    self.break_in(&mut item);
                    (self.broken(&key), item)
                });
                *map = broken.collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Marks with a space behind their first character: no mark has one, so none can come of it.
    fn broken(&self, text: &str) -> String {
        [&self.open, &self.close].into_iter().fold(text.to_owned(), |text, mark| {
            let first = mark.chars().next().map_or(0, char::len_utf8);
            text.replace(mark.as_str(), &format!("{} {}", &mark[..first], &mark[first..]))
        })
    }
}

/// How a prompt leaves thinking, and so where its answer begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thinking {
    /// The answer may still open it.
    #[default]
    Closed,
    /// The prompt ends with the opening mark; its newline may be left to the model.
    JustOpened,
    /// Some of it is in the prompt.
    Open,
}

/// Incremental splitter of one answer.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    open: String,
    close: String,
    state: State,
    /// Text not emitted yet: white space before a possible marker, or a marker's beginning.
    held: String,
    /// A marker has just passed: newlines are dropped until something else comes.
    trim_newlines: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far: thinking may still open.
    Start,
    Reasoning,
    Content,
}

impl ReasoningSplitter {
    /// A splitter of the answer to a prompt that leaves thinking so.
    pub fn new(markers: &ReasoningMarkers, thinking: Thinking) -> Self {
        Self {
            open: markers.open.clone(),
            close: markers.close.clone(),
            state: match thinking {
                Thinking::Closed => State::Start,
                Thinking::JustOpened | Thinking::Open => State::Reasoning,
            },
            held: String::new(),
            trim_newlines: thinking == Thinking::JustOpened,
        }
    }

    /// Whether the next text would be thinking.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Takes the next text and returns the segments that are certain, in order.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut segments = Vec::new();
        loop {
            if self.trim_newlines {
                let kept = self.held.trim_start_matches('\n').len();
                self.held.drain(..self.held.len() - kept);
                self.trim_newlines = self.held.is_empty();
            }
            match self.state {
                State::Start => {
                    let visible = self.held.trim_start();
                    if visible.starts_with(&self.open) {
                        let rest = visible[self.open.len()..].to_owned();
                        self.held = rest;
                        (self.state, self.trim_newlines) = (State::Reasoning, true);
                    } else if self.open.starts_with(visible) {
                        return segments;
                    } else {
                        self.state = State::Content;
                    }
                }
                State::Reasoning => {
                    let Some(at) = self.held.find(&self.close) else {
                        let safe = self.held.len() - partial_marker_length(&self.held, &self.close);
                        let rest = self.held.split_off(safe);
                        self.emit(&mut segments, rest);
                        return segments;
                    };
                    let rest = self.held.split_off(at)[self.close.len()..].to_owned();
                    self.emit(&mut segments, rest);
                    (self.state, self.trim_newlines) = (State::Content, true);
                }
                State::Content => {
                    self.emit(&mut segments, String::new());
                    return segments;
                }
            }
        }
    }

    /// Ends the answer: what was held back was no marker after all.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut segments = Vec::new();
        self.emit(&mut segments, String::new());
        segments
    }

    /// Emits all that is held and holds `rest` instead.
    fn emit(&mut self, segments: &mut Vec<Piece>, rest: String) {
        let text = std::mem::replace(&mut self.held, rest);
        if !text.is_empty() {
            segments.push(match self.state {
                State::Reasoning => Piece::Reasoning(text),
                State::Start | State::Content => Piece::Content(text),
            });
        }
    }
}

/// Length of the longest tail of `text` that `marker` begins with.
fn partial_marker_length(text: &str, marker: &str) -> usize {
    (1..marker.len().min(text.len() + 1))
        .rev()
        .find(|&length| marker.is_char_boundary(length) && text.ends_with(&marker[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn marks() -> ReasoningMarkers {
        ReasoningMarkers::detect("").unwrap()
    }

    fn split(prompt: &str, pieces: &[&str]) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(&marks(), marks().left_by(prompt));
        let mut segments: Vec<Piece> =
            pieces.iter().flat_map(|piece| splitter.push(piece)).collect();
        segments.extend(splitter.finish());
        let (mut reasoning, mut content) = (String::new(), String::new());
        for segment in segments {
            match segment {
                Piece::Reasoning(text) => {
                    assert!(content.is_empty(), "thinking after the answer");
                    reasoning.push_str(&text);
                }
                Piece::Content(text) => content.push_str(&text),
                other => panic!("{other:?}"),
            }
        }
        (reasoning, content)
    }

    #[track_caller]
    fn check(prompt: &str, pieces: &[&str], expect: (&str, &str)) {
        let (reasoning, content) = split(prompt, pieces);
        assert_eq!((reasoning.as_str(), content.as_str()), expect);
    }

    #[test]
    fn the_prompt_decides_the_start() {
        check("…assistant\n<think>\n", &["so…\n</think>\n\nyes"], ("so…\n", "yes"));
        check("…assistant\n<think>\n\n</think>\n\n", &["yes"], ("", "yes"));
        check("no markers", &["<think>\nso\n</think>\n\nyes"], ("so\n", "yes"));
        check("<think>old</think> … <think>", &["\nnew</think>a"], ("new", "a"));
    }

    #[test]
    fn markers_across_pieces() {
        check("<think>", &["a<", "/thi", "nk>\n", "\nb"], ("a", "b"));
        check("<think>", &["a</thin", "g> b"], ("a</thing> b", ""));
        check("", &["\n", "<th", "ink>", "\n", "a</think>b"], ("a", "b"));
        check("", &["<thi", "s is text"], ("", "<this is text"));
        check("<think>", &["never closed </th"], ("never closed </th", ""));
        check("", &["  \n"], ("", "  \n"));
    }

    #[test]
    fn markers_inside_the_answer_are_words() {
        check("", &["Use <think>tags</think>."], ("", "Use <think>tags</think>."));
        check("<think>", &["a</think>b</think><think>c"], ("a", "b</think><think>c"));
    }

    #[test]
    fn an_answer_that_has_begun_thinks_only_if_it_began_so() {
        #[track_caller]
        fn check(begun: &str, expect: Thinking) {
            assert_eq!(marks().left_by_answer("What is <think>?\nA:", begun), expect, "{begun:?}");
        }
        check("", Thinking::Closed);
        check("The tag <think> is", Thinking::Closed);
        check(" <think>\n", Thinking::JustOpened);
        check("<think>so", Thinking::Open);
        check("<think>so</think>The tag <think> is", Thinking::Closed);
        let opened = |begun: &str| marks().left_by_answer("A:\n<think>\n", begun);
        assert_eq!(opened("so"), Thinking::Open);
        assert_eq!(opened("so</think>yes"), Thinking::Closed);
    }

    #[test]
    fn marks_are_broken_wherever_they_were_written() {
        let user = |content: Value| json!({"role": "user", "content": content});
        let tool = |text: &str| json!({"type": "function", "function": {"description": text}});
        let mut request = ChatRequest::new([user(json!("<thin k>"))]);
        request.tools = vec![tool("think")];
        assert!(marks().broken_in(&request).is_none());
        request.messages.push(user(json!([{"type": "text", "text": "a<think>b</think><think>"}])));
        request.tools.push(tool("</think>"));
        let broken = marks().broken_in(&request).unwrap();
        assert_eq!(broken.messages[0], request.messages[0]);
        assert_eq!(broken.messages[1]["content"][0]["text"], "a< think>b< /think>< think>");
        assert_eq!(broken.tools, [tool("think"), tool("< /think>")]);
        // What is left is no mark, and names of members count.
        let hidden = [
            user(json!("<<think>")),
            json!({"role": "user", "arguments": {"<think>": "<</think>"}}),
        ];
        let broken = marks().broken_in(&ChatRequest::new(hidden)).unwrap();
        assert!(marks().broken_in(&broken).is_none(), "{broken:?}");
    }

    proptest! {
        #[test]
        fn splitting_is_invariant_to_cuts(
            inside: bool,
            parts in prop::collection::vec(
                prop_oneof![Just("<think>"), Just("</think>"), Just("\n"), Just("<"), Just("</th"), Just("é"), Just("ab ")],
                0..10,
            ),
            cuts in prop::collection::vec(0usize..60, 0..10),
        ) {
            let prompt = if inside { "<think>" } else { "" };
            let text = parts.concat();
            let mut cuts: Vec<usize> =
                cuts.into_iter().filter(|&cut| text.is_char_boundary(cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(split(prompt, &pieces), split(prompt, &[&text]));
            // Nothing is lost but markers and the newlines after them.
            let (reasoning, content) = split(prompt, &pieces);
            let kept = |text: &str| text.chars().filter(|&c| c == 'é' || c == 'a').count();
            prop_assert_eq!(kept(&reasoning) + kept(&content), kept(&text));
        }
    }
}
