//! Files that are not as they should be: each is refused with what is wrong and where, and none takes memory for what it
//! only claims to have.

use checkpoint::gguf::Value;

use super::{Raw, fields, open, string, tensors, written};

#[track_caller]
fn refused(file: &[u8], expect: &str) {
    let error = open(file).map(|_| ()).expect_err(expect).to_string();
    let error = error.strip_prefix("<memory>/model.gguf: ").unwrap_or(&error);
    assert_eq!(error, expect);
}

/// A good file with one change, and room for its tensors.
#[track_caller]
fn check(change: impl FnOnce(&mut Raw), expect: &str) {
    let mut raw = Raw::new();
    change(&mut raw);
    refused(&raw.file(32, 1 << 10), expect);
}

#[test]
fn what_is_no_gguf() {
    refused(b"", "byte 0: the first four bytes: 4 bytes, and only 0 bytes follow (truncated?)");
    refused(b"ggjt\x03\0\0\0", "not a GGUF file: begins with \"ggjt\", expected \"GGUF\"");
    refused(b"\x1b[2J", "not a GGUF file: begins with \"\\u{1b}[2J\", expected \"GGUF\"");
    refused(b"GGUF", "byte 4: the version: 4 bytes, and only 0 bytes follow (truncated?)");
    let version = |version: u32| [&b"GGUF"[..], &version.to_le_bytes(), &[0; 16]].concat();
    refused(
        &version(1),
        "GGUF version 1: from before August 2023; the file needs to be converted again",
    );
    refused(
        &version(3_u32.swap_bytes()),
        "GGUF version 50331648: big-endian; files are read in little-endian order only, as almost all are",
    );
    refused(
        &version(4),
        "GGUF version 4: expected 2 or 3; the file may be newer than this program, or broken",
    );
    refused(&version(3), "\"general.architecture\": expected a name, got nothing");
}

#[test]
fn counts_beyond_the_file() {
    let counts = |fields: u64, tensors: u64| {
        move |raw: &mut Raw| (raw.field_count, raw.tensor_count) = (Some(fields), Some(tensors))
    };
    check(counts(1 << 20, 0), "byte 24: metadata: 1048576 metadata fields, expected at most 65536");
    check(
        counts(1 << 15, 0),
        "byte 24: metadata: 32768 metadata fields, and only 1192 bytes follow (truncated?)",
    );
    check(
        counts(u64::MAX, 0),
        "byte 24: metadata: 18446744073709551615 metadata fields, expected at most 65536",
    );
    check(counts(4, 1_000_001), "byte 182: tensors: 1000001 tensors, expected at most 1000000");
    check(
        counts(4, 999_999),
        "byte 182: tensors: 999999 tensors, and only 1034 bytes follow (truncated?)",
    );
}

#[test]
fn fields_that_cannot_be() {
    let field = |type_id: u32, value: Vec<u8>| move |raw: &mut Raw| raw.field("k", type_id, &value);
    let long = |len: u64| len.to_le_bytes().to_vec();
    let array = |of: u32, count: u64| [&of.to_le_bytes()[..], &count.to_le_bytes()].concat();
    check(field(13, vec![]), "byte 191: metadata \"k\": a value of type 13, expected 0 to 12");
    check(
        field(8, long(1 << 40)),
        "byte 203: metadata \"k\": 1099511627776 bytes in a string, expected at most 67108864",
    );
    check(
        field(8, long(1 << 20)),
        "byte 203: metadata \"k\": 1048576 bytes in a string, and only 1045 bytes follow (truncated?)",
    );
    check(
        field(9, array(9, 1)),
        "byte 195: metadata \"k\": an array of arrays, which GGUF does not have",
    );
    check(
        field(9, array(77, 1)),
        "byte 195: metadata \"k\": an array of elements of type 77, expected 0 to 12",
    );
    check(
        field(9, array(12, 1 << 40)),
        "byte 207: metadata \"k\": 1099511627776 elements of an array, expected at most 16777216",
    );
    check(
        field(9, array(0, 1 << 24)),
        "byte 207: metadata \"k\": 16777216 elements of an array, and only 1041 bytes follow (truncated?)",
    );
    check(
        field(9, array(8, 1 << 20)),
        "byte 207: metadata \"k\": 1048576 strings of an array, and only 1041 bytes follow (truncated?)",
    );
    check(
        |raw| raw.field("tokenizer.ggml.tokens", 9, &array(8, 5_000_000)),
        "byte 227: metadata \"tokenizer.ggml.tokens\": 5000000 strings of an array, expected at most 4194304",
    );
    check(
        |raw| raw.field("llama.block_count", 4, &[0; 4]),
        "byte 182: metadata \"llama.block_count\": the key is there twice",
    );
    check(|raw| raw.field("", 4, &[0; 4]), "byte 182: metadata field 4: an empty key");
    check(
        |raw| raw.bytes_of_field([string(b"\xff\xfe"), vec![0; 5]].concat()),
        "byte 182: metadata field 4: a name that is not UTF-8",
    );
    check(
        |raw| raw.bytes_of_field(vec![0xff; 8]),
        "byte 190: metadata field 4: 18446744073709551615 bytes in a string, expected at most 65536",
    );
}

