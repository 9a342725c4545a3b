//! Changes of a safetensors file: its header as JSON, its length, its bytes.

use serde_json::{Value, json};

use super::draw::Draw;
use super::json;

const DTYPES: [&str; 12] =
    ["F32", "F16", "BF16", "U8", "U32", "I64", "BOOL", "F4", "F8_E4M3", "F6_E2M3", "C64", "X"];

/// Changes a file's bytes, and says what was done.
pub(super) fn change(bytes: &mut Vec<u8>, draw: &mut Draw) -> String {
    if draw.once_in(5) {
        return super::seeds::damage(bytes, draw);
    }
    let Some((header, data)) = parts(bytes) else { return super::seeds::damage(bytes, draw) };
    let mut header = header;
    let data = data.to_vec();
    let what = match draw.below(5) {
        0 => json::change(&mut header, draw),
        _ => change_tensor(&mut header, data.len(), draw),
    };
    let text = json::text(&header);
    let mut length = text.len() as u64;
    let mut note = String::new();
    if draw.once_in(10) {
        length = draw.pick(&[0, 1, length - 1, length + 1, 1 << 20, 1 << 32, 1 << 63, u64::MAX]);
        note = format!(" and a length of {length}");
    }
    *bytes = [&length.to_le_bytes()[..], text.as_bytes(), &data].concat();
    format!("header: {what}{note}")
}

fn parts(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (header, data) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    Some((serde_json::from_slice(header).ok()?, data))
}

/// Changes what the header says of one tensor.
fn change_tensor(header: &mut Value, data_bytes: usize, draw: &mut Draw) -> String {
    let Some(table) = header.as_object_mut().filter(|table| !table.is_empty()) else {
        return json::change(header, draw);
    };
    let names: Vec<String> = table.keys().cloned().collect();
    let name = draw.pick(&names);
    let other = draw.pick(&names);
    let what = match draw.below(9) {
        0 => {
            table[&name]["dtype"] = draw.pick(&DTYPES).into();
            "dtype"
        }
        1 => {
            table[&name]["data_offsets"] = table[&other]["data_offsets"].clone();
            "another's bytes"
        }
        2 => {
            let end = draw.below(2 * data_bytes + 2);
            table[&name]["data_offsets"] = json!([end / 2, end]);
            "offsets"
        }
        3 => {
            // As many elements in another shape.
            if let Some(shape) = table[&name]["shape"].as_array_mut() {
                match draw.below(4) {
                    0 => shape.reverse(),
                    1 => shape.push(json!(1)),
                    2 => shape.insert(0, json!(1)),
                    _ => {
                        let sizes = shape.iter().filter_map(Value::as_u64);
                        *shape = vec![json!(sizes.product::<u64>())];
                    }
                }
            }
            "shape"
        }
        4 => {
            // Empty, and yet as large as can be.
            let huge = json::number(draw);
            table[&name]["shape"] = json!([0, huge, huge]);
            table[&name]["data_offsets"] = json!([0, 0]);
            "an empty shape"
        }
        5 => {
            if let Some(shape) = table[&name]["shape"].as_array_mut().filter(|s| !s.is_empty()) {
                let at = draw.below(shape.len());
                shape[at] = json::number(draw);
            }
            "a dimension"
        }
        6 => {
            table.remove(&name);
            "gone"
        }
        7 => {
            let entry = table[&other].clone();
            table.insert(name.clone(), entry);
            "another's entry"
        }
        _ => {
            let entry = table.remove(&name).unwrap();
            let scaled = name.replace(".weight", draw.pick(&[".scales", ".biases", ".bias"]));
            table.insert(scaled, entry);
            "renamed"
        }
    };
    format!("{name} {what}")
}
