//! Untrusted bytes on stable Rust: the fuzzing corpus again, and thousands of seeded mutations of
//! a good checkpoint. Whatever happens to the bytes, there is an answer and no panic.

use std::fs;
use std::path::Path;

use checkpoint::{Checkpoint, Error};
use format::Dtype;
use safetensors::SafeTensors;

use crate::exercise;
use crate::gguf;
use crate::support::{CONFIG, counted_file, declare, files, xorshift};

/// A small checkpoint with everything in it: two shards, an index, stacked quantized experts.
fn valid() -> Vec<(String, Vec<u8>)> {
    let config = r#"{"model_type":"x","eos_token_id":[1,2],
        "text_config":{"hidden_size":64,"rope_parameters":{"rope_theta":1e4}},
        "quantization":{"bits":4,"group_size":32,"model.layers.0.mlp.gate":{"bits":8}}}"#;
    let mut first = vec![
        declare("model.norm.weight", Dtype::BF16, &[64]),
        declare("model.layers.0.mlp.gate.weight", Dtype::F16, &[4, 64]),
    ];
    let mut second = Vec::new();
    for (name, rows, columns) in [("gate_proj", 32, 64), ("up_proj", 32, 64), ("down_proj", 64, 32)]
    {
        let path = format!("model.layers.0.mlp.switch_mlp.{name}");
        second.push(declare(&format!("{path}.weight"), Dtype::U32, &[4, rows, columns / 8]));
        first.push(declare(&format!("{path}.scales"), Dtype::U8, &[4, rows, columns / 32]));
    }
    let map: Vec<String> = (first.iter().map(|tensor| (tensor, exercise::NAMES[3])))
        .chain(second.iter().map(|tensor| (tensor, exercise::NAMES[4])))
        .map(|(tensor, file)| format!("{:?}:{file:?}", tensor.name))
        .collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
    files(&[
        (exercise::NAMES[0], config.as_bytes()),
        (exercise::NAMES[1], index.as_bytes()),
        (exercise::NAMES[2], br#"{"eos_token_id":3}"#),
        (exercise::NAMES[3], &counted_file(&first)),
        (exercise::NAMES[4], &counted_file(&second)),
    ])
}

/// One to three changes of the kinds that break parsers: bits, digits, cuts, repeats, big numbers.
fn mutate(bytes: &mut Vec<u8>, state: &mut u64) {
    const TOKENS: [&str; 12] = [
        "18446744073709551615",
        "4294967296",
        "-1",
        "0",
        "1e400",
        "null",
        "[",
        "}",
        "\"",
        ",",
        "\\u0000",
        "../",
    ];
    for _ in 0..=xorshift(state) % 3 {
        if bytes.is_empty() {
            return;
        }
        // Mostly near the beginning, where the headers are.
        let reach =
            if xorshift(state).is_multiple_of(4) { bytes.len() } else { bytes.len().min(700) };
        let at = xorshift(state) as usize % reach;
        let len = (xorshift(state) as usize % 12).min(bytes.len() - at);
        match xorshift(state) % 7 {
            0 => bytes[at] ^= 1 << (xorshift(state) % 8),
            1 => bytes[at] = b"0123456789[]{},:\""[xorshift(state) as usize % 17],
            2 => drop(bytes.drain(at..at + len)),
            3 => {
                let copy = bytes[at..at + len].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            4 => bytes.truncate(at),
            5 => {
                let token = TOKENS[xorshift(state) as usize % TOKENS.len()];
                drop(bytes.splice(at..at + len, token.bytes()));
            }
            _ => {
                // A digit for a digit keeps the file well-formed and makes the numbers wrong.
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    bytes[at + digit] = b'0' + (xorshift(state) % 10) as u8;
                }
            }
        }
    }
}

/// Keeps the length in front of a safetensors header true, so that its JSON is reached.
fn repair_length(file: &mut [u8]) {
    let is_brace = |byte: &u8| *byte == b'{';
    if file.len() > 8
        && file[8..].first().is_some_and(is_brace)
        && let Some(end) = file.windows(2).position(|pair| pair == b"}}")
    {
        let len = (end + 2).saturating_sub(8) as u64;
        file[..8].copy_from_slice(&len.to_le_bytes());
    }
}

#[test]
fn mutated_checkpoints_never_panic() {
    let original = valid();
    exercise::files(original.clone());
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut opened = 0;
    for round in 0..6000 {
        let mut list = original.clone();
        let target = round % list.len();
        mutate(&mut list[target].1, &mut state);
        if target >= 3 && round % 2 == 0 {
            repair_length(&mut list[target].1);
        }
        opened += u32::from(Checkpoint::from_owned(list.clone()).is_ok());
        exercise::files(list);
    }
    // Both answers must occur often, or the mutations test only one of them.
    assert!((600..5400).contains(&opened), "{opened} of 6000 opened");
}

