//! Changes of JSON that keep it JSON, or nearly.
//!
//! Two things cannot be said in a parsed value, a key that is there twice and a number of any spelling. They
//! are written as marked strings and become what they stand for in the text.

use serde_json::{Map, Value, json};

use super::draw::Draw;

const TWICE: &str = "@twice@";
const RAW: &str = "@raw@";

/// Numbers at which something ends: the range of a type, of whole floats, of memory.
const NUMBERS: [&str; 30] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "-1",
    "255",
    "256",
    "65535",
    "65536",
    "1000000",
    "16777216",
    "1073741824",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e308",
    "1e-308",
    "1e999",
    "-0.0",
    "0.5",
    "NaN",
    "Infinity",
];

const STRINGS: [&str; 12] = [
    "",
    " ",
    "NaN",
    "-1",
    "9007199254740992",
    "\u{0}",
    "\u{1b}[31mred\u{1b}[0m",
    "é",
    "\u{feff}",
    "../../../etc/passwd",
    "👩\u{200d}👩\u{200d}👧",
    "{{ 1 }}",
];

/// Changes a value somewhere, and says what was done.
pub(super) fn change(value: &mut Value, draw: &mut Draw) -> String {
    let mut path = String::new();
    let place = descend(value, &mut path, draw);
    let what = mutate(place, draw);
    format!("{what} at {}", if path.is_empty() { "the top" } else { &path })
}

/// The text of a value, with what marked strings stand for.
pub(super) fn text(value: &Value) -> String {
    let text = value.to_string().replace(TWICE, "");
    let mark = format!("\"{RAW}");
    let mut parts = text.split(&mark);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (raw, rest) = part.split_once('"').unwrap_or((part, ""));
        whole.push_str(raw);
        whole.push_str(rest);
    }
    whole
}

/// A number at the end of some range.
pub(super) fn number(draw: &mut Draw) -> Value {
    Value::String(format!("{RAW}{}", draw.pick(&NUMBERS)))
}

/// A place on a random way down: every level is as likely to be the last.
fn descend<'a>(value: &'a mut Value, path: &mut String, draw: &mut Draw) -> &'a mut Value {
    let is_leaf = match &*value {
        Value::Array(list) => list.is_empty(),
        Value::Object(table) => table.is_empty(),
        _ => true,
    };
    if is_leaf || (!path.is_empty() && draw.once_in(4)) {
        return value;
    }
    match value {
        Value::Array(list) => {
            let at = draw.below(list.len());
            path.push_str(&format!("[{at}]"));
            descend(&mut list[at], path, draw)
        }
        Value::Object(table) => {
            let at = draw.below(table.len());
            let (key, value) = table.iter_mut().nth(at).unwrap();
            path.push_str(&format!(".{}", key.escape_debug().take(60).collect::<String>()));
            descend(value, path, draw)
        }
        _ => unreachable!("leaves have been given back"),
    }
}

fn mutate(value: &mut Value, draw: &mut Draw) -> String {
    if draw.once_in(3) {
        *value = any(draw);
        return "another value".to_owned();
    }
    match value {
        Value::Number(_) => {
            *value = number(draw);
            "another number".to_owned()
        }
        Value::Bool(truth) => {
            *truth = !*truth;
            "the contrary".to_owned()
        }
        Value::String(text) => {
            match draw.below(4) {
                0 => *text = draw.pick(&STRINGS).to_owned(),
                1 => *text = text.repeat(1 + draw.below(2000)),
                2 => text.push_str(draw.pick(&STRINGS)),
                _ => *text = text.chars().take(text.chars().count() / 2).collect(),
            }
            "another string".to_owned()
        }
        Value::Array(list) => change_list(list, draw),
        Value::Object(table) => change_table(table, draw),
        Value::Null => {
            *value = any(draw);
            "a value for null".to_owned()
        }
    }
}

fn change_list(list: &mut Vec<Value>, draw: &mut Draw) -> String {
    match draw.below(6) {
        0 => list.clear(),
        1 if !list.is_empty() => _ = list.remove(draw.below(list.len())),
        2 if !list.is_empty() => {
            let more = vec![draw.pick(list); 1 + draw.below(3000)];
            list.extend(more);
        }
        3 => list.insert(draw.below(list.len() + 1), any(draw)),
        4 if list.len() > 1 => {
            let (a, b) = (draw.below(list.len()), draw.below(list.len()));
            list.swap(a, b);
        }
        _ => list.truncate(list.len() / 2),
    }
    "another list".to_owned()
}

fn change_table(table: &mut Map<String, Value>, draw: &mut Draw) -> String {
    let keys: Vec<String> = table.keys().cloned().collect();
    if keys.is_empty() {
        table.insert(draw.pick(&STRINGS).to_owned(), any(draw));
        return "a key".to_owned();
    }
    let key = draw.pick(&keys);
    match draw.below(5) {
        0 => {
            table.remove(&key);
            format!("no {key:?}")
        }
        1 => {
            let value = if draw.once_in(2) { table[&key].clone() } else { any(draw) };
            table.insert(format!("{TWICE}{key}"), value);
            format!("{key:?} twice")
        }
        2 => {
            let value = table.remove(&key).unwrap();
            table.insert(format!("{key}{}", draw.pick(&STRINGS)), value);
            format!("{key:?} renamed")
        }
        3 => {
            let other = draw.pick(&keys);
            let value = table[&other].clone();
            table.insert(key.clone(), value);
            format!("{key:?} as {other:?}")
        }
        _ => {
            table.insert(key.clone(), any(draw));
            format!("another {key:?}")
        }
    }
}

/// A value of any type.
fn any(draw: &mut Draw) -> Value {
    match draw.below(10) {
        0 => Value::Null,
        1 => draw.once_in(2).into(),
        2..=4 => number(draw),
        5 => draw.pick(&STRINGS).into(),
        6 => "a".repeat(draw.below(100_000)).into(),
        7 => json!([]),
        8 => json!({}),
        _ => {
            let depth = draw.pick(&[1, 5, 20, 60, 120, 200]);
            (0..depth).fold(json!(1), |inner, _| json!([inner]))
        }
    }
}
