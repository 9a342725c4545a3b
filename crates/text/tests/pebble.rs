//! The built-in model's own files: its template and tokenizer against the prompts it was trained on.

use serde_json::{Value, json};
use text::{
    ChatRequest, ChatTemplate, Detokenizer, Error, Message, Piece, ReasoningMarkers,
    ReasoningSplitter, TemplateFiles, Tokenizer,
};

fn root(path: &str) -> String {
    format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> Option<Vec<u8>> {
    std::fs::read(root(&format!("models/pebble/{file}"))).ok()
}

fn template() -> ChatTemplate {
    let files = TemplateFiles::find(read).expect("readable files").expect("a chat template");
    ChatTemplate::from_files(&files).expect("a template that compiles")
}

#[track_caller]
fn check(request: &ChatRequest, expect: &str) {
    assert_eq!(template().render(request).expect("a conversation the template takes"), expect);
}

#[test]
fn a_plain_question() {
    let request = ChatRequest::new([Message::new("user", " Hi! ")]);
    let thinking = ChatRequest { enable_thinking: Some(true), ..request.clone() };
    check(&thinking, "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n<think>\n");
    check(
        &request,
        "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    );
}

#[test]
fn tools_calls_and_results() {
    let mut request = ChatRequest::new([
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": [{"type": "text", "text": "Add "}, {"type": "text", "text": "1 and 2"}]}),
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function",
             "function": {"name": "add", "arguments": "{\"a\": 1, \"b\": 2.0, \"note\": [true, null]}"}},
        ]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "3"}),
    ]);
    request.tools = vec![json!({"name": "add", "z": 1e16, "a": "<é>"})];
    request.enable_thinking = Some(true);
    let rendered = template().render(&request).unwrap();
    let (tools, rest) = rendered.split_once("</tools>").unwrap();
    assert!(
        tools.ends_with("<tools>\n{\"name\": \"add\", \"z\": 1e+16, \"a\": \"<é>\"}\n"),
        "{tools}"
    );
    let conversation = rest.split_once("in plain words.").unwrap().1;
    assert_eq!(
        conversation,
        "\n\nBe brief.<|im_end|>\n<|im_start|>user\nAdd 1 and 2<|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n\
         <tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2.0\n</parameter>\n\
         <parameter=note>\n[true, null]\n</parameter>\n</function>\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\n"
    );
}

#[test]
fn refusals_carry_the_templates_words() {
    let message = |request: ChatRequest| match template().render(&request) {
        Err(Error::TemplateRaised { message }) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(message(ChatRequest::default()), "There are no messages.");
    let role = ChatRequest::new([Message::new("narrator", "Once")]);
    assert_eq!(message(role), "Unknown role: narrator");
    let image = ChatRequest::new([json!({"role": "user", "content": [{"type": "image"}]})]);
    assert_eq!(message(image), "Pebble reads text only.");
}

/// Every item of the evaluation set: rendering and tokenising give the number of tokens its maker counted.
#[test]
fn evaluation_prompts_have_their_token_counts() {
    let Ok(bytes) = std::fs::read(root("testdata/pebble/eval.json")) else {
        println!("skipped: testdata/pebble/eval.json is not there");
        return;
    };
    let evaluation: Value = serde_json::from_slice(&bytes).unwrap();
    let items = evaluation["items"].as_array().unwrap();
    assert!(items.len() > 100);
    let tokenizer = Tokenizer::from_bytes(&read("tokenizer.json").unwrap()).unwrap();
    let template = template();
    for item in items {
        let mut request = ChatRequest::new(item["messages"].as_array().unwrap().iter().cloned());
        request.tools = item["tools"].as_array().cloned().unwrap_or_default();
        request.enable_thinking = item["enable_thinking"].as_bool();
        let prompt = template.render(&request).unwrap();
        let ids = tokenizer.encode(&prompt, false).unwrap();
        assert_eq!(ids.len() as u64, item["prompt_tokens"].as_u64().unwrap(), "{}", item["id"]);
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), prompt, "{}", item["id"]);
    }
}

/// Prompt to splitter, as the command line uses the crate.
#[test]
fn an_answer_streams_from_tokens_to_segments() {
    let tokenizer = Tokenizer::from_bytes(&read("tokenizer.json").unwrap()).unwrap();
    let mut request = ChatRequest::new([Message::new("user", "Hi")]);
    request.enable_thinking = Some(true);
    let marks = ReasoningMarkers::detect(template().source()).unwrap();
    let prompt = template().render(&request).unwrap();
    let mut splitter = ReasoningSplitter::new(&marks, marks.left_by(&prompt));
    assert!(splitter.is_reasoning());
    let mut detokenizer = Detokenizer::new(&tokenizer);
    let answer =
        tokenizer.encode("A greeting 👋.\n</think>\n\nHello! 🙂<|im_end|>", false).unwrap();
    let (mut reasoning, mut content) = (String::new(), String::new());
    for id in answer {
        for segment in splitter.push(&detokenizer.push(id).unwrap()) {
            match segment {
                Piece::Reasoning(text) => reasoning.push_str(&text),
                Piece::Content(text) => content.push_str(&text),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((reasoning.as_str(), content.as_str()), ("A greeting 👋.\n", "Hello! 🙂"));
}
