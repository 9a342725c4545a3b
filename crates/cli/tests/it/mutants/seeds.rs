//! The models that mutants are made of, and what happens to them.

use std::path::Path;

use serde_json::{Value, json};

use super::draw::Draw;
use super::{fragments, json, repository, weights};

/// Small ones of every architecture.
const MODELS: [&str; 10] = [
    "llama-2bit",
    "mistral-mxfp4",
    "mixtral-mxfp4",
    "qwen3_moe-3bit",
    "qwen3_5-mxfp4",
    "qwen3_5_moe-mxfp4",
    "qwen3_next-mxfp4",
    "gpt_oss-mxfp4",
    "gemma3-mxfp4",
    "gemma4_e-mxfp4",
];

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";
pub(super) const TEMPLATE: &str = "chat_template.jinja";
const SIDES: [&str; 3] = ["generation_config.json", "tokenizer_config.json", "chat_template.json"];

/// Writes a mutant into an empty folder, and says what was changed.
pub(super) fn make(folder: &Path, draw: &mut Draw) -> Vec<String> {
    let model = draw.pick(&MODELS);
    let mut said = vec![model.to_owned()];
    let from = repository("testdata/models").join(model);
    for name in [CONFIG, WEIGHTS] {
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    let tokenizer = match draw.once_in(4) {
        true => std::fs::read(repository("models/pebble/tokenizer.json")).unwrap(),
        false => tokenizer(draw).to_string().into_bytes(),
    };
    std::fs::write(folder.join(TOKENIZER), tokenizer).unwrap();
    let copied = [TEMPLATE, "generation_config.json", "tokenizer_config.json"];
    for name in copied {
        std::fs::copy(repository("models/pebble").join(name), folder.join(name)).unwrap();
    }
    for _ in 0..1 + draw.below(3) {
        said.push(mutate(folder, draw));
    }
    said
}

/// A tokenizer of each kind, with a few tokens.
fn tokenizer(draw: &mut Draw) -> Value {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens =
        ["<unk>", "▁", "a", "b", "é", "ab", "▁ab"].map(str::to_owned).into_iter().chain(bytes);
    let table = |tokens: &mut dyn Iterator<Item = String>| -> Value {
        tokens.enumerate().map(|(id, token)| (token, Value::from(id))).collect()
    };
    let mut tokens: Box<dyn Iterator<Item = String>> = Box::new(tokens);
    let model = match draw.below(4) {
        0 => json!({"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
            "vocab": table(&mut tokens), "merges": [["a", "b"], ["▁", "ab"]]}),
        1 => {
            let scored: Vec<Value> =
                tokens.enumerate().map(|(id, token)| json!([token, -(id as f64)])).collect();
            json!({"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": scored})
        }
        2 => json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": table(&mut tokens)}),
        _ => json!({"type": "WordLevel", "unk_token": "<unk>", "vocab": table(&mut tokens)}),
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 263, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [263], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": model,
    })
}

