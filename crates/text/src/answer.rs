//! The text of an answer, taken apart while it arrives: thinking, words, tool calls, up to a stop string.
//!
//! Three filters in a row: the [`ReasoningSplitter`], the [`ToolParser`], the [`StopFilter`]. Stop strings are
//! looked for in the words alone. What comes out does not depend on how the text was cut.

use crate::tools::{Tool, ToolFormat, ToolParser};
use crate::{ReasoningMarkers, ReasoningSplitter, StopFilter, Thinking};

/// A piece of an answer: what each filter hands to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Thinking.
    Reasoning(String),
    /// Words.
    Content(String),
    /// A tool call begins.
    ToolBegin {
        /// Which call of the answer, from 0.
        index: usize,
        /// The model's own id of the call, where its format has one.
        id: Option<String>,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments.
    ToolArguments {
        /// Which call.
        index: usize,
        /// The next piece of the JSON text.
        json: String,
    },
    /// A call is complete.
    ToolEnd {
        /// Which call.
        index: usize,
    },
}

/// Incremental parser of one answer.
#[derive(Debug)]
pub struct AnswerParser {
    splitter: Option<ReasoningSplitter>,
    tools: Option<ToolParser>,
    stop: StopFilter,
    stopped: Option<String>,
}

impl AnswerParser {
    /// A parser of the answer to a prompt that leaves thinking so. `reasoning` are the marks around it, if the model's
    /// format of calls does not mark it itself; `tools` the format and the tools that may be called.
    pub fn new<S: Into<String>>(
        thinking: Thinking,
        reasoning: Option<&ReasoningMarkers>,
        tools: Option<(ToolFormat, &[Tool])>,
        stops: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            splitter: reasoning.map(|markers| ReasoningSplitter::new(markers, thinking)),
            tools: tools.map(|(format, tools)| ToolParser::new(format, tools)),
            stop: StopFilter::new(stops),
            stopped: None,
        }
    }

    /// Whether the next text would be thinking, as far as marks around thinking show it.
    pub fn is_reasoning(&self) -> bool {
        self.splitter.as_ref().is_some_and(ReasoningSplitter::is_reasoning)
    }

    /// The stop string that ended the answer.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Takes the next text and returns what is certain, in order. After a stop nothing more comes.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let split = match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Content(text.to_owned())],
        };
        let mut pieces = Vec::new();
        self.take(split, &mut pieces);
        pieces
    }

    /// Ends an answer that the model has ended: what was held back comes out, an open call is completed.
    pub fn finish(&mut self) -> Vec<Piece> {
        self.end(ToolParser::finish)
    }

    /// Ends an answer that was cut off: what was held back comes out, but an open call stays as it is.
    pub fn cut(&mut self) -> Vec<Piece> {
        self.end(ToolParser::cut)
    }

    fn end(&mut self, tools_end: fn(&mut ToolParser) -> Vec<Piece>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let split = self.splitter.as_mut().map(ReasoningSplitter::finish).unwrap_or_default();
        self.take(split, &mut pieces);
        let found = self.tools.as_mut().map(tools_end).unwrap_or_default();
        found.into_iter().for_each(|piece| self.pass(piece, &mut pieces));
        self.flush(&mut pieces);
        pieces
    }

    fn take(&mut self, split: Vec<Piece>, pieces: &mut Vec<Piece>) {
        for piece in split {
            match (piece, &mut self.tools) {
                (Piece::Content(text), Some(tools)) => {
                    let found = tools.push(&text);
                    found.into_iter().for_each(|piece| self.pass(piece, pieces));
                }
                (piece, _) => self.pass(piece, pieces),
            }
        }
    }

    fn pass(&mut self, piece: Piece, pieces: &mut Vec<Piece>) {
        if self.stopped.is_some() {
            return;
        }
        if let Piece::Content(text) = piece {
            let passed = self.stop.push(&text);
            if !passed.text.is_empty() {
                pieces.push(Piece::Content(passed.text));
            }
            self.stopped = passed.stop;
            return;
        }
        // What may be the beginning of a stop string ends where the words do.
        self.flush(pieces);
        pieces.push(piece);
    }

    fn flush(&mut self, pieces: &mut Vec<Piece>) {
        if self.stopped.is_some() {
            return;
        }
        let text = self.stop.finish();
        if !text.is_empty() {
            pieces.push(Piece::Content(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn tools() -> Vec<Tool> {
        let parameters = json!({"properties": {"city": {"type": "string"}}});
        vec![Tool { name: "weather".to_owned(), description: None, parameters, is_strict: false }]
    }

    /// Neighbours joined.
    fn merge(pieces: Vec<Piece>) -> Vec<Piece> {
        let mut merged: Vec<Piece> = Vec::new();
        for piece in pieces {
            match (merged.last_mut(), &piece) {
                (Some(Piece::Content(before)), Piece::Content(text))
                | (Some(Piece::Reasoning(before)), Piece::Reasoning(text)) => before.push_str(text),
                (
                    Some(Piece::ToolArguments { json: before, .. }),
                    Piece::ToolArguments { json, .. },
                ) => {
                    before.push_str(json);
                }
                _ => merged.push(piece),
            }
        }
        merged
    }

    fn parse(
        template: &str,
        prompt: &str,
        text: &str,
        cuts: &[usize],
    ) -> (Vec<Piece>, Option<String>) {
        let reasoning = ReasoningMarkers::detect(template);
        let format = ToolFormat::detect(template, "").unwrap();
        let tools = tools();
        let thinking = reasoning.as_ref().map(|marks| marks.left_by(prompt)).unwrap_or_default();
        let mut parser = AnswerParser::new(
            thinking,
            reasoning.as_ref(),
            Some((format, &tools[..])),
            ["STOP", "\n\nUser"],
        );
        let mut cuts: Vec<usize> = cuts
            .iter()
            .copied()
            .filter(|&cut| text.is_char_boundary(cut) && cut <= text.len())
            .collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut pieces: Vec<Piece> =
            cuts.windows(2).flat_map(|pair| parser.push(&text[pair[0]..pair[1]])).collect();
        pieces.extend(parser.finish());
        (merge(pieces), parser.stopped().map(str::to_owned))
    }

    const QWEN: &str = "<think> <tool_call>\n<function=";
    const GEMMA: &str = "<|channel>thought <channel|> <|tool_call> <tool_call|>";
    const HARMONY: &str = "<|start|>assistant<|channel|>final<|message|>";

    #[track_caller]
    fn check(template: &str, prompt: &str, text: &str, expect: &[Piece], stop: Option<&str>) {
        let whole = parse(template, prompt, text, &[]);
        assert_eq!((&whole.0[..], whole.1.as_deref()), (expect, stop), "{text}");
        for cut in 0..=text.len() {
            assert_eq!(parse(template, prompt, text, &[cut]), whole, "cut at {cut}");
        }
    }

    fn think(text: &str) -> Piece {
        Piece::Reasoning(text.to_owned())
    }

    fn say(text: &str) -> Piece {
        Piece::Content(text.to_owned())
    }

    fn oslo() -> [Piece; 3] {
        [
            Piece::ToolBegin { index: 0, id: None, name: "weather".to_owned() },
            Piece::ToolArguments { index: 0, json: "{\"city\":\"Oslo STOP\"}".to_owned() },
            Piece::ToolEnd { index: 0 },
        ]
    }

    const CALL: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo STOP\n</parameter>\n</function>\n</tool_call>";

    #[test]
    fn thinking_words_and_calls_come_in_order() {
        let [begin, arguments, end] = oslo();
        let text = format!("so STOP <tool_call>\n</think>\n\nLet me.\n\n{CALL}");
        let expect = [
            think("so STOP <tool_call>\n"),
            say("Let me."),
            begin.clone(),
            arguments.clone(),
            end.clone(),
        ];
        check(QWEN, "<think>\n", &text, &expect, None);
        let text = "<|channel>thought\nhm<channel|><|tool_call>call:weather{city:<|\"|>Oslo STOP<|\"|>}<tool_call|>";
        check(
            GEMMA,
            "<|turn>model\n",
            text,
            &[think("hm"), begin.clone(), arguments.clone(), end.clone()],
            None,
        );
        let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Oslo STOP\"}";
        check(HARMONY, "<|start|>assistant", text, &[think("hm"), begin, arguments, end], None);
    }

    #[test]
    fn stop_strings_end_words_only() {
        check(QWEN, "", "a STOP b", &[say("a ")], Some("STOP"));
        check(QWEN, "", "a\n\nUser: b", &[say("a")], Some("\n\nUser"));
        check(QWEN, "", "a ST", &[say("a ST")], None);
        // Half a stop string before a call is words, and comes before it.
        let [begin, arguments, end] = oslo();
        check(
            QWEN,
            "",
            &format!("ST{CALL}OP"),
            &[say("ST"), begin, arguments, end, say("OP")],
            None,
        );
        check(QWEN, "", &format!("STOP{CALL}"), &[], Some("STOP"));
    }

    #[test]
    fn marks_of_thinking_come_from_the_template() {
        let detect = |template: &str| ReasoningMarkers::detect(template).map(|marks| marks.close);
        assert_eq!(detect("<think>").as_deref(), Some("</think>"));
        assert_eq!(detect("").as_deref(), Some("</think>"));
        assert_eq!(detect(GEMMA).as_deref(), Some("<channel|>"));
        assert_eq!(detect("[THINK]x[/THINK]").as_deref(), Some("[/THINK]"));
        assert_eq!(detect(HARMONY), None);
    }

    proptest! {
        #[test]
        fn answers_are_read_the_same_however_they_are_cut(
            inside: bool,
            parts in prop::collection::vec(prop::sample::select(&[
                "<think>", "</think>", "\n", "<tool_call>", "</tool_call>", "<function=weather>", "</function>", "<parameter=city>",
                "</parameter>", "STOP", "ST", "OP", "é", "\n\nUser", " words ", CALL,
            ][..]), 0..12),
            cuts in prop::collection::vec(0usize..200, 0..12),
        ) {
            let text = parts.concat();
            let prompt = if inside { "<think>" } else { "" };
            prop_assert_eq!(parse(QWEN, prompt, &text, &cuts), parse(QWEN, prompt, &text, &[]));
        }
    }
}
