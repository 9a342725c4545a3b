//! Everything between text and tokens of one model: tokenizer, chat template, end tokens, formats of thinking and calls.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::template::Opening;
use crate::tools::{Tool, ToolFormat};
use crate::{
    AnswerParser, ChatRequest, ChatTemplate, Detokenizer, Error, Piece, ReasoningMarkers, Result,
    TemplateFiles, Thinking, Tokenizer, eos_ids,
};

/// The files that describe a model's text, its tokenizer excepted.
const SIDE_FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// What the tokens and the bytes of a prompt without the opening of an answer may have more than those of one with it.
const CLOSED_TOKENS: usize = 64;
const CLOSED_BYTES: usize = 256;

/// A config that claims more does not loosen the limits of its template.
const CONTEXT_LIMIT_TOKENS: usize = 1 << 20;

/// Everything between text and tokens of one model.
#[derive(Debug)]
pub struct ModelText {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to text, if the model has a chat template.
    pub template: Option<ChatTemplate>,
    /// Tokens that end an answer.
    pub eos: BTreeSet<u32>,
    /// `generation_config.json`; null if there is none.
    pub generation_config: Value,
    /// How the model writes tool calls, if that is known.
    pub tools: Option<ToolFormat>,
    /// The marks around thinking; `None` where the format of tool calls marks it itself.
    pub reasoning: Option<ReasoningMarkers>,
    /// Whether the template takes `enable_thinking`.
    pub can_switch_thinking: bool,
    /// Whether the template knows the marks around thinking: then a model may open it itself.
    pub knows_thinking: bool,
}

/// A rendered prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// As text, for what depends on how it ends.
    pub text: String,
    /// As the model sees it.
    pub tokens: Vec<u32>,
    /// How it leaves thinking.
    pub thinking: Thinking,
}

impl ModelText {
    /// Reads the files of a model, through a function that gives the contents of one, if it is there.
    pub fn open<E: From<Error>>(
        read_file: impl Fn(&str) -> std::result::Result<Option<Vec<u8>>, E>,
    ) -> std::result::Result<ModelText, E> {
        let tokenizer = read_file("tokenizer.json")?.ok_or(Error::NoTokenizer)?;
        // Whatever keeps one of them from being read is an error: without its template a model answers badly.
        let mut side_files = BTreeMap::new();
        for name in SIDE_FILES {
            side_files.extend(read_file(name)?.map(|bytes| (name, bytes)));
        }
        Ok(ModelText::of_files(&tokenizer, &side_files)?)
    }

    fn of_files(tokenizer: &[u8], side_files: &BTreeMap<&str, Vec<u8>>) -> Result<ModelText> {
        let tokenizer = Tokenizer::from_bytes(tokenizer)?;
        let read = |name: &str| side_files.get(name).cloned();
        let files = TemplateFiles::find(read)?;
        let mut template = files.as_ref().map(ChatTemplate::from_files).transpose()?;
        let source = files.map_or_else(String::new, |files| {
            files.default + files.tool_use.as_deref().unwrap_or_default()
        });
        let model = read("config.json")
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
            .unwrap_or_default();
        let model_type = model["model_type"].as_str().unwrap_or_default();
        // No more than the model was made for; less where it is loaded with less.
        let context = [&model, &model["text_config"]]
            .into_iter()
            .find_map(|config| config["max_position_embeddings"].as_u64())
            .and_then(|tokens| usize::try_from(tokens).ok());
        if let (Some(template), Some(context)) = (&mut template, context) {
            template.set_context(context.min(CONTEXT_LIMIT_TOKENS));
        }
        let eos = eos_ids(read, &tokenizer)?;
        let reasoning = ReasoningMarkers::detect(&source);
        let knows_thinking = reasoning.as_ref().is_some_and(|marks| source.contains(&marks.close));
        let config = read("generation_config.json");
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(ModelText {
            tokenizer,
            template,
            eos,
            generation_config: config.unwrap_or_default(),
            tools: ToolFormat::detect(&source, model_type),
            reasoning,
            can_switch_thinking: source.contains("enable_thinking"),
            knows_thinking,
        })
    }

