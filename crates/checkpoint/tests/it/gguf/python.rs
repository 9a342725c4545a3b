//! What the package `gguf` writes, read here: another implementation than ours, by other people.
//!
//! Needs `MILLSTREAM_TEST_GGUF`, a Python with gguf and numpy; skipped without.

use std::path::Path;
use std::process::Command;

use checkpoint::Checkpoint;
use checkpoint::gguf::Field;
use serde_json::{Value, json};

/// A field as the script puts it.
fn value(field: &Field) -> Value {
    match field {
        Field::Unsigned(value) => json!(value),
        Field::Signed(value) => json!(value),
        Field::Float(value) => json!(value),
        Field::Bool(value) => json!(value),
        Field::Text(bytes) => json!(String::from_utf8_lossy(bytes)),
        Field::Numbers(numbers) => numbers.iter().map(|field| value(&field)).collect(),
        Field::Texts(texts) => texts.iter().map(String::from_utf8_lossy).collect(),
    }
}

#[test]
fn files_of_the_package_are_read() {
    let Some(python) = std::env::var_os("MILLSTREAM_TEST_GGUF") else {
        println!("skipped: MILLSTREAM_TEST_GGUF is not set");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gguf/write_files.py");
    let output = Command::new(python).arg("-B").arg(script).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let described: Value = serde_json::from_slice(&output.stdout).unwrap();
    let described = described.as_array().unwrap();
    for expect in described {
        let name = expect["file"].as_str().unwrap();
        let checkpoint = Checkpoint::open(&folder.path().join(name)).unwrap();
        let metadata = checkpoint.gguf().unwrap();
        for (key, field) in expect["fields"].as_object().unwrap() {
            let found = metadata.get(key).unwrap_or_else(|| panic!("{name}: no {key}"));
            assert_eq!(value(found), *field, "{name}: {key}");
        }
        let tensors = expect["tensors"].as_object().unwrap();
        assert_eq!(checkpoint.tensors().len(), tensors.len(), "{name}");
        for (tensor, expect) in tensors {
            let found = checkpoint.tensor(tensor).unwrap_or_else(|| panic!("{name}: no {tensor}"));
            assert_eq!(json!(found.dtype.name()), expect["type"], "{name}: {tensor}");
            assert_eq!(json!(found.shape), expect["shape"], "{name}: {tensor}");
            let mut bytes = vec![0; found.len_bytes as usize];
            checkpoint.read(found, 0, &mut bytes).unwrap();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(json!(hex), expect["bytes"], "{name}: {tensor}");
        }
    }
    assert_eq!(described.len(), 4);
}