#[test]
fn alignments_that_cannot_be() {
    for alignment in [0_u64, 3, 1 << 40, u64::MAX] {
        check(
            |raw| raw.field("general.alignment", 10, &alignment.to_le_bytes()),
            &format!(
                "\"general.alignment\": expected a power of two that has 32 bits, got {alignment}"
            ),
        );
    }
    check(
        |raw| raw.field("general.alignment", 8, &string(b"32")),
        "\"general.alignment\": expected a whole number, got \"32\"",
    );
    // Data that would begin beyond the end.
    check(
        |raw| {
            raw.field("general.alignment", 4, &(1_u32 << 31).to_le_bytes());
            raw.tensor("t", &[1], 0, 0);
        },
        "tensor \"t\": ends at data byte 4, the file has 0 (truncated?)",
    );
}

#[test]
fn tensors_that_cannot_be() {
    let tensor = |dimensions: &'static [u64], type_id: u32, offset: u64| {
        move |raw: &mut Raw| raw.tensor("t", dimensions, type_id, offset)
    };
    check(tensor(&[1; 5], 0, 0), "byte 191: tensor \"t\": 5 dimensions, expected at most 4");
    check(
        tensor(&[33, 2], 2, 0),
        "tensor \"t\": rows of 33 weights are no whole number of Q4_0 blocks, which have 32",
    );
    check(
        tensor(&[], 2, 0),
        "tensor \"t\": rows of 1 weights are no whole number of Q4_0 blocks, which have 32",
    );
    check(
        tensor(&[u64::MAX, 2], 0, 0),
        "tensor \"t\": F32 [2, 18446744073709551615] is not a whole 64-bit number of bytes",
    );
    check(
        tensor(&[1 << 62, 1 << 62], 12, 0),
        "tensor \"t\": Q4_K [4611686018427387904, 4611686018427387904] is not a whole 64-bit number of bytes",
    );
    check(
        tensor(&[1 << 40], 0, 0),
        "tensor \"t\": ends at data byte 4398046511104, the file has 1024 (truncated?)",
    );
    check(tensor(&[1], 0, 4), "tensor \"t\": begins at data byte 4, expected a multiple of 32");
    check(
        tensor(&[1], 0, u64::MAX - 31),
        "tensor \"t\": ends at data byte 18446744073709551588, the file has 1024 (truncated?)",
    );
    check(
        tensor(&[1 << 60], 0, u64::MAX - 31),
        "tensor \"t\": ends at data byte 18446744073709551615, the file has 1024 (truncated?)",
    );
    check(
        tensor(&[256], 144, 0),
        "tensor \"t\": type 144 (IQ4_KS) is a type of ik_llama.cpp alone; \
         use a file with the types of llama.cpp",
    );
    check(
        tensor(&[256], 9, 0),
        "tensor \"t\": type 9 (Q8_1) is a type of activations, which no file should have",
    );
    check(|raw| raw.tensor("", &[1], 0, 0), "byte 182: tensor 0: an empty name");
    check(
        |raw| raw.tensor(&"n".repeat(2000), &[1], 0, 0),
        "byte 190: tensor 0: 2000 bytes in a string, expected at most 1024",
    );
    check(
        |raw| {
            raw.tensor("a", &[16], 0, 0);
            raw.tensor("b", &[16], 0, 32);
        },
        "tensors \"b\" and \"a\" both claim data byte 32",
    );
    check(
        |raw| {
            raw.tensor("a", &[8], 0, 0);
            raw.tensor("a", &[8], 0, 32);
        },
        "tensor \"a\" is named twice",
    );
    // One name for us, two in the file.
    check(
        |raw| {
            raw.tensor("token_embd.weight", &[4, 2], 0, 0);
            raw.tensor("blk.0.attn_q.weight", &[4, 2], 0, 32);
            raw.tensor("blk.00.attn_q.weight", &[4, 2], 0, 64);
        },
        "tensor \"model.layers.0.self_attn.q_proj.weight\" is named twice",
    );
}