/// Small models of every architecture, each with what is special about it.
fn gguf_files() -> Vec<Vec<u8>> {
    [
        "llama",
        "qwen2",
        "qwen3moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "gemma3",
        "gemma4",
        "gpt-oss",
    ]
    .map(gguf::small)
    .to_vec()
}

/// One or two changes: bits, words of every width that are zero, one or the largest, cuts, repeats.
fn mutate_numbers(bytes: &mut Vec<u8>, header: usize, state: &mut u64) {
    for _ in 0..=xorshift(state) % 2 {
        let reach = header.min(bytes.len());
        if reach == 0 {
            return;
        }
        let at = xorshift(state) as usize % reach;
        let width = (1 << (xorshift(state) % 4)).min(bytes.len() - at);
        let word = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 40, xorshift(state) % 512];
        let word = word[xorshift(state) as usize % word.len()].to_le_bytes();
        match xorshift(state) % 12 {
            0..=6 => bytes[at] ^= 1 << (xorshift(state) % 8),
            7..=9 => bytes[at..at + width].copy_from_slice(&word[..width]),
            10 => bytes.truncate(at),
            _ => {
                let copy = bytes[at..at + width].to_vec();
                drop(bytes.splice(at..at, copy));
            }
        }
    }
}

#[test]
fn mutated_gguf_files_never_panic() {
    let originals = gguf_files();
    for file in &originals {
        gguf::open(file).unwrap();
        exercise::gguf(file);
    }
    let mut state = 0x2545_f491_4f6c_dd1d;
    let mut opened = 0;
    for round in 0..3600 {
        let mut file = originals[round % originals.len()].clone();
        let header = gguf::header_bytes(&file);
        mutate_numbers(&mut file, header, &mut state);
        opened += u32::from(gguf::open(&file).is_ok());
        exercise::gguf(&file);
    }
    assert!((360..3240).contains(&opened), "{opened} of 3600 opened");
}

#[test]
fn mutated_pieces_never_panic() {
    let original = valid();
    let header = {
        let file = &original[3].1;
        let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        file[8..8 + len].to_vec()
    };
    let mut state = 88_172_645_463_325_252;
    for _ in 0..4000 {
        let pieces = [&header, &original[0].1, &original[1].1, &exercise::join(&original)];
        let mut pieces = pieces.map(Clone::clone);
        pieces.iter_mut().for_each(|piece| mutate(piece, &mut state));
        exercise::header(&pieces[0]);
        exercise::config(&pieces[1]);
        exercise::index(&pieces[2]);
        exercise::open(&pieces[3]);
    }
}

/// What the reference library accepts we accept, with the same tensors in it.
#[test]
fn nothing_the_reference_reads_is_refused() {
    let original = valid()[3].1.clone();
    let mut state = 1234;
    let mut accepted = 0;
    for _ in 0..6000 {
        let mut model = original.clone();
        mutate(&mut model, &mut state);
        if xorshift(&mut state).is_multiple_of(2) {
            repair_length(&mut model);
        }
        let Ok(reference) = SafeTensors::deserialize(&model) else { continue };
        let list = files(&[("config.json", CONFIG.as_bytes()), ("model.safetensors", &model)]);
        let checkpoint = match Checkpoint::from_owned(list) {
            Ok(checkpoint) => checkpoint,
            // The reference keeps one of two equal names in silence.
            Err(Error::Duplicate { .. }) => continue,
            Err(error) => panic!("the reference reads it, we say {error}"),
        };
        accepted += 1;
        assert_eq!(checkpoint.tensors().len(), reference.len());
        for (name, view) in reference.iter() {
            let tensor = checkpoint.require(name, view.shape()).unwrap();
            let mut bytes = vec![0; tensor.len_bytes as usize];
            checkpoint.read(tensor, 0, &mut bytes).unwrap();
            assert_eq!(bytes, view.data());
        }
    }
    assert!(accepted > 100, "only {accepted} of 6000 were accepted");
}

#[test]
fn the_fuzzing_corpus_never_panics() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    type Target = fn(&[u8]);
    let targets: [(&str, Target); 5] = [
        ("header", exercise::header),
        ("config", exercise::config),
        ("index", exercise::index),
        ("open", exercise::open),
        ("gguf", exercise::gguf),
    ];
    for (name, target) in targets {
        let mut seeds = 0;
        for entry in fs::read_dir(corpus.join(name)).unwrap() {
            target(&fs::read(entry.unwrap().path()).unwrap());
            seeds += 1;
        }
        assert!(seeds > 0, "no seeds for {name}");
    }
}

#[test]
fn joined_inputs_split_again() {
    let original = valid();
    assert_eq!(exercise::split(&exercise::join(&original)), original);
}
