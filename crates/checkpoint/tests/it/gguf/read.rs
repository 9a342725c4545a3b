//! Files that are as they should be, and what they open as.

use checkpoint::gguf::{Conversion, Field, RotaryPairs, Value};
use checkpoint::{Checkpoint, FileIndex, Warning};
use format::{BlockFormat, Dtype, Encoding};
use serde_json::json;

use super::{HIDDEN, Q4_0, Raw, declare, field, fields, open, tensors, written};
use crate::support::files;

#[test]
fn a_file_opens_as_a_checkpoint() {
    let file = written(&fields("llama"), &tensors());
    let checkpoint = open(&file).unwrap();
    assert_eq!(checkpoint.config().model_type(), "llama");
    assert_eq!(checkpoint.tensors().len(), tensors().len());
    assert_eq!(checkpoint.warnings(), []);
    let q = checkpoint.linear("model.layers.0.self_attn.q_proj", None, 256, 256).unwrap();
    assert_eq!(q.encoding, Encoding::Block(BlockFormat::Q4_0));
    assert_eq!(q.bytes(), 256 * 8 * 18);
    assert_eq!((q.scales, q.biases, q.bias), (None, None, None));
    let down = checkpoint.linear("model.layers.0.mlp.down_proj", None, 256, 512).unwrap();
    assert_eq!(down.encoding.to_string(), "Q4_K");
    // The bytes are those that were written.
    let norm = checkpoint.require("model.norm.weight", &[256]).unwrap();
    let mut bytes = vec![0; 1024];
    checkpoint.read(norm, 0, &mut bytes).unwrap();
    let start = norm.offset as usize;
    assert_eq!(bytes, file[start..start + 1024]);
    assert_eq!(start % 32, 0);
    // Nothing lies at its side.
    assert_eq!(checkpoint.read_file("tokenizer.json").unwrap(), None);
}

#[test]
fn metadata_becomes_a_config() {
    let mut all = fields("llama");
    all.extend([
        field("tokenizer.ggml.bos_token_id", Value::U32(1)),
        field("tokenizer.ggml.eos_token_id", Value::U32(2)),
        field("tokenizer.ggml.eot_token_id", Value::I64(3)),
        field("tokenizer.ggml.eos_token_ids", Value::I32s(vec![2, 4, -1])),
        field("llama.rope.dimension_count", Value::U32(32)),
        field("llama.rope.scaling.type", Value::String("linear".to_owned())),
        field("llama.rope.scaling.factor", Value::F32(4.0)),
    ]);
    let checkpoint = open(&written(&all, &tensors())).unwrap();
    let expect = json!({
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 256,
        "vocab_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "tie_word_embeddings": true,
        "intermediate_size": 512,
        "rope_parameters": {
            "rope_type": "linear",
            "factor": 4.0,
            "rope_theta": 500_000.0,
            "partial_rotary_factor": 0.5,
        },
        "bos_token_id": 1,
        "eos_token_id": [2, 3, 4],
    });
    assert_eq!(serde_json::Value::Object(checkpoint.config().root().clone()), expect);
    assert_eq!(checkpoint.eos_token_ids().unwrap(), [2, 3, 4]);
}

#[test]
fn fields_have_no_width() {
    let mut all = fields("llama");
    let values = [
        Value::U8(200),
        Value::I8(-2),
        Value::U16(60_000),
        Value::I16(-3),
        Value::U32(4_000_000_000),
        Value::I32(-4),
        Value::F32(0.1),
        Value::Bool(true),
        Value::String("é\n".to_owned()),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(0.25),
        Value::Strings(vec!["a".to_owned(), String::new(), "bc".to_owned()]),
        Value::F32s(vec![1e-6, -2.0]),
        Value::I32s(vec![-1, 1]),
        Value::U32s(vec![]),
        Value::Bools(vec![true, false]),
    ];
    for (number, value) in values.iter().enumerate() {
        all.push(field(&format!("x.{number}"), value.clone()));
    }
    let checkpoint = open(&written(&all, &tensors())).unwrap();
    let metadata = checkpoint.gguf().unwrap();
    let shown = |number: usize| match metadata.get(&format!("x.{number}")).unwrap() {
        Field::Unsigned(value) => format!("unsigned {value}"),
        Field::Signed(value) => format!("signed {value}"),
        Field::Float(value) => format!("float {value}"),
        Field::Bool(value) => format!("bool {value}"),
        Field::Text(bytes) => format!("text {:?}", String::from_utf8_lossy(bytes)),
        Field::Numbers(numbers) => format!("{:?}", numbers.iter().collect::<Vec<_>>()),
        Field::Texts(texts) => {
            format!("{:?}", texts.iter().map(String::from_utf8_lossy).collect::<Vec<_>>())
        }
    };
    let all: Vec<String> = (0..values.len()).map(shown).collect();
    let expect = [
        "unsigned 200",
        "signed -2",
        "unsigned 60000",
        "signed -3",
        "unsigned 4000000000",
        "signed -4",
        "float 0.1",
        "bool true",
        "text \"é\\n\"",
        "unsigned 18446744073709551615",
        "signed -9223372036854775808",
        "float 0.25",
        r#"["a", "", "bc"]"#,
        "[Float(1e-6), Float(-2.0)]",
        "[Signed(-1), Signed(1)]",
        "[]",
        "[Bool(true), Bool(false)]",
    ];
    assert_eq!(all, expect);
    assert_eq!(metadata.fields().len(), 9 + values.len());
}