    /// Limits what the chat template may make to what a context of so many tokens can use, and learns what the template
    /// takes.
    pub fn set_context(&mut self, tokens: usize) {
        if let Some(template) = &mut self.template {
            template.set_context(tokens);
            template.probe();
        }
    }

    /// What rendering a short conversation takes at most, its messages aside: no small share of memory, and so better set
    /// aside for all.
    pub fn render_bytes(&self) -> usize {
        self.template.as_ref().map_or(0, ChatTemplate::least_bytes)
    }

    /// The prompt of a conversation. Without a chat template, the messages' text as it is.
    pub fn prompt(&self, request: &ChatRequest) -> Result<Prompt> {
        let text = self.rendered(request, &mut |_| true)?;
        self.prompt_of(request, text, usize::MAX, &mut |_| true)
    }

    /// The prompt of a conversation that was rendered to this text, unless it has more than `most` tokens: a text
    /// that is far too long is refused without being encoded. Rendering again requests memory as [`Self::rendered`] does.
    pub fn prompt_of(
        &self,
        request: &ChatRequest,
        text: String,
        most: usize,
        grant: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Prompt> {
        let tokens = self.encoded(&text, most)?;
        let thinking = self.thinking_left(request, &text, grant)?;
        Ok(Prompt { text, tokens, thinking })
    }

    /// The text of a conversation's prompt, unless the memory is not granted that rendering it takes at most.
    pub fn rendered(
        &self,
        request: &ChatRequest,
        grant: &mut dyn FnMut(usize) -> bool,
    ) -> Result<String> {
        self.render(request, self.opening(request), grant)
    }

    fn render(
        &self,
        request: &ChatRequest,
        opening: Opening,
        grant: &mut dyn FnMut(usize) -> bool,
    ) -> Result<String> {
        match &self.template {
            Some(template) => template.render_within(request, opening, grant),
            None => {
                let texts: Vec<&str> =
                    request.messages.iter().filter_map(|m| m["content"].as_str()).collect();
                Ok(texts.join("\n"))
            }
        }
    }

    /// A template writes its own beginning-of-text token; plain text needs the tokenizer's.
    fn encoded(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        self.tokenizer.encode_up_to(text, self.template.is_none(), most)
    }

    /// How a prompt leaves thinking: as its template does. Marks that messages write open nothing, or a conversation
    /// about a file with `<think>` in it would get no answer.
    fn thinking_left(
        &self,
        request: &ChatRequest,
        text: &str,
        grant: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Thinking> {
        let (Some(marks), Some(_)) = (&self.reasoning, &self.template) else {
            return Ok(Thinking::Closed);
        };
        let Some(broken) = marks.broken_in(request) else { return Ok(marks.left_by(text)) };
        // In addition to the request itself.
        let copy_bytes = broken.held_bytes();
        match self.rendered(&broken, &mut |bytes| grant(bytes.saturating_add(copy_bytes))) {
            Err(error @ Error::NoMemory { .. }) => Err(error),
            rendered => Ok(marks.left_by(rendered.as_deref().unwrap_or(text))),
        }
    }

    /// How a request's prompt ends, with thinking switched on where tools need it and the request does not say.
    fn opening(&self, request: &ChatRequest) -> Opening {
        let said =
            request.enable_thinking.is_some() || request.kwargs.contains_key("enable_thinking");
        let needed = self.tools.is_some_and(ToolFormat::thinks_with_tools);
        let mut opening = Opening::of(request);
        if !said && needed && !request.tools.is_empty() {
            opening.enable_thinking = Some(true);
        }
        opening
    }

    /// How many leading tokens of a prompt the next turn's prompt will most likely have too: those that the
    /// template writes without the opening of an answer as well. None where the memory to render that is not granted, or
    /// where it is longer: such a template says nothing about the next turn, and would be encoded to no end.
    pub fn stable_prefix(
        &self,
        request: &ChatRequest,
        prompt: &Prompt,
        grant: &mut dyn FnMut(usize) -> bool,
    ) -> usize {
        if self.template.is_none() {
            return prompt.tokens.len();
        }
        let opening = Opening { is_answer: false, ..self.opening(request) };
        // Nor does one that refuses this.
        let Ok(closed) = self.render(request, opening, grant) else { return 0 };
        if closed.len() > prompt.text.len() + CLOSED_BYTES {
            return 0;
        }
        let closed = self.encoded(&closed, prompt.tokens.len() + CLOSED_TOKENS);
        let Ok(closed) = closed else { return 0 };
        let pairs = prompt.tokens.iter().zip(&closed);
        pairs.take_while(|(ours, theirs)| ours == theirs).count()
    }

    /// The tokens with which an answer to this prompt may open thinking itself: none where the prompt has opened it,
    /// or closed it at once, as templates do when thinking is switched off.
    pub fn thinking_tokens(&self, prompt: &str) -> Option<Vec<u32>> {
        let marks = self.reasoning.as_ref().filter(|_| self.knows_thinking)?;
        let end = prompt.trim_end();
        if end.ends_with(&marks.close) || end.ends_with(&marks.open) {
            return None;
        }
        self.tokenizer.encode(&marks.open, false).ok().filter(|tokens| !tokens.is_empty())
    }

    /// The id of a text that is one special token.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text).filter(|&id| self.tokenizer.is_special(id))
    }

    /// Tokens that end an answer; with tools, also those at which the client's turn has come.
    pub fn stop_tokens(&self, has_tools: bool) -> BTreeSet<u32> {
        let mut ids = self.eos.clone();
        if let Some(format) = self.tools.filter(|_| has_tools) {
            ids.extend(format.stop_markers().iter().filter_map(|text| self.special_token(text)));
        }
        ids
    }

    /// Turns the tokens of an answer to a prompt that leaves thinking so into thinking, words and calls of `tools`,
    /// piece by piece. It owns what it needs, for a thread of its own.
    pub fn decoder(&self, thinking: Thinking, stops: Vec<String>, tools: &[Tool]) -> AnswerDecoder {
        let format =
            self.tools.filter(|&format| !tools.is_empty() || format == ToolFormat::Harmony);
        let reasoning =
            self.reasoning.iter().flat_map(|marks| [marks.open.as_str(), marks.close.as_str()]);
        let markers = format.map(ToolFormat::markers).unwrap_or_default();
        // A mark may be a special token and a word: all special tokens in it must be seen.
        let kept: Vec<u32> = reasoning
            .chain(markers.iter().copied())
            .flat_map(|marker| self.tokenizer.encode(marker, false).unwrap_or_default())
            .filter(|&id| self.tokenizer.is_special(id))
            .collect();
        AnswerDecoder {
            detokenizer: Detokenizer::new(&self.tokenizer).keep(kept),
            parser: AnswerParser::new(
                thinking,
                self.reasoning.as_ref(),
                format.map(|format| (format, tools)),
                stops,
            ),
        }
    }

    /// Turns the tokens of a plain continuation into words, and nothing but words.
    pub fn plain_decoder(&self, stops: Vec<String>) -> AnswerDecoder {
        AnswerDecoder {
            detokenizer: Detokenizer::new(&self.tokenizer),
            parser: AnswerParser::new(Thinking::Closed, None, None, stops),
        }
    }
}

/// One answer as it arrives.
#[derive(Debug)]
pub struct AnswerDecoder {
    detokenizer: Detokenizer,
    parser: AnswerParser,
}

impl AnswerDecoder {
    /// Takes the next token and returns what is certain.
    pub fn push(&mut self, token: u32) -> Result<Vec<Piece>> {
        let text = self.detokenizer.push(token)?;
        Ok(self.parser.push(&text))
    }

