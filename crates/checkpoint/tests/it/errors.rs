//! Forged and broken files: each is refused with file, tensor, expected and got.

use checkpoint::{Checkpoint, FileIndex, safetensors};
use format::Dtype;

use crate::support::{CONFIG, declare, files, open, raw_file};

#[track_caller]
fn check_files(list: &[(&str, &[u8])], expected: &str) {
    let error = Checkpoint::from_owned(files(list)).map(drop).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

/// A model.safetensors with this header and this many bytes of data.
#[track_caller]
fn check_header(header: &str, data_bytes: usize, expected: &str) {
    let model = raw_file(header, data_bytes);
    let list = [("config.json", CONFIG.as_bytes()), ("model.safetensors", &model[..])];
    check_files(&list, &format!("<memory>/model.safetensors: {expected}"));
}

#[test]
fn headers_that_do_not_fit_their_file() {
    let check = |model: &[u8], expected: &str| {
        let list = [("config.json", CONFIG.as_bytes()), ("model.safetensors", model)];
        check_files(&list, &format!("<memory>/model.safetensors: {expected}"));
    };
    check(b"", "wanted 8 bytes at offset 0, got 0");
    check(b"1234567", "wanted 8 bytes at offset 0, got 7");
    check(&[255; 16], "header of 18446744073709551615 bytes, at most 8 are possible");
    check(&[9, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'], "header of 9 bytes, at most 2 are possible");
    check(&[0; 8], "EOF while parsing a value at line 1 column 0");
}

#[test]
fn a_header_of_more_than_a_hundred_megabytes_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    let path = folder.path().join("model.safetensors");
    let bytes = safetensors::HEADER_LIMIT_BYTES + 1;
    std::fs::write(&path, bytes.to_le_bytes()).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("header of 100000001 bytes, at most 100000000 are possible"),
        "{error}"
    );
}

#[test]
fn headers_that_are_not_headers() {
    check_header(
        "[]",
        0,
        "invalid type: sequence, expected a safetensors header at line 1 column 0",
    );
    check_header(
        "{\"a\":1}",
        0,
        "tensor \"a\": invalid type: integer `1`, expected dtype, shape and data_offsets at line 1 column 6",
    );
    check_header(
        r#"{"a":{"shape":[],"data_offsets":[0,0]}}"#,
        0,
        "tensor \"a\": missing field `dtype` at line 1 column 38",
    );
    check_header(
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}"#,
        0,
        "tensor \"a\": invalid value: integer `-1`, expected usize at line 1 column 31",
    );
    check_header(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#,
        4,
        "tensor \"a\": invalid length 1, expected an array of length 2 at line 1 column 50",
    );
    check_header("{} {}", 0, "trailing characters at line 1 column 4");
    let deep = format!("{{\"a\":{}", "[".repeat(1000));
    check_header(
        &deep,
        0,
        "tensor \"a\": invalid type: sequence, expected a string at line 1 column 6",
    );
    let name = "x".repeat(1025);
    check_header(
        &format!("{{\"{name}\":1}}"),
        0,
        "tensor name of 1025 bytes, the limit is 1024 at line 1 column 1028",
    );
    let ones = vec!["1"; 17].join(",");
    check_header(
        &format!(r#"{{"a":{{"dtype":"F32","shape":[{ones}],"data_offsets":[0,4]}}}}"#),
        4,
        "tensor \"a\": more than 16 dimensions at line 1 column 63",
    );
}

#[test]
fn deep_nesting_is_refused_or_skipped_without_recursion() {
    let deep = "[".repeat(200_000);
    check_header(
        &format!("{{\"__metadata__\":{deep}"),
        0,
        "invalid type: sequence, expected a map of strings to strings at line 1 column 16",
    );
    let unknown = format!(r#"{{"a":{{"extra":{deep}{},"dtype":"#, "]".repeat(200_000));
    let error = safetensors::parse_header(unknown.as_bytes(), "x".as_ref(), FileIndex(0), 0);
    assert!(error.is_err());
    let config = format!("{{\"model_type\":\"x\",\"y\":{deep}");
    check_files(
        &[("config.json", config.as_bytes())],
        "<memory>/config.json: recursion limit exceeded at line 1 column 149",
    );
}

/// One tensor `a` with this dtype, shape and offsets over 16 bytes of data.
#[track_caller]
fn check_tensor(dtype: &str, shape: &str, offsets: &str, expected: &str) {
    let header =
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
    check_header(&header, 16, &format!("tensor \"a\": {expected}"));
}

#[test]
fn tensors_that_do_not_add_up() {
    check_tensor("F33", "[1]", "[0,4]", "unknown dtype \"F33\"");
    check_tensor("F32", "[2,2]", "[0,12]", "F32 [2, 2] needs 16 bytes, the header gives it 12");
    check_tensor("F32", "[]", "[0,0]", "F32 [] needs 4 bytes, the header gives it 0");
    check_tensor("F32", "[0,9]", "[0,4]", "F32 [0, 9] needs 0 bytes, the header gives it 4");
    check_tensor("F32", "[2]", "[8,0]", "ends at 0, before it begins at 8");
    check_tensor("F32", "[2]", "[12,20]", "ends at data byte 20, the file has 16 (truncated?)");
    check_tensor(
        "U8",
        "[18446744073709551615]",
        "[0,18446744073709551615]",
        "ends at data byte 18446744073709551615, the file has 16 (truncated?)",
    );
    check_tensor(
        "F32",
        "[4294967296,4294967296]",
        "[0,0]",
        "F32 [4294967296, 4294967296] is not a whole 64-bit number of bytes",
    );
    check_tensor(
        "F32",
        "[4611686018427387904]",
        "[0,0]",
        "F32 [4611686018427387904] is not a whole 64-bit number of bytes",
    );
    check_tensor("F4", "[3]", "[0,2]", "F4 [3] is not a whole 64-bit number of bytes");
}

#[test]
fn tensors_that_share_bytes_or_names() {
    let entry = |name: &str, begin: u32, end: u32| {
        let shape = end - begin;
        format!(r#""{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#)
    };
    let header = |entries: &[String]| format!("{{{}}}", entries.join(","));
    check_header(
        &header(&[entry("a", 0, 8), entry("b", 7, 9)]),
        16,
        "tensors \"b\" and \"a\" both claim data byte 7",
    );
    check_header(
        &header(&[entry("a", 4, 8), entry("b", 0, 16)]),
        16,
        "tensors \"a\" and \"b\" both claim data byte 4",
    );
    check_header(
        &header(&[entry("a", 0, 8), entry("a", 8, 16)]),
        16,
        "tensor \"a\" is named twice",
    );
    check_header(&header(&[entry("a", 0, 8), entry("a", 0, 8)]), 16, "tensor \"a\" is named twice");
    let (one, two) = (header(&[entry("a", 0, 8)]), header(&[entry("b", 0, 8), entry("a", 8, 9)]));
    check_files(
        &[
            ("config.json", CONFIG.as_bytes()),
            ("model-1.safetensors", &raw_file(&one, 8)),
            ("model-2.safetensors", &raw_file(&two, 9)),
        ],
        "tensor \"a\" is in two files: <memory>/model-1.safetensors and <memory>/model-2.safetensors",
    );
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    check_header(
        r#"{"\u001b[2J":{"dtype":"F32","shape":[1],"data_offsets":[0,0]}}"#,
        0,
        "tensor \"\\u{1b}[2J\": F32 [1] needs 4 bytes, the header gives it 0",
    );
}

#[test]
fn holes_and_trailing_bytes_are_harmless() {
    let header = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},
                     "b":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[5,5]}}"#;
    let model = raw_file(header, 32);
    let list = [("config.json", CONFIG.as_bytes()), ("model.safetensors", &model[..])];
    let checkpoint = Checkpoint::from_owned(files(&list)).unwrap();
    assert_eq!(checkpoint.tensor("b").unwrap().elements(), 0);
    assert_eq!(checkpoint.total_bytes(), 2);
}

