//! A call as a model's own chat template writes it, read back: the template is the reference of its format.
//!
//! Pebble's template always; published ones from the folder `MILLSTREAM_TEST_TEMPLATES`, filled by
//! `support/fetch_templates.py`, without which a test prints a line beginning `skipped:`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use text::Piece;
use text::tools::{Tool, ToolFormat, ToolParser};
use text::{ChatRequest, ChatTemplate, ReasoningMarkers, TemplateFiles};

/// Formats of published templates: what must be found in each.
const EXPECTED: [(&str, ToolFormat); 36] = [
    ("deepseek_v3", ToolFormat::DeepSeek),
    ("gh-Bielik-11B-v3.0-Instruct", ToolFormat::Hermes),
    ("gh-GLM-4.6", ToolFormat::Glm),
    ("gh-GLM-4.7-Flash", ToolFormat::Glm),
    ("gh-LFM2.5-8B-A1B", ToolFormat::Pythonic),
    ("gh-MiMo-VL", ToolFormat::Hermes),
    ("gh-MiniMax-M2", ToolFormat::MiniMax),
    ("gh-Mistral-Small-3.2-24B-Instruct-2506", ToolFormat::Mistral),
    ("gh-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ToolFormat::QwenXml),
    ("gh-NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", ToolFormat::Hermes),
    ("gh-NousResearch-Hermes-3-Llama-3.1-8B-tool_use", ToolFormat::Hermes),
    ("gh-Qwen-QwQ-32B", ToolFormat::Hermes),
    ("gh-Qwen-Qwen2.5-7B-Instruct", ToolFormat::Hermes),
    ("gh-Qwen-Qwen3-0.6B", ToolFormat::Hermes),
    ("gh-Qwen3-Coder", ToolFormat::QwenXml),
    ("gh-Qwen3.5-4B", ToolFormat::QwenXml),
    ("gh-StepFun3.5-Flash", ToolFormat::QwenXml),
    ("gh-deepseek-ai-DeepSeek-R1-Distill-Llama-8B", ToolFormat::DeepSeek),
    ("gh-deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", ToolFormat::DeepSeek),
    ("gh-deepseek-ai-DeepSeek-V3.1", ToolFormat::DeepSeek),
    ("gh-deepseek-ai-DeepSeek-V3.2", ToolFormat::DeepSeekXml),
    ("gh-deepseek-ai-DeepSeek-V4", ToolFormat::DeepSeekXml),
    ("gh-google-gemma-4-31B-it", ToolFormat::Gemma4),
    ("gh-google-gemma-4-31B-it-interleaved", ToolFormat::Gemma4),
    ("gh-ibm-granite-granite-4.0", ToolFormat::Hermes),
    ("gh-meta-llama-Llama-3.1-8B-Instruct", ToolFormat::Llama3),
    ("gh-meta-llama-Llama-3.2-3B-Instruct", ToolFormat::Llama3),
    ("gh-meta-llama-Llama-3.3-70B-Instruct", ToolFormat::Llama3),
    ("gh-mistralai-Ministral-3-14B-Reasoning-2512", ToolFormat::Mistral),
    ("gh-moonshotai-Kimi-K2", ToolFormat::Kimi),
    ("gh-openai-gpt-oss-120b", ToolFormat::Harmony),
    ("gh-poolside-Laguna-S-2.1", ToolFormat::Glm),
    ("gh-unsloth-mistral-Devstral-Small-2507", ToolFormat::Mistral),
    ("mistral_nemo", ToolFormat::Mistral),
    ("qwen2_5", ToolFormat::Hermes),
    ("qwen3", ToolFormat::Hermes),
];

/// Published templates that show what was thought before a call; the others have no place for it.
const SHOW_THINKING: [&str; 14] = [
    "gh-Bielik-11B-v3.0-Instruct",
    "gh-GLM-4.6",
    "gh-GLM-4.7-Flash",
    "gh-LFM2.5-8B-A1B",
    "gh-MiniMax-M2",
    "gh-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "gh-Qwen-Qwen3-0.6B",
    "gh-Qwen3.5-4B",
    "gh-StepFun3.5-Flash",
    "gh-google-gemma-4-31B-it",
    "gh-google-gemma-4-31B-it-interleaved",
    "gh-openai-gpt-oss-120b",
    "gh-poolside-Laguna-S-2.1",
    "qwen3",
];

/// Those that drop words next to calls, and take words apart from them for a turn too many.
const DROP_WORDS: [&str; 2] = ["gh-Mistral-Small-3.2-24B-Instruct-2506", "mistral_nemo"];

fn weather() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer", "description": "How long"},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "What"},
            "metric": {"type": "boolean", "description": "How"},
        },
        "required": ["city"],
    });
    json!({"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": parameters}})
}