    /// Ends the answer and returns what was held back. Unless it is whole, ended by the model itself, an open call of a
    /// tool stays open, and half a character is left out.
    pub fn finish(&mut self, is_whole: bool) -> Result<Vec<Piece>> {
        let text = if is_whole { self.detokenizer.finish() } else { self.detokenizer.cut() }?;
        let mut pieces = self.parser.push(&text);
        pieces.extend(if is_whole { self.parser.finish() } else { self.parser.cut() });
        Ok(pieces)
    }

    /// Whether the next token would be thinking, as far as marks around thinking show it.
    pub fn is_reasoning(&self) -> bool {
        self.parser.is_reasoning()
    }

    /// The stop string that ended the answer: nothing more comes.
    pub fn stop(&self) -> Option<&str> {
        self.parser.stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::pebble_file;
    use serde_json::json;

    fn pebble() -> ModelText {
        ModelText::open(|name| Ok::<_, Error>(pebble_file(name))).expect("Pebble's text")
    }

    fn weather() -> Tool {
        let parameters =
            json!({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
        Tool { name: "weather".to_owned(), description: None, parameters, is_strict: false }
    }

    fn decode(decoder: &mut AnswerDecoder, tokens: &[u32]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for &token in tokens {
            pieces.extend(decoder.push(token).expect("text"));
        }
        pieces.extend(decoder.finish(true).expect("text"));
        pieces
    }

    #[test]
    fn pebble_is_known_by_its_template() {
        let pebble = pebble();
        assert_eq!(pebble.tools, Some(ToolFormat::QwenXml));
        assert_eq!(pebble.reasoning.as_ref().map(|marks| marks.close.as_str()), Some("</think>"));
        assert!(pebble.can_switch_thinking);
        assert_eq!(pebble.stop_tokens(true), pebble.eos);
        assert!(pebble.special_token("<|im_end|>").is_some());
        assert_eq!(pebble.special_token("<tool_call>"), None, "a token, but not a special one");
    }

    /// What Gemma 4's template does with thinking and tools, and nothing else of it.
    const GEMMA: &str = "<bos>{% if enable_thinking or tools %}<|turn>system\n\
        {% if enable_thinking %}<|think|>\n{% endif %}\
        {% for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{}<tool|>{% endfor %}<turn|>\n{% endif %}\
        {% for message in messages %}<|turn>{{ message.role }}\n{{ message.content }}<turn|>\n{% endfor %}\
        {% if add_generation_prompt %}<|turn>model\n\
        {% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}{% endif %}";

    #[test]
    fn gemma_with_tools_and_a_vague_question_thinks_unless_switched_off() {
        let files = TemplateFiles { default: GEMMA.to_owned(), ..TemplateFiles::default() };
        let mut pebble = pebble();
        pebble.template = Some(ChatTemplate::from_files(&files).unwrap());
        pebble.tools = Some(ToolFormat::Gemma4);
        let check = |tools: bool, thinking: Option<bool>, expect: &str| {
            let mut chat = ChatRequest::new([json!({"role": "user", "content": "hmm"})]);
            let function = json!({"name": "weather", "parameters": {}});
            chat.tools.extend(tools.then(|| json!({"type": "function", "function": function})));
            chat.enable_thinking = thinking;
            assert_eq!(pebble.prompt(&chat).unwrap().text, expect, "{tools} {thinking:?}");
        };
        let tools = "<|tool>declaration:weather{}<tool|>";
        let asked = "<|turn>user\nhmm<turn|>\n<|turn>model\n";
        let thinks = format!("<bos><|turn>system\n<|think|>\n{tools}<turn|>\n{asked}");
        let empty = "<|channel>thought\n<channel|>";
        check(true, None, &thinks);
        check(true, Some(true), &thinks);
        check(true, Some(false), &format!("<bos><|turn>system\n{tools}<turn|>\n{asked}{empty}"));
        check(false, None, &format!("<bos>{asked}{empty}"));
        check(false, Some(true), &format!("<bos><|turn>system\n<|think|>\n<turn|>\n{asked}"));
    }

    #[test]
    fn what_messages_say_of_thinking_opens_and_closes_none() {
        let pebble = pebble();
        let check = |content: &str, thinking: Option<bool>, expect: Thinking| {
            let mut chat = ChatRequest::new([json!({"role": "user", "content": content})]);
            chat.enable_thinking = thinking;
            let prompt = pebble.prompt(&chat).unwrap();
            assert_eq!(prompt.thinking, expect, "{content} {thinking:?}");
            assert!(prompt.text.contains(content));
        };
        for content in ["hm", "What does <think> mean?", "</think>", "<think>", "</think><think>"] {
            check(content, None, Thinking::Closed);
            check(content, Some(false), Thinking::Closed);
            check(content, Some(true), Thinking::JustOpened);
        }
    }

    #[test]
    fn a_decoder_finds_thinking_words_and_calls_on_another_thread() {
        let pebble = pebble();
        let text = "hm\n</think>\n\nSo.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n\
            <parameter=days>\n2\n</parameter>\n</function>\n</tool_call><|im_end|>";
        let tokens = pebble.tokenizer.encode(text, false).unwrap();
        let mut decoder = pebble.decoder(Thinking::JustOpened, Vec::new(), &[weather()]);
        assert!(decoder.is_reasoning());
        let pieces = std::thread::spawn(move || decode(&mut decoder, &tokens)).join().unwrap();
        let (mut reasoning, mut content, mut arguments, mut calls) =
            <(String, String, String, Vec<String>)>::default();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => reasoning.push_str(&text),
                Piece::Content(text) => content.push_str(&text),
                Piece::ToolBegin { name, .. } => calls.push(name),
                Piece::ToolArguments { json, .. } => arguments.push_str(&json),
                Piece::ToolEnd { .. } => {}
            }
        }
        assert_eq!((reasoning.as_str(), content.as_str()), ("hm\n", "So."));
        assert_eq!(
            (calls, arguments.as_str()),
            (vec!["weather".to_owned()], r#"{"city":"Oslo","days":2}"#)
        );
    }

    #[test]
    fn marks_that_are_special_tokens_are_seen_and_others_hidden() {
        let mut pebble = pebble();
        let (open, close) = ("<|fim_prefix|>thought".to_owned(), "<|fim_suffix|>".to_owned());
        pebble.reasoning = Some(ReasoningMarkers { open, close });
        let text = "<|fim_prefix|>thought\nhm<|fim_suffix|>So<|fim_pad|>.";
        let tokens = pebble.tokenizer.encode(text, false).unwrap();
        let pieces = decode(&mut pebble.decoder(Thinking::Closed, Vec::new(), &[]), &tokens);
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => reasoning.push_str(&text),
                Piece::Content(text) => content.push_str(&text),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((reasoning.as_str(), content.as_str()), ("hm", "So."));
    }

    #[test]
    fn without_tools_a_call_is_words() {
        let pebble = pebble();
        let text = "<tool_call>\n<function=weather>\n</function>\n</tool_call>";
        let tokens = pebble.tokenizer.encode(text, false).unwrap();
        let mut decoder = pebble.decoder(Thinking::Closed, vec!["</function>".to_owned()], &[]);
        let pieces = decode(&mut decoder, &tokens);
        let said: String = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Content(text) => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(said, "<tool_call>\n<function=weather>\n");
        assert_eq!(decoder.stop(), Some("</function>"));
    }

    #[test]
    fn the_stable_prefix_is_a_prefix_of_the_next_turn() {
        let pebble = pebble();
        let user = |text: &str| json!({"role": "user", "content": text});
        let first = ChatRequest::new([
            json!({"role": "system", "content": "Be brief."}),
            user("How many legs has a spider?"),
        ]);
        let prompt = pebble.prompt(&first).unwrap();
        let stable = pebble.stable_prefix(&first, &prompt, &mut |_| true);
        let mut second = first.clone();
        second
            .messages
            .extend([json!({"role": "assistant", "content": "Eight."}), user("And an ant?")]);
        let next = pebble.prompt(&second).unwrap();
        assert_eq!(prompt.tokens[..stable], next.tokens[..stable]);
        // All but the opening of the answer.
        assert!(
            stable + 8 >= prompt.tokens.len() && stable < prompt.tokens.len(),
            "{stable} of {}",
            prompt.tokens.len()
        );
    }
}