/// One change of one file.
fn mutate(folder: &Path, draw: &mut Draw) -> String {
    match draw.below(20) {
        0..=5 => edit(folder, CONFIG, draw, |config, draw| {
            if draw.once_in(2) {
                return json::change(config, draw);
            }
            let key = draw.pick(&fragments::SIZES);
            let place = match config.get("text_config").is_some() && draw.once_in(2) {
                true => &mut config["text_config"],
                false => config,
            };
            place[key] = json::number(draw);
            format!("{key} {}", place[key])
        }),
        6..=9 => edit(folder, TOKENIZER, draw, |tokenizer, draw| {
            let (key, value) = match draw.below(8) {
                0..=3 => return json::change(tokenizer, draw),
                4 => ("model", fragments::model(draw)),
                5 => ("added_tokens", fragments::added(draw)),
                _ => fragments::section(draw),
            };
            tokenizer[key] = value;
            let shown: String = tokenizer[key].to_string().chars().take(120).collect();
            format!("{key} {shown}")
        }),
        10..=13 => {
            let path = folder.join(WEIGHTS);
            let Some(mut bytes) = read(&path) else { return "no weights".to_owned() };
            let what = weights::change(&mut bytes, draw);
            write(&path, &bytes);
            format!("{WEIGHTS}: {what}")
        }
        14 => {
            let piece = draw.pick(&fragments::TEMPLATES);
            let path = folder.join(TEMPLATE);
            let mut text = read(&path).unwrap_or_default();
            let at = draw.below(text.len() + 1);
            text.splice(at..at, piece.bytes());
            write(&path, &text);
            format!("{TEMPLATE}: {piece:?} at {at}")
        }
        15 => {
            let name = draw.pick(&SIDES);
            let path = folder.join(name);
            if path.symlink_metadata().is_err() {
                write(&path, br#"{"chat_template": [{"name": "default", "template": "a"}]}"#);
            }
            edit(folder, name, draw, json::change)
        }
        16 => {
            let shards = json!({"metadata": {"total_size": 1}, "weight_map": {"a": WEIGHTS, "b": "gone.safetensors"}});
            write(&folder.join(INDEX), shards.to_string().as_bytes());
            match draw.once_in(3) {
                true => format!("{INDEX} with a missing shard"),
                false => edit(folder, INDEX, draw, json::change),
            }
        }
        17 | 18 => {
            let name = draw.pick(&[CONFIG, WEIGHTS, TOKENIZER, TEMPLATE, SIDES[0], SIDES[1]]);
            let path = folder.join(name);
            let Some(mut bytes) = read(&path) else { return format!("no {name}") };
            let what = damage(&mut bytes, draw);
            write(&path, &bytes);
            format!("{name}: {what}")
        }
        _ => replace(folder, draw),
    }
}

/// Changes a JSON file as a value.
fn edit(
    folder: &Path,
    name: &str,
    draw: &mut Draw,
    change: impl FnOnce(&mut Value, &mut Draw) -> String,
) -> String {
    let path = folder.join(name);
    // What is broken already can only be broken further.
    let Some(bytes) = read(&path) else { return format!("no {name}") };
    let value = serde_json::from_slice::<Value>(&bytes).ok().filter(Value::is_object);
    let Some(mut value) = value else { return format!("{name} is broken already") };
    let what = change(&mut value, draw);
    write(&path, json::text(&value).as_bytes());
    format!("{name}: {what}")
}

/// Puts something else in a file's place.
fn replace(folder: &Path, draw: &mut Draw) -> String {
    let names = [CONFIG, WEIGHTS, INDEX, TOKENIZER, TEMPLATE, SIDES[0], SIDES[1], SIDES[2]];
    let name = draw.pick(&names);
    let path = folder.join(name);
    let _ = std::fs::remove_file(&path);
    match draw.below(6) {
        0 => {
            std::fs::create_dir_all(&path).unwrap();
            format!("{name} is a folder")
        }
        1 => link(&path, "/dev/zero"),
        2 => link(&path, name),
        3 => {
            let made = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(made.is_ok_and(|status| status.success()), "mkfifo");
            format!("{name} is a pipe")
        }
        4 => {
            let file = std::fs::File::create(&path).unwrap();
            let length = draw.pick(&[3 << 30, 1 << 40]);
            file.set_len(length).unwrap();
            format!("{name} is {length} zeros")
        }
        _ => format!("{name} is gone"),
    }
}

#[cfg(unix)]
fn link(path: &Path, target: &str) -> String {
    let _ = std::os::unix::fs::symlink(target, path);
    format!("{} leads to {target}", path.file_name().unwrap_or_default().display())
}

#[cfg(not(unix))]
fn link(_path: &Path, _target: &str) -> String {
    "no links here".to_owned()
}

/// Reads a file, unless an earlier change has put something else in its place.
fn read(path: &Path) -> Option<Vec<u8>> {
    const LARGEST: u64 = 64 << 20;
    let found = path.symlink_metadata().ok()?;
    (found.is_file() && found.len() <= LARGEST).then(|| std::fs::read(path).unwrap())
}

/// Writes a file, unless something that is no file stands in its place.
fn write(path: &Path, bytes: &[u8]) {
    if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
        return;
    }
    std::fs::write(path, bytes).unwrap();
}

/// Changes bytes without a thought for what they mean.
pub(super) fn damage(bytes: &mut Vec<u8>, draw: &mut Draw) -> String {
    match draw.below(5) {
        0 => {
            bytes.truncate(draw.below(bytes.len() + 1));
            format!("cut at {}", bytes.len())
        }
        1 => {
            // Where the words are rather than the weights.
            let most = bytes.len().clamp(1, 4096);
            let count = 1 + draw.below(20);
            for _ in 0..count {
                let at = draw.below(most);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << draw.below(8);
                }
            }
            format!("{count} bits turned")
        }
        2 => {
            let at = draw.below(bytes.len() + 1);
            let count = draw.below(5000);
            let noise: Vec<u8> = (0..count).map(|_| draw.bits() as u8).collect();
            bytes.splice(at..at, noise);
            format!("{count} bytes of noise at {at}")
        }
        3 => {
            bytes.clear();
            "empty".to_owned()
        }
        _ => {
            let half = bytes.len() / 2;
            bytes.extend_from_within(..half);
            "half of it twice".to_owned()
        }
    }
}