/// The part of a conversation that the model would have written.
fn answer(template: &ChatTemplate, arguments: &Value) -> Result<String, text::Error> {
    let user = json!({"role": "user", "content": "How is the weather?"});
    let call = json!({"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}});
    let assistant = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let mut request = ChatRequest::new([user.clone()]);
    request.tools = vec![weather()];
    let prompt = template.render(&request)?;
    request.messages.push(assistant);
    request.add_generation_prompt = false;
    let whole = template.render(&request)?;
    let same =
        whole.chars().zip(prompt.chars()).take_while(|(ours, theirs)| ours == theirs).count();
    let common: String = whole.chars().take(same).collect();
    // Two markers may begin alike: the answer begins with the whole of its own.
    let start = common.rfind('<').filter(|&at| !common[at..].contains('>')).unwrap_or(common.len());
    Ok(whole[start..].to_owned())
}

fn calls(format: ToolFormat, text: &str) -> Vec<(String, Value)> {
    let tools = [Tool::from_json(&weather()).expect("a tool")];
    let mut parser = ToolParser::new(format, &tools);
    let mut calls: Vec<(String, String)> = Vec::new();
    let events = text.split_inclusive(' ').flat_map(|piece| parser.push(piece)).collect::<Vec<_>>();
    for event in events.into_iter().chain(parser.finish()) {
        match event {
            Piece::ToolBegin { name, .. } => calls.push((name, String::new())),
            Piece::ToolArguments { json, .. } => {
                calls.last_mut().expect("a call").1.push_str(&json);
            }
            _ => {}
        }
    }
    calls
        .into_iter()
        .map(|(name, json)| (name, serde_json::from_str(&json).expect("JSON")))
        .collect()
}

fn source(files: &TemplateFiles) -> String {
    files.default.clone() + files.tool_use.as_deref().unwrap_or_default()
}

/// Names and files of the published templates that are there.
fn published() -> Option<Vec<(String, TemplateFiles)>> {
    let Some(folder) = std::env::var_os("MILLSTREAM_TEST_TEMPLATES").map(PathBuf::from) else {
        println!("skipped: MILLSTREAM_TEST_TEMPLATES is not set");
        return None;
    };
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    folders.sort();
    let name =
        |folder: &Path| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let files = folders.iter().filter_map(|folder| Some((name(folder), folder_files(folder)?)));
    Some(files.collect())
}

fn folder_files(folder: &Path) -> Option<TemplateFiles> {
    TemplateFiles::find(|file| std::fs::read(folder.join(file)).ok()).expect("readable files")
}

/// The format that was found, and what is wrong with the way back.
fn round_trip(files: &TemplateFiles) -> (Option<ToolFormat>, Option<String>) {
    let Some(format) = ToolFormat::detect(&source(files), "") else { return (None, None) };
    let Ok(template) = ChatTemplate::from_files(files) else {
        return (Some(format), Some("does not compile".to_owned()));
    };
    for arguments in [
        json!({"city": "São Paulo", "days": 2}),
        json!({"city": "a \"b\"\n<c> {d}", "tags": ["x", "y, z"], "metric": true}),
        json!({"city": "Oslo"}),
    ] {
        let text = match answer(&template, &arguments) {
            Ok(text) => text,
            Err(error) => return (Some(format), Some(error.to_string())),
        };
        let found = calls(format, &text);
        if found != [("weather".to_owned(), arguments.clone())] {
            return (Some(format), Some(format!("{text:?} gives {found:?}")));
        }
    }
    (Some(format), None)
}

/// What is missing in the prompt of a conversation as agents send it: an answered question, then thought, said, two tools
/// called at once, with ids as the server makes them, both answered, and another call after that.
fn missing(template: &ChatTemplate, has_words: bool) -> Result<Vec<&'static str>, text::Error> {
    let call = |id: &str, city: &str| json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": {"city": city}}});
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "name": "weather", "content": text});
    let ids = ["toolu_0f92a4c1d7b3458e9a0b1c2d3e", "call_5f1e2d3c4b5a69788796a5b4c3", "call_3"];
    let said = |words: &'static str| if has_words { words } else { "" };
    let request = ChatRequest {
        tools: vec![weather()],
        ..ChatRequest::new([
            json!({"role": "user", "content": "And in Paris?"}),
            json!({"role": "assistant", "content": said("Words-of-Paris"), "tool_calls": [call("call_0", "Paris")]}),
            result("call_0", "Result-of-Paris"),
            json!({"role": "assistant", "content": "Answer-of-Paris"}),
            json!({"role": "user", "content": "How is the weather?"}),
            json!({"role": "assistant", "content": said("Words-of-it"), "reasoning_content": "Thoughts-of-it",
                   "tool_calls": [call(ids[0], "Oslo"), call(ids[1], "Bergen")]}),
            result(ids[0], "First-result"),
            result(ids[1], "Second-result"),
            json!({"role": "assistant", "content": said("More-words"), "tool_calls": [call(ids[2], "Malmo")]}),
            result(ids[2], "Third-result"),
        ])
    };
    let prompt = template.render(&request)?;
    let mut words = vec!["Paris", "Answer-of-Paris", "Oslo", "Bergen", "Malmo", "Thoughts-of-it"];
    words.extend(["Result-of-Paris", "First-result", "Second-result", "Third-result"]);
    words.extend(["Words-of-it", "More-words"].iter().filter(|_| has_words));
    Ok(words.into_iter().filter(|word| !prompt.contains(word)).collect())
}