#[test]
fn other_alignments_and_holes() {
    for (alignment, version) in [(1_u64, 2), (8, 3), (64, 3), (4096, 3)] {
        let mut raw = Raw::new();
        raw.version = version;
        raw.field("general.alignment", 10, &alignment.to_le_bytes());
        raw.tensor("token_embd.weight", &[4, 3], 0, 0);
        // Behind a hole, which harms nothing.
        raw.tensor("output_norm.weight", &[4], 0, 48_u64.next_multiple_of(alignment) + alignment);
        let checkpoint = open(&raw.file(alignment, 2 * 4096 + 16)).unwrap();
        let places = ["model.embed_tokens.weight", "model.norm.weight"]
            .map(|name| checkpoint.tensor(name).unwrap().offset);
        assert!(places[0].is_multiple_of(alignment), "{alignment}: {places:?}");
        assert_eq!(places[1] - places[0], 48_u64.next_multiple_of(alignment) + alignment);
    }
}

#[test]
fn padding_after_the_last_tensor_may_be_missing() {
    let mut list = tensors();
    list.push(declare("output.weight", Dtype::F16, &[HIDDEN + 1, 9]));
    let file = written(&fields("llama"), &list);
    let end = file.len() - (32 - 2 * 9 * 257 % 32);
    open(&file[..end]).unwrap();
    let error = open(&file[..end - 1]).unwrap_err().to_string();
    assert!(error.contains("tensor \"output.weight\": ends at data byte"), "{error}");
}

#[test]
fn a_folder_with_one_file_is_that_file() {
    let file = written(&fields("llama"), &tensors());
    let names = |list: &[&str]| {
        let entries: Vec<(&str, &[u8])> = list.iter().map(|name| (*name, &file[..])).collect();
        Checkpoint::from_owned(files(&entries)).map(|checkpoint| checkpoint.folder())
    };
    assert!(names(&["a.GGUF"]).is_ok());
    let error = names(&["a.gguf", "b.gguf"]).unwrap_err().to_string();
    assert_eq!(error, "<memory>: several GGUF models; name one of the files: a.gguf, b.gguf");
    // A config.json says that the folder is something else.
    assert!(names(&["a.gguf", "config.json"]).is_err());
}

#[test]
fn files_on_a_disk_are_opened_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(&fields("llama"), &tensors());
    // By what it begins with, not by its ending: Ollama's have none.
    let path = folder.path().join("sha256-0123");
    std::fs::write(&path, &file).unwrap();
    // What lies in the same folder may belong to another model.
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.folder(), path);
    assert_eq!(checkpoint.read_file("tokenizer.json").unwrap(), None);
    assert!(checkpoint.opened(FileIndex(0)).is_some());
    let error = Checkpoint::open(&folder.path().join("absent.gguf")).unwrap_err().to_string();
    assert!(error.ends_with("config.json: not found"), "{error}");
}

#[test]
fn what_is_no_part_of_the_model_is_counted() {
    let mut list = tensors();
    list.extend([
        declare("v.patch_embd.weight", Dtype::F16, &[16, 4]),
        declare("mm.0.weight", Dtype::F32, &[16]),
        declare("blk.0.attn_rot_embd.weight", Dtype::F32, &[16]),
        declare("blk.1.attn_norm.weight", Dtype::F32, &[16]),
        declare("blk.0.attn_q.input_scale", Dtype::F32, &[1]),
    ]);
    let checkpoint = open(&written(&fields("llama"), &list)).unwrap();
    assert_eq!(checkpoint.tensors().len(), tensors().len());
    let first = "blk.0.attn_rot_embd.weight".to_owned();
    assert_eq!(
        checkpoint.warnings(),
        [
            Warning::Skipped { part: "vision", count: 2, bytes: 128 + 64 },
            Warning::UnknownTensors { count: 2, bytes: 128, first },
        ]
    );
}

#[test]
fn safetensors_have_no_conversion() {
    let checkpoint = crate::support::open(crate::support::CONFIG, &[]);
    assert!(checkpoint.gguf().is_none());
    assert_eq!(*checkpoint.conversion(), Conversion::default());
    let file = written(&fields("qwen2"), &tensors());
    let conversion = open(&file).unwrap().conversion().clone();
    assert!(conversion.norms_are_multipliers);
    assert_eq!(conversion.rotary_pairs, RotaryPairs::Halves);
}

#[test]
fn blocks_are_read_as_they_are() {
    for &format in BlockFormat::ALL {
        let mut list = tensors();
        list[8] = declare("blk.0.ffn_gate.weight", Dtype::Block(format), &[HIDDEN, 512]);
        let checkpoint = open(&written(&fields("llama"), &list)).unwrap();
        let gate = checkpoint.linear("model.layers.0.mlp.gate_proj", None, 512, 256).unwrap();
        let rows = gate.slice(0).rows(100, 7);
        let row = HIDDEN as usize / format.weights() * format.bytes();
        assert_eq!((gate.encoding, rows.bytes()), (Encoding::Block(format), 7 * row as u64));
        assert_eq!(rows.weight.offset, gate.weight.offset + 100 * row as u64);
        // Floats alone become floats.
        let error = checkpoint.read_f32(&gate.weight).unwrap_err().to_string();
        assert!(error.contains(&format!("expected F32, F16 or BF16, got {format}")), "{error}");
    }
    assert_eq!(Q4_0.to_string(), "Q4_0");
}