#[test]
fn every_cut_is_refused() {
    let file = written(&fields("llama"), &tensors());
    let header = file.len() - 200_000;
    for len in (0..header).step_by(7) {
        let Err(error) = open(&file[..len]) else { panic!("{len} bytes are enough") };
        assert!(error.to_string().contains("truncated?"), "{len}: {error}");
    }
}

/// The file of a small model with one field changed.
#[track_caller]
fn check_field(architecture: &str, key: &str, value: Value, expect: &str) {
    let mut all = fields(architecture);
    all.retain(|(other, _)| other != key);
    all.push((key.to_owned(), value));
    refused(&written(&all, &tensors()), expect);
}

#[test]
fn what_is_no_model_that_is_read() {
    let key = "general.architecture";
    let text = |text: &str| Value::String(text.to_owned());
    check_field(
        "llama",
        key,
        text("mamba\u{7}"),
        "architecture \"mamba\\u{7}\" is not read; these are: gemma3, gemma4, gpt-oss, llama, qwen2, \
         qwen3, qwen35, qwen35moe, qwen3moe, qwen3next",
    );
    check_field("llama", key, Value::U32(1), "\"general.architecture\": expected a name, got 1");
    let image =
        "the part of a model that reads images, not a model; name the file of the model itself";
    check_field("llama", key, text("clip"), image);
    check_field("llama", "general.type", text("mmproj"), image);
    check_field(
        "llama",
        "general.type",
        text("adapter"),
        "an adapter of a model, not a model; name the file of the model itself",
    );
    check_field(
        "llama",
        "general.type",
        text("new"),
        "a file of type \"new\", not a model; name the file of the model itself",
    );
}

#[test]
fn numbers_that_no_model_has() {
    let check = |key: &str, value: Value, expect: &str| {
        let key = format!("llama.{key}");
        check_field("llama", &key, value, &format!("{key:?}: expected {expect}"));
    };
    check("block_count", Value::U32(0), "a number of layers from 1 to 4096, got 0");
    check(
        "block_count",
        Value::U64(1 << 40),
        "a number of layers from 1 to 4096, got 1099511627776",
    );
    check("block_count", Value::I32(-1), "a whole number, got -1");
    check("nextn_predict_layers", Value::U32(1), "fewer than `block_count`, got 1");
    check("embedding_length", Value::F32(256.0), "a whole number, got 256");
    check(
        "attention.head_count",
        Value::U32s(vec![]),
        "a whole number, or one for each layer, got an array of 0 numbers",
    );
    check("attention.value_length", Value::U32(32), "as many dimensions as keys have, got 32");
    check("rope.freq_base", Value::F32(f32::NAN), "a finite number, got NaN");
    check(
        "rope.dimension_count",
        Value::U32(65),
        "some dimensions of a head, or all of them, got 65",
    );
    check(
        "rope.scaling.type",
        Value::String("longrope".to_owned()),
        "none, linear or yarn, got \"longrope\"",
    );
    check_field(
        "llama",
        "llama.rope.scaling.type",
        Value::String("yarn".to_owned()),
        "\"llama.rope.scaling.factor\": expected a number, which yarn needs, got nothing",
    );
}

#[test]
fn experts_that_are_not_computed_so() {
    let with = |key: &str, value: Value| {
        let mut all = fields("qwen3moe");
        for (key, value) in [("expert_count", 4), ("expert_used_count", 2)] {
            all.push((format!("qwen3moe.{key}"), Value::U32(value)));
        }
        all.push((format!("qwen3moe.{key}"), value));
        written(&all, &tensors())
    };
    refused(
        &with("expert_gating_func", Value::U32(2)),
        "\"qwen3moe.expert_gating_func\": expected 1 or 3 (softmax) for this architecture, got 2",
    );
    refused(
        &with("expert_weights_scale", Value::F32(2.5)),
        "\"qwen3moe.expert_weights_scale\": expected 1 for this architecture, got 2.5",
    );
}