#[test]
fn configurations_and_indexes_that_cannot_be_used() {
    let config = |json: &str, expected: &str| {
        check_files(
            &[("config.json", json.as_bytes())],
            &format!("<memory>/config.json: {expected}"),
        );
    };
    check_files(&[], "<memory>/config.json: not found");
    config("{}", "\"model_type\": expected a name, got nothing");
    config(r#"{"model_type": 3}"#, "\"model_type\": expected a name, got 3");
    config("[1]", "invalid type: sequence, expected a map at line 1 column 0");
    config(
        r#"{"model_type": "x", "quantization": {"bits": "four"}}"#,
        "\"quantization.bits\": expected 1 to 8, got \"four\"",
    );
    config(
        r#"{"model_type": "x", "quantization": {"lm_head": {"group_size": -1}}}"#,
        "\"lm_head.group_size\": expected a group size, got -1",
    );
    config(
        r#"{"model_type": "x", "quantization": {"mode": "fp7"}}"#,
        "\"quantization.mode\": expected affine, mxfp4, mxfp8 or nvfp4, got \"fp7\"",
    );
    check_files(&[("config.json", CONFIG.as_bytes())], "<memory>: no *.safetensors file");

    let index = |json: &str, expected: &str| {
        let list =
            [("config.json", CONFIG.as_bytes()), ("model.safetensors.index.json", json.as_bytes())];
        check_files(&list, expected);
    };
    let path = "<memory>/model.safetensors.index.json";
    index("{}", &format!("{path}: missing field `weight_map` at line 1 column 2"));
    for name in ["../x", "/etc/passwd", "a/b", "..", ".", "", "c:x", "a\\\\b"] {
        let json = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
        let expected =
            format!("{path}: names \"{name}\", which is not a file name inside the folder");
        index(&json, &expected);
    }
    index(
        r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#,
        "<memory>: no *.safetensors file; the index lists files that are not there: \
         model-1.safetensors, model-2.safetensors",
    );
}

#[test]
fn tensors_that_are_not_what_the_model_needs() {
    let checkpoint = open(
        CONFIG,
        &[
            declare("language_model.model.layers.0.mlp.gate.weight", Dtype::I32, &[4, 8]),
            declare("norm.weight", Dtype::BF16, &[8]),
        ],
    );
    let file = "<memory>/model.safetensors: tensor";
    let message = |result: checkpoint::Result<()>| result.unwrap_err().to_string();
    assert_eq!(
        message(checkpoint.require("model.layers.0.mlp.gate.weight", &[4, 8]).map(drop)),
        "<memory>: no tensor \"model.layers.0.mlp.gate.weight\"; \
         near: \"language_model.model.layers.0.mlp.gate.weight\""
    );
    assert_eq!(message(checkpoint.require("zzz", &[]).map(drop)), "<memory>: no tensor \"zzz\"");
    assert_eq!(
        message(checkpoint.require("norm.weight", &[8, 1]).map(drop)),
        format!("{file} \"norm.weight\": expected shape [8, 1], got [8]")
    );
    let gate = checkpoint.tensor("language_model.model.layers.0.mlp.gate.weight").unwrap();
    assert_eq!(
        message(checkpoint.read_f32(gate).map(drop)),
        format!("{file} {:?}: expected F32, F16 or BF16, got I32", gate.name)
    );
    let path = "language_model.model.layers.0.mlp.gate";
    assert_eq!(
        message(checkpoint.linear(path, None, 4, 8).map(drop)),
        format!("{file} {:?}: expected F32, F16 or BF16 weights, got I32", gate.name)
    );
    assert_eq!(
        message(checkpoint.linear(path, None, 4, 0).map(drop)),
        format!("<memory>: {:?}: a weight of shape [4, 0] is empty", gate.name)
    );
    let norm = checkpoint.tensor("norm.weight").unwrap();
    assert_eq!(
        message(checkpoint.read(norm, 10, &mut [0; 7])),
        format!("{file} \"norm.weight\": 7 bytes at 10 do not lie within its 16")
    );
    assert!(checkpoint.read(norm, u64::MAX, &mut [0; 7]).is_err());
    checkpoint.read(norm, 16, &mut []).unwrap();
}

#[test]
fn parts_that_do_not_belong_together() {
    let check = |parts: &[(&str, Dtype, &[usize])], expected: &str| {
        let mut tensors = Vec::new();
        for (name, dtype, shape) in parts {
            tensors.push(declare(&format!("m.{name}"), *dtype, shape));
        }
        let checkpoint = open(CONFIG, &tensors);
        let error = checkpoint.linear("m", None, 4, 64).unwrap_err().to_string();
        assert_eq!(error, format!("<memory>/model.safetensors: tensor {expected}"));
    };
    let weight = ("weight", Dtype::U32, &[4, 8][..]);
    let scales = ("scales", Dtype::BF16, &[4, 1][..]);
    check(
        &[weight, scales],
        "\"m.weight\": 8 words and 1 scales per row of 64 inputs: 4 bits in groups of 64 with BF16 \
         scales, without biases, is no known quantization",
    );
    check(
        &[weight, scales, ("biases", Dtype::BF16, &[4, 2])],
        "\"m.biases\": expected shape [4, 1], got [4, 2]",
    );
    check(
        &[weight, scales, ("biases", Dtype::F16, &[4, 1])],
        "\"m.biases\": expected biases of the scales' type, got F16",
    );
    check(
        &[("weight", Dtype::I32, &[4, 8]), scales],
        "\"m.weight\": expected U32 weights alongside scales, got I32",
    );
    check(
        &[("weight", Dtype::U32, &[5, 8]), scales],
        "\"m.weight\": expected shape [4, 8], got [5, 8]",
    );
    check(&[weight, ("scales", Dtype::BF16, &[1])], "\"m.scales\": expected shape [4, 1], got [1]");
    check(
        &[weight, ("scales", Dtype::BF16, &[4, 3]), ("biases", Dtype::BF16, &[4, 3])],
        "\"m.weight\": 8 words and 3 scales per row of 64 inputs: \
         no whole number of bits per weight and weights per scale",
    );
    check(
        &[("weight", Dtype::U32, &[4, 14]), scales, ("biases", Dtype::BF16, &[4, 1])],
        "\"m.weight\": 14 words and 1 scales per row of 64 inputs: 7 bits in groups of 64 with BF16 \
         scales, with biases, is no known quantization",
    );
    check(
        &[("weight", Dtype::F32, &[4, 64]), ("bias", Dtype::F32, &[5])],
        "\"m.bias\": expected shape [4], got [5]",
    );
    check(
        &[("weight", Dtype::F32, &[4, 64]), ("bias", Dtype::I8, &[4])],
        "\"m.bias\": expected an F32, F16 or BF16 bias, got I8",
    );
}