#[test]
fn pebble_reads_its_own_calls() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/pebble");
    let files = folder_files(&folder).expect("a template");
    assert_eq!(round_trip(&files), (Some(ToolFormat::QwenXml), None));
    assert_eq!(ReasoningMarkers::detect(&source(&files)).unwrap().close, "</think>");
}

/// The request to Gemma 4 where its answers turned to garbage: tools, and a question that needs none of them.
#[test]
fn r69_gemma_with_tools_and_a_vague_question() {
    let Some(folder) = std::env::var_os("MILLSTREAM_TEST_TEMPLATES").map(PathBuf::from) else {
        println!("skipped: MILLSTREAM_TEST_TEMPLATES is not set");
        return;
    };
    let gemmas = EXPECTED.iter().filter(|(_, format)| *format == ToolFormat::Gemma4);
    let mut found = 0;
    for (name, format) in gemmas {
        let Some(files) = folder_files(&folder.join(name)) else { continue };
        let template = ChatTemplate::from_files(&files).unwrap();
        let prompt = |thinking: Option<bool>| {
            let mut request = ChatRequest::new([json!({"role": "user", "content": "hmm"})]);
            request.tools = vec![weather()];
            request.enable_thinking = thinking;
            template.render(&request).unwrap()
        };
        // Left alone, the template begins the answer after an empty thought: that is the case to avoid.
        for thinking in [None, Some(false)] {
            let prompt = prompt(thinking);
            assert!(prompt.contains("<|turn>system\n<|tool>declaration:weather{"), "{prompt}");
            assert!(prompt.ends_with("<|turn>model\n<|channel>thought\n<channel|>"), "{prompt}");
        }
        assert!(format.thinks_with_tools());
        let prompt = prompt(Some(true));
        assert!(
            prompt.contains("<|turn>system\n<|think|>\n<|tool>declaration:weather{"),
            "{prompt}"
        );
        assert!(prompt.ends_with("<|turn>user\nhmm<turn|>\n<|turn>model\n"), "{prompt}");
        found += 1;
    }
    match found {
        0 => println!("skipped: no template of Gemma 4 under {}", folder.display()),
        found => println!("{found} templates of Gemma 4"),
    }
}

#[test]
fn published_templates_are_read_back() {
    let Some(published) = published() else { return };
    let mut wrong = Vec::new();
    for (name, files) in published {
        let (format, problem) = round_trip(&files);
        println!(
            "{name}: {} {}",
            format.map_or("none", ToolFormat::name),
            problem.as_deref().unwrap_or("ok")
        );
        let expected =
            EXPECTED.iter().find(|(expected, _)| *expected == name).map(|(_, format)| *format);
        if expected.is_some() && (format != expected || problem.is_some()) {
            wrong.push(format!("{name}: {format:?} {problem:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn published_templates_show_what_agents_send() {
    let Some(published) = published() else { return };
    let mut wrong = Vec::new();
    for (name, files) in published {
        if !EXPECTED.iter().any(|(expected, _)| *expected == name) {
            continue;
        }
        let thinks = SHOW_THINKING.contains(&name.as_str());
        let drops_words = DROP_WORDS.contains(&name.as_str());
        let template = ChatTemplate::from_files(&files).unwrap();
        for has_words in [true, false] {
            let found = missing(&template, has_words).map_err(|error| error.to_string());
            let mut missing = found.unwrap_or_else(|error| panic!("{name} {has_words}: {error}"));
            missing.retain(|word| thinks || *word != "Thoughts-of-it");
            missing.retain(|word| !drops_words || !["Words-of-it", "More-words"].contains(word));
            if !missing.is_empty() {
                wrong.push(format!("{name} {has_words}: {missing:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
