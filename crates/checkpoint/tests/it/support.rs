//! Checkpoints made on the spot, in memory.

use std::collections::BTreeMap;

use checkpoint::Checkpoint;
use checkpoint::write::{Declaration, SafetensorsWriter};
use format::Dtype;

/// A config.json with nothing in it but what every one must have.
pub(crate) const CONFIG: &str = r#"{"model_type": "tiny"}"#;

pub(crate) fn declare(name: &str, dtype: Dtype, shape: &[usize]) -> Declaration {
    Declaration::new(name, dtype, shape)
}

/// A safetensors file of these tensors, every byte from a running counter, so that no two places
/// look alike.
pub(crate) fn counted_file(tensors: &[Declaration]) -> Vec<u8> {
    let mut writer = SafetensorsWriter::new(Vec::new(), tensors, &BTreeMap::new()).unwrap();
    let mut state = 1_u64;
    for tensor in tensors {
        let len = tensor.dtype.tensor_bytes(&tensor.shape).unwrap();
        let bytes: Vec<u8> = (0..len).map(|_| xorshift(&mut state) as u8).collect();
        writer.write(&tensor.name, &bytes).unwrap();
    }
    writer.finish().unwrap()
}

/// A file with this header, as it stands, and `data_bytes` of zeros.
pub(crate) fn raw_file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data_bytes, 0);
    file
}

pub(crate) fn files(list: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    list.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
}

/// A checkpoint of one file.
pub(crate) fn open(config: &str, tensors: &[Declaration]) -> Checkpoint {
    let model = counted_file(tensors);
    let list = files(&[("config.json", config.as_bytes()), ("model.safetensors", &model)]);
    Checkpoint::from_owned(list).unwrap()
}

/// Marsaglia's xorshift64: the same numbers everywhere, for ever.
pub(crate) fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
