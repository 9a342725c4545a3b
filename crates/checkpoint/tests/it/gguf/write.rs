//! The GGUF writer, byte for byte.

use checkpoint::gguf::{Declaration, GgufWriter, Value};
use format::{BlockFormat, Dtype};

const Q4_1: Dtype = Dtype::Block(BlockFormat::Q4_1);
const Q8_0: Dtype = Dtype::Block(BlockFormat::Q8_0);

fn declare(name: &str, dtype: Dtype, dimensions: &[u64]) -> Declaration {
    Declaration { name: name.to_owned(), dtype, dimensions: dimensions.to_vec() }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[test]
fn a_small_file_byte_for_byte() {
    let metadata = [
        ("general.architecture".to_owned(), Value::String("x".to_owned())),
        ("n".to_owned(), Value::U32(7)),
        ("tokens".to_owned(), Value::Strings(vec!["a".to_owned(), "é".to_owned()])),
        ("scores".to_owned(), Value::F32s(vec![0.5])),
        ("types".to_owned(), Value::I32s(vec![-1, 2])),
        ("flag".to_owned(), Value::Bool(true)),
    ];
    let tensors = [declare("q", Q4_1, &[64, 2]), declare("f", Dtype::F32, &[3])];
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
    writer.write("q", &[0xaa; 50]).unwrap();
    writer.write("q", &[0xaa; 30]).unwrap();
    writer.write("f", &[0xbb; 12]).unwrap();
    let file = writer.finish().unwrap();

    let mut expected = b"GGUF\x03\0\0\0".to_vec();
    let number = |value: u64| value.to_le_bytes();
    let word = |value: u32| value.to_le_bytes();
    expected.extend([number(2), number(6)].concat());
    expected.extend([string("general.architecture"), word(8).to_vec(), string("x")].concat());
    expected.extend([string("n"), word(4).to_vec(), word(7).to_vec()].concat());
    let array = |of: u32, len: u64| [&word(9)[..], &word(of), &number(len)].concat();
    expected.extend([string("tokens"), array(8, 2), string("a"), string("é")].concat());
    expected.extend([string("scores"), array(6, 1), 0.5_f32.to_le_bytes().to_vec()].concat());
    expected.extend([string("types"), array(5, 2), vec![255; 4], word(2).to_vec()].concat());
    expected.extend([string("flag"), word(7).to_vec(), vec![1]].concat());
    let shape = [number(64), number(2)].concat();
    expected.extend([string("q"), word(2).to_vec(), shape, word(3).to_vec(), vec![0; 8]].concat());
    let place = [word(0).to_vec(), number(96).to_vec()].concat();
    expected.extend([string("f"), word(1).to_vec(), number(3).to_vec(), place].concat());
    expected.resize(expected.len().next_multiple_of(32), 0);
    expected.extend([[0xaa; 80].as_slice(), &[0; 16], &[0xbb; 12], &[0; 20]].concat());
    assert_eq!(file, expected);
}

#[track_caller]
fn check_refused(metadata: &[&str], tensors: &[Declaration], expected: &str) {
    let metadata: Vec<_> =
        metadata.iter().map(|key| ((*key).to_owned(), Value::F64(1.0))).collect();
    let error = GgufWriter::new(Vec::new(), &metadata, tensors).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot write {expected}"));
}

#[test]
fn what_ggml_would_refuse_is_not_written() {
    check_refused(&["k", "k"], &[], "\"k\": the key is taken");
    let twice = [declare("a", Dtype::F32, &[1]), declare("a", Dtype::F32, &[1])];
    check_refused(&[], &twice, "\"a\": the name is taken");
    check_refused(
        &[],
        &[declare("a", Dtype::F32, &[1; 5])],
        "\"a\": one to four dimensions are possible",
    );
    check_refused(
        &[],
        &[declare("a", Q8_0, &[40, 2])],
        "\"a\": a row is no whole number of blocks, or it is too long",
    );
    let name = "n".repeat(64);
    let expected = format!("{name:?}: the name is longer than 63 bytes");
    check_refused(&[], &[declare(&name, Dtype::F32, &[1])], &expected);
}
